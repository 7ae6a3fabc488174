#include "core/layer/delta/patched.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kDecodedAtOnce = 1 << 20;  // bytes that are decoded at a time

}  // namespace

void Changes::add(std::uint64_t at, std::span<const std::byte> before,
                  std::span<const std::byte> after) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if ((at + i) % kBlock == 0) first_.push_back(at_.size());
    if (before[i] == after[i]) continue;
    at_.push_back(static_cast<std::uint16_t>((at + i) % kBlock));
    to_.push_back(after[i]);
  }
}

void Changes::apply(std::uint64_t at, std::span<std::byte> bytes) const {
  const std::uint64_t end = at + bytes.size();
  for (std::uint64_t block = at / kBlock; block * kBlock < end; ++block) {
    const auto first = at_.begin() + static_cast<std::ptrdiff_t>(first_[block]);
    const auto last = block + 1 < first_.size()
                          ? at_.begin() + static_cast<std::ptrdiff_t>(first_[block + 1])
                          : at_.end();
    const std::uint64_t begin = block * kBlock;
    const auto least = static_cast<std::uint16_t>(at > begin ? at - begin : 0);
    for (auto change = std::lower_bound(first, last, least); change != last; ++change) {
      const std::uint64_t position = begin + *change;
      if (position >= end) break;
      bytes[position - at] = to_[static_cast<std::size_t>(change - at_.begin())];
    }
  }
}

std::size_t Changes::memory() const {
  return first_.capacity() * sizeof(std::uint64_t) + at_.capacity() * sizeof(std::uint16_t) +
         to_.capacity();
}

void Patches::break_all() const {
  for (const Source* const source : sources_) source->mark_changed();
}

bool Patches::reserve(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  while (memory_ + bytes > most_ && !kept_.empty()) {
    memory_ -= kept_.back().memory;
    by_tensor_.erase(kept_.back().tensor);
    kept_.pop_back();
  }
  if (memory_ + bytes > most_) return false;
  memory_ += bytes;
  return true;
}

void Patches::release(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  memory_ -= bytes;
}

void Patches::keep(const Tensor& tensor, std::shared_ptr<const Changes> changes,
                   std::uint64_t reserved) const {
  const std::lock_guard lock(mutex_);
  kept_.push_front({&tensor, std::move(changes), reserved});
  by_tensor_[&tensor] = kept_.begin();
}

