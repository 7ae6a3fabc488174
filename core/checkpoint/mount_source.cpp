#include "core/checkpoint/mount_source.h"

#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_lines.h"
#include "core/remote/http/url.h"
#include "core/remote/stores/hub_cache.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr ino_t kRootInode = 1;  // the inode number of the root of every stfs mount
constexpr std::string_view kControlDirectory = ".stfs";

// Adds a text and a NUL, which marks its end.
void add_text(Sha256& hash, std::string_view text) {
  hash.add(std::as_bytes(std::span(text)));
  hash.add(std::as_bytes(std::span("\0", 1)));
}

// The text of mount_json()

// Writes a text as JSON. JSON must be UTF-8, so a path that is not UTF-8 is written in hex.
void write_text(const std::string& text, TextWriter& out) {
  if (is_utf8(text)) {
    out.json(text);
  } else {
    out.add("{\"hex\":").json(hex(text)).add("}");
  }
}

// Returns an argument without the secrets of the URL at the end of its first line, as in
// "0.5@https://host/adapter". For edits, the first line says where they are from, and the edits
// follow.
std::string public_argument(const Layer& layer) {
  std::string argument =
      layer.option == kEditOption ? public_edits(layer.argument) : layer.argument;
  const std::size_t scheme = argument.find("://");
  const std::size_t end = std::min(argument.find('\n'), argument.size());
  if (scheme >= end) return argument;
  const auto is_of_scheme = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  std::size_t begin = scheme;
  while (begin > 0 && is_of_scheme(argument[begin - 1])) --begin;
  return argument.substr(0, begin) + public_name(argument.substr(begin, end - begin)) +
         argument.substr(end);
}

void write_texts(std::span<const std::string> texts, TextWriter& out) {
  out.add("[");
  for (const std::string& text : texts) {
    if (&text != texts.data()) out.add(",");
    write_text(text, out);
  }
  out.add("]");
}

// Decodes hexadecimal digits. Returns "" for any other text.
std::string unhex(const std::string& hex) {
  std::string text;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    unsigned byte = 0;
    const char* const first = hex.data() + i;
    if (i + 2 > hex.size() || std::from_chars(first, first + 2, byte, 16).ptr != first + 2)
      return "";
    text += static_cast<char>(byte);
  }
  return text;
}

bool is_path(const std::string& text) {
  return (text.starts_with('/') || is_url(text)) && text.find('\0') == std::string::npos;
}

// Returns the string, array or flag of a key, or null if it is absent or has another type.
template <class T>
const T* member(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : at->get_ptr<const T*>();
}

// Reads a text that write_text() has written. Returns false for any other JSON.
bool parse_text(const Json& json, std::string& text) {
  if (const auto* plain = json.get_ptr<const Json::string_t*>()) {
    text = *plain;
    return true;
  }
  const auto* hex = json.is_object() ? member<Json::string_t>(json, "hex") : nullptr;
  if (hex == nullptr || json.size() != 1) return false;
  text = unhex(*hex);
  return true;
}

// Reads the texts of an array. Returns false if the array is empty or contains anything else.
bool parse_texts(const Json& json, std::vector<std::string>& texts) {
  return json.is_array() && !json.empty() && std::ranges::all_of(json, [&](const Json& text) {
           return parse_text(text, texts.emplace_back());
         });
}

// Recognising a path

[[noreturn]] void refuse_mount(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kUnreadable, place, rule);
}

bool is_fuse(const std::string& path) {
  struct statfs system {};
  return ::statfs(path.c_str(), &system) == 0 && system.f_type == FUSE_SUPER_MAGIC;
}

// Called after stat(2) or statfs(2) has failed. Throws an Error with an explanation if the reason
// is special to FUSE mounts. Returns for any other failure, which loading then reports.
void explain(const std::string& source, int error) {
  if (error == ENOTCONN || error == ECONNABORTED) {  // the latter while it ends
    refuse_mount(source,
                 errno_text(error) +
                     ": the process that served this mount has ended; unmount it (stfs -u, or "
                     "fusermount3 -u) and mount it again");
  }
  if (error != EACCES) return;
  // If a FUSE file system refuses a user, statfs(2) of its root succeeds but stat(2) fails. If both
  // succeed, the mode of a directory excludes the user.
  std::error_code failure;
  fs::path path = fs::absolute(source, failure);
  while (path.has_relative_path()) {
    struct stat status {};
    if (is_fuse(path) && ::stat(path.c_str(), &status) != 0 && errno == EACCES) {
      refuse_mount(source, errno_text(error) + ": only the user who mounted " +
                               printable(path.string()) +
                               " may use it: mount it with -o allow_other to let others in");
    }
    path = path.parent_path();
  }
}

