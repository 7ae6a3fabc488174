#include "tools/gpu/client/selection.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/mount_source.h"
#include "core/checkpoint/select.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"
#include "core/stored/missing_checkpoint.h"
#include "tools/gpu/device/narrowing.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <set>
#include <tuple>
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

// Returns false if a name contains a NUL, which the library's callers may pass but a path cannot
// contain.
bool can_be_path(std::string_view text) { return text.find('\0') == std::string_view::npos; }

bool exists(const std::string& path) {
  struct stat status {};
  return can_be_path(path) && ::stat(path.c_str(), &status) == 0;
}

// If a path is in the control directory of a mount, where tensors have other forms, returns the
// root of the mount. Returns nullopt for any other path. The path must be absolute and without
// symbolic links.
std::optional<std::string> root_of_view(const std::string& path) {
  const std::size_t at = (path + "/").rfind("/.stfs/");
  if (at == std::string::npos) return std::nullopt;
  std::string root = path.substr(0, at);
  return find_mount_source(root) ? std::optional(std::move(root)) : std::nullopt;
}

// Returns a text that changes when a file is replaced or rewritten, or when the list of a directory
// changes.
std::string stamp_of(const std::string& path) {
  const struct stat status = status_of(path);
  const auto text = [](const timespec& time) {
    return "-" + std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
  };
  return std::to_string(status.st_ino) + text(status.st_mtim) + text(status.st_ctim);
}

// Removes a whole number from the front of `text` and sets `number`. Returns false if there is no
// number.
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

// Parses a shape such as "[2,3]", which must have `elements` elements. Returns an empty shape for
// any other text.
std::vector<std::uint64_t> shape_of(std::string_view text, std::uint64_t elements) {
  std::vector<std::uint64_t> shape;
  std::uint64_t product = 1;
  for (bool is_more = take(text, '['); is_more; is_more = take(text, ',')) {
    std::uint64_t& dim = shape.emplace_back();
    if (!take_number(text, dim) || __builtin_mul_overflow(product, dim, &product)) return {};
  }
  if (text != "]" || product != elements) shape.clear();
  return shape;
}

constexpr std::string_view kForms =
    "name a tensor or a directory of a mount, a checkpoint, or SOURCE::NAME";

// Returns true if a directory, which is not in a mount, contains a checkpoint.
bool holds_checkpoint(const std::string& directory) {
  return std::ranges::any_of(names_in(directory), [&](const std::string& name) {
    if (!is_checkpoint_name(name)) return false;
    const fs::path path = fs::path(directory) / name;
    std::error_code error;
    const fs::file_type type = fs::status(path, error).type();
    if (type == fs::file_type::not_found) return true;  // a broken link, which loading reports
    return type == fs::file_type::regular && !extended_attribute(path, "user.stfs.name");
  });
}

// Returns the position of the "::" that ends the URL of a source, or npos if the argument is only a
// URL. The host may be an address such as [::1].
std::size_t split_url(const std::string& argument) {
  const std::size_t host = argument.find("://") + 3;
  const bool is_bracketed = argument.compare(host, 1, "[") == 0;
  return argument.find("::", is_bracketed ? argument.find(']', host) : host);
}

// Throws an Error if a URL contains secrets, because the copier opens a source by its public name.
void refuse_secret(const std::string& url) {
  if (public_name(url) == url) return;
  refuse(public_name(url),
         "the URL may contain a secret (a query, or a user before the host), which stfs-gpu does "
         "not pass on: name a URL without one, put user and password into ~/.netrc, or download "
         "the file first");
}

// Refuses an argument that is not a path, does not name a source and matches no tensor.
[[noreturn]] void refuse_absent(const std::string& argument) {
  refuse_model_name(argument);
  for (const std::string& source : {argument, argument.substr(0, argument.find("::"))}) {
    if (!can_be_path(source)) continue;
    static_cast<void>(find_mount_source(source));  // throws for a mount that cannot be read
    struct stat status {};
    if (::stat(source.c_str(), &status) != 0 && errno != ENOENT && errno != ENOTDIR) {
      throw_unreadable(source, errno);
    }
  }
  throw Error(ErrorCode::kUnreadable, argument,
              "no such file, and no source before a \"::\": " + std::string(kForms));
}

