// stfs-info with checkpoints on a web server.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class RemoteInfo : public ::testing::Test {
 protected:
  RemoteInfo() {
    write_safetensors(dir_ / "m.safetensors", {random_tensor("w", "BF16", {512, 1024}, 1),
                                               random_tensor("a.b", "F32", {257}, 2)});
    objects_["/m.safetensors"] = {.bytes = read_file(dir_ / "m.safetensors")};
  }

  std::string url() const { return server_.url("/m.safetensors"); }
  std::string local() const { return (dir_ / "m.safetensors").string(); }
  Outcome info(std::vector<std::string> words) const {
    words.insert(words.begin(), STFS_INFO_BINARY);
    return run(words, {.environment = {"STFS_CACHE=" + (dir_ / "cache").string()}});
  }

  TempDir dir_;
  std::map<std::string, WebObject> objects_;
  HttpServer server_{
      [this](const WebRequest& request) { return answer_object(request, objects_); }};
};

TEST_F(RemoteInfo, ListSendsOneRequestForOneBlock) {
  const Outcome far = info({"list", url()});

  EXPECT_EQ(far.err, "");
  EXPECT_EQ(far.out, info({"list", local()}).out);
  ASSERT_EQ(server_.requests().size(), 1U);
  EXPECT_EQ(server_.requests().front().header("range"), "bytes=0-262143");
}

TEST_F(RemoteInfo, VerbsPrintSameAsForLocalFile) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"cat", "", "a.b"},
                                             {"cat", "", "w", "--slice", "0:3,::7", "--as", "f32"},
                                             {"stats", ""},
                                             {"hash", "", "w"},
                                             {"extract", "", "a.*", "-o", "-"}}) {
    std::vector<std::string> far = words;
    std::vector<std::string> near = words;
    far[1] = url();
    near[1] = local();
    EXPECT_EQ(info(far).out, info(near).out) << words[0];
    EXPECT_EQ(info(far).err, "") << words[0];
  }
  EXPECT_EQ(info({"diff", url(), local()}).status, 0);
}

TEST_F(RemoteInfo, CheckReadsOnlyHeader) {
  const Outcome good = info({"check", url() + "?signature=secret"});
  const Outcome absent = info({"check", server_.url("/none.safetensors")});

  EXPECT_EQ(good.out, url() + "\tok\t2 tensors\n") << good.err;
  EXPECT_EQ(server_.requests().size(), 2U);
  EXPECT_EQ(absent.status, 3);
  EXPECT_TRUE(absent.out.starts_with(server_.url("/none.safetensors") + "\terror\tAbsent\t"))
      << absent.out;
}

TEST_F(RemoteInfo, ShowAndInfoNameUrl) {
  const Outcome shown = info({"show", url(), "w"});
  const Outcome summary = info({"info", url()});

  EXPECT_NE(shown.out.find(url()), std::string::npos) << shown.out;
  EXPECT_NE(summary.out.find(server_.url("")), std::string::npos) << summary.out;
  EXPECT_NE(summary.out.find("2025-02-01"), std::string::npos) << summary.out;
}

TEST_F(RemoteInfo, MessagesShowNoSecretOfUrl) {
  const Outcome result = info({"cat", url() + "?signature=secret", "no.such.tensor"});

  EXPECT_EQ(result.status, 2);
  EXPECT_TRUE(result.err.starts_with("stfs-info: " + url() + ": ")) << result.err;
  EXPECT_EQ(result.err.find("secret"), std::string::npos) << result.err;
}

TEST_F(RemoteInfo, CompletionSendsNoRequest) {
  const std::vector<std::string> words{"--complete", "show", url(), ""};
  EXPECT_EQ(info(words).out, "");
  EXPECT_EQ(server_.requests().size(), 0U);
  EXPECT_EQ(info({"list", url()}).status, 0);
  server_.forget_requests();

  EXPECT_EQ(info(words).out, std::string("tensor\0\0w \0\0a.b \0\0", 18));
  EXPECT_EQ(info({"list", url(), "--offline"}).status, 0);
  EXPECT_EQ(server_.requests().size(), 0U);
}

}  // namespace
}  // namespace stfs::test
