// The C ABI over Opened: handles, structs with sizes, and exceptions that become statuses.
#include "core/base/c_abi.h"
#include "core/base/forks.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/select.h"
#include "tools/gpu/library/include/stfs_gpu.h"
#include "tools/library/checkpoint_handle.h"
#include "tools/library/dlpack_export.h"
#include "tools/library/follower_handle.h"
#include "tools/library/include/stfs.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using stfs::abi::guarded;
using stfs::abi::refuse;

struct stfs_checkpoint {
  stfs_checkpoint(std::vector<std::string> sources, stfs::OpenOptions options)
      : opened(std::move(sources), std::move(options)) {}

  stfs::Opened opened;
  std::string names;  // each followed by a NUL
  std::vector<stfs_tensor> table;
};

struct stfs_mapping {
  stfs::Memory memory;
};

struct stfs_follower {
  stfs::FollowerHandle followed;
};

namespace {

template <class Handle>
Handle& checked(Handle* handle) {
  if (handle == nullptr) refuse("the checkpoint: NULL");
  return *handle;
}

std::vector<std::string> texts(const char* const* given, std::size_t count, const char* what) {
  if (count > 0 && given == nullptr) refuse(std::string(what) + ": NULL");
  std::vector<std::string> all;
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (given[i] == nullptr) refuse(std::string(what) + " " + std::to_string(i) + ": NULL");
    all.emplace_back(given[i]);
  }
  return all;
}

std::string_view bytes_of(const char* text, std::size_t bytes, const char* what) {
  if (text == nullptr && bytes > 0) refuse(std::string(what) + ": NULL");
  return {text, bytes};
}

std::uint32_t number_of(std::size_t number, std::size_t count, const char* what) {
  if (number < count) return static_cast<std::uint32_t>(number);
  refuse(std::string(what) + " " + std::to_string(number) + ": there are only " +
         std::to_string(count) + ", counted from 0");
}

std::uint32_t tensor_of(const stfs_checkpoint& handle, std::size_t tensor) {
  return number_of(tensor, handle.opened.checkpoint().tensor_count(), "tensor");
}

stfs::PartOfTensor part_of(const stfs_checkpoint& handle, const stfs_part* given) {
  if (given == nullptr) refuse("the part: NULL");
  const stfs_part part = stfs::abi::read_sized(given, "the part");
  stfs::PartOfTensor request{.tensor = tensor_of(handle, part.tensor)};
  if (part.slice != nullptr) request.options.slice = part.slice;
  if (part.as != nullptr) {
    if (std::string_view(part.as) != "f32") {
      refuse("as " + stfs::in_quotes(part.as) + ": expected \"f32\" or NULL");
    }
    request.options.as_f32 = true;
  }
  return request;
}

// The functions of Python that are used. They are found by name, because the library is not linked
// with Python.
struct Python {
  void* (*make)(void* content, const char* name, void (*destroy)(void* capsule)) = nullptr;
  void* (*pointer)(void* capsule, const char* name) = nullptr;
  int (*is_valid)(void* capsule, const char* name) = nullptr;
  void* (*no_memory)() = nullptr;  // sets MemoryError
  void* (*call)(void* function, void* arguments) = nullptr;
  void (*release)(void* object) = nullptr;
  void* (*bytes)(const char* data, std::ptrdiff_t length) = nullptr;
  int (*is_raised)(void* type) = nullptr;
  void** runtime_error = nullptr;  // the type
  void (*clear)() = nullptr;       // clears the exception
  int (*check_signals)() = nullptr;
  void* (*unlock)() = nullptr;
  void (*lock)(void* state) = nullptr;
  bool is_there = true;

  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
    is_there = is_there && function != nullptr;
  }
};

