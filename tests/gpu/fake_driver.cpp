// A CUDA driver without a GPU: the functions of tools/gpu/device/driver.h, for tests. fake_driver.h
// has its settings.
//
// It is stricter than a real driver. The host faults when it touches a device address. Asynchronous
// operations run as late as possible, or at random times; a copy from pinned memory reads the
// memory only then. New memory contains garbage. Misuse, such as freeing memory that a stream still
// uses, is recorded for the test.
//
// Device memory is a memfd, so that a descriptor keeps it and other processes can map it.
#include "tests/gpu/fake_driver.h"

#include "tools/gpu/device/convert_element.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kGranularity = 2 << 20;
constexpr int kGarbage = 0xa5;
constexpr const char* kMemoryName = "stfs_fake_cuda";
constexpr std::size_t kStaged = 64 << 10;  // bytes that a "synchronous" copy may still copy later

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

  int fd;  // open, so that Machine::used() of other processes finds it
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

// A range that the device can address: a mapped allocation, or memory of cuMemAlloc.
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
  CUresult fault = CUDA_SUCCESS;  // sticky
};

struct Operation {
  std::function<void()> run;
  std::vector<std::shared_ptr<Region>> touches;
  bool may_run_early = false;
};

// --- settings

struct Failure {
  std::size_t call = 0;
  CUresult error = CUDA_ERROR_UNKNOWN;
};

enum class Late { kAlways, kRandom, kNever };

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Removes a version suffix: cuMemFree_v2 becomes cuMemFree.
std::string plain_name(const std::string& function) {
  const std::size_t version = function.rfind("_v");
  return version == std::string::npos ? function : function.substr(0, version);
}

struct Settings {
  Settings() {
    const int devices = std::stoi(variable("STFS_FAKE_CUDA_DEVICES", "1"));
    const std::string visible = variable("CUDA_VISIBLE_DEVICES", "all");
    if (visible == "all") {
      for (int hardware = 0; hardware < devices; ++hardware) visible_devices.push_back(hardware);
    } else {
      for (const std::string& hardware : split(visible, ','))
        if (std::stoi(hardware) < devices) visible_devices.push_back(std::stoi(hardware));
    }
    memory = std::stoull(variable("STFS_FAKE_CUDA_MEMORY", "1073741824"));
    space = variable("STFS_FAKE_CUDA_SPACE");
    const std::string lateness = variable("STFS_FAKE_CUDA_LATE");
    late = lateness == "always"  ? Late::kAlways
           : lateness == "never" ? Late::kNever
                                 : Late::kRandom;
    for (const std::string& rule : split(variable("STFS_FAKE_CUDA_FAIL"), ',')) {
      const std::vector<std::string> parts = split(rule, ':');
      Failure failure{std::stoull(parts.at(1)), CUDA_ERROR_UNKNOWN};
      if (parts.size() > 2) failure.error = static_cast<CUresult>(std::stoi(parts[2]));
      failures.emplace(plain_name(parts[0]), failure);
    }
    if (const auto parts = split(variable("STFS_FAKE_CUDA_FAULT"), ':'); !parts.empty()) {
      fault.call = std::stoull(parts[0]);
      fault.error = parts.size() > 1 ? static_cast<CUresult>(std::stoi(parts[1]))
                                     : CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    granularity =
        std::stoull(variable("STFS_FAKE_CUDA_GRANULARITY", std::to_string(kGranularity).c_str()));
    knows_read_only = variable("STFS_FAKE_CUDA_READ_ONLY") != "refused";
  }

  std::vector<int> visible_devices;  // hardware number of each ordinal
  std::size_t memory = 0;
  std::string space;
  Late late = Late::kRandom;
  std::multimap<std::string, Failure> failures;
  Failure fault;
  std::size_t granularity = kGranularity;
  bool knows_read_only = true;
};

// --- streams

class Machine;

// Runs operations in order on its own thread. The machine's mutex guards all members.
class StreamThread {
 public:
  StreamThread(Machine& machine, Context& context, std::uint64_t number);
  ~StreamThread();

