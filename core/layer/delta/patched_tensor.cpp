#include "core/layer/delta/patched_tensor.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/layer/delta/combined_xor.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <utility>

namespace stfs {
namespace {

// Bytes that are decoded at a time. The old and the new bytes together fit into a core's cache.
constexpr std::size_t kDecodedAtOnce = 64 << 10;

// The window that a frame may always use, in bytes. Levels up to 3 of zstd do not use a larger one.
constexpr std::uint64_t kUsualWindow = 2 << 20;

}  // namespace

Patches::Patches(std::uint64_t most, std::size_t count, std::vector<const Source*> sources)
    : room_(most), sources_(std::move(sources)) {
  const std::size_t bytes = std::max<std::size_t>(count, 1) * sizeof(std::atomic<bool>);
  void* const shared =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_errno(ErrorCode::kUnreadable, "", "deltas: mmap", errno);
  auto* const first = static_cast<std::atomic<bool>*>(shared);
  std::uninitialized_value_construct_n(first, count);
  is_checked_ = {first, count};
}

Patches::~Patches() { ::munmap(is_checked_.data(), std::max<std::size_t>(is_checked_.size(), 1)); }

void Patches::break_all(const Tensor& tensor, int error) const {
  const Source& newest = *tensor.patch().links.back().frame.source;
  const std::string name = in_quotes(tensor.base().name);
  const std::string why = error == EFBIG
                              ? "a frame of tensor " + name + " in the chain of the delta " +
                                    printable(newest.path()) + " needs a larger window than the " +
                                    human_bytes(tensor.window()) + " that each of its " +
                                    std::to_string(tensor.streams()) + " decoders has of " +
                                    human_bytes(room_.most()) + ": give more with -o delta_memory="
                              : "the checksum of tensor " + name +
                                    " does not match: the source is not the base of the delta " +
                                    printable(newest.path()) + ", or one of the two is damaged";
  for (const Source* const source : sources_) source->mark_changed(why);
}

// Computes the bytes of a patched tensor.
class PatchedBytes : public Producer {
 public:
  explicit PatchedBytes(const Patches::Tensor& tensor)
      : tensor_(tensor), base_(tensor.base().content()) {}

  std::uint64_t size() const override { return tensor_.base().length; }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    if (const int error = tensor_.check()) return error;
    return tensor_.fill(base_, offset, out);
  }

  // Until the tensor is checked, the whole tensor is needed.
  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const bool is_checked = tensor_.is_checked();
    const bool has_changes = is_checked && tensor_.has_changes();
    const auto range = is_checked ? std::pair(offset, length) : std::pair(std::uint64_t{0}, size());
    for (const Extent& extent : base_.missing(range.first, range.second)) missing.push_back(extent);
    for (const Patch::Link& link : tensor_.patch().links) {
      const Extent& frame = link.frame;
      if (!has_changes && !frame.source->has({frame.offset, frame.length}))
        missing.push_back(frame);
    }
  }

  int verify() const override {
    if (const int error = base_.verify()) return error;
    for (const Patch::Link& link : tensor_.patch().links) {
      if (const int error = link.frame.source->verify()) return error;
    }
    return 0;
  }

 private:
  const Patches::Tensor& tensor_;
  Content base_;
};

std::unique_ptr<const Producer> Patches::Tensor::producer() const {
  return std::make_unique<PatchedBytes>(*this);
}

bool Patches::Tensor::has_changes() const { return all_.room_.changes(number_) != nullptr; }

Frames Patches::Tensor::open_frames() const {
  Frames frames;
  for (const Patch::Link& link : patch_.links) {
    frames.push_back(Frame::open(link.encoding, link.frame, base_.length, window()));
  }
  return frames;
}

std::uint64_t Patches::Tensor::streams() const {
  std::uint64_t streams = 0;
  for (const Patch::Link& link : patch_.links) streams += streams_of(link.encoding);
  return streams;
}

std::uint64_t Patches::Tensor::window() const {
  return std::bit_floor(std::max(kUsualWindow, all_.room_.most() / streams()));
}

