#include "core/remote/cache/hub_copy.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/remote/stores/hub_name.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kSmall = 64 << 20;  // bytes; a digest in a few hundredths of a second
constexpr std::size_t kPiece = 1 << 20;
constexpr std::string_view kGit = "git-sha1-";

// The digest that the Hub tells: SHA-256, or kGit and git's SHA-1 of a blob.
std::string promised_digest(const RemoteVersion& version) {
  constexpr std::string_view kKind = "hf-";
  return version.token.starts_with(kKind) ? version.token.substr(kKind.size()) : "";
}

// A file's name in the cache of names; its token changes with the file.
std::string name_of_digest(const LocalFile& file) { return "digest:" + file.token(); }

// Calls `add` with all bytes: 0, an errno, or ECANCELED when `stop` became true.
template <class Add>
int read_whole(const LocalFile& file, const std::atomic<bool>& stop, const Add& add) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPiece, file.size()));
  for (std::uint64_t at = 0; at < file.size();) {
    if (stop) return ECANCELED;
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size() - at)));
    if (const int error = file.read_unverified(piece, at)) return error;
    add(piece);
    at += piece.size();
  }
  return file.verify();
}

// Sets `digest` to the one of a file, of the kind that `promised` is.
int compute_digest(const LocalFile& file, std::string_view promised, const std::atomic<bool>& stop,
                   std::string& digest) {
  if (!promised.starts_with(kGit)) {
    Sha256 sum;
    const int error = read_whole(file, stop, [&](auto bytes) { sum.add(bytes); });
    if (error == 0) digest = sum.hex();
    return error;
  }
  std::string blob = "blob " + std::to_string(file.size()) + '\0';
  blob.reserve(blob.size() + file.size());
  const int error = read_whole(file, stop, [&](std::span<const std::byte> bytes) {
    blob.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  if (error != 0) return error;
  std::array<unsigned char, SHA_DIGEST_LENGTH> sum{};
  SHA1(reinterpret_cast<const unsigned char*>(blob.data()), blob.size(), sum.data());
  digest = std::string(kGit) + hex({reinterpret_cast<const char*>(sum.data()), sum.size()});
  return 0;
}

// Sets `digest` as compute_digest() does; once for a file: the cache remembers it.
int digest_of(const LocalFile& file, std::string_view promised, const std::atomic<bool>& stop,
              const Cache& cache, std::string& digest) {
  const std::string name = name_of_digest(file);
  if (const std::optional<std::string> known = cache.recall(name)) {
    digest = *known;
    return 0;
  }
  const int error = compute_digest(file, promised, stop, digest);
  if (error == 0) cache.remember(name, digest);
  return error;
}

}  // namespace

CopyState look_at_hub_copy(const LocalFile& file, const RemoteVersion& version,
                           const Cache& cache) {
  const std::string promised = promised_digest(version);
  const bool is_small = file.size() <= kSmall;
  if (file.size() != version.size || promised.empty()) return CopyState::kRefused;
  if (!is_small && !is_digest(promised, kSha256Digits)) return CopyState::kRefused;
  // The Hub's own cache calls a file of Git LFS by its digest.
  const std::string blob = std::filesystem::path(file.path()).filename().string();
  if (is_digest(promised, kSha256Digits) && is_digest(blob, kSha256Digits) && blob != promised) {
    return CopyState::kRefused;
  }
  if (!is_small && !cache.recall(name_of_digest(file))) return CopyState::kUnknown;
  const std::atomic<bool> stop = false;
  std::string digest;
  if (digest_of(file, promised, stop, cache, digest) != 0) return CopyState::kRefused;
  return digest == promised ? CopyState::kFits : CopyState::kRefused;
}

HubCopy::HubCopy(const RemoteVersion& version, std::unique_ptr<const LocalFile> file,
                 std::unique_ptr<const Source> remote, bool fits, const Cache& cache)
    : Source(version.name),
      version_(version),
      file_(std::move(file)),
      remote_(std::move(remote)),
      cache_(cache),
      state_(fits ? CopyState::kFits : CopyState::kUnknown) {
  set_version({version_.size, version_.mtime});
}

HubCopy::~HubCopy() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

const Source& HubCopy::loading_source() const {
  return remote_ && !is_complete() ? *remote_ : static_cast<const Source&>(*file_);
}

bool HubCopy::has(ByteRange range) const { return is_complete() || is_fetched(range); }

void HubCopy::want(ByteRange range, Ready ready) const {
  if (range.offset > size() || range.length > size() - range.offset) return ready(EINVAL);
  int error = 0;
  if (!has(range)) {
    const std::lock_guard lock(mutex_);
    try {
      if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
      if (state_ == CopyState::kUnknown) {
        waiting_.push_back(std::move(ready));
        changed_.notify_one();
        return;
      }
    } catch (const Error&) {
      note_failure(range.offset, range.offset + range.length, EIO);
      error = EIO;
    }
    if (state_ == CopyState::kRefused) error = ESTALE;
  }
  ready(error);
}

void HubCopy::run() const {
  while (state_ == CopyState::kUnknown) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    }
    if (stop_) return end(ECANCELED);
    try {
      end(compute());
    } catch (const std::bad_alloc&) {
      end(ENOMEM);
    }
  }
}

int HubCopy::compute() const {
  const std::string promised = promised_digest(version_);
  std::string digest;
  const int error = digest_of(*file_, promised, stop_, cache_, digest);
  if (error == 0 && digest == promised) return 0;
  if (error != 0 && error != ESTALE) return error;
  const std::string what =
      error != 0 ? "has changed"
                 : "has the digest " + printable(digest) + ", not " + promised + " as the Hub says";
  const std::lock_guard lock(mutex_);
  reason_ = "the Hub's own cache has other bytes: " + printable(file_->path()) + " " + what +
            ": remove it, and mount again";
  return ESTALE;
}

void HubCopy::end(int error) const {
  std::vector<Ready> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (error == 0) state_ = CopyState::kFits;
    if (error == ESTALE) state_ = CopyState::kRefused;
    if (error == ESTALE) refuse();
    waiting.swap(waiting_);
  }
  const bool is_fault = error != 0 && error != ESTALE && error != ECANCELED;
  if (is_fault) note_failure(0, size(), error);
  for (const Ready& ready : waiting) ready(error);
}

int HubCopy::read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const {
  if (is_complete()) return file_->read_unverified(buffer, offset);
  return is_fetched({offset, buffer.size()}) ? remote_->read_unverified(buffer, offset) : EAGAIN;
}

int HubCopy::read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const {
  return is_complete() ? file_->read_ahead(buffer, offset) : read_unverified(buffer, offset);
}

int HubCopy::verify() const {
  if (is_refused() || has_changed()) return ESTALE;
  if (!is_complete() && remote_) return 0;
  const int error = file_->verify();
  if (error == ESTALE) mark_changed();
  return error;
}

std::string HubCopy::failure_text() const {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
  }
  return remote_ ? remote_->failure_text() : "";
}

}  // namespace stfs