const Python& python_functions() {
  static const Python functions = [] {
    Python found;
    found.find(found.make, "PyCapsule_New");
    found.find(found.pointer, "PyCapsule_GetPointer");
    found.find(found.is_valid, "PyCapsule_IsValid");
    found.find(found.no_memory, "PyErr_NoMemory");
    found.find(found.call, "PyObject_CallObject");
    found.find(found.release, "Py_DecRef");
    found.find(found.bytes, "PyBytes_FromStringAndSize");
    found.find(found.is_raised, "PyErr_ExceptionMatches");
    found.find(found.runtime_error, "PyExc_RuntimeError");
    found.find(found.clear, "PyErr_Clear");
    found.find(found.check_signals, "PyErr_CheckSignals");
    found.find(found.unlock, "PyEval_SaveThread");
    found.find(found.lock, "PyEval_RestoreThread");
    return found;
  }();
  return functions;
}

// The names of capsules that own an object. The names of DLPack's capsules are part of its
// protocol.
constexpr const char* kOwned[] = {"stfs_checkpoint",     "stfs_mapping",     "stfs_follower",
                                  "stfs_gpu_connection", "stfs_gpu_tensors", "dltensor",
                                  "dltensor_versioned"};
constexpr const char* kSlot = "stfs_slot";

// The content of a capsule named kSlot: the object that a call created, or null before that.
struct Slot {
  const char* name = nullptr;  // one of kOwned
  void* content = nullptr;
};

// Frees the content of a capsule, with the GIL released: freeing device memory waits for the work
// on the device, which may need the GIL.
void destroy(std::string_view name, void* content) {
  if (content == nullptr) return;
  const Python& python = python_functions();
  void* const state = python.unlock();
  if (name == "stfs_checkpoint") stfs_close(static_cast<stfs_checkpoint*>(content));
  if (name == "stfs_mapping") stfs_unmap(static_cast<stfs_mapping*>(content));
  if (name == "stfs_follower") stfs_unfollow(static_cast<stfs_follower*>(content));
  if (name == "stfs_gpu_connection") {
    stfs_gpu_disconnect(static_cast<stfs_gpu_connection*>(content));
  }
  if (name == "stfs_gpu_tensors") stfs_gpu_release(static_cast<stfs_gpu_tensors*>(content));
  if (name == "dltensor") {
    auto* const tensor = static_cast<DLManagedTensor*>(content);
    tensor->deleter(tensor);
  }
  if (name == "dltensor_versioned") {
    auto* const tensor = static_cast<DLManagedTensorVersioned*>(content);
    tensor->deleter(tensor);
  }
  python.lock(state);
}

bool is_bytes(unsigned flags) {
  if ((flags & ~STFS_EXPORT_BYTES) != 0) {
    refuse("flags: a flag that this version does not support");
  }
  return flags == STFS_EXPORT_BYTES;
}

void make_table(stfs_checkpoint& handle) {
  const stfs::Checkpoint& checkpoint = handle.opened.checkpoint();
  const std::uint32_t count = checkpoint.tensor_count();
  std::size_t bytes = 0;
  for (std::uint32_t i = 0; i < count; ++i) bytes += checkpoint.name(i).size() + 1;
  handle.names.reserve(bytes);
  handle.table.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const stfs::Tensor tensor = checkpoint.list().tensor(i);
    stfs_tensor& row = handle.table.emplace_back();
    row.name = handle.names.data() + handle.names.size();
    row.name_bytes = tensor.name.size();
    handle.names.append(tensor.name) += '\0';
    row.dtype = stfs::dtype_name(tensor.dtype).data();  // the literal ends in a NUL
    row.rank = tensor.shape.size();
    row.shape = tensor.shape.data();
    row.elements = tensor.elements();
    row.bytes = tensor.length;
    if (tensor.locator) {
      row.source = tensor.locator->source->path().c_str();
      row.offset = tensor.locator->offset;
      row.source_bytes = tensor.locator->source->size();
    }
  }
}

