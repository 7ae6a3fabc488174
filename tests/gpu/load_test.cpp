// The commands, in host memory: names in a mount or a source, load, ls, evict, run.
#include "tests/gpu/tool.h"
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using Names = std::vector<std::string>;

class GpuLoad : public GpuToolTest {
 protected:
  json load(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"load", "--device", device(), "--verify"});
    return gpu_json(arguments);
  }
  std::string got(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"get", "--device", device()});
    const json rows = gpu_json(arguments);
    std::string bytes;
    for (const json& row : rows) bytes += bytes_of(row);
    return bytes;
  }
};

TEST_F(GpuLoad, LoadsTensorByPath) {
  const auto source = small();
  const Mounted mount({source});

  const json loaded = load({mount / "a"});

  EXPECT_EQ(loaded["device"], device());
  EXPECT_TRUE(loaded["uuid"].get<std::string>().starts_with(device() == "cpu" ? "CPU-" : "GPU-"));
  EXPECT_EQ(loaded["copied_bytes"], 64 * 48 * 4);
  EXPECT_EQ(loaded["tensors"][0]["dtype"], "F32");
  EXPECT_EQ(loaded["tensors"][0]["shape"], (json{64, 48}));
  EXPECT_TRUE(got({mount / "a"}) == read_file(mount / "a"));
}

TEST_F(GpuLoad, LoadsTensorsByPathsInViews) {
  write_safetensors(
      file("m.safetensors"),
      {random_tensor("a", "F32", {64, 48}), random_tensor("dir/b.npy/c", "BF16", {6, 8}),
       random_tensor("x.y", "F64", {5}), random_tensor("f", "F4", {4, 6})});
  const Mounted mount({file("m.safetensors")});
  const auto without_header = [](const std::string& npy) {
    const auto length =
        static_cast<unsigned char>(npy[8]) + 256 * static_cast<unsigned char>(npy[9]);
    return npy.substr(static_cast<std::size_t>(10 + length));
  };
  for (const char* path :
       {"dir/b.npy/c", ".stfs/f32/a", ".stfs/f32/dir/b.npy/c", ".stfs/f32/x.y",
        ".stfs/slice/a/1:3,::2", ".stfs/slice/dir/b.npy/c/0", ".stfs/tree/x/y", ".stfs/tree/a",
        ".stfs/f32-slice/dir/b.npy/c/:,1", ".stfs/f32-slice/x.y/::2", ".stfs/f32-slice/f/1:3",
        ".stfs/f32-slice/f/:,1"}) {
    load({mount / path});
    EXPECT_TRUE(got({mount / path}) == read_file(mount / path)) << path;
  }
  for (const char* path : {".stfs/npy/a.npy", ".stfs/npy/x.y.npy", ".stfs/npy/dir/b%2Enpy/c.npy",
                           ".stfs/npy-f32/x.y.npy", ".stfs/npy-slice/a/3:5,:.npy",
                           ".stfs/npy-f32-slice/dir/b.npy/c/-1.npy"}) {
    load({mount / path});
    EXPECT_TRUE(got({mount / path}) == without_header(read_file(mount / path))) << path;
  }
}

TEST_F(GpuLoad, RecognisesMountedFileByAnyPath) {
  const auto source = small();
  const Mounted mount({source});
  std::filesystem::create_symlink(mount / ".stfs/npy-f32/layers.0.w.npy", file("link"));

  EXPECT_EQ(load({file("link")})["tensors"][0]["dtype"], "F32");
  EXPECT_EQ(load({mount / ".stfs/npy-f32/layers.0.w.npy"})["copied_bytes"], 0);
  load({mount / "a"});
  EXPECT_EQ(load({mount / ".stfs/safetensors/a.safetensors"})["copied_bytes"], 0);
}

