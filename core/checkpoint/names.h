// Tensor name <-> path.
//
// A name is its path: `/` makes directories. What a path cannot hold is percent-encoded in
// upper-case hex (as RFC 3986 does): `%` itself, the control characters C0 and DEL, the dots of a
// component that is `.` or `..`, the dot of a first component `.stfs`, and a `/` at the beginning,
// at the end, after another `/`, or whose prefix is itself a tensor. The empty name is `%`. Other
// bytes stand as they are. A component of more than 240 bytes is cut to 223 and ends in `~` and 16
// hex digits of the SHA-256 of the whole encoded component; so is a shorter one that has that very
// form, so that no name can be made to look like a cut one.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::size_t kMaxComponent = 240;  // bytes; with a view's suffix under NAME_MAX

// What makes directories of a name.
enum class PathStyle {
  kSlashes,  // `/`: the root
  kDots,     // `.` too: the tree view. A `.` that may not separate, by the rules for `/`, stays.
  kDotsEscaped,  // `/`, and every `.` is `%2E`: for a name that shares its kDots path with another
};

struct EncodedPath {
  std::string path;
  bool cut = false;  // a component was shortened, so the name cannot be read back from the path
};

// The path of the tensor `name`. `tensor_prefixes` are the lengths of those proper prefixes of
// `name` that are themselves names of tensors, ascending; with the styles of the tree view `.` and
// `/` count as the same.
EncodedPath encode_path(std::string_view name, std::span<const std::size_t> tensor_prefixes = {},
                        PathStyle style = PathStyle::kSlashes);

// Whether a name is its own path in the root, and no directory is in it. Most names are; it may say
// no of one that is, too.
bool is_plain_name(std::string_view name);

// `name` as one component: every `/` is encoded. For the entries of header/ and metadata/.
std::string encode_component(std::string_view name);

// The name whose path this is; none when an escape is malformed or not one that encode_path writes.
// A cut component is returned as it stands.
std::optional<std::string> decode_path(std::string_view path);

}  // namespace stfs
