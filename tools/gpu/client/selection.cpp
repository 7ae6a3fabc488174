#include "tools/gpu/client/selection.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>

namespace stfs::gpu {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& place, const std::string& text) {
  throw Error(ErrorCode::kUsage, place, text);
}

struct stat status_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw_errno(ErrorCode::kUnreadable, path.string(), "", errno);
  }
  return status;
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

// Takes a whole number off the front of `text`.
bool take_number(std::string_view& text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// The slice that is the part of a shard in `slice`.
std::string shard_of(const Shard& shard, const std::string& slice, const Tensor& tensor,
                     const std::string& place) {
  std::vector<Range> ranges;
  if (parse_ranges(slice.empty() ? "..." : slice, tensor.shape, ranges) != 0) return slice;
  std::uint64_t kept = 0;
  for (Range& range : ranges) {
    if (!range.keeps_dimension || kept++ != shard.dimension) continue;
    if (range.count % shard.world != 0) {
      refuse(place, "tensor " + in_quotes(tensor.name) + ": dimension " +
                        std::to_string(shard.dimension) + " of " + std::to_string(range.count) +
                        " cannot be divided by " + std::to_string(shard.world));
    }
    range.count /= shard.world;
    range.start += shard.rank * range.count * range.step;
    return canonical_expression(ranges, tensor.shape);
  }
  refuse(place, "tensor " + in_quotes(tensor.name) + ": there is no dimension " +
                    std::to_string(shard.dimension));
}

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  std::string_view rest = text;
  const bool is_one = take_number(rest, shard.rank) && take(rest, '/') &&
                      take_number(rest, shard.world) && take(rest, '@') &&
                      take_number(rest, shard.dimension) && rest.empty();
  if (!is_one || shard.world == 0 || shard.rank >= shard.world) {
    refuse("", "shard " + in_quotes(text) + ": not RANK/WORLD@DIM with RANK below WORLD");
  }
  return shard;
}

std::vector<Item> Selection::resolve(const std::string& argument, const SelectionOptions& options) {
  std::vector<Item> items;
  if (exists(argument)) {
    add_path(argument, options, items);
  } else if (const std::size_t colons = split(argument); colons != std::string::npos) {
    add_named(argument.substr(0, colons), argument.substr(colons + 2), options, items);
  } else {
    glob_t found{};
    const int result = ::glob(argument.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (paths.empty()) {
      throw Error(ErrorCode::kUnreadable, argument, "no such file, and not SOURCE::NAME");
    }
    for (const std::string& path : paths) add_path(path, options, items);
  }
  if (items.empty()) refuse(argument, "no tensors there");
  // In the order of their bytes, so that a source is read from its beginning to its end.
  std::ranges::stable_sort(items, [](const Item& a, const Item& b) {
    return std::pair(a.request().path, a.request().offset) <
           std::pair(b.request().path, b.request().offset);
  });
  return items;
}

// Where the "::" stands that ends a source which exists; npos when none does.
std::size_t Selection::split(const std::string& argument) {
  for (std::size_t at = argument.find("::"); at != std::string::npos;
       at = argument.find("::", at + 1)) {
    if (exists(argument.substr(0, at))) return at;
  }
  return std::string::npos;
}

void Selection::add_named(const std::string& source, const std::string& name,
                          const SelectionOptions& options, std::vector<Item>& items) {
  const Checkpoint& checkpoint = open(source);
  if (const auto found = checkpoint.find(name)) {
    return add(checkpoint.tensor(*found), "", options, source, items);
  }
  const std::vector<std::uint32_t> numbers = checkpoint.match(std::span(&name, 1));
  if (numbers.empty()) {
    refuse(source, "tensor " + in_quotes(name) + ": not in the checkpoint");
  }
  for (const std::uint32_t number : numbers) {
    add(checkpoint.tensor(number), "", options, source, items);
  }
}

void Selection::add_path(const std::string& path, const SelectionOptions& options,
                         std::vector<Item>& items) {
  const std::string absolute = absolute_path(path);
  if (!S_ISDIR(status_of(absolute).st_mode)) return add_file(absolute, options, items);
  std::error_code error;
  for (fs::recursive_directory_iterator at(absolute, error), end; at != end && !error;
       at.increment(error)) {
    // The views show the same tensors again. Take them only where the argument names a view.
    constexpr ino_t kRoot = 1;  // of every mount; a directory elsewhere is one of the checkpoint
    if (at->path().filename() == ".stfs" && status_of(at->path().parent_path()).st_ino == kRoot) {
      at.disable_recursion_pending();
    }
    std::error_code cause;
    const fs::file_type type = at->status(cause).type();
    if (type == fs::file_type::none) {
      throw_errno(ErrorCode::kUnreadable, at->path().string(), "", cause.value());
    }
    if (type == fs::file_type::regular) add_file(at->path().string(), options, items);
  }
  if (error) throw_errno(ErrorCode::kUnreadable, path, "", error.value());
}

void Selection::add_file(const std::string& path, const SelectionOptions& options,
                         std::vector<Item>& items) {
  const auto attribute = [&](const char* name) { return extended_attribute(path, name); };
  const auto name = attribute("user.stfs.name");
  const auto source = attribute("user.stfs.source");
  const auto version = attribute("user.stfs.version");
  if (!name || !source || !version) {
    refuse(path,
           "not a tensor in a mount of stfs (of a checkpoint that is not mounted: "
           "SOURCE::NAME)");
  }
  const Checkpoint& checkpoint = open(*source);
  const auto found = checkpoint.find(*name);
  if (!found || checkpoint.part_of(*found).source->version().token != *version) {
    throw Error(ErrorCode::kUnreadable, *source, "is another version than the one that is mounted");
  }
  SelectionOptions wanted = options;
  const auto as = attribute("user.stfs.as");
  if (as && !wanted.as) {
    wanted.as = dtype_from_name(*as);
    if (!wanted.as) refuse(path, "shows its tensor as " + in_quotes(*as) + ", an unknown type");
  }
  add(checkpoint.tensor(*found), attribute("user.stfs.slice").value_or(""), wanted, path, items);
}

void Selection::add(const Tensor& tensor, const std::string& slice, const SelectionOptions& options,
                    const std::string& place, std::vector<Item>& items) {
  ItemRequest request;
  request.path = tensor.locator->source->path();
  request.tensor = tensor.name;
  request.version = tensor.locator->source->version().token;
  request.source_size = tensor.locator->source->size();
  request.offset = tensor.locator->offset;
  request.dtype = tensor.dtype;
  request.shape.assign(tensor.shape.begin(), tensor.shape.end());
  request.slice = options.shard ? shard_of(*options.shard, slice, tensor, place) : slice;
  request.as = options.as;
  items.emplace_back(std::move(request));
}

const Checkpoint& Selection::open(const std::string& source) {
  std::unique_ptr<const Checkpoint>& checkpoint = open_[absolute_path(source)];
  const auto is_current = [](const Part& part) { return part.source->is_current(); };
  if (!checkpoint || !std::ranges::all_of(checkpoint->parts(), is_current)) {
    checkpoint = std::make_unique<const Checkpoint>(std::span(&source, 1));
  }
  return *checkpoint;
}

}  // namespace stfs::gpu
