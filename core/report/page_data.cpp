#include "core/report/page_data.h"

#include "core/base/text.h"
#include "core/report/inspect_command.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <span>

namespace stfs::markup {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// Returns the bytes for each tensor if all together may have `total` bytes.
std::size_t part_of(std::size_t total, const Report& report, std::size_t least, std::size_t most) {
  return std::clamp(total / std::max<std::size_t>(rows_of(report), 1), least, most);
}
std::size_t most_name(const Report& report) { return part_of(8'000'000, report, 60, 400); }

// Formats a share. The result is "1" only if all elements are equal.
std::string share(double share, int digits) {
  const std::string text = number(share, digits);
  return share < 1 && text == "1" ? number(std::min(share, 0.9999), 4) : text;
}

std::string notes_of(const Report& report, const ReportTensor& tensor) {
  std::string notes;
  const auto add = [&notes](const std::string& note) {
    notes += (notes.empty() ? "" : "; ") + note;
  };
  if (!tensor.failure.empty()) add(tensor.failure);
  const auto add_places = [&](std::uint64_t count, const char* what,
                              std::span<const std::uint64_t> places) {
    if (count == 0) return;
    const std::string at =
        places.empty() ? "" : " at " + places_text(1, places.first(1), tensor.shape);
    add(grouped(count) + " " + what + (count > 1 && !at.empty() ? ", the first" : "") + at);
  };
  if (tensor.stats) {
    add_places(tensor.stats->nan, "NaN", tensor.stats->nan_at);
    add_places(tensor.stats->inf, "infinite", tensor.stats->inf_at);
  }
  if (!tensor.quantised.empty()) add(std::string(tensor.quantised));
  if (tensor.equal_to && *tensor.equal_to < report.tensors.size()) {
    add("equal to " + fitted(printable(report.tensors[*tensor.equal_to].name), 60));
  }
  return notes;
}

// Encodes a histogram: 2^12 steps of log(1 + count), two digits per bin.
std::string packed(const Histogram& histogram, std::uint64_t most) {
  const double scale = 4095 / std::log1p(static_cast<double>(std::max<std::uint64_t>(most, 1)));
  std::string text;
  for (const std::uint64_t count : histogram.counts) {
    const auto level = static_cast<unsigned>(
        std::clamp(std::nearbyint(std::log1p(static_cast<double>(count)) * scale), 0.0, 4095.0));
    text += kDigits[level >> 6];
    text += kDigits[level & 63];
  }
  return text;
}

// Returns a thumbnail of half the width and height. Keeps the pixel with the largest magnitude out
// of each four, in the order of png.h.
Thumbnail halved(const Thumbnail& thumbnail) {
  const auto weight = [](std::uint8_t pixel) {
    if (pixel == 255) return -1;
    return pixel > 252 ? 1000 + pixel : 2 * std::abs(pixel - 126) + (pixel > 126 ? 1 : 0);
  };
  const std::size_t width = thumbnail.width;
  Thumbnail half = thumbnail;
  half.width = (width + 1) / 2;
  half.height = (thumbnail.height + 1) / 2;
  half.pixels.assign(half.width * half.height, 255);
  for (std::size_t i = 0; i < thumbnail.pixels.size(); ++i) {
    std::uint8_t& pixel = half.pixels[i / width / 2 * half.width + i % width / 2];
    if (weight(thumbnail.pixels[i]) > weight(pixel)) pixel = thumbnail.pixels[i];
  }
  return half;
}

// Encodes a thumbnail with one digit per pixel: 30 steps for each sign, zero, and the three colours
// that do not represent numbers.
std::string packed(const Thumbnail& thumbnail) {
  constexpr int kZero = 126;
  std::string text;
  for (const std::uint8_t pixel : thumbnail.pixels) {
    const int shade = pixel - kZero;
    int digit = pixel - 253 + 61;
    if (pixel < 253) {
      const int step = (std::abs(shade) * 30 + kZero / 2) / kZero;
      digit = shade == 0 ? 30 : shade < 0 ? 30 - std::max(step, 1) : 30 + std::max(step, 1);
    }
    text += kDigits[static_cast<std::size_t>(digit)];
  }
  return text;
}

std::string bins_json(const Histogram& histogram) {
  const std::uint64_t most = *std::ranges::max_element(histogram.counts);
  return std::to_string(histogram.below) + "," + std::to_string(histogram.above) + "," +
         std::to_string(most) + ",\"" + packed(histogram, most) + "\"";
}

// Returns [index,{...}] with the members that the tensor has: "h": [low, high, [quantiles], below,
// above, most, "bins"]; "b", for the other checkpoint: [below, above, most, "bins"]; "p": [width,
// "pixels", shows strength, middle, limit].
std::string picture_json(const ReportTensor& tensor, std::size_t index, bool is_small) {
  std::string json = "[" + std::to_string(index) + ",{";
  if (tensor.histogram) {
    const Histogram& histogram = *tensor.histogram;
    json += "\"h\":[" + json_number(histogram.low, 6) + "," + json_number(histogram.high, 6) + ",[";
    const auto quantiles = tensor.quantiles ? *tensor.quantiles : decltype(kQuantiles){};
    for (const double quantile : quantiles) json += json_number(quantile, 4) + ",";
    json.back() = ']';
    json += "," + bins_json(histogram) + "]";
    if (tensor.histogram_before) json += ",\"b\":[" + bins_json(*tensor.histogram_before) + "]";
  }
  if (tensor.thumbnail) {
    const Thumbnail thumbnail = is_small ? halved(*tensor.thumbnail) : *tensor.thumbnail;
    json += tensor.histogram ? "," : "";
    json += "\"p\":[" + std::to_string(thumbnail.width) + ",\"" + packed(thumbnail) + "\"," +
            (thumbnail.shows == Thumbnail::Shows::kStrength ? "1," : "0,") +
            json_number(thumbnail.middle, 3) + "," + json_number(thumbnail.limit, 3) + "]";
  }
  return json + "}]";
}

// Returns {"nan":"[7,9] and 3 more","inf":..,"largest":..,"look":"stfs-info cat .."} with the
// members that the tensor has, or "" if it has none.
std::string places_json(const Report& report, const ReportTensor& tensor) {
  if (!tensor.stats || tensor.shape.size() > kMaxDimensions) return "";
  const ValueStats& stats = *tensor.stats;
  std::string json;
  const auto add = [&json](std::string_view key, const std::string& text) {
    if (!text.empty())
      json += (json.empty() ? "{\"" : ",\"") + std::string(key) + "\":" + json_of(text);
  };
  const bool is_broken = stats.nan + stats.inf > 0;
  if (is_broken) {
    add("nan", places_text(stats.nan, stats.nan_at, tensor.shape));
    add("inf", places_text(stats.inf, stats.inf_at, tensor.shape));
  }
  if (stats.largest_at)
    add("largest", places_text(1, std::span(&*stats.largest_at, 1), tensor.shape));
  const std::vector<std::uint64_t>& first = stats.nan > 0 ? stats.nan_at : stats.inf_at;
  if (is_broken && report.look && !first.empty()) {
    // Otherwise a block type of GGUF.
    const DType dtype = dtype_from_name(tensor.type).value_or(DType::kF32);
    add("look", inspect_command(*report.look, {tensor.name, dtype, tensor.shape}, first.front()));
  }
  return json.empty() ? "" : json + "}";
}

// Encodes `path` as the part of a URL after a folder.
std::string url_path(std::string_view path) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-' || c == '/';
    if (is_plain) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

}  // namespace

