// The values of quantised weights, computed when they are read from the bytes of their inputs,
// which are stored or what another layer computes.
//
// quantized_layout.h has the formula of a value, and the parameters of it that make a scheme.
//
// A result is the stored matrix, or its transpose. Of a row-major result a read computes its
// elements alone. A row of a transposed result needs bytes of every stored row; it is computed in
// tiles of many rows and columns, and TileCache keeps the tiles that were read last.
//
// Thread safety: const members, the functions and TileCache may be called from any thread. Layouts,
// sources and caches outlive the producers.
#pragma once

#include "core/format/types.h"
#include "core/layer/quantised/quantized_layout.h"
#include "core/recipe/content.h"
#include "core/recipe/tile_cache.h"

#include <cstdint>
#include <memory>

namespace stfs {

// A producer of the values as BF16, F16 or F32, row-major. misfit() is nullopt. `tiles` is for a
// transposed layout, `tensor` the number of the tensor among those that share it.
std::unique_ptr<const Producer> dequantized(const QuantizedLayout& layout, QuantizedInputs inputs,
                                            DType to, TileCache& tiles, std::uint64_t tensor);

}  // namespace stfs
