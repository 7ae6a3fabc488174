// The state of the fake driver: devices, memory, streams. fake_driver.h describes its settings;
// fake_driver.cpp, fake_memory.cpp and fake_streams.cpp have the functions of the driver.
//
// Thread safety: Machine::mutex guards all of it. Lifetime: the machine outlives every thread.
#pragma once

#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu::test::fake {

inline constexpr std::size_t kGranularity = 2 << 20;
inline constexpr const char* kMemoryName = "stfs_fake_cuda";
inline constexpr int kGarbage = 0xa5;  // each byte of new memory

// --- resources

// Memory that operations of streams may use.
struct Region {
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  virtual ~Region() = default;

  std::uint64_t address = 0;
  std::size_t size = 0;
  int pending = 0;  // queued operations that use it
};

// Device memory, mapped into this process.
struct Allocation {
  Allocation(int descriptor, std::size_t bytes, int device)
      : fd(descriptor), size(bytes), hardware(device) {
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) shadow = static_cast<std::byte*>(mapped);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() {
    if (shadow != nullptr) munmap(shadow, size);
    close(fd);
  }

  int fd;  // open, so that Machine::used() in other processes finds it
  std::size_t size;
  int hardware;
  std::byte* shadow = nullptr;
};

// A reserved address range that the host cannot touch (PROT_NONE).
class Addresses {
 public:
  explicit Addresses(std::size_t size) : size_(size + kGranularity) {
    base_ = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() { munmap(base_, size_); }

  std::uint64_t begin() const {
    return (reinterpret_cast<std::uint64_t>(base_) + kGranularity - 1) / kGranularity *
           kGranularity;
  }

 private:
  void* base_;
  std::size_t size_;
};

// A range that the device can address: a mapped allocation, or memory from cuMemAlloc.
struct DeviceRange : Region {
  std::shared_ptr<Allocation> allocation;
  std::map<int, CUmemAccess_flags> access;  // by ordinal
};

struct LinearMemory : DeviceRange {
  std::unique_ptr<Addresses> addresses;
};

struct Pinned : Region {
  ~Pinned() override { std::free(reinterpret_cast<void*>(address)); }
};

struct Reservation {
  std::unique_ptr<Addresses> addresses;
  std::size_t size = 0;
};

struct Context {
  int ordinal = 0;
  int retained = 0;
  int memory = -1;  // descriptor of the device memory that the context itself takes
};

struct Operation {
  std::function<void()> run;
  std::vector<std::shared_ptr<Region>> touches;
  bool reads_back = false;  // copies to the host
  bool may_run_early = false;
};

// --- settings

struct Failure {
  std::size_t call = 0;
  CUresult error = CUDA_ERROR_UNKNOWN;
};

enum class Late { kAlways, kRandom, kNever };

// Removes a version suffix: cuMemFree_v2 becomes cuMemFree.
std::string plain_name(const std::string& function);

// A unit with its own memory: a GPU, or with STFS_FAKE_CUDA_MIG an instance of a GPU.
struct Hardware {
  int gpu = 0;
  int instance = -1;  // the MIG instance; -1: the whole GPU

  CUuuid uuid() const;      // the instance's UUID, if this is an instance
  CUuuid gpu_uuid() const;  // the UUID of the GPU
  std::string uuid_text() const;
  std::string name() const;
};

// The settings in the environment (fake_driver.h).
struct Settings {
  Settings();

  std::vector<Hardware> hardware;    // also contains invisible devices
  std::vector<int> visible_devices;  // index of each ordinal in `hardware`
  std::size_t memory = 0;
  std::size_t hidden = 0;
  std::size_t context = 0;
  std::size_t lag = 0;
  std::string space;
  Late late = Late::kRandom;
  std::multimap<std::string, Failure> failures;
  Failure fault;
  std::size_t granularity = kGranularity;
  bool knows_read_only = true;
  bool has_code = true;
  int compute_mode = 0;
};

// --- streams

class Machine;

// Runs operations in order on its own thread.
class StreamThread {
 public:
  StreamThread(Machine& machine, Context& context, std::uint64_t number, bool is_blocking);
  ~StreamThread();

  Context& context() { return context_; }
  std::uint64_t given() const { return given_; }
  void give(Operation operation);
  // Waits until `position` operations are done.
  void demand(std::unique_lock<std::mutex>& lock, std::uint64_t position);

  const bool is_blocking;     // it and the default stream wait for each other
  bool is_capturing = false;  // a graph capture is active
  bool is_invalidated = false;

 private:
  void work();

