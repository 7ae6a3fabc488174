#include "fs/view/families.h"

#include <algorithm>
#include <cerrno>

namespace stfs {
namespace {

std::vector<std::uint32_t> tensors_in(const ViewFile& file) {
  return {file.tensors.begin(), file.tensors.end()};
}

bool can_hold(const ViewFile& file) {
  return std::ranges::all_of(file.tensors, [&](std::uint32_t number) {
    return fits_safetensors(file.checkpoint.tensor(number));
  });
}

}  // namespace

std::vector<std::uint32_t> single_tensor(const ViewFile& file) { return {file.number}; }

std::vector<std::uint32_t> matching_tensors(const ViewFile& file) {
  const auto glob = decode_path(file.expression);
  if (!glob || glob->find('\0') != std::string::npos) return {};
  return file.checkpoint.match(std::span(&*glob, 1));
}

std::vector<std::uint32_t> all_tensors(const ViewFile& file) { return file.checkpoint.match({}); }

// Needs no recipe, because the file of a single tensor has a single source.
int verify_safetensors(const ViewFile& file) {
  if (!file.files.size({file.number})) return EFBIG;
  return file.tensor().verify();
}

int safetensors_size(const ViewFile& file, std::uint64_t& bytes) {
  if (!can_hold(file)) return ENOTSUP;
  const auto size = file.files.size(tensors_in(file));
  bytes = size.value_or(0);
  return size ? 0 : EFBIG;
}

int make_safetensors(const ViewFile& file, Content& content) {
  if (!can_hold(file)) return ENOTSUP;
  auto recipe = file.files.make(tensors_in(file));
  if (!recipe) return EFBIG;
  content = std::move(*recipe);
  return 0;
}

// A single file is its own merged file, so that its published digest is valid for the merged file.
std::optional<Extent> merged_extent(const ViewFile& file) {
  const Source* const source = file.checkpoint.single_file();
  return source != nullptr ? std::optional(Extent{source, 0, source->size()}) : std::nullopt;
}

}  // namespace stfs
