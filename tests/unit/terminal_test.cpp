// Tests of the progress bar on a pseudo terminal, and of text tables.
#include "core/command/terminal.h"

#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

// Redirects this process's standard output and error to a pseudo terminal within a scope.
class OnTerminal {
 public:
  explicit OnTerminal(unsigned columns) : terminal_(columns) {
    std::fflush(stdout);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      before_[fd] = ::dup(fd);
      ::dup2(terminal_.end(), fd);
    }
  }
  ~OnTerminal() {
    std::fflush(stdout);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      ::dup2(before_[fd], fd);
      ::close(before_[fd]);
    }
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  const std::string& output() { return terminal_.output(); }

 private:
  PseudoTerminal terminal_;
  int before_[3] = {};
};

class ProgressBarTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TERM", "xterm", 1); }
};

std::string one_bar(unsigned columns, std::uint64_t total, std::uint64_t done) {
  OnTerminal terminal(columns);
  {
    ProgressBar bar(total);
    bar.add(done);
  }
  return terminal.output();
}

TEST_F(ProgressBarTest, AppearsAtFirstByteAndDisappearsAtEnd) {
  const std::string output = one_bar(80, 1000, 500);

  ASSERT_EQ(progress_texts(output).size(), 1u) << output;
  EXPECT_TRUE(progress_texts(output)[0].starts_with("[###############...............]  50%"))
      << output;
  EXPECT_TRUE(output.ends_with("\r\x1b[K"));
  EXPECT_TRUE(screen(output, 80).empty()) << output;
}

TEST_F(ProgressBarTest, NeverExceedsTotal) {
  for (const std::uint64_t done : {1001ULL, 5000ULL, ~0ULL}) {
    const std::string output = one_bar(80, 1000, done);

    ASSERT_EQ(progress_texts(output).size(), 1u) << output;
    EXPECT_NE(progress_texts(output)[0].find(" 100%  1000 B of 1000 B"), std::string::npos)
        << output;
  }
}

TEST_F(ProgressBarTest, ShowsFullBarIfTotalIsZero) {
  EXPECT_NE(one_bar(80, 0, 0).find("100%"), std::string::npos);
}

TEST_F(ProgressBarTest, FitsTerminalWidth) {
  for (unsigned columns = 1; columns <= 200; ++columns) {
    const std::string output = one_bar(columns, 1'000'000'000'000, 999'999'999'999);

    ASSERT_EQ(progress_texts(output).size(), 1u) << output;
    EXPECT_LE(columns_of(progress_texts(output)[0]), std::max(columns - 1, 1u));
    EXPECT_TRUE(screen(output, columns).empty()) << columns << ": " << output;
  }
}

TEST_F(ProgressBarTest, HidesOnDumbOrUnknownTerminal) {
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(one_bar(80, 10, 5), "");
  ::setenv("TERM", "", 1);
  EXPECT_EQ(one_bar(80, 10, 5), "");
  ::unsetenv("TERM");
  EXPECT_EQ(one_bar(80, 10, 5), "");
}

TEST_F(ProgressBarTest, DisappearsBeforePrintedLine) {
  OnTerminal terminal(80);
  ProgressBar bar(1000);
  bar.add(500);

  bar.print("a line\n");

  EXPECT_EQ(screen(terminal.output(), 80), std::vector<std::string>{"a line"});
}

TEST_F(ProgressBarTest, DrawsNothingAfterEnd) {
  OnTerminal terminal(80);
  ProgressBar bar(1000);
  bar.add(500);

  bar.end();
  const std::string output = terminal.output();
  bar.add(1);
  bar.end();

  EXPECT_EQ(terminal.output(), output);
  EXPECT_TRUE(screen(output, 80).empty());
}

TEST_F(ProgressBarTest, DoesNotMixWithLinesOfManyThreads) {
  OnTerminal terminal(40);
  std::vector<std::string> printed;
  {
    ProgressBar bar(8000);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 2000; ++n) bar.add(1);
      });
    }
    for (int i = 0; i < 20; ++i) {
      printed.push_back("line " + std::to_string(i));
      bar.print(printed.back() + "\n");
    }
  }

  EXPECT_EQ(screen(terminal.output(), 40), printed);
}

std::vector<std::string> parts(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

Terminal terminal_of(std::size_t width) {
  Terminal terminal;
  terminal.is_terminal = true;
  terminal.has_colours = false;
  terminal.is_utf8 = true;
  terminal.width = width;
  return terminal;
}

// Returns the lines of a table with names, a column that may be left out, and a fixed column.
std::string lines_of_table(std::size_t width, const std::vector<std::string>& names) {
  const Terminal terminal = terminal_of(width);
  TextTable table(terminal, {{.heading = "NAME", .least = 8, .is_name = true},
                             {.heading = "LESS", .drop = 1},
                             {.heading = "SIZE", .is_right_aligned = true}});
  for (const std::string& name : names) table.measure(std::vector<std::string>{name, "four", "9"});
  std::string text = table.heading();
  for (const std::string& name : names)
    text += table.line(std::vector<std::string>{name, "four", "9"});
  return text + table.left_out();
}

TEST(TextTable, CutsNamesOnlyWhileTheyStayDistinct) {
  const std::string a = "layers.1.a_long_name_of_a_tensor", b = "layers.2.a_long_name_of_a_tensor";

  EXPECT_EQ(lines_of_table(44, {a, b}), "NAME                              LESS  SIZE\n" + a +
                                            "  four     9\n" + b + "  four     9\n");
  EXPECT_EQ(lines_of_table(34, {a, b}),
            "NAME                    LESS  SIZE\n"
            "layers.1.a…of_a_tensor  four     9\n"
            "layers.2.a…of_a_tensor  four     9\n");
}

TEST(TextTable, DropsColumnsBeforeNamesLookAlike) {
  const std::string a = "a_name_of_layer_1_of_a_long_tensor",
                    b = "a_name_of_layer_2_of_a_long_tensor";

  EXPECT_EQ(lines_of_table(40, {a, b}),
            "NAME                                SIZE\n" + a + "     9\n" + b + "     9\n LESS");
  EXPECT_EQ(lines_of_table(34, {a, b}),
            "NAME\n  LESS  SIZE\n" + a + "\n  four     9\n" + b + "\n  four     9\n");
}

TEST(TextTable, FitsAnyWidth) {
  for (std::size_t width = 1; width < 60; ++width) {
    for (const std::string& line :
         parts(lines_of_table(width, {"a.long.name.of.one.tensor", "b"}))) {
      EXPECT_LE(columns_of(line), std::max<std::size_t>(width, 12)) << width << ": " << line;
    }
  }
}

}  // namespace
}  // namespace stfs::test
