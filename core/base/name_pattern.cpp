#include "core/base/name_pattern.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>

namespace stfs {
namespace {

constexpr std::size_t kMostText = 4096;       // bytes of an expression
constexpr std::size_t kMostSteps = 4096;      // of a program
constexpr int kDeepestGroup = 32;             // groups in groups
constexpr std::uint64_t kMostWork = 1 << 20;  // pairs of a step and a place

bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
bool is_letter(unsigned char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
// Python counts letters of other alphabets as such. No byte of them stands alone.
bool is_word(unsigned char c) { return is_letter(c) || is_digit(c) || c == '_' || c >= 0x80; }
bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

// Recursive descent. Each function appends the steps of what it reads; false: not known.
class NamePattern::Parser {
 public:
  Parser(std::string_view text, NamePattern& out) : text_(text), out_(out) {}

  bool run() {
    if (!alternatives(0) || !text_.empty()) return false;
    return add(Op::kMatch);
  }

 private:
  bool add(Op op, std::size_t a = 0, std::size_t b = 0) {
    if (out_.steps_.size() >= kMostSteps) return false;
    out_.steps_.push_back({op, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)});
    return true;
  }
  bool add_set(const Set& set) {
    out_.sets_.push_back(set);
    return add(Op::kCharacter, out_.sets_.size() - 1);
  }
  std::size_t here() const { return out_.steps_.size(); }

  bool take(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  bool alternatives(int depth) {
    if (depth > kDeepestGroup) return false;
    std::vector<std::size_t> jumps;  // from the end of each alternative but the last to behind it
    for (;;) {
      const std::size_t begin = here();
      if (!sequence(depth)) return false;
      if (!take("|")) break;
      // Split to this alternative and to the others.
      if (!insert(begin, {Op::kSplit, static_cast<std::uint32_t>(begin + 1), 0})) return false;
      jumps.push_back(here());
      if (!add(Op::kJump)) return false;
      out_.steps_[begin].b = static_cast<std::uint32_t>(here());
    }
    for (const std::size_t jump : jumps) out_.steps_[jump].a = static_cast<std::uint32_t>(here());
    return true;
  }

  bool sequence(int depth) {
    while (!text_.empty() && text_.front() != '|' && text_.front() != ')') {
      const std::size_t begin = here();
      bool can_repeat = true;
      if (!atom(depth, can_repeat) || !repetition(begin, can_repeat)) return false;
    }
    return true;
  }

  bool atom(int depth, bool& can_repeat) {
    const char c = text_.front();
    text_.remove_prefix(1);
    switch (c) {
      case '(': return group(depth, can_repeat);
      case '[': return char_class();
      case '\\': return escape(can_repeat);
      case '.': {
        Set set;
        set.set().reset('\n');
        return add_set(set);
      }
      case '^': can_repeat = false; return add(Op::kBegin);
      case '$': can_repeat = false; return add(Op::kEnd);
      case '*':
      case '+':
      case '?':
      case '{':  // a literal, where it begins no repetition; no name has one
        return false;
      default: {
        Set set;
        set.set(static_cast<unsigned char>(c));
        return add_set(set);
      }
    }
  }

  bool group(int depth, bool& can_repeat) {
    const bool is_ahead = take("?=");
    const bool is_not_ahead = !is_ahead && take("?!");
    if (is_ahead || is_not_ahead) {
      can_repeat = false;
      const std::size_t look = here();
      if (!add(is_ahead ? Op::kAhead : Op::kNotAhead) || !alternatives(depth + 1) || !take(")") ||
          !add(Op::kMatch)) {
        return false;
      }
      out_.steps_[look].a = static_cast<std::uint32_t>(here());
      return true;
    }
    if (take("?P<")) {
      const std::size_t end = text_.find('>');
      if (end == std::string_view::npos) return false;
      text_.remove_prefix(end + 1);
    } else if (!take("?:") && text_.starts_with('?')) {
      return false;
    }
    return alternatives(depth + 1) && take(")");
  }

  static bool set_of(char c, Set& set) {
    const auto add = [&](bool (*is_in)(unsigned char), bool wanted) {
      for (unsigned i = 0; i < set.size(); ++i) {
        if (is_in(static_cast<unsigned char>(i)) == wanted) set.set(i);
      }
      return true;
    };
    switch (c) {
      case 'd': return add(is_digit, true);
      case 'D': return add(is_digit, false);
      case 'w': return add(is_word, true);
      case 'W': return add(is_word, false);
      case 's': return add(is_space, true);
      case 'S': return add(is_space, false);
      default: return false;
    }
  }

  bool escape(bool& can_repeat) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    const auto edge = [&](Op op) {
      can_repeat = false;
      return add(op);
    };
    if (c == 'b') return edge(Op::kWordEdge);
    if (c == 'B') return edge(Op::kNoWordEdge);
    if (c == 'A') return edge(Op::kBegin);
    if (c == 'Z') return edge(Op::kEnd);
    Set set;
    if (set_of(c, set)) return add_set(set);
    if (is_word(static_cast<unsigned char>(c)) && c != '_') return false;
    set.set(static_cast<unsigned char>(c));
    return add_set(set);
  }

  // The next character of a class; `set` gets it when it stands for several.
  bool class_character(unsigned char& c, bool& is_set, Set& set) {
    if (text_.empty()) return false;
    c = static_cast<unsigned char>(text_.front());
    text_.remove_prefix(1);
    is_set = false;
    if (c != '\\') return true;
    if (text_.empty()) return false;
    c = static_cast<unsigned char>(text_.front());
    text_.remove_prefix(1);
    is_set = set_of(static_cast<char>(c), set);
    return is_set || !is_word(c) || c == '_';
  }

  bool char_class() {
    const bool is_negated = take("^");
    Set set;
    for (bool is_first = true; is_first || !text_.starts_with(']'); is_first = false) {
      unsigned char first = 0;
      bool is_set = false;
      if (!class_character(first, is_set, set)) return false;
      if (is_set) continue;
      unsigned char last = first;
      if (text_.size() >= 2 && text_[0] == '-' && text_[1] != ']') {
        text_.remove_prefix(1);
        if (!class_character(last, is_set, set) || is_set || last < first) return false;
      }
      for (unsigned i = first; i <= last; ++i) set.set(i);
    }
    text_.remove_prefix(1);
    return add_set(is_negated ? ~set : set);
  }

  bool number(std::size_t& out) {
    bool is_there = false;
    for (out = 0; !text_.empty() && is_digit(static_cast<unsigned char>(text_.front()));
         text_.remove_prefix(1)) {
      out = out * 10 + static_cast<std::size_t>(text_.front() - '0');
      if (out > kMostSteps) return false;
      is_there = true;
    }
    return is_there;
  }

  // The repetition that may stand behind the steps from `begin` on.
  bool repetition(std::size_t begin, bool can_repeat) {
    constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
    std::size_t least = 0;
    std::size_t most = kNoLimit;
    if (take("*")) {
    } else if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (text_.starts_with('{')) {
      text_.remove_prefix(1);
      const bool has_least = number(least);
      if (take(",")) {
        if (!number(most)) most = kNoLimit;
      } else {
        if (!has_least) return false;
        most = least;
      }
      if (!take("}") || most < least) return false;
    } else {
      return true;
    }
    take("?");  // as few as possible: which beginning matches makes no difference
    const bool is_repeated_again = text_.starts_with('*') || text_.starts_with('+') ||
                                   text_.starts_with('?') || text_.starts_with('{');
    return can_repeat && !is_repeated_again && repeat(begin, least, most);
  }

  bool repeat(std::size_t begin, std::size_t least, std::size_t most) {
    const std::vector<Step> once(out_.steps_.begin() + static_cast<std::ptrdiff_t>(begin),
                                 out_.steps_.end());
    out_.steps_.resize(begin);
    for (std::size_t i = 0; i < least; ++i) {
      if (!append(once, begin)) return false;
    }
    if (most != std::numeric_limits<std::size_t>::max()) {
      std::vector<std::size_t> splits;
      for (std::size_t i = least; i < most; ++i) {
        splits.push_back(here());
        if (!add(Op::kSplit, here() + 1) || !append(once, begin)) return false;
      }
      for (const std::size_t split : splits) {
        out_.steps_[split].b = static_cast<std::uint32_t>(here());
      }
      return true;
    }
    const std::size_t split = here();
    if (!add(Op::kSplit, split + 1) || !append(once, begin) || !add(Op::kJump, split)) return false;
    out_.steps_[split].b = static_cast<std::uint32_t>(here());
    return true;
  }

  // Appends steps that stood at `from`.
  bool append(const std::vector<Step>& steps, std::size_t from) {
    const auto moved = static_cast<std::uint32_t>(here() - from);
    for (Step step : steps) {
      if (step.op != Op::kCharacter) {
        step.a += moved;
        step.b += moved;
      }
      if (!add(step.op, step.a, step.b)) return false;
    }
    return true;
  }

  // Places from `at` on move by one.
  bool insert(std::size_t at, Step step) {
    if (!add(Op::kMatch)) return false;
    for (std::size_t i = here() - 1; i > at; --i) {
      out_.steps_[i] = out_.steps_[i - 1];
      if (out_.steps_[i].op == Op::kCharacter) continue;
      ++out_.steps_[i].a;
      ++out_.steps_[i].b;
    }
    out_.steps_[at] = step;
    return true;
  }

  std::string_view text_;
  NamePattern& out_;
};

class NamePattern::Run {
 public:
  Run(const NamePattern& pattern, std::string_view name) : pattern_(pattern), name_(name) {}

