// Encodes tensor names as paths and decodes them.
//
// A `/` in a name separates directories. Percent-encoding in upper-case hex (as in RFC 3986)
// replaces bytes that a path cannot contain or that would make it ambiguous:
//
//   - `%`, and the control characters C0 and DEL
//   - the dots of a component `.` or `..`, and the dot of a first component `.stfs`
//   - a `/` at the beginning or the end, after another `/`, or after the name of a tensor
//
// The empty name is `%`. Other bytes are unchanged. A component over 240 bytes is cut to 223 bytes
// or a little less, followed by `~` and 16 hex digits of the SHA-256 of the whole encoded
// component. A shorter component that already ends in `~` and 16 hex digits is treated in the same
// way, so that no name can imitate a cut component.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

inline constexpr std::size_t kMaxComponent = 240;  // bytes; NAME_MAX with room for a view's suffix

// The characters that separate directories.
enum class PathStyle {
  kSlashes,  // `/`, for the root of the mount
  // `/` and `.`, for the tree view. A `.` is kept in positions where a `/` would be encoded.
  kDots,
  // `/`, and each `.` is encoded as `%2E`. For names that would share their kDots path.
  kDotsEscaped,
};

struct EncodedPath {
  std::string path;
  bool cut = false;  // a component was cut, so decode_path() does not return the name
};

// Returns the path of the tensor `name`. `tensor_prefixes` are the lengths, ascending, of the
// proper prefixes of `name` that are also names of tensors. For kDots and kDotsEscaped, `.` and `/`
// count as equal in these prefixes.
EncodedPath encode_path(std::string_view name, std::span<const std::size_t> tensor_prefixes = {},
                        PathStyle style = PathStyle::kSlashes);

// A fast check that is enough for most names. If it returns true, the path of `name` is `name`
// itself, without a directory. If it returns false, use encode_path(); the path may still be
// `name`.
bool is_plain_name(std::string_view name);

// Encodes `name` as one component, in which each `/` is encoded too. For the entries of header/ and
// metadata/.
std::string encode_component(std::string_view name);

// Returns the name of a path. Returns nullopt for an escape that encode_path() never writes. A cut
// component stays unchanged, because its name is lost.
std::optional<std::string> decode_path(std::string_view path);

}  // namespace stfs
