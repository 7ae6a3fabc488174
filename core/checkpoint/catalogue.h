// A checkpoint's tensors and metadata as JSON and as tab-separated values. The mount serves these
// texts in `.stfs/`, and stfs-info prints them.
//
// Thread safety: the functions and the producers may be called from any thread.
#pragma once

#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace stfs {

// Writes {"path":..,"name":..,"dtype":..,"shape":[..],"bytes":..,"source":..,"offset":..} without a
// line end. `offset` is in bytes from the start of the source. For a tensor without a locator,
// source and offset are null.
void write_tensor_json(const Tensor& tensor, TextWriter& out);
std::string tensor_json(const Tensor& tensor);

// The size of a checkpoint, or of its tensors of one dtype.
struct Total {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;  // elements
  std::uint64_t bytes = 0;
};
struct Totals {
  Total all;
  std::map<DType, Total> by_dtype;
};
Totals totals_of(const Checkpoint& checkpoint);

// Writes info.json: sources, counts, metadata and missing tensors. Ends with a line end.
void write_info_json(const Checkpoint& checkpoint, TextWriter& out);

// tensors.json: an array with one tensor_json() per line, in the order of the tensors' numbers.
// tensors.tsv: a line of field names, then one line per tensor with the same fields. Names and
// sources are escaped with printable(), so that each tensor has exactly one line. For a tensor
// without a locator, source and offset are empty. Both producers compute the text when it is read
// (Table). The checkpoint must outlive them.
std::unique_ptr<const Producer> tensors_json(const Checkpoint& checkpoint);
std::unique_ptr<const Producer> tensors_tsv(const Checkpoint& checkpoint);

}  // namespace stfs
