// Describes where values are: as indices, and as a command that shows the values around them.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/format/types.h"
#include "core/layer/layer.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Returns "[0,5] [3,1] and 7 more": the indices of the elements `places`, and how many of `count`
// elements are not among them. `shape` is the tensor's shape.
std::string places_text(std::uint64_t count, std::span<const std::uint64_t> places,
                        std::span<const std::uint64_t> shape);

// The checkpoint's name and layers on a command line.
struct CommandSource {
  std::string source;
  Layers layers = {};
};

struct NamedTensor {
  std::string_view name;
  DType dtype;
  std::span<const std::uint64_t> shape;
};

// Returns the command that prints the values around an element: "stfs-info cat --slice 3,0:9 --as
// f32 model.safetensors w | od -A n -v -t f4". Returns "" if there is no such command for a shell:
// for names that a terminal does not show unchanged, and for edits that are not in a file.
std::string inspect_command(const CommandSource& from, const NamedTensor& tensor,
                            std::uint64_t element);

}  // namespace stfs
