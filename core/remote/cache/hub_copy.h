// An object of the Hub whose bytes lie in the Hub's own cache already: a file there that has the
// object's size. It is not trusted: no byte of it is given before its digest is the one that the
// Hub tells. The first want() has the digest computed in the background, once for a file: our cache
// remembers it. Loading must not wait so long: it reads from the Hub, through `remote`.
//
//   unknown ──want()──► computing ──► fits ──the file changes──► ESTALE for ever
//     ▲  └─────────────────│─┴──────────────────────────────────► refused: ESTALE for ever
//     └──a read fails──────┘
//
//   computing   a thread reads the file; those who want bytes wait for its end, however long that
//               takes, and hold no thread. It is started by a want(), so not before a fork
//   fits        the file's bytes are served, as those of a LocalFile
//   refused     the digest is another one, or the file changed: failure_text() says so
//
// Name and version are those of the object, as if it had been fetched.
//
// Thread safety and lifetime: as source.h says. The cache outlives it. The destructor answers each
// want() that waits with ECANCELED.
#pragma once

#include "core/remote/cache/cache.h"
#include "core/remote/stores/remote.h"
#include "core/source/local_file.h"
#include "core/source/source.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stfs {

enum class CopyState { kUnknown, kFits, kRefused };

// Compares a file of the Hub's own cache with a version, a small one by computing its digest.
// kUnknown: the file is large, and its digest is not known yet.
CopyState look_at_hub_copy(const LocalFile& file, const RemoteVersion& version, const Cache& cache);

class HubCopy final : public Source {
 public:
  // `remote` null: the Hub cannot be asked, or need not be. The header is then read from the file.
  HubCopy(const RemoteVersion& version, std::unique_ptr<const LocalFile> file,
          std::unique_ptr<const Source> remote, bool fits, const Cache& cache);
  ~HubCopy() override;

  std::string token() const override { return version_.token; }
  bool has(ByteRange range) const override;
  void want(ByteRange range, Ready ready) const override;
  bool is_complete() const override { return state_ == CopyState::kFits; }

  int read_unverified(std::span<std::byte> buffer, std::uint64_t offset) const override;
  int read_ahead(std::span<std::byte> buffer, std::uint64_t offset) const override;
  bool can_pin(ByteRange range) const override { return is_complete() && file_->can_pin(range); }
  Pinned try_pin() const override { return is_complete() ? file_->try_pin() : Pinned{}; }
  int verify() const override;
  bool is_current() const override { return verify() == 0; }
  std::string failure_text() const override;
  const LocalFile* local_file() const override { return file_.get(); }

 protected:
  const Source& loading_source() const override;

 private:
  bool is_fetched(ByteRange range) const { return remote_ && remote_->has(range); }
  void run() const;  // the thread
  int compute() const;
  void end(int error) const;

  const RemoteVersion version_;
  const std::unique_ptr<const LocalFile> file_;
  const std::unique_ptr<const Source> remote_;
  const Cache& cache_;
  mutable std::atomic<CopyState> state_;
  mutable std::atomic<bool> stop_ = false;

  mutable std::mutex mutex_;  // of all below
  mutable std::condition_variable changed_;
  mutable std::vector<Ready> waiting_;
  mutable std::string reason_;  // of a refusal
  mutable std::thread thread_;
};

}  // namespace stfs
