#include "tests/gpu/fake_machine.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cctype>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace stfs::gpu::test::fake {
namespace {

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

std::size_t bytes_of(const char* name, std::size_t otherwise) {
  return std::stoull(variable(name, std::to_string(otherwise).c_str()));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Returns the devices in CUDA_VISIBLE_DEVICES, which has numbers or beginnings of UUIDs. The first
// entry that names no device ends the list. With MIG a process sees only one instance: the first,
// unless the variable names another by its UUID.
std::vector<int> visible(const std::vector<Hardware>& hardware, bool is_mig) {
  std::vector<int> found;
  const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int i = 0; chosen == nullptr && i < static_cast<int>(hardware.size()); ++i)
    found.push_back(i);
  for (const std::string& word : split(chosen == nullptr ? "" : chosen, ',')) {
    const bool is_uuid = word.starts_with("GPU-") || word.starts_with("MIG-");
    const auto is_named = [&](const Hardware& one) {
      return is_uuid ? one.uuid_text().starts_with(word)
                     : std::to_string(&one - hardware.data()) == word;
    };
    const auto one = std::ranges::find_if(hardware, is_named);
    if (one == hardware.end()) break;
    found.push_back(static_cast<int>(one - hardware.begin()));
  }
  if (is_mig && found.size() > 1) found.resize(1);
  return found;
}

// Returns the range of an ordered map that contains [address, address + size), or null.
template <class Ranges>
typename Ranges::mapped_type holder_of(const Ranges& ranges, std::uint64_t address,
                                       std::size_t size) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return nullptr;
  const auto& found = std::prev(next)->second;
  const bool is_inside =
      address - found->address <= found->size && size <= found->size - (address - found->address);
  return is_inside ? found : nullptr;
}

// The sizes of files by device and inode.
using Files = std::map<std::pair<dev_t, ino_t>, std::size_t>;
// Adds the memfds with this name that a process has open to `sizes`.
void add_memfds(const std::filesystem::path& process, const std::string& name, Files& sizes) {
  std::error_code error;
  std::filesystem::directory_iterator entry(process / "fd", error);
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
}

std::size_t sum_of(const Files& sizes) {
  std::size_t total = 0;
  for (const auto& [file, size] : sizes) total += size;
  return total;
}

}  // namespace

std::string plain_name(const std::string& function) {
  const std::size_t version = function.rfind("_v");
  return version == std::string::npos ? function : function.substr(0, version);
}

CUuuid Hardware::gpu_uuid() const {
  CUuuid uuid{};
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i)
    uuid.bytes[i] = static_cast<char>(0xf0 + i - (i == 0 ? static_cast<std::size_t>(gpu) * 16 : 0));
  return uuid;
}

CUuuid Hardware::uuid() const {
  CUuuid uuid = gpu_uuid();
  if (instance >= 0) uuid.bytes[1] = static_cast<char>(instance);
  return uuid;
}

std::string Hardware::uuid_text() const {
  std::string text = instance < 0 ? "GPU-" : "MIG-";
  const CUuuid own = uuid();
  for (std::size_t i = 0; i < sizeof own.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(own.bytes[i]));
    text += std::string(i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + digits;
  }
  return text;
}

std::string Hardware::name() const {
  return "Fake GPU " + std::to_string(gpu) + (instance < 0 ? "" : " MIG 1g.5gb");
}

Settings::Settings() {
  const int devices = std::stoi(variable("STFS_FAKE_CUDA_DEVICES", "1"));
  const int instances = std::stoi(variable("STFS_FAKE_CUDA_MIG", "0"));
  for (int gpu = 0; gpu < devices; ++gpu) {
    if (instances == 0) hardware.push_back({gpu});
    for (int instance = 0; instance < instances; ++instance) hardware.push_back({gpu, instance});
  }
  visible_devices = visible(hardware, instances > 0);
  memory = bytes_of("STFS_FAKE_CUDA_MEMORY", std::size_t{4} << 30);
  hidden = bytes_of("STFS_FAKE_CUDA_HIDDEN", 0);
  context = bytes_of("STFS_FAKE_CUDA_CONTEXT", 0);
  lag = bytes_of("STFS_FAKE_CUDA_LAG", 0);
  space = variable("STFS_FAKE_CUDA_SPACE");
  const std::string lateness = variable("STFS_FAKE_CUDA_LATE");
  late = lateness == "always" ? Late::kAlways : lateness == "never" ? Late::kNever : Late::kRandom;
  for (const std::string& rule : split(variable("STFS_FAKE_CUDA_FAIL"), ',')) {
    const std::vector<std::string> parts = split(rule, ':');
    Failure failure{std::stoull(parts.at(1)), CUDA_ERROR_UNKNOWN};
    if (parts.size() > 2) failure.error = static_cast<CUresult>(std::stoi(parts[2]));
    failures.emplace(plain_name(parts[0]), failure);
  }
  if (const auto parts = split(variable("STFS_FAKE_CUDA_FAULT"), ':'); !parts.empty()) {
    fault.call = std::stoull(parts[0]);
    fault.error =
        parts.size() > 1 ? static_cast<CUresult>(std::stoi(parts[1])) : CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  granularity = bytes_of("STFS_FAKE_CUDA_GRANULARITY", kGranularity);
  knows_read_only = variable("STFS_FAKE_CUDA_READ_ONLY") != "refused";
  has_code = variable("STFS_FAKE_CUDA_CODE") != "none";
  if (variable("STFS_FAKE_CUDA_MODE") == "exclusive")
    compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
}

std::string Machine::report() const {
  std::string text;
  const auto count = [&](const char* what, std::size_t number) {
    if (number != 0) text += "leaked: " + std::string(what) + " " + std::to_string(number) + "\n";
  };
  if (fault == CUDA_SUCCESS) {
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
  }
  for (const std::string& line : misuses) text += line + "\n";
  return text;
}

void Machine::forget_fault(std::unique_lock<std::mutex>& lock) {
  if (fault == CUDA_SUCCESS) return;
  auto old_events = std::exchange(events, {});
  auto old_streams = std::exchange(streams, {});
  auto old_defaults = std::exchange(default_streams, {});
  handles.clear();
  mappings.clear();
  reservations.clear();
  linear.clear();
  pinned.clear();
  pinned_bytes = 0;
  modules.clear();
  for (auto& [ordinal, context] : contexts) {
    context.retained = 0;
    if (context.memory >= 0) close(std::exchange(context.memory, -1));
  }
  lock.unlock();  // ~StreamThread joins its thread, which runs no operation after a fault
  old_events.clear();
  old_streams.clear();
  old_defaults.clear();
  lock.lock();
  fault = CUDA_SUCCESS;
}

std::size_t Machine::used(int hardware) {
  const std::string name = memory_name(hardware);
  Files own;
  add_memfds("/proc/self", name, own);
  if (settings.space.empty()) return sum_of(own);
  Files all = own;
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    if (std::isdigit(static_cast<unsigned char>(process.path().filename().string()[0])) != 0)
      add_memfds(process.path(), name, all);
  }
  const std::size_t others = sum_of(all) - sum_of(own);
  std::size_t& reported = others_used_[hardware];
  if (others < reported && checks_left_ == 0) checks_left_ = settings.lag;
  if (others >= reported || checks_left_ == 0 || --checks_left_ == 0) reported = others;
  return sum_of(own) + std::max(reported, others);
}

