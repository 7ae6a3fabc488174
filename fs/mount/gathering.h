// A read of which some bytes are not here: fetches them, and answers through a ticket of Waiting.
// It holds no thread while it waits.
//
// The bytes of a reply may lie far apart (a column of a large matrix), and a source may keep only
// few. So a reply is gathered in steps: each wants at most kMostMissing bytes of blocks, and copies
// what came into a buffer of the reply. When one step is enough, which is so for whole tensors, the
// reply is read as any other is, from the mapping where that is possible.
//
//   look ──something is missing──► wanting ──the last range has come──► look
//    │ │ nothing is missing            │ a range cannot be fetched
//    │ └─► copied ──bytes are left──► look
//    │        └──all there──► answered with 0
//    └─► an errno ──► answered with it
//
//   transition         made by
//   look, copied       the thread that makes the step: the read's, or the source's that was ready
//                      last. Steps follow each other, and are never made by two threads at once
//   wanting            the same; no range is wanted once the ticket is cancelled
//   answered           Waiting::arrive(), or cancel() and stop() at any time: then with EINTR, and
//                      what comes later finds nobody
//
// Steps (core/recipe/arrival.h) says what a step wants, also where bytes went away again.
//
// Thread safety: go_on() may be called by any thread, once for each step. Lifetime: shared with the
// callbacks of sources, which may come after the FileSystem ended.
#pragma once

#include "core/recipe/arrival.h"
#include "fs/mount/recipes.h"
#include "fs/mount/waiting.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace stfs {

class Gathering : public std::enable_shared_from_this<Gathering> {
 public:
  // Fills a recipe, which is empty: 0 or an errno. Called in steps of Waiting::go_on() only.
  using Find = std::function<int(Recipe& recipe)>;

  Gathering(std::shared_ptr<Waiting> waiting, Waiting::Ticket ticket, Find find,
            std::uint64_t offset, std::uint64_t length)
      : waiting_(std::move(waiting)),
        ticket_(ticket),
        find_(std::move(find)),
        steps_(offset, length) {}

  // Makes steps until bytes must come or the ticket is answered. Throws nothing. Call it once, when
  // the ticket waits; later steps are made by the sources.
  void go_on() noexcept;

 private:
  bool step();  // whether another one can be made at once
  int look(Reply& reply, std::vector<Extent>& missing, bool& is_done);
  bool want(const std::vector<Extent>& missing);  // likewise
  void arrived(int error);

  const std::shared_ptr<Waiting> waiting_;
  const Waiting::Ticket ticket_;
  const Find find_;
  Steps steps_;
  std::unique_ptr<std::byte[]> buffer_;  // of the whole reply; null until there is a second step

  std::atomic<std::size_t> left_ = 0;  // ranges that have not come; one more while they are wanted
  std::atomic<int> error_ = 0;
};

}  // namespace stfs
