// Loads each file of tests/corpus. A file's name says which rule it keeps or breaks. The header
// fuzzer starts from the same files.
#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

const std::filesystem::path kCorpus = std::filesystem::path(STFS_SOURCE_DIR) / "tests/corpus";

// A line of MANIFEST.tsv: FILE<TAB>ok<TAB>N, or FILE<TAB>error<TAB>NAME.
struct CorpusRow {
  std::string file;
  std::string word;
  std::string detail;
};

std::ostream& operator<<(std::ostream& out, const CorpusRow& row) { return out << row.file; }

std::vector<CorpusRow> manifest() {
  std::vector<CorpusRow> rows;
  std::istringstream lines(read_file(kCorpus / "MANIFEST.tsv"));
  CorpusRow row;
  while (std::getline(lines, row.file, '\t') && std::getline(lines, row.word, '\t') &&
         std::getline(lines, row.detail)) {
    rows.push_back(row);
  }
  return rows;
}

// "refused/end-before-begin.safetensors" -> "refused_end_before_begin"
std::string row_name(const ::testing::TestParamInfo<CorpusRow>& info) {
  std::string name = info.param.file.substr(0, info.param.file.find('.'));
  for (char& c : name) {
    if (c == '/' || c == '-') c = '_';
  }
  return name;
}

class Corpus : public ::testing::TestWithParam<CorpusRow> {
 protected:
  std::string path() const { return (kCorpus / GetParam().file).string(); }
};

TEST_P(Corpus, LoadsOrFailsAsManifestSays) {
  std::string verdict;
  try {
    const Checkpoint checkpoint(std::array{path()});
    verdict = "ok\t" + std::to_string(checkpoint.tensor_count());
  } catch (const Error& error) {
    verdict = "error\t" + std::string(error_name(error.code()));
    EXPECT_EQ(exit_status(error.code()), 1) << error.what();
  }

  EXPECT_EQ(verdict, GetParam().word + "\t" + GetParam().detail);
}

TEST_P(Corpus, StfsInfoCheckReportsSameResult) {
  const std::string command = "'" STFS_INFO_BINARY "' check '" + path() + "' 2>&1";

  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"),
                                                   [](FILE* file) { return ::pclose(file); });
  ASSERT_NE(pipe, nullptr);
  std::string line;
  for (int c; (c = std::fgetc(pipe.get())) != EOF;) line += static_cast<char>(c);

  const std::string expected = path() + "\t" + GetParam().word + "\t" + GetParam().detail;
  EXPECT_NE(line.find(expected), std::string::npos)  // a warning may precede it
      << line << "expected: " << expected;
}

INSTANTIATE_TEST_SUITE_P(Files, Corpus, ::testing::ValuesIn(manifest()), row_name);

TEST(CorpusManifest, NamesEveryFile) {
  std::vector<std::string> named;
  for (const CorpusRow& row : manifest()) named.push_back(row.file);

  std::vector<std::string> found;
  for (const char* directory : {"accepted", "refused"}) {
    for (const std::string& name : names_in(kCorpus / directory)) {
      found.push_back(std::string(directory) + "/" + name);
    }
  }

  EXPECT_EQ(named, found);
}

}  // namespace
}  // namespace stfs::test
