// Texts of new safetensors files that do not depend on a checkpoint: rows of headers, names of
// shards, and the index of shards.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/base/text.h"
#include "core/format/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {

// Writes the row of a tensor in the JSON of a header. The tensor's bytes are [begin, end) of the
// data.
void write_header_row(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                      std::uint64_t begin, std::uint64_t end, TextWriter& out);

// Returns the length in bytes of a header with `json` bytes of JSON, including the spaces after the
// JSON. They are chosen so that the data begins at `phase` modulo 4096 in the file. Returns nullopt
// if the length exceeds the format's limit.
std::optional<std::uint64_t> header_length(std::uint64_t json, std::uint64_t phase = 0);

// Returns the 8 bytes before a header, which contain its length.
std::string header_prefix(std::uint64_t length);

// Returns "model-00001-of-00003.safetensors". Hugging Face counts from 1, deltas count from 0.
std::string shard_name(std::size_t number, std::size_t count);

// Returns the index of shards in the form of Hugging Face. `metadata` is a JSON object. A row
// consists of the name of a tensor and the name of its shard.
std::string index_json(std::string_view metadata,
                       std::span<const std::pair<std::string_view, std::string>> rows);

}  // namespace stfs
