// How stfs-info shows a checkpoint: info, list, show, check and where, on a terminal and in a pipe.
#include "tests/mount/info_tool.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/mounted.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

// Returns the lines that a verb shows on a terminal with `columns` columns, without HOME and TERM.
Words screen_of(Words words, unsigned columns, const std::string& locale) {
  words.insert(words.begin(), {"env", "-u", "HOME", "-u", "TERM", "-u", "LC_ALL", "-u", "LC_CTYPE",
                               "LANG=" + locale, STFS_INFO_BINARY});
  const Outcome result = run(words, {.terminal_columns = columns});
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos) << result.out;
  for (const std::string& line : lines_of(result.out)) {
    // Counts characters: each has one byte that is not 10xxxxxx.
    EXPECT_LE(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }), columns)
        << line;
  }
  return screen(result.out, columns);
}

bool has_line(const Words& lines, const std::string& begin, const std::string& end = "") {
  return std::ranges::any_of(lines, [&](const std::string& line) {
    return line.starts_with(begin) && line.ends_with(end);
  });
}

class InfoCatalogue : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::vector<Tensor>& tensors,
             const std::optional<Metadata>& metadata = std::nullopt) const {
    write_safetensors(dir_ / name, tensors, metadata);
  }

  TempDir dir_;
};

// list

class InfoTable : public InfoCatalogue {
 protected:
  InfoTable() {
    std::vector<Tensor> tensors;
    for (const int layer : {10, 2, 1}) {
      tensors.push_back(random_tensor(
          "model.layers." + std::to_string(layer) + ".post_attention_layernorm.weight", "BF16",
          {4096}));
    }
    write("m.safetensors", tensors);
  }

  std::string m_ = dir_ / "m.safetensors";
};

TEST_F(InfoTable, SortsNumbersInNamesNumerically) {
  Words order;
  for (const json& tensor : json::parse(info({"list", "--json", m_}).out)) {
    order.push_back(tensor.at("name").get<std::string>().substr(13, 2));
  }
  EXPECT_EQ(order, (Words{"1.", "2.", "10"}));

  const Words lines = lines_of(info({"list", m_}).out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_TRUE(lines[1].starts_with("model.layers.1.")) << lines[1];
  EXPECT_TRUE(lines[3].starts_with("model.layers.10.")) << lines[3];
}

TEST_F(InfoTable, FitsTerminalAndEndsWithTotal) {
  for (const unsigned columns : kTerminalWidths) {
    for (const char* locale : {"C", "C.UTF-8"}) {
      const Words lines = screen_of({"list", m_}, columns, locale);

      // On a narrow terminal each row takes two lines; the first has the name.
      const std::size_t per_row = columns == 40 ? 2 : 1;
      ASSERT_EQ(lines.size(), 4 * per_row + 1) << columns;
      EXPECT_TRUE(lines[per_row].starts_with("model.layers.1.")) << lines[per_row];
      EXPECT_NE(lines[4 * per_row - 1].find("  BF16"), std::string::npos);
      EXPECT_TRUE(lines[2 * per_row - 1].ends_with("  [4096]   8192"));
      EXPECT_EQ(lines[4 * per_row], "3 tensors, 24.0 KiB");
    }
  }
}

// show

TEST_F(InfoCatalogue, ShowPrintsOneBlockPerTensor) {
  write("m.safetensors", {random_tensor("l.0.a", "U8", {1}), random_tensor("l.0.b", "U8", {2}),
                          random_tensor("l.1.a", "U8", {3}), random_tensor("head", "U8", {4})});
  const std::string m = dir_ / "m.safetensors";

  const Words lines = lines_of(info({"show", m, "l.0.*", "head"}).out);
  const json objects = json::parse(info({"show", "--json", m, "l.0.*", "head"}).out);

  ASSERT_EQ(lines.size(), 26u);
  EXPECT_EQ(lines[0], "name      l.0.a");
  EXPECT_EQ(lines[8], "");
  EXPECT_EQ(lines[9], "name      l.0.b");
  EXPECT_EQ(lines[18], "name      head");
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[2].at("bytes"), 4);
}

TEST_F(InfoCatalogue, ShowJsonIsObjectForNameAndArrayForGlob) {
  write("m.safetensors", {random_tensor("head", "U8", {4})});
  const std::string m = dir_ / "m.safetensors";

  EXPECT_EQ(json::parse(info({"show", "--json", m, "head"}).out).at("bytes"), 4);
  EXPECT_EQ(json::parse(info({"show", "--json", m, "h*"}).out).at(0).at("bytes"), 4);
  EXPECT_EQ(json::parse(info({"show", "--json", m, "head", "head"}).out).size(), 1u);
}

// check

