// Readers that are killed during reads, statistics and digests leak no descriptor, memory, thread
// or looked-up name.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/daemon_figures.h"
#include "tests/support/long_tests.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

class InterruptedReaders : public MountTest {};

TEST_F(InterruptedReaders, LeakNothing) {
  const TempDir dir;
  // A sparse file that is large enough for a reader to be killed during its read, and needs no disk
  // space.
  const std::string header =
      R"({"w":{"dtype":"BF16","shape":[4096,65536],"data_offsets":[0,536870912]}})";
  write_file(dir / "m.safetensors", safetensors_bytes(header, ""));
  std::filesystem::resize_file(dir / "m.safetensors", 8 + header.size() + 536'870'912);
  const Mounted mount({dir / "m.safetensors"});
  const std::string root = mount.path();
  const auto round = [&](std::uint64_t number) {
    const std::string paths[] = {root + "/w",
                                 root + "/.stfs/stats/w.json",
                                 root + "/.stfs/sha256/w",
                                 root + "/.stfs/f32/w",
                                 root + "/.stfs/slice/w/:,::" + std::to_string(2 + number % 1000),
                                 root + "/.stfs/merged.safetensors"};
    const std::string& path = paths[number % std::size(paths)];
    int started[2];
    ASSERT_EQ(::pipe2(started, O_CLOEXEC), 0);
    const pid_t reader = ::fork();
    if (reader == 0) {  // async-signal-safe calls only
      static char buffer[1 << 20];
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (::write(started[1], "x", 1) != 1 || fd < 0) ::_exit(1);
      for (;;) {
        if (::read(fd, buffer, sizeof buffer) <= 0 && ::lseek(fd, 0, SEEK_SET) < 0) ::_exit(1);
      }
    }
    char byte = 0;
    EXPECT_EQ(::read(started[0], &byte, 1), 1);
    ::kill(reader, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(reader, &status, 0), reader);
    EXPECT_TRUE(WIFSIGNALED(status)) << path;
    ::close(started[0]);
    ::close(started[1]);
  };
  for (std::uint64_t i = 0; i < 60; ++i) round(i);  // creates threads and buffers that are kept
  const pid_t daemon = mount.daemon();
  const DaemonFigures before(daemon);

  for (std::uint64_t i = 0; i < long_or(10'000, 120) && !HasFailure(); ++i) round(i);

  EXPECT_TRUE(eventually([&] { return DaemonFigures(daemon).descriptors <= before.descriptors; }));
  EXPECT_TRUE(eventually([&] { return DaemonFigures(daemon).threads <= before.threads + 8; }))
      << DaemonFigures(daemon).threads << " threads, before " << before.threads;
#ifndef STFS_SANITIZED
  EXPECT_LT(DaemonFigures(daemon).resident, before.resident + (48 << 20));
#endif
  EXPECT_EQ(names_in(root), std::vector<std::string>{"w"});
  EXPECT_EQ(run({STFS_BINARY, "-u", root}).status, 0);
}

// Returns a file with two compressed arrays. Reading the last byte of one decompresses all of it.
std::string slow_arrays(std::uint64_t mebibytes) {
  using std::string_literals::operator""s;
  std::string header =
      "\x93NUMPY\x01\x00v\x00{'descr': '|u1', 'fortran_order': False, 'shape': ("s +
      std::to_string((mebibytes << 20) - 128) + ",), }";
  header.resize(127, ' ');
  const std::string zeros(1 << 20, '\0');
  // Returns a block that ends at a byte boundary and refers to no earlier block.
  const auto deflated = [](const std::string& bytes) {
    z_stream stream{};
    EXPECT_EQ(::deflateInit2(&stream, 9, Z_DEFLATED, -15, 9, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(::deflateBound(&stream, bytes.size()) + 64, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(::deflate(&stream, Z_FULL_FLUSH), Z_OK);
    out.resize(out.size() - stream.avail_out);
    ::deflateEnd(&stream);
    return out;
  };
  std::string first = header + "\n" + zeros;
  first.resize(1 << 20);
  std::string data = deflated(first);
  const std::string more = deflated(zeros);
  auto crc = static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(first.data()), static_cast<uInt>(first.size())));
  const auto crc_of_zeros =
      ::crc32(0, reinterpret_cast<const Bytef*>(zeros.data()), static_cast<uInt>(zeros.size()));
  for (std::uint64_t i = 1; i < mebibytes; ++i) {
    data += more;
    crc = static_cast<std::uint32_t>(::crc32_combine(crc, crc_of_zeros, 1 << 20));
  }
  data += std::string("\x03\x00", 2);  // an empty last block
  const auto number = [](std::uint64_t value, int bytes) {
    std::string out;
    for (; bytes > 0; --bytes, value >>= 8U) out += static_cast<char>(value & 0xFF);
    return out;
  };
  std::string file, directory;
  for (const std::string name : {"a.npy", "b.npy"}) {
    const std::string both = number(20, 2) + number(0, 2) + number(8, 2) + number(0, 4) +
                             number(crc, 4) + number(data.size(), 4) + number(mebibytes << 20, 4) +
                             number(name.size(), 2) + number(0, 2);
    directory += "PK\x01\x02" + number(20, 2) + both + number(0, 2 + 2 + 2 + 4) +
                 number(file.size(), 4) + name;
    file += "PK\x03\x04" + both + name + data;
  }
  return file + directory + "PK\x05\x06" + number(0, 4) + number(2, 2) + number(2, 2) +
         number(directory.size(), 4) + number(file.size(), 4) + number(0, 2);
}

// Returns the processor time of a process, in ticks.
std::uint64_t ticks_of(pid_t pid) {
  std::istringstream rest(read_file("/proc/" + std::to_string(pid) + "/stat"));
  std::uint64_t user = 0, system = 0;
  std::string word;
  rest.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  for (int field = 3; field < 14; ++field) rest >> word;
  rest >> user >> system;
  return user + system;
}

// The kernel reports the interruption of a reader only if the read does not use its cache.
TEST_F(InterruptedReaders, InterruptionEndsComputation) {
  const TempDir dir;
  write_file(dir / "m.npz", slow_arrays(1000));
  const Mounted mount({dir / "m.npz"}, {"-o", "page_cache=direct"});
  const pid_t daemon = mount.daemon();
  const auto reader_of = [&](const char* name) {
    return std::vector<std::string>{"/usr/bin/tail", "-c", "1", mount / name};
  };
  const std::uint64_t before = ticks_of(daemon);
  ASSERT_EQ(run(reader_of("a")).status, 0);
  const std::uint64_t whole = ticks_of(daemon) - before;
  ASSERT_GT(whole, 20U) << "the computation is too fast";

  Process reader(reader_of("b"));
  EXPECT_TRUE(eventually([&] { return ticks_of(daemon) > before + whole + whole / 20; }));
  reader.signal(SIGKILL);
  reader.wait();

  EXPECT_LT(ticks_of(daemon) - before, whole + whole / 2);
  std::string beginning;
  EXPECT_EQ(read_range(mount / "b", 0, 4096, beginning), 0) << "others are served";
}

// No thread waits for a read that was started by io_submit(2).
TEST_F(InterruptedReaders, SubmitterOfAsyncReadMayExitBeforeReply) {
  const TempDir dir;
  write_file(dir / "m.npz", slow_arrays(600));
  const Mounted mount({dir / "m.npz"});
  const int fd = ::open((mount / "a").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  constexpr std::size_t kBytes = 65'536;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, kBytes),
                                                           &std::free);
  std::memset(buffer.get(), 1, kBytes);
  aio_context_t context = 0;
  ASSERT_EQ(::syscall(SYS_io_setup, 4, &context), 0);
  iocb read{};
  read.aio_lio_opcode = IOCB_CMD_PREAD;
  read.aio_fildes = static_cast<std::uint32_t>(fd);
  read.aio_buf = reinterpret_cast<std::uintptr_t>(buffer.get());
  read.aio_nbytes = kBytes;
  read.aio_offset = 599LL << 20;
  iocb* reads = &read;

  long submitted = 0;
  std::thread([&] { submitted = ::syscall(SYS_io_submit, context, 1, &reads); }).join();
  ASSERT_EQ(submitted, 1);
  io_event event{};
  EXPECT_EQ(::syscall(SYS_io_getevents, context, 1, 1, &event, nullptr), 1);

  EXPECT_EQ(event.res, static_cast<std::int64_t>(kBytes));
  EXPECT_EQ(static_cast<const char*>(buffer.get())[kBytes - 1], '\0');
  ::syscall(SYS_io_destroy, context);
  ::close(fd);
}

// libfuse keeps the interrupt of an answered request until the next request. LeakSanitizer detects
// the last such interrupt.
TEST_F(InterruptedReaders, LateInterruptLeaksNothing) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "U8", {100'000})});
  const std::filesystem::path mountpoint = dir / "mnt";
  std::filesystem::create_directory(mountpoint);
  std::vector<std::string> environment = sanitizer_options("verify_asan_link_order=0");
  environment.push_back("LD_PRELOAD=" STFS_LATE_INTERRUPTS);
  Process process({STFS_BINARY, "-f", "-o", "threads=1", dir / "m.safetensors", mountpoint},
                  {.environment = environment});
  ASSERT_TRUE(eventually([&] { return !mounts_at(mountpoint).empty(); }));
  EXPECT_EQ(read_file(mountpoint / "w").size(), 100'000u);
  process.signal(SIGTERM);
  const Outcome result = process.wait();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace stfs::test
