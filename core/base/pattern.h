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

// An expression for names of modules in a configuration, which Python's re.match() matches there.
// parse() accepts looking ahead, (?=...) and (?!...), at one place outside of groups. It refuses
// back-references, looking behind, flags, possessive repetitions, counts with leading zeros, what
// RE2 takes for a class of POSIX, and characters that are not ASCII.
class NamePattern {
 public:
  // Returns nullopt if the expression is too long or has a construct that it refuses.
  static std::optional<NamePattern> parse(std::string_view expression);

  // Returns whether a beginning of `name` matches. Returns nullopt if `name` has other characters
  // than printable ASCII, because Python and RE2 classify those differently, and if the match would
  // take too long. Adds to `work` the calls of RE2; long names and expressions count several times.
  std::optional<bool> matches(std::string_view name, std::uint64_t& work) const;

 private:
  using Expression = std::shared_ptr<const re2::RE2>;  // copies of a pattern share it
  struct Look {
    Expression expression;
    bool is_wanted;  // false: (?!...)
  };

  // With `looks_`, a name matches if it has a place up to which `begin_` matches, where each of
  // `looks_` is as wanted, and from which a beginning matches `rest_`.
  Expression begin_;  // null: empty
  std::vector<Look> looks_;
  Expression rest_;
  std::size_t size_ = 0;  // of RE2's programs, in instructions
};

// The work of matching the expressions of a file so far, as NamePattern counts it, and its limit.
struct MatchingWork {
  // The limit for a checkpoint of so many tensors: seconds for hostile expressions, and a
  // millisecond more for each tensor.
  static MatchingWork for_tensors(std::size_t count) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 18;
    constexpr std::uint64_t kOfTensor = std::uint64_t{1} << 7;
    return {.done = 0, .most = kMost + kOfTensor * count};
  }
  bool is_over() const { return done > most; }

  std::uint64_t done = 0;
  std::uint64_t most = 0;
};

// Bounds the time and the memory that the expressions of a file take.
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

// s/REGEX/NEW/ on names, as sed does it: the first match, or all with g. \1 to \9 are groups, \0
// and & the match. Any punctuation after the s delimits. REGEX is an expression of RE2.
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