std::shared_ptr<const Changes> Patches::kept(const Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_tensor_.find(&tensor);
  if (found == by_tensor_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->changes;
}

// The bytes of a patched tensor.
class PatchedBytes : public Producer {
 public:
  explicit PatchedBytes(const Patches::Tensor& tensor)
      : tensor_(tensor), base_(tensor.base().content()) {}

  std::uint64_t size() const override { return tensor_.base().length; }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    if (const int error = tensor_.check()) return error;
    return tensor_.fill(offset, out);
  }

  // Until the tensor is checked, all of it.
  void missing(std::uint64_t offset, std::uint64_t length,
               std::vector<Extent>& missing) const override {
    const bool is_checked = tensor_.is_checked();
    const bool has_changes = is_checked && tensor_.has_changes();
    const auto range = is_checked ? std::pair(offset, length) : std::pair(std::uint64_t{0}, size());
    for (const Extent& extent : base_.missing(range.first, range.second)) missing.push_back(extent);
    for (const Patch::Link& link : tensor_.patch().links) {
      const Extent& frame = link.frame;
      if (!has_changes && !frame.source->has({frame.offset, frame.length})) missing.push_back(frame);
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

bool Patches::Tensor::is_checked() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kChecked;
}

bool Patches::Tensor::has_changes() const { return all_.kept(*this) != nullptr; }

std::vector<std::unique_ptr<Frame>> Patches::Tensor::open_frames() const {
  std::vector<std::unique_ptr<Frame>> frames;
  for (const Patch::Link& link : patch_.links) {
    frames.push_back(Frame::open(link.encoding, link.frame, base_.length));
  }
  return frames;
}

// One reader checks; the others wait for it.
int Patches::Tensor::check() const {
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
  lock.lock();
  // After another errno the next reader tries again.
  state_ = error == 0 ? State::kChecked : error == EBADMSG ? State::kBroken : State::kUnchecked;
  checked_.notify_all();
  lock.unlock();
  if (error != EBADMSG) return error;
  all_.break_all();
  return ESTALE;
}

// The changes of a tensor while they are collected, within the room of all.
class Patches::Collected {
 public:
  explicit Collected(const Patches& all) : all_(all) {}
  ~Collected() { all_.release(reserved_); }
  Collected(const Collected&) = delete;
  Collected& operator=(const Collected&) = delete;

  void add(std::uint64_t at, std::span<const std::byte> before, std::span<const std::byte> after) {
    if (!changes_) return;
    changes_->add(at, before, after);
    const std::uint64_t memory = changes_->memory();
    if (memory <= reserved_) return;
    if (all_.reserve(memory - reserved_)) {
      reserved_ = memory;
    } else {
      changes_.reset();
      all_.release(std::exchange(reserved_, 0));
    }
  }

  void keep(const Tensor& tensor) {
    if (changes_) all_.keep(tensor, std::move(changes_), std::exchange(reserved_, 0));
  }

 private:
  const Patches& all_;
  std::uint64_t reserved_ = 0;
  std::shared_ptr<Changes> changes_ = std::make_shared<Changes>();
};

// 0, an errno, or EBADMSG when the bytes are not those that the newest delta promises.
int Patches::Tensor::check_now() const {
  const Content base = base_.content();
  const std::vector<std::unique_ptr<Frame>> frames = open_frames();
  DeltaDigest digest(patch_.checksum);
  Collected collected(all_);
  std::vector<std::byte> before, after;
  for (std::uint64_t at = 0; at < base_.length;) {
    before.resize(
        static_cast<std::size_t>(std::min<std::uint64_t>(kDecodedAtOnce, base_.length - at)));
    if (const int error = base.copy_unverified(at, before)) return error;
    after = before;
    for (const auto& frame : frames) {
      if (const int error = frame->apply(after)) return error;
    }
    digest.add(after);
    collected.add(at, before, after);
    at += before.size();
  }
  for (const auto& frame : frames) {
    if (const int error = frame->end()) return error;
  }
  // Bytes of another version prove nothing.
  for (const Patch::Link& link : patch_.links) {
    if (const int error = link.frame.source->verify()) return error;
  }
  if (const int error = base.verify()) return error;
  if (digest.hex() != patch_.digest) return EBADMSG;
  collected.keep(*this);
  return 0;
}

int Patches::Tensor::fill(std::uint64_t offset, std::span<std::byte> out) const {
  const Content base = base_.content();
  if (const std::shared_ptr<const Changes> changes = all_.kept(*this)) {
    if (const int error = base.copy_unverified(offset, out)) return error;
    changes->apply(offset, out);
    return 0;
  }
  return decode(base, offset, out);
}

// From where the last read ended, or else from the beginning.
int Patches::Tensor::decode(const Content& base, std::uint64_t offset,
                            std::span<std::byte> out) const {
  const std::lock_guard lock(cursor_mutex_);
  if (cursor_.frames.empty() || cursor_.at > offset) {
    cursor_.frames = open_frames();
    cursor_.at = 0;
  }
  int error = 0;
  for (const auto& frame : cursor_.frames) {
    if (error == 0) error = frame->skip(offset - cursor_.at);
  }
  if (error == 0) error = base.copy_unverified(offset, out);
  for (const auto& frame : cursor_.frames) {
    if (error == 0) error = frame->apply(out);
  }
  cursor_.at = offset + out.size();
  if (error != 0 || cursor_.at == base_.length) cursor_.frames.clear();
  return error == EBADMSG ? ESTALE : error;  // it held when it was checked
}

}  // namespace stfs
