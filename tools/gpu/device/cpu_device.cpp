// Host memory as a device: a segment is a memfd, which is sealed when it is published, and a tile
// is a part of the segment.
#include "core/base/error.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/host_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

namespace stfs::gpu {
namespace {

[[noreturn]] void cpu_failed(const std::string& what, int error) {
  throw_errno(ErrorCode::kDeviceFailed, "cpu", what, error);
}

// Returns "" if the file does not exist. Other errors must fail, because the word identifies the
// device.
std::string first_word(const char* path) {
  std::ifstream file(path);
  if (!file && errno != ENOENT) cpu_failed(path, errno);
  std::string word;
  file >> word;
  return word;
}

// A mapping of a memfd.
class Mapped {
 public:
  Mapped(int fd, std::uint64_t bytes, int protection) : bytes_(bytes) {
    // Map privately for reading, because kernels before 6.7 refuse a shared mapping of a memfd that
    // is sealed with F_SEAL_WRITE.
    const int sharing = (protection & PROT_WRITE) != 0 ? MAP_SHARED : MAP_PRIVATE;
    void* data = ::mmap(nullptr, bytes, protection, sharing, fd, 0);
    if (data == MAP_FAILED) cpu_failed("mmap", errno);
    data_ = static_cast<std::byte*>(data);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(data_, bytes_); }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_;
};

class CpuSegment : public DeviceSegment {
 public:
  explicit CpuSegment(std::uint64_t bytes)
      : bytes_(bytes), fd_(::memfd_create("stfs-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (!fd_ || ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) cpu_failed("memfd", errno);
    mapped_ = std::make_unique<Mapped>(fd_.get(), bytes, PROT_READ | PROT_WRITE);
    // Ask for huge pages; /sys/kernel/mm/transparent_hugepage/shmem_enabled decides.
    ::madvise(mapped_->data(), bytes, MADV_HUGEPAGE);
  }

  std::uint64_t bytes() const override { return bytes_; }
  std::byte* data() const { return mapped_->data(); }

  UniqueFd publish() override {
    mapped_.reset();  // F_SEAL_WRITE fails while a writable mapping exists
    if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) !=
        0) {
      cpu_failed("sealing", errno);
    }
    return std::move(fd_);
  }

 private:
  std::uint64_t bytes_;
  UniqueFd fd_;
  std::unique_ptr<Mapped> mapped_;
};

CpuSegment& own(DeviceSegment& segment) { return static_cast<CpuSegment&>(segment); }

class CpuLane : public Lane {
 public:
  std::span<std::byte> tile(DeviceSegment& segment, std::uint64_t offset,
                            std::size_t length) override {
    return {own(segment).data() + offset, length};
  }
  void send() override {}
  std::span<std::byte> raw_tile(DeviceSegment&, std::uint64_t, std::size_t) override {
    throw Error(ErrorCode::kDeviceFailed, "cpu", "no conversion on this device");
  }
  void send_converted(DType, DType, std::uint64_t, ConversionCounts&) override {}
  void read_ahead(DeviceSegment& segment, std::uint64_t offset, std::size_t length) override {
    reads_.emplace_back(own(segment).data() + offset, length);
  }
  std::span<const std::byte> read_back() override {
    const std::span<const std::byte> bytes = reads_.front();
    reads_.pop_front();
    return bytes;
  }
  void drain() override { reads_.clear(); }

 private:
  std::deque<std::span<const std::byte>> reads_;
};

class CpuDevice : public Device {
 public:
  DeviceInfo info() const override { return cpu_info(); }
  bool converts() const override { return false; }
  // The processors do the copying, so use all of them, up to eight.
  unsigned default_workers() const override {
    return std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  }

  std::unique_ptr<DeviceSegment> allocate(std::uint64_t bytes) override {
    return std::make_unique<CpuSegment>(bytes);
  }

  std::unique_ptr<Lane> lane(std::size_t) override { return std::make_unique<CpuLane>(); }
};

class MappedCpuSegment : public MappedSegment {
 public:
  MappedCpuSegment(int fd, std::uint64_t bytes) : mapped_(std::in_place, fd, bytes, PROT_READ) {}

  bool unmap() noexcept override {
    mapped_.reset();
    return true;
  }
  std::uint64_t address() const override {
    return reinterpret_cast<std::uintptr_t>(mapped_->data());
  }

 private:
  std::optional<Mapped> mapped_;
};

}  // namespace

DeviceInfo cpu_info() {
  const HostMemory memory = host_memory();
  return {.id = "cpu",
          .name = "host memory",
          .uuid = "CPU-" + first_word("/proc/sys/kernel/random/boot_id"),
          .pci = "",
          .total_bytes = memory.total,
          .free_bytes = memory.available};
}

std::unique_ptr<Device> open_cpu() { return std::make_unique<CpuDevice>(); }

std::unique_ptr<MappedSegment> map_cpu_segment(int fd, std::uint64_t bytes) {
  // Reading past the end of the file would raise SIGBUS.
  const struct stat status = stat_of(fd, "segment");
  if (static_cast<std::uint64_t>(status.st_size) < bytes)
    cpu_failed("the segment is shorter than stated", EINVAL);
  return std::make_unique<MappedCpuSegment>(fd, bytes);
}

}  // namespace stfs::gpu