  Context& context() { return context_; }
  std::uint64_t given() const { return given_; }
  void give(Operation operation);
  // Waits until `position` operations are done.
  void demand(std::unique_lock<std::mutex>& lock, std::uint64_t position);

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
  std::shared_ptr<StreamThread> stream;  // null: never recorded
  std::uint64_t position = 0;
};

// --- the driver's state

class Machine {
 public:
  std::mutex mutex;
  Settings settings;
  bool is_initialized = false;
  std::map<std::string, std::size_t> calls;
  std::size_t operations = 0;
  std::vector<std::string> misuses;

  std::map<int, Context> contexts;  // by ordinal; never erased
  std::uint64_t next_handle = 1;
  std::map<std::uint64_t, std::shared_ptr<Allocation>> handles;
  std::map<std::uint64_t, Reservation> reservations;               // by address
  std::map<std::uint64_t, std::shared_ptr<DeviceRange>> mappings;  // by address
  std::map<std::uint64_t, std::shared_ptr<LinearMemory>> linear;   // by address
  std::map<std::uint64_t, std::shared_ptr<Pinned>> pinned;         // by address
  std::size_t pinned_bytes = 0;
  std::size_t peak_pinned_bytes = 0;
  std::map<std::uint64_t, std::shared_ptr<StreamThread>> streams;
  std::map<int, std::shared_ptr<StreamThread>> default_streams;  // by ordinal
  std::map<std::uint64_t, RecordedEvent> events;
  std::set<std::uint64_t> modules;
  int pushed = 0;  // number of pushed contexts on all threads

  void misuse(const std::string& what) { misuses.push_back("misuse: " + what); }

  std::string report() {
    std::string text;
    const auto count = [&](const char* what, std::size_t number) {
      if (number != 0) text += "leaked: " + std::string(what) + " " + std::to_string(number) + "\n";
    };
    std::size_t retained = 0;
    for (const auto& [ordinal, context] : contexts)
      retained += static_cast<std::size_t>(context.retained);
    count("allocation handles", handles.size());
    count("address reservations", reservations.size());
    count("mappings", mappings.size());
    count("device memory", linear.size());
    count("pinned bytes", pinned_bytes);
    count("streams", streams.size());
    count("events", events.size());
    count("modules", modules.size());
    count("primary contexts", retained);
    count("contexts pushed", static_cast<std::size_t>(pushed));
    for (const std::string& line : misuses) text += line + "\n";
    return text;
  }

  // Bytes of a device in use: the sum of its memfds that processes of this space have open.
  std::size_t used(int hardware) {
    const std::string name = memory_name(hardware);
    std::map<std::pair<dev_t, ino_t>, std::size_t> sizes;
    const auto look_into = [&](const std::filesystem::path& descriptors) {
      std::error_code error;
      std::filesystem::directory_iterator entry(descriptors, error);
      while (!error && entry != std::filesystem::directory_iterator()) {
        std::error_code no_link;
        const auto target = std::filesystem::read_symlink(entry->path(), no_link);
        struct stat status {};
        if (!no_link && target.string().starts_with("/memfd:" + name + " ") &&
            stat(entry->path().c_str(), &status) == 0) {
          sizes[{status.st_dev, status.st_ino}] = static_cast<std::size_t>(status.st_size);
        }
        entry.increment(error);
      }
    };
    if (settings.space.empty()) {
      look_into("/proc/self/fd");
    } else {
      std::error_code error;
      for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
        if (std::isdigit(static_cast<unsigned char>(process.path().filename().string()[0])) != 0)
          look_into(process.path() / "fd");
      }
    }
    std::size_t total = 0;
    for (const auto& [file, size] : sizes) total += size;
    return total;
  }

  std::string memory_name(int hardware) const {
    return std::string(kMemoryName) + "." + settings.space + "." + std::to_string(hardware);
  }

