// Floating-point elements as binary32, converted as they are read.
#pragma once

#include "core/format/types.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>

namespace stfs {

// The elements of `raw`, which are `count` of `type`. That has to_f32, and outlives the producer.
std::unique_ptr<const Producer> as_f32(Content raw, const TypeInfo& type, std::uint64_t count);

}  // namespace stfs
