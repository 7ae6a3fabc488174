// Reads a pickle (Python's pickletools.py, protocols 0 to 5) as what it says, not as what it would
// do: nothing is imported, called or made. A global is its name; a call is an object that has the
// callable, its arguments, and whatever was put into it afterwards.
//
//   value     none, bool, integer, text, bytes, tuple: immutable
//   node      list, dict, object: may be changed after it was made, and hold itself
//
// Time is linear in the length of the pickle, and memory at most nine times its length and 16 MiB;
// of a long list the values that are no text, container or global are counted alone. What it holds
// may be shared, so a walk through it needs a bound of its own.
//
// Thread safety: const members may be called from any thread. Lifetime: string_views and spans are
// valid while the Pickle lives.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

enum class PickleKind : std::uint8_t {
  kMark,  // of the stack alone
  kNone,
  kBool,
  kInt,
  kText,
  kBytes,
  kOther,   // a float, an integer of more than 64 bits; or `count` values that are not kept
  kGlobal,  // a module and a name
  kTuple,
  kList,  // a set too
  kDict,
  kObject,  // a call, or what is saved under a persistent id
  kState,   // in the place of a key: the value is the state that BUILD gave
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::uint32_t count = 0;  // bytes of a text, items of a tuple; of kOther, see there
  std::uint64_t at = 0;     // the value of a number; else where it is kept

  bool is_plain() const { return kind >= PickleKind::kNone && kind <= PickleKind::kInt; }
  bool is_node() const {
    return kind == PickleKind::kList || kind == PickleKind::kDict || kind == PickleKind::kObject;
  }
  std::int64_t number() const { return static_cast<std::int64_t>(at); }
};

class Pickle {
 public:
  struct Node {
    PickleValue callable;   // of an object; of a persistent id: none
    PickleValue arguments;  // a tuple; of a persistent id: the id
    // Of a list its items; of others keys and values by turns, kState for a key where BUILD gave
    // the value.
    std::vector<PickleValue> items;
  };

  // `place` begins the messages of errors. Throws Error kPickle.
  Pickle(std::string text, const std::string& place);

  std::uint64_t length() const { return length_; }  // bytes of the pickle
  PickleValue result() const { return result_; }

  std::string_view text_of(PickleValue text) const;  // of kText, kBytes
  std::span<const PickleValue> items_of(PickleValue tuple) const;
  const Node& node(PickleValue value) const { return nodes_[value.at]; }
  std::uint64_t node_count() const { return nodes_.size(); }
  std::uint64_t item_count() const { return items_.size(); }  // of all tuples

  struct Global {
    std::string_view module, name;
  };
  Global global_of(PickleValue global) const;
  // Whether an object is what a persistent id stands for.
  static bool is_persistent(const Node& object) {
    return object.callable.kind == PickleKind::kNone;
  }

 private:
  class Reader;
  struct GlobalTexts {
    PickleValue module, name;
  };

  std::uint64_t length_;
  std::string text_;                // the pickle
  std::string decoded_;             // texts that it has escaped
  std::vector<PickleValue> items_;  // of tuples
  std::deque<Node> nodes_;
  std::deque<GlobalTexts> globals_;
  PickleValue result_;
};

}  // namespace stfs