std::string names_of_inputs(const stfs::Tensor& tensor) {
  std::string json = "[";
  if (tensor.computed != nullptr) {
    for (const stfs::Tensor& input : tensor.computed->inputs()) {
      (json += json.size() == 1 ? "" : ",") += stfs::json_string(input.name);
    }
  }
  return json + "]";
}

std::string text_of(stfs_checkpoint& handle, int which, std::size_t number) {
  const stfs::Checkpoint& checkpoint = handle.opened.checkpoint_here();
  switch (which) {
    case STFS_TEXT_INFO: {
      std::string text;
      stfs::TextWriter writer(text);
      stfs::write_info_json(checkpoint, writer);
      return text;
    }
    case STFS_TEXT_TENSOR: return stfs::tensor_json(checkpoint.tensor(tensor_of(handle, number)));
    case STFS_TEXT_INPUTS: return names_of_inputs(checkpoint.tensor(tensor_of(handle, number)));
    case STFS_TEXT_KEY:
    case STFS_TEXT_METADATA: {
      const std::uint32_t entry =
          number_of(number, checkpoint.metadata_count(), "the metadata entry");
      return which == STFS_TEXT_KEY ? std::string(checkpoint.metadata_item(entry).key)
                                    : handle.opened.metadata_text(entry);
    }
    default: refuse("text " + std::to_string(which) + ": unknown to this version of the library");
  }
}

}  // namespace

const char* stfs_last_error() { return stfs::abi::last_error.text(); }

int stfs_last_errno() { return stfs::abi::last_error.system_error(); }

const char* stfs_version() { return STFS_VERSION; }

int stfs_open(const char* const* sources, size_t count, const char* const* options,
              size_t option_count, const stfs_open_extra* extra, stfs_checkpoint** checkpoint) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(checkpoint);
    const stfs_open_extra given = stfs::abi::read_sized(extra, "the extra");
    if (given.reserved[0] != nullptr) {
      refuse("the extra: libstfs calls no callback while it waits: call stfs_cancel() instead");
    }
    auto handle = std::make_unique<stfs_checkpoint>(
        texts(sources, count, "source"), stfs::OpenOptions(texts(options, option_count, "option")));
    make_table(*handle);
    *checkpoint = handle.release();
  });
}

void stfs_close(stfs_checkpoint* checkpoint) { delete checkpoint; }

void stfs_cancel(stfs_checkpoint* checkpoint) {
  if (checkpoint != nullptr) guarded<STFS_UNREADABLE>([&] { checkpoint->opened.cancel(); });
}

int stfs_is_remote(const stfs_checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->opened.is_remote() ? 1 : 0;
}

int stfs_has_secrets(const stfs_checkpoint* checkpoint) {
  return checkpoint != nullptr && checkpoint->opened.has_secrets() ? 1 : 0;
}

const char* stfs_checkpoint_version(const stfs_checkpoint* checkpoint) {
  return checkpoint == nullptr ? "" : checkpoint->opened.version().c_str();
}

const char* stfs_source(const stfs_checkpoint* checkpoint, size_t index) {
  if (checkpoint == nullptr) return nullptr;
  const std::vector<std::string>& sources = checkpoint->opened.pinned_sources();
  return index < sources.size() ? sources[index].c_str() : nullptr;
}

const char* stfs_option(const stfs_checkpoint* checkpoint, size_t index) {
  if (checkpoint == nullptr) return nullptr;
  const std::vector<std::string>& options = checkpoint->opened.pinned_options();
  return index < options.size() ? options[index].c_str() : nullptr;
}

const char* stfs_warning(const stfs_checkpoint* checkpoint, size_t index) {
  return checkpoint == nullptr ? nullptr : checkpoint->opened.warning(index);
}

int stfs_tensors(const stfs_checkpoint* checkpoint, stfs_table* table) {
  return guarded<STFS_UNREADABLE>([&] {
    const stfs_checkpoint& handle = checked(checkpoint);
    stfs_table known{};
    known.count = handle.table.size();
    known.stride = sizeof(stfs_tensor);
    known.first = handle.table.data();
    known.names = handle.names.c_str();
    known.names_bytes = handle.names.size();
    stfs::abi::write_sized(known, table, "the table");
  });
}

