#include "core/format/gguf_split.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/format/gguf.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace stfs {
namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kGgufSplit, place, rule);
}

// Returns the value of a key, or nullopt if there is none. Throws Error if it has another type.
std::optional<std::int64_t> number_of(const Header& header, std::string_view key, ValueType type,
                                      const std::string& place) {
  const std::optional<std::size_t> at = find_gguf_key(header.metadata, key);
  if (!at) return std::nullopt;
  if (header.metadata.value(*at).type != type) {
    refuse(place, "key " + in_quotes(key) + ": must be a " +
                      (type == ValueType::kU16 ? "16-bit unsigned" : "32-bit signed") + " integer");
  }
  const std::string_view text = header.metadata[*at].second;
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::int64_t required(const Header& header, std::string_view key, ValueType type,
                      const std::string& place) {
  const auto value = number_of(header, key, type, place);
  if (!value) refuse(place, "key " + in_quotes(key) + ": missing in a part of a split file");
  if (*value < 0) refuse(place, "key " + in_quotes(key) + ": " + std::to_string(*value));
  return *value;
}

std::string suffix(std::uint32_t number, std::uint32_t count) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "-%05u-of-%05u.gguf", number + 1, count);
  return text.data();
}

}  // namespace

std::optional<GgufSplit> gguf_split(const Header& header, const std::string& place) {
  const auto count = number_of(header, kSplitCount, ValueType::kU16, place);
  if (!count || *count <= 1) return std::nullopt;
  const std::int64_t number = required(header, kSplitNumber, ValueType::kU16, place);
  if (number >= *count) {
    refuse(place, "key \"split.no\": " + std::to_string(number) + " of " + std::to_string(*count) +
                      " parts");
  }
  const std::int64_t tensors = required(header, kSplitTensors, ValueType::kI32, place);
  return GgufSplit{static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(*count),
                   static_cast<std::uint64_t>(tensors)};
}

bool is_split_key(std::string_view key) {
  const std::string_view found = up_to_nul(key);
  return found == kSplitNumber || found == kSplitCount || found == kSplitTensors;
}

std::string GgufPartName::of(std::uint32_t other) const {
  return std::string(prefix) + suffix(other, count);
}

std::optional<GgufPartName> gguf_part_name(std::string_view name) {
  const std::string pattern = suffix(0, 1);  // numbers with five digits, as in every name of a part
  if (name.size() < pattern.size()) return std::nullopt;
  const auto number_at = [&](std::size_t from_end) {
    std::uint32_t number = 0;
    const char* const digits = name.data() + name.size() - from_end;
    std::from_chars(digits, digits + 5, number);
    return number;
  };
  const std::uint32_t number = number_at(pattern.size() - 1);
  const GgufPartName part{name.substr(0, name.size() - pattern.size()), number - 1,
                          number_at(std::string_view("00001.gguf").size())};
  if (number == 0 || number > part.count || part.of(number - 1) != name) return std::nullopt;
  return part;
}

std::vector<std::string> gguf_parts(const std::string& first, const GgufSplit& split,
                                    const std::string& place) {
  const std::string count = std::to_string(split.count);
  const std::optional<GgufPartName> name = gguf_part_name(first);
  const bool is_named = name && name->number == split.number && name->count == split.count;
  if (split.number != 0) {
    refuse(place, "part " + std::to_string(split.number + 1) + " of " + count + ": name " +
                      (is_named ? in_quotes(name->of(0)) : "the first part") +
                      ", from which stfs finds the other parts");
  }
  if (!is_named) {
    refuse(place, "the first of " + count + " parts: its name must end in " +
                      suffix(0, split.count) + ", so that stfs finds the other parts");
  }
  std::vector<std::string> parts;
  for (std::uint32_t i = 0; i < split.count; ++i) parts.push_back(name->of(i));
  return parts;
}

void check_gguf_part(const Header& part, std::uint32_t number, const GgufSplit& first,
                     const std::string& place) {
  const std::int64_t stated = required(part, kSplitNumber, ValueType::kU16, place);
  if (stated != number) {
    refuse(place, "key \"split.no\": " + std::to_string(stated) + " in the file of part " +
                      std::to_string(number + 1) + ": the parts are mixed up");
  }
  const auto count = number_of(part, kSplitCount, ValueType::kU16, place);
  if (count && *count != first.count) {
    refuse(place, "key \"split.count\": " + std::to_string(*count) + ", the first part says " +
                      std::to_string(first.count) + ": the parts belong to two files");
  }
}

void check_gguf_tensors(std::uint64_t found, const GgufSplit& first, const std::string& place) {
  if (found == first.tensors) return;
  refuse(place, "the parts have " + std::to_string(found) + " tensors, split.tensors.count is " +
                    std::to_string(first.tensors));
}

}  // namespace stfs