TEST_F(GpuLoad, EquivalentViewAndOptionShareOneTensor) {
  const auto source = small();
  const Mounted mount({source});
  load({mount / ".stfs/f32/layers.0.w"});

  EXPECT_EQ(load({"--as", "f32", mount / "layers.0.w"})["copied_bytes"], 0);
  EXPECT_EQ(load({"--as", "f32", source.string() + "::layers.0.w"})["copied_bytes"], 0);
  EXPECT_EQ(load({mount / ".stfs/slice/layers.0.w/..."})["copied_bytes"], 128 * 32 * 2)
      << "the stored type is BF16";
  EXPECT_EQ(load({mount / "layers.0.w"})["copied_bytes"], 0);
}

TEST_F(GpuLoad, DirectoriesAndGlobsNameManyTensors) {
  write_safetensors(file("m.safetensors"),
                    {random_tensor("m/0/w", "U8", {10}), random_tensor("m/1/w", "U8", {10}),
                     random_tensor("m/1/b", "U8", {10}), random_tensor("n", "U8", {10})});
  const Mounted mount({file("m.safetensors")});

  EXPECT_EQ(load({mount / "m/1"})["tensors"].size(), 2u);
  EXPECT_EQ(load({mount / "m/*/w"})["tensors"].size(), 2u);
  EXPECT_EQ(load({mount.path().string()})["tensors"].size(), 4u);
  EXPECT_EQ(load({file("m.safetensors").string() + "::m/*"})["tensors"].size(), 3u);
  EXPECT_EQ(load({mount / "m/0", mount / "n"})["tensors"].size(), 2u);
  EXPECT_EQ(load({mount / ".stfs/slice/../../n"})["tensors"].size(), 1u);
  EXPECT_EQ(resident().size(), 4u);
}

TEST_F(GpuLoad, RootMeansOnlyTensorsEvenIfViewsAreVisible) {
  write_safetensors(file("named.safetensors"), {random_tensor("a/.stfs/w", "U8", {10})});
  for (const auto& [source, count] : {std::pair{small(), 3U}, {file("named.safetensors"), 1U}}) {
    const Mounted mount({source}, {"-o", "views=visible"});

    EXPECT_EQ(load({mount.path().string()})["tensors"].size(), count);
  }
}

TEST_F(GpuLoad, AcceptsUnusualNames) {
  const std::vector<std::string> names{
      "a::b",     "::",        "",   "[x]",     "-flag", "*",    "spa ce",
      "\xc3\xa4", "line\nend", "..", "quo\"te", "%41",   "x\\y", std::string(300, 'n')};
  std::vector<stfs::test::Tensor> tensors;
  for (std::size_t i = 0; i < names.size(); ++i) {
    tensors.push_back(random_tensor(names[i], "U8", {20 + i}, i + 1));
  }
  write_safetensors(file("m::x.safetensors"), tensors);
  const std::string source = file("m::x.safetensors").string();

  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string argument = source + "::" + names[i];
    load({argument});
    if (names[i] == "*") continue;  // checked below
    EXPECT_TRUE(got({argument}) == tensors[i].bytes) << names[i];
  }
  EXPECT_TRUE(got({source + "::*"}) == tensors[5].bytes)
      << "an exact name takes precedence over a glob";
  const Mounted mount({source});
  EXPECT_EQ(load({mount.path().string()})["copied_bytes"], 0) << "paths name the same tensors";
}