class InfoCheckDirectory : public InfoCatalogue {
 protected:
  // Runs check on the directory. Returns its lines without the path of the directory.
  Words check(int status) const {
    const Outcome result = info({"check", dir_.path()});
    EXPECT_EQ(result.status, status) << result.out << result.err;
    Words lines = lines_of(result.out);
    for (std::string& line : lines) {
      EXPECT_TRUE(line.starts_with(dir_.path().string())) << line;
      line.erase(0, dir_.path().string().size());
    }
    return lines;
  }
};

TEST_F(InfoCheckDirectory, ChecksEachIndexAndEachFileThatIsNotAShard) {
  write("one.safetensors", {random_tensor("a", "U8", {1})});
  write("two.safetensors", {random_tensor("b", "U8", {1})});
  write("lora.safetensors", {random_tensor("c", "U8", {1})});
  write_index(dir_ / "model.safetensors.index.json",
              {{"a", "one.safetensors"}, {"b", "./two.safetensors"}});

  EXPECT_EQ(check(0), (Words{"/model.safetensors.index.json\tok\t2 tensors",
                             "/lora.safetensors\tok\t1 tensor"}));

  write_file(dir_ / "lora.safetensors", "x");
  write_file(dir_ / "two.safetensors", "");
  const Words bad = check(1);
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_TRUE(bad[0].starts_with("/model.safetensors.index.json\terror\tHeaderTooSmall\t"))
      << bad[0];
  EXPECT_NE(bad[0].find("two.safetensors: "), std::string::npos) << "the shard: " << bad[0];
  EXPECT_TRUE(bad[1].starts_with("/lora.safetensors\terror\tHeaderTooSmall\t")) << bad[1];
}

TEST_F(InfoCheckDirectory, PrintsOneLineForOneCheckpoint) {
  EXPECT_TRUE(has_line(check(3), "\terror\tUnreadable\tno .safetensors file, no .gguf file and"));

  write("one.safetensors", {random_tensor("a", "U8", {1})});
  EXPECT_EQ(check(0), Words{"\tok\t1 tensor"});

  write_index(dir_ / "model.safetensors.index.json", {{"a", "one.safetensors"}});
  EXPECT_EQ(check(0), Words{"\tok\t1 tensor"});
}

TEST_F(InfoCheckDirectory, ChecksFilesOfBrokenIndex) {
  write("one.safetensors", {random_tensor("a", "U8", {1})});
  write_file(dir_ / "model.safetensors.index.json", "{");

  const Words lines = check(1);

  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0].starts_with("/model.safetensors.index.json\terror\tInvalidIndex\t"));
  EXPECT_EQ(lines[1], "/one.safetensors\tok\t1 tensor");
}

TEST_F(InfoCheckDirectory, JsonIsArrayOfObjects) {
  write("a.safetensors", {random_tensor("a", "U8", {1})});
  write_file(dir_ / "b.safetensors", "x");

  const Outcome result = info({"check", "--json", dir_.path(), dir_ / "absent"});

  EXPECT_EQ(result.status, 1);
  const json objects = json::parse(result.out);
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[0],
            (json{{"path", (dir_ / "a.safetensors").string()}, {"ok", true}, {"tensors", 1}}));
  EXPECT_EQ(objects[1].at("ok"), false);
  EXPECT_EQ(objects[1].at("error"), "HeaderTooSmall");
  EXPECT_EQ(objects[2].at("message"), "No such file or directory");
}

// info

class InfoSummary : public InfoCatalogue {
 protected:
  InfoSummary() {
    write("a.safetensors",
          {random_tensor("w", "BF16", {1000, 1200}), random_tensor("none", "F32", {0, 3})},
          Metadata{{"format", "pt"}, {"note", "red\x1b[31m\n" + std::string(300, 'x')}});
    write("b.safetensors", {random_tensor("v", "F32", {10})}, Metadata{{"format", "np"}});
  }

  Words sources() const { return {dir_ / "a.safetensors", dir_ / "b.safetensors"}; }
};

TEST_F(InfoSummary, HasTotalsFilesAndWarnings) {
  const Outcome result = info({"info", sources()[0], sources()[1]});

  EXPECT_EQ(result.status, 0) << result.err;
  const Words lines = lines_of(result.out);
  EXPECT_EQ(lines[0], "tensors     3");
  EXPECT_EQ(lines[1], "parameters  1200010 (1.2 M)");
  EXPECT_EQ(lines[2], "bytes       2400040 (2.3 MiB)");
  EXPECT_TRUE(has_line(lines, "BF16         1     1200000  2.3 MiB")) << result.out;
  EXPECT_TRUE(has_line(lines, "F32          2          10     40 B")) << result.out;
  EXPECT_EQ(lines[3], "directory   " + std::filesystem::canonical(dir_.path()).string());
  EXPECT_TRUE(has_line(lines, "b.safetensors        1")) << result.out;
  EXPECT_TRUE(has_line(lines, "note      red\\x1b[31m\\n", std::string(300, 'x'))) << result.out;
  EXPECT_TRUE(
      has_line(lines, "conflict: metadata \"format\" has different values in different files"));
  EXPECT_TRUE(has_line(lines, "empty: tensor \"none\" has no elements")) << result.out;
}

