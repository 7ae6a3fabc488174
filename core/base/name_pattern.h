// The regular expressions of Python that configurations hold: which modules of a model they mean.
//
// Literals, `.`, classes, groups, alternatives, repetitions, `^ $ \b \A \Z` and looking ahead are
// known. Others are not: references, flags, looking behind, possessive repetitions.
//
// An expression comes from a file. It is compiled into a small program whose length is bounded, and
// each pair of a step and a place in the name is visited once: no expression is slow. A caller
// that matches many expressions bounds the sum of their work.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace stfs {

class NamePattern {
 public:
  // nullopt: not an expression of the kinds above, or longer than any that is used.
  static std::optional<NamePattern> parse(std::string_view expression);

  // Whether a beginning of `name` matches, as Python's re.match(). nullopt: that takes too long.
  // Adds to `work` the pairs of a step and a place that were visited.
  std::optional<bool> matches(std::string_view name, std::uint64_t& work) const;

  // Steps of the program; each takes up to 44 bytes.
  std::size_t size() const { return steps_.size(); }

 private:
  enum class Op : std::uint8_t {
    kCharacter,   // one of set `a`
    kSplit,       // go on at `a`, and at `b`
    kJump,        // to `a`
    kBegin,       // only at the beginning
    kEnd,         // only at the end
    kWordEdge,    // \b
    kNoWordEdge,  // \B
    kAhead,       // only if the part behind, up to its kMatch, matches here; then go on at `a`
    kNotAhead,
    kMatch,
  };
  struct Step {
    Op op;
    std::uint32_t a = 0, b = 0;
  };
  using Set = std::bitset<256>;
  class Parser;
  class Run;

  std::vector<Step> steps_;
  std::vector<Set> sets_;
};

}  // namespace stfs