TEST_F(GpuLoad, RefusesUnevenShards) {
  const auto source = small();
  const Mounted mount({source});
  std::string whole;
  for (const char* shard : {"0/4@0", "1/4@0", "2/4@0", "3/4@0"}) {
    load({"--shard", shard, mount / "a"});
    whole += got({"--shard", shard, mount / "a"});
  }

  EXPECT_TRUE(whole == read_file(mount / "a"));
  load({"--shard", "1/2@1", mount / "a"});
  EXPECT_TRUE(got({"--shard", "1/2@1", mount / "a"}) == read_file(mount / ".stfs/slice/a/:,24:"));
  load({"--shard", "1/2@0", mount / ".stfs/slice/a/3,8:16"});
  EXPECT_TRUE(got({mount / ".stfs/slice/a/3,12:16"}) == read_file(mount / ".stfs/slice/a/3,12:16"));
  expect_one_line(gpu({"load", "--device", device(), "--shard", "0/5@0", mount / "a"}), 2, "64");
  expect_one_line(gpu({"load", "--device", device(), "--shard", "0/2@2", mount / "a"}), 2);
  for (const char* wrong : {"2/2@0", "0/0@0", "a", "1/2", "1@0", "-1/2@0", "0/2@0x", "0/2@",
                            "0/99999999999999999999999@0"}) {
    expect_one_line(
        gpu({"load", "--device", device(), std::string("--shard=") + wrong, mount / "a"}), 2);
  }
}

TEST_F(GpuLoad, ConversionWarnsAboutNanAndOutOfRangeValues) {
  const std::vector<float> values{1.0F, 1e6F, -1e30F, NAN, INFINITY, 2.5F};
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  write_safetensors(file("m.safetensors"), {{"w", "F32", {6}, bytes}, {"i", "I32", {1}, "0123"}});
  const std::string source = file("m.safetensors").string();

  const Outcome outcome = gpu({"load", "--device", device(), "--as", "f16", source + "::w"});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("2 values out of range"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("1 NaN"), std::string::npos) << outcome.err;
  EXPECT_TRUE(got({"--as", "f16", source + "::w"}) ==
              std::string("\x00\x3c\x00\x7c\x00\xfc\x00\x7e\x00\x7c\x00\x41", 12));
  expect_one_line(gpu({"load", "--device", device(), "--as", "f16", source + "::i"}), 2, "I32");
  expect_one_line(gpu({"load", "--device", device(), "--as", "f64", source + "::w"}), 2);
}

