// A read of bytes that are not all available locally: fetches the missing ones, and answers through
// a ticket of PendingReads. It occupies no thread while it waits.
//
// The bytes of a reply may be far apart (a column of a large matrix), and a source may keep only
// few bytes. So a reply is gathered in steps: each step wants blocks with at most kMaxMissing
// bytes, and copies the bytes that have arrived into the reply's buffer. If one step is enough, as
// for whole tensors, the reply is read like any other, from the mapping if possible.
//
//   look ──something is missing──► wanting ──the last range arrived──► look
//    │ │ nothing is missing            │ a range cannot be fetched
//    │ └─► copied ──bytes are left──► look
//    │        └──all there──► answered with 0
//    └─► an errno ──► answered with it
//
//   transition         made by
//   look, copied       the thread that makes the step: first the thread of the read, later the
//                      thread of the source that was ready last. Steps follow each other, and two
//                      threads never make steps at the same time
//   wanting            the same thread; no range is wanted once the ticket is cancelled
//   answered           PendingReads::arrive(). Or, at any time, cancel() and stop(), which answer
//   with
//                      EINTR; ranges that arrive later are then ignored
//
// Steps (core/recipe/fetch_missing.h) decides what a step wants, even if bytes were evicted before
// they were copied.
//
// Thread safety: go_on() may be called by any thread, once for each step. Lifetime: shared with the
// callbacks of sources, which may be called after the FileSystem has ended.
#pragma once

#include "core/recipe/fetch_missing.h"
#include "fs/mount/pending_reads.h"
#include "fs/mount/recipes.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace stfs {

class PendingFetch : public std::enable_shared_from_this<PendingFetch> {
 public:
  // Fills a recipe, which is empty. Returns 0 or an errno. Called only in steps of
  // PendingReads::go_on().
  using Find = std::function<int(Recipe& recipe)>;

  PendingFetch(std::shared_ptr<PendingReads> waiting, PendingReads::Ticket ticket, Find find,
               std::uint64_t offset, std::uint64_t length)
      : waiting_(std::move(waiting)),
        ticket_(ticket),
        find_(std::move(find)),
        steps_(offset, length) {}

  // Makes steps until bytes have to arrive, or the ticket is answered. Call it once, when the
  // ticket waits; the sources make later steps.
  void go_on() noexcept;

 private:
  bool step();  // returns true if another step can be made at once
  // Fills `reply` as far as the bytes are available, and `missing` with the ranges to fetch. Sets
  // `is_done` if the reply is complete. Returns 0 or an errno.
  int look(Reply& reply, std::vector<Extent>& missing, bool& is_done);
  // Returns true if another step can be made at once.
  bool want(const std::vector<Extent>& missing);
  void arrived(int error);

  const std::shared_ptr<PendingReads> waiting_;
  const PendingReads::Ticket ticket_;
  const Find find_;
  Steps steps_;
  std::unique_ptr<std::byte[]> buffer_;  // for the whole reply; null until there is a second step

  std::atomic<std::size_t> left_ = 0;  // number of ranges still to arrive; 1 more while want() runs
  std::atomic<int> error_ = 0;
};

}  // namespace stfs
