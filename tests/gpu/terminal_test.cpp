// stfs-gpu on a terminal: the progress bar counts only bytes of tensors, and disappears before
// other output.
#include "tests/gpu/tool.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Words = std::vector<std::string>;

constexpr unsigned kWidths[] = {40, 80, 200};

class GpuTerminal : public GpuToolTest {
 protected:
  // Writes a source with 64 one-byte tensors. In a segment there are 511 bytes of padding between
  // them. Returns an argument that names all.
  std::string many_small() const {
    std::vector<stfs::test::Tensor> tensors;
    for (unsigned i = 0; i < 64; ++i) {
      tensors.push_back(random_tensor("t" + std::to_string(i), "U8", {1}, i));
    }
    write_safetensors(file("many.safetensors"), tensors);
    return file("many.safetensors").string() + "::*";
  }

  static void expect_reaches_100_percent(const std::string& output) {
    const Words texts = progress_texts(output);
    ASSERT_FALSE(texts.empty()) << output;
    EXPECT_NE(texts.back().find("100%  "), std::string::npos) << output;
  }
};

TEST_F(GpuTerminal, RunRemovesProgressBarBeforeCommand) {
  const std::string tensors = many_small();
  for (const unsigned columns : kWidths) {
    const Outcome result =
        gpu({"run", "--device", "cpu", tensors, "--", "sh", "-c", "echo the command; tty -s"},
            {.terminal_columns = columns});

    EXPECT_EQ(result.status, 0) << result.out;
    expect_reaches_100_percent(result.out);
    EXPECT_EQ(screen(result.out, columns), Words{"the command"}) << result.out;
    EXPECT_TRUE(result.out.ends_with("\r\x1b[Kthe command\n")) << result.out;
  }
}

TEST_F(GpuTerminal, VerifyingRunCountsBytesTwiceAndReportsFailedCommand) {
  const std::string tensors = many_small();
  const Outcome result =
      gpu({"run", "--device", "cpu", "--verify", tensors, "--", "/no/such/command"},
          {.terminal_columns = 80});

  EXPECT_EQ(result.status, 127) << result.out;
  ASSERT_FALSE(progress_texts(result.out).empty()) << result.out;
  // One tile holds all tensors, so the first half of the progress is the copy.
  EXPECT_NE(progress_texts(result.out)[0].find(" 50%  64 B of 128 B"), std::string::npos)
      << result.out;
  EXPECT_EQ(screen(result.out, 80), Words{"stfs-gpu: /no/such/command: No such file or directory"});
}

TEST_F(GpuTerminal, LoadRemovesProgressBarBeforeResult) {
  std::filesystem::create_directory(file("disk"));
  const auto source = file("disk") / "m.safetensors";
  write_safetensors(source, {random_tensor("a", "U8", {4 << 20}), random_tensor("b", "U8", {1})});
  const std::size_t end = std::filesystem::file_size(source);
  const FaultyDisk disk(file("disk"));
  for (const unsigned columns : kWidths) {
    // Stall the read of the last tile until the bar is visible.
    disk.fail_or_stall("stall", "m.safetensors", end - 1, end);
    Process load({STFS_GPU_BINARY, "load", "--device", "cpu", "--tile", "65536", "--workers", "1",
                  (disk / "m.safetensors").string() + "::*"},
                 {.terminal_columns = columns});
    EXPECT_TRUE(eventually([&] { return !progress_texts(load.out()).empty(); })) << load.out();
    disk.tell("release");
    const Outcome result = load.wait();

    EXPECT_EQ(result.status, 0) << result.out;
    const Words rows = screen(result.out, 200);
    ASSERT_EQ(rows.size(), 2u) << result.out;
    EXPECT_TRUE(rows[0].starts_with("device    cpu  ")) << result.out;
    EXPECT_TRUE(rows[1].starts_with("resident  2 tensors, 4.0 MiB; copied 4.0 MiB in "))
        << result.out;
    EXPECT_EQ(screen(result.out, columns), screen(rows[0] + "\n" + rows[1] + "\n", columns));
    EXPECT_EQ(gpu({"evict", "--all"}).status, 0);
  }
}

}  // namespace
}  // namespace stfs::gpu::test
