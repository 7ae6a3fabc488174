// s/REGEX/NEW/ on names, as sed has it: the first match, or all with g; \1 to \9 are groups, \0 and
// & the match. Any punctuation behind the s delimits. REGEX is one of RE2, which takes linear time.
//
// Thread safety: const members may be called from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace re2 {
class RE2;
}

namespace stfs {

class Substitution {
 public:
  static constexpr std::size_t kMostName = 1 << 20;

  // Throws std::invalid_argument with the rule that the text breaks.
  explicit Substitution(std::string_view text);
  Substitution(Substitution&&) noexcept;
  Substitution& operator=(Substitution&&) noexcept;
  ~Substitution();

  // The name after the substitution; nullopt when nothing matches. Throws std::invalid_argument for
  // one of more than kMostName bytes.
  std::optional<std::string> apply(std::string_view name) const;

 private:
  // A text, or a group of the match.
  struct Piece {
    std::string text;
    int group = -1;  // -1: none
  };

  std::unique_ptr<const re2::RE2> expression_;
  std::vector<Piece> pieces_;  // of NEW
  bool is_global_ = false;
};

}  // namespace stfs
