// What a checkpoint says of itself, as JSON and as tab-separated values. The mount serves these
// texts under `.stfs/`; stfs-info prints them.
#pragma once

#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <memory>
#include <string>

namespace stfs {

// The shape as JSON without spaces: "[4096,4096]", "[]".
void write_shape(std::span<const std::uint64_t> shape, TextWriter& out);
std::string shape_json(std::span<const std::uint64_t> shape);

// {"path":..,"name":..,"dtype":..,"shape":[..],"bytes":..,"source":..,"offset":..}, without a line
// end. Bytes and offset are numbers of bytes, the offset counts from the start of the source.
// Source and offset are null of a tensor without a locator; in tensors.tsv they are empty.
void write_tensor_json(const Tensor& tensor, TextWriter& out);
std::string tensor_json(const Tensor& tensor);

// info.json: sources, counts, metadata, missing tensors. Ends in a line end.
void write_info_json(const Checkpoint& checkpoint, TextWriter& out);

// tensors.json: an array with one tensor_json a line, in the order of the bytes.
// tensors.tsv: the same fields under a line of their names. Control characters and backslashes in
// the name and the source are escaped as printable() does, so that a line is a tensor.
// The texts are computed as they are read and hold a few bytes a row; checkpoint must outlive them.
std::unique_ptr<const Producer> tensors_json(const Checkpoint& checkpoint);
std::unique_ptr<const Producer> tensors_tsv(const Checkpoint& checkpoint);

}  // namespace stfs
