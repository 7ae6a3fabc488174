// cat, extract
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/gguf_writer.h"
#include "core/checkpoint/writer.h"
#include "core/command/terminal.h"
#include "core/recipe/arrival.h"
#include "core/recipe/content.h"
#include "core/recipe/elements.h"
#include "core/recipe/npy.h"
#include "core/recipe/slice.h"
#include "tools/info/output.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
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

// Throws for a read that failed: with the reason of the source that knows one.
[[noreturn]] void fail_read_of(const Checkpoint& checkpoint, const std::string& source, int error) {
  for (const Part& part : checkpoint.parts()) {
    const std::string why = part.source->failure_text();
    if (!why.empty()) fail_read(part.source->path(), "", error, why);
  }
  fail_read(source, "", error);
}

// Writes a recipe's bytes to `fd`. A message begins with `source`, or with `to` if write(2) failed.
void write_content(const Checkpoint& checkpoint, const Content& content, int fd,
                   const std::string& source, const std::string& to, ProgressBar* bar = nullptr) {
  constexpr std::uint64_t kChunk = 1 << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kChunk, content.size())));
  ::signal(SIGXFSZ, SIG_IGN);  // write(2) returns EFBIG
  SequentialReader reader(content);
  for (std::uint64_t offset = 0; offset < content.size();) {
    const auto length = static_cast<std::size_t>(std::min(kChunk, content.size() - offset));
    const std::span<std::byte> chunk = std::span(buffer).first(length);
    if (const int error = reader.copy(offset, chunk)) fail_read_of(checkpoint, source, error);
    if (const int error = write_exact(fd, chunk)) {
      throw_errno(ErrorCode::kUnreadable, to, "", error);
    }
    if (bar != nullptr) bar->add(length);
    offset += length;
  }
}

[[noreturn]] void refuse_tensor(const Arguments& arguments, const Tensor& tensor,
                                const std::string& rule) {
  throw Error(ErrorCode::kUsage, public_name(arguments.source),
              "tensor " + in_quotes(tensor.name) + ": " + rule);
}

// The new files of `extract`. They throw Error kUsage for what the format cannot hold.
Content new_safetensors(const Checkpoint& checkpoint, const SafetensorsFiles& files,
                        const std::vector<std::uint32_t>& tensors, const Arguments& arguments) {
  for (const std::uint32_t number : tensors) {
    const Tensor tensor = checkpoint.tensor(number);
    if (fits_safetensors(tensor)) continue;
    refuse_tensor(
        arguments, tensor,
        std::string(!is_utf8(tensor.name)           ? "its name is not UTF-8, as safetensors needs"
                    : tensor.name == "__metadata__" ? "in safetensors this names the metadata"
                                                    : "its dimensions overflow 64 bits, which "
                                                      "safetensors does not allow") +
            ": leave it out, or write a .gguf file");
  }
  std::optional<Content> content = files.make(tensors);
  if (content) return *std::move(content);
  throw Error(
      ErrorCode::kUsage, arguments.output,
      "the header would exceed the format's limit of 100000000 bytes: extract fewer tensors");
}

Content new_gguf(const Checkpoint& checkpoint, const GgufFiles& files,
                 const std::vector<std::uint32_t>& tensors, const Arguments& arguments) {
  for (const std::uint32_t number : tensors) {
    if (files.can_hold(number)) continue;
    refuse_tensor(arguments, checkpoint.tensor(number),
                  "not from a GGUF file: write a .safetensors file");
  }
  Content content;
  if (files.make(tensors, content) == 0) return content;
  throw Error(ErrorCode::kUsage, arguments.output,
              "the file would have more than 2^63 bytes: extract fewer tensors");
}

}  // namespace

int cat(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const Tensor tensor = find_tensor(checkpoint, arguments.source, arguments.tensor);
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
             shape_json(tensor.shape) + "; as in NumPy, without spaces)");
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
  write_content(checkpoint, content, STDOUT_FILENO, arguments.source, kStandardOutput);
  return 0;
}

int extract(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const std::vector<std::uint32_t> tensors =
      select_tensors(checkpoint, arguments.source, arguments.globs);
  const SafetensorsFiles safetensors_files(checkpoint);
  const GgufFiles gguf_files(checkpoint);
  const Content content = arguments.output.ends_with(".gguf")
                              ? new_gguf(checkpoint, gguf_files, tensors, arguments)
                              : new_safetensors(checkpoint, safetensors_files, tensors, arguments);
  Output output(arguments, std::array{&checkpoint}, sources);
  {
    ProgressBar bar(content.size());
    run_beside([&] {
      write_content(checkpoint, content, output.fd(), arguments.source, output.name(), &bar);
    });
  }
  output.commit();
  if (output.is_new_file() && Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + std::to_string(tensors.size()) +
          (tensors.size() == 1 ? " tensor, " : " tensors, ") + human_bytes(content.size()) + "\n");
  }
  return 0;
}

}  // namespace stfs
