// A source that is fetched over the network: one version of a remote object. Some of its blocks are
// available locally. fetcher.h draws the states of a block.
//
// Bytes are read from the cache's file into a buffer, and never pinned; cache.h has the reason. The
// version of local bytes needs no check, because a block is written once and never changes. So
// verify() keeps returning 0 after the object has changed or was deleted. Only bytes that still
// have to be fetched then fail: want() returns ESTALE from then on, and has_changed() returns true.
//
// Without a usable cache, or while the disk is full, blocks are kept in memory: at most
// Fetcher::kMemory bytes, and in addition the blocks that a reader waits for. Those stay at least
// until the callback of their want() returns. A later reader may have to want them again.
//
// Thread safety and lifetime: see source.h. The destructor fails each waiting want() with
// ECANCELED, and waits for running callbacks.
#pragma once

#include "core/remote/cache/blocks.h"
#include "core/remote/cache/cache.h"
#include "core/remote/cache/fetcher.h"
#include "core/remote/stores/remote.h"
#include "core/source/source.h"

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string_view>

namespace stfs {

class CacheFile final : public Source {
 public:
  // `entry` is null if there is nothing to cache in. `first` has the first bytes of the object,
  // which were received when the object was found. Its whole blocks are kept, on the disk if
  // `has_room`, else in memory. `fetcher` must outlive this.
  CacheFile(const RemoteVersion& version, std::unique_ptr<Remote> remote,
            std::unique_ptr<CacheEntry> entry, Fetcher& fetcher, std::string_view first = {},
            bool has_room = true);
  ~CacheFile() override;

  std::string token() const override { return file_.version.token; }

  // Trusts the cache's map. The first read of a block checks it, and returns EAGAIN if it is
  // damaged.
  bool has(ByteRange range) const override;
  // Reads and checks the blocks in the cache that were not checked yet, which takes as long as a
  // read from the local disk.
  void want(ByteRange range, Ready ready) const override;
  void prefetch(ByteRange range) const override;
  bool is_complete() const override { return file_.blocks.is_complete(); }
  std::uint64_t cache_capacity() const override {
    return file_.blocks.entry() != nullptr ? Source::cache_capacity() : Fetcher::kMemory;
  }

  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override {
    return file_.blocks.read(buffer, offset);
  }
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override {
    return read_unverified(buffer, offset);
  }
  bool can_pin(ByteRange) const override { return false; }
  Pinned try_pin() const override { return {}; }
  int descriptor(ByteRange range) const override { return file_.blocks.descriptor(range); }
  int verify() const override { return is_refused() ? ESTALE : 0; }
  std::string sha256() const override { return file_.version.sha256; }
  std::string failure_text() const override {
    const std::string why = Source::failure_text();  // set if the source has changed
    return why.empty() ? fetcher_.failure_text(file_) : why;
  }
  bool is_current() const override { return !has_changed(); }  // sends no request

 private:
  Fetcher& fetcher_;
  mutable Fetcher::File file_;
};

}  // namespace stfs