TEST_F(GpuLoad, OtherProcessMapsSameMemoryReadOnly) {
  if (device() != "cpu")
    GTEST_SKIP() << "only host memory has a path that can be opened, and seals";
  const auto source = small();
  const Mounted mount({source});
  load({mount / "a"});
  const json row = gpu_json({"get", "--device", device(), mount / "a"})[0];
  const auto path = row["path"].get<std::string>();

  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  void* mapped =
      ::mmap(nullptr, row["segment_bytes"].get<std::size_t>(), PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto* data = static_cast<const char*>(mapped) + row["offset"].get<std::size_t>();

  EXPECT_TRUE(std::string(data, row["bytes"].get<std::size_t>()) == read_file(mount / "a"));
  EXPECT_EQ(::fcntl(fd.get(), F_GET_SEALS) & (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW),
            F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  const UniqueFd writable(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (writable) {
    EXPECT_EQ(::pwrite(writable.get(), "x", 1, 0), -1);
  }
  gpu({"evict", "--all"});
  EXPECT_EQ(data[5], read_file(mount / "a")[5]) << "memory stays while it is mapped";
}

TEST_F(GpuLoad, LoadsEmptyTensor) {
  write_safetensors(file("m.safetensors"), {{"e", "F32", {0, 4}, ""}, {"s", "U8", {}, "x"}});
  const Mounted mount({file("m.safetensors")});

  load({mount.path().string()});
  const json row = gpu_json({"get", "--device", device(), mount / "e"})[0];

  EXPECT_EQ(row["bytes"], 0);
  EXPECT_EQ(row["shape"], (json{0, 4}));
  EXPECT_TRUE(got({mount / "s"}) == "x");
  EXPECT_EQ(resident().size(), 2u);
}

TEST_F(GpuLoad, ReportsMissingFilesAndFilesThatAreNotTensors) {
  const auto source = small();
  const Mounted mount({source});
  const auto load_of = [&](const std::string& name) {
    return gpu({"load", "--device", device(), name});
  };

  expect_one_line(load_of(mount / ".stfs/info.json"), 1, "SOURCE::NAME");
  expect_one_line(load_of("/dev/null"), 3, "not a regular file");
  expect_one_line(load_of(source.string() + "::nothing"), 2, "nothing");
  expect_one_line(load_of(mount / "nothing"), 3);
  expect_one_line(load_of("/no/such\x1b[31m::w"), 3);
  expect_one_line(load_of(mount / ".stfs/slice/a/99"), 3);
  write_file(file("broken.safetensors"), "broken");
  expect_one_line(load_of(file("broken.safetensors").string() + "::w"), 1);
  EXPECT_EQ(resident(), Names{});
  expect_one_line(gpu({"load", "--device", device()}), 2);
}

// cp -p keeps the size and the mtime.
TEST_F(GpuLoad, SourceRewrittenWithRestoredMtimeIsLoadedAgain) {
  const auto source = small();
  const auto other = small("other.safetensors");
  write_safetensors(other,
                    {random_tensor("a", "F32", {64, 48}, 77), random_tensor("b", "F32", {10}),
                     random_tensor("layers.0.w", "BF16", {128, 32})});
  ASSERT_EQ(run({"touch", "-r", source, other}).status, 0);
  const std::string tensor = source.string() + "::a";
  load({tensor});
  const std::string before = got({tensor});
  const Mounted mount({source});

  ASSERT_EQ(run({"cp", "-p", other, source}).status, 0);

  expect_one_line(gpu({"load", "--device", device(), mount / "a"}), 3,
                  "is not the version that is mounted");
  expect_one_line(gpu({"get", "--device", device(), tensor}), 5);
  EXPECT_EQ(load({tensor})["copied_bytes"], 64 * 48 * 4);
  EXPECT_FALSE(got({tensor}) == before);
}

// Each link makes a command try again at most once, and Selection limits the attempts.
TEST_F(GpuLoad, LoadsMountWhileItsSourceIsLinked) {
  const auto source = small();
  const Mounted mount({source});
  int commands = 0;
  const auto load_while_linked = [&](const std::string& what) {
    Process linker({"/bin/bash", "-c", "for i in {1..9}; do ln \"$1\" \"$1.$2.$i\"; done", "bash",
                    source, std::to_string(commands++)});
    load({what});
    EXPECT_EQ(linker.wait().status, 0);
  };

  for (int i = 0; i < 5 && !HasFailure(); ++i) {
    load_while_linked(mount / "a");
    load_while_linked(mount.path().string());
    load_while_linked(source.string() + "::b");
  }

  load({mount / "a"});
  EXPECT_TRUE(got({mount / "a"}) == read_file(mount / "a"));
}

// --- the other commands

TEST_F(GpuLoad, DryRunReportsPlanWithoutStartingHolder) {
  const auto source = small();
  const Mounted mount({source});

  const json plan = gpu_json({"plan", "--device", device(), mount.path().string()});
  const Outcome dry = gpu({"load", "--dry-run", "--device", device(), mount.path().string()});

  EXPECT_EQ(plan["tensors"].size(), 3u);
  EXPECT_EQ(plan["copy_bytes"], 64 * 48 * 4 + 40 + 128 * 32 * 2);
  EXPECT_EQ(plan["fits"], true);
  EXPECT_EQ(plan["tensors"][0]["resident"], false);
  EXPECT_EQ(dry.status, 0);
  EXPECT_EQ(holder(), 0) << "neither command starts a holder";
  load({mount / "a"});
  EXPECT_EQ(gpu_json({"plan", "--device", device(), mount.path().string()})["copy_bytes"],
            40 + 128 * 32 * 2);
}

TEST_F(GpuLoad, NothingFitsIfAllMemoryMustStayFree) {
  const std::string tensor = small().string() + "::a";
  for (const char* keep_free : {"18446744073709551615", "18446744073707454464"}) {
    const json plan = gpu_json({"plan", "--device", device(), "--keep-free", keep_free, tensor});

    EXPECT_EQ(plan["fits"], false) << plan;
  }
}

TEST_F(GpuLoad, RejectsInvalidSizes) {
  const std::string tensor = small().string() + "::a";
  for (const char* size :
       {"-1", "-4096", "18446744073709551616", "99999999999999999999", "16EiB", "1.5G", "G", ""}) {
    for (const char* option : {"--keep-free", "--tile"}) {
      expect_one_line(gpu({"load", "--device", device(), option, size, tensor}), 2, option);
    }
    expect_one_line(gpu({"holder", "--memory-limit", size}), 2, "--memory-limit");
  }
}

TEST_F(GpuLoad, NamesUnreadableFileInDirectory) {
  const auto loop = file("directory") / "loop";
  std::filesystem::create_directory(file("directory"));
  std::filesystem::create_symlink("loop", loop);

  expect_one_line(gpu({"plan", "--device", device(), file("directory")}), 3,
                  loop.string() + ": Too many levels of symbolic links");
}

TEST_F(GpuLoad, EveryCommandHasJsonAndNamesDevice) {
  const auto source = small();
  const Mounted mount({source});
  load({mount / "a"});

  EXPECT_EQ(gpu_json({"devices"}).back()["device"], "cpu");
  EXPECT_EQ(gpu_json({"ls"}).size(), 1u);
  EXPECT_EQ(gpu_json({"ls", "--device", device()})[0]["label"], source.string() + "::a");
  EXPECT_EQ(gpu_json({"get", "--device", device(), mount / "a"})[0]["device"], device());
  EXPECT_EQ(gpu_json({"pin", mount / "a"})["count"], 1);
  EXPECT_EQ(gpu_json({"unpin", "--all"})["count"], 1);
  EXPECT_FALSE(gpu_json({"doctor"}).empty());
  EXPECT_EQ(gpu_json({"evict", mount / "a"})["count"], 1);
  const json all = gpu_json({"devices"});
  const std::string uuid = (device() == "cpu" ? all.back() : all.front())["uuid"];
  EXPECT_NE(gpu({"load", "--device", device(), mount / "a"}).out.find(uuid), std::string::npos);
  EXPECT_EQ(gpu({"load", "--device", uuid, mount / "a"}).status, 0)
      << "the UUID also names the device";
}

// The long output exceeds stdio's buffer: the first write fails, and the flush at exit writes less.
TEST_F(GpuLoad, FailedOutputIsAnErrorAtAnyLength) {
  std::vector<stfs::test::Tensor> tensors;
  for (unsigned i = 0; i < 100; ++i) {
    tensors.push_back(random_tensor("t" + std::to_string(i), "U8", {1}, i));
  }
  write_safetensors(file("many.safetensors"), tensors);
  for (const char* name : {"t1", "*"}) {
    const Outcome outcome =
        run({"/bin/bash", "-c", R"("$@" >/dev/full)", "bash", STFS_GPU_BINARY, "plan", "--json",
             "--device", device(), file("many.safetensors").string() + "::" + name});

    expect_one_line(outcome, 3, "standard output: ");
  }
}

TEST_F(GpuLoad, RequiresValidDevice) {
  const auto source = small();
  for (const char* verb : {"load", "plan", "get"}) {
    expect_one_line(gpu({verb, source.string() + "::a"}), 2, "--device");
  }
  expect_one_line(gpu({"run", source.string() + "::a", "--", "true"}), 2, "--device");
  for (const char* device : {"", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "CPU", "GPU-"}) {
    expect_one_line(gpu({"load", std::string("--device=") + device, source.string() + "::a"}), 2);
  }
}

TEST_F(GpuLoad, NothingIsResidentWithoutHolder) {
  const auto source = small();
  const std::string tensor = source.string() + "::a";

  expect_one_line(gpu({"get", "--device", device(), tensor}), 5, "no holder");
  expect_one_line(gpu({"evict", tensor}), 2);
  expect_one_line(gpu({"pin", tensor}), 2);
  EXPECT_EQ(gpu_json({"ls"}), json::array());
  EXPECT_EQ(gpu({"evict", "--all"}).status, 0);
  EXPECT_EQ(gpu({"doctor"}).status, 0);
  EXPECT_EQ(holder(), 0) << "none of these commands starts a holder";
}

TEST_F(GpuLoad, EvictsPinnedTensorsOnlyWithForce) {
  const auto source = small();
  const std::string tensor = source.string() + "::a";
  load({"--pin", tensor});

  expect_one_line(gpu({"evict", tensor}), 5, "pinned");
  EXPECT_EQ(resident(), Names{"a"});
  expect_one_line(gpu({"evict", source.string() + "::b"}), 2, "none of these is resident");
  EXPECT_EQ(gpu({"evict", "--force", tensor}).status, 0);
  EXPECT_EQ(resident(), Names{});
}

TEST_F(GpuLoad, EvictsTensorWithRemovedSource) {
  const auto source = small();
  load({source.string() + "::a"});
  std::filesystem::remove(source);

  EXPECT_EQ(gpu({"evict", source.string() + "::a"}).status, 0);

  EXPECT_EQ(resident(), Names{});
}

// --- the command `run`

TEST_F(GpuLoad, RunPassesTensorsAndLeavesNoHolder) {
  const auto source = small();
  const Mounted mount({source});

  const Outcome outcome =
      gpu({"run", "--device", device(), "--verify", mount.path().string(), "--", "bash", "-c",
           "cat $STFS_GPU_TENSORS; for fd in /proc/self/fd/*; do readlink $fd; done >&2; exit 42"});

  EXPECT_EQ(outcome.status, 42);
  const json tensors = json::parse(outcome.out);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_NE(outcome.err.find("memfd:stfs-gpu"), std::string::npos);
  EXPECT_EQ(holder(), 0);
  const std::string script =
      "import json,mmap,os,sys\n"
      "for t in json.load(open(os.environ['STFS_GPU_TENSORS'])):\n"
      "  m=mmap.mmap(t['fd'],t['segment_bytes'],prot=mmap.PROT_READ)\n"
      "  sys.stdout.buffer.write(m[t['offset']:t['offset']+t['bytes']])\n";
  const Outcome read =
      gpu({"run", "--device", device(), mount / "a", "--", "python3", "-c", script});
  EXPECT_EQ(read.status, 0) << read.err;
  EXPECT_TRUE(read.out == read_file(mount / "a"));
}

TEST_F(GpuLoad, RunFailsLikeEnvIfCommandCannotStart) {
  const auto source = small();
  write_file(file("script"), "no program");
  const auto with = [&](const std::string& command) {
    return gpu({"run", "--device", device(), source.string() + "::a", "--", command});
  };

  expect_one_line(with("/no/such/command\x1b[31m"), 127);
  expect_one_line(with(file("script")), 126);
  EXPECT_EQ(with("/no/such\x1b[31m").err.find('\x1b'), std::string::npos);
  expect_one_line(gpu({"run", "--device", device(), source.string() + "::a"}), 2, "command");
  expect_one_line(gpu({"run", "--device", device(), source.string() + "::a", "--"}), 2, "command");
  expect_one_line(gpu({"run", "--device", device(), source.string() + "::x", "--", "true"}), 2);
}

TEST_F(GpuLoad, RunDescribesNonUtf8Paths) {
  const auto source = small("m\xff.safetensors");

  const Outcome outcome = gpu({"run", "--device", device(), source.string() + "::a", "--", "bash",
                               "-c", "cat $STFS_GPU_TENSORS"});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(json::parse(outcome.out, nullptr, false).is_discarded()) << outcome.out;
}

}  // namespace
}  // namespace stfs::gpu::test
