// GGUF files on a web server.
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

  // A mount shows tensors and metadata.
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

TEST_F(RemoteGguf, ASplitFileIsMountedFromItsFirstPart) {
  const Mounted mount({first()}, options());

  EXPECT_EQ(xattr(mount / "b", "user.stfs.source"), server_.url("/m-00003-of-00003.gguf"));
  // A size is known without a request.
  server_.forget_requests();
  EXPECT_EQ(std::filesystem::file_size(mount / ".stfs/metadata/scores"), 3'000'001U);
  EXPECT_EQ(server_.requests().size(), 0U);
  expect_all(mount.path());
}

TEST_F(RemoteGguf, ASplitFileIsMountedUnderASupervisor) {
  const Mounted mount({first()}, options("supervise"));
  expect_all(mount.path());
}

TEST_F(RemoteGguf, WithoutACacheArraysAreFetchedAgain) {
  const Mounted mount({first()}, {"-o", "cache_dir=/proc/none"});
  expect_all(mount.path());
}

TEST_F(RemoteGguf, OfflineShowsWhatWasFetched) {
  {
    const Mounted mount({first()}, options());
    expect_all(mount.path());
  }
  fall_silent();
  const Mounted mount({first()}, options("offline"));
  expect_all(mount.path());
}

TEST_F(RemoteGguf, TheQueryOfASignedUrlIsThatOfAllParts) {
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

TEST_F(RemoteGguf, AMissingPartIsNamed) {
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
  EXPECT_NE(rest.out.find("b     I8"), std::string::npos) << rest.out;
}

}  // namespace
}  // namespace stfs::test