bool Machine::has_room(int hardware, std::size_t size) {
  const std::size_t in_use = used(hardware) + settings.hidden;
  return in_use <= settings.memory && size <= settings.memory - in_use;
}

int Machine::take(int hardware, std::size_t size) {
  if (!has_room(hardware, size)) return -1;
  const int fd = memfd_create(memory_name(hardware).c_str(), MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size)) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

std::shared_ptr<Allocation> Machine::allocate(int ordinal, std::size_t size) {
  const int fd = take(hardware_of(ordinal), size);
  if (fd < 0) return nullptr;
  auto allocation = std::make_shared<Allocation>(fd, size, hardware_of(ordinal));
  if (allocation->shadow == nullptr) return nullptr;
  std::memset(allocation->shadow, kGarbage, size);
  return allocation;
}

std::shared_ptr<DeviceRange> Machine::range_at(std::uint64_t address, std::size_t size, int ordinal,
                                               bool to_write) const {
  auto range = holder_of(mappings, address, size);
  if (range == nullptr) return holder_of(linear, address, size);
  const auto access = range->access.find(ordinal);
  if (access == range->access.end()) return nullptr;
  if (to_write && access->second != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return nullptr;
  return range;
}

std::shared_ptr<Pinned> Machine::pinned_at(const void* host, std::size_t size) const {
  return holder_of(pinned, reinterpret_cast<std::uint64_t>(host), size);
}

void Machine::must_be_idle(const Region& region, const char* function) {
  if (region.pending == 0) return;
  misuse(std::string(function) + ": a stream still uses it");
  if (fault == CUDA_SUCCESS) fault = CUDA_ERROR_ILLEGAL_ADDRESS;
}

Machine& machine() {
  static Machine& instance = *new Machine;  // never destroyed, because threads may outlive main()
  return instance;
}

std::vector<Context*>& current_contexts() {
  thread_local std::vector<Context*> contexts;
  return contexts;
}

StreamThread::StreamThread(Machine& machine, Context& context, std::uint64_t number,
                           bool is_blocking_stream)
    : is_blocking(is_blocking_stream),
      machine_(machine),
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
  if (operation.reads_back) {
    machine_.peak_reads_back = std::max(machine_.peak_reads_back, ++machine_.reads_back);
  }
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
    if (++machine_.operations == fault.call && machine_.fault == CUDA_SUCCESS)
      machine_.fault = fault.error;
    if (machine_.fault == CUDA_SUCCESS) {
      lock.unlock();
      operation.run();
      lock.lock();
    }
    for (const auto& region : operation.touches) --region->pending;
    if (operation.reads_back) --machine_.reads_back;
    operation = {};
    ++done_;
    changed_.notify_all();
  }
}

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
  if (!m.is_initialized && !needs_no_start) return CUDA_ERROR_NOT_INITIALIZED;
  return needs_no_start || name.starts_with("cuDeviceGet") ? CUDA_SUCCESS : m.fault;
}

bool is_device(const Machine& m, int ordinal) {
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < m.settings.visible_devices.size();
}

std::shared_ptr<StreamThread> stream_of(Machine& m, Context& context, CUstream handle) {
  if (handle == nullptr) {
    auto& stream = m.default_streams[context.ordinal];
    if (stream == nullptr) stream = std::make_shared<StreamThread>(m, context, 0, true);
    return stream;
  }
  const auto found = m.streams.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == m.streams.end() || &found->second->context() != &context) return nullptr;
  return found->second;
}

}  // namespace stfs::gpu::test::fake
