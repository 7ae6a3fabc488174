#include "fs/mount/prefetch_all.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/recipe/fetch_missing.h"
#include "core/values/digest.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

namespace stfs {
namespace {

constexpr std::uint64_t kPiece = 8 << 20;   // bytes that the thread waits for at a time
constexpr std::uint64_t kAhead = 64 << 20;  // bytes that are prefetched after the piece
constexpr std::string_view kOption = "prefetch=all: ";

}  // namespace

bool PrefetchAll::has_work(const Source* source) {
  return !source->is_complete() || (source->local_file() != nullptr && !source->sha256().empty());
}

PrefetchAll::PrefetchAll(std::vector<const Source*> sources, Log log)
    : sources_(std::move(sources)), log_(std::move(log)) {
  thread_ = start_thread([this] { run(); });
}

PrefetchAll::~PrefetchAll() {
  stop_ = true;
  thread_.join();
}

void PrefetchAll::run() {
  try {
    std::uint64_t bytes = 0;
    bool is_whole = true;
    for (const Source* source : sources_) {
      if (fetch(*source) != 0) return;
      const int error = check(*source);
      if (error == EINTR) return;
      is_whole = is_whole && error == 0;
      bytes += source->size();
    }
    if (is_whole) log_(std::string(kOption) + "all " + std::to_string(bytes) + " bytes are cached");
  } catch (const std::bad_alloc&) {
    // Prefetching ends. Readers fetch the bytes that they need.
  }
}

int PrefetchAll::fetch(const Source& source) {
  std::uint64_t asked = 0;
  for (std::uint64_t at = 0; at < source.size() && !source.is_complete(); at += kPiece) {
    if (stop_) return EINTR;
    for (; asked < source.size() && asked < at + kAhead; asked += kPiece) {
      source.prefetch({asked, std::min(kPiece, source.size() - asked)});
    }
    const ByteRange piece{at, std::min(kPiece, source.size() - at)};
    const int error =
        stfs::fetch({{&source, piece.offset, piece.length}}, &stop_);  // also checks cached blocks
    const bool is_lost = error == 0 && !source.has(piece);
    if (error == 0 && !is_lost) continue;
    if (error != EINTR) {
      log_(std::string(kOption) + printable(source.path()) + ": stopped after " +
           std::to_string(at) + " bytes: " + (is_lost ? "no cache holds them" : errno_text(error)) +
           ": the rest is fetched when it is read");
    }
    return is_lost ? EIO : error;
  }
  return 0;
}

int PrefetchAll::check(const Source& source) {
  std::string why;
  const int error = check_published(source, stop_, why);
  if (error == 0 || error == EINTR) return error;
  const std::string name = printable(source.path()) + ": ";
  log_(why.empty()
           ? std::string(kOption) + name + "its SHA-256 was not checked: " + errno_text(error)
           : name + why + ", and mount again: reads of it fail (ESTALE)");
  return error;
}

}  // namespace stfs
