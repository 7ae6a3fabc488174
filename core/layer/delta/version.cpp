#include "core/layer/delta/version.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"

#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

using IndexJson = nlohmann::json;

constexpr std::uint64_t kMaxIndex = 100'000'000;  // the limit for every index, in bytes
constexpr std::size_t kMaxLinks = 256;

constexpr std::array<std::pair<std::string_view, DeltaEncoding>, 2> kEncodings{
    {{"xor", DeltaEncoding::kXor}, {"overwrite", DeltaEncoding::kOverwrite}}};
constexpr std::array<std::pair<std::string_view, DeltaChecksum>, 2> kChecksums{
    {{"xxh3-128", DeltaChecksum::kXxh3}, {"adler32", DeltaChecksum::kAdler32}}};

template <class Rows>
auto value_of(const Rows& rows, std::string_view word) {
  const auto* const row = std::ranges::find(rows, word, [](const auto& r) { return r.first; });
  return row == rows.end() ? std::nullopt : std::optional(row->second);
}

[[noreturn]] void refuse(const std::string& index, const std::string& rule) {
  throw Error(ErrorCode::kDelta, public_name(index), rule);
}

// Parses "000012", "v12" or 12.
std::optional<std::uint64_t> number_in_json(const IndexJson& json) {
  if (json.is_number_unsigned()) return json.get<std::uint64_t>();
  if (!json.is_string()) return std::nullopt;
  std::string text = json.get<std::string>();
  if (text.starts_with('v')) text.erase(0, 1);
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns the text of the index, or nullopt if the index does not exist.
std::optional<std::string> text_of_index(const std::string& index, Sources& sources) {
  std::error_code error;
  if (!is_url(index) && !std::filesystem::exists(index, error) && !error) return std::nullopt;
  try {
    return sources.read_file(index, kMaxIndex);
  } catch (const Error& refusal) {
    if (refusal.code() == ErrorCode::kAbsent || refusal.code() == ErrorCode::kHidden) {
      return std::nullopt;
    }
    throw;
  }
}

// Returns the directory, with symbolic links resolved if its name does not end in a digit, because
// "latest" and "." may refer to a numbered directory.
std::string resolved_directory(const std::string& directory) {
  std::string trimmed = directory;
  while (trimmed.size() > 1 && trimmed.ends_with('/')) trimmed.pop_back();
  const std::string name = last_component(trimmed);
  if (is_url(directory) || (!name.empty() && name.find_last_of("0123456789") + 1 == name.size())) {
    return trimmed;
  }
  std::error_code error;
  const auto whole = std::filesystem::canonical(trimmed.empty() ? "." : trimmed, error);
  return error ? trimmed : whole.string();
}

// Returns the directories beside `directory` that the version with this number may have. The number
// is padded to the same width, as in weight_v000009, or has no leading zeros, as in step_9.
std::vector<std::string> siblings(const std::string& directory, std::uint64_t number) {
  const std::string place = resolved_directory(directory);
  const std::string name = last_component(place);
  const std::size_t digits = name.size() - (name.find_last_not_of("0123456789") + 1);
  if (digits == 0) return {};
  const std::string text = std::to_string(number);
  const auto with = [&](const std::string& ending) {
    return child_name(parent_name(place), name.substr(0, name.size() - digits) + ending);
  };
  if (text.size() >= digits) return {with(text)};
  return {with(std::string(digits - text.size(), '0') + text), with(text)};
}

bool is_there(const std::string& file, Sources& sources) {
  std::error_code error;
  if (!is_url(file)) return std::filesystem::exists(file, error);
  try {
    sources.open(file);
    return true;
  } catch (const Error& refusal) {
    if (refusal.code() == ErrorCode::kAbsent || refusal.code() == ErrorCode::kHidden) return false;
    throw;
  }
}

// Returns the checkpoint in a directory as a SOURCE, or nullopt if the directory contains none. On
// a web server, which has no directories, the SOURCE is a file.
std::optional<std::string> full_checkpoint_in(const std::string& directory, Sources& sources) {
  const std::string_view scheme = scheme_of(directory);
  for (const char* const name : {kIndexName, "model.safetensors"}) {
    std::string file = child_name(directory, name);
    if (!is_there(file, sources)) continue;
    if (scheme != "http" && scheme != "https") return directory;
    return file;
  }
  return std::nullopt;
}

// Parses an index without the entries of its map, because there may be hundreds of thousands.
IndexJson parsed_index(const std::string& text, const std::string& place, bool& has_entries) {
  constexpr int kDeepest = 64;
  constexpr std::size_t kMostValues = 10'000;  // in the metadata
  std::string key;
  std::size_t values = 0;
  const auto keep = [&](int depth, IndexJson::parse_event_t event, IndexJson& value) {
    if (depth > kDeepest) refuse(place, "nested too deeply");
    if (event == IndexJson::parse_event_t::key && depth == 1) {
      key = value.get<std::string>();
      return key == "metadata" || key == "weight_map";
    }
    if (depth < 2 || key.empty()) return true;
    if (key == "weight_map") has_entries = true;
    if (key == "metadata" && ++values > kMostValues) refuse(place, "too many values of metadata");
    return key == "metadata";
  };
  return IndexJson::parse(text, keep, false);
}

}  // namespace

std::optional<DeltaEncoding> delta_encoding(std::string_view word) {
  return value_of(kEncodings, word);
}
std::string_view word_of(DeltaEncoding encoding) {
  return kEncodings[static_cast<std::size_t>(encoding)].first;
}
std::optional<DeltaChecksum> delta_checksum(std::string_view word) {
  return value_of(kChecksums, word);
}
std::string_view word_of(DeltaChecksum checksum) {
  return kChecksums[static_cast<std::size_t>(checksum)].first;
}

