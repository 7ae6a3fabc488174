// Files from PyTorch and NumPy through mounts and stfs-info, in directories and on web servers.
#include "tests/archives/archive_file.h"
#include "tests/remote/scripted_mount.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using pickled::dict;
using pickled::storage;
using pickled::tensor;
using pickled::whole;
using Names = std::vector<std::string>;

std::string random_bytes(std::size_t size, std::uint32_t seed) {
  std::string out(size, '\0');
  for (char& c : out) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return out;
}

class ArchiveMount : public ScriptedMount {
 protected:
  const std::string w_ = random_bytes(1'000'000, 1), v_ = random_bytes(24, 2);
  // Returns a file with w, a tensor of 1 MB; v, 3 x 2; t, the transpose of v; and an unsupported
  // tensor.
  std::string torch_bytes() const {
    return torch_file(whole(dict({{"w", tensor(storage("ByteStorage", "0", 1'000'000), 0,
                                               {1000, 1000}, {1000, 1})},
                                  {"v", tensor(storage("FloatStorage", "1", 6), 0, {3, 2}, {2, 1})},
                                  {"t", tensor(storage("FloatStorage", "1", 6), 0, {2, 3}, {1, 2})},
                                  {"sparse",
                                   pickled::call("torch._utils", "_rebuild_sparse_tensor", {})}})),
                      {w_, v_})
        .bytes();
  }
  std::string npz_bytes(bool is_deflated) const {
    ZipFile zip;
    zip.members.push_back({"w.npy", npy_file("|u1", "(1000, 1000)", w_), is_deflated, false});
    zip.members.push_back({"v.npy", npy_file("<f4", "(3, 2)", v_), is_deflated, false});
    zip.members.push_back({"t.npy", npy_file("<f4", "(2, 3)", v_, true), is_deflated, false});
    return zip.bytes();
  }
  std::string transposed() const {
    std::string out;
    for (const int i : {0, 2, 4, 1, 3, 5}) out += v_.substr(static_cast<std::size_t>(i) * 4, 4);
    return out;
  }
  // Writes a safetensors file with the same tensors. Returns its path.
  std::filesystem::path twin() const {
    write_safetensors(dir_ / "twin.safetensors",
                      {{.name = "w", .dtype = "U8", .shape = {1000, 1000}, .bytes = w_},
                       {.name = "v", .dtype = "F32", .shape = {3, 2}, .bytes = v_},
                       {.name = "t", .dtype = "F32", .shape = {2, 3}, .bytes = transposed()}});
    return dir_ / "twin.safetensors";
  }
  void expect_all(const std::filesystem::path& mount) const {
    EXPECT_EQ(names_in(mount), (Names{"t", "v", "w"}));
    EXPECT_TRUE(read_file(mount / "w") == w_);
    EXPECT_EQ(read_file(mount / "v"), v_);
    EXPECT_EQ(read_file(mount / "t"), transposed());
    EXPECT_EQ(read_file(mount / ".stfs/slice/t/1"), transposed().substr(12));
    EXPECT_EQ(read_file(mount / ".stfs/npy/t.npy").substr(128), transposed());
  }
};

TEST_F(ArchiveMount, EqualsMountedSafetensorsFileWithSameTensors) {
  write_file(dir_ / "m.pt", torch_bytes());
  write_file(dir_ / "s.npz", npz_bytes(false));
  write_file(dir_ / "d.npz", npz_bytes(true));
  for (const char* const name : {"m.pt", "s.npz", "d.npz"}) {
    const Mounted mount({dir_ / name});
    expect_all(mount.path());
    const Outcome diff = run({STFS_INFO_BINARY, "diff", twin(), dir_ / name});
    EXPECT_EQ(diff.status, 0) << name << diff.out << diff.err;
    const Outcome copied =
        run({"cp", mount / ".stfs/merged.safetensors", dir_ / "out.safetensors"});
    EXPECT_EQ(copied.status, 0) << copied.err;
    const Outcome same = run({STFS_INFO_BINARY, "diff", twin(), dir_ / "out.safetensors"});
    EXPECT_EQ(same.status, 0) << name << same.out << same.err;
    const Outcome of_mount = run({STFS_INFO_BINARY, "diff", twin(), mount.path()});
    EXPECT_EQ(of_mount.status, 0) << name << of_mount.out << of_mount.err;
  }
}