  // New device memory, full of garbage; null without room.
  std::shared_ptr<Allocation> allocate(int ordinal, std::size_t size) {
    const int hardware = settings.visible_devices[static_cast<std::size_t>(ordinal)];
    const std::size_t in_use = used(hardware);
    if (in_use > settings.memory || size > settings.memory - in_use) return nullptr;
    const int fd = memfd_create(memory_name(hardware).c_str(), MFD_CLOEXEC);
    if (fd < 0) return nullptr;
    if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
      close(fd);
      return nullptr;
    }
    auto allocation = std::make_shared<Allocation>(fd, size, hardware);
    if (allocation->shadow == nullptr) return nullptr;
    std::memset(allocation->shadow, kGarbage, size);
    return allocation;
  }

  // The range with [address, address + size), if the device may access it so; else null.
  std::shared_ptr<DeviceRange> range_at(std::uint64_t address, std::size_t size, int ordinal,
                                        bool to_write) {
    const auto holds = [&](const auto& ranges) -> std::shared_ptr<DeviceRange> {
      auto next = ranges.upper_bound(address);
      if (next == ranges.begin()) return nullptr;
      const auto& found = std::prev(next)->second;
      const bool is_inside = address - found->address <= found->size &&
                             size <= found->size - (address - found->address);
      return is_inside ? found : nullptr;
    };
    auto range = holds(mappings);
    if (range == nullptr) return holds(linear);
    const auto access = range->access.find(ordinal);
    if (access == range->access.end()) return nullptr;
    if (to_write && access->second != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return nullptr;
    return range;
  }

  std::shared_ptr<Pinned> pinned_at(const void* host, std::size_t size) {
    const auto address = reinterpret_cast<std::uint64_t>(host);
    auto next = pinned.upper_bound(address);
    if (next == pinned.begin()) return nullptr;
    const auto& found = std::prev(next)->second;
    const bool is_inside =
        address - found->address <= found->size && size <= found->size - (address - found->address);
    return is_inside ? found : nullptr;
  }

  void must_be_idle(const Region& region, const char* function) {
    if (region.pending > 0) misuse(std::string(function) + ": a stream still uses it");
  }
};

Machine& machine() {
  static Machine& instance = *new Machine;  // outlives every thread
  return instance;
}

thread_local std::vector<Context*> current_contexts;

StreamThread::StreamThread(Machine& machine, Context& context, std::uint64_t number)
    : machine_(machine),
      context_(context),
      random_(number * 0x9e3779b97f4a7c15U + 1),
      thread_([this] { work(); }) {}

