// Mounts of checkpoints on a web server.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/http_server.h"
#include "tests/support/mounted.h"
#include "tests/support/pseudo_terminal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class RemoteMount : public MountTest {
 protected:
  RemoteMount() {
    tensors_ = {random_tensor("w", "BF16", {512, 1024}, 1), random_tensor("a.b", "F32", {257}, 2)};
    write_safetensors(local(), tensors_);
    objects_["/m.safetensors"] = {.bytes = read_file(local())};
  }

  std::filesystem::path local() const { return dir_ / "m.safetensors"; }
  std::string url(const std::string& path = "m.safetensors") const {
    return server_.url("/" + path);
  }
  std::vector<std::string> options(const std::string& more = "") const {
    return {"-o", "cache_dir=" + (dir_ / "cache").string() + (more.empty() ? "" : "," + more)};
  }
  // Runs a mount command that must fail.
  Outcome refused(const std::string& source, const std::string& more = "") const {
    std::filesystem::create_directories(dir_ / "mnt");
    std::vector<std::string> argv{STFS_BINARY};
    std::ranges::copy(options(more), std::back_inserter(argv));
    argv.push_back(source);
    argv.push_back((dir_ / "mnt").string());
    return run(argv);
  }

  TempDir dir_;
  std::vector<Tensor> tensors_;
  std::mutex mutex_;
  std::map<std::string, WebObject> objects_;
  HttpServer server_{[this](const WebRequest& request) {
    const std::lock_guard lock(mutex_);
    return answer_object(request, objects_);
  }};
};

void expect_refusal(const Outcome& result, int status, const std::string& part) {
  EXPECT_EQ(result.status, status) << result.err;
  EXPECT_TRUE(result.err.starts_with("stfs: ")) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST_F(RemoteMount, ShowsSameFilesAsLocalMount) {
  const Mounted far({url()}, options());
  const Mounted near({local().string()});

  EXPECT_EQ(names_in(far.path()), names_in(near.path()));
  for (const char* path : {"w", "a.b", ".stfs/npy/w.npy", ".stfs/slice/w/3:200,::2", ".stfs/f32/w",
                           ".stfs/merged.safetensors", ".stfs/sha256/w", ".stfs/png/w.png",
                           ".stfs/png-slice/w/3:200,::2.png", ".stfs/hist/w.svg"}) {
    EXPECT_EQ(read_file(far / path), read_file(near / path)) << path;
  }
  EXPECT_EQ(xattr(far / "w", "user.stfs.source"), url());
  EXPECT_EQ(mounts_at(far.path()).back().source, url());
}

TEST_F(RemoteMount, ReportNamesUrlAndTensors) {
  const Mounted far({url()}, options());
  const std::string page = read_file(far / ".stfs/report.html");

  EXPECT_NE(page.find("</html>"), std::string::npos);
  EXPECT_NE(page.find(url()), std::string::npos);
  for (const Tensor& tensor : tensors_) {
    EXPECT_NE(page.find(tensor.name), std::string::npos) << tensor.name;
  }
}

TEST_F(RemoteMount, SecondMountWorksOffline) {
  { EXPECT_EQ(read_file(Mounted({url()}, options()) / "w"), tensors_[0].bytes); }
  server_.forget_requests();

  const Mounted mount({url()}, options("offline"));

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  EXPECT_EQ(server_.requests().size(), 0U);
}

TEST_F(RemoteMount, NewSignatureOfUrlReusesCachedObject) {
  const std::string version = url() + "?versionId=a&X-Amz-Algorithm=A&X-Amz-Credential=C&X-Amz-";
  { EXPECT_EQ(read_file(Mounted({version + "Signature=1"}, options()) / "w"), tensors_[0].bytes); }
  server_.forget_requests();
  {
    const Mounted mount({version + "Date=2&X-Amz-Signature=2"}, options());
    EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  }
  EXPECT_EQ(names_in(dir_ / "cache/v1/entries").size(), 1U);
  unsigned asked = 0;
  for (const WebRequest& request : server_.requests()) {
    if (!request.target.starts_with("/m.safetensors")) continue;
    ++asked;
    EXPECT_NE(request.target.find("Signature=2"), std::string::npos);
    EXPECT_NE(request.header("if-none-match"), "");
  }
  EXPECT_EQ(asked, 1U) << "one request checks the version";
  server_.forget_requests();
  const Mounted offline({version + "Signature=3"}, options("offline"));
  EXPECT_EQ(read_file(offline / "w"), tensors_[0].bytes);
  EXPECT_EQ(server_.requests().size(), 0U);

  expect_refusal(refused(url() + "?versionId=b&X-Amz-Signature=3", "offline"), 3, "never fetched");
}

TEST_F(RemoteMount, SecondMountWorksOfflineUnderSupervisor) {
  { EXPECT_EQ(read_file(Mounted({url()}, options()) / "w"), tensors_[0].bytes); }
  server_.forget_requests();

  const Mounted mount({url()}, options("offline,supervise"));

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  EXPECT_EQ(server_.requests().size(), 0U);
}

TEST_F(RemoteMount, SupervisorStartsNoThreadAndWorkersFetch) {
  ForegroundMount mount({url()}, options("supervise"));
  const auto tasks = [&] {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(mount.process().pid()) +
                                                  "/task");
    return std::distance(all, std::filesystem::directory_iterator{});
  };
  const auto workers = [&] {
    std::vector<pid_t> found = processes_with(mount.path().string());
    std::erase(found, mount.process().pid());
    return found;
  };
  EXPECT_EQ(read_file(mount / "a.b"), tensors_[1].bytes);
  const std::vector<pid_t> first = workers();
  ASSERT_EQ(first.size(), 1U);

  ASSERT_EQ(::kill(first.front(), SIGKILL), 0);

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  EXPECT_NE(workers(), first);
  EXPECT_EQ(tasks(), 1);
  // The loading child requests one block, and the workers request the others.
  EXPECT_EQ(server_.requests().front().header("range"), "bytes=0-262143");
}

