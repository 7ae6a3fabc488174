// cat, extract
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/recipe/content.h"
#include "core/recipe/elements.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "core/write/saved.h"
#include "tools/info/output.h"
#include "tools/info/saved.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// A terminal would obey the control sequences in the bytes of a tensor.
void refuse_terminal(const std::string& instead) {
  if (::isatty(STDOUT_FILENO) != 1) return;
  throw Error(ErrorCode::kUsage, "", "standard output is a terminal: redirect it, or " + instead);
}

[[noreturn]] void refuse_tensor(const Arguments& arguments, const Tensor& tensor,
                                const std::string& rule) {
  throw Error(ErrorCode::kUsage, public_name(arguments.source),
              "tensor " + in_quotes(tensor.name) + ": " + rule);
}

}  // namespace

int cat(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const Tensor stored = find_tensor(checkpoint, arguments.source, arguments.tensor);
  const Tensor tensor = arguments.as_f32 ? stored.valued() : stored;
  const auto refuse = [&](const std::string& rule) { refuse_tensor(arguments, tensor, rule); };
  DType dtype = tensor.dtype;
  if (arguments.as_f32 && type_info(dtype).to_f32 == nullptr) {
    refuse(std::string(dtype_name(dtype)) + " is not a floating type: leave --as out");
  }
  if (arguments.as_f32 && !has_f32(dtype, tensor.elements())) {
    refuse("float32 values would exceed 63 bits: leave --as out");
  }
  Content content = tensor.content();
  std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
  if (!arguments.slice.empty()) {
    const std::string& expression = arguments.slice;
    std::vector<Range> ranges;
    Slice slice;
    const int error = parse_ranges(expression, tensor.shape, ranges);
    const bool is_cut = error == 0 && !arguments.as_f32 &&
                        slice_of(ranges, type_info(dtype), tensor.shape, slice) != 0;
    if (error == ERANGE)
      refuse("slice " + in_quotes(expression) + ": index out of bounds (the shape is " +
             shape_json(tensor.shape) + ")");
    if (is_cut)
      refuse("slice " + in_quotes(expression) + ": begins or ends inside a block of " +
             std::to_string(type_info(dtype).block_elements) +
             " elements (--as f32 takes any part)");
    if (error != 0)
      refuse("slice " + in_quotes(expression) + ": not a slice of this tensor (its shape is " +
             shape_json(tensor.shape) + "; " + std::string(kSliceRule) + ")");
    content = arguments.as_f32 ? f32_slice_content(std::move(content), dtype, ranges, tensor.shape)
                               : slice_content(slice, std::move(content));
    shape = elements_of(ranges, tensor.shape).shape;
  } else if (arguments.as_f32) {
    content = f32_content(std::move(content), dtype, tensor.elements());
  }
  if (arguments.as_f32) dtype = DType::kF32;
  if (arguments.npy) {
    const std::string_view code = type_info(dtype).npy;
    if (code.empty())
      refuse("NumPy has no type for " + std::string(dtype_name(dtype)) +
             (type_info(dtype).to_f32 != nullptr ? " (--as f32 converts it)" : ""));
    if (shape.size() > kNpyMaxRank)
      refuse(std::to_string(shape.size()) + " dimensions, NumPy has at most " +
             std::to_string(kNpyMaxRank) + ": leave --npy out");
    Content file;
    file.literal(npy_header(code, shape)).append(std::move(content));
    content = std::move(file);
  }
  refuse_terminal("pipe it to od(1)");
  refuse_source_as_output(std::array{&checkpoint}, sources);
  write_bytes(checkpoint, content, STDOUT_FILENO, arguments.source, kStandardOutput, nullptr);
  return 0;
}

int extract(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  return save(checkpoint, select_tensors(checkpoint, arguments.source, arguments.globs), arguments,
              sources);
}

}  // namespace stfs