  std::uint64_t work() const { return work_; }

  // nullopt: too much work.
  std::optional<bool> from(std::uint32_t first, std::size_t place) {
    const std::size_t places = name_.size() + 1;
    std::vector<bool> seen(pattern_.steps_.size() * places);
    work_ += seen.size() / 64;
    std::vector<std::pair<std::uint32_t, std::size_t>> todo{{first, place}};
    while (!todo.empty()) {
      const auto [at, i] = todo.back();
      todo.pop_back();
      if (seen[at * places + i]) continue;
      seen[at * places + i] = true;
      if (++work_ > kMostWork) return std::nullopt;
      const Step& step = pattern_.steps_[at];
      switch (step.op) {
        case Op::kMatch: return true;
        case Op::kCharacter:
          if (i < name_.size() &&
              pattern_.sets_[step.a].test(static_cast<unsigned char>(name_[i]))) {
            todo.emplace_back(at + 1, i + 1);
          }
          break;
        case Op::kSplit:
          todo.emplace_back(step.b, i);
          todo.emplace_back(step.a, i);
          break;
        case Op::kJump: todo.emplace_back(step.a, i); break;
        case Op::kAhead:
        case Op::kNotAhead: {
          const auto is_ahead = from(at + 1, i);
          if (!is_ahead) return std::nullopt;
          if (*is_ahead == (step.op == Op::kAhead)) todo.emplace_back(step.a, i);
          break;
        }
        default:
          if (is_at(step.op, i)) todo.emplace_back(at + 1, i);
      }
    }
    return false;
  }

 private:
  bool is_at(Op op, std::size_t i) const {
    if (op == Op::kBegin) return i == 0;
    // Python's `$` also matches before a newline at the end. No name of a module has one.
    if (op == Op::kEnd) return i == name_.size();
    const bool before = i > 0 && is_word(static_cast<unsigned char>(name_[i - 1]));
    const bool behind = i < name_.size() && is_word(static_cast<unsigned char>(name_[i]));
    return (before != behind) == (op == Op::kWordEdge);
  }

  const NamePattern& pattern_;
  std::string_view name_;
  std::uint64_t work_ = 0;
};

std::optional<NamePattern> NamePattern::parse(std::string_view expression) {
  NamePattern out;
  if (expression.size() > kMostText || !Parser(expression, out).run()) return std::nullopt;
  out.steps_.shrink_to_fit();
  out.sets_.shrink_to_fit();
  return out;
}

std::optional<bool> NamePattern::matches(std::string_view name, std::uint64_t& work) const {
  if (name.size() >= kMostWork || steps_.size() * (name.size() + 1) > 8 * kMostWork) {
    return std::nullopt;
  }
  Run run(*this, name);
  const std::optional<bool> is_match = run.from(0, 0);
  work += run.work();
  return is_match;
}

}  // namespace stfs