TEST_F(RemoteMount, FailedMountIsOneLine) {
  {
    const std::lock_guard lock(mutex_);
    objects_["/broken.safetensors"] = {.bytes = "<html>no</html>"};
  }
  for (const char* more : {"", "supervise"}) {
    expect_refusal(refused(url("none.safetensors"), more), 3, url("none.safetensors") + ": ");
    expect_refusal(refused(url("broken.safetensors"), more), 1, "is an HTML page");
    expect_refusal(refused(url("models/"), more), 2, "a web server has no directories");
    expect_refusal(refused("ftp://host/m.safetensors", more), 2, "stfs supports https, s3 and hf");
    expect_refusal(refused(url(), std::string(more) + (*more != 0 ? "," : "") + "offline"), 3,
                   "offline, and this was never fetched");
  }
}

TEST_F(RemoteMount, NamesServerRefusingOrIgnoringRanges) {
  server_.set([](const WebRequest&) { return WebAnswer{.status = 403}; });
  expect_refusal(refused(url()), 3, url() + ": ");
  server_.set([this](const WebRequest&) {
    return WebAnswer{.headers = {{"ETag", "\"v1\""}}, .body = objects_["/m.safetensors"].bytes};
  });
  expect_refusal(refused(url()), 3, "range");
}

TEST_F(RemoteMount, AttributesAndMountTableShowNoSecretOfUrl) {
  const Mounted mount({url() + "?signature=secret"}, options());

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  const MountEntry entry = mounts_at(mount.path()).back();
  for (const std::string& text :
       {xattr(mount / "w", "user.stfs.source").value_or(""),
        xattr(mount.path(), "user.stfs.mount").value_or(""), entry.source, entry.super_options,
        read_file(mount / ".stfs/info.json"), read_file(mount / ".stfs/tensors.json")}) {
    EXPECT_EQ(text.find("secret"), std::string::npos) << text;
  }
}

