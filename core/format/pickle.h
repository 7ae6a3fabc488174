// Reads a pickle (Python's pickletools.py, protocols 0 to 5) without executing it: nothing is
// imported, called or constructed. A global is represented by its name. A call is represented by an
// object that has the callable, the arguments, and whatever the pickle adds to the result later.
//
//   value     none, bool, integer, text, bytes, tuple: immutable
//   node      list, dict, object: may be changed after it was made, and may contain itself
//
// The time is linear in the length of the pickle, and the memory is at most nine times its length
// plus 16 MiB. In a long list, a run of None, booleans and integers is replaced by its length.
// Values may be shared, so a walk through them may take much longer than the length of the pickle
// suggests, and needs a limit of its own.
//
// Thread safety: const members may be called from any thread. Lifetime: string_views and spans are
// valid as long as the Pickle exists.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

enum class PickleKind : std::uint8_t {
  kMark,  // only on the stack, while the pickle is read
  kNone,
  kBool,
  kInt,
  kText,
  kBytes,
  // A float, an integer of more than 64 bits, or a text with escapes. If `count` is not 0, `count`
  // values of a list that are not kept.
  kOther,
  kGlobal,  // a module and a name
  kTuple,
  kList,  // a list or a set
  kDict,
  kObject,  // the result of a call, or an object with a persistent id
  kState,   // used as a key: the value after it is the state that BUILD gave to the object
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::uint32_t count = 0;  // bytes of a text or of kBytes, items of a tuple; for kOther, see there
  std::uint64_t at = 0;     // the value of a number or bool; else an index or offset

  bool is_plain() const { return kind >= PickleKind::kNone && kind <= PickleKind::kInt; }
  bool is_node() const {
    return kind == PickleKind::kList || kind == PickleKind::kDict || kind == PickleKind::kObject;
  }
  std::int64_t number() const { return static_cast<std::int64_t>(at); }
};

class Pickle {
 public:
  struct Node {
    PickleValue callable;   // only for an object; kNone if it has a persistent id
    PickleValue arguments;  // only for an object: a tuple, or the persistent id
    // The items of a list. For a dict or an object, a key and a value by turns. The key is kState
    // if BUILD gave the value.
    std::vector<PickleValue> items;
  };

  // Reads the pickle `text`. `place` begins the messages of errors. Throws Error kPickle.
  Pickle(std::string text, const std::string& place);

  std::uint64_t length() const { return length_; }  // bytes of the pickle
  PickleValue result() const { return result_; }

  // The argument must have the kind that the function needs: kText or kBytes, kTuple, a node.
  std::string_view text_of(PickleValue text) const;
  std::span<const PickleValue> items_of(PickleValue tuple) const;
  const Node& node(PickleValue value) const { return nodes_[value.at]; }
  std::uint64_t node_count() const { return nodes_.size(); }
  std::uint64_t item_count() const { return items_.size(); }  // the items of all tuples

  struct Global {
    std::string_view module, name;
  };
  Global global_of(PickleValue global) const;
  // Returns true if an object is saved outside of the pickle, under a persistent id.
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
  std::string decoded_;             // texts that had escapes, decoded
  std::vector<PickleValue> items_;  // the items of all tuples
  std::deque<Node> nodes_;
  std::deque<GlobalTexts> globals_;
  PickleValue result_;
};

}  // namespace stfs
