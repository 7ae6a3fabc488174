#include "core/format/gguf.h"
#include "core/format/gguf_split.h"
#include "fs/view/families.h"

#include <algorithm>

namespace stfs {
namespace {

// Returns true if the file's metadata says that it is one of several parts.
bool is_one_of_several(const Header& header) {
  const auto at = header.metadata.find(kSplitCount);
  const std::string_view count = at ? header.metadata[*at].second : "1";
  return count != "0" && count != "1";
}

}  // namespace

bool has_gguf(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.parts(), is_gguf_part);
}

bool is_gguf_alone(const Checkpoint& checkpoint) {
  if (checkpoint.parts().empty() || !is_gguf_part(checkpoint.parts().front())) return false;
  if (!checkpoint.list().is_layered()) return std::ranges::all_of(checkpoint.parts(), is_gguf_part);
  const GgufFiles files(checkpoint);
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    if (!files.can_hold(i)) return false;  // another format, or dequantised
  }
  return true;
}

int gguf_size(const ViewFile& file, std::uint64_t& bytes) {
  return file.gguf_files.size(file.tensors, bytes);
}

int make_gguf(const ViewFile& file, Content& content) {
  return file.gguf_files.make(file.tensors, content);
}

// A single file is its own merged file. The exception is one part of a split file that is mounted
// without the others, because its metadata would make a reader look for them.
std::optional<Extent> merged_gguf_extent(const ViewFile& file) {
  const Source* const source = file.checkpoint.single_file(kGgufName);
  if (source == nullptr || is_one_of_several(file.checkpoint.parts().front().header)) {
    return std::nullopt;
  }
  return Extent{source, 0, source->size()};
}

}  // namespace stfs