StreamThread::~StreamThread() {
  {
    const std::scoped_lock lock(machine_.mutex);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StreamThread::give(Operation operation) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  operation.may_run_early = machine_.settings.late == Late::kNever ||
                            (machine_.settings.late == Late::kRandom && random_ % 2 == 0);
  for (const auto& region : operation.touches) ++region->pending;
  queue_.push_back(std::move(operation));
  ++given_;
  changed_.notify_all();
}

void StreamThread::demand(std::unique_lock<std::mutex>& lock, std::uint64_t position) {
  demanded_ = std::max(demanded_, position);
  changed_.notify_all();
  changed_.wait(lock, [&] { return done_ >= position; });
}

void StreamThread::work() {
  std::unique_lock lock(machine_.mutex);
  while (true) {
    changed_.wait(lock, [&] {
      return is_ending_ || (!queue_.empty() && (queue_.front().may_run_early || demanded_ > done_));
    });
    if (queue_.empty()) return;  // ending, and the queue is empty
    Operation operation = std::move(queue_.front());
    queue_.pop_front();

    const Failure& fault = machine_.settings.fault;
    if (++machine_.operations == fault.call && context_.fault == CUDA_SUCCESS)
      context_.fault = fault.error;
    if (context_.fault == CUDA_SUCCESS) {
      lock.unlock();
      operation.run();
      lock.lock();
    }
    for (const auto& region : operation.touches) --region->pending;
    operation = {};
    ++done_;
    changed_.notify_all();
  }
}

// --- the beginning of every function

#define TEXT_OF(text) #text
#define TEXT(name) TEXT_OF(name)

// Counts a call. Returns the error that the settings give it.
CUresult begin(const char* function) {
  Machine& m = machine();
  const std::string name = plain_name(function);
  const std::size_t call = ++m.calls[name];
  const auto [first, last] = m.settings.failures.equal_range(name);
  for (auto rule = first; rule != last; ++rule) {
    if (rule->second.call == call) return rule->second.error;
  }
  const bool needs_no_start =
      name == "cuInit" || name.starts_with("cuGetError") || name == "cuDriverGetVersion";
  return m.is_initialized || needs_no_start ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

// For functions that allocate or act: an error prevents any effect.
#define BEGIN(name)               \
  Machine& m = machine();         \
  std::unique_lock lock(m.mutex); \
  if (const CUresult result = begin(TEXT(name)); result != CUDA_SUCCESS) return result

// For functions that wait in the current context. They run after a fault too, so that all work
// ends.
#define BEGIN_WAITING(name)                                        \
  BEGIN(name);                                                     \
  if (current_contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT; \
  Context& context = *current_contexts.back()

#define BEGIN_IN_CONTEXT(name) \
  BEGIN_WAITING(name);         \
  if (context.fault != CUDA_SUCCESS) return context.fault

// For functions that free: they free even when they return an error.
#define BEGIN_GIVING_BACK(name)   \
  Machine& m = machine();         \
  std::unique_lock lock(m.mutex); \
  const CUresult answer = begin(TEXT(name))

bool is_device(const Machine& m, int ordinal) {
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < m.settings.visible_devices.size();
}

int hardware_of(const Machine& m, CUdevice device) {
  return m.settings.visible_devices[static_cast<std::size_t>(device)];
}

bool is_whole(std::size_t size) { return size != 0 && size % kGranularity == 0; }

std::byte* host_bytes(const DeviceRange& range, std::uint64_t address) {
  return range.allocation->shadow + (address - range.address);
}

// The stream of a handle; the context's default stream for the null handle.
std::shared_ptr<StreamThread> stream_of(Machine& m, Context& context, CUstream handle) {
  if (handle == nullptr) {
    auto& stream = m.default_streams[context.ordinal];
    if (stream == nullptr) stream = std::make_shared<StreamThread>(m, context, 0);
    return stream;
  }
  const auto found = m.streams.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.streams.end() || &found->second->context() != &context) return nullptr;
  return found->second;
}

template <class T>
T as_handle(std::uint64_t number) {
  return reinterpret_cast<T>(number);
}

[[gnu::destructor]] void report_at_exit() {
  const char* file = std::getenv("STFS_FAKE_CUDA_REPORT");
  if (file == nullptr) return;
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  const std::string text = m.report();
  std::FILE* out = std::fopen(file, "ae");
  if (out == nullptr) return;
  std::fprintf(out, "process %d: peak pinned bytes %zu\n%s", static_cast<int>(getpid()),
               m.peak_pinned_bytes, text.c_str());
  std::fclose(out);
}

}  // namespace

extern "C" {

void stfs_fake_cuda_configure() {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  m.settings = Settings();
  m.calls.clear();
  m.operations = 0;
  m.misuses.clear();
  m.peak_pinned_bytes = m.pinned_bytes;
  for (auto& [ordinal, context] : m.contexts) context.fault = CUDA_SUCCESS;
}

void stfs_fake_cuda_report(char* text, std::size_t size) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  std::snprintf(text, size, "%s", m.report().c_str());
}

std::size_t stfs_fake_cuda_peak_pinned() {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  return m.peak_pinned_bytes;
}

std::size_t stfs_fake_cuda_calls(const char* function) {
  Machine& m = machine();
  const std::scoped_lock lock(m.mutex);
  return m.calls[plain_name(function)];
}

// --- the driver itself

CUresult cuInit(unsigned int flags) {
  BEGIN(cuInit);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (m.settings.visible_devices.empty()) return CUDA_ERROR_NO_DEVICE;
  m.is_initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  BEGIN(cuDriverGetVersion);
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  BEGIN(cuGetErrorName);
  switch (error) {
    case CUDA_ERROR_INVALID_VALUE:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NO_DEVICE:
      *name = "CUDA_ERROR_NO_DEVICE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return CUDA_SUCCESS;
    case CUDA_ERROR_UNKNOWN:
      *name = "CUDA_ERROR_UNKNOWN";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  BEGIN(cuGetErrorString);
  *text = error == CUDA_ERROR_NO_DEVICE       ? "no CUDA-capable device is detected"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                              : "an error of the fake driver";
  return CUDA_SUCCESS;
}

// --- devices

CUresult cuDeviceGetCount(int* count) {
  BEGIN(cuDeviceGetCount);
  *count = static_cast<int>(m.settings.visible_devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN(cuDeviceGet);
  if (!is_device(m, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  BEGIN(cuDeviceGetName);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", hardware_of(m, device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  BEGIN(cuDeviceGetUuid);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  for (std::size_t i = 0; i < sizeof uuid->bytes; ++i)
    uuid->bytes[i] = static_cast<char>(0xf0 + i - (i == 0 ? hardware_of(m, device) * 16 : 0));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  BEGIN(cuDeviceGetPCIBusId);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                0x3b + hardware_of(m, device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  BEGIN(cuDeviceGetAttribute);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
  BEGIN(cuDeviceTotalMem);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = m.settings.memory;
  return CUDA_SUCCESS;
}

// --- contexts

CUresult cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  if (!is_device(m, device)) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = m.contexts[device];
  context.ordinal = device;
  ++context.retained;
  *handle = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  BEGIN_GIVING_BACK(cuDevicePrimaryCtxRelease);
  const auto found = m.contexts.find(device);
  if (found == m.contexts.end() || found->second.retained == 0) {
    m.misuse("cuDevicePrimaryCtxRelease: it was not retained");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  --found->second.retained;
  return answer;
}

CUresult cuCtxPushCurrent(CUcontext handle) {
  BEGIN(cuCtxPushCurrent);
  auto* const context = reinterpret_cast<Context*>(handle);
  if (context == nullptr || context->retained == 0) {
    m.misuse("cuCtxPushCurrent: the context is gone");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  current_contexts.push_back(context);
  ++m.pushed;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* handle) {
  BEGIN_GIVING_BACK(cuCtxPopCurrent);
  if (current_contexts.empty()) {
    m.misuse("cuCtxPopCurrent: there is none");
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *handle = reinterpret_cast<CUcontext>(current_contexts.back());
  current_contexts.pop_back();
  --m.pushed;
  return answer;
}

// --- memory by descriptor

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  BEGIN_IN_CONTEXT(cuMemGetInfo);
  *total = m.settings.memory;
  *free = m.settings.memory - std::min(m.settings.memory, m.used(hardware_of(m, context.ordinal)));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  BEGIN(cuMemGetAllocationGranularity);
  *granularity = m.settings.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  BEGIN(cuMemCreate);
  if (!is_whole(size) || flags != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!is_device(m, properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  auto allocation = m.allocate(properties->location.id, size);
  if (allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(allocation);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  BEGIN_GIVING_BACK(cuMemRelease);
  if (m.handles.erase(handle) == 0) {
    m.misuse("cuMemRelease: no such handle");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return answer;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t size, std::size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
  BEGIN(cuMemAddressReserve);
  if (!is_whole(size) || alignment > kGranularity || hint != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Reservation reservation{std::make_unique<Addresses>(size), size};
  *address = reservation.addresses->begin();
  m.reservations[*address] = std::move(reservation);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t size) {
  BEGIN_GIVING_BACK(cuMemAddressFree);
  const auto found = m.reservations.find(address);
  if (found == m.reservations.end() || found->second.size != size) {
    m.misuse("cuMemAddressFree: no such reservation");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto mapped = m.mappings.lower_bound(address);
  if (mapped != m.mappings.end() && mapped->first < address + size)
    m.misuse("cuMemAddressFree: it is still mapped");
  m.reservations.erase(found);
  return answer;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t size, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  BEGIN(cuMemMap);
  const auto allocation = m.handles.find(handle);
  if (!is_whole(size) || address % kGranularity != 0 || offset != 0 || flags != 0 ||
      allocation == m.handles.end() || size > allocation->second->size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto after = m.reservations.upper_bound(address);
  if (after == m.reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  const auto& [begin_of, reservation] = *std::prev(after);
  if (address - begin_of > reservation.size || size > reservation.size - (address - begin_of))
    return CUDA_ERROR_INVALID_VALUE;
  const auto next = m.mappings.lower_bound(address);
  const bool meets_next = next != m.mappings.end() && next->first < address + size;
  const bool meets_previous = next != m.mappings.begin() &&
                              std::prev(next)->first + std::prev(next)->second->size > address;
  if (meets_next || meets_previous) {
    m.misuse("cuMemMap: there is a mapping already");
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto range = std::make_shared<DeviceRange>();
  range->address = address;
  range->size = size;
  range->allocation = allocation->second;
  m.mappings[address] = std::move(range);
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t size) {
  BEGIN_GIVING_BACK(cuMemUnmap);
  const auto found = m.mappings.find(address);
  if (found == m.mappings.end() || found->second->size != size) {
    m.misuse("cuMemUnmap: it is not mapped");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemUnmap");
  m.mappings.erase(found);
  return answer;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t size, const CUmemAccessDesc* access,
                        std::size_t count) {
  BEGIN(cuMemSetAccess);
  const auto found = m.mappings.find(address);
  if (found == m.mappings.end() || found->second->size != size || count != 1)
    return CUDA_ERROR_INVALID_VALUE;
  if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(m, access->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ && !m.settings.knows_read_only)
    return CUDA_ERROR_INVALID_VALUE;
  // Access from another device would need peer access.
  if (hardware_of(m, access->location.id) != found->second->allocation->hardware)
    return CUDA_ERROR_INVALID_DEVICE;
  found->second->access[access->location.id] = access->flags;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  BEGIN(cuMemExportToShareableHandle);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const int fd = fcntl(found->second->fd, F_DUPFD, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(shareable, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  BEGIN(cuMemImportFromShareableHandle);
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  std::error_code error;
  const std::string target =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string();
  struct stat status {};
  if (error || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &status) != 0 ||
      !target.starts_with("/memfd:" + std::string(kMemoryName) + ".")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int hardware = std::stoi(target.substr(target.rfind('.') + 1));
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  auto allocation =
      std::make_shared<Allocation>(own, static_cast<std::size_t>(status.st_size), hardware);
  if (allocation->shadow == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(allocation);
  return CUDA_SUCCESS;
}

// --- other memory

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemAlloc);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  auto memory = std::make_shared<LinearMemory>();
  memory->allocation = m.allocate(context.ordinal, size);
  if (memory->allocation == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->addresses = std::make_unique<Addresses>(size);
  memory->address = memory->addresses->begin();
  memory->size = size;
  *address = memory->address;
  m.linear[*address] = std::move(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) {
  BEGIN_GIVING_BACK(cuMemFree);
  const auto found = m.linear.find(address);
  if (found == m.linear.end()) {
    m.misuse("cuMemFree: it was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemFree");
  m.linear.erase(found);
  return answer;
}

CUresult cuMemHostAlloc(void** address, std::size_t size, unsigned int) {
  BEGIN_IN_CONTEXT(cuMemHostAlloc);
  static_cast<void>(context);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, size) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  std::memset(memory, kGarbage, size);
  auto buffer = std::make_shared<Pinned>();
  buffer->address = reinterpret_cast<std::uint64_t>(memory);
  buffer->size = size;
  m.pinned[buffer->address] = std::move(buffer);
  m.pinned_bytes += size;
  m.peak_pinned_bytes = std::max(m.peak_pinned_bytes, m.pinned_bytes);
  *address = memory;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* address) {
  BEGIN_GIVING_BACK(cuMemFreeHost);
  const auto found = m.pinned.find(reinterpret_cast<std::uint64_t>(address));
  if (found == m.pinned.end()) {
    m.misuse("cuMemFreeHost: it was not allocated");
    return CUDA_ERROR_INVALID_VALUE;
  }
  m.must_be_idle(*found->second, "cuMemFreeHost");
  m.pinned_bytes -= found->second->size;
  m.pinned.erase(found);
  return answer;
}

// --- copies

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemcpyHtoD);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  if (size > kStaged) {
    std::memcpy(target, from, size);
    return CUDA_SUCCESS;
  }
  // Small copies are staged: the source is free, but the bytes may arrive later.
  const auto* const bytes = static_cast<const std::byte*>(from);
  stream_of(m, context, nullptr)
      ->give({[target, staged = std::vector(bytes, bytes + size)] {
                std::memcpy(target, staged.data(), staged.size());
              },
              {range}});
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t size) {
  BEGIN_IN_CONTEXT(cuMemcpyDtoH);
  const auto range = m.range_at(from, size, context.ordinal, false);
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const auto stream = stream_of(m, context, nullptr)) stream->demand(lock, stream->given());
  if (context.fault != CUDA_SUCCESS) return context.fault;
  std::memcpy(to, host_bytes(*range, from), size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  if (const auto pinned = m.pinned_at(from, size)) {
    stream->give({[=] { std::memcpy(target, from, size); }, {range, pinned}});
    return CUDA_SUCCESS;
  }
  const auto* const bytes = static_cast<const std::byte*>(from);
  stream->give({[target, staged = std::vector(bytes, bytes + size)] {
                  std::memcpy(target, staged.data(), staged.size());
                },
                {range}});
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(from, size, context.ordinal, false);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::byte* const source = host_bytes(*range, from);
  const auto pinned = m.pinned_at(to, size);
  Operation copy{[=] { std::memcpy(to, source, size); }, {range}};
  if (pinned != nullptr) copy.touches.push_back(pinned);
  stream->give(std::move(copy));
  if (pinned == nullptr) stream->demand(lock, stream->given());  // pageable memory: wait
  return context.fault;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t size, CUstream handle) {
  BEGIN_IN_CONTEXT(cuMemsetD8Async);
  const auto stream = stream_of(m, context, handle);
  const auto range = m.range_at(to, size, context.ordinal, true);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::byte* const target = host_bytes(*range, to);
  stream->give({[=] { std::memset(target, value, size); }, {range}});
  return CUDA_SUCCESS;
}

// --- streams and events

CUresult cuStreamCreate(CUstream* handle, unsigned int) {
  BEGIN_IN_CONTEXT(cuStreamCreate);
  const std::uint64_t number = m.next_handle++;
  m.streams[number] = std::make_shared<StreamThread>(m, context, number);
  *handle = as_handle<CUstream>(number);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  BEGIN_GIVING_BACK(cuStreamDestroy);
  const auto found = m.streams.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.streams.end()) {
    m.misuse("cuStreamDestroy: no such stream");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const std::shared_ptr<StreamThread> stream = std::move(found->second);
  m.streams.erase(found);
  lock.unlock();  // ~StreamThread joins its thread
  return answer;
}

CUresult cuStreamSynchronize(CUstream handle) {
  BEGIN_WAITING(cuStreamSynchronize);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  stream->demand(lock, stream->given());
  return context.fault;
}

CUresult cuEventCreate(CUevent* handle, unsigned int) {
  BEGIN_IN_CONTEXT(cuEventCreate);
  static_cast<void>(context);
  const std::uint64_t number = m.next_handle++;
  m.events[number] = {};
  *handle = as_handle<CUevent>(number);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  BEGIN_GIVING_BACK(cuEventDestroy);
  const auto found = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.events.end()) {
    m.misuse("cuEventDestroy: no such event");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  // The event may be the stream's last owner: destroy it without the lock.
  const RecordedEvent event = std::move(found->second);
  m.events.erase(found);
  lock.unlock();
  return answer;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  BEGIN_IN_CONTEXT(cuEventRecord);
  const auto event = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  const auto stream = stream_of(m, context, stream_handle);
  if (event == m.events.end() || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  event->second = {stream, stream->given()};
  return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  BEGIN_WAITING(cuEventSynchronize);
  const auto event = m.events.find(reinterpret_cast<std::uint64_t>(handle));
  if (event == m.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  const RecordedEvent recorded = event->second;
  if (recorded.stream != nullptr) recorded.stream->demand(lock, recorded.position);
  return context.fault;
}

// --- kernels

CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  BEGIN_IN_CONTEXT(cuModuleLoadData);
  static_cast<void>(context);
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic != 0xba55ed50) return CUDA_ERROR_INVALID_IMAGE;  // of a fat binary
  const std::uint64_t number = m.next_handle++;
  m.modules.insert(number);
  *handle = as_handle<CUmodule>(number);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule handle) {
  BEGIN_GIVING_BACK(cuModuleUnload);
  if (m.modules.erase(reinterpret_cast<std::uint64_t>(handle)) == 0) {
    m.misuse("cuModuleUnload: no such module");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return answer;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  BEGIN_IN_CONTEXT(cuModuleGetFunction);
  static_cast<void>(context);
  if (!m.modules.contains(reinterpret_cast<std::uint64_t>(handle)))
    return CUDA_ERROR_INVALID_HANDLE;
  if (std::strcmp(name, stfs::gpu::kConvertKernel) != 0) return CUDA_ERROR_NOT_FOUND;
  *function = as_handle<CUfunction>(reinterpret_cast<std::uint64_t>(handle));
  return CUDA_SUCCESS;
}

// The only kernel, stfs_convert, as a loop.
CUresult cuLaunchKernel(CUfunction, unsigned int grid_x, unsigned int, unsigned int,
                        unsigned int block_x, unsigned int, unsigned int, unsigned int,
                        CUstream handle, void** parameters, void**) {
  BEGIN_IN_CONTEXT(cuLaunchKernel);
  const auto stream = stream_of(m, context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x == 0 || block_x != stfs::gpu::kConvertThreads) return CUDA_ERROR_INVALID_VALUE;
  stfs::gpu::ConvertTask task;
  std::memcpy(&task, parameters[0], sizeof task);

  const std::size_t in_bytes = (task.count * task.from_bits + 7) / 8;
  const std::size_t out_bytes = task.count * (task.to == stfs::gpu::Narrow::kF32 ? 4 : 2);
  std::vector<std::shared_ptr<Region>> touches;
  bool is_illegal = false;
  const auto on_host = [&](auto*& pointer, std::size_t size, bool to_write) {
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    const auto range = m.range_at(address, size, context.ordinal, to_write);
    is_illegal = is_illegal || range == nullptr;
    if (range == nullptr) return;
    touches.push_back(range);
    pointer =
        reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(host_bytes(*range, address));
  };
  on_host(task.in, in_bytes, false);
  on_host(task.counts, 2 * sizeof(*task.counts), true);
  if (task.from_bits <= 16) on_host(task.table, sizeof(float) << task.from_bits, false);
  auto* out = static_cast<std::byte*>(task.out);
  on_host(out, out_bytes, true);
  task.out = out;
  const auto run = [task] {
    for (std::uint64_t i = 0; i < task.count; ++i) {
      const stfs::gpu::ValueKind kind = stfs::gpu::convert_element(task, i);
      if (kind == stfs::gpu::ValueKind::kOutOfRange) ++task.counts[0];
      if (kind == stfs::gpu::ValueKind::kNan) ++task.counts[1];
    }
  };
  const auto fault = [&m, &context] {
    const std::scoped_lock in_operation(m.mutex);
    context.fault = CUDA_ERROR_ILLEGAL_ADDRESS;
  };
  stream->give({is_illegal ? std::function<void()>(fault) : std::function<void()>(run), touches});
  return CUDA_SUCCESS;
}

}  // extern "C"
