// The arguments of stfs-gpu and the effect of its options on many tensors: checkpoints that are not
// mounted, tensors that cannot be divided or converted, and the tables that it prints.
#include "core/command/terminal.h"
#include "tests/gpu/tool.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Arguments = std::vector<std::string>;

class GpuRequest : public GpuToolTest {
 protected:
  // Writes a matrix, a norm with one dimension, and integer position ids. Returns the path.
  std::string model() const {
    write_safetensors(file("m.safetensors"), {random_tensor("lm_head.weight", "BF16", {4, 8}, 1),
                                              random_tensor("model.norm", "BF16", {8}, 2),
                                              random_tensor("position_ids", "I64", {1, 8}, 3)});
    return file("m.safetensors").string();
  }

  static Arguments words(const char* verb, const Arguments& rest) {
    Arguments all{verb, "--device", device()};
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  Outcome load(const Arguments& rest) const { return gpu(words("load", rest)); }
  json load_json(const Arguments& rest) const { return gpu_json(words("load", rest)); }

  static json tensor(const json& result, std::string_view name) {
    for (const json& row : result["tensors"]) {
      if (row["label"].get<std::string>().find(name) != std::string::npos) return row;
    }
    ADD_FAILURE() << name << " is not in " << result;
    return json::object();
  }
};

TEST_F(GpuRequest, ShardReplicatesTensorsWithoutDimension) {
  const std::string source = model();
  const Mounted mount({source});
  const Arguments all{"--shard", "1/4@1", mount.path().string()};

  const json plan = gpu_json(words("plan", all));
  const Outcome table = gpu(words("plan", all));
  const json loaded = load_json(all);
  const Outcome again = load(all);

  EXPECT_EQ(tensor(plan, "lm_head")["shape"], (json{4, 2}));
  EXPECT_EQ(tensor(plan, "lm_head")["replicated"], false);
  EXPECT_EQ(tensor(plan, "norm")["shape"], json{8});
  EXPECT_EQ(tensor(plan, "norm")["replicated"], true);
  EXPECT_EQ(tensor(loaded, "norm")["replicated"], true);
  EXPECT_EQ(tensor(loaded, "norm")["label"], source + "::model.norm");
  EXPECT_NE(table.out.find("  replicated  " + source + "::model.norm\n"), std::string::npos)
      << table.out;
  EXPECT_NE(table.out.find("  -           " + source + "::lm_head.weight[:,2:4]\n"),
            std::string::npos)
      << table.out;
  EXPECT_NE(again.out.find("\nexcept    1 replicated: no dimension 1\n"), std::string::npos)
      << again.out;
  EXPECT_EQ(gpu({"evict", "--shard", "1/4@1", mount.path().string()}).out, "evicted 3 tensors\n");
}

TEST_F(GpuRequest, ReplicatesForEveryFormThatNamesManyTensors) {
  const std::string source = model();
  const Mounted mount({source});
  for (const Arguments& many :
       {Arguments{source}, Arguments{source + "::*"}, Arguments{mount / "*"},
        Arguments{mount / "lm_head.weight", mount / "model.norm"},
        Arguments{source + "::lm_head.weight", source + "::model.norm"}}) {
    Arguments rest{"--shard", "0/2@1"};
    rest.insert(rest.end(), many.begin(), many.end());
    EXPECT_EQ(tensor(load_json(rest), "norm")["replicated"], true) << many[0];
  }
}

TEST_F(GpuRequest, SingleTensorWithoutDimensionIsAnError) {
  const std::string source = model();
  const Mounted mount({source});
  for (const std::string& single : {source + "::model.norm", std::string(mount / "model.norm")}) {
    expect_one_line(load({"--shard", "0/8@1", single}), 2,
                    "tensor \"model.norm\": there is no dimension 1 (they count from 0, and it has "
                    "1): load it without a shard");
  }
  expect_one_line(load({"--shard", "0/3@0", source}), 2,
                  "tensor \"lm_head.weight\": dimension 0 of 4 cannot be divided by 3: choose "
                  "another dimension or number of ranks");
}

TEST_F(GpuRequest, OptionThatAppliesToNoTensorIsAnError) {
  const std::string source = model();
  expect_one_line(load({"--shard", "0/2@7", source}), 2, "no tensor has a dimension 7");
  expect_one_line(load({"--as", "f16", source + "::position*"}), 2,
                  "no tensor can be converted to F16: none has a floating-point type");
  EXPECT_EQ(holder(), 0);
}

TEST_F(GpuRequest, IntegersAmongManyTensorsKeepTheirType) {
  const std::string source = model();
  const Arguments all{"--as", "f16", "--shard", "0/8@1", source};

  const json plan = gpu_json(words("plan", all));
  const Outcome loaded = load(all);

  EXPECT_EQ(tensor(plan, "position")["dtype"], "I64");
  EXPECT_EQ(tensor(plan, "position")["unconverted"], true);
  EXPECT_EQ(tensor(plan, "norm")["dtype"], "F16");
  EXPECT_EQ(tensor(plan, "norm")["unconverted"], false);
  EXPECT_EQ(loaded.status, 0) << loaded.err;
  EXPECT_NE(loaded.out.find("except    1 replicated: no dimension 1\n"
                            "except    1 unconverted: I64\n"),
            std::string::npos)
      << loaded.out;
  expect_one_line(
      load({"--as", "f16", source + "::position_ids"}), 2,
      "tensor \"position_ids\": no conversion from I64 to F16: load it in its own type");
}

TEST_F(GpuRequest, RunReportsReplicatedTensorsOnStderr) {
  const Outcome outcome =
      gpu({"run", "--device", device(), "--shard", "0/2@1", model(), "--", "echo", "mine"});

  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "mine\n");
  EXPECT_EQ(outcome.err, "stfs-gpu: 1 replicated: no dimension 1\n");
}

