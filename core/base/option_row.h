// A row of a table of options: the names of an option, the kind of its value, and the member that
// the value sets.
//
// Thread safety and lifetime: rows are constants; their texts are string literals.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace stfs {

// The kind of a value. It decides how the parser checks a value and how a shell completes it.
enum class Value {
  kText,
  kChoice,      // one of the words in `argument`: "name|size|offset"
  kNumber,      // from `least` to `most`
  kSize,        // bytes: "1000", "16G", "512MiB"
  kSource,      // a checkpoint: a .safetensors file, an index, a directory
  kPath,        // any file
  kTensor,      // the name of a tensor in the checkpoint that is the first operand
  kTensorPath,  // any file, or SOURCE::NAME
  kEditLine,    // a line of edits of the checkpoint that is the first operand
  kMountpoint,  // the mountpoint of a mounted checkpoint
  kDevice,      // a device of stfs-gpu: "cuda:0"
  kList,        // rows of CommandRow::list, separated by commas
  kCommand,     // the words after "--"; the program removes them before it calls parse_command
};

// Stores a value, which the parser has checked, in the arguments of the command. The value is "" if
// the option is a flag. Throws Error.
using Setter = void (*)(void* arguments, const std::string& value);

template <class Arguments, class T>
Arguments owner_of(T Arguments::*);

// Returns the member kMember of `object`, or the member kInner of that member, and so on.
template <auto kMember, auto... kInner>
auto& member_of(auto& object) {
  if constexpr (sizeof...(kInner) == 0) {
    return object.*kMember;
  } else {
    return member_of<kInner...>(object.*kMember);
  }
}

// The setter of a member, or of the member kInner of a member. It sets a bool to true, replaces a
// number or a text, and appends to a vector.
template <auto kMember, auto... kInner>
void set(void* arguments, const std::string& value) {
  auto& member =
      member_of<kMember, kInner...>(*static_cast<decltype(owner_of(kMember))*>(arguments));
  using T = std::remove_reference_t<decltype(member)>;
  if constexpr (std::is_same_v<T, bool>) {
    member = true;
  } else if constexpr (std::is_integral_v<T>) {
    member = static_cast<T>(std::stoull(value, nullptr, 0));
  } else if constexpr (requires { member.push_back(value); }) {
    member.push_back(value);
  } else if constexpr (std::is_assignable_v<T&, const std::string&>) {
    member = value;
  } else {
    member = std::stoull(value);
  }
}

struct OptionRow {
  // The names of an option, as in "-j,--jobs"; of an operand, as in "SOURCE" or "GLOB..."; or of an
  // option in a list, as in "threads". For an operand that is one of a few words, both this and
  // `argument` list the words: "list|prune|verify".
  std::string_view flags = {};
  // The verbs that have the row. A "!" marks a verb that requires it: "list extract!".
  std::string_view verbs = {};
  std::string_view argument = {};  // "N"; "" for a flag; "KEY..." may be given several times
  Value value = Value::kText;
  Setter set = nullptr;
  std::string_view help = {};  // one line
  std::string_view man = {};   // sentences, with `literal` and <argument>
  unsigned least = 0;          // a kNumber must be in [least, most]
  unsigned most = 0;
};

// Returns one table with the rows of `a`, then those of `b`.
template <std::size_t kA, std::size_t kB>
constexpr std::array<OptionRow, kA + kB> joined(const std::array<OptionRow, kA>& a,
                                                const std::array<OptionRow, kB>& b) {
  std::array<OptionRow, kA + kB> all{};
  for (std::size_t i = 0; i < kA; ++i) all[i] = a[i];
  for (std::size_t i = 0; i < kB; ++i) all[kA + i] = b[i];
  return all;
}

}  // namespace stfs
