// Checks rules of the design, and promises in the documents, that no compiler checks.
#include "fs/view/registry.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;

const fs::path kTree = STFS_SOURCE_DIR;

bool is_code(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh" ||
         extension == ".c";
}

// Returns the source files below these directories, relative to the root.
std::vector<fs::path> code_in(const std::vector<std::string>& directories) {
  std::vector<fs::path> files;
  for (const std::string& directory : directories) {
    for (const auto& entry : fs::recursive_directory_iterator(kTree / directory)) {
      if (entry.is_regular_file() && is_code(entry.path()))
        files.push_back(entry.path().lexically_relative(kTree));
    }
  }
  std::ranges::sort(files);
  return files;
}

struct Include {
  bool is_quoted;
  std::string target;
};

// Removes the text between `open` and `close` from the beginning of `text` and returns it, or
// nullopt.
std::optional<std::string> take_between(std::string_view& text, char open, char close) {
  if (!text.starts_with(open)) return std::nullopt;
  const std::size_t end = text.find(close, 1);
  if (end == std::string_view::npos) return std::nullopt;
  std::string inner(text.substr(1, end - 1));
  text.remove_prefix(end + 1);
  return inner;
}

std::vector<Include> includes_of(const fs::path& file) {
  std::vector<Include> includes;
  std::istringstream lines(read_file(kTree / file));
  for (std::string line; std::getline(lines, line);) {
    std::erase(line, ' ');
    constexpr std::string_view kDirective = "#include";
    if (!line.starts_with(kDirective)) continue;
    std::string_view rest = std::string_view(line).substr(kDirective.size());
    if (const auto quoted = take_between(rest, '"', '"')) includes.push_back({true, *quoted});
    if (const auto bracketed = take_between(rest, '<', '>'))
      includes.push_back({false, *bracketed});
  }
  return includes;
}

TEST(Structure, IncludesAreRelativeToRoot) {
  for (const fs::path& file : code_in({"core", "fs", "tools", "tests"})) {
    for (const auto& [is_quoted, target] : includes_of(file)) {
      EXPECT_TRUE(!is_quoted || fs::exists(kTree / target))
          << file << " includes \"" << target << '"';
    }
  }
}

// Returns the folder of a file, in the form that the design uses: "core/recipe".
std::string folder_of(const std::string& file) {
  std::string folder = file.substr(0, file.rfind('/'));
  // The public headers (tools/gpu/library/include) belong to the library's folder.
  if (folder.ends_with("/include")) folder.resize(folder.size() - std::string("/include").size());
  return folder;
}

// Maps each folder to the other folders that its files may include.
const std::map<std::string, std::set<std::string>> kArrows = [] {
  std::map<std::string, std::set<std::string>> arrows;
  // Each stage may include the stages before it.
  const auto chain = [&arrows](std::set<std::string> known,
                               const std::vector<std::string>& stages) {
    for (const std::string& stage : stages) {
      arrows[stage] = known;
      known.insert(stage);
    }
    return known;
  };
  const std::set<std::string> core = chain(
      {}, {"core/base",         "core/source",          "core/remote/http",    "core/remote/stores",
           "core/remote/cache", "core/remote",          "core/format",         "core/recipe",
           "core/stored",       "core/layer/quantised", "core/layer/delta",    "core/layer/lora",
           "core/layer/edit",   "core/layer",           "core/checkpoint",     "core/opened",
           "core/write",        "core/values",          "core/values/picture", "core/report",
           "core/command"});
  chain(core, {"fs/view", "fs/mount", "fs/fuse"});
  chain(core, {"tools/info"});
  chain({}, {"tools/wheel"});
  chain(core, {"tools/gpu/device", "tools/gpu/protocol", "tools/gpu/copier", "tools/gpu/holder",
               "tools/gpu/client", "tools/gpu/library", "tools/library"});
  return arrows;
}();

TEST(Structure, FoldersIncludeOnlyEarlierFolders) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    const std::string folder = folder_of(file.string());
    if (folder.ends_with("/examples")) continue;  // example code for users
    ASSERT_TRUE(kArrows.contains(folder))
        << file << " is in a folder that the design does not name";
    for (const auto& [is_quoted, target] : includes_of(file)) {
      if (!is_quoted) continue;
      const std::string included = folder_of(target);
      EXPECT_TRUE(included == folder || kArrows.at(folder).contains(included))
          << file << " includes " << target;
    }
  }
}