int stfs_find(const stfs_checkpoint* checkpoint, const char* name, size_t name_bytes,
              size_t* tensor) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(tensor);
    const stfs::Checkpoint& all = checked(checkpoint).opened.checkpoint();
    const std::string_view wanted = bytes_of(name, name_bytes, "the name");
    const std::optional<std::uint32_t> found = all.find(wanted);
    if (!found) refuse(stfs::no_such_tensor(all, std::string(wanted)));
    *tensor = *found;
  });
}

int stfs_match(const stfs_checkpoint* checkpoint, const char* glob, size_t glob_bytes,
               size_t* tensors, size_t capacity, size_t* count) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(count);
    if (capacity > 0 && tensors == nullptr) refuse("the numbers: NULL");
    const std::array globs{std::string(bytes_of(glob, glob_bytes, "the glob"))};
    const std::vector<std::uint32_t> found = checked(checkpoint).opened.checkpoint().match(globs);
    std::copy_n(found.begin(), std::min(capacity, found.size()), tensors);
    *count = found.size();
  });
}

int stfs_text(stfs_checkpoint* checkpoint, int which, size_t number, const char** text,
              size_t* bytes) {
  return guarded<STFS_UNREADABLE>([&] {
    thread_local std::string kept;
    stfs::abi::prepare(text);
    stfs::abi::prepare(bytes);
    kept = text_of(checked(checkpoint), which, number);
    *text = kept.c_str();
    *bytes = kept.size();
  });
}

int stfs_get_part_info(const stfs_checkpoint* checkpoint, const stfs_part* part,
                       stfs_part_info* info) {
  return guarded<STFS_UNREADABLE>([&] {
    const stfs_checkpoint& handle = checked(checkpoint);
    const stfs::PartRecipe recipe = handle.opened.recipe(part_of(handle, part));
    stfs_part_info known{};
    if (recipe.shape.size() > std::size(known.shape)) {
      refuse("the tensor has " + std::to_string(recipe.shape.size()) +
             " dimensions: stfs_tensors has them all");
    }
    known.bytes = recipe.content.size();
    known.elements = 1;
    for (const std::uint64_t dimension : recipe.shape) known.elements *= dimension;
    known.dtype = stfs::dtype_name(recipe.dtype).data();
    known.rank = recipe.shape.size();
    std::ranges::copy(recipe.shape, known.shape);
    stfs::abi::write_sized(known, info, "the part's info");
  });
}

int stfs_read(stfs_checkpoint* checkpoint, const stfs_part* part, uint64_t offset, void* buffer,
              size_t bytes) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs_checkpoint& handle = checked(checkpoint);
    if (bytes > 0 && buffer == nullptr) refuse("the buffer: NULL");
    handle.opened.read(part_of(handle, part), offset, {static_cast<std::byte*>(buffer), bytes});
  });
}

int stfs_map(stfs_checkpoint* checkpoint, size_t tensor, uint64_t offset, uint64_t bytes,
             const void** address) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(address);
    stfs_checkpoint& handle = checked(checkpoint);
    *address = handle.opened.map(tensor_of(handle, tensor), offset, bytes);
  });
}

int stfs_map_private(stfs_checkpoint* checkpoint, const stfs_part* part, void** address,
                     stfs_mapping** mapping) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(address);
    stfs::abi::prepare(mapping);
    stfs_checkpoint& handle = checked(checkpoint);
    auto made = std::make_unique<stfs_mapping>();
    std::byte* data = nullptr;
    made->memory = handle.opened.map_private(part_of(handle, part), data);
    *address = data;
    *mapping = made.release();
  });
}