TEST_F(ArchiveMount, AttributesGiveOffsetOrInputs) {
  write_file(dir_ / "m.pt", torch_bytes());
  const Mounted mount({dir_ / "m.pt"});
  const auto offset = std::stoull(xattr(mount / "w", "user.stfs.offset").value());
  EXPECT_TRUE(read_file(dir_ / "m.pt").substr(offset, w_.size()) == w_);
  EXPECT_FALSE(xattr(mount / "t", "user.stfs.offset"));
  EXPECT_EQ(xattr(mount / "t", "user.stfs.from"), "[\"archive/data/1\"]");
  EXPECT_TRUE(read_file(mount / ".stfs/header/m.pt.pkl").starts_with("\x80\2"));
}

TEST_F(ArchiveMount, UnsupportedTensorIsOnlyAWarning) {
  write_file(dir_ / "m.pt", torch_bytes());
  const Outcome info = run({STFS_INFO_BINARY, "info", dir_ / "m.pt"});
  EXPECT_EQ(info.status, 0);
  EXPECT_NE(info.out.find("\"sparse\": is sparse"), std::string::npos) << info.out;
  const Outcome checked = run({STFS_INFO_BINARY, "check", dir_ / "m.pt"});
  EXPECT_EQ(checked.status, 0) << checked.out;
}

TEST_F(ArchiveMount, EveryCommandNamesUnsupportedTensor) {
  write_file(dir_ / "m.pt", torch_bytes());
  const std::string model = dir_ / "m.pt";
  const std::vector<std::vector<std::string>> verbs{
      {"check", model},        {"list", model},
      {"hash", model},         {"stats", model},
      {"diff", model, twin()}, {"extract", model, "*", "-o", dir_ / "out.safetensors"}};
  for (std::vector<std::string> verb : verbs) {
    verb.insert(verb.begin(), STFS_INFO_BINARY);
    const Outcome outcome = run(verb);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("sparse"), std::string::npos) << verb[1] << outcome.err;
  }
}

TEST_F(ArchiveMount, LayersApplyToTorchFile) {
  write_file(dir_ / "m.pt", torch_bytes());
  write_file(dir_ / "e.edit", "rename s/^/model./\ncast model.t BF16\nkeep model.t model.v\n");
  const Mounted mount({dir_ / "m.pt"}, {"-o", "edit=" + (dir_ / "e.edit").string()});
  EXPECT_EQ(names_in(mount.path()), (Names{"model.t", "model.v"}));
  EXPECT_EQ(read_file(mount / "model.v"), v_);
  EXPECT_EQ(read_file(mount / "model.t").size(), 12U);
}

TEST_F(ArchiveMount, DirectoryMeansPytorchModelOnlyWithoutOtherFormats) {
  const std::filesystem::path model = dir_ / "model";
  std::filesystem::create_directory(model);
  write_file(model / "optimizer.pt", "x");
  write_file(model / "pytorch_model.bin", torch_bytes());
  expect_all(Mounted({model}).path());
  const auto shard = [](const char* name, const std::string& bytes) {
    return torch_file(whole(dict({{name, tensor(storage("ByteStorage", "0", 4), 0, {4}, {1})}})),
                      {bytes})
        .bytes();
  };
  std::filesystem::create_directory(dir_ / "unet");
  write_file(dir_ / "unet/diffusion_pytorch_model.bin", torch_bytes());
  write_file(dir_ / "unet/diffusion_pytorch_model.fp16.bin", "x");
  expect_all(Mounted({dir_ / "unet"}).path());
  for (const std::filesystem::path& stem :
       {model / "pytorch_model", dir_ / "unet/diffusion_pytorch_model"}) {
    const std::string first = stem.filename().string() + "-00001-of-00002.bin",
                      second = stem.filename().string() + "-00002-of-00002.bin";
    write_file(stem.parent_path() / first, shard("a", "aaaa"));
    write_file(stem.parent_path() / second, shard("b", "bbbb"));
    write_index(stem.string() + ".bin.index.json", {{"a", first}, {"b", second}}, 8);
    const Mounted sharded({stem.parent_path()});
    EXPECT_EQ(names_in(sharded.path()), (Names{"a", "b"}));
    EXPECT_EQ(read_file(sharded / "b"), "bbbb");
  }
  write_safetensors(model / "x.safetensors", {random_tensor("safe", "U8", {4}, 1)});
  EXPECT_EQ(names_in(Mounted({model}).path()), (Names{"safe"}));
}