TEST_F(RemoteMount, ModelDirectoryHasKnownFilesOfServer) {
  {
    const std::lock_guard lock(mutex_);
    write_safetensors(dir_ / "q.safetensors",
                      {{"w.weight", "F8_E4M3", {2, 2}, "8888"},
                       {"w.weight_scale_inv", "F32", {1, 1}, std::string("\0\0\x80\x3f", 4)}});
    objects_["/d/m.safetensors"] = {.bytes = read_file(dir_ / "q.safetensors")};
    objects_["/d/config.json"] = {.bytes = R"({"quantization_config":{"quant_method":"fp8"}})"};
    objects_["/d/tokenizer.json"] = {.bytes = std::string(300'000, ' ')};
    objects_["/d/secret.txt"] = {.bytes = "secret"};
  }
  const std::vector<std::string> names{"config.json", "model.safetensors", "tokenizer.json"};
  for (const char* more : {"dequantize=bf16", "dequantize=bf16,supervise", ""}) {
    SCOPED_TRACE(more);
    std::filesystem::remove_all(dir_ / "cache");
    server_.forget_requests();
    const Mounted mount({url("d/m.safetensors")}, options(more));
    EXPECT_EQ(names_in(mount / ".stfs/model"), names);
    EXPECT_EQ(std::filesystem::file_size(mount / ".stfs/model/tokenizer.json"), 300'000U);
    // A web server shows the version in the response for the first block, so only that is fetched.
    for (const WebRequest& request : server_.requests()) {
      EXPECT_TRUE(request.target != "/d/tokenizer.json" ||
                  request.header("range") == "bytes=0-262143")
          << request.header("range");
    }
    EXPECT_EQ(read_file(mount / ".stfs/model/config.json"),
              *more != 0 ? R"({"torch_dtype": "bfloat16"})"
                         : R"({"quantization_config":{"quant_method":"fp8"}})");
    EXPECT_EQ(read_file(mount / ".stfs/model/tokenizer.json"), std::string(300'000, ' '));
  }
  EXPECT_FALSE(std::filesystem::exists(Mounted({url()}, options()) / ".stfs/model"));
}

TEST_F(RemoteMount, FailedReadOfConfigFailsMount) {
  write_safetensors(dir_ / "q.safetensors",
                    {{"w", "F8_E4M3", {4, 4}, std::string(16, '8')},
                     {"w_scale_inv", "F32", {1, 1}, std::string("\0\0\0\x3F", 4)}});
  int status = 0;
  server_.set([&, bytes = read_file(dir_ / "q.safetensors")](const WebRequest& request) {
    if (request.target == "/d/m.safetensors") {
      return answer_object(request, {{"/d/m.safetensors", {.bytes = bytes}}});
    }
    return WebAnswer{.status = status, .headers = {{"Retry-After", "3600"}}};
  });
  for (const char* more : {"dequantize=bf16", "dequantize=bf16,supervise"}) {
    for (const int failed : {501, 503, 401}) {
      status = failed;
      expect_refusal(refused(url("d/m.safetensors"), more), 3, url("d/config.json") + ": ");
    }
    // If a client may not list a store, the store answers 403 for a missing object.
    for (const int absent : {403, 404, 410}) {
      status = absent;
      const Mounted mount({url("d/m.safetensors")}, options(more));
      EXPECT_EQ(read_file(mount / "w").size(), 32U) << status;
    }
  }
}

// bitsandbytes stores the shapes of its weights in tensors, which are read while the mount loads.
TEST_F(RemoteMount, SupervisorLoadsTensorsWithoutCache) {
  const std::string state = R"({"quant_type":"nf4","blocksize":64,"shape":[2,2]})";
  std::vector<Tensor> parts{random_tensor("a", "BF16", {512, 1024}, 1),
                            {"w", "U8", {2, 1}, "\x12\x34"},
                            {"w.absmax", "F32", {1}, std::string("\0\0\x80\x3F", 4)},
                            random_tensor("w.quant_map", "F32", {16}, 3),
                            {"w.quant_state.bitsandbytes__nf4", "U8", {state.size()}, state}};
  write_safetensors(dir_ / "b.safetensors", parts);
  {
    const std::lock_guard lock(mutex_);
    objects_["/b.safetensors"] = {.bytes = read_file(dir_ / "b.safetensors")};
  }
  const Mounted near({(dir_ / "b.safetensors").string()}, {"-o", "dequantize=f32"});
  for (const std::string& cache : {(dir_ / "cache").string(), local().string()}) {
    ForegroundMount mount({url("b.safetensors")},
                          {"-o", "dequantize=f32,supervise,cache_dir=" + cache});
    EXPECT_EQ(read_file(mount / "w"), read_file(near / "w")) << cache;
    EXPECT_EQ(read_file(mount / "a"), parts[0].bytes);
  }
}

TEST_F(RemoteMount, MountOfUrlCanBeSource) {
  const Mounted first({url()}, options());

  const Mounted second({(first / "w").string()}, options("supervise"));

  EXPECT_EQ(names_in(second.path()), std::vector<std::string>{"w"});
  EXPECT_EQ(read_file(second / "w"), tensors_[0].bytes);
}

TEST_F(RemoteMount, SilentServerFailsMountAtTimeout) {
  server_.set([](const WebRequest&) { return WebAnswer{.delay = std::chrono::hours(1)}; });

  for (const char* more : {"timeout=1", "timeout=1,supervise"}) {
    expect_refusal(refused(url(), more), 3, url() + ": no complete response within 1 s");
  }
}

TEST_F(RemoteMount, HangingConfigHasOwnTimeout) {
  server_.set([&](const WebRequest& request) {
    if (request.target == "/config.json") return WebAnswer{.delay = std::chrono::hours(1)};
    return answer_object(request, objects_);
  });

  ForegroundMount mount({url()}, options("timeout=8"));

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  // The limit is a quarter of the timeout, and at most 5 s.
  EXPECT_NE(mount.process().err().find(url("config.json") + ": no complete response within 2 s"),
            std::string::npos)
      << mount.process().err();
}

TEST_F(RemoteMount, InterruptEndsLoading) {
  server_.set([](const WebRequest&) { return WebAnswer{.delay = std::chrono::hours(1)}; });
  std::filesystem::create_directories(dir_ / "mnt");
  for (const char* more : {"timeout=3600", "timeout=3600,supervise"}) {
    server_.forget_requests();
    std::vector<std::string> argv{STFS_BINARY};
    std::ranges::copy(options(more), std::back_inserter(argv));
    argv.insert(argv.end(), {url(), (dir_ / "mnt").string()});
    Process process(controlled(argv), {.terminal_columns = 80});
    ASSERT_TRUE(eventually([&] { return server_.requests().size() == 1; }));

    process.type("\x03");

    EXPECT_EQ(process.wait().status, 128 + SIGINT) << more;
    EXPECT_TRUE(eventually([&] { return processes_with((dir_ / "mnt").string()).empty(); }));
  }
}

TEST_F(RemoteMount, LoadingProcessEndsWithParent) {
  server_.set([](const WebRequest&) { return WebAnswer{.delay = std::chrono::hours(1)}; });
  std::filesystem::create_directories(dir_ / "mnt");
  std::vector<std::string> argv{STFS_BINARY, "-f"};
  std::ranges::copy(options("timeout=3600,supervise"), std::back_inserter(argv));
  argv.insert(argv.end(), {url(), (dir_ / "mnt").string()});
  Process process(argv);
  ASSERT_TRUE(eventually([&] { return server_.requests().size() == 1; }));

  process.signal(SIGKILL);

  EXPECT_TRUE(eventually([&] { return processes_with((dir_ / "mnt").string()).empty(); }));
}

TEST_F(RemoteMount, RejectsCacheInsideMountpoint) {
  std::filesystem::create_directories(dir_ / "mnt");
  const std::string inside = (dir_ / "mnt/cache").string();
  std::filesystem::create_directory_symlink(dir_ / "mnt", dir_ / "link");
  for (const std::string& cache : {inside, (dir_ / "mnt").string(), (dir_ / "link/c").string()}) {
    const Outcome result =
        run({STFS_BINARY, "-o", "cache_dir=" + cache, url(), (dir_ / "mnt").string()});
    expect_refusal(result, 4, "the cache " + cache + " lies in it");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "mnt"));
}

TEST_F(RemoteMount, UnusableCacheGivesWarning) {
  ForegroundMount mount({url()}, {"-o", "cache_dir=" + local().string()});

  EXPECT_EQ(read_file(mount / "w"), tensors_[0].bytes);
  EXPECT_TRUE(mount.process().err().starts_with("stfs: warning: " + local().string() + ": "))
      << mount.process().err();
  EXPECT_EQ(std::ranges::count(mount.process().err(), '\n'), 1) << mount.process().err();
}

TEST_F(RemoteMount, RejectsUrlWithUserWithoutShowingPassword) {
  std::string with_user = url();
  with_user.insert(with_user.find("//") + 2, "me:secret@");

  const Outcome result = refused(with_user);

  expect_refusal(result, 3, "name them in ~/.netrc");
  EXPECT_EQ(result.err.find("secret"), std::string::npos) << result.err;
}

TEST_F(RemoteMount, EscapesControlCharactersOfServersAndUsers) {
  const Outcome in_url = refused(server_.url("/\x1b[31m.safetensors"));
  const std::string redirect = "\x1b[31mred";
  server_.set([&](const WebRequest&) {
    return WebAnswer{.status = 206,
                     .headers = {{"ETag", "\"v\""},
                                 {"Content-Range", "bytes 0-3/4"},
                                 {"Content-Encoding", redirect}},
                     .body = "abcd"};
  });
  const Outcome in_header = refused(url());

  for (const Outcome& result : {in_url, in_header}) {
    expect_refusal(result, 3, "\\x1b[31m");
    EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << result.err;
  }
}

// mount(8) calls its helper for a line of fstab(5) without PATH, so stfs must be in a system
// directory. A mount namespace puts it there.
TEST_F(RemoteMount, MountsFromFstab) {
  if (::geteuid() != 0) GTEST_SKIP() << "mount(8) needs root";
  if (::access("/sbin/mount.fuse3", X_OK) != 0) GTEST_SKIP() << "no mount.fuse3";
  std::filesystem::create_directories(dir_ / "mnt");
  const std::string mountpoint = (dir_ / "mnt").string();
  for (const char* query : {"", "?a=b&c=%20d"}) {
    write_file(dir_ / "fstab", url() + query + " " + mountpoint +
                                   " fuse.stfs _netdev,nofail,timeout=20,cache_dir=" +
                                   (dir_ / "cache").string() + " 0 0\n");

    const Outcome result =
        run({"unshare", "-m", "/bin/bash", "-c",
             "mount -t tmpfs none /usr/local/bin && ln -s '" STFS_BINARY
             "' /usr/local/bin/stfs || exit 99\n"
             "trap 'umount -l \"$2\" 2>/dev/null' EXIT\n"
             "mount -T \"$1\" \"$2\" && findmnt -no SOURCE \"$2\" && cat \"$2/w\" | cksum",
             "sh", dir_ / "fstab", mountpoint});

    if (result.status == 99) GTEST_SKIP() << "no mount namespaces";
    EXPECT_EQ(result.status, 0) << result.err;
    write_file(dir_ / "w", tensors_[0].bytes);
    EXPECT_EQ(result.out, url() + "\n" + sh("cksum <\"$1\"", {dir_ / "w"}).out);
    EXPECT_EQ(server_.requests().back().target, "/m.safetensors" + std::string(query));
  }
}

}  // namespace
}  // namespace stfs::test