int stfs_map_private_file(stfs_checkpoint* checkpoint, size_t tensor, void** address,
                          stfs_mapping** mapping) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(address);
    stfs::abi::prepare(mapping);
    stfs_checkpoint& handle = checked(checkpoint);
    auto made = std::make_unique<stfs_mapping>();
    made->memory = handle.opened.map_private_file(tensor_of(handle, tensor));
    if (made->memory.data() == nullptr) return;
    *address = made->memory.data();
    *mapping = made.release();
  });
}

void stfs_unmap(stfs_mapping* mapping) { delete mapping; }

int stfs_export(stfs_checkpoint* checkpoint, const stfs_part* part, unsigned flags,
                DLManagedTensorVersioned** exported) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(exported);
    stfs_checkpoint& handle = checked(checkpoint);
    *exported = stfs::export_dlpack(handle.opened, part_of(handle, part), is_bytes(flags));
  });
}

int stfs_export_unversioned(stfs_checkpoint* checkpoint, const stfs_part* part, unsigned flags,
                            DLManagedTensor** exported) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(exported);
    stfs_checkpoint& handle = checked(checkpoint);
    *exported =
        stfs::export_dlpack_unversioned(handle.opened, part_of(handle, part), is_bytes(flags));
  });
}

void stfs_python_destroy(void* capsule) {
  const Python& python = python_functions();
  if (!python.is_there) return;
  for (const char* const name : kOwned) {
    if (python.is_valid(capsule, name) != 0) destroy(name, python.pointer(capsule, name));
  }
  if (python.is_valid(capsule, kSlot) == 0) return;
  const std::unique_ptr<Slot> slot(static_cast<Slot*>(python.pointer(capsule, kSlot)));
  destroy(slot->name, slot->content);
}

void* stfs_python_slot(const char* name, void*** content) {
  const char* const* const owned = std::ranges::find(kOwned, std::string_view(name));
  const Python& python = python_functions();
  if (owned == std::end(kOwned) || !python.is_there) return nullptr;
  auto* const slot = new (std::nothrow) Slot{*owned};
  if (slot == nullptr) return python.no_memory();
  void* const capsule = python_functions().make(slot, kSlot, &stfs_python_destroy);
  if (capsule == nullptr) {
    delete slot;
    return nullptr;
  }
  *content = &slot->content;
  return capsule;
}

void* stfs_python_release(void* capsule) {
  auto* const slot = static_cast<Slot*>(python_functions().pointer(capsule, kSlot));
  if (slot == nullptr) return nullptr;
  void* const made = python_functions().make(slot->content, slot->name, &stfs_python_destroy);
  if (made != nullptr) slot->content = nullptr;
  return made;
}

