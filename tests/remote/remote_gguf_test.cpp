// GGUF files on a web server, on the Hub and in S3.
#include "tests/gguf/gguf_file.h"
#include "tests/remote/scripted_mount.h"

#include <nlohmann/json.hpp>

namespace stfs::test {
namespace {

class RemoteGguf : public ScriptedMount {
 protected:
  RemoteGguf() {
    const auto part = [](int number) {
      GgufFile file;
      file.key("split.no", ValueType::kU16, little(static_cast<std::uint16_t>(number)));
      file.key("split.count", ValueType::kU16, little<std::uint16_t>(3));
      file.key("split.tensors.count", ValueType::kI32, little<std::int32_t>(2));
      return file;
    };
    GgufFile first = part(0);
    std::string elements;
    for (int i = 0; i < 100'000; ++i) elements += gguf_string("token " + std::to_string(i));
    first.key("tokens", ValueType::kArray, gguf_array(ValueType::kString, 100'000, elements));
    first.key("scores", ValueType::kArray,
              gguf_array(ValueType::kF32, 1'500'000, std::string(6'000'000, '\0')));
    first.key("name", "remote");
    put("/m-00001-of-00003.gguf", {.bytes = first.bytes()});
    for (int i = 1; i < 3; ++i) {
      GgufFile file = part(i);
      file.tensor(i == 1 ? "a" : "b", {1'000'000}, 24, std::string(1'000'000, i == 1 ? 'a' : 'b'));
      put("/m-0000" + std::to_string(i + 1) + "-of-00003.gguf", {.bytes = file.bytes()});
    }
  }
  std::string first() const { return server_.url("/m-00001-of-00003.gguf"); }

  // Expects that a mount shows all tensors and metadata.
  static void expect_all(const std::filesystem::path& mount) {
    EXPECT_EQ(names_in(mount), (std::vector<std::string>{"a", "b"}));
    const std::filesystem::path metadata = mount / ".stfs/metadata";
    EXPECT_EQ(std::filesystem::file_size(metadata / "scores"), 3'000'001U);
    const auto tokens = nlohmann::json::parse(read_file(metadata / "tokens"));
    ASSERT_EQ(tokens.size(), 100'000U);
    EXPECT_EQ(tokens.back(), "token 99999");
    EXPECT_EQ(read_file(metadata / "tokens").size(),
              std::filesystem::file_size(metadata / "tokens"));
    EXPECT_TRUE(read_file(mount / "b") == std::string(1'000'000, 'b'));
  }
};

TEST_F(RemoteGguf, MountsSplitFileFromFirstPart) {
  const Mounted mount({first()}, options());

  EXPECT_EQ(xattr(mount / "b", "user.stfs.source"), server_.url("/m-00003-of-00003.gguf"));
  // A size is known without a request.
  server_.forget_requests();
  EXPECT_EQ(std::filesystem::file_size(mount / ".stfs/metadata/scores"), 3'000'001U);
  EXPECT_EQ(server_.requests().size(), 0U);
  expect_all(mount.path());
}

TEST_F(RemoteGguf, MountsSplitFileUnderSupervisor) {
  const Mounted mount({first()}, options("supervise"));
  expect_all(mount.path());
}

// Loading skips most of this header, which is larger than the memory of a source without a cache.
TEST_F(RemoteGguf, MountsPartlyReadHeaderUnderSupervisor) {
  constexpr std::uint32_t kAlignment = 32 << 20;
  GgufFile file;
  file.key("general.alignment", ValueType::kU32, little(kAlignment));
  file.key("long", std::string(17 << 20, 'x'));
  file.tensor("w", {4}, 24, "abcd");
  file.alignment = kAlignment;
  put("/wide.gguf", {.bytes = file.header() + "abcd"});

  {
    const Mounted mount({server_.url("/wide.gguf")}, options("supervise"));
    EXPECT_EQ(read_file(mount / "w"), "abcd");
    EXPECT_EQ(std::filesystem::file_size(mount / ".stfs/metadata/long"), 17U << 20);
  }
  const auto fetched = asked_blocks("/wide.gguf").size();
  EXPECT_LT(fetched, file.header().size() / kFetchBlock) << "skipped bytes were fetched";
  const std::filesystem::path mountpoint = dir_ / "mnt";
  std::filesystem::create_directory(mountpoint);
  const Outcome refused = run({STFS_BINARY, "-o", "cache_dir=/proc/none,supervise",
                               server_.url("/wide.gguf"), mountpoint.string()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_NE(refused.err.find(" but no cache can hold it: name a directory with -o cache_dir"),
            std::string::npos)
      << refused.err;
}

TEST_F(RemoteGguf, MountsSplitFileWithoutCache) {
  const Mounted mount({first()}, {"-o", "cache_dir=/proc/none"});
  expect_all(mount.path());
}

TEST_F(RemoteGguf, MountsFetchedFileOffline) {
  {
    const Mounted mount({first()}, options());
    expect_all(mount.path());
  }
  fall_silent();
  const Mounted mount({first()}, options("offline"));
  expect_all(mount.path());
}

TEST_F(RemoteGguf, UsesQueryOfSignedUrlForAllParts) {
  set_fault([this](const WebRequest& request) -> std::optional<WebAnswer> {
    const std::size_t query = request.target.find("?sig=s3cret");
    if (query == std::string::npos) return WebAnswer{.status = 403};
    WebRequest plain = request;
    plain.target.resize(query);
    return right(plain);
  });
  const Mounted mount({first() + "?sig=s3cret"}, options());
  expect_all(mount.path());
}

TEST_F(RemoteGguf, NamesMissingPart) {
  {
    const std::lock_guard lock(mutex_);
    objects_.erase("/m-00002-of-00003.gguf");
  }
  const std::string cache = "--cache-dir=" + (dir_ / "cache").string();
  const Outcome refused = run({STFS_INFO_BINARY, "list", cache, first()});
  EXPECT_EQ(refused.status, 3);
  EXPECT_TRUE(
      refused.err.starts_with("stfs-info: " + first() + ": part \"m-00002-of-00003.gguf\": "))
      << refused.err;
  EXPECT_TRUE(refused.err.ends_with(": --allow-missing reads the rest\n")) << refused.err;

  const Outcome rest = run({STFS_INFO_BINARY, "list", "--allow-missing", cache, first()});
  EXPECT_EQ(rest.status, 0) << rest.err;
  EXPECT_NE(rest.out.find("b\tI8"), std::string::npos) << rest.out;
}

// Remote directories

// Returns the bytes of a file with one tensor.
std::string one_tensor(const std::string& name) {
  GgufFile file;
  file.tensor(name, {4}, 24, "abcd");
  return file.bytes();
}

class RemoteGgufDirectory : public ::testing::Test {
 protected:
  Outcome list(const std::string& source, const std::string& endpoint) const {
    return run({STFS_INFO_BINARY, "list", source},
               {.environment = {"STFS_CACHE=" + (dir_ / "cache").string(), endpoint,
                                "HOME=" + dir_.path().string(), "AWS_EC2_METADATA_DISABLED=true",
                                "AWS_REGION=us-east-1"}});
  }

  TempDir dir_;
};

TEST_F(RemoteGgufDirectory, ReadsHubModel) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "no Python";
  const auto write = [this](const std::string& name) {
    const std::filesystem::path path = dir_ / ("models/org/" + name);
    std::filesystem::create_directories(path.parent_path());
    write_file(path, one_tensor("w"));
  };
  write("single/x.gguf");
  for (int i = 10; i < 20; ++i) write("many/x-Q" + std::to_string(i) + ".gguf");
  write("below/Q4/x.gguf");
  write_file(dir_ / "models/org/below/README.md", "");
  const Process server({"/usr/bin/python3", STFS_HUB_SERVER, dir_ / "models"});
  ASSERT_TRUE(eventually([&] { return server.out().find('\n') != std::string::npos; }));
  const std::string hub = nlohmann::json::parse(server.out()).at("hub");
  const std::string endpoint = "HF_ENDPOINT=" + hub;

  const Outcome single = list("hf://org/single", endpoint);
  EXPECT_EQ(single.status, 0) << single.err;
  EXPECT_NE(single.out.find("w\tI8"), std::string::npos) << single.out;
  const Outcome many = list("hf://org/many", endpoint);
  EXPECT_EQ(many.status, 3);
  EXPECT_NE(many.err.find("name one, such as hf://org/many@"), std::string::npos) << many.err;
  EXPECT_NE(many.err.find("/x-Q19.gguf: x-Q10.gguf, x-Q11.gguf"), std::string::npos) << many.err;
  EXPECT_TRUE(many.err.ends_with(", x-Q19.gguf\n")) << many.err;
  EXPECT_EQ(list("hf://org/many/x-Q12.gguf", endpoint).status, 0);
  EXPECT_EQ(list("hf://org/below/Q4", endpoint).status, 0);
}

TEST_F(RemoteGgufDirectory, ReadsS3Prefix) {
  std::map<std::string, WebObject> objects;
  for (const char* key : {"/b/single/x.gguf", "/b/many/x-Q4.gguf", "/b/many/x-Q8.gguf"}) {
    objects[key] = {.bytes = one_tensor("w")};
  }
  HttpServer server([&](const WebRequest& request) -> WebAnswer {
    const std::size_t query = request.target.find("list-type=2");
    if (query == std::string::npos) return answer_object(request, objects);
    const std::string prefix = request.target.substr(request.target.find("prefix=") + 7);
    std::string xml = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [name, object] : objects) {
      const std::string key = name.substr(3);
      const std::string wanted = prefix.substr(0, prefix.find_first_of("%&"));
      if (key.starts_with(wanted)) xml += "<Contents><Key>" + key + "</Key></Contents>";
    }
    return {.body = xml + "</ListBucketResult>"};
  });
  const std::string endpoint = "AWS_ENDPOINT_URL=" + server.url("");

  const Outcome single = list("s3://b/single/", endpoint);
  EXPECT_EQ(single.status, 0) << single.err;
  EXPECT_NE(single.out.find("w\tI8"), std::string::npos) << single.out;
  const Outcome many = list("s3://b/many/", endpoint);
  EXPECT_EQ(many.status, 3);
  EXPECT_TRUE(many.err.ends_with("name one, such as s3://b/many/x-Q8.gguf: x-Q4.gguf, x-Q8.gguf\n"))
      << many.err;
}

}  // namespace
}  // namespace stfs::test
