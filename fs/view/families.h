// The functions that the table of views points to, one file for each family of views. view.h has
// the contract of each kind of function.
#pragma once

#include "fs/view/view.h"

namespace stfs {

// tensor_views.cpp: the bytes and values of a whole tensor

bool fits_numpy(const Tensor& tensor);
bool is_floating(const Tensor& tensor);
bool is_floating_and_fits_numpy(const Tensor& tensor);
int verify_tensor(const ViewFile& file);
int make_raw(const ViewFile& file, Content& content);
std::optional<Extent> raw_extent(const ViewFile& file);
int make_npy(const ViewFile& file, Content& content);
int make_f32(const ViewFile& file, Content& content);
int make_npy_f32(const ViewFile& file, Content& content);

DType float32(const Tensor& tensor);  // for ViewSpec::as: returns the type F32 for every tensor

// slice_views.cpp: a part of a tensor

bool can_be_sliced(const Tensor& tensor);
bool is_floating_and_can_be_sliced(const Tensor& tensor);
int make_slice(const ViewFile& file, Content& content);
int make_npy_slice(const ViewFile& file, Content& content);
int make_f32_slice(const ViewFile& file, Content& content);
int make_npy_f32_slice(const ViewFile& file, Content& content);

// safetensors_views.cpp: some tensors as a safetensors file

std::vector<std::uint32_t> single_tensor(const ViewFile& file);
std::vector<std::uint32_t> matching_tensors(const ViewFile& file);
std::vector<std::uint32_t> all_tensors(const ViewFile& file);
int verify_safetensors(const ViewFile& file);
int safetensors_size(const ViewFile& file, std::uint64_t& bytes);
int make_safetensors(const ViewFile& file, Content& content);
std::optional<Extent> merged_extent(const ViewFile& file);

inline constexpr std::uint8_t kMergedFile = 3;  // ViewSpec::file of merged.safetensors

// model_views.cpp: the files that loaders look for, beside the merged file

bool has_model(const Checkpoint& checkpoint);
NameList model_names(const Checkpoint& checkpoint);
std::optional<Node> model_link(const Checkpoint& checkpoint, std::uint64_t number);
int verify_model_file(const ViewFile& file);
int make_model_file(const ViewFile& file, Content& content);
std::optional<Extent> model_file_extent(const ViewFile& file);
timespec model_file_mtime(const ViewFile& file);

// gguf_views.cpp: some tensors as a GGUF file

bool has_gguf(const Checkpoint& checkpoint);
bool is_gguf_alone(const Checkpoint& checkpoint);  // all sources are GGUF files
int gguf_size(const ViewFile& file, std::uint64_t& bytes);
int make_gguf(const ViewFile& file, Content& content);
std::optional<Extent> merged_gguf_extent(const ViewFile& file);

// catalogue_views.cpp: headers, metadata and listings of the checkpoint

int needs_no_source(const ViewFile& file);
int json_size(const ViewFile& file, std::uint64_t& bytes);
int make_json(const ViewFile& file, Content& content);
int info_json_size(const ViewFile& file, std::uint64_t& bytes);
int make_info_json(const ViewFile& file, Content& content);
int make_tensors_json(const ViewFile& file, Content& content);
int make_tensors_tsv(const ViewFile& file, Content& content);
NameList header_names(const Checkpoint& checkpoint);
int verify_header(const ViewFile& file);
timespec header_mtime(const ViewFile& file);
std::optional<Extent> header_extent(const ViewFile& file);
NameList metadata_names(const Checkpoint& checkpoint);
int metadata_size(const ViewFile& file, std::uint64_t& bytes);
int verify_metadata(const ViewFile& file);
int make_metadata(const ViewFile& file, Content& content);

// picture_views.cpp: statistics, pictures and histograms, which need a pass over all values

bool has_picture(const Tensor& tensor);
bool has_picture_and_can_be_sliced(const Tensor& tensor);
bool has_histogram(const Tensor& tensor);
int compute_stats(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);
int png_size(const ViewFile& file, std::uint64_t& bytes);
int compute_png(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);
int png_slice_size(const ViewFile& file, std::uint64_t& bytes);
int compute_png_slice(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);
int compute_histogram(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);

// report_view.cpp: the report of all tensors

int verify_all(const ViewFile& file);
int compute_report(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);

// computed_views.cpp: the digest

int compute_sha256(const ViewFile& file, const std::atomic<bool>& stop, std::string& text);

// counters.json: the counters of the mount and its sources

std::string counters_json(const Counters& counters);

}  // namespace stfs
