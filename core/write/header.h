// The texts of new safetensors files that need no checkpoint: rows of headers, the names of shards,
// and the index of shards.
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

// The row of a tensor in the JSON of a header. Its bytes are [begin, end) of the data.
void write_header_row(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                      std::uint64_t begin, std::uint64_t end, TextWriter& out);

// The length of a header whose JSON has `json` bytes, with the spaces behind it, in bytes: the data
// begin at `phase` modulo 4096 in the file. nullopt when it is over the format's limit.
std::optional<std::uint64_t> header_length(std::uint64_t json, std::uint64_t phase = 0);

// What stands before a header: its length, in 8 bytes.
std::string header_prefix(std::uint64_t length);

// "model-00001-of-00003.safetensors". Hugging Face counts from 1, deltas from 0.
std::string shard_name(std::size_t number, std::size_t count);

// The index of shards, as Hugging Face writes it. `metadata` is a JSON object; a row is the name of
// a tensor and that of its shard.
std::string index_json(std::string_view metadata,
                       std::span<const std::pair<std::string_view, std::string>> rows);

}  // namespace stfs
