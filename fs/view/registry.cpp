#include "fs/view/registry.h"

#include "core/checkpoint/mount_source.h"
#include "fs/view/families.h"

#include <algorithm>

namespace stfs {
namespace {

// clang-format off
constexpr ViewSpec kViews[] = {
    {.id = View::kRaw, .name = {},  // the root
     .extent = raw_extent, .make = make_raw, .verify = verify_tensor, .shows_values = true},

    {.id = View::kControl, .file = 0, .name = "info.json", .names = Names::kFile,
     .make = make_info_json, .size = info_json_size, .verify = needs_no_source},
    {.id = View::kControl, .file = 1, .name = "tensors.json", .names = Names::kFile,
     .make = make_tensors_json, .verify = needs_no_source},
    {.id = View::kControl, .file = 2, .name = "tensors.tsv", .names = Names::kFile,
     .make = make_tensors_tsv, .verify = needs_no_source},
    {.id = View::kControl, .file = kMergedFile, .name = "merged.safetensors", .names = Names::kFile,
     .tensors = all_tensors, .extent = merged_extent, .make = make_safetensors, .size = safetensors_size},
    {.id = View::kControl, .file = 5, .name = "merged.gguf", .names = Names::kFile, .exists = is_gguf_alone,
     .tensors = all_tensors, .extent = merged_gguf_extent, .make = make_gguf, .size = gguf_size},
    {.id = View::kControl, .file = 4, .name = "counters.json", .names = Names::kFile,
     .verify = needs_no_source, .snapshot = counters_json},
    {.id = View::kControl, .file = 6, .name = "report.html", .names = Names::kFile,
     .verify = verify_all, .compute = compute_report},
    {.id = View::kHeader, .name = "header", .names = Names::kList, .list = header_names,
     .extent = header_extent, .verify = verify_header, .mtime = header_mtime},
    {.id = View::kMetadata, .name = "metadata", .names = Names::kList, .list = metadata_names,
     .make = make_metadata, .size = metadata_size, .verify = verify_metadata},
    {.id = View::kJson, .name = "json", .suffix = ".json",
     .make = make_json, .size = json_size, .verify = needs_no_source, .holds_text = true},

    {.id = View::kNpy, .name = "npy", .suffix = ".npy", .shows = fits_numpy,
     .make = make_npy, .verify = verify_tensor, .shows_values = true},
    {.id = View::kF32, .name = "f32", .shows = is_floating,
     .make = make_f32, .verify = verify_tensor,
     .shows_values = true, .as = float32},
    {.id = View::kNpyF32, .name = "npy-f32", .suffix = ".npy", .shows = is_floating_and_fits_numpy,
     .make = make_npy_f32, .verify = verify_tensor,
     .shows_values = true, .as = float32},

    {.id = View::kSlice, .name = "slice", .names = Names::kExpressions, .shows = can_be_sliced,
     .make = make_slice, .verify = verify_tensor, .shows_values = true},
    {.id = View::kNpySlice, .name = "npy-slice", .suffix = ".npy", .names = Names::kExpressions,
     .shows = fits_numpy,
     .make = make_npy_slice, .verify = verify_tensor,
     .shows_values = true},
    {.id = View::kF32Slice, .name = "f32-slice", .names = Names::kExpressions,
     .shows = is_floating_and_can_be_sliced,
     .make = make_f32_slice, .verify = verify_tensor,
     .shows_values = true, .as = float32},
    {.id = View::kNpyF32Slice, .name = "npy-f32-slice", .suffix = ".npy",
     .names = Names::kExpressions, .shows = is_floating_and_can_be_sliced,
     .make = make_npy_f32_slice, .verify = verify_tensor,
     .shows_values = true, .as = float32},

    {.id = View::kTree, .name = "tree", .style = PathStyle::kDots,
     .extent = raw_extent, .make = make_raw, .verify = verify_tensor, .shows_values = true},
    {.id = View::kSafetensors, .name = "safetensors", .suffix = ".safetensors",
     .shows = fits_safetensors, .tensors = single_tensor, .make = make_safetensors, .size = safetensors_size,
     .verify = verify_safetensors, .shows_values = true, .as = type_in_safetensors, .holds_text = true},
    {.id = View::kModel, .name = "model", .names = Names::kList, .exists = has_model,
     .list = model_names, .link = model_link, .extent = model_file_extent, .make = make_model_file,
     .verify = verify_model_file, .mtime = model_file_mtime},
    {.id = View::kSubset, .name = "subset", .suffix = ".safetensors", .names = Names::kGlobs,
     .tensors = matching_tensors, .make = make_safetensors, .size = safetensors_size},
    {.id = View::kSubsetGguf, .name = {}, .suffix = ".gguf", .names = Names::kGlobs,
     .beside = View::kSubset, .exists = has_gguf,
     .tensors = matching_tensors, .make = make_gguf, .size = gguf_size},

    {.id = View::kStats, .name = "stats", .suffix = ".json",
     .verify = verify_tensor, .compute = compute_stats},
    {.id = View::kPng, .name = "png", .suffix = ".png", .shows = has_picture,
     .size = png_size, .verify = verify_tensor, .compute = compute_png},
    {.id = View::kPngSlice, .name = "png-slice", .suffix = ".png", .names = Names::kExpressions,
     .shows = has_picture_and_can_be_sliced,
     .size = png_slice_size, .verify = verify_tensor, .compute = compute_png_slice},
    {.id = View::kHist, .name = "hist", .suffix = ".svg", .shows = has_histogram,
     .verify = verify_tensor, .compute = compute_histogram},
    {.id = View::kSha256, .name = "sha256",
     .verify = verify_tensor, .compute = compute_sha256},
};
// clang-format on

}  // namespace

std::span<const ViewSpec> all_views() { return kViews; }

Registry::Registry(std::span<const ViewSpec> rows) : rows_(rows) {
  for (const ViewSpec& row : rows) {
    if (row.names != Names::kFile) {
      by_view_[static_cast<std::size_t>(row.id)] = &row;
      continue;
    }
    files_.resize(std::max<std::size_t>(files_.size(), row.file + 1U));
    files_[row.file] = &row;
  }
}

const ViewSpec* Registry::find(Node node) const {
  if (node.view != View::kControl) return by_view_[static_cast<std::size_t>(node.view)];
  if (node.is_directory || node.number >= files_.size()) return nullptr;
  return files_[static_cast<std::size_t>(node.number)];
}

const ViewSpec* Registry::find(std::string_view name) const {
  const auto found = std::ranges::find(rows_, name, &ViewSpec::name);
  return found == rows_.end() || name.empty() ? nullptr : &*found;
}

}  // namespace stfs