TEST_F(GpuRequest, CheckpointPathMeansAllItsTensors) {
  std::filesystem::create_directory(file("model"));
  const std::string source = (file("model") / "model.safetensors").string();
  std::filesystem::rename(model(), source);
  write_file(file("model") / "config.json", "{}");
  std::filesystem::create_symlink("model.safetensors", file("model") / "shard.safetensors");
  write_file(file("model") / "model.safetensors.index.json",
             R"({"weight_map": {"lm_head.weight": "model.safetensors",
                 "model.norm": "model.safetensors", "position_ids": "model.safetensors"}})");

  EXPECT_EQ(load_json({source})["tensors"].size(), 3u);
  EXPECT_EQ(load_json({source + ".index.json"})["copied_bytes"], 0);
  EXPECT_EQ(load_json({file("model").string()})["copied_bytes"], 0);
  EXPECT_EQ(load_json({(file("model") / "model.*tensors").string()})["copied_bytes"], 0);
  EXPECT_EQ(gpu_json({"ls"})[0]["label"], source + "::lm_head.weight");
  const Outcome relative = gpu(words("load", {"model.safetensors"}), {.directory = file("model")});
  EXPECT_NE(relative.out.find("nothing to copy"), std::string::npos) << relative.err;
}

TEST_F(GpuRequest, ErrorForOtherPathsSaysWhatCanBeNamed) {
  write_file(file("notes.txt"), "The quick brown fox jumps over the lazy dog.\n");
  std::filesystem::create_directories(file("docs") / "empty");
  expect_one_line(load({file("notes.txt").string()}), 1,
                  ": name a tensor or a directory of a mount, a checkpoint, or SOURCE::NAME");
  expect_one_line(load({(file("docs") / "empty").string()}), 2, "no tensors there: name a tensor");
  write_file(file("docs") / "notes.txt", "fox");
  expect_one_line(load({file("docs").string()}), 2,
                  "not a tensor in a mount of stfs: name a tensor");
  expect_one_line(load({"nothing"}), 3, "no such file");
  expect_one_line(load({model() + "::lm_head"}), 2, "did you mean \"lm_head.weight\"?");
  expect_one_line(load({model() + "::layers.9.*"}), 2, "matches no tensor");
}

