#include "core/format/gguf.h"
#include "fs/view/families.h"

#include <algorithm>

namespace stfs {

bool has_gguf(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.parts(), is_gguf_part);
}

bool is_gguf_alone(const Checkpoint& checkpoint) {
  return has_gguf(checkpoint) && std::ranges::all_of(checkpoint.parts(), is_gguf_part);
}

int gguf_size(const ViewFile& file, std::uint64_t& bytes) {
  return file.gguf_files.size(file.tensors, bytes);
}

int make_gguf(const ViewFile& file, Content& content) {
  return file.gguf_files.make(file.tensors, content);
}

std::vector<std::uint32_t> merged_gguf_tensors(const ViewFile& file) {
  if (merged_gguf_extent(file)) return {};  // not asked for
  return file.checkpoint.match({});
}

// As of safetensors, a single file is its own merged file.
std::optional<Extent> merged_gguf_extent(const ViewFile& file) {
  const Source* const source = file.checkpoint.single_file(kGgufName);
  return source != nullptr ? std::optional(Extent{source, 0, source->size()}) : std::nullopt;
}

int merged_gguf_size(const ViewFile& file, std::uint64_t& bytes) {
  const std::optional<Extent> whole = merged_gguf_extent(file);
  if (!whole) return gguf_size(file, bytes);
  bytes = whole->length;
  return 0;
}

int make_merged_gguf(const ViewFile& file, Content& content) {
  const std::optional<Extent> whole = merged_gguf_extent(file);
  if (!whole) return make_gguf(file, content);
  content.extent(*whole->source, whole->offset, whole->length);
  return 0;
}

}  // namespace stfs
