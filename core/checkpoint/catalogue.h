// A checkpoint's tensors and metadata as JSON and as tab-separated values. The mount serves these
// texts under `.stfs/`; stfs-info prints them.
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

// {"path":..,"name":..,"dtype":..,"shape":[..],"bytes":..,"source":..,"offset":..}, without a line
// end. `offset` is in bytes from the start of the source. A tensor without a locator has a null
// source and offset.
void write_tensor_json(const Tensor& tensor, TextWriter& out);
std::string tensor_json(const Tensor& tensor);

// How much a checkpoint holds, in all and of each dtype.
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

// info.json: sources, counts, metadata, missing tensors. Ends with a line end.
void write_info_json(const Checkpoint& checkpoint, TextWriter& out);

// tensors.json: an array with one tensor_json() a line, in the order of the tensors' numbers.
// tensors.tsv: a line of field names, then a line a tensor with the same fields. printable()
// escapes name and source, so that a tensor is one line; without a locator, source and offset are
// empty. Both compute their text when it is read (Table). The checkpoint outlives them.
std::unique_ptr<const Producer> tensors_json(const Checkpoint& checkpoint);
std::unique_ptr<const Producer> tensors_tsv(const Checkpoint& checkpoint);

}  // namespace stfs