// Returns the slice that is the shard's part of `slice`. If one of many tensors lacks the shard's
// dimension, returns `slice` unchanged.
std::string shard_of(const SelectionOptions& options, const std::string& slice,
                     const Tensor& tensor, const std::string& place) {
  const Shard& shard = *options.shard;
  std::vector<Range> ranges;
  if (parse_ranges(slice.empty() ? "..." : slice, tensor.shape, ranges) != 0) return slice;
  std::uint64_t kept = 0;
  for (Range& range : ranges) {
    if (!range.keeps_dimension || kept++ != shard.dimension) continue;
    if (range.count % shard.world != 0) {
      refuse(place, "tensor " + in_quotes(tensor.name) + ": dimension " +
                        std::to_string(shard.dimension) + " of " + std::to_string(range.count) +
                        " cannot be divided by " + std::to_string(shard.world) +
                        ": choose another dimension or number of ranks");
    }
    range.count /= shard.world;
    range.start += shard.rank * range.count * range.step;
    Slice part;
    const TypeInfo& type = type_info(tensor.dtype);
    const bool is_of_values = options.as && converts(tensor.dtype, *options.as);
    if (!is_of_values && slice_of(ranges, type, tensor.shape, part) != 0) {
      refuse(place, "tensor " + in_quotes(tensor.name) + ": " + std::string(type.name) +
                        " lies in blocks of " + std::to_string(type.block_elements) +
                        " elements, and a part of 1/" + std::to_string(shard.world) +
                        " of dimension " + std::to_string(shard.dimension) +
                        " cuts them: choose another dimension or number of ranks, or --as f32");
    }
    return canonical_expression(ranges, tensor.shape);
  }
  if (options.is_one_of_many) return slice;
  refuse(place, "tensor " + in_quotes(tensor.name) + ": there is no dimension " +
                    std::to_string(shard.dimension) + " (they count from 0, and it has " +
                    std::to_string(kept) + "): load it without a shard");
}

// Returns the options for a file of a mount. If the file shows its tensor as another type, adds
// this type.
SelectionOptions as_shown(const std::string& path, SelectionOptions options) {
  const auto as = extended_attribute(path, "user.stfs.as");
  if (!as || options.as) return options;
  options.as = dtype_from_name(*as);
  if (!options.as) refuse(path, "shows its tensor as " + in_quotes(*as) + ", an unknown type");
  return options;
}

// Returns true if a mount's file shows a tensor as it is stored in the file that the attributes
// name: with the same name, offset and shape.
bool is_stored_so(const Checkpoint& checkpoint, const std::string& path, const std::string& name) {
  const auto found = checkpoint.find(name);
  const auto offset = extended_attribute(path, "user.stfs.offset");
  const auto shape = extended_attribute(path, "user.stfs.shape");
  if (!found) return false;
  const Tensor tensor = checkpoint.tensor(*found);
  return tensor.locator && offset == std::to_string(tensor.locator->offset) &&
         (checkpoint.part_of(*found).is_split || shape == shape_json(tensor.shape));
}

std::string read_mount_json(const Checkpoint& checkpoint) {
  return mount_json(
      {checkpoint.origins(), false, checkpoint.layers(), version_of(checkpoint.list())});
}

// Returns true if some tensors are computed, by layers or because a file of PyTorch or NumPy
// describes them so.
bool computes(const TensorList& list) {
  if (list.is_layered()) return true;
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (list.row(i).computed != nullptr) return true;
  }
  return false;
}

void set_source(ItemRequest& request, const Extent& at) {
  request.path = at.source->path();
  request.version = at.source->token();
  request.source_size = at.source->size();
  request.offset = at.offset;
}

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  std::string_view rest = text;
  const bool is_one = take_number(rest, shard.rank) && take(rest, '/') &&
                      take_number(rest, shard.world) && take(rest, '@') &&
                      take_number(rest, shard.dimension) && rest.empty();
  if (!is_one || shard.world == 0 || shard.rank >= shard.world) {
    refuse("", "shard " + in_quotes(text) + ": not RANK/WORLD@DIM with RANK below WORLD, as 0/8@1");
  }
  return shard;
}

bool is_replicated(const Item& item, const SelectionOptions& options) {
  return options.shard && item.shape().size() <= options.shard->dimension;
}

