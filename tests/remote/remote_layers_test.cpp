// Remote adapters and edits: on a web server, in a bucket, on the Hub.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/http_server.h"
#include "tests/support/mounted.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

class RemoteLayers : public MountTest {
 protected:
  RemoteLayers() {
    fs::create_directories(adapter());
    write_safetensors(dir_ / "base.safetensors", {random_tensor("m.q.weight", "F32", {64, 512}, 1),
                                                  random_tensor("m.norm.weight", "F32", {8}, 2)});
    write_file(adapter() / "adapter_config.json",
               R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4})");
    write_safetensors(adapter() / "adapter_model.safetensors",
                      {random_tensor("base_model.model.m.q.lora_A.weight", "F32", {2, 512}, 3),
                       random_tensor("base_model.model.m.q.lora_B.weight", "F32", {64, 2}, 4)});
    write_safetensors(adapter() / "other.safetensors", {random_tensor("x.1", "I8", {3}, 5)});
    write_file(adapter() / "a.npy",
               "\x93NUMPY\1\0\x76\0{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }"s +
                   std::string(0x76 - 58, ' ') + "\n" + "112233");
    write_file(adapter() / "e.edit",
               "rename s/^m[.]//\nadd other.safetensors::x.* # beside this file\nadd a.npy as n\n");
    for (const auto& entry : fs::directory_iterator(adapter())) {
      const std::string name = entry.path().filename();
      objects_["/org/name/" + name] = {.bytes = read_file(entry.path())};
    }
  }

  // Returns DIR/models/org/name, the directory that servers/hub.py serves as the model org/name.
  fs::path adapter() const { return dir_ / "models/org/name"; }
  std::string base() const { return (dir_ / "base.safetensors").string(); }
  Outcome info(std::vector<std::string> words) const {
    words.insert(words.begin(), STFS_INFO_BINARY);
    return run(words, {.environment = {"STFS_CACHE=" + (dir_ / "cache").string(),
                                       "HOME=" + dir_.path().string(), "HF_ENDPOINT=" + hub_,
                                       "AWS_ENDPOINT_URL=" + server_.url(""),
                                       "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret"}});
  }
  std::vector<std::string> stores() {
    std::vector<std::string> urls{server_.url("/org/name"), "s3://org/name"};
    if (!fs::exists("/usr/bin/python3")) return urls;
    process_ = std::make_unique<Process>(
        std::vector<std::string>{"/usr/bin/python3", STFS_HUB_SERVER, (dir_ / "models").string()});
    EXPECT_TRUE(eventually([&] { return process_->out().find('\n') != std::string::npos; }));
    hub_ = nlohmann::json::parse(process_->out()).at("hub");
    urls.emplace_back("hf://org/name");
    return urls;
  }

  TempDir dir_;
  std::map<std::string, WebObject> objects_;
  HttpServer server_{
      [this](const WebRequest& request) { return answer_object(request, objects_); }};
  std::unique_ptr<Process> process_;
  std::string hub_ = "http://127.0.0.1:9";
};

TEST_F(RemoteLayers, GiveSameBytesAsLocalLayers) {
  const std::string merged = info({"hash", base(), "--lora", "0.5@" + adapter().string()}).out;
  const std::string edited = info({"hash", base(), "--edit", adapter() / "e.edit"}).out;
  ASSERT_NE(edited.find("x.1"), std::string::npos) << edited;
  for (const std::string& url : stores()) {
    const Outcome far = info({"hash", base(), "--lora", "0.5@" + url});
    EXPECT_EQ(far.err, "");
    EXPECT_EQ(far.out, merged) << url;
    const Outcome far_edits = info({"hash", base(), "--edit", url + "/e.edit"});
    EXPECT_EQ(far_edits.err, "");
    EXPECT_EQ(far_edits.out, edited) << url;
    const Outcome named =
        info({"hash", base(), "-e", "rename s/^m[.]//", "-e",
              "add " + url + "/other.safetensors::x.1", "-e", "add " + url + "/a.npy as n"});
    EXPECT_EQ(named.err, "");
    EXPECT_EQ(named.out, edited) << url;
    server_.forget_requests();
    EXPECT_EQ(info({"hash", base(), "--offline", "--lora", "0.5@" + url}).out, merged) << url;
    EXPECT_EQ(server_.requests().size(), 0U) << url;
  }
}

TEST_F(RemoteLayers, MountAndEditOfMountApplyLayers) {
  const std::string url = server_.url("/org/name");
  const std::string cache = (dir_ / "cache").string();
  const Mounted far({base()}, {"-o", "lora=" + url, "-o", "cache_dir=" + cache});
  const Mounted near({base()}, {"-o", "lora=" + adapter().string()});
  EXPECT_EQ(read_file(far / "m.q.weight"), read_file(near / "m.q.weight"));
  EXPECT_EQ(info({"hash", far.path().string(), "-e", "drop m.norm*"}).out,
            info({"hash", near.path().string(), "-e", "drop m.norm*"}).out);
}

TEST_F(RemoteLayers, MountShowsNoSecretOfEdit) {
  const std::string path = "/org/name/other.safetensors";
  write_file(dir_ / "secret.edit", "add " + server_.url(path) + "?sig=hidden::x.1 as n\nadd " +
                                       server_.url("/org/name/a.npy") + "?sig=hidden\n");
  objects_["/org/name/a.npy?sig=hidden"] = objects_["/org/name/a.npy"];
  objects_[path + "?sig=hidden"] = objects_[path];
  const Mounted mount({base()}, {"-o", "edit=" + (dir_ / "secret.edit").string(), "-o",
                                 "cache_dir=" + (dir_ / "cache").string()});
  EXPECT_EQ(read_file(mount / "n"), random_tensor("x.1", "I8", {3}, 5).bytes);
  EXPECT_EQ(read_file(mount / "a"), "112233");
  const Outcome shown = run({"getfattr", "--only-values", "-n", "user.stfs.mount", mount.path()});
  EXPECT_NE(shown.out.find(path + "::x.1 as n"), std::string::npos) << shown.out << shown.err;
  EXPECT_EQ(shown.out.find("hidden"), std::string::npos) << shown.out;
}

TEST_F(RemoteLayers, MissingLayersAreNamedWithoutSecrets) {
  const Outcome absent = info({"hash", base(), "--lora", server_.url("/none")});
  EXPECT_EQ(absent.status, 3);
  EXPECT_NE(
      absent.err.find(server_.url("/none/adapter_config.json") + ": no such file: an adapter is"),
      std::string::npos)
      << absent.err;
  const Outcome edits =
      info({"hash", base(), "--edit", server_.url("/none.edit") + "?token=hidden"});
  EXPECT_EQ(edits.status, 3);
  EXPECT_EQ(edits.err.find("hidden"), std::string::npos) << edits.err;
  const Outcome from =
      info({"hash", base(), "-e", "add " + server_.url("/n.safetensors") + "?token=hidden::x"});
  EXPECT_EQ(from.status, 1);
  EXPECT_NE(from.err.find("-e: line 1: "), std::string::npos) << from.err;
  EXPECT_EQ(from.err.find("hidden"), std::string::npos) << from.err;
}

}  // namespace
}  // namespace stfs::test
