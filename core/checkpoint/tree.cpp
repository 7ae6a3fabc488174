#include "core/checkpoint/tree.h"

#include "core/base/sort.h"
#include "core/base/text.h"

#include <algorithm>
#include <span>
#include <utility>

namespace stfs {

PathTree::PathTree(NameOf name_of, std::vector<std::uint32_t> by_name, bool all_plain)
    : name_of_(std::move(name_of)), any_special_(!all_plain) {
  if (any_special_) encode_names(by_name);
  if (encoded_.empty()) {
    order_ = std::move(by_name);
  } else {
    order_ =
        sorted_order(by_name.size(), [this](std::uint32_t tensor) { return path(tensor); }).order;
    refuse_collisions();
  }
  build_directories();
}

namespace {

// Keeps the earlier names that are prefixes of the current name, if names arrive in sorted order. A
// stack is enough, because all names between a prefix and the current name have that prefix too.
class OpenPrefixes {
 public:
  void advance(std::string_view name) {
    while (!names_.empty() && !name.starts_with(names_.back())) {
      names_.pop_back();
      lengths_.pop_back();
    }
  }
  void open(std::string_view name) {
    names_.push_back(name);
    lengths_.push_back(name.size());
  }
  std::span<const std::size_t> lengths() const { return lengths_; }

 private:
  std::vector<std::string_view> names_;
  std::vector<std::size_t> lengths_;
};

}  // namespace

void PathTree::encode_names(const std::vector<std::uint32_t>& by_name) {
  OpenPrefixes prefixes;
  for (const std::uint32_t tensor : by_name) {
    const std::string_view name = name_of_(tensor);
    prefixes.advance(name);
    if (!is_plain_name(name)) add_path(tensor, encode_path(name, prefixes.lengths()));
    prefixes.open(name);
  }
  std::ranges::sort(encoded_, {}, &EncodedName::tensor);
}

void PathTree::add_path(std::uint32_t tensor, const EncodedPath& path) {
  may_collide_ = may_collide_ || path.cut;
  if (path.path == name_of_(tensor)) return;
  encoded_.push_back({arena_.size(), static_cast<std::uint32_t>(path.path.size()), tensor});
  arena_ += path.path;
}

void PathTree::encode_dotted_names(std::uint32_t count) {
  // The key of a name has `/` in place of each `.`. Names with equal keys would have the same path.
  std::string keys;
  std::vector<std::uint64_t> begins{0};
  for (std::uint32_t i = 0; i < count; ++i) {
    keys += name_of_(i);
    begins.push_back(keys.size());
  }
  std::ranges::replace(keys, '.', '/');
  const auto key_of = [&](std::uint32_t i) {
    return std::string_view(keys).substr(begins[i], begins[i + 1] - begins[i]);
  };
  const std::vector<std::uint32_t> by_key = sorted_order(count, key_of).order;
  OpenPrefixes prefixes;
  for (std::size_t first = 0; first < by_key.size();) {
    const std::string_view key = key_of(by_key[first]);
    std::size_t last = first + 1;
    while (last < by_key.size() && key_of(by_key[last]) == key) ++last;
    prefixes.advance(key);
    for (std::size_t i = first; i < last; ++i) {
      const std::string_view name = name_of_(by_key[i]);
      const bool is_shared = last - first > 1 && name.find('.') != std::string_view::npos;
      may_collide_ = may_collide_ || is_shared;
      add_path(by_key[i], encode_path(name, prefixes.lengths(),
                                      is_shared ? PathStyle::kDotsEscaped : PathStyle::kDots));
    }
    prefixes.open(key);
    first = last;
  }
  std::ranges::sort(encoded_, {}, &EncodedName::tensor);
}

PathTree PathTree::with_dots(NameOf name_of, std::uint32_t count) {
  PathTree tree(std::move(name_of));
  tree.any_special_ = true;
  tree.encode_dotted_names(count);
  tree.order_ =
      sorted_order(count, [&tree](std::uint32_t tensor) { return tree.path(tensor); }).order;
  tree.refuse_collisions();
  tree.build_directories();
  return tree;
}

std::string_view PathTree::path(std::uint32_t tensor) const {
  if (!encoded_.empty()) {
    const auto encoded = std::ranges::lower_bound(encoded_, tensor, {}, &EncodedName::tensor);
    if (encoded != encoded_.end() && encoded->tensor == tensor) {
      return std::string_view(arena_).substr(encoded->begin, encoded->length);
    }
  }
  return name_of_(tensor);
}

void PathTree::build_directories() {
  if (any_special_) {
    // Reserve an upper bound, because memory that is never touched stays virtual. If the vector
    // grew instead, a name with millions of directories would triple the peak memory.
    std::size_t slashes = 0;
    for (const std::uint32_t tensor : order_) {
      slashes += static_cast<std::size_t>(std::ranges::count(path(tensor), '/'));
    }
    directories_.reserve(slashes + 1);
  }
  directories_.push_back({0, static_cast<std::uint32_t>(order_.size()), 0, 0});
  if (!any_special_) return;
  std::uint32_t open = kRoot;  // the innermost directory that contains the current path
  std::string_view previous;
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const std::string_view path = this->path(order_[i]);
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(previous, path).in1 - previous.begin());
    while (directories_[open].prefix_length > common) {
      directories_[open].last = i;
      open = directories_[open].parent;
    }
    std::size_t from = directories_[open].prefix_length;
    for (std::size_t slash; (slash = path.find('/', from)) != std::string_view::npos;) {
      from = slash + 1;
      const auto number = static_cast<std::uint32_t>(directories_.size());
      directories_.push_back(
          {i, static_cast<std::uint32_t>(order_.size()), static_cast<std::uint32_t>(from), open});
      open = number;
    }
    previous = path;
  }
}