// Two successive mounts may have the same device number, and these files the same inode, size and
// time, so that their versions cannot be distinguished.
TEST_F(GpuRequest, RefusesGeneratedFileAsSourceAndNamesMount) {
  const Mounted mount({model()});
  const std::string merged = mount / ".stfs/merged.safetensors";
  const std::string rule = "name the mount, " + mount.path().string();
  expect_one_line(load({merged}), 2, rule);
  expect_one_line(load({merged + "::model.norm"}), 2, rule);
  expect_one_line(load({mount / ".stfs/subset/model.*.safetensors"}), 2, rule);
  expect_one_line(load({mount / ".stfs/safetensors/model.norm.safetensors::model.norm"}), 2, rule);
  const Mounted outer({merged});
  expect_one_line(load({outer.path().string()}), 2, rule);
  expect_one_line(load({outer / "model.norm"}), 2, rule);

  const json one = load_json({mount / ".stfs/safetensors/model.norm.safetensors"});

  EXPECT_EQ(one["tensors"][0]["label"], file("m.safetensors").string() + "::model.norm");
}

TEST_F(GpuRequest, MountedDirectoryMeansTensorsBelowIt) {
  write_safetensors(
      file("m.safetensors"),
      {random_tensor("layers/0/w", "BF16", {8}, 1), random_tensor("layers/0/b", "BF16", {8}, 2),
       random_tensor("layers/01", "BF16", {8}, 3), random_tensor("x", "I8", {8}, 4)});
  const Mounted mount({file("m.safetensors").string()});
  EXPECT_EQ(load_json({mount / "layers/0"})["tensors"].size(), 2u);
  EXPECT_EQ(load_json({mount / "layers"})["tensors"].size(), 3u);
  EXPECT_EQ(load_json({mount / ".stfs/f32/layers/0"})["tensors"][0]["dtype"], "F32");
  EXPECT_EQ(gpu(words("plan", {"."}), {.directory = mount / "layers/0"}).status, 0);
  std::filesystem::create_directories(file("link"));
  std::filesystem::create_directory_symlink(mount.path(), file("link") / "mount");
  EXPECT_EQ(load_json({(file("link") / "mount").string()})["tensors"].size(), 4u);
  expect_one_line(load({file("link").string()}), 2,
                  "/link/mount: a symbolic link to a directory: name the directory itself");
}

TEST_F(GpuRequest, LoadsOtherSourcesIfOneWasReplaced) {
  write_safetensors(file("one.safetensors"), {random_tensor("one/w", "BF16", {8}, 1)});
  write_safetensors(file("two.safetensors"), {random_tensor("two/w", "BF16", {8}, 2)});
  const Mounted mount({file("one.safetensors").string(), file("two.safetensors").string()});
  write_safetensors(file("new"), {random_tensor("two/w", "BF16", {8}, 3)});
  std::filesystem::rename(file("new"), file("two.safetensors"));

  EXPECT_EQ(load_json({mount / "one"})["tensors"].size(), 1u);

  for (const std::string& changed : {std::string(mount / "two"), mount.path().string()}) {
    expect_one_line(load({changed}), 3, "/two.safetensors: is not the version that is mounted");
  }
}

TEST_F(GpuRequest, EvictAcceptsLabelsFromLs) {
  const std::string source = model();
  for (const Arguments& part :
       {Arguments{"--shard", "0/2@1", source + "::lm_head.weight"},
        Arguments{"--as", "f16", source + "::model.norm"}, Arguments{source + "::model.norm"}}) {
    ASSERT_EQ(load(part).status, 0);
  }
  for (const json& row : gpu_json({"ls"})) {
    EXPECT_EQ(gpu({"evict", row["label"].get<std::string>()}).out, "evicted 1 tensor\n") << row;
  }
}

