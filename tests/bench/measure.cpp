// The timed loops of the benchmarks, in C++ so that they contain no time of an interpreter.
//
//   stfs_bench_measure VERB [--block BYTES] [--count N] [--readers N] [--direct]
//
// Standard input has one line per range: OFFSET LENGTH PATH. Prints one number.
//
//   read      nanoseconds to open each range's file, read the range in blocks, and close it
//   random    nanoseconds for --count reads of --block bytes at random offsets in the ranges
//   map       nanoseconds to map each range and add up all its bytes
//   tmpfs     nanoseconds to read the ranges and write them into a file in memory
//   open      nanoseconds to open each file, read --block bytes from its start, and close it
//   walk      nanoseconds of nlohmann's SAX parser over the headers of the files, which are whole
//             safetensors files and are read into memory first
//   drop      drops the cached pages of the files; prints 0
//   resident  bytes of the pages of the ranges that are in the page cache
//
// tests/bench/bench.py runs it.
#include "core/base/posix.h"
#include "tests/bench/walk.h"

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <vector>

namespace stfs {
namespace {

struct Range {
  std::uint64_t offset;
  std::uint64_t length;
  std::string path;
};

struct Options {
  std::string verb;
  std::uint64_t block = 1 << 20;
  std::uint64_t count = 0;
  unsigned readers = 1;
  bool direct = false;
};

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

std::vector<Range> read_list() {
  std::vector<Range> ranges;
  for (Range range; std::cin >> range.offset >> range.length && std::cin.get() == ' ' &&
                    std::getline(std::cin, range.path);) {
    ranges.push_back(range);
  }
  return ranges;
}

UniqueFd open_file(const std::string& path, int flags = 0) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (!fd) fail(path, errno);
  return fd;
}

// Memory without page faults, aligned for O_DIRECT.
class Buffer {
 public:
  explicit Buffer(std::uint64_t size)
      : size_(size),
        data_(static_cast<char*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096)),
              &std::free) {
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 1, size);
  }
  char* data() { return data_.get(); }
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_;
  std::unique_ptr<char, decltype(&std::free)> data_;
};

// Calls `use` with each block of a range, in order.
template <class Use>
void read_range(const Range& range, Buffer& buffer, int flags, const Use& use) {
  const UniqueFd fd = open_file(range.path, flags);
  for (std::uint64_t done = 0; done < range.length;) {
    // Reads whole blocks with O_DIRECT. The last read is short at the end of the file.
    const std::uint64_t wanted =
        flags != 0 ? buffer.size() : std::min(buffer.size(), range.length - done);
    const ssize_t n =
        ::pread(fd.get(), buffer.data(), wanted, static_cast<off_t>(range.offset + done));
    if (n <= 0) fail(range.path, n < 0 ? errno : EIO);
    use(static_cast<std::size_t>(n));
    done += static_cast<std::uint64_t>(n);
  }
}

std::uint64_t nanoseconds_of(const auto& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  const auto end = std::chrono::steady_clock::now();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(end - begin).count());
}

std::uint64_t read_all(const std::vector<Range>& ranges, const Options& options) {
  std::vector<Buffer> buffers;
  for (unsigned i = 0; i < options.readers; ++i) buffers.emplace_back(options.block);
  std::atomic<std::size_t> next = 0;
  return nanoseconds_of([&] {
    on_threads(options.readers, [&](std::size_t reader) {
      for (std::size_t i = 0; (i = next++) < ranges.size();) {
        read_range(ranges[i], buffers[reader], options.direct ? O_DIRECT : 0, [](std::size_t) {});
      }
    });
  });
}

std::uint64_t read_random(const std::vector<Range>& ranges, const Options& options) {
  struct Block {
    int fd;
    off_t offset;
  };
  std::vector<UniqueFd> files;
  std::vector<std::uint64_t> ends;  // cumulative lengths of the ranges that contain a block
  std::vector<const Range*> used;
  for (const Range& range : ranges) {
    if (range.length < options.block) continue;
    files.push_back(open_file(range.path));
    ends.push_back((ends.empty() ? 0 : ends.back()) + range.length - options.block + 1);
    used.push_back(&range);
  }
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::uint64_t> anywhere(0, ends.back() - 1);
  std::vector<Block> blocks;
  for (std::uint64_t i = 0; i < options.count; ++i) {
    const std::uint64_t at = anywhere(random);
    const auto which = static_cast<std::size_t>(std::ranges::upper_bound(ends, at) - ends.begin());
    const std::uint64_t begin = which == 0 ? 0 : ends[which - 1];
    blocks.push_back({files[which].get(), static_cast<off_t>(used[which]->offset + at - begin)});
  }
  Buffer buffer(options.block);
  return nanoseconds_of([&] {
    for (const Block& block : blocks) {
      if (::pread(block.fd, buffer.data(), buffer.size(), block.offset) !=
          static_cast<ssize_t>(buffer.size())) {
        fail("pread", errno);
      }
    }
  });
}