void* stfs_python_text(stfs_checkpoint* checkpoint, int which, size_t number, int* status) {
  const Python& python = python_functions();
  if (!python.is_there) return nullptr;
  std::string text;
  void* const state = python.unlock();
  *status = guarded<STFS_UNREADABLE>([&] { text = text_of(checked(checkpoint), which, number); });
  python.lock(state);
  // The object has a copy.
  // cppcheck-suppress returnDanglingLifetime
  return python.bytes(text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

void stfs_python_ended(int* has_ended) {
  __atomic_store_n(has_ended, 1, __ATOMIC_RELEASE);
  ::syscall(SYS_futex, has_ended, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

int stfs_python_wait(stfs_checkpoint* checkpoint, void* start, int* has_ended) {
  // Check for signals this often, because another thread may get them.
  constexpr std::chrono::milliseconds kSignals{100};
  // Cancel this often, because the call may not be waiting yet.
  constexpr std::chrono::milliseconds kCancel{5};
  const Python& python = python_functions();
  if (!python.is_there) return -1;
  void* const started = python.call(start, nullptr);
  if (started == nullptr) {
    if (python.is_raised(*python.runtime_error) == 0) return 0;
    python.clear();  // "can't start new thread"
    return -1;
  }
  python.release(started);
  const std::uint64_t process = stfs::this_process();
  const auto has = [&] { return __atomic_load_n(has_ended, __ATOMIC_ACQUIRE) != 0; };
  const auto wait = [&](std::chrono::milliseconds most) {
    const timespec limit{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(most).count()};
    ::syscall(SYS_futex, has_ended, FUTEX_WAIT_PRIVATE, 0, &limit, nullptr, 0);
  };
  bool has_raised = false;
  // A handler may fork, and the child does not have the other thread.
  while (!has() && !has_raised && stfs::this_process() == process) {
    void* const state = python.unlock();
    wait(kSignals);
    python.lock(state);
    has_raised = python.check_signals() != 0;
  }
  if (!has_raised || checkpoint == nullptr || stfs::this_process() != process) return 0;
  void* const state = python.unlock();
  while (!has()) {
    stfs_cancel(checkpoint);
    wait(kCancel);
  }
  python.lock(state);
  return 0;
}

int stfs_save(stfs_checkpoint* checkpoint, const char* path, const stfs_save_options* options,
              uint64_t* shared) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs_checkpoint& handle = checked(checkpoint);
    if (path == nullptr) refuse("the path: NULL");
    const stfs_save_options given = stfs::abi::read_sized(options, "the options");
    const std::uint64_t bytes = handle.opened.save({path, given.shard_bytes, given.replace != 0});
    if (shared != nullptr) *shared = bytes;
  });
}

int stfs_save_delta(stfs_checkpoint* before, stfs_checkpoint* after, const char* directory,
                    const char* const* options, size_t option_count, size_t* changed) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs_checkpoint& handle = checked(after);
    if (directory == nullptr) refuse("the directory: NULL");
    const stfs::DeltaWords given(texts(options, option_count, "option"));
    const stfs::NewDelta made =
        handle.opened.save_delta(checked(before).opened, directory, given.delta);
    if (changed != nullptr) *changed = made.changed;
  });
}

int stfs_follow(const char* directory, const char* const* options, size_t option_count,
                stfs_follower** follower) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(follower);
    if (directory == nullptr) refuse("the directory: NULL");
    const stfs::FollowOptions given(texts(options, option_count, "option"));
    *follower = new stfs_follower{stfs::FollowerHandle(directory, given)};
  });
}

int stfs_next_version(stfs_follower* follower, const char** version) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs::abi::prepare(version);
    if (follower == nullptr) refuse("the follower: NULL");
    *version = follower->followed.next();
  });
}

void stfs_follow_cancel(stfs_follower* follower) {
  if (follower != nullptr) guarded<STFS_UNREADABLE>([&] { follower->followed.cancel(); });
}

void stfs_unfollow(stfs_follower* follower) {
  if (follower == nullptr || follower->followed.is_inherited()) return;
  delete follower;
}

int stfs_prefetch(stfs_checkpoint* checkpoint, const size_t* tensors, size_t count) {
  return guarded<STFS_UNREADABLE>([&] {
    stfs_checkpoint& handle = checked(checkpoint);
    if (count > 0 && tensors == nullptr) refuse("the tensors: NULL");
    for (std::size_t i = 0; i < count; ++i) handle.opened.prefetch(tensor_of(handle, tensors[i]));
  });
}

// Names of 0.2.0 that were replaced. Programs that were linked with 0.2.0 find them until the
// release after the next one; no header declares them.
extern "C" {
STFS_API int stfs_is_elsewhere(const stfs_checkpoint* checkpoint) {
  return stfs_is_remote(checkpoint);
}

STFS_API const char* stfs_version_of(const stfs_checkpoint* checkpoint) {
  return stfs_checkpoint_version(checkpoint);
}

STFS_API int stfs_measure_part(const stfs_checkpoint* checkpoint, const stfs_part* part,
                               stfs_part_info* info) {
  return stfs_get_part_info(checkpoint, part, info);
}
}