TEST_F(GpuRequest, InapplicableOptionEvictsNothing) {
  const std::string source = model();
  ASSERT_EQ(load({source}).status, 0);
  expect_one_line(gpu({"evict", "--shard", "0/2@7", source}), 2, "no tensor has a dimension 7");
  expect_one_line(gpu({"pin", "--as", "f16", source + "::pos*"}), 2, "no tensor can be converted");
  EXPECT_EQ(resident().size(), 3u);
}

TEST_F(GpuRequest, CountsTensorNamedTwiceOnce) {
  const std::string source = model();
  const Mounted mount({source});
  const Arguments twice{"--shard", "0/8@1", source, mount.path().string(), mount / "model.norm"};

  const Outcome plan = gpu(words("plan", twice));
  const Outcome loaded = load(twice);

  EXPECT_EQ(std::ranges::count(plan.out, '\n'), 6) << plan.out;
  EXPECT_NE(loaded.out.find("resident  3 tensors, 32 B; "), std::string::npos) << loaded.out;
  EXPECT_NE(loaded.out.find("except    1 replicated"), std::string::npos) << loaded.out;
  EXPECT_EQ(gpu_json(words("get", twice)).size(), 3u);
}

TEST_F(GpuRequest, ReportsWhySourceCannotBeRead) {
  expect_one_line(load({"nobody-here/Some-Model-8B"}), 3, "name hf://nobody-here/Some-Model-8B");
  expect_one_line(load({"ftp://host/m.safetensors::w"}), 2, "https, s3 and hf");
  std::filesystem::create_directory(file("hub"));
  std::filesystem::create_symlink("/no/blob", file("hub") / "model.safetensors");
  expect_one_line(load({file("hub").string()}), 3, "a symbolic link to \"/no/blob\"");
  expect_one_line(load({(file("m.safetensors") / "w").string()}), 3, "no such file");
  Mounted mount({model()});
  mount.kill_daemon();
  expect_one_line(load({mount.path().string()}), 3, "unmount it");
  expect_one_line(load({mount.path().string() + "::model.norm"}), 3, "unmount it");
}

TEST_F(GpuRequest, LsShowsDeviceNamesAndSortsNumerically) {
  write_safetensors(file("m.safetensors"), {random_tensor("layers.10.w", "U8", {10}, 1),
                                            random_tensor("layers.2.w", "BF16", {700}, 2)});
  const std::string source = file("m.safetensors").string();
  ASSERT_EQ(load({source}).status, 0);

  const std::string piped = gpu({"ls", "--all"}).out;

  EXPECT_TRUE(piped.starts_with("DEVICE  ")) << piped;
  EXPECT_EQ(piped.find("CPU-"), std::string::npos) << piped;
  EXPECT_NE(piped.find("\n" + device() + " "), std::string::npos) << piped;
  EXPECT_LT(piped.find("layers.2.w\n"), piped.find("layers.10.w\n")) << piped;
  EXPECT_EQ(std::ranges::count(piped, '\n'), 3) << "there must be no line of totals: " << piped;
  for (const unsigned columns : {40U, 80U, 200U}) {
    const Arguments rows =
        screen(gpu({"ls", "--all"}, {.environment = {"LC_ALL=C"}, .terminal_columns = columns}).out,
               columns);
    ASSERT_EQ(rows.size(), 5u) << columns;
    EXPECT_TRUE(rows[1].starts_with(device() + " ")) << rows[1];
    EXPECT_TRUE(rows[1].ends_with("  layers.2.w")) << rows[1];
    EXPECT_TRUE(rows[3].starts_with("all in /")) << rows[3];
    EXPECT_TRUE(rows[3].ends_with(".safetensors::")) << rows[3];
    EXPECT_EQ(rows[4], "2 tensors, 1.4 KiB");
  }
}

