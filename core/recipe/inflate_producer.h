// The bytes of a compressed member of an archive, decompressed when they are read.
//
// A stream can only be decompressed from its beginning. So states of the decompression (places) are
// kept: at the end of a read, and at regular positions that a read has passed. The next read
// continues from the last place before its range.
//
// Thread safety: all members may be called from any thread. Lifetime: the source and the
// InflatedPlaces must outlive the producers.
#pragma once

#include "core/format/header.h"
#include "core/format/inflate.h"
#include "core/recipe/content.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace stfs {

// The most recently used places in all members of a file.
class InflatedPlaces {
 public:
  static constexpr std::size_t kMost = 256;  // places; each takes 45 KB

  // Returns the last place of a member at or before a position, or null if there is none.
  std::shared_ptr<const Inflater> before(std::uint64_t member, std::uint64_t position) const;
  // Keeps a place of a member. If `last` is not null and is still kept, replaces it.
  void keep(std::uint64_t member, std::shared_ptr<const Inflater> place, const Inflater* last);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // the member, the position
  struct Kept {
    Key key;
    std::shared_ptr<const Inflater> place;
  };
  mutable std::mutex mutex_;
  mutable std::list<Kept> kept_;  // the most recently used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
};

// Returns a producer of the bytes [begin, begin + length) of a member. `stored` is its compressed
// data. `number` must identify the member among all members that share `places`.
std::unique_ptr<const Producer> inflated(Extent stored, Description::Deflated member,
                                         std::uint64_t begin, std::uint64_t length,
                                         InflatedPlaces& places, std::uint64_t number);

}  // namespace stfs
