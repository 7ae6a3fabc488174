// The bytes of a compressed member of an archive, decompressed when they are read.
//
// A stream can only be read from its beginning. So where a read ended is kept, and places that a
// read went over: the next read goes on from the last one before it.
//
// Thread safety: const members may be called from any thread. Lifetime: sources and InflatedPlaces
// outlive the producers.
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

// The places that were used last, of all members of a file.
class InflatedPlaces {
 public:
  static constexpr std::size_t kMost = 256;  // of 45 KB each

  // The last place of a member at or before a position; null for none.
  std::shared_ptr<const Inflater> before(std::uint64_t member, std::uint64_t position) const;
  // Keeps a place of a member, in place of `last` where that is not null.
  void keep(std::uint64_t member, std::shared_ptr<const Inflater> place, const Inflater* last);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // the member, the position
  struct Kept {
    Key key;
    std::shared_ptr<const Inflater> place;
  };
  mutable std::mutex mutex_;
  mutable std::list<Kept> kept_;  // the last used first
  std::map<Key, std::list<Kept>::iterator> by_key_;
};

// The bytes [begin, begin + length) of a member. `stored`: its compressed bytes; `number`: that of
// the member among those that share `places`.
std::unique_ptr<const Producer> inflated(Extent stored, Description::Deflated member,
                                         std::uint64_t begin, std::uint64_t length,
                                         InflatedPlaces& places, std::uint64_t number);

}  // namespace stfs