void PathTree::refuse_collisions() const {
  // Only paths with a cut component or with escaped dots can collide; cut components do if 64 bits
  // of their digests are equal. All other encoding is injective.
  if (!may_collide_) return;
  OpenPrefixes files;
  for (const std::uint32_t tensor : order_) {
    const std::string_view path = this->path(tensor);
    files.advance(path);
    for (const std::size_t length : files.lengths()) {
      if (length == path.size() || path[length] == '/') {
        throw Error(ErrorCode::kPathCollision, "",
                    "path " + in_quotes(path.substr(0, length)) + ": two tensors have this path");
      }
    }
    files.open(path);
  }
}

std::uint32_t PathTree::lower_bound(const Directory& within, std::string_view path) const {
  const auto begin = order_.begin() + within.first;
  const auto end = order_.begin() + within.last;
  const auto bound = std::ranges::lower_bound(
      begin, end, path, {}, [this](std::uint32_t tensor) { return this->path(tensor); });
  return static_cast<std::uint32_t>(bound - order_.begin());
}

std::optional<std::uint32_t> PathTree::find(std::string_view path) const {
  const Directory all{0, static_cast<std::uint32_t>(order_.size()), 0, 0};
  const std::uint32_t at = lower_bound(all, path);
  if (at == all.last || this->path(order_[at]) != path) return std::nullopt;
  return order_[at];
}

std::string_view PathTree::directory_path(std::uint32_t directory) const {
  const Directory& d = directories_[directory];
  return d.prefix_length == 0 ? std::string_view{}
                              : path(order_[d.first]).substr(0, d.prefix_length);
}

std::uint32_t PathTree::directory_at(std::uint32_t first, std::size_t prefix_length) const {
  const auto directory = std::ranges::lower_bound(
      directories_, std::pair(first, static_cast<std::uint32_t>(prefix_length)), {},
      [](const Directory& d) { return std::pair(d.first, d.prefix_length); });
  return static_cast<std::uint32_t>(directory - directories_.begin());
}

std::optional<PathTree::Entry> PathTree::lookup(std::uint32_t directory,
                                                std::string_view component) const {
  if (component.empty() || component.find('/') != std::string_view::npos) return std::nullopt;
  const Directory& within = directories_[directory];
  std::string path(directory_path(directory));
  path += component;
  const std::uint32_t file = lower_bound(within, path);
  if (file < within.last && this->path(order_[file]) == path) {
    return Entry{false, order_[file], this->path(order_[file]).substr(within.prefix_length)};
  }
  path += '/';
  const std::uint32_t first = lower_bound(within, path);
  if (first == within.last || !this->path(order_[first]).starts_with(path)) return std::nullopt;
  return Entry{true, directory_at(first, path.size()),
               this->path(order_[first]).substr(within.prefix_length, component.size())};
}

std::optional<PathTree::Entry> PathTree::list(std::uint32_t directory, std::uint64_t cursor,
                                              std::uint64_t& next) const {
  const Directory& within = directories_[directory];
  if (cursor >= within.last - within.first) return std::nullopt;
  auto at = static_cast<std::uint32_t>(within.first + cursor);
  while (at < within.last) {
    const std::string_view path = this->path(order_[at]);
    const std::size_t slash = path.find('/', within.prefix_length);
    if (slash == std::string_view::npos) {
      next = at - within.first + 1;
      return Entry{false, order_[at], path.substr(within.prefix_length)};
    }
    const std::uint32_t first = lower_bound(within, path.substr(0, slash + 1));
    const std::uint32_t child = directory_at(first, slash + 1);
    if (first == at) {
      next = directories_[child].last - within.first;
      return Entry{true, child, path.substr(within.prefix_length, slash - within.prefix_length)};
    }
    at = directories_[child].last;  // the cursor was invalid, inside a subdirectory: skip this
  }
  return std::nullopt;
}

PathTree tree_of(const TensorList& list) {
  const auto name_of = [&list](std::uint32_t number) { return list.name(number); };
  const bool all_plain = std::ranges::all_of(
      list.by_name(), [&](std::uint32_t number) { return is_plain_name(list.name(number)); });
  return {name_of, list.by_name(), all_plain};
}

PathTree dotted_tree_of(const TensorList& list) {
  return PathTree::with_dots([&list](std::uint32_t number) { return list.name(number); },
                             list.size());
}

}  // namespace stfs