bool is_unconverted(const Item& item, const SelectionOptions& options) {
  return options.as && item.dtype() != *options.as;
}

std::vector<std::string> exceptions(std::span<const Item> items, const SelectionOptions& options) {
  std::uint64_t replicated = 0;
  std::uint64_t unconverted = 0;
  std::set<std::string_view> types;
  for (const Item& item : items) {
    replicated += is_replicated(item, options) ? 1 : 0;
    if (!is_unconverted(item, options)) continue;
    ++unconverted;
    types.insert(dtype_name(item.dtype()));
  }
  std::vector<std::string> lines;
  if (replicated > 0) {
    lines.push_back(std::to_string(replicated) + " replicated: no dimension " +
                    std::to_string(options.shard->dimension));
  }
  if (unconverted > 0) {
    std::string text = std::to_string(unconverted) + " unconverted:";
    for (const std::string_view type : types) {
      text += (type == *types.begin() ? " " : ", ") + std::string(type);
    }
    lines.push_back(std::move(text));
  }
  return lines;
}

void check_options(std::span<const Item> items, const SelectionOptions& options) {
  const auto apply_to_none = [&](bool (*is_exception)(const Item&, const SelectionOptions&)) {
    return !items.empty() && std::ranges::all_of(items, [&](const Item& item) {
      return is_exception(item, options);
    });
  };
  if (apply_to_none(is_replicated)) {
    refuse("", "no tensor has a dimension " + std::to_string(options.shard->dimension) +
                   " to divide: dimensions count from 0");
  }
  if (apply_to_none(is_unconverted)) {
    refuse("", "no tensor can be converted to " + std::string(dtype_name(*options.as)) +
                   ": none has a floating-point type");
  }
}

std::vector<Item> Selection::resolve_all(std::span<const std::string> arguments,
                                         SelectionOptions options) {
  options.is_one_of_many = options.is_one_of_many || arguments.size() > 1;
  std::vector<Item> items;
  for (const std::string& argument : arguments) {
    std::ranges::move(resolve(argument, options), std::back_inserter(items));
  }
  check_options(items, options);
  return items;
}

std::vector<Item> Selection::resolve_once(std::span<const std::string> arguments,
                                          const SelectionOptions& options) {
  std::vector<Item> items;
  std::set<std::string> keys;
  for (Item& item : resolve_all(arguments, options)) {
    if (keys.insert(item.key()).second) items.push_back(std::move(item));
  }
  return items;
}

