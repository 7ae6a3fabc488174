// A QuantizedLayout as text: for another process that computes the values, and for a key that
// identifies them.
//
// The text is words with a space between them, one for each member in a fixed order; a packing that
// is not used is one word. It is for processes of one version of stfs: when the words change,
// kProtocolVersion (tools/gpu/protocol/message.h) is raised.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/layer/quantised/dequantize.h"

#include <optional>
#include <string>
#include <string_view>

namespace stfs {

// Equal exactly when the layouts are.
std::string layout_text(const QuantizedLayout& layout);

// nullopt for a text that layout_text() cannot have made.
std::optional<QuantizedLayout> parse_layout(std::string_view text);

// Whether a layout that this process has not made itself can be computed from these inputs without
// reading outside of them. Every layout of a scheme (core/layer/quantised/schemes.h) can.
bool is_computable(const QuantizedLayout& layout, const QuantizedInputs& inputs);

}  // namespace stfs
