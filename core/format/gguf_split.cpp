#include "core/format/gguf_split.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace stfs {
namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& rule) {
  throw Error(ErrorCode::kGgufSplit, place, rule);
}

// The value of a key; nullopt when there is none.
std::optional<std::int64_t> number_of(const Header& header, std::string_view key, ValueType type,
                                      const std::string& place) {
  const std::optional<std::size_t> at = header.metadata.find(key);
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

std::vector<std::string> gguf_parts(const std::string& first, const GgufSplit& split) {
  const std::string count = std::to_string(split.count);
  if (split.number != 0) {
    refuse(first, "part " + std::to_string(split.number + 1) + " of " + count +
                      ": name the first part, which finds the others");
  }
  const std::string end = suffix(0, split.count);
  if (!first.ends_with(end)) {
    refuse(first, "the first of " + count + " parts: its name must end in " + end +
                      ", so that the others are found");
  }
  std::vector<std::string> parts;
  const std::string prefix = first.substr(0, first.size() - end.size());
  for (std::uint32_t i = 0; i < split.count; ++i) parts.push_back(prefix + suffix(i, split.count));
  return parts;
}

void check_gguf_part(const Header& part, std::uint32_t number, const GgufSplit& first,
                     const std::string& place) {
  const std::int64_t stated = required(part, kSplitNumber, ValueType::kU16, place);
  if (stated != number) {
    refuse(place, "key \"split.no\": " + std::to_string(stated) + " in the file of part " +
                      std::to_string(number) + ": the parts are mixed up");
  }
  const auto count = number_of(part, kSplitCount, ValueType::kU16, place);
  if (count && *count != first.count) {
    refuse(place, "key \"split.count\": " + std::to_string(*count) + ", the first part says " +
                      std::to_string(first.count) + ": parts of two files");
  }
}

void check_gguf_tensors(std::uint64_t found, const GgufSplit& first, const std::string& place) {
  if (found == first.tensors) return;
  refuse(place, "the parts have " + std::to_string(found) + " tensors, split.tensors.count is " +
                    std::to_string(first.tensors));
}

}  // namespace stfs
