// Regular expressions on names, which RE2 matches in linear time.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace stfs {

// An expression for names of modules, from a configuration. The library that wrote it matches it
// with Python's re.match(). parse() accepts lookaheads, (?=...) and (?!...), at one place outside
// of groups. It refuses back-references, lookbehinds, flags, possessive repetitions, counts with
// leading zeros, classes that RE2 would read as POSIX classes, and characters that are not ASCII.
class NamePattern {
 public:
  // Compiles an expression. Returns nullopt if it has more than 4,096 bytes, needs too much memory,
  // or has a construct that is refused.
  static std::optional<NamePattern> parse(std::string_view expression);

  // Returns true if the expression matches at the beginning of `name`, like re.match(). Returns
  // nullopt if `name` has characters other than printable ASCII, because Python and RE2 classify
  // those differently, and if the match would take too long. Adds the number of calls of RE2 to
  // `work`; with a long name or expression a call counts several times.
  std::optional<bool> matches(std::string_view name, std::uint64_t& work) const;

 private:
  using Expression = std::shared_ptr<const re2::RE2>;  // copies of a pattern share it
  struct Look {
    Expression expression;
    bool is_wanted;  // false for (?!...)
  };

  // A name matches if it has a place such that `begin_` matches the whole text before the place,
  // each of `looks_` matches or does not match there, as wanted, and `rest_` matches from there on.
  Expression begin_;  // null: the place is the beginning of the name
  std::vector<Look> looks_;
  Expression rest_;
  std::size_t size_ = 0;  // instructions in all programs of RE2
};

// The work spent so far on matching the expressions of a file, counted like the `work` of
// NamePattern::matches(), and the limit for it.
struct MatchingWork {
  // Returns the limit for a checkpoint with `count` tensors. It allows hostile expressions a few
  // seconds, and a millisecond more for each tensor.
  static MatchingWork for_tensors(std::size_t count) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 18;
    constexpr std::uint64_t kOfTensor = std::uint64_t{1} << 7;
    return {.done = 0, .most = kMost + kOfTensor * count};
  }
  bool is_over() const { return done > most; }

  std::uint64_t done = 0;
  std::uint64_t most = 0;
};

// Limits the number and the bytes of the expressions of a file, and so the time and the memory that
// they take.
class PatternBudget {
 public:
  static constexpr std::size_t kMaxCount = 4096;
  static constexpr std::size_t kMaxBytes = 256 << 10;

  // Returns false if the file has more expressions, or longer ones, than the limits allow.
  bool takes(std::string_view expression) {
    bytes_ += expression.size();
    return ++count_ <= kMaxCount && bytes_ <= kMaxBytes;
  }

 private:
  std::size_t count_ = 0, bytes_ = 0;
};

// Applies s/REGEX/NEW/ to names like sed: to the first match, or with g to all matches. In NEW, \1
// to \9 are groups, and \0 and & are the whole match. Any punctuation character after the s may be
// the delimiter, except a backslash. REGEX has the syntax of RE2.
class Substitution {
 public:
  static constexpr std::size_t kMaxName = 1 << 20;

  // Throws std::invalid_argument with the rule that the text breaks.
  explicit Substitution(std::string_view text);

  // Returns the name after the substitution, or nullopt if nothing matches. Throws
  // std::invalid_argument if the new name could have more than kMaxName bytes.
  std::optional<std::string> apply(std::string_view name) const;

 private:
  std::shared_ptr<const re2::RE2> expression_;  // copies of a substitution share it
  std::string rewrite_;                         // NEW in the syntax of RE2::Rewrite()
  bool is_global_ = false;
};

}  // namespace stfs