// A mapped range.
class MappedRange {
 public:
  explicit MappedRange(const Range& range) : skip_(range.offset % 4096), length_(range.length) {
    const UniqueFd fd = open_file(range.path);
    data_ = ::mmap(nullptr, skip_ + length_, PROT_READ, MAP_SHARED, fd.get(),
                   static_cast<off_t>(range.offset - skip_));
    if (data_ == MAP_FAILED) fail(range.path, errno);
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange() { ::munmap(data_, skip_ + length_); }

  std::uint64_t sum() const {
    const char* begin = static_cast<const char*>(data_) + skip_;
    std::uint64_t total = 0;
    for (std::uint64_t at = 0; at + 8 <= length_; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, begin + at, 8);
      total += word;
    }
    return total;
  }
  std::uint64_t resident() const {
    const std::uint64_t pages = (skip_ + length_ + 4095) / 4096;
    std::vector<unsigned char> states(pages);
    if (::mincore(data_, skip_ + length_, states.data()) != 0) fail("mincore", errno);
    return 4096 * static_cast<std::uint64_t>(
                      std::ranges::count_if(states, [](auto s) { return (s & 1) != 0; }));
  }

 private:
  void* data_ = nullptr;
  std::uint64_t skip_;
  std::uint64_t length_;
};

std::uint64_t map_all(const std::vector<Range>& ranges) {
  volatile std::uint64_t total = 0;  // volatile, so that the compiler keeps the loop
  return nanoseconds_of([&] {
    for (const Range& range : ranges) {
      if (range.length > 0) total = total + MappedRange(range).sum();
    }
  });
}

std::uint64_t copy_to_tmpfs(const std::vector<Range>& ranges, const Options& options) {
  const UniqueFd memory(::memfd_create("copy", MFD_CLOEXEC));
  if (!memory) fail("memfd_create", errno);
  Buffer buffer(options.block);
  return nanoseconds_of([&] {
    for (const Range& range : ranges) {
      read_range(range, buffer, 0, [&](std::size_t n) {
        if (::write(memory.get(), buffer.data(), n) != static_cast<ssize_t>(n)) {
          fail("write", errno);
        }
      });
    }
  });
}

std::uint64_t open_all(const std::vector<Range>& ranges, const Options& options) {
  Buffer buffer(options.block);
  return nanoseconds_of([&] {
    for (const Range& range : ranges) {
      const UniqueFd fd = open_file(range.path);
      if (::pread(fd.get(), buffer.data(), buffer.size(), 0) < 0) fail(range.path, errno);
    }
  });
}

std::uint64_t walk_headers(const std::vector<Range>& ranges) {
  std::uint64_t time = 0;
  for (const Range& range : ranges) {
    const UniqueFd fd = open_file(range.path);
    std::uint64_t length = 0;
    const auto into = [](auto& value) { return std::as_writable_bytes(std::span(&value, 1)); };
    if (const int error = pread_exact(fd.get(), into(length), 0)) fail(range.path, error);
    const auto text = std::make_unique_for_overwrite<char[]>(length);
    const std::span<char> json(text.get(), length);
    if (const int error = pread_exact(fd.get(), std::as_writable_bytes(json), 8)) {
      fail(range.path, error);
    }
    bool is_json = false;
    time += nanoseconds_of([&] { is_json = bench::walk({json.data(), json.size()}); });
    if (!is_json) fail(range.path, EINVAL);
  }
  return time;
}

std::uint64_t drop(const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    const int error = ::posix_fadvise(open_file(range.path).get(), 0, 0, POSIX_FADV_DONTNEED);
    if (error != 0) fail(range.path, error);
  }
  return 0;
}

std::uint64_t resident(const std::vector<Range>& ranges) {
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) {
    if (range.length > 0) bytes += MappedRange(range).resident();
  }
  return bytes;
}

int run(int argc, char** argv) {
  CLI::App app("The timed loops of the benchmarks; the ranges come on standard input");
  Options options;
  app.add_option("VERB", options.verb)
      ->required()
      ->check(
          CLI::IsMember({"read", "random", "map", "tmpfs", "open", "walk", "drop", "resident"}));
  app.add_option("--block", options.block, "bytes of each read");
  app.add_option("--count", options.count, "random reads");
  app.add_option("--readers", options.readers, "threads that share the ranges");
  app.add_flag("--direct", options.direct, "O_DIRECT");
  CLI11_PARSE(app, argc, argv);

  const std::vector<Range> ranges = read_list();
  if (ranges.empty()) throw std::runtime_error("no ranges on standard input");
  const std::uint64_t result = options.verb == "read"     ? read_all(ranges, options)
                               : options.verb == "random" ? read_random(ranges, options)
                               : options.verb == "map"    ? map_all(ranges)
                               : options.verb == "tmpfs"  ? copy_to_tmpfs(ranges, options)
                               : options.verb == "open"   ? open_all(ranges, options)
                               : options.verb == "walk"   ? walk_headers(ranges)
                               : options.verb == "drop"   ? drop(ranges)
                                                          : resident(ranges);
  std::printf("%llu\n", static_cast<unsigned long long>(result));
  return 0;
}

}  // namespace
}  // namespace stfs

int main(int argc, char** argv) {
  try {
    return stfs::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stfs_bench_measure: %s\n", error.what());
    return 1;
  }
}