std::vector<Item> Selection::resolve(const std::string& argument, SelectionOptions options) {
  std::vector<Item> items;
  if (is_url(argument)) {
    refuse_secret(argument.substr(0, split_url(argument)));
    const std::size_t colons = split_url(argument);
    if (colons == std::string::npos) {
      add_checkpoint(argument, options, items);
    } else {
      add_named(argument.substr(0, colons), argument.substr(colons + 2), options, items);
    }
  } else if (exists(argument)) {
    add_path(argument, options, items);
  } else if (const std::size_t colons = split(argument); colons != std::string::npos) {
    add_named(argument.substr(0, colons), argument.substr(colons + 2), options, items);
  } else {
    if (!can_be_path(argument)) refuse_absent(argument);
    glob_t found{};
    const int result = ::glob(argument.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> paths;
    if (result == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (paths.empty()) refuse_absent(argument);
    options.is_one_of_many = true;
    for (const std::string& path : paths) add_path(path, options, items);
  }
  if (items.empty()) refuse(argument, "no tensors there: " + std::string(kForms));
  // Sort the items in the order of their bytes, so that a source is read from its beginning to its
  // end.
  std::ranges::stable_sort(items, [](const Item& a, const Item& b) {
    return std::tie(a.request().path, a.request().offset) <
           std::tie(b.request().path, b.request().offset);
  });
  return items;
}

// Returns the position of the "::" after the name of an existing source, or npos if there is no
// such "::".
std::size_t Selection::split(const std::string& argument) {
  for (std::size_t at = argument.find("::"); at != std::string::npos;
       at = argument.find("::", at + 1)) {
    if (exists(argument.substr(0, at))) return at;
  }
  return std::string::npos;
}

void Selection::add_named(const std::string& source, const std::string& name,
                          SelectionOptions options, std::vector<Item>& items) {
  const Opened& opened = open(source, false, options.layers);
  const Checkpoint& checkpoint = *opened.checkpoint;
  const std::vector<std::uint32_t> numbers = select(checkpoint, name);
  if (numbers.empty()) refuse(source, no_such_tensor(checkpoint, name));
  if (!checkpoint.find(name)) options.is_one_of_many = true;
  for (const std::uint32_t number : numbers) {
    add(opened, checkpoint.tensor(number), "", options, source, items);
  }
}

void Selection::add_checkpoint(const std::string& source, SelectionOptions options,
                               std::vector<Item>& items) {
  options.is_one_of_many = true;
  const Opened& opened = open(source, false, options.layers);
  const Checkpoint& checkpoint = *opened.checkpoint;
  for (std::uint32_t number = 0; number < checkpoint.tensor_count(); ++number) {
    add(opened, checkpoint.tensor(number), "", options, source, items);
  }
}

void Selection::add_path(const std::string& path, SelectionOptions options,
                         std::vector<Item>& items) {
  const std::string absolute = absolute_path(path);
  if (!S_ISDIR(status_of(absolute).st_mode)) {
    if (add_file(absolute, options, items)) return;
    try {
      return add_checkpoint(path, options, items);
    } catch (const Error& error) {
      // If the file does not have the name of a checkpoint, the broken rule says too little, so add
      // the forms of an argument.
      if (exit_status(error.code()) != 1 || is_source_name(path)) throw;
      throw Error(error.code(), path, error.message() + ": " + std::string(kForms));
    }
  }
  if (!root_of_view(absolute) && find_mount_source(absolute)) {
    try {
      // Prefer this to a walk, which needs several system calls per tensor.
      return add_checkpoint(path, options, items);
    } catch (const Error& error) {
      // The tensors in this directory may be from a source that has not changed. The walk finds
      // out.
      if (error.code() != ErrorCode::kUnreadable && error.code() != ErrorCode::kAbsent &&
          error.code() != ErrorCode::kHidden) {
        throw;
      }
    }
  } else if (holds_checkpoint(absolute)) {
    return add_checkpoint(path, options, items);
  }
  options.is_one_of_many = true;
  std::error_code error;
  for (fs::recursive_directory_iterator at(absolute, error), end; at != end && !error;
       at.increment(error)) {
    // The views show the same tensors again. Use them only if the argument names a view.
    // The root of every mount has this inode number. Any other directory with the name ".stfs"
    // belongs to the checkpoint.
    constexpr ino_t kRoot = 1;
    if (at->path().filename() == ".stfs" && status_of(at->path().parent_path()).st_ino == kRoot) {
      at.disable_recursion_pending();
    }
    std::error_code cause;
    const fs::file_type type = at->status(cause).type();
    if (type == fs::file_type::none) {
      throw_errno(ErrorCode::kUnreadable, at->path().string(), "", cause.value());
    }
    if (type == fs::file_type::directory && at->is_symlink()) {
      refuse(at->path().string(), "a symbolic link to a directory: name the directory itself");
    }
    if (type == fs::file_type::regular && !add_file(at->path().string(), options, items)) {
      refuse(at->path().string(), "not a tensor in a mount of stfs: " + std::string(kForms));
    }
  }
  if (error) throw_errno(ErrorCode::kUnreadable, path, "", error.value());
}

bool Selection::add_file(const std::string& path, const SelectionOptions& options,
                         std::vector<Item>& items) {
  const auto attribute = [&](const char* name) { return extended_attribute(path, name); };
  const auto name = attribute("user.stfs.name");
  const auto source = attribute("user.stfs.source");
  if (!name) return false;
  if (!source || !options.layers.empty()) return add_values(path, *name, options, items);
  auto version = attribute("user.stfs.version");
  if (!version) return false;
  const Opened* opened = &open(*source, true);
  if (!is_stored_so(*opened->checkpoint, path, *name)) {
    return add_values(path, *name, options, items);
  }
  const auto find = [&](const Checkpoint& checkpoint) {
    const auto found = checkpoint.find(*name);
    const bool is_mounted = found && checkpoint.part_of(*found).source->token() == *version;
    return is_mounted ? found : std::nullopt;
  };
  auto found = find(*opened->checkpoint);
  // After the attribute was read, a new link to the source may have changed the source's token, so
  // read the attribute again.
  for (unsigned looks = 1; !found; ++looks) {
    const auto now = attribute("user.stfs.version");
    if (!now || *now == *version || looks == kMaxLoads) {
      throw Error(ErrorCode::kUnreadable, *source,
                  std::string("is not the version that is mounted: mount it again") +
                      (is_url(*source) ? ", by a URL without a query" : ""));
    }
    version = now;
    opened = &open(*source, true);
    found = find(*opened->checkpoint);
  }
  const Checkpoint& checkpoint = *opened->checkpoint;
  Tensor tensor = checkpoint.tensor(*found);
  std::vector<std::uint64_t> shape;
  if (checkpoint.part_of(*found).is_split) {
    // Only the first part of a split file may contain the tensor's shape.
    shape = shape_of(attribute("user.stfs.shape").value_or(""), tensor.elements());
    if (!shape.empty()) tensor.shape = shape;
  }
  add(*opened, tensor, attribute("user.stfs.slice").value_or(""), as_shown(path, options), path,
      items);
  return true;
}

bool Selection::add_values(const std::string& path, const std::string& name,
                           const SelectionOptions& options, std::vector<Item>& items) {
  const std::string absolute = absolute_path(path);
  std::optional<std::string> root = root_of_view(absolute);
  std::optional<MountSource> mounted = find_mount_source(root ? *root : absolute);
  if (!mounted) return false;
  root = mounted->mountpoint;
  const Opened& opened = open(*root, false, options.layers);
  const Checkpoint& checkpoint = *opened.checkpoint;
  const auto found = checkpoint.find(name);
  if (!found) {
    if (options.is_one_of_many) return true;
    refuse(path,
           "not a tensor of the checkpoint with its layers, because other tensors are computed "
           "from it");
  }
  const std::optional<std::string> slice = extended_attribute(path, "user.stfs.slice");
  const Tensor tensor = checkpoint.tensor(*found);
  // The mount's file shows a slice. It is also a slice of this tensor if both tensors are the same.
  if (slice) {
    const bool is_another = tensor.computed != nullptr ||
                            extended_attribute(path, "user.stfs.shape") != shape_json(tensor.shape);
    const auto is_of_mount = [&](const Layer& layer) { return has_layer(*mounted, layer); };
    if (is_another && !std::ranges::all_of(options.layers, is_of_mount)) {
      refuse(path,
             "a part of the stored tensor, which may have another shape: mount it with these "
             "layers, or name the tensor");
    }
  }
  add(opened, tensor, slice.value_or(""), as_shown(path, options), path, items);
  return true;
}

// Returns the request for a whole tensor in its own type.
ItemRequest Selection::request_for(const Opened& opened, const Tensor& tensor,
                                   const std::string& place) {
  ItemRequest request;
  request.tensor = tensor.name;
  request.dtype = tensor.dtype;
  request.shape.assign(tensor.shape.begin(), tensor.shape.end());
  if (tensor.locator) {
    set_source(request, *tensor.locator);
    return request;
  }
  const std::vector<Tensor> inputs = tensor.computed->inputs();
  request.path = place;
  if (!inputs.empty()) set_source(request, *inputs.front().locator);
  request.computed = {.checkpoint = opened.description,
                      .identity = opened.identities->of(tensor),
                      .scheme = std::string(tensor.computed->scheme())};
  return request;
}

void Selection::add(const Opened& opened, const Tensor& tensor, const std::string& slice,
                    const SelectionOptions& options, const std::string& place,
                    std::vector<Item>& items) {
  ItemRequest request = request_for(opened, tensor, place);
  if (options.as && tensor.values != nullptr) {
    refuse(place, "tensor " + in_quotes(tensor.name) +
                      ": another tensor scales it: load its values with --dequantize");
  }
  request.slice = options.shard ? shard_of(options, slice, tensor, place) : slice;
  const bool can_convert =
      options.as && (tensor.dtype == *options.as || converts(tensor.dtype, *options.as));
  if (options.as && !can_convert && !options.is_one_of_many) {
    refuse(place, "tensor " + in_quotes(tensor.name) + ": no conversion from " +
                      std::string(dtype_name(tensor.dtype)) + " to " +
                      std::string(dtype_name(*options.as)) + ": load it in its own type");
  }
  if (can_convert) request.as = options.as;
  items.emplace_back(std::move(request));
}

bool Selection::has_moved(const Error& error, std::span<const Item> items) const {
  if (error.code() != ErrorCode::kUnreadable) return false;
  std::set<std::pair<std::string, std::string>> named;  // path, token
  std::set<const std::string*> described;
  for (const Item& item : items) {
    const ItemRequest& request = item.request();
    named.emplace(request.path, request.version);
    if (request.computed) described.insert(request.computed->checkpoint.get());
  }
  bool moved = false;
  for (const auto& [name, opened] : open_) {
    if (!opened.checkpoint) continue;
    const bool is_described = described.contains(opened.description.get());
    for (const Part& part : opened.checkpoint->parts()) {
      const auto of_path = named.lower_bound({part.source->path(), ""});
      const bool is_named = of_path != named.end() && of_path->first == part.source->path();
      if (!is_named && !is_described) continue;
      if (part.source->verify() != 0) return false;
      moved = moved || (is_named && !named.contains({part.source->path(), part.source->token()}));
    }
    moved = moved || (is_described && *opened.description != read_mount_json(*opened.checkpoint));
  }
  return moved;
}

void Selection::load_resolved(std::vector<Item>& items, std::span<const std::string> arguments,
                              const SelectionOptions& options, const std::function<void()>& load) {
  for (unsigned loads = 1;; ++loads) {
    try {
      return load();
    } catch (const Error& error) {
      if (loads == kMaxLoads || !has_moved(error, items)) throw;
    }
    items = resolve_once(arguments, options);
  }
}

void Selection::forget_layered() {
  std::erase_if(open_, [](const auto& entry) {
    return !std::get<2>(entry.first).empty() ||
           (entry.second.checkpoint && entry.second.checkpoint->list().is_layered());
  });
}

void Selection::forget_remote() {
  std::erase_if(open_, [](const auto& entry) {
    return is_url(std::get<0>(entry.first)) ||
           (entry.second.checkpoint &&
            std::ranges::any_of(entry.second.checkpoint->parts(),
                                [](const Part& part) { return is_url(part.source->path()); }));
  });
}

const Selection::Opened& Selection::open(const std::string& source, bool is_exact, Layers layers) {
  const bool is_remote = is_url(source);
  const std::optional<MountSource> mounted = is_remote ? std::nullopt : find_mount_source(source);
  const std::string absolute = is_remote ? source : absolute_path(source);
  // A mount at the same path, a directory or an index may mean other files than before, so their
  // version is checked each time. The meaning of a URL is kept until forget_remote().
  const std::string version = mounted     ? mounted->content.version
                              : is_remote ? std::string()
                                          : stamp_of(absolute);
  if (mounted) {
    std::erase_if(layers, [&](const Layer& layer) { return has_layer(*mounted, layer); });
  }
  const Name name{absolute, is_exact, layers};
  Opened& known = open_[name];
  const auto is_current = [](const Part& part) { return part.source->is_current(); };
  if (known.checkpoint && known.version == version &&
      std::ranges::all_of(known.checkpoint->parts(), is_current)) {
    return known;
  }
  known = {version,
           std::make_unique<const Checkpoint>(std::span(&source, 1),
                                              LoadOptions{.alone = is_exact,
                                                          .layers = layers,
                                                          .warn = warn_,
                                                          .warns_of_refused_alone = layers.empty(),
                                                          .sources = &sources_}),
           nullptr, std::nullopt};
  for (const Part& part : known.checkpoint->parts()) {
    if (is_url(part.source->path())) continue;
    // A file in a view has the same inode number and times in the next mount at this path, even if
    // the bytes differ.
    if (const auto root = root_of_view(part.source->path())) {
      const std::string path = part.source->path();
      open_.erase(name);
      refuse(path, "a mount makes this file, so its version is unknown: name the mount, " +
                       printable(*root) + ", or a copy of the file");
    }
  }
  if (computes(known.checkpoint->list())) {
    known.description = std::make_shared<const std::string>(read_mount_json(*known.checkpoint));
    known.identities.emplace(known.checkpoint->list());
  }
  return known;
}

}  // namespace stfs::gpu