struct statx status_of(const std::string& path) {
  struct statx status {};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  if (::statx(AT_FDCWD, path.c_str(), kFlags, STATX_INO | STATX_TYPE, &status) != 0) {
    throw_errno(ErrorCode::kUnreadable, path, "", errno);
  }
  return status;
}

// Returns the mountpoint of the file system that contains `path`. `path` must be absolute and
// without symbolic links.
std::string mountpoint_of(const std::string& path) {
  const auto device = [](const struct statx& s) {
    return makedev(s.stx_dev_major, s.stx_dev_minor);
  };
  std::string at = path;
  struct statx status = status_of(at);
  while (at != "/" && (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0) {
    std::string parent = fs::path(at).parent_path().string();
    const struct statx above = status_of(parent);
    if (device(above) != device(status)) break;
    at = std::move(parent);
    status = above;
  }
  return at;
}

// Returns the attribute kMountAttribute of a directory, or nullopt if it has none. A directory of
// another file system may have a copy of the attribute.
std::optional<std::string> mount_attribute(const std::string& root) {
  std::string value(XATTR_SIZE_MAX, '\0');
  const ssize_t length = ::getxattr(root.c_str(), kMountAttribute, value.data(), value.size());
  if (length < 0 && errno == E2BIG) {
    refuse_mount(root,
                 "its list of sources or edits has more than 64 KiB: name its sources, and its "
                 "options, in place of the mount");
  }
  if (length < 0) return std::nullopt;
  value.resize(static_cast<std::size_t>(length));
  return value;
}

// Returns true if a file of a view shows a part of a tensor, or its values in another type.
bool shows_values(const std::string& path) {
  return extended_attribute(path, "user.stfs.slice") || extended_attribute(path, "user.stfs.as");
}

// The meaning of a path in a mount that is used as a source.
enum class Meaning { kTensors, kFile, kOtherForms };

Meaning meaning_of(std::string_view within, bool is_directory) {
  if (!is_at_or_below(within, kControlDirectory)) return Meaning::kTensors;
  if (is_at_or_below(within, kTreeView)) return Meaning::kTensors;
  const bool holds_files =
      is_at_or_below(within, kSafetensorsView) || is_at_or_below(within, ".stfs/model");
  return is_directory && !holds_files ? Meaning::kOtherForms : Meaning::kFile;
}

// Returns advice for a mount whose sources are no longer the versions that it shows.
std::string advice(const std::string& mountpoint) {
  for (const char* name : {"merged.gguf", "merged.safetensors"}) {
    const std::string merged = mountpoint + "/.stfs/" + name;
    // Opening the file fails if the mount no longer has all of its bytes.
    const UniqueFd fd(::open(merged.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) continue;
    return "name " + printable(merged) +
           ", which still shows the mounted version, or mount it again";
  }
  return "unmount it and mount it again";
}

// Refuses a mount of stfs 0.1.0, which had no attribute that says what is mounted. Other FUSE file
// systems have no `.stfs/tensors.json`.
void refuse_older_mount(const std::string& root) {
  if (std::error_code error; fs::exists(root + "/.stfs/tensors.json", error)) {
    refuse_mount(root,
                 "an older stfs serves this mount, and does not describe what it mounted: mount it "
                 "again with this version");
  }
}

}  // namespace

std::string mount_json(const MountContent& content) {
  std::string text;
  TextWriter out(text);
  out.add("{\"sources\":");
  write_texts(content.sources, out);
  out.add(",\"allow_missing\":").add(content.allow_missing ? "true" : "false");
  for (const LayerRow& row : layer_table()) {
    std::vector<std::string> arguments;
    for (const Layer& layer : content.layers) {
      if (layer.option == row.option) arguments.push_back(public_argument(layer));
    }
    if (arguments.empty()) continue;
    out.add(",").json(row.option).add(":");
    row.repeats ? write_texts(arguments, out) : write_text(arguments.front(), out);
  }
  out.add(",\"version\":").json(content.version).add("}");
  return text;
}

std::optional<MountContent> parse_mount_json(std::string_view json) {
  const Json parsed = Json::parse(json, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  const auto* allow_missing = member<Json::boolean_t>(parsed, "allow_missing");
  const auto* version = member<Json::string_t>(parsed, "version");
  const auto sources = parsed.find("sources");
  if (allow_missing == nullptr || version == nullptr || sources == parsed.end())
    return std::nullopt;
  MountContent content{.allow_missing = *allow_missing, .version = *version};
  if (!parse_texts(*sources, content.sources)) return std::nullopt;
  if (!std::ranges::all_of(content.sources, is_path)) return std::nullopt;
  std::size_t understood = 3;
  for (const LayerRow& row : layer_table()) {
    const auto at = parsed.find(row.option);
    if (at == parsed.end()) continue;
    ++understood;
    std::vector<std::string> arguments;
    if (!parse_texts(row.repeats ? *at : Json::array({*at}), arguments)) return std::nullopt;
    if (!std::ranges::all_of(arguments, row.accepts)) return std::nullopt;
    for (std::string& argument : arguments) {
      content.layers.push_back({std::string(row.option), std::move(argument)});
    }
  }
  return parsed.size() == understood ? std::optional(std::move(content)) : std::nullopt;
}

std::string version_of(const TensorList& list) {
  Sha256 hash;
  const auto add = [&](std::string_view text) { hash.add(std::as_bytes(std::span(text))); };
  std::size_t stored = 0;
  for (const Part& part : list.parts()) {
    stored += part.header.tensors.size();
    add(part.source->path());
    add({"\0", 1});
    add(part.source->token());
    add("\n");
    if (part.is_whole) continue;
    // An index has selected tensors of the file, and the index may be rewritten.
    for (const std::uint32_t number : part.header.by_name) {
      add(part.header.name(part.header.tensors[number]));
      add({"\0", 1});
    }
  }
  for (const std::string& text : list.texts()) add(text);
  // With layers, parts are kept whole for computed tensors, even if only some tensors are shown.
  for (std::uint32_t i = 0; (list.is_layered() || list.size() != stored) && i < list.size(); ++i) {
    add(list.name(i));
    add({"\0", 1});
  }
  return hash.hex();
}

Identities::Identities(const TensorList& list) {
  for (const std::string& text : list.texts()) add_text(texts_, text);
}

std::string Identities::of(const Tensor& tensor) const {
  Sha256 hash = texts_;
  add_text(hash, tensor.name);
  for (const Tensor& input : tensor.computed->inputs()) {
    const Extent& at = *input.locator;
    add_text(hash, at.source->token());
    add_text(hash, std::to_string(at.offset) + "+" + std::to_string(at.length));
  }
  return hash.hex();
}

bool has_layer(const MountSource& mounted, const Layer& layer) {
  const LayerRow& row = *find_layer(layer.option);
  if (row.repeats) return false;  // because it is applied again to the tensors that are shown
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUsage, mounted.source, why);
  };
  const Layers& layers = mounted.content.layers;
  const auto own = std::ranges::find(layers, layer.option, &Layer::option);
  if (own != layers.end()) {
    if (public_argument(*own) != public_argument(layer)) {
      refuse("mounted with -o " + own->option + "=" + printable(public_argument(*own)) +
             ": name the source of the mount for another " + std::string(row.argument));
    }
    if (!row.is_idempotent) {
      refuse("mounted with -o " + own->option + "=" + printable(public_argument(*own)) +
             " already: name only the mount");
    }
    return true;
  }
  if (!mounted.within.empty()) {
    refuse("a part of a mount, and " + std::string(row.needs) +
           " may lie outside of it: name the mount, " + printable(mounted.mountpoint) +
           ", and choose its tensors by their names");
  }
  return false;
}