// As in the cache of the Hub: the files are in another directory, under other names.
TEST_F(InfoSummary, PrintsNoDirectoryForSymlinks) {
  std::filesystem::create_directory(dir_ / "snapshot");
  std::filesystem::create_symlink("../a.safetensors", dir_ / "snapshot/model.safetensors");

  const Outcome result = info({"info", dir_ / "snapshot"});

  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(has_line(lines_of(result.out), "model.safetensors        2")) << result.out;
  EXPECT_FALSE(has_line(lines_of(result.out), "directory")) << result.out;
}

TEST_F(InfoSummary, ListsMissingTensorsWithAllowMissing) {
  write_index(dir_ / "m.safetensors.index.json",
              {{"w", "a.safetensors"}, {"gone", "c.safetensors"}}, 5);
  const std::string index = dir_ / "m.safetensors.index.json";

  const Outcome result = info({"info", "--allow-missing", index});

  expect_one_line(info({"info", index}), 3, "c.safetensors");
  EXPECT_EQ(result.status, 0) << result.err;
  const Words lines = lines_of(result.out);
  EXPECT_TRUE(has_line(lines, "missing: tensor \"gone\" of shard \"c.safetensors\"")) << result.out;
  EXPECT_TRUE(has_line(
      lines, "warning: ",
      "1 tensor that the index does not name (mount the shard itself to see all its tensors)"))
      << result.out;
}

TEST_F(InfoSummary, FitsTerminal) {
  for (const unsigned columns : kTerminalWidths) {
    for (const char* locale : {"C", "C.UTF-8"}) {
      const Words lines = screen_of({"info", sources()[0]}, columns, locale);

      EXPECT_TRUE(has_line(lines, "tensors     2"));
      EXPECT_TRUE(has_line(lines, "format    pt"));
      EXPECT_TRUE(has_line(lines, "note      red\\x1b", "xxx"));
    }
  }
}

TEST_F(InfoSummary, JsonEqualsInfoJson) {
  const json object = json::parse(info({"info", "--json", sources()[0], sources()[1]}).out);

  EXPECT_EQ(object.at("sources").size(), 2u);
  EXPECT_EQ(object.at("parameters"), 1200010);
  EXPECT_EQ(object.at("tensors_per_dtype"), (json{{"BF16", 1}, {"F32", 2}}));
  EXPECT_EQ(object.at("empty"), json{"none"});
  EXPECT_EQ(object.at("warnings"), json::array());
  EXPECT_EQ(object.at("metadata_conflicts"), json{"format"});
  if (const std::string why = mount_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const Mounted mount({sources()[0], sources()[1]});
  const json mounted = json::parse(read_file(mount / ".stfs/info.json"));
  for (const auto& [key, value] : mounted.items()) EXPECT_EQ(object.at(key), value) << key;
}

TEST_F(InfoSummary, PrintsPathsOfFilesInSeveralDirectories) {
  std::filesystem::create_directory(dir_ / "lora");
  write("lora/a.safetensors", {random_tensor("lora", "F32", {10})});

  const Outcome result = info({"info", sources()[0], dir_ / "lora/a.safetensors"});

  const std::string directory = std::filesystem::canonical(dir_.path());
  EXPECT_TRUE(has_line(lines_of(result.out), directory + "/a.safetensors")) << result.out;
  EXPECT_TRUE(has_line(lines_of(result.out), directory + "/lora/a.safetensors")) << result.out;
}

TEST_F(InfoSummary, AcceptsCheckpointWithoutTensors) {
  write("empty.safetensors", {});
  const std::string empty = dir_ / "empty.safetensors";

  EXPECT_EQ(lines_of(info({"info", empty}).out).at(0), "tensors     0");
  EXPECT_EQ(json::parse(info({"info", "--json", empty}).out).at("tensors_per_dtype"),
            json::object());
}

// where

class InfoWherePaths : public MountTest {};

TEST_F(InfoWherePaths, PrintsArrayForSeveralPathsAndNothingOnError) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("w", "BF16", {4}), random_tensor("v", "U8", {4})});
  const Mounted mount({dir / "m.safetensors"});

  const json places = json::parse(info({"where", "--json", mount / "w", mount / "v"}).out);

  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[1].at("path"), (mount / "v").string());
  expect_one_line(info({"where", mount / "w", mount / ".stfs/f32/w"}), 3,
                  "shows the tensor in another form, which the source does not hold; name the file "
                  "of tensor \"w\" outside of .stfs/");
  expect_one_line(info({"where", mount / "w", dir / "m.safetensors"}), 3,
                  "not the file of a tensor in a mount of stfs; without a mount, \"stfs-info show "
                  "SOURCE TENSOR\" prints the place");
}

}  // namespace
}  // namespace stfs::test