std::string change_text(const ReportTensor& tensor) {
  const Difference& difference = *tensor.difference;
  switch (difference.kind) {
    case Difference::Kind::kEqual: return "equal";
    case Difference::Kind::kValues:
      if (difference.largest != std::numeric_limits<double>::infinity()) return "values";
      return tensor.stats && tensor.stats->nan > 0   ? "now NaN"
             : tensor.stats && tensor.stats->inf > 0 ? "now infinite"
                                                     : "was not finite";
    case Difference::Kind::kShape: return "shape, was " + difference.was;
    case Difference::Kind::kType: return "type, was " + difference.was;
    case Difference::Kind::kAdded: return "added";
  }
  return "";
}

std::vector<Column> columns_of(const Report& report) {
  std::vector<Column> columns{
      {"name", "Name", ""},    {"type", "Type", ""}, {"shape", "Shape", ""},
      {"bytes", "Bytes", "n"}, {"min", "Min", "n"},  {"max", "Max", "n"},
      {"mean", "Mean", "n"},   {"std", "Std", "n"},  {"zeros", "Zeros", "n"},
  };
  if (report.against) {
    columns.insert(columns.end(), {{"change", "Difference", ""},
                                   {"distance", "Distance", "n"},
                                   {"equal", "Equal", "n"},
                                   {"largest", "Largest", "n"}});
  }
  if (report.files.size() > 1) columns.push_back({"file", "File", "n"});
  columns.push_back({"notes", "Notes", ""});
  return columns;
}

std::size_t rows_of(const Report& report) {
  return std::min(report.tensors.size(), Report::kMaxRows);
}

std::size_t removed_rows_of(const Report& report) {
  constexpr std::size_t kMost = 1000;
  return std::min(report.removed.size(), kMost);
}

