#include "tools/library/checkpoint_handle.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/base/while_wanted.h"
#include "core/checkpoint/mount_source.h"
#include "core/opened/read_failure.h"
#include "core/recipe/fetch_missing.h"
#include "core/remote/http/url.h"
#include "core/write/save.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <thread>

namespace stfs {
namespace {

[[noreturn]] void refuse(const std::string& rule) { throw Error(ErrorCode::kUsage, "", rule); }

// Returns true if a URL in a text has a user or a query. May also return true for other texts,
// because a glob after a URL may contain "?" too.
bool has_secret(std::string_view text) {
  constexpr std::string_view kMark = "://";
  for (std::size_t mark = text.find(kMark); mark != std::string_view::npos;
       mark = text.find(kMark, mark + 1)) {
    const std::size_t begin = mark + kMark.size();
    const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
    const std::size_t host = std::min(line.find_first_of("/?#"), line.size());
    const char scheme = mark == 0 ? ' ' : static_cast<char>(text[mark - 1] | ' ');  // lower case
    const bool has_query = scheme == 'p' || scheme == 's';  // http and https, but not s3 and hf
    if (line.substr(0, host).find('@') != std::string_view::npos) return true;
    if (has_query && line.find('?') != std::string_view::npos) return true;
  }
  return false;
}

constexpr std::size_t kLeastMapped = 256 << 10;  // bytes; fewer bytes are read, not mapped

// The maximum number of private mappings of one file that lend its bytes. This many copies of a
// tensor need no memory of their own.
constexpr std::size_t kMaxLending = 64;

// The minimum number of bytes for each thread of a copy.
constexpr std::uint64_t kPiece = 1 << 20;

int copy_on_threads(const Content& content, std::uint64_t offset, std::span<std::byte> out) {
  const std::uint64_t pieces = (out.size() + kPiece - 1) / kPiece;
  const std::uint64_t threads =
      std::min<std::uint64_t>(std::thread::hardware_concurrency(), out.size() / kPiece);
  if (threads < 2) return content.copy_unverified(offset, out);
  // The next piece to copy. Threads take pieces one by one, because some threads may not start.
  std::atomic<std::uint64_t> next = 0;
  std::atomic<int> failure = 0;
  on_threads(threads, [&](std::size_t) {
    for (std::uint64_t i = next++; i < pieces; i = next++) {
      const std::uint64_t begin = i * kPiece;
      const std::uint64_t length = std::min(kPiece, out.size() - begin);
      if (const int error = content.copy_unverified(offset + begin, out.subspan(begin, length))) {
        failure = error;
      }
    }
  });
  return failure;
}

std::uint64_t alignment_of(DType dtype) {
  const TypeInfo& info = type_info(dtype);
  return info.block_elements == 1 ? info.block_bytes : 1;
}

std::string subject_of(const Checkpoint& checkpoint, std::uint32_t tensor) {
  return "tensor " + in_quotes(checkpoint.name(tensor));
}

void refuse_cancelled(const std::string& subject, int error) {
  if (error != EINTR) return;
  throw Error(ErrorCode::kUnreadable, "", subject + ": cancelled", ECANCELED);
}

// Throws the Error for a failed read of a tensor, or for a cancelled call.
[[noreturn]] void fail(const Checkpoint& checkpoint, std::uint32_t tensor, int error) {
  refuse_cancelled(subject_of(checkpoint, tensor), error);
  throw read_failure(checkpoint.tensor(tensor), error);
}

}  // namespace

// Registers a call that may wait for the network, so that cancel() can stop it. The call is
// registered as long as this object exists.
class Opened::Call {
 public:
  explicit Call(Loaded& of) : of_(of) {
    const std::lock_guard lock(of_.mutex);
    of_.calls.push_back(&stop_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    const std::lock_guard lock(of_.mutex);
    std::erase(of_.calls, &stop_);
  }
  std::atomic<bool>& stop() { return stop_; }

 private:
  Loaded& of_;
  std::atomic<bool> stop_ = false;
};

Opened::Loaded::~Loaded() {
  if (checkpoint == nullptr) return;
  std::size_t i = 0;
  for (const Part& part : checkpoint->parts()) {
    if (std::byte* const data = mapped[i++]) ::munmap(data, part.source->size());
  }
}

Opened::Opened(std::vector<std::string> sources, OpenOptions options)
    : names_(std::move(sources)), options_(std::move(options)) {
  if (names_.empty()) refuse("no source is named");
  for (const std::string& name : names_) again_.push_back(is_url(name) ? name : absolute(name));
  std::unique_ptr<Loaded> first = load(names_, options_, "");
  const Checkpoint& checkpoint = *first->checkpoint;
  files_read_ = first->sources->files_read();
  version_ = version_of(checkpoint.list());
  options_.load.layers = checkpoint.layers();  // for children with another working directory
  pinned_ = checkpoint.origins();
  for (const std::string& name : names_) has_secrets_ |= has_secret(name);
  for (const Layer& layer : options_.load.layers) {
    pinned_options_.push_back(layer.option + "=" + layer.argument);
    has_secrets_ |= has_secret(layer.argument);
  }
  pinned_options_.insert(pinned_options_.end(), options_.others.begin(), options_.others.end());
  if (!options_.version.empty() && options_.version != version_) {
    throw Error(ErrorCode::kUnreadable, public_name(names_.front()),
                "not the version that was asked for: the file has changed", ESTALE);
  }
  std::vector<Sources::Beginning> beginnings;
  for (const Part& part : checkpoint.parts()) {
    if (!is_url(part.source->path())) continue;
    beginnings.push_back({part.source.get(), part.beginning()});
  }
  if (!beginnings.empty()) resolutions_ = first->sources->resolutions(beginnings);
  const TensorList& list = checkpoint.list();
  is_plain_ = beginnings.empty() && !list.is_layered();
  for (std::uint32_t i = 0; is_plain_ && i < list.size(); ++i) {
    is_plain_ = list.row(i).computed == nullptr;
  }
  first_ = first.release();
}

Opened::~Opened() {
  for (Loaded* const loaded : {first_, own_.load()}) {
    if (loaded != nullptr && loaded->process == this_process()) delete loaded;
  }
}

std::unique_ptr<Opened::Loaded> Opened::load(std::span<const std::string> names,
                                             const OpenOptions& options,
                                             std::string_view resolutions) {
  auto loaded = std::make_unique<Loaded>();
  loaded->sources = std::make_unique<Sources>(options.sources);
  if (!resolutions.empty()) loaded->sources->use(resolutions);
  LoadOptions how = options.load;
  how.sources = loaded->sources.get();
  loaded->own = std::make_unique<const Checkpoint>(names, how);
  loaded->checkpoint = loaded->own.get();
  if (!resolutions.empty()) loaded->sources->start_fetching();
  loaded->mapped = std::make_unique<std::atomic<std::byte*>[]>(loaded->checkpoint->parts().size());
  return loaded;
}

std::unique_ptr<Opened::Loaded> Opened::load_here() const {
  if (is_plain_) {
    auto loaded = std::make_unique<Loaded>();
    loaded->sources = std::make_unique<Sources>(options_.sources);
    loaded->checkpoint = first_->checkpoint;
    for (const std::string& path : files_read_) loaded->sources->note_read(path);
    loaded->mapped =
        std::make_unique<std::atomic<std::byte*>[]>(loaded->checkpoint->parts().size());
    return loaded;
  }
  std::unique_ptr<Loaded> loaded = load(again_, options_, resolutions_);
  const std::string version = version_of(loaded->checkpoint->list());
  const auto is_known = [&] {
    if (!are_copies_current(checkpoint())) return false;
    if (version == version_) return true;
    // If a change of a file's rights has set its ctime, the same version has another token.
    for (const Part& part : checkpoint().parts()) {
      if (part.source->local_file() == nullptr || part.source->verify() != 0) return false;
    }
    return version == version_of(checkpoint().list());
  };
  if (is_known()) return loaded;
  throw Error(ErrorCode::kUnreadable, public_name(names_.front()),
              "changed while it was open: open it again when no program writes to it", ESTALE);
}

Opened::Loaded& Opened::loaded() const {
  const std::uint64_t process = this_process();
  if (first_->process == process) return *first_;
  Loaded* own = own_.load();
  while (own == nullptr || own->process != process) {
    std::unique_ptr<Loaded> made = load_here();
    // Another thread may have been faster. The object of a parent process is never destroyed.
    if (own_.compare_exchange_strong(own, made.get())) own = made.release();
  }
  return *own;
}

PartRecipe Opened::recipe_of(const Checkpoint& checkpoint, const PartOfTensor& part) {
  const Tensor tensor = checkpoint.tensor(part.tensor);
  PartRecipe recipe;
  if (part_recipe(tensor, part.options, recipe) != 0) {
    refuse(subject_of(checkpoint, part.tensor) + ": " + part_refusal(tensor, part.options));
  }
  return recipe;
}

NewDelta Opened::save_delta(Opened& before, const std::string& directory, DeltaOptions options) {
  Loaded& from = loaded();
  const Checkpoint& old = before.checkpoint_here();
  options.output = directory;
  options.threads = std::clamp(std::thread::hardware_concurrency(), 1U, 8U);
  options.at_signal = SignalCleanup::kNothing;
  set_numbers(options);
  NewDelta made;
  write_while_wanted(from, [&](const std::atomic<bool>& stop) {
    options.stop = &stop;
    made = write_delta(old, *from.checkpoint, names_.front(), options, [](std::uint64_t) {});
  });
  return made;
}

// Runs `work`, which must throw an Error soon after `stop` is set.
void Opened::write_while_wanted(Loaded& from,
                                const std::function<void(const std::atomic<bool>& stop)>& work) {
  const int error = wait_for(from, [&](const std::atomic<bool>& stop) {
    try {
      work(stop);
    } catch (const Error&) {
      if (!stop) throw;
      return ECANCELED;
    }
    return 0;
  });
  if (error != 0) {
    throw Error(ErrorCode::kUnreadable, public_name(names_.front()), "cancelled", error);
  }
}

std::uint64_t Opened::save(const SaveTo& to) {
  Loaded& from = loaded();
  struct stat status {};
  if (!to.replaces && ::lstat(to.path.c_str(), &status) == 0) {
    throw Error(ErrorCode::kUsage, to.path,
                "already exists: choose another name, or use `replace`");
  }
  std::uint64_t shared = 0;
  write_while_wanted(from, [&](const std::atomic<bool>& stop) {
    const SaveOptions how{
        .source = names_.front(), .output = to.path, .shard_size = to.shard_size, .stop = &stop};
    if (means_directory(how)) {
      const auto now = with_model_files(from);
      shared = stfs::save(*now, *from.sources, how, to.replaces);
      keep_warnings(*now);
    } else {
      shared = stfs::save(*from.checkpoint, *from.sources, how, to.replaces);
    }
  });
  return shared;
}

void Opened::keep_warnings(const Checkpoint& saved) {
  const std::vector<std::string>& known = checkpoint().warnings();
  const std::lock_guard lock(saved_mutex_);
  for (const std::string& line : saved.warnings()) {
    if (std::ranges::find(known, line) != known.end()) continue;
    if (std::ranges::find(saved_, line) == saved_.end()) saved_.push_back(line);
  }
}

const char* Opened::warning(std::size_t index) const {
  const std::vector<std::string>& warnings = checkpoint().warnings();
  if (index < warnings.size()) return warnings[index].c_str();
  const std::lock_guard lock(saved_mutex_);
  index -= warnings.size();
  return index < saved_.size() ? saved_[index].c_str() : nullptr;
}

std::unique_ptr<const Checkpoint> Opened::with_model_files(const Loaded& from) const {
  LoadOptions how = options_.load;
  how.sources = from.sources.get();
  how.with_model_files = true;
  auto now = std::make_unique<const Checkpoint>(again_, how);
  if (version_of(now->list()) == version_ && are_copies_current(*from.checkpoint)) return now;
  throw Error(ErrorCode::kUnreadable, public_name(names_.front()),
              "changed since it was opened: open it again", ESTALE);
}

int Opened::wait_for(Loaded& from,
                     const std::function<int(const std::atomic<bool>& stop)>& work) const {
  Call call(from);
  const WhileWanted while_wanted([&] { return !call.stop(); });  // also stops computations
  return work(call.stop());
}

int Opened::copy(Loaded& from, const Content& content, std::uint64_t offset,
                 std::span<std::byte> out) const {
  int error =
      content.missing(offset, out.size()).empty() ? copy_on_threads(content, offset, out) : EAGAIN;
  if (error == EAGAIN) {
    error = wait_for(from, [&](const std::atomic<bool>& stop) {
      constexpr std::size_t kRead = 4 << 20;  // bytes at a time, while the next bytes are fetched
      SequentialReader reader(content, &stop);
      for (std::size_t done = 0; done < out.size(); done += kRead) {
        const std::size_t length = std::min(kRead, out.size() - done);
        const int failure = reader.copy_unverified(offset + done, out.subspan(done, length));
        if (failure != 0) return failure;
      }
      return 0;
    });
  }
  if (error == EINTR) return error;
  const int changed = content.verify(offset, out.size());
  return changed != 0 ? changed : error;
}

void Opened::read(const PartOfTensor& part, std::uint64_t offset, std::span<std::byte> out) {
  Loaded& from = loaded();
  const PartRecipe recipe = recipe_of(*from.checkpoint, part);
  const std::uint64_t size = recipe.content.size();
  if (offset > size || out.size() > size - offset) {
    refuse(subject_of(*from.checkpoint, part.tensor) + ": has " + std::to_string(size) +
           " bytes; " + std::to_string(out.size()) + " from byte " + std::to_string(offset) +
           " on reach past its end");
  }
  if (const int error = copy(from, recipe.content, offset, out)) {
    fail(*from.checkpoint, part.tensor, error);
  }
}

int Opened::fetch(Loaded& from, const Extent& extent) const {
  int error = 0;
  if (extent.source->local_file() == nullptr) {
    error = wait_for(from, [&](const std::atomic<bool>& stop) {
      int failure = 0;
      for (std::uint64_t done = 0; failure == 0 && done < extent.length; done += kMaxMissing) {
        failure = stfs::fetch(std::vector{extent.part(done, kMaxMissing)}, &stop);
      }
      return failure;
    });
  }
  return error != 0 ? error : extent.source->verify();
}

std::byte* Opened::file_of(Loaded& from, std::uint32_t part, int descriptor) {
  std::atomic<std::byte*>& place = from.mapped[part];
  if (std::byte* const data = place.load(std::memory_order_acquire)) return data;
  const Source& source = *from.checkpoint->parts()[part].source;
  const auto size = static_cast<std::size_t>(source.size());
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return nullptr;
  std::byte* before = nullptr;
  if (place.compare_exchange_strong(before, static_cast<std::byte*>(data))) {
    return static_cast<std::byte*>(data);
  }
  ::munmap(data, size);  // another thread was faster
  return before;
}

const std::byte* Opened::map(std::uint32_t tensor, std::uint64_t offset, std::uint64_t length) {
  Loaded& from = loaded();
  const Checkpoint& checkpoint = *from.checkpoint;
  const std::optional<Extent> whole = checkpoint.locator(tensor);
  const std::uint64_t size = whole ? whole->length : checkpoint.tensor(tensor).length;
  if (offset > size || length > size - offset) {
    refuse(subject_of(checkpoint, tensor) + ": has " + std::to_string(size) + " bytes");
  }
  if (!whole || length == 0) return nullptr;
  const Extent extent = whole->part(offset, length);
  if (const int error = fetch(from, extent)) fail(checkpoint, tensor, error);
  const int descriptor = extent.source->descriptor({extent.offset, extent.length});
  if (descriptor < 0) return nullptr;
  const std::byte* const file = file_of(from, checkpoint.list().row(tensor).part, descriptor);
  return file == nullptr ? nullptr : file + extent.offset;
}

Memory Opened::map_private(const PartOfTensor& part, std::byte*& data) {
  Loaded& from = loaded();
  const PartRecipe recipe = recipe_of(*from.checkpoint, part);
  const auto size = static_cast<std::size_t>(recipe.content.size());
  data = nullptr;
  if (size == 0) return {};
  const std::optional<Extent> extent = recipe.content.extent();
  if (extent && size >= kLeastMapped && extent->offset % alignment_of(recipe.dtype) == 0) {
    if (const int error = fetch(from, *extent)) fail(*from.checkpoint, part.tensor, error);
    const int descriptor = extent->source->descriptor({extent->offset, extent->length});
    Memory memory = private_part(from, *extent, descriptor);
    data = memory.data();
    if (data != nullptr) return memory;
  }
  Memory memory(size);
  data = memory.data();
  if (const int error = copy(from, recipe.content, 0, {data, size})) {
    fail(*from.checkpoint, part.tensor, error);
  }
  return memory;
}

// Returns a part of a private mapping of the extent's file. Returns an empty Memory if no mapping
// is possible.
Memory Opened::private_part(Loaded& from, const Extent& extent, int descriptor) {
  const auto begin = static_cast<std::size_t>(extent.offset);
  const auto length = static_cast<std::size_t>(extent.length);
  const auto whole = static_cast<std::size_t>(extent.source->size());
  const std::lock_guard lock(from.mutex);
  std::vector<std::shared_ptr<PrivateFile>>& files = from.lent[extent.source];
  for (const std::shared_ptr<PrivateFile>& file : files) {
    if (std::byte* const data = file->lend(begin, length, descriptor)) return {file, data};
  }
  if (files.size() == kMaxLending) return {};
  Memory mapping = Memory::mapped(descriptor, whole);
  if (mapping.data() == nullptr) return {};
  const auto& file = files.emplace_back(std::make_shared<PrivateFile>(mapping.release(), whole));
  return {file, file->lend(begin, length, descriptor)};
}

Memory Opened::map_private_file(std::uint32_t tensor) {
  Loaded& from = loaded();
  const std::optional<Extent> extent = from.checkpoint->locator(tensor);
  if (!extent || extent->length == 0 || extent->source->local_file() == nullptr) return {};
  if (const int error = extent->source->verify()) fail(*from.checkpoint, tensor, error);
  return Memory::mapped(extent->source->descriptor({extent->offset, extent->length}),
                        static_cast<std::size_t>(extent->source->size()));
}

std::string Opened::metadata_text(std::uint32_t entry) {
  Loaded& from = loaded();
  const MetadataItem item = from.checkpoint->metadata_item(entry);
  Content content;
  int error = make_text(item, content);
  std::string text(static_cast<std::size_t>(content.size()), '\0');
  if (error == 0) error = copy(from, content, 0, std::as_writable_bytes(std::span(text)));
  const std::string subject = "metadata " + in_quotes(item.key);
  refuse_cancelled(subject, error);
  if (error != 0) throw read_failure(*from.checkpoint, subject, error);
  return text;
}

void Opened::prefetch(std::uint32_t tensor) {
  const Content content = loaded().checkpoint->tensor(tensor).content();
  prefetch_content(content, 0, content.size(), std::numeric_limits<std::uint64_t>::max());
}

void Opened::cancel() {
  // Do not load the checkpoint here: in a child that has not loaded it yet, no call waits.
  const std::uint64_t process = this_process();
  for (Loaded* const loaded : {first_, own_.load()}) {
    if (loaded == nullptr || loaded->process != process) continue;
    const std::lock_guard lock(loaded->mutex);
    for (std::atomic<bool>* const stop : loaded->calls) *stop = true;
  }
}

}  // namespace stfs