TEST_F(ArchiveMount, FetchesOnlyHeadersFromWebServer) {
  put("/m.pt", {.bytes = torch_bytes()});
  put("/d.npz", {.bytes = npz_bytes(true)});
  put("/pytorch_model.bin", {.bytes = torch_bytes()});
  put("/pytorch_model.bin.index.json",
      {.bytes =
           R"({"weight_map": {"w": "pytorch_model.bin", "t": "pytorch_model.bin", "v": "pytorch_model.bin"}})"});
  for (const char* const how : {"", "supervise"}) {
    for (const char* const name : {"/m.pt", "/d.npz", "/pytorch_model.bin.index.json"}) {
      const Mounted mount({server_.url(name)}, options(how));
      expect_all(mount.path());
    }
  }
  put("/big.pt", {.bytes = torch_bytes() + std::string()});
  server_.forget_requests();
  const Mounted mount({server_.url("/big.pt")}, options());
  const auto asked = asked_blocks("/big.pt");
  EXPECT_FALSE(asked.contains(1) || asked.contains(2)) << "blocks in the middle of w were fetched";
}

TEST_F(ArchiveMount, ModelDirectoryHasSafetensorsFileForLoaders) {
  const std::filesystem::path model = dir_ / "model";
  std::filesystem::create_directory(model);
  write_file(model / "config.json", R"({"model_type":"gpt2"})");
  write_file(model / "tokenizer.json", "{}");
  write_file(model / "training_args.bin", "x");
  write_file(model / "pytorch_model.bin", torch_bytes());
  const Mounted mount({model});
  ASSERT_EQ(run({STFS_INFO_BINARY, "edit", model, "-o", dir_ / "new"}).status, 0);

  for (const std::filesystem::path& shown : {mount / ".stfs/model", dir_ / "new"}) {
    EXPECT_EQ(names_in(shown), (Names{"config.json", "model.safetensors", "tokenizer.json"}));
    EXPECT_EQ(read_file(shown / "config.json"), read_file(model / "config.json"));
    const Outcome diff = run({STFS_INFO_BINARY, "diff", twin(), shown / "model.safetensors"});
    EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
    const Outcome info = run({STFS_INFO_BINARY, "info", "--json", shown / "model.safetensors"});
    EXPECT_EQ(nlohmann::json::parse(info.out).at("metadata"), (nlohmann::json{{"format", "pt"}}));
  }
  write_file(model / "d.npz", npz_bytes(true));
  const Mounted arrays({model / "d.npz"});
  EXPECT_FALSE(std::filesystem::exists(arrays / ".stfs/model"));
}

TEST_F(ArchiveMount, MountsPytorchModelFromHubAndArchiveFromBucket) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no Python";
  const std::filesystem::path model = dir_ / "models/org/name";
  std::filesystem::create_directories(model);
  write_file(model / "config.json", "{}");
  write_file(model / "optimizer.pt", "x");
  write_file(model / "pytorch_model.bin", torch_bytes());
  const Process hub({"/usr/bin/python3", STFS_HUB_SERVER, dir_ / "models"});
  ASSERT_TRUE(eventually([&] { return hub.out().find('\n') != std::string::npos; }));
  put("/bucket/d.npz", {.bytes = npz_bytes(true)});
  const RunOptions environment{
      .environment = {
          "HF_ENDPOINT=" + nlohmann::json::parse(hub.out()).at("hub").get<std::string>(),
          "AWS_ENDPOINT_URL=" + server_.url(""), "AWS_REGION=us-east-1",
          "AWS_EC2_METADATA_DISABLED=true", "HF_HUB_CACHE=/none", "HOME=" + dir_.path().string()}};
  for (const std::string source : {"hf://org/name", "s3://bucket/d.npz"}) {
    const ForegroundMount mount({source}, options(), environment);
    expect_all(mount / "");
    EXPECT_EQ(xattr(mount / "t", "user.stfs.from"),
              source.starts_with("hf") ? "[\"archive/data/1\"]" : "[\"t.npy\"]");
  }
}

}  // namespace
}  // namespace stfs::test