// Some files may include a layer directly, because they read or write the layer's file format.
TEST(Structure, LayersAreUsedOnlyThroughTheirTable) {
  const std::set<std::string> format_users{
      "core/write/delta.h",
      "core/write/delta.cpp",      // writes deltas
      "tools/info/info_verb.cpp",  // prints the links of a chain
      "core/command/complete.cpp",
      "tools/info/edit_verb.cpp",  // lines of edits
      "core/checkpoint/mount_source.cpp",
      "core/checkpoint/source_lists.cpp"};
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (file.string().starts_with("core/layer/") || format_users.contains(file.string())) continue;
    for (const auto& include : includes_of(file)) {
      for (const std::string_view layer : {"delta", "edit", "lora"}) {
        EXPECT_FALSE(include.target.starts_with("core/layer/" + std::string(layer) + "/"))
            << file << " includes " << include.target;
      }
    }
  }
}

TEST(Structure, MountUsesViewsOnlyThroughTheirTable) {
  for (const fs::path& file : code_in({"fs/mount", "fs/fuse"})) {
    EXPECT_EQ(read_file(kTree / file).find("View::k"), std::string::npos) << file;
  }
}

// Returns true if `text` has the name of a view's directory or file, and not only as the end of
// another name: "slice/" is not in "npy-slice/".
bool has_view(std::string_view text, const std::string& name) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const char before = at == 0 ? ' ' : text[at - 1];
    if (std::isalnum(static_cast<unsigned char>(before)) == 0 && before != '-') return true;
  }
  return false;
}

TEST(Structure, ViewsAreDocumentedAndTested) {
  std::string tests;
  for (const fs::path& file : code_in({"tests/mount"})) tests += read_file(kTree / file);
  for (const ViewSpec& view : all_views()) {
    if (view.name.empty()) continue;  // the root, and files next to another view's files
    const std::string name = std::string(view.name) + (view.names == stfs::Names::kFile ? "" : "/");
    for (const char* document : {"docs/REFERENCE.md", "docs/man/stfs.1.in"}) {
      EXPECT_TRUE(has_view(read_file(kTree / document), name)) << document << " lacks " << name;
    }
    EXPECT_TRUE(has_view(tests, name)) << "no test in tests/mount names " << name;
  }
}

TEST(Structure, ViewsHaveUniqueNumbersAndNames) {
  std::set<std::pair<View, int>> numbers;
  std::set<std::string_view> names;
  for (const ViewSpec& view : all_views()) {
    EXPECT_TRUE(numbers.emplace(view.id, view.file).second) << view.name;
    EXPECT_TRUE(view.beside || names.insert(view.name).second) << view.name;
    const bool has_recipe = view.make != nullptr || view.extent != nullptr;
    const int ways = (has_recipe ? 1 : 0) + (view.compute != nullptr ? 1 : 0) +
                     (view.snapshot != nullptr ? 1 : 0);
    EXPECT_EQ(ways, 1) << view.name;
    EXPECT_EQ(view.names == stfs::Names::kFile, view.id == View::kControl) << view.name;
  }
}

TEST(Structure, OnlyFuseFolderIncludesFuse) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (folder_of(file.string()) == "fs/fuse") continue;
    for (const auto& [is_quoted, target] : includes_of(file)) {
      EXPECT_TRUE(is_quoted || target.find("fuse") == std::string::npos)
          << file << " includes " << target;
    }
  }
}

// A new type must need only a row in the table and a converter.
TEST(Structure, OnlyTypeTableSwitchesOnDType) {
  const std::set<std::string> table{"core/format/types.cpp", "core/format/to_f32.cpp"};
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (table.contains(file.string())) continue;
    EXPECT_EQ(read_file(kTree / file).find("case DType::"), std::string::npos) << file;
  }
}

// Including nlohmann/json.hpp makes the compilation of a file seconds slower.
TEST(Structure, NoHeaderIncludesJsonLibrary) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (file.extension() != ".h") continue;
    for (const auto& include : includes_of(file)) {
      EXPECT_FALSE(include.target == "nlohmann/json.hpp") << file;
    }
  }
}

// The messages of CLI11 name types and subcommands, which users do not know.
TEST(Structure, OnlyCommandParserIncludesCli11) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (file == "core/command/command_parser.cpp") continue;
    for (const auto& include : includes_of(file)) {
      EXPECT_FALSE(include.target.starts_with("CLI/")) << file;
    }
  }
}