DeltaDigest::DeltaDigest(DeltaChecksum checksum) : checksum_(checksum) {
  if (checksum != DeltaChecksum::kXxh3) return;
  XXH3_state_t* const state = XXH3_createState();
  if (state == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state);
  xxh3_ = state;
}

DeltaDigest::~DeltaDigest() { XXH3_freeState(static_cast<XXH3_state_t*>(xxh3_)); }

void DeltaDigest::add(std::span<const std::byte> bytes) {
  if (checksum_ == DeltaChecksum::kXxh3) {
    XXH3_128bits_update(static_cast<XXH3_state_t*>(xxh3_), bytes.data(), bytes.size());
    return;
  }
  if (bytes.empty()) return;  // because zlib returns the initial value for a null pointer
  const auto* const data = reinterpret_cast<const Bytef*>(bytes.data());
  adler32_ = static_cast<std::uint32_t>(::adler32_z(adler32_, data, bytes.size()));
}

std::string DeltaDigest::hex() const {
  std::array<char, 40> text{};
  if (checksum_ == DeltaChecksum::kXxh3) {
    const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(xxh3_));
    std::snprintf(text.data(), text.size(), "%016llx%016llx",
                  static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
  } else {
    std::snprintf(text.data(), text.size(), "%08x", adler32_);
  }
  return text.data();
}

std::optional<DeltaVersion> read_delta(const std::string& place, Sources& sources) {
  DeltaVersion out;
  out.index = place.ends_with(kIndexSuffix) ? place : child_name(place, kIndexName);
  const std::optional<std::string> text = text_of_index(out.index, sources);
  // Do not parse the index of a full checkpoint, which may be long.
  if (!text || text->find("\"delta_encoding\"") == std::string::npos) return std::nullopt;
  bool has_entries = false;
  const IndexJson json = parsed_index(*text, out.index, has_entries);
  if (!json.is_object()) return std::nullopt;
  const auto metadata = json.find("metadata");
  if (metadata == json.end() || !metadata->is_object()) return std::nullopt;
  const auto word = [&](const char* key) -> std::string {
    const auto at = metadata->find(key);
    return at != metadata->end() && at->is_string() ? at->get<std::string>() : "";
  };
  const auto named = metadata->find("delta_encoding");
  if (named == metadata->end()) return std::nullopt;
  if (!named->is_string()) refuse(out.index, "delta_encoding is not a string");
  const std::string encoding = word("delta_encoding");
  if (encoding.empty()) return std::nullopt;
  out.directory = parent_name(out.index);
  const auto known_encoding = delta_encoding(encoding);
  if (!known_encoding) {
    refuse(out.index,
           "delta_encoding " + in_quotes(encoding) + ": only xor and overwrite are supported");
  }
  out.encoding = *known_encoding;
  if (word("compression_format") != "zstd") {
    refuse(out.index, "compression_format " + in_quotes(word("compression_format")) +
                          ": only zstd is supported");
  }
  const auto known_checksum = delta_checksum(word("checksum_format"));
  if (!known_checksum) {
    refuse(out.index,
           "checksum_format " + in_quotes(word("checksum_format")) +
               ": only xxh3-128 and adler32 are supported" +
               (word("checksum_format") != "blake3"
                    ? ""
                    : ": publish with --update-weight-delta-checksum xxh3-128; this one is "
                      "verified by Python's package blake3, as the trainer has it"));
  }
  out.checksum = *known_checksum;
  const auto number = [&](const char* key) {
    const auto at = metadata->find(key);
    const auto value = at == metadata->end() ? std::nullopt : number_in_json(*at);
    if (!value) refuse(out.index, in_quotes(key) + " is not a number");
    return *value;
  };
  out.version = number("version");
  out.base = number("base_version");
  if (out.base >= out.version) {
    refuse(out.index, "base_version " + std::to_string(out.base) +
                          " does not come before version " + std::to_string(out.version));
  }
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) refuse(out.index, "it has no weight_map");
  out.is_empty = !has_entries;
  return out;
}

DeltaChain delta_chain(DeltaVersion newest, Sources& sources) {
  DeltaChain chain;
  chain.links.push_back(std::move(newest));
  for (;;) {
    const DeltaVersion& oldest = chain.links.back();
    std::optional<DeltaVersion> below;
    std::optional<std::string> full;
    const std::vector<std::string> directories = siblings(oldest.directory, oldest.base);
    // The base must be found, because no checksum covers tensors that only versions in between
    // changed.
    if (directories.empty() && oldest.base != 0) {
      refuse(oldest.index, "is based on version " + std::to_string(oldest.base) +
                               ", which stfs cannot find, because the name of this directory does "
                               "not end in a number, as weight_v000012 does");
    }
    for (const std::string& directory : directories) {
      below = read_delta(directory, sources);
      if (!below) full = full_checkpoint_in(directory, sources);
      if (below || full) break;
    }
    if (!below) {
      chain.base = full.value_or("");
      break;
    }
    if (below->version != oldest.base) {
      refuse(below->index, "version " + std::to_string(below->version) +
                               ", but in the directory of version " + std::to_string(oldest.base));
    }
    if (chain.links.size() == kMaxLinks) {
      refuse(chain.links.front().index,
             "more than " + std::to_string(kMaxLinks) + " links: fold some with stfs-info delta");
    }
    chain.links.push_back(*std::move(below));
  }
  std::ranges::reverse(chain.links);
  return chain;
}

}  // namespace stfs