void write_rows(const Report& report, const std::vector<bool>& is_linked, const Write& write) {
  const int digits = report.tensors.size() > Report::kMaxPictured ? 3 : 4;
  std::string row;
  for (std::size_t i = 0; i < rows_of(report); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    const auto cell = [&row](const std::string& text) { row += "<td>" + text; };
    const auto value = [&](const std::optional<double>& x, int precision) {
      cell(x ? number(*x, precision) : "");
    };
    row = is_linked[i] ? "<tr id=\"t" + std::to_string(i) + "\">" : "<tr>";
    cell(html_of(fitted(printable(tensor.name), most_name(report))));
    cell(escaped(tensor.type));
    cell(shape_text(tensor.shape));
    cell(std::to_string(tensor.bytes));
    const ValueStats stats = tensor.stats.value_or(ValueStats{});
    value(stats.min, digits);
    value(stats.max, digits);
    value(stats.mean, digits);
    value(stats.std, digits);
    cell(tensor.stats ? std::to_string(stats.zeros) : "");
    if (report.against) {
      const Difference difference = tensor.difference ? *tensor.difference : Difference{};
      cell(tensor.difference ? html_of(fitted(printable(change_text(tensor)), most_name(report)))
                             : "");
      value(difference.distance, digits - 1);
      cell(difference.equal ? share(*difference.equal, digits - 1) : "");
      value(difference.largest, digits - 1);
    }
    if (report.files.size() > 1) cell(std::to_string(tensor.file + 1));
    cell(sentence(shortened(notes_of(report, tensor), 1000)));
    while (row.ends_with("<td>")) row.resize(row.size() - 4);
    row += '\n';
    write(row);
  }
  for (std::size_t i = 0; i < removed_rows_of(report); ++i) {
    const Report::Removed& removed = report.removed[i];
    write("<tr><td>" + html_of(fitted(printable(removed.name), most_name(report))) + "<td>" +
          escaped(removed.type) + "<td>" + shape_text(removed.shape) + "<td>" +
          std::to_string(removed.bytes) + "<td><td><td><td><td><td>removed\n");
  }
}

void write_data(const Report& report, const std::vector<Column>& columns, const Write& write) {
  const std::size_t most_path = part_of(16'000'000, report, 160, 4096);
  // If there are more than kMaxPictured tensors, halve the thumbnails, because the page should not
  // exceed 20 MB.
  const bool is_small = report.tensors.size() > Report::kMaxPictured;
  bool is_first = true;
  const auto begin = [&](std::string_view before) {
    write(before);
    is_first = true;
  };
  const auto add = [&](const std::string& entry) {
    if (!is_first) write(",\n");
    is_first = false;
    write(entry);
  };
  // Adds an entry for each tensor for which `entry` does not return "".
  const auto add_each = [&](std::string_view before, const auto& entry) {
    begin(before);
    for (std::size_t i = 0; i < rows_of(report); ++i) {
      const std::string text = entry(report.tensors[i]);
      if (!text.empty()) add("\"" + std::to_string(i) + "\":" + text);
    }
  };
  begin("{\"keys\":[");
  for (const Column& column : columns) add(json_text(column.key));
  begin("],\n\"tensors\":" + std::to_string(rows_of(report)) + ",\"files\":[");
  for (const ReportFile& file : report.files) add(json_text(shortened(file.name)));
  add_each("],\n\"nan\":{", [](const ReportTensor& tensor) {
    return tensor.stats && tensor.stats->nan > 0 ? std::to_string(tensor.stats->nan) : "";
  });
  add_each("},\n\"inf\":{", [](const ReportTensor& tensor) {
    return tensor.stats && tensor.stats->inf > 0 ? std::to_string(tensor.stats->inf) : "";
  });
  // The most severe finding of each tensor: 2 is broken, 1 is odd.
  std::vector<char> severity(rows_of(report), '0');
  for (const Finding& finding : report.findings) {
    if (finding.severity == Finding::Severity::kUsual) continue;
    const char digit = finding.severity == Finding::Severity::kBroken ? '2' : '1';
    for (const std::uint32_t i : finding.tensors) {
      if (i < severity.size()) severity[i] = std::max(severity[i], digit);
    }
  }
  begin("},\n\"severity\":{");
  for (std::size_t i = 0; i < severity.size(); ++i) {
    if (severity[i] != '0') add("\"" + std::to_string(i) + "\":" + severity[i]);
  }
  add_each("},\n\"equal\":{", [&](const ReportTensor& tensor) {
    const bool has_row = tensor.equal_to && *tensor.equal_to < rows_of(report);
    return has_row ? std::to_string(*tensor.equal_to) : "";
  });
  add_each("},\n\"elements\":{", [](const ReportTensor& tensor) {
    return tensor.shape.size() > kMaxDimensions ? std::to_string(tensor.elements) : "";
  });
  add_each("},\n\"paths\":{", [&](const ReportTensor& tensor) -> std::string {
    const std::string path = url_path(tensor.path ? *tensor.path : tensor.name);
    if (path.size() > most_path) return "null";
    const bool is_name = path == tensor.name && path.size() <= most_name(report);
    return is_name ? "" : json_text(path);
  });
  // Only for tensors with a picture, because a hostile header may have millions of others.
  add_each("},\n\"places\":{", [&](const ReportTensor& tensor) {
    return tensor.histogram || tensor.thumbnail ? places_json(report, tensor) : "";
  });
  begin("},\n\"pictures\":[");
  for (std::size_t i = 0; i < rows_of(report); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    if (tensor.histogram || tensor.thumbnail) add(picture_json(tensor, i, is_small));
  }
  write("]}");
}

}  // namespace stfs::markup