TEST(Structure, OnlyKnownFilesIncludeZstdRe2AndZlib) {
  const std::set<std::string> zlib{"core/format/inflate.cpp", "core/layer/delta/version.cpp",
                                   "core/values/picture/png.cpp"};
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    const std::string folder = folder_of(file.string());
    for (const auto& [is_quoted, target] : includes_of(file)) {
      EXPECT_TRUE(folder == "core/layer/delta" || !target.starts_with("zstd")) << file;
      EXPECT_TRUE(file == "core/base/pattern.cpp" || !target.starts_with("re2/")) << file;
      EXPECT_TRUE(zlib.contains(file.string()) || target != "zlib.h") << file;
    }
  }
}

TEST(Structure, OnlyDeviceFolderIncludesCuda) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (folder_of(file.string()) == "tools/gpu/device") continue;
    for (const auto& [is_quoted, target] : includes_of(file)) {
      EXPECT_TRUE(is_quoted || target.find("cuda") == std::string::npos)
          << file << " includes " << target;
    }
  }
}

// Returns "namespace::Name" for each type that a file defines at the beginning of a line, outside
// of unnamed namespaces.
std::vector<std::string> types_in(const fs::path& file) {
  constexpr std::string_view kOpens = "namespace ";
  std::vector<std::string> open;  // namespaces; "" is an unnamed one
  std::vector<std::string> types;
  std::istringstream lines(read_file(kTree / file));
  for (std::string line; std::getline(lines, line);) {
    if (line == "namespace {") {
      open.emplace_back();
    } else if (line.starts_with(kOpens) && line.ends_with(" {")) {
      open.push_back(line.substr(kOpens.size(), line.size() - kOpens.size() - 2));
    } else if (line.starts_with("}  // namespace") && !open.empty()) {
      open.pop_back();
    }
    const bool is_definition =
        !line.starts_with(' ') && line.find('{') != std::string::npos && !line.ends_with(';');
    if (!is_definition || std::ranges::count(open, "") > 0) continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != "class" && word != "struct" && word != "enum" && word != "union") continue;
    if (word == "enum") words >> word;  // the word "class", or the name
    if (word == "class" || word == "struct" || word == "union") words >> word;
    const std::size_t end = word.find_first_of(":{<");
    if (end != std::string::npos && word.substr(end, 2) == "::") continue;  // a nested class
    if (end != std::string::npos) word.resize(end);
    std::string name;
    for (const std::string& space : open) name += space + "::";
    types.push_back(name + word);
  }
  return types;
}

// Linking two definitions into a program would be undefined behaviour (one definition rule).
TEST(Structure, TypeNamesAreUniqueInNamespace) {
  std::map<std::string, fs::path> defined;
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    for (const std::string& type : types_in(file)) {
      if (type.empty()) continue;  // an unnamed enum in C
      const auto [first, is_new] = defined.emplace(type, file);
      EXPECT_TRUE(is_new) << type << " is defined in " << first->second << " and in " << file;
    }
  }
  EXPECT_TRUE(defined.contains("stfs::Error"));
}

TEST(Structure, GpuToolUsesItsOwnNamespace) {
  std::vector<fs::path> outside;
  for (const fs::path& file : code_in({"tools/gpu", "tests/gpu"})) {
    std::istringstream lines(read_file(kTree / file));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("namespace stfs") && !line.starts_with("namespace stfs::gpu"))
        outside.push_back(file);
    }
  }
  EXPECT_EQ(outside, std::vector<fs::path>{});
}

TEST(Structure, ProductDoesNotIncludeTests) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    for (const auto& include : includes_of(file)) {
      EXPECT_FALSE(include.target.starts_with("tests/")) << file;
    }
  }
}

TEST(Structure, NoFileIsNamedUtils) {
  for (const fs::path& file : code_in({"core", "fs", "tools", "tests"})) {
    const std::string stem = file.stem().string();
    for (const char* name : {"utils", "util", "helpers", "misc", "common"})
      EXPECT_NE(stem, name) << file;
  }
}

