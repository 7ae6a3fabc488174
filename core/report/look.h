// Where values are, in words: indices, and a command that shows what is around them.
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

// "[0,5] [3,1] and 7 more": the first `places` of `count` elements of a tensor of this shape.
std::string places_text(std::uint64_t count, std::span<const std::uint64_t> places,
                        std::span<const std::uint64_t> shape);

// How a checkpoint is named on a command line.
struct CommandSource {
  std::string source;
  Layers layers = {};
};

struct NamedTensor {
  std::string_view name;
  DType dtype;
  std::span<const std::uint64_t> shape;
};

// The command that prints the values around an element: "stfs-info cat --slice 3,0:9 --as f32
// model.safetensors w | od -A n -v -t f4". "" where a shell has no line for it: names that a
// terminal does not show as they are, and edits that are not in a file.
std::string look_command(const CommandSource& from, const NamedTensor& tensor,
                         std::uint64_t element);

}  // namespace stfs
