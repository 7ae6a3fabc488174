// Valid and nearly valid headers that are as expensive as possible. Memory stays a small multiple
// of the header's size, and every thread needs at most 256 KiB of stack.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

// Returns a field of /proc/PID/status, in bytes.
[[maybe_unused]] std::uint64_t status_of(pid_t pid, const std::string& field) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t at = status.find(field + ":");
  if (at == std::string::npos) return 0;
  return std::strtoull(status.c_str() + at + field.size() + 1, nullptr, 10) << 10;
}

// Returns about `bytes` bytes of `item(0)`, `item(1)`, ..., with commas between them.
std::string filled(std::size_t bytes, const std::function<std::string(std::size_t)>& item) {
  std::string text;
  for (std::size_t i = 0; text.size() < bytes; ++i) {
    if (i > 0) text += ',';
    text += item(i);
  }
  return text;
}

std::string in_hex(std::size_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "\"%zx\"", number);
  return text;
}

std::string tensor_of_a_byte(const std::string& name) {
  return "{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
}

struct Hostile {
  const char* name;
  bool is_legal;
  std::string (*header)(std::size_t bytes);
};

const Hostile kHostile[] = {
    {"MetadataWithManyKeys", true,
     [](std::size_t bytes) {
       return R"({"__metadata__":{)" +
              filled(bytes, [](std::size_t i) { return in_hex(i) + R"(:"")"; }) + "}," +
              tensor_of_a_byte("w").substr(1);
     }},
    {"UnknownFieldWithManyKeys", true,
     [](std::size_t bytes) {
       return R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{)" +
              filled(bytes, [](std::size_t i) { return in_hex(i) + ":0"; }) + "}}}";
     }},
    {"ManyUnknownFields", true,
     [](std::size_t bytes) {
       return R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],)" +
              filled(bytes, [](std::size_t i) { return in_hex(i) + ":0"; }) + "}}";
     }},
    {"NameWithManyDirectories", true,
     [](std::size_t bytes) {
       std::string name;
       while (name.size() < bytes) name += "a/";
       return tensor_of_a_byte(name + "w");
     }},
    {"NameWithControlCharacters", true,
     [](std::size_t bytes) {
       std::string name;
       while (name.size() < bytes) name += "\\u0001/";
       return tensor_of_a_byte(name + "w");
     }},
    {"ShapeWithManyDimensions", true,
     [](std::size_t bytes) {
       return R"({"w":{"dtype":"U8","data_offsets":[0,1],"shape":[)" +
              filled(bytes, [](std::size_t) { return "1"; }) + "]}}";
     }},
    {"ManyEmptyTensors", true,
     [](std::size_t bytes) {
       return "{" +
              filled(bytes, [](std::size_t i) { return in_hex(i) + R"(:["U8",[0],[0,0]])"; }) +
              R"(,"w":["U8",[1],[0,1]]})";
     }},
    {"NestedBrackets", false,
     [](std::size_t bytes) { return R"({"w":{"x":)" + std::string(bytes, '['); }},
    {"NumberWithManyDigits", false,
     [](std::size_t bytes) { return R"({"w":{"x":)" + std::string(bytes, '1') + "}}"; }},
    {"UnterminatedString", false,
     [](std::size_t bytes) { return "{\"" + std::string(bytes, 'a'); }},
};

class HostileHeader : public MountTest, public ::testing::WithParamInterface<Hostile> {
 protected:
  HostileHeader() {
    std::filesystem::create_directory(dir_ / "mnt");
    const std::string json = GetParam().header(long_or(99'000'000, 2'000'000));
    header_ = json.size();
    write_file(file(), safetensors_bytes(json, "x"));
  }
  ~HostileHeader() override { unmount_all(mountpoint()); }

  std::filesystem::path file() const { return dir_ / "m.safetensors"; }
  std::filesystem::path mountpoint() const { return dir_ / "mnt"; }

  // Mounts with 256 KiB of stack for each thread.
  Outcome mount() const {
    return sh(R"(ulimit -s 256; exec "$@")", {STFS_BINARY, file(), mountpoint()});
  }
  void expect_memory(std::uint64_t besides, std::uint64_t times, const char* when) const {
#ifndef STFS_SANITIZED  // a sanitizer uses memory of its own
    const std::vector<pid_t> daemon = processes_with(mountpoint());
    ASSERT_EQ(daemon.size(), 1u) << "the daemon has ended";
    const std::uint64_t most = status_of(daemon[0], "VmHWM");
    EXPECT_LT(most, besides + times * header_) << when << ": " << most / header_ << " times";
    if (long_tests()) {
      std::printf("%s, %s: %.1f times the header\n", GetParam().name, when,
                  static_cast<double>(most) / static_cast<double>(header_));
    }
#else
    (void)besides;
    (void)times;
    (void)when;
#endif
  }

  TempDir dir_;
  std::uint64_t header_ = 0;  // bytes
};

INSTANTIATE_TEST_SUITE_P(All, HostileHeader, ::testing::ValuesIn(kHostile),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(HostileHeader, TakesBoundedMemoryAndStack) {
  const Outcome mounted = mount();

  if (!GetParam().is_legal) {
    EXPECT_EQ(mounted.status, 1) << mounted.err;
    EXPECT_LT(mounted.err.size(), 1000u);
    EXPECT_TRUE(mounts_at(mountpoint()).empty());
    return;
  }
  ASSERT_EQ(mounted.status, 0) << mounted.err;
  expect_memory(24 << 20, 12, "mounted");
  EXPECT_FALSE(names_in(mountpoint()).empty());
  // Reads everything with 32 threads at once.
  const std::string control = mountpoint() / ".stfs";
  std::vector<std::thread> readers;
  for (int i = 0; i < 32; ++i) {
    readers.emplace_back([&, i] {
      const char* paths[] = {"info.json",          "tensors.json", "tensors.tsv",
                             "merged.safetensors", "json/w.json",  "safetensors/w.safetensors",
                             "slice/w/0",          "slice/w/..."};
      run({"timeout", "60", "dd", "if=" + control + "/" + paths[i % 8], "of=/dev/null", "bs=1M",
           "count=8", "status=none"});
      if (i < 8) {
        run({"timeout", "60", "getfattr", "-d", mountpoint() / "w"});
        run({"timeout", "60", "ls", "-U", control + "/metadata/."});
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  expect_memory(128 << 20, 20, "read");  // includes pending replies of 1 MiB
  run({"dd", "if=" + control + "/report.html", "of=/dev/null", "bs=1M", "status=none"});
  expect_memory(128 << 20, 20, "of all tensors");
#ifndef STFS_SANITIZED
  // The kernel reports the close of the report only after dd has ended.
  std::uint64_t left = 0;
  EXPECT_TRUE(eventually([&] {
    left = status_of(processes_with(mountpoint()).at(0), "RssAnon");
    return left < (32 << 20) + 12 * header_;
  })) << left
      << " bytes: the memory of the report was not released";
#endif
  EXPECT_EQ(run({STFS_BINARY, "-u", mountpoint()}).status, 0);
}

}  // namespace
}  // namespace stfs::test
