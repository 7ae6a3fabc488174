// Computes the values of quantised weights when they are read, from the bytes of their inputs. An
// input is stored, or computed by another layer. quantized_layout.h has the formula of a value and
// its parameters, which define a scheme.
//
// The result is the stored matrix or its transpose. If the result is the stored matrix, a read
// computes only the elements that it returns. If the result is transposed, each of its rows needs
// bytes of every stored row. It is therefore computed in tiles of many rows and columns, and
// TileCache keeps the tiles that were read last.
//
// Thread safety: const members, the functions and TileCache may be called from any thread.
// Lifetime: layouts, sources and caches must outlive the producers.
#pragma once

#include "core/format/types.h"
#include "core/layer/quantised/quantized_layout.h"
#include "core/recipe/content.h"
#include "core/recipe/tile_cache.h"

#include <cstdint>
#include <memory>

namespace stfs {

// Returns a producer of the values as BF16, F16 or F32, row-major. The inputs must fit the layout:
// misfit() returns nullopt. `tiles` is used for a transposed layout. `tensor` is the number of the
// tensor among the tensors that share `tiles`.
std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout, QuantizedInputs inputs,
                                            DType to, TileCache& tiles, std::uint64_t tensor);

}  // namespace stfs