// One reader checks; other readers wait for its result.
int Patches::Tensor::check() const {
  if (is_checked()) return 0;
  std::unique_lock lock(mutex_);
  checked_.wait(lock, [this] { return state_ != State::kChecking; });
  if (state_ == State::kChecked) return 0;
  if (state_ == State::kBroken) return ESTALE;
  state_ = State::kChecking;
  lock.unlock();
  int error = ENOMEM;
  try {
    error = check_now();
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  if (error == 0) all_.is_checked_[number_] = true;
  const bool is_broken = error == EBADMSG || error == EFBIG;
  // Mark the sources before another reader gets ESTALE, because that reader asks for the reason.
  if (is_broken) all_.break_all(*this, error);
  lock.lock();
  // After any other errno, the next reader tries again.
  state_ = error == 0 ? State::kChecked : is_broken ? State::kBroken : State::kUnchecked;
  checked_.notify_all();
  return is_broken ? ESTALE : error;
}

// The changes of a tensor while they are collected. Drops them if the room does not suffice.
class Patches::Collected {
 public:
  explicit Collected(const Patches& all) : all_(all) {}
  ~Collected() { all_.room_.release(reserved_); }
  Collected(const Collected&) = delete;
  Collected& operator=(const Collected&) = delete;

  void add(std::uint64_t at, std::span<const std::byte> difference,
           std::span<const std::byte> after) {
    if (!changes_) return;
    changes_->add(at, difference, after);
    const std::uint64_t memory = changes_->memory();
    if (memory <= reserved_) return;
    if (all_.room_.reserve(memory - reserved_)) {
      reserved_ = memory;
    } else {
      changes_.reset();
      all_.room_.release(std::exchange(reserved_, 0));
    }
  }

  void keep(std::size_t tensor) {
    if (changes_) all_.room_.keep(tensor, std::move(changes_), std::exchange(reserved_, 0));
  }

 private:
  const Patches& all_;
  std::uint64_t reserved_ = 0;
  std::shared_ptr<Changes> changes_ = std::make_shared<Changes>();
};

// Decodes a tensor from its beginning, one piece at a time. If all links are xor, a thread decodes
// their frames ahead.
class Patches::Tensor::Pieces {
 public:
  Pieces(const Tensor& tensor, const Frames& frames) : frames_(frames) {
    const auto is_xor = [](const Patch::Link& link) {
      return link.encoding == DeltaEncoding::kXor;
    };
    if (std::ranges::all_of(tensor.patch_.links, is_xor)) {
      ahead_.emplace(frames, tensor.base_.length, kDecodedAtOnce);
    }
  }

  // Changes the next bytes, which must be the base's, and sets `difference` to the xor of the old
  // and the new bytes. It is valid until the next call.
  int apply(std::span<std::byte> bytes, std::span<const std::byte>& difference) {
    if (ahead_) {
      if (const int error = ahead_->next(difference)) return error;
      exclusive_or(difference, bytes);
      return 0;
    }
    before_.assign(bytes.begin(), bytes.end());
    for (const auto& frame : frames_) {
      if (const int error = frame->apply(bytes)) return error;
    }
    exclusive_or(bytes, before_);
    difference = before_;
    return 0;
  }

 private:
  const Frames& frames_;
  std::optional<CombinedXor> ahead_;
  std::vector<std::byte> before_;
};

// Returns 0, an errno, or EBADMSG if the result does not have the checksum of the newest delta.
int Patches::Tensor::check_now() const {
  const Content base = base_.content();
  DecoderMemory::Turn turn(all_.room_, [this] { return open_frames(); });
  const Frames& frames = turn.cursor().frames;
  DeltaDigest digest(patch_.checksum);
  Collected collected(all_);
  {
    Pieces pieces(*this, frames);
    std::vector<std::byte> bytes;
    std::span<const std::byte> difference;
    for (std::uint64_t at = 0; at < base_.length; at += bytes.size()) {
      bytes.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(kDecodedAtOnce, base_.length - at)));
      if (const int error = base.copy_unverified(at, bytes)) return error;
      if (const int error = pieces.apply(bytes, difference)) return error;
      digest.add(bytes);
      collected.add(at, difference, bytes);
      all_.decoded_ += bytes.size();
    }
  }
  for (const auto& frame : frames) {
    if (const int error = frame->end()) return error;
  }
  // Bytes of another version would prove nothing.
  for (const Patch::Link& link : patch_.links) {
    if (const int error = link.frame.source->verify()) return error;
  }
  if (const int error = base.verify()) return error;
  if (digest.hex() != patch_.digest) return EBADMSG;
  collected.keep(number_);
  return 0;
}

int Patches::Tensor::fill(const Content& base, std::uint64_t offset,
                          std::span<std::byte> out) const {
  if (const std::shared_ptr<const Changes> changes = all_.room_.changes(number_)) {
    if (const int error = base.copy_unverified(offset, out)) return error;
    changes->apply(offset, out);
    return 0;
  }
  const int error = decode(base, offset, out);
  return error == EBADMSG ? ESTALE : error;  // the frames were valid when the tensor was checked
}

int Patches::Tensor::decode(const Content& base, std::uint64_t offset,
                            std::span<std::byte> out) const {
  DecoderMemory::Turn turn(all_.room_, number_, offset, [this] { return open_frames(); });
  Cursor& cursor = turn.cursor();
  if (offset < cursor.at) {
    const auto some =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), cursor.at - offset));
    std::ranges::copy(std::span(cursor.window).subspan(offset - cursor.begin(), some), out.begin());
    out = out.subspan(some);
    offset += some;
  }
  int error = out.empty() ? 0 : reach(base, cursor, offset);
  while (error == 0 && !out.empty()) {
    const std::span some = out.first(std::min(out.size(), kDecodedAtOnce));
    error = advance(base, cursor, some);
    out = out.subspan(some.size());
  }
  if (error != 0) turn.drop();
  return error;
}

// Moves the decoders forward to `offset`. If the distance is short, keeps the bytes on the way,
// because another request may need them.
int Patches::Tensor::reach(const Content& base, Cursor& cursor, std::uint64_t offset) const {
  std::vector<std::byte> between;
  while (cursor.at < offset && offset - cursor.at <= Cursor::kWindow) {
    between.resize(std::min<std::size_t>(offset - cursor.at, kDecodedAtOnce));
    if (!base.missing(cursor.at, between.size()).empty()) break;
    if (const int error = advance(base, cursor, between)) return error;
  }
  if (cursor.at == offset) return 0;
  cursor.window.clear();
  for (const auto& frame : cursor.frames) {
    if (const int error = frame->skip(offset - cursor.at)) return error;
  }
  all_.decoded_ += offset - cursor.at;
  cursor.at = offset;
  return 0;
}

// Decodes the next bytes.
int Patches::Tensor::advance(const Content& base, Cursor& cursor, std::span<std::byte> out) const {
  if (const int error = base.copy_unverified(cursor.at, out)) return error;
  for (const auto& frame : cursor.frames) {
    if (const int error = frame->apply(out)) return error;
  }
  all_.decoded_ += out.size();
  cursor.at += out.size();
  cursor.add(out);
  return 0;
}

}  // namespace stfs