TEST(Structure, HeadersBeginWithComment) {
  for (const fs::path& file : code_in({"core", "fs", "tools"})) {
    if (file.extension() != ".h") continue;
    const std::string text = read_file(kTree / file);
    EXPECT_TRUE(text.starts_with("// ") || text.starts_with("/* ")) << file;
    EXPECT_NE(text.find("#pragma once"), std::string::npos) << file;
  }
}

TEST(Structure, TestFilesAreInBuild) {
  for (const char* directory :
       {"tests/unit", "tests/mount", "tests/gpu", "tests/library", "tests/faults"}) {
    const std::string build = read_file(kTree / directory / "CMakeLists.txt");
    for (const std::string& name : names_in(kTree / directory)) {
      if (!name.ends_with("_test.cpp")) continue;
      EXPECT_NE(build.find(name), std::string::npos) << directory << "/" << name;
    }
  }
}

// Returns "Suite.Name" of every test in the tree.
std::set<std::string> all_tests() {
  std::set<std::string> names;
  for (const fs::path& file : code_in({"tests"})) {
    std::string text = read_file(kTree / file);
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    for (const std::string_view macro : {"TEST(", "TEST_F(", "TEST_P("}) {
      for (std::size_t at = text.find(macro); at != std::string::npos;
           at = text.find(macro, at + 1)) {
        std::string_view rest = std::string_view(text).substr(at + macro.size() - 1);
        std::string name = take_between(rest, '(', ')').value_or("");
        if (const std::size_t comma = name.find(','); comma != std::string::npos) {
          names.insert(name.replace(comma, 1, "."));
        }
      }
    }
  }
  return names;
}

// Returns the targets of a document's links, except links to other sites and anchors in the
// document itself.
std::vector<std::string> links_in(const fs::path& document) {
  std::vector<std::string> links;
  std::istringstream lines(read_file(document));
  bool in_code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("```") != std::string::npos) in_code = !in_code;
    if (in_code) continue;
    for (std::size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 1)) {
      std::string_view rest = std::string_view(line).substr(at + 1);
      const std::string target = take_between(rest, '(', ')').value_or("");
      const std::string file = target.substr(0, target.find('#'));
      if (!file.empty() && file.find("://") == std::string::npos) links.push_back(file);
    }
  }
  return links;
}

TEST(Documents, LinksPointToFiles) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kTree)) files.push_back(entry.path());
  for (const char* directory : {"docs", "tests", ".github"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kTree / directory))
      files.push_back(entry.path());
  }
  std::size_t links = 0;
  for (const fs::path& file : files) {
    if (file.extension() != ".md") continue;
    for (const std::string& link : links_in(file)) {
      ++links;
      EXPECT_TRUE(fs::exists(file.parent_path() / link)) << file << " links to " << link;
    }
  }
  EXPECT_GT(links, 0u);
}

struct Section {
  std::string heading;
  std::vector<std::string> lines;
};

// Returns the sections under headings of level 2 and 3, without code blocks and titles.
std::vector<Section> sections_of(const fs::path& document) {
  std::vector<Section> sections;
  std::istringstream lines(read_file(document));
  bool in_code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) in_code = !in_code;
    if (in_code) continue;
    if (line.starts_with("## ") || line.starts_with("### "))
      sections.push_back({line, {}});
    else if (!sections.empty() && !line.empty() && !line.starts_with("# "))
      sections.back().lines.push_back(line);
  }
  return sections;
}

std::vector<std::string> headings(const std::vector<Section>& sections) {
  std::vector<std::string> result;
  for (const Section& section : sections) result.push_back(section.heading);
  return result;
}

// The headings of SEMANTICS come first, then the headings of REFERENCE.
TEST(Semantics, HasTestForEachHeading) {
  const std::set<std::string> tests = all_tests();
  std::vector<Section> promises;
  for (const char* document : {"docs/SEMANTICS.md", "docs/REFERENCE.md"}) {
    const std::vector<Section> sections = sections_of(kTree / document);
    EXPECT_FALSE(sections.empty()) << document;
    promises.insert(promises.end(), sections.begin(), sections.end());
  }
  const std::vector<Section> proofs = sections_of(kTree / "tests/promises.txt");

  EXPECT_EQ(headings(proofs), headings(promises));
  for (const auto& [heading, lines] : proofs) {
    EXPECT_FALSE(lines.empty()) << heading << " names no test";
    for (const std::string& name : lines)
      EXPECT_TRUE(tests.contains(name)) << heading << " names " << name;
  }
}

}  // namespace
}  // namespace stfs::test
