// Uses any names, one per line, as the tensors of a checkpoint. No two names may share a path, no
// file may be a directory, and a lookup must find every listed name.
#include "core/base/error.h"
#include "core/checkpoint/names.h"
#include "core/checkpoint/tree.h"
#include "tests/fuzz/check.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::fuzz {
namespace {

constexpr char kSeparator = '\n';

// Returns the names, sorted and without duplicates.
std::vector<std::string> names_in(std::string_view input) {
  std::set<std::string> names;
  while (true) {
    const std::size_t end = input.find(kSeparator);
    names.emplace(input.substr(0, end));
    if (end == std::string_view::npos) return {names.begin(), names.end()};
    input.remove_prefix(end + 1);
  }
}

void check_component(std::string_view component, bool is_first) {
  check(!component.empty() && component.size() <= kMaxComponent);
  check(component != "." && component != "..");
  check(!is_first || component != ".stfs");
  for (const char c : component) {
    const auto byte = static_cast<unsigned char>(c);
    check(byte >= 0x20 && byte != 0x7f && byte != '/');
  }
}

bool may_be_shortened(std::string_view component) {
  return component.size() > 17 && component[component.size() - 17] == '~';
}

void check_path(std::string_view name, std::string_view path) {
  bool may_be_cut = false;
  bool is_first = true;
  for (std::string_view rest = path;;) {
    const std::size_t slash = rest.find('/');
    check_component(rest.substr(0, slash), is_first);
    may_be_cut = may_be_cut || may_be_shortened(rest.substr(0, slash));
    is_first = false;
    if (slash == std::string_view::npos) break;
    rest.remove_prefix(slash + 1);
  }
  if (!may_be_cut) check(decode_path(path) == name);
}

// Walks the tree with list() and lookup(). Returns the number of its files.
std::size_t walk(const PathTree& tree, std::size_t tensors) {
  std::size_t files = 0;
  for (std::uint32_t directory = 0; directory < tree.directory_count(); ++directory) {
    std::uint64_t next = 0;
    std::string previous;
    for (std::uint64_t cursor = 0; const auto entry = tree.list(directory, cursor, next);) {
      check(next > cursor && next <= tensors);
      cursor = next;
      const auto found = tree.lookup(directory, entry->component);
      check(found && found->is_directory == entry->is_directory && found->number == entry->number);
      if (entry->is_directory) {
        check(tree.parent(entry->number) == directory);
      } else {
        ++files;
      }
      std::string path = std::string(entry->component) + (entry->is_directory ? "/" : "");
      check(previous < path);
      previous = std::move(path);
    }
  }
  return files;
}

// Checks that any cursor gives an entry of the same directory or no entry.
void check_any_cursor(const PathTree& tree, std::size_t tensors) {
  for (std::uint32_t directory = 0; directory < tree.directory_count(); ++directory) {
    for (std::uint64_t cursor = 0; cursor <= tensors; ++cursor) {
      std::uint64_t next = 0;
      const auto entry = tree.list(directory, cursor, next);
      if (!entry) continue;
      check(next > cursor);
      const auto found = tree.lookup(directory, entry->component);
      check(found && found->is_directory == entry->is_directory && found->number == entry->number);
    }
  }
}

void run(std::string_view input) {
  const std::vector<std::string> names = names_in(input);
  std::vector<std::uint32_t> by_name(names.size());
  std::iota(by_name.begin(), by_name.end(), 0U);
  const PathTree tree([&](std::uint32_t i) { return std::string_view(names[i]); }, by_name);

  std::set<std::string_view> paths;
  for (const std::uint32_t i : by_name) {
    check_path(names[i], tree.path(i));
    check(paths.insert(tree.path(i)).second);
    check(tree.find(tree.path(i)) == i);
  }
  check(walk(tree, names.size()) == names.size());
  constexpr std::size_t kFew = 64;  // the walk is quadratic
  if (names.size() <= kFew) check_any_cursor(tree, names.size());
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stfs::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