bool is_at_or_below(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

bool shows_tensor_bytes(const std::string& path) {
  const auto length = extended_attribute(path, "user.stfs.length");
  std::error_code error;
  return length && !shows_values(path) && std::to_string(fs::file_size(path, error)) == *length;
}

std::optional<MountSource> find_mount_source(const std::string& source) {
  if (is_url(source)) return std::nullopt;
  struct stat status {};
  struct statfs system {};
  // After the end of a mount, stat(2) may still succeed from the kernel's cache, but statfs(2)
  // always fails.
  if (::stat(source.c_str(), &status) != 0 || ::statfs(source.c_str(), &system) != 0) {
    explain(source, errno);
    return std::nullopt;
  }
  if (system.f_type != FUSE_SUPER_MAGIC) return std::nullopt;
  const std::string path = absolute_path(source);
  // The working directory may be in a mount that another mount covers.
  if (struct stat at_path{};
      ::stat(path.c_str(), &at_path) != 0 || at_path.st_dev != status.st_dev) {
    refuse_mount(source, "another file system is mounted over it: enter its directory again");
  }
  const std::string root = mountpoint_of(path);
  std::string within = path == root ? "" : fs::path(path).lexically_relative(root).string();
  const bool is_directory = S_ISDIR(status.st_mode);
  const Meaning meaning = meaning_of(within, is_directory);
  const bool is_form = meaning == Meaning::kFile && shows_values(path);
  if (is_at_or_below(within, kSafetensorsView)) return std::nullopt;  // each file is a checkpoint
  if (meaning == Meaning::kFile && !is_form && (is_directory || !shows_tensor_bytes(path))) {
    return std::nullopt;
  }
  const std::optional<std::string> json =
      status_of(root).stx_ino == kRootInode ? mount_attribute(root) : std::nullopt;
  if (!json) {
    if (!is_at_or_below(within, kControlDirectory)) refuse_older_mount(root);
    return std::nullopt;
  }
  std::optional<MountContent> content = parse_mount_json(*json);
  if (!content) {
    refuse_mount(root, std::string("its attribute ") + kMountAttribute +
                           " is not valid: mount it again with this version of stfs");
  }
  if (meaning == Meaning::kOtherForms) {
    throw Error(ErrorCode::kUsage, source,
                "shows the tensors of a mount in other forms: name the mount, " + printable(root) +
                    ", or a directory of it outside .stfs");
  }
  if (is_form) {
    throw Error(ErrorCode::kUsage, source,
                "shows a tensor in another form: name its file outside of " + printable(root) +
                    "/.stfs, or the mount and the tensor");
  }
  if (meaning == Meaning::kFile) {
    within.erase(0, within.find('/', kControlDirectory.size() + 1) + 1);  // ".stfs/f32/w" is w
  }
  return MountSource{source, root, std::move(within), *std::move(content)};
}

std::optional<std::string> mountpoint_around(const std::string& path) {
  return is_fuse(path) ? std::optional(mountpoint_of(absolute_path(path))) : std::nullopt;
}

std::vector<std::string> files_of_mount(const std::string& mountpoint) {
  constexpr std::uint64_t kMaxInfo = 256 << 20;  // bytes
  std::vector<std::string> files;
  const std::string info = mountpoint + "/.stfs/info.json";
  std::error_code error;
  if (!fs::exists(info, error)) return files;
  const Json parsed = Json::parse(read_file(info, kMaxInfo), nullptr, false);
  const auto* const sources = member<Json::array_t>(parsed, "sources");
  if (sources == nullptr) return files;
  for (const Json& source : *sources) {
    const auto* const file = member<Json::string_t>(source, "path");
    if (file == nullptr) continue;
    if (file->find("\uFFFD") != std::string::npos) {
      throw Error(ErrorCode::kUsage, mountpoint,
                  "one of its sources has a name that is not UTF-8, so no output can be compared "
                  "with that source: name the mount, not a file in its .stfs");
    }
    // The bytes of a file of the Hub may be in the Hub's own cache.
    files.push_back(is_url(*file) ? hub_local_copy(*file) : *file);
  }
  std::erase(files, "");
  return files;
}

void refuse_changed(const MountSource& mounted) {
  const std::vector<std::string>& sources = mounted.content.sources;
  // A layer may have files too, such as an adapter.
  const bool is_one = sources.size() == 1 && mounted.content.layers.empty();
  refuse_mount(mounted.source, (is_one ? printable(sources.front()) + " has changed"
                                       : std::string("its sources have changed")) +
                                   " since it was mounted: " + advice(mounted.mountpoint));
}

void refuse_lost(const MountSource& mounted, const Error& cause) {
  refuse_mount(mounted.source, std::string("its source cannot be loaded: ") + cause.what() + "; " +
                                   advice(mounted.mountpoint));
}

}  // namespace stfs