TEST_F(GpuRequest, LsPrintsOneLinePerSource) {
  for (const char* name : {"a.safetensors", "b.safetensors"}) {
    write_safetensors(file(name),
                      {random_tensor("x", "U8", {1000}, 1), random_tensor("y", "U8", {24}, 2)});
    ASSERT_EQ(load({file(name).string()}).status, 0);
  }
  ASSERT_EQ(gpu({"pin", file("b.safetensors").string() + "::x"}).status, 0);

  for (const unsigned columns : {80U, 200U}) {
    const Arguments rows = screen(
        gpu({"ls"}, {.environment = {"LC_ALL=C"}, .terminal_columns = columns}).out, columns);
    ASSERT_EQ(rows.size(), 4u) << columns;
    EXPECT_TRUE(rows[0].starts_with("DEVICE  TENSORS    BYTES  USERS  PINNED  IDLE  SOURCE"))
        << rows[0];
    EXPECT_TRUE(rows[1].starts_with(device() + " ")) << rows[1];
    EXPECT_EQ(rows[1].find("       2  1.0 KiB      0       0  "), 7U) << rows[1];
    EXPECT_TRUE(rows[1].ends_with("a.safetensors")) << rows[1];
    EXPECT_NE(rows[2].find("      0       1  "), std::string::npos) << rows[2];
    EXPECT_EQ(rows[3], "4 tensors, 2.0 KiB");
  }
  EXPECT_EQ(std::ranges::count(gpu({"ls"}).out, '\n'), 3);
  EXPECT_EQ(gpu_json({"ls"}).size(), 4u) << "one row per tensor";
}

TEST_F(GpuRequest, PlanAndDevicesTablesFitTerminal) {
  const std::string source = model();
  for (const unsigned columns : {40U, 80U, 200U}) {
    const Arguments plan = screen(
        gpu(words("plan", {"--shard", "0/2@1", source}), {.terminal_columns = columns}).out, 1000);
    // On a narrow terminal each row has two lines, and the first has the name.
    EXPECT_TRUE(plan.at(1).starts_with(columns == 40 ? "TENSOR" : "ACTION ")) << plan[1];
    for (std::size_t i = 1; i < 5; ++i) EXPECT_LE(columns_of(plan.at(i)), columns) << plan[i];
    EXPECT_TRUE(std::ranges::any_of(
        plan, [](const std::string& line) { return line.find("  repl") != std::string::npos; }));
    const Outcome devices = gpu(
        {"devices"}, {.environment = {"STFS_GPU_DRIVER=/no/driver"}, .terminal_columns = columns});
    const Arguments listed = screen(devices.out, 1000);
    EXPECT_TRUE(listed.at(0).starts_with("DEVICE ")) << listed[0];
    EXPECT_TRUE(listed.at(1).starts_with("cpu ")) << listed[1];
    EXPECT_LE(columns_of(listed[0]), columns) << listed[0];
    EXPECT_LE(columns_of(listed[1]), columns) << listed[1];
    EXPECT_EQ(listed[1].find("CPU-") != std::string::npos, columns >= 80) << listed[1];
  }
  EXPECT_TRUE(gpu({"devices"}).out.find("DEVICE") == std::string::npos) << "a pipe gets no heading";
}

TEST_F(GpuRequest, ErrorsSayWhatToDoNext) {
  const std::string source = model();
  expect_one_line(gpu({"evict", source}), 2,
                  "none of these is resident (stfs-gpu ls lists what is)");
  expect_one_line(gpu({"load", "--device", "gpu", source}), 2,
                  "name cuda:N, the UUID of a GPU, or cpu");
  expect_one_line(
      gpu({"load", "--device", "cuda:7", source}, {.environment = {"STFS_GPU_DRIVER=/no/driver"}}),
      5, "(the device cpu needs none)");
  if (device() != "cpu") {
    expect_one_line(gpu({"load", "--device", "cuda:77", source}), 5, "stfs-gpu devices lists them");
  }
}

}  // namespace
}  // namespace stfs::gpu::test
