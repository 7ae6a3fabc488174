#include "core/report/page.h"

#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/report/page_texts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kMostName = 400;      // bytes of a name that are shown
constexpr std::size_t kMostFindings = 500;  // lines; of each kind
constexpr std::size_t kMostLinks = 8;       // of one finding
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// --- texts

std::string html_of(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Text that a browser shows as it stands: control characters and marks that reorder text are made
// visible, and no line end is left.
std::string escaped(std::string_view text) { return html_of(printable(text)); }

// The same of a sentence, in which names may have been made visible already.
std::string sentence(std::string_view text) {
  std::string out;
  for (std::size_t end = text.find('\\'); end != std::string_view::npos; end = text.find('\\')) {
    out += printable(text.substr(0, end)) + '\\';
    text.remove_prefix(end + 1);
  }
  return html_of(out + printable(text));
}

std::string shortened(std::string_view text, std::size_t most = kMostName) {
  if (text.size() <= most) return std::string(text);
  const std::size_t head = utf8_floor(text, most / 2);
  const std::size_t tail = utf8_floor(text, text.size() - most / 2);
  return std::string(text.substr(0, head)) + "…" + std::string(text.substr(tail));
}

std::string name_of(std::string_view name) { return escaped(shortened(name)); }

// A JSON string without `<`, which would begin a tag or a comment where the script's data stand.
std::string json_text(std::string_view text) {
  std::string out;
  for (const char c : json_string(printable(text))) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// 1234567 -> "1,234,567".
std::string grouped(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return grouped(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

// 6738415616 -> "6.74 B".
std::string human_count(std::uint64_t count) {
  constexpr std::array<std::string_view, 5> kUnits{"", " K", " M", " B", " T"};
  auto value = static_cast<double>(count);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  if (unit == 0) return std::to_string(count);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
  return text.data() + std::string(kUnits[unit]);
}

std::string number(double value, int digits) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*g", digits, value);
  return text.data();
}

// JSON has no NaN and no infinity.
std::string json_number(double value, int digits) {
  return std::isfinite(value) ? number(value, digits) : "null";
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kMostDimensions = 16;
  std::string text;
  for (const std::uint64_t dim : shape.first(std::min(shape.size(), kMostDimensions))) {
    text += (text.empty() ? "" : "×") + std::to_string(dim);
  }
  return shape.size() > kMostDimensions ? text + "×…" : text;
}

std::string base64(std::string_view hex) {
  constexpr std::string_view kBase64 =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  unsigned count = 0;
  for (const char digit : hex) {
    bits = bits << 4 | static_cast<std::uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
    count += 4;
    if (count >= 6) {
      count -= 6;
      out += kBase64[bits >> count & 63];
    }
  }
  if (count > 0) out += kBase64[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

// A source of a content security policy that permits this element alone.
std::string hash_source(std::string_view text) {
  Sha256 sha;
  sha.add(std::as_bytes(std::span(text)));
  return "'sha256-" + base64(sha.hex()) + "'";
}

// --- tables

std::string heading(std::string_view text, std::string_view style = "") {
  const std::string attribute = style.empty() ? "" : " class=\"" + std::string(style) + "\"";
  return "<th scope=\"col\"" + attribute + ">" + std::string(text) + "</th>";
}

std::string item(std::string_view term, const std::string& html) {
  return "<dt>" + escaped(term) + "</dt><dd>" + html + "</dd>\n";
}

std::string figures(const Report& report) {
  const auto figure = [](const std::string& value, std::string_view name, const std::string& all) {
    return "<li title=\"" + all + "\"><b>" + value + "</b> " + std::string(name) + "</li>\n";
  };
  return figure(human_count(report.parameters), "parameters",
                counted(report.parameters, "parameter")) +
         figure(human_bytes(report.bytes), "of tensors", counted(report.bytes, "byte")) +
         figure(grouped(report.tensors.size()), report.tensors.size() == 1 ? "tensor" : "tensors",
                counted(report.tensors.size(), "tensor")) +
         figure(grouped(report.files.size()), report.files.size() == 1 ? "file" : "files",
                counted(report.files.size(), "file"));
}

std::string types_table(const Report& report) {
  struct Sum {
    std::uint64_t tensors = 0, elements = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const ReportTensor& tensor : report.tensors) {
    Sum& sum = sums[tensor.type];
    ++sum.tensors;
    sum.elements += tensor.elements;
    sum.bytes += tensor.bytes;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::stable_sort(rows, std::ranges::greater{},
                           [](const auto& row) { return row.second.bytes; });
  std::string html = "<table class=\"plain\" id=\"types\"><thead><tr>" + heading("Type") +
                     heading("Tensors", "n") + heading("Parameters", "n") + heading("Bytes", "n") +
                     "</tr></thead><tbody>\n";
  for (const auto& [type, sum] : rows) {
    html += "<tr><td>" + escaped(type) + "<td class=\"n\">" + grouped(sum.tensors) +
            "<td class=\"n\">" + grouped(sum.elements) + "<td class=\"n\">" +
            human_bytes(sum.bytes) + "\n";
  }
  return html + "</tbody></table>\n";
}

std::string details(const std::string& summary, const std::string& html) {
  return "<details><summary>" + summary + "</summary>\n" + html + "</details>\n";
}

std::string what(const Report& report) {
  constexpr std::size_t kMostFiles = 2000;
  std::string facts = item("Format", escaped(report.format));
  for (const std::string& source : report.sources) {
    facts += item("Source", "<bdi>" + escaped(shortened(source, 2000)) + "</bdi>");
  }
  if (report.against) {
    facts += item("Compared with", "<bdi>" + escaped(shortened(*report.against, 2000)) + "</bdi>");
  }
  std::string html = "<dl>" + facts + "</dl>\n" + types_table(report);
  if (!report.metadata.empty()) {
    std::string rows;
    for (const auto& [key, value] : report.metadata) rows += item(shortened(key), escaped(value));
    html += details("Metadata (" + grouped(report.metadata.size()) + ")", "<dl>" + rows + "</dl>");
  }
  if (!report.files.empty()) {
    std::string rows;
    for (std::size_t i = 0; i < std::min(report.files.size(), kMostFiles); ++i) {
      rows += "<tr><td class=\"n\">" + std::to_string(i + 1) + "<td>" +
              name_of(report.files[i].name) + "<td class=\"n\">" +
              human_bytes(report.files[i].bytes) + "\n";
    }
    if (report.files.size() > kMostFiles) {
      rows += "<tr><td><td>and " + grouped(report.files.size() - kMostFiles) + " more<td>\n";
    }
    html +=
        details(counted(report.files.size(), "file"),
                "<table class=\"plain\"><thead><tr>" + heading("Number", "n") + heading("File") +
                    heading("Bytes", "n") + "</tr></thead><tbody>\n" + rows + "</tbody></table>");
  }
  return html;
}

struct KindName {
  Finding::Kind kind;
  std::string_view name;
  std::string_view absent;  // after "Not found:"
};
constexpr std::array kKinds = {
    KindName{Finding::Kind::kUnreadable, "Unreadable", "unreadable tensors"},
    KindName{Finding::Kind::kNan, "NaN", "NaN"},
    KindName{Finding::Kind::kInfinity, "Infinity", "infinity"},
    KindName{Finding::Kind::kAllZero, "All zero", "tensors of zeros"},
    KindName{Finding::Kind::kConstant, "Constant", "constant tensors"},
    KindName{Finding::Kind::kEqual, "Equal tensors", "equal tensors"},
    KindName{Finding::Kind::kScale, "Unusual scale", "unusual scales"},
    KindName{Finding::Kind::kMissing, "Missing", "missing tensors"},
};

std::string link(std::uint32_t tensor, const std::string& html) {
  return "<a href=\"#t" + std::to_string(tensor) + "\">" + html + "</a>";
}

// The sentence. The names of its tensors are links: those in quotes in it, then others.
std::string finding_html(const Report& report, const Finding& finding) {
  std::string html = sentence(shortened(finding.text, 4000));
  std::vector<std::uint32_t> others;
  for (const std::uint32_t tensor : finding.tensors) {
    if (tensor >= report.tensors.size()) continue;
    const std::string name = html_of(in_quotes(report.tensors[tensor].name));
    const std::size_t at = others.size() > kMostLinks ? std::string::npos : html.find(name);
    if (at == std::string::npos) {
      others.push_back(tensor);
    } else {
      html.replace(at, name.size(), link(tensor, name));
    }
  }
  if (others.empty()) return html;
  html += "<span class=\"names\">";
  for (std::size_t i = 0; i < std::min(others.size(), kMostLinks); ++i) {
    const std::string name = name_of(report.tensors[others[i]].name);
    html += link(others[i], name.empty() ? "(no name)" : name) + " ";
  }
  if (others.size() > kMostLinks) html += "and " + grouped(others.size() - kMostLinks) + " more";
  return html + "</span>";
}

std::string health(const Report& report) {
  std::string absent;
  std::string lines;
  for (const auto& [kind, name, none] : kKinds) {
    const auto line = [&lines, heading = name](const std::string& html) {
      lines += "<li><b>" + std::string(heading) + "</b> <span>" + html + "</span></li>\n";
    };
    std::size_t count = 0;
    for (const Finding& finding : report.findings) {
      if (finding.kind == kind && count++ < kMostFindings) line(finding_html(report, finding));
    }
    if (count > kMostFindings) line("and " + grouped(count - kMostFindings) + " more");
    if (count == 0) absent += (absent.empty() ? "" : ", ") + std::string(none);
  }
  std::string html =
      report.findings.empty()
          ? "<p class=\"verdict good\">Nothing odd found</p>\n"
          : "<p class=\"verdict bad\">" + counted(report.findings.size(), "finding") + "</p>\n";
  if (!lines.empty()) {
    html += "<ol class=\"findings\" tabindex=\"0\" aria-label=\"Findings\">" + lines + "</ol>\n";
  }
  if (!absent.empty()) html += "<p class=\"absent\">Not found: " + absent + "</p>\n";
  return html;
}

// --- tensors

struct Column {
  std::string_view key, name, style;
};

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

std::string change_text(const Difference& difference) {
  switch (difference.kind) {
    case Difference::Kind::kEqual:
      return "equal";
    case Difference::Kind::kValues:
      return "values";
    case Difference::Kind::kShape:
      return "shape, was " + difference.was;
    case Difference::Kind::kType:
      return "type, was " + difference.was;
    case Difference::Kind::kAdded:
      return "added";
  }
  return "";
}

std::string notes_of(const Report& report, const ReportTensor& tensor) {
  std::string notes;
  const auto add = [&notes](const std::string& note) {
    notes += (notes.empty() ? "" : "; ") + note;
  };
  if (!tensor.failure.empty()) add(tensor.failure);
  if (tensor.stats && tensor.stats->nan > 0) add(grouped(tensor.stats->nan) + " NaN");
  if (tensor.stats && tensor.stats->inf > 0) add(grouped(tensor.stats->inf) + " infinite");
  if (!tensor.quantised.empty()) add(tensor.quantised);
  if (tensor.equal_to && *tensor.equal_to < report.tensors.size()) {
    add("equal to " + printable(shortened(report.tensors[*tensor.equal_to].name)));
  }
  return notes;
}

// One line for each tensor, its cells in the order of columns_of(), without empty ones at the end.
// The script reads its rows from here: a browser that runs scripts takes <noscript> for a text.
std::string rows_html(const Report& report, const std::vector<bool>& is_linked) {
  const int digits = report.tensors.size() > Report::kMostPictured ? 3 : 4;
  std::string html;
  std::string row;
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    const auto cell = [&row](const std::string& text) { row += "<td>" + text; };
    const auto value = [&](const std::optional<double>& x) { cell(x ? number(*x, digits) : ""); };
    row = is_linked[i] ? "<tr id=\"t" + std::to_string(i) + "\">" : "<tr>";
    cell(name_of(tensor.name));
    cell(escaped(tensor.type));
    cell(shape_text(tensor.shape));
    cell(std::to_string(tensor.bytes));
    const ValueStats stats = tensor.stats.value_or(ValueStats{});
    value(stats.min);
    value(stats.max);
    value(stats.mean);
    value(stats.std);
    cell(tensor.stats ? std::to_string(stats.zeros) : "");
    if (report.against) {
      const Difference difference = tensor.difference.value_or(Difference{});
      cell(tensor.difference ? escaped(shortened(change_text(difference))) : "");
      value(difference.distance);
      value(difference.equal);
      value(difference.largest);
    }
    if (report.files.size() > 1) cell(std::to_string(tensor.file + 1));
    cell(sentence(shortened(notes_of(report, tensor), 1000)));
    while (row.ends_with("<td>")) row.resize(row.size() - 4);
    html += row + "\n";
  }
  return html;
}

// Up to 2^12 steps of log(1 + count), two digits a bin.
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

// A digit a pixel: 30 steps of each sign about zero, and the three colours that are no number.
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

// [tensor, [low, high, below, above, [quantiles], most, "bins"] or null, [width, "pixels"] or null]
std::string picture_json(const ReportTensor& tensor, std::size_t index) {
  std::string json = "[" + std::to_string(index) + ",";
  if (tensor.histogram) {
    const Histogram& histogram = *tensor.histogram;
    const std::uint64_t most = *std::ranges::max_element(histogram.counts);
    json += "[" + json_number(histogram.low, 6) + "," + json_number(histogram.high, 6) + "," +
            std::to_string(histogram.below) + "," + std::to_string(histogram.above) + ",[";
    for (const double quantile : tensor.quantiles) json += json_number(quantile, 4) + ",";
    json.back() = ']';
    json += "," + std::to_string(most) + ",\"" + packed(histogram, most) + "\"],";
  } else {
    json += "null,";
  }
  if (tensor.thumbnail) {
    json +=
        "[" + std::to_string(tensor.thumbnail->width) + ",\"" + packed(*tensor.thumbnail) + "\"]]";
  } else {
    json += "null]";
  }
  return json;
}

// `path` as the part of a URL after a folder.
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

// What the table does not say, by tensor: only of those that have it.
std::string data_json(const Report& report, const std::vector<Column>& columns) {
  constexpr std::size_t kMostPath = 4096;
  const auto list = [](std::string& json, const std::string& entry) {
    json += (json.empty() ? "" : ",\n") + entry;
  };
  std::string keys, files, nan, inf, equal, paths, pictures;
  for (const Column& column : columns) list(keys, json_text(column.key));
  for (const ReportFile& file : report.files) list(files, json_text(shortened(file.name)));
  for (std::size_t i = 0; i < report.tensors.size(); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    const std::string index = "\"" + std::to_string(i) + "\":";
    if (tensor.stats && tensor.stats->nan > 0) list(nan, index + std::to_string(tensor.stats->nan));
    if (tensor.stats && tensor.stats->inf > 0) list(inf, index + std::to_string(tensor.stats->inf));
    if (tensor.equal_to) list(equal, index + std::to_string(*tensor.equal_to));
    const std::string path = url_path(tensor.path);
    if (path != tensor.name && path.size() <= kMostPath) list(paths, index + json_text(path));
    if (tensor.histogram || tensor.thumbnail) list(pictures, picture_json(tensor, i));
  }
  return "{\"keys\":[" + keys + "],\n\"files\":[" + files + "],\n\"nan\":{" + nan +
         "},\n\"inf\":{" + inf + "},\n\"equal\":{" + equal + "},\n\"paths\":{" + paths +
         "},\n\"pictures\":[" + pictures + "]}";
}

// --- the difference

std::string difference(const Report& report) {
  if (!report.against) return "";
  constexpr std::array<std::string_view, 5> kNames{"equal", "changed in values", "changed in shape",
                                                   "changed in type", "added"};
  std::array<std::uint64_t, kNames.size()> counts{};
  for (const ReportTensor& tensor : report.tensors) {
    if (tensor.difference) ++counts[static_cast<std::size_t>(tensor.difference->kind)];
  }
  std::string html =
      "<section id=\"difference\" aria-labelledby=\"difference-heading\">\n"
      "<h2 id=\"difference-heading\">Difference</h2>\n<p>Against <bdi>" +
      escaped(shortened(*report.against, 2000)) + "</bdi></p>\n<ul class=\"checks\">";
  for (std::size_t i = 0; i < counts.size(); ++i) {
    html += "<li><b>" + grouped(counts[i]) + "</b> " + std::string(kNames[i]) + "</li>\n";
  }
  html += "<li><b>" + grouped(report.removed.size()) + "</b> removed</li>\n</ul>\n";
  if (!report.removed.empty()) {
    std::string rows;
    for (const Report::Removed& removed : report.removed) {
      rows += "<tr><td>" + name_of(removed.name) + "<td>" + escaped(removed.type) + "<td>" +
              shape_text(removed.shape) + "<td class=\"n\">" + human_bytes(removed.bytes) + "\n";
    }
    html += details(counted(report.removed.size(), "removed tensor"),
                    "<div class=\"wide\"><table class=\"plain\"><thead><tr>" + heading("Name") +
                        heading("Type") + heading("Shape") + heading("Bytes", "n") +
                        "</tr></thead><tbody>\n" + rows + "</tbody></table></div>");
  }
  return html + "</section>\n";
}

// `html` with each {{name}} replaced. What replaces one is not searched again.
std::string filled(std::string_view html, const std::map<std::string_view, std::string>& texts) {
  std::string out;
  while (!html.empty()) {
    const std::size_t begin = html.find("{{");
    out += html.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = html.find("}}", begin);
    out += texts.at(html.substr(begin + 2, end - begin - 2));
    html.remove_prefix(end + 2);
  }
  return out;
}

}  // namespace

std::string report_page(const Report& report) {
  std::vector<bool> is_linked(report.tensors.size());
  for (const Finding& finding : report.findings) {
    for (const std::uint32_t tensor : finding.tensors) {
      if (tensor < is_linked.size()) is_linked[tensor] = true;
    }
  }
  const std::vector<Column> columns = columns_of(report);
  std::string head;
  for (const Column& column : columns) head += heading(column.name, column.style);
  return filled(page_html(),
                {{"policy", "default-src 'none'; script-src " + hash_source(page_script()) +
                                "; style-src " + hash_source(page_style()) +
                                "; img-src data:; base-uri 'none'; form-action 'none'"},
                 {"version", STFS_VERSION},
                 {"title", name_of(report.title)},
                 {"style", std::string(page_style())},
                 {"figures", figures(report)},
                 {"what", what(report)},
                 {"health", health(report)},
                 {"columns", head},
                 {"rows", rows_html(report, is_linked)},
                 {"difference", difference(report)},
                 {"data", data_json(report, columns)},
                 {"script", std::string(page_script())}});
}

}  // namespace stfs
