// A source whose bytes a network fills: one version of a remote object, of which some blocks are on
// this machine. fetcher.h draws the states of a block.
//
// Bytes that are here are read from the cache's file into a buffer, and never pinned: cache.h says
// why. They need no check of the version: a block is written once and never changes. So verify() is
// 0 for ever; an object that has changed or gone fails what needs the network: want() answers
// ESTALE from then on, and has_changed() is true.
//
// Without a usable cache, or while the disk is full, blocks are kept in memory: at most
// Fetcher::kMemory, and what somebody waits for. They stay at least until the callbacks of the
// want() that brought them return; a reader who comes later may have to want them again.
//
// Thread safety and lifetime: as source.h says. The destructor answers each want() that waits with
// ECANCELED, and waits for callbacks that are running.
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
  // `entry` null: no cache. `first`: bytes from the beginning that came when the object was found;
  // whole blocks of them are kept, on the disk if it `has_room`.
  CacheFile(const RemoteVersion& version, std::unique_ptr<Remote> remote,
            std::unique_ptr<CacheEntry> entry, Fetcher& fetcher, std::string_view first = {},
            bool has_room = true);
  ~CacheFile() override;

  std::string token() const override { return file_.version.token; }

  // The cache's map tells: the first read of a block checks it, and is EAGAIN when it is damaged.
  bool has(ByteRange range) const override;
  // Looks at blocks of the cache for the first time, which reads and checks them: as long as a read
  // of the local disk.
  void want(ByteRange range, Ready ready) const override;
  void prefetch(ByteRange range) const override;
  bool is_complete() const override { return file_.blocks.is_complete(); }
  std::uint64_t most_kept() const override {
    return file_.blocks.entry() != nullptr ? Source::most_kept() : Fetcher::kMemory;
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
    const std::string why = Source::failure_text();  // of mark_changed()
    return why.empty() ? fetcher_.failure_text(file_) : why;
  }
  bool is_current() const override { return !has_changed(); }  // as far as known: asks nobody

 private:
  Fetcher& fetcher_;
  mutable Fetcher::File file_;
};

}  // namespace stfs
