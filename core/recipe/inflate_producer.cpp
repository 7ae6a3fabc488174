#include "core/recipe/inflate_producer.h"

#include "core/base/while_wanted.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace stfs {
namespace {

// Places are kept at multiples of a step: 1/32 of the member, but at least 1 MiB.
constexpr std::uint64_t kLeastKeptStep = 1 << 20;
constexpr std::uint64_t kKeptSteps = 32;

class Inflated : public Producer {
 public:
  Inflated(Extent stored, Description::Deflated member, std::uint64_t begin, std::uint64_t length,
           InflatedPlaces& places, std::uint64_t number)
      : stored_(stored),
        member_(member),
        begin_(begin),
        length_(length),
        places_(places),
        number_(number) {}

  std::uint64_t size() const override { return length_; }
  int verify() const override { return stored_.source->verify(); }

  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>& missing) const override {
    // A read may need any of the bytes: only decompression shows where a position is in the stream.
    if (!stored_.source->has({stored_.offset, stored_.length})) missing.push_back(stored_);
  }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::uint64_t begin = begin_ + offset;
    const std::shared_ptr<const Inflater> last = places_.before(number_, begin);
    Inflater inflater =
        last ? Inflater(*last) : Inflater({stored_.offset, stored_.length}, member_, reader());
    int error = skip_to(begin, inflater);
    if (error == 0) error = inflater.take(out);
    if (error != 0) return failure(error);
    // Replace the place at which the last read ended, but not a place at a multiple of the step,
    // because readers that begin anywhere use it.
    const bool was_an_end = last && last->position() % step() != 0;
    places_.keep(number_, std::make_shared<const Inflater>(inflater),
                 was_an_end ? last.get() : nullptr);
    return 0;
  }

 private:
  std::uint64_t step() const { return std::max(kLeastKeptStep, member_.length / kKeptSteps); }

  ReadBytes reader() const {
    return [source = stored_.source](std::uint64_t offset, std::span<std::byte> out) {
      return source->read_unverified(out, offset);
    };
  }

  // Decompresses the bytes up to `position`, discards them, and keeps places at multiples of the
  // step.
  int skip_to(std::uint64_t position, Inflater& inflater) const {
    std::vector<std::byte> unwanted;
    while (inflater.position() < position) {
      if (WhileWanted::has_ended()) return EINTR;
      const std::uint64_t to_step = step() - inflater.position() % step();
      unwanted.resize(static_cast<std::size_t>(
          std::min({position - inflater.position(), to_step, std::uint64_t{256} << 10})));
      if (const int error = inflater.take(unwanted)) return error;
      if (inflater.position() % step() == 0) {
        places_.keep(number_, std::make_shared<const Inflater>(inflater), nullptr);
      }
    }
    return 0;
  }

  int failure(int error) const {
    if (error != EBADMSG) return error;
    stored_.source->record_failure(stored_.offset, stored_.offset + stored_.length, EIO);
    return EIO;
  }

  Extent stored_;
  Description::Deflated member_;
  std::uint64_t begin_, length_;
  InflatedPlaces& places_;
  std::uint64_t number_;
};

}  // namespace

std::shared_ptr<const Inflater> InflatedPlaces::before(std::uint64_t member,
                                                       std::uint64_t position) const {
  const std::lock_guard lock(mutex_);
  auto found = by_key_.upper_bound({member, position});
  if (found == by_key_.begin() || (--found)->first.first != member) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->place;
}

void InflatedPlaces::keep(std::uint64_t member, std::shared_ptr<const Inflater> place,
                          const Inflater* last) {
  std::list<Kept> gone;  // destroyed after the mutex is released
  const Key key{member, place->position()};
  std::list<Kept> fresh{{key, std::move(place)}};
  const std::lock_guard lock(mutex_);
  const auto drop = [&](const Key& old, const Inflater* expected) {
    const auto found = by_key_.find(old);
    if (found == by_key_.end()) return;
    if (expected != nullptr && found->second->place.get() != expected) return;
    gone.splice(gone.begin(), kept_, found->second);
    by_key_.erase(found);
  };
  if (last != nullptr) drop({member, last->position()}, last);
  drop(key, nullptr);
  by_key_.emplace(key, fresh.begin());
  kept_.splice(kept_.begin(), fresh);
  if (kept_.size() > kMost) drop(kept_.back().key, nullptr);
}

std::unique_ptr<const Producer> inflated(Extent stored, Description::Deflated member,
                                         std::uint64_t begin, std::uint64_t length,
                                         InflatedPlaces& places, std::uint64_t number) {
  return std::make_unique<Inflated>(stored, member, begin, length, places, number);
}

}  // namespace stfs
