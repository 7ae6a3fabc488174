#include "core/format/index.h"

#include "core/base/error.h"
#include "core/base/sort.h"
#include "core/base/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

namespace stfs {
namespace {

// The number of shards has a limit, because each is searched for and has its own records. No
// process can usually open this many files.
constexpr std::size_t kMaxShards = 1 << 16;

// Receives the SAX events of an index. Keeps `weight_map` and `metadata.total_size`.
class IndexReader {
 public:
  explicit IndexReader(std::size_t size) : size_(size) {}

  using ShardNumbers = std::map<std::string, std::uint32_t, std::less<>>;

  Index index;
  ShardNumbers shard_numbers;  // numbered in the order of their first occurrence
  std::string error;
  bool has_map = false;

  bool null() { return scalar(); }
  bool boolean(bool) { return scalar(); }
  bool number_integer(std::int64_t) { return scalar(); }
  bool number_unsigned(std::uint64_t value) {
    if (at_total_size()) index.total_size = value;
    return scalar();
  }
  bool number_float(double value, const std::string&) {
    // Some programs write total_size in a form like 1.5e10.
    if (at_total_size() && value >= 0 && value < 0x1p63) {
      index.total_size = static_cast<std::uint64_t>(value);
    }
    return scalar();
  }
  bool string(std::string& value) {
    if (!in_map()) return scalar();
    const auto [shard, is_new] =
        shard_numbers.try_emplace(value, static_cast<std::uint32_t>(shard_numbers.size()));
    if (shard_numbers.size() > kMaxShards) {
      return refuse("more than " + std::to_string(kMaxShards) +
                    " shards: no index of a checkpoint");
    }
    index.entries.push_back(
        {index.names.size(), static_cast<std::uint32_t>(key_.size()), shard->second});
    index.names += key_;
    return true;
  }
  bool binary(nlohmann::json::binary_t&) { return scalar(); }
  bool start_object(std::size_t) {
    if (in_map()) return scalar();
    if (depth_ == 1) {
      section_ = key_ == "weight_map" ? Section::kMap
                 : key_ == "metadata" ? Section::kMetadata
                                      : Section::kOther;
      if (section_ == Section::kMap) {
        if (has_map) return refuse("weight_map occurs twice");
        has_map = true;
      }
    }
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) {
    if (depth_ == 0) return refuse("not an object");
    if (in_map() || (depth_ == 1 && key_ == "weight_map")) return scalar();
    if (depth_ == 1) section_ = Section::kOther;
    ++depth_;
    return true;
  }
  bool key(std::string& value) {
    key_ = std::move(value);
    return true;
  }
  bool end_object() {
    --depth_;
    return true;
  }
  bool end_array() {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return refuse(size_ > 0 && position > size_
                      ? "not valid JSON: truncated? download it again"
                      : "not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Section { kOther, kMap, kMetadata };

  bool in_map() const { return depth_ == 2 && section_ == Section::kMap; }
  bool at_total_size() const {
    return depth_ == 2 && section_ == Section::kMetadata && key_ == "total_size";
  }
  bool scalar() {
    if (depth_ == 0) return refuse("not an object");
    if (in_map()) return refuse("tensor " + in_quotes(key_) + ": the shard must be a string");
    if (depth_ == 1 && key_ == "weight_map") return refuse("weight_map is not an object");
    return true;
  }
  bool refuse(std::string rule) {
    error = std::move(rule);
    return false;
  }

  std::size_t size_;  // bytes of the JSON
  std::size_t depth_ = 0;
  Section section_ = Section::kOther;
  std::string key_;
};

void check_shard(const std::string& shard, const std::string& place) {
  const std::filesystem::path path(shard);
  const auto refuse = [&](const char* rule) {
    throw Error(ErrorCode::kInvalidIndex, place, "shard " + in_quotes(shard) + ": " + rule);
  };
  if (shard.empty() || shard.find('\0') != std::string::npos) refuse("not a file name");
  if (path.is_absolute()) refuse("an absolute path is refused");
  if (std::ranges::find(path, "..") != path.end()) {
    refuse("a path that leaves the index's directory is refused");
  }
}

}  // namespace

Index parse_index(std::string_view json, const std::string& place) {
  IndexReader reader(json.size());
  // Refuse a NUL, which nlohmann/json would accept as the end of its input.
  const bool has_nul = std::memchr(json.data(), 0, json.size()) != nullptr;
  if (has_nul || !nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    throw Error(ErrorCode::kInvalidIndex, place,
                has_nul ? "holds a NUL byte, as an unfinished download does" : reader.error);
  }
  if (!reader.has_map)
    throw Error(ErrorCode::kInvalidIndex, place, "weight_map is missing: no index of shards");

  Index index = std::move(reader.index);
  std::vector<std::uint32_t> sorted_number(reader.shard_numbers.size());
  std::map<std::string, std::uint32_t> normal;  // by normalised path: "a/./s" and "a/s" are equal
  for (const auto& [shard, number] : reader.shard_numbers) {
    check_shard(shard, place);
    const auto [entry, is_new] =
        normal.try_emplace(std::filesystem::path(shard).lexically_normal().string(),
                           static_cast<std::uint32_t>(index.shards.size()));
    if (is_new) index.shards.push_back(entry->first);
    sorted_number[number] = entry->second;
  }
  for (Index::Entry& entry : index.entries) entry.shard = sorted_number[entry.shard];

  const auto order = sorted_order(index.entries.size(), [&](std::uint32_t i) {
                       return index.name(index.entries[i]);
                     }).order;
  std::vector<Index::Entry> sorted;
  sorted.reserve(order.size());
  for (const std::uint32_t i : order) {
    const std::string_view name = index.name(index.entries[i]);
    if (!sorted.empty() && index.name(sorted.back()) == name) {
      throw Error(ErrorCode::kInvalidIndex, place,
                  "tensor " + in_quotes(name) + ": the name occurs twice");
    }
    sorted.push_back(index.entries[i]);
  }
  index.entries = std::move(sorted);
  return index;
}

}  // namespace stfs