  Machine& machine_;
  Context& context_;
  std::uint64_t random_;  // state of the generator that decides which operations run early
  std::deque<Operation> queue_;
  std::uint64_t given_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t demanded_ = 0;
  bool is_ending_ = false;
  std::condition_variable changed_;
  std::thread thread_;
};

struct RecordedEvent {
  bool is_blocking_wait = false;
  std::shared_ptr<StreamThread> stream = {};  // null: never recorded
  std::uint64_t position = 0;
};

// --- the driver's state

class Machine {
 public:
  std::mutex mutex;
  Settings settings;
  bool is_initialized = false;
  bool has_had_context = false;
  CUresult fault = CUDA_SUCCESS;  // sticky: every later call in the process fails with it
  std::map<std::string, std::size_t> calls;
  std::size_t operations = 0;
  std::size_t spinning_waits = 0;
  std::size_t reads_back = 0;  // queued copies to the host
  std::size_t peak_reads_back = 0;
  std::vector<std::string> misuses;

  std::map<int, Context> contexts;  // by ordinal; never erased
  std::uint64_t next_handle = 1;
  std::map<std::uint64_t, std::shared_ptr<Allocation>> handles;
  std::map<std::uint64_t, Reservation> reservations;               // by address
  std::map<std::uint64_t, std::shared_ptr<DeviceRange>> mappings;  // by address
  std::map<std::uint64_t, std::shared_ptr<LinearMemory>> linear;   // by address
  std::map<std::uint64_t, std::shared_ptr<Pinned>> pinned;         // by address
  std::size_t pinned_bytes = 0;
  std::map<std::uint64_t, std::shared_ptr<StreamThread>> streams;
  std::map<int, std::shared_ptr<StreamThread>> default_streams;  // by ordinal
  std::map<std::uint64_t, RecordedEvent> events;
  std::set<std::uint64_t> modules;
  int pushed = 0;  // number of pushed contexts on all threads

  void misuse(const std::string& what) { misuses.push_back("misuse: " + what); }

  // Returns leaks and misuse. After a fault nothing counts as leaked, because no call can free
  // anything.
  std::string report() const;

  // After a fault, drops all resources and clears the fault, as a new process would.
  void forget_fault(std::unique_lock<std::mutex>& lock);

  // Returns the bytes of a device that are in use, without the hidden bytes. With
  // STFS_FAKE_CUDA_LAG, memory that other processes freed counts for a while longer.
  std::size_t used(int hardware);

  std::string memory_name(int hardware) const {
    return std::string(kMemoryName) + "." + settings.space + "." + std::to_string(hardware);
  }
  int hardware_of(int ordinal) const {
    return settings.visible_devices[static_cast<std::size_t>(ordinal)];
  }

  bool has_room(int hardware, std::size_t size);

  // Returns a descriptor of new device memory, or -1 if there is not enough.
  int take(int hardware, std::size_t size);

  // Returns new device memory filled with garbage, or null if there is not enough.
  std::shared_ptr<Allocation> allocate(int ordinal, std::size_t size);

  // Returns the range that contains [address, address + size), or null if no range does or the
  // device may not access it.
  std::shared_ptr<DeviceRange> range_at(std::uint64_t address, std::size_t size, int ordinal,
                                        bool to_write) const;
  std::shared_ptr<Pinned> pinned_at(const void* host, std::size_t size) const;

  // Called before a region is freed. If a stream still uses it, records the misuse and causes a
  // fault, because on a GPU the context would be dead.
  void must_be_idle(const Region& region, const char* function);

 private:
  std::map<int, std::size_t> others_used_;  // bytes last reported, by hardware
  std::size_t checks_left_ = 0;             // until the current number is reported
};

Machine& machine();

// Returns the contexts that this thread has pushed. The last is the current context.
std::vector<Context*>& current_contexts();

// --- the beginning of every function

// Counts a call. Returns the error that the settings choose for it, or the fault of the process.
CUresult begin(const char* function);

bool is_device(const Machine& m, int ordinal);

// Returns the stream of a handle. The null handle is the context's default stream.
std::shared_ptr<StreamThread> stream_of(Machine& m, Context& context, CUstream handle);

inline std::byte* host_bytes(const DeviceRange& range, std::uint64_t address) {
  return range.allocation->shadow + (address - range.address);
}

template <class T>
T as_handle(std::uint64_t number) {
  return reinterpret_cast<T>(number);
}

}  // namespace stfs::gpu::test::fake

#define STFS_FAKE_TEXT_OF(text) #text
#define STFS_FAKE_TEXT(name) STFS_FAKE_TEXT_OF(name)

// For functions that allocate or act: an error prevents any effect.
#define BEGIN(name)               \
  Machine& m = machine();         \
  std::unique_lock lock(m.mutex); \
  if (const CUresult result = begin(STFS_FAKE_TEXT(name)); result != CUDA_SUCCESS) return result

#define BEGIN_IN_CONTEXT(name)                                       \
  BEGIN(name);                                                       \
  if (current_contexts().empty()) return CUDA_ERROR_INVALID_CONTEXT; \
  [[maybe_unused]] Context& context = *current_contexts().back()

// For functions that free: they free even if the settings choose an error for them, but not after a
// fault.
#define BEGIN_GIVING_BACK(name)                        \
  Machine& m = machine();                              \
  std::unique_lock lock(m.mutex);                      \
  const CUresult answer = begin(STFS_FAKE_TEXT(name)); \
  if (m.fault != CUDA_SUCCESS) return m.fault
