#include "core/report/page.h"

#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/report/page_data.h"
#include "core/report/page_texts.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::markup {
namespace {

constexpr std::size_t kMostFindings = 500;  // lines; of each kind
constexpr std::size_t kMostRows = 2000;     // of files, and of removed tensors
constexpr std::size_t kMostLinks = 8;       // of one finding

// --- the content security policy

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
  return "'sha256-" + base64(sha256_hex(text)) + "'";
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
  std::map<std::string_view, Sum> sums;
  for (const ReportTensor& tensor : report.tensors) {
    Sum& sum = sums[tensor.type];
    ++sum.tensors;
    sum.elements += tensor.elements;
    sum.bytes += tensor.bytes;
  }
  std::vector<std::pair<std::string_view, Sum>> rows(sums.begin(), sums.end());
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
  std::string facts = item("Format", escaped(report.format));
  for (const std::string& source : report.sources) {
    facts += item("Source", "<bdi>" + escaped(shortened(source, 2000)) + "</bdi>");
  }
  if (report.against) {
    facts += item("Compared with", "<bdi>" + escaped(shortened(*report.against, 2000)) + "</bdi>");
  }
  if (report.tensors.size() > rows_of(report)) {
    facts += item("Rows", "the table and the maps have the first " + grouped(rows_of(report)) +
                              " of the tensors: stfs-info stats prints the others");
  }
  std::string html = "<dl>" + facts + "</dl>\n" + types_table(report);
  if (!report.metadata.empty()) {
    std::string rows;
    for (const auto& [key, value] : report.metadata) rows += item(shortened(key), escaped(value));
    html += details("Metadata (" + grouped(report.metadata.size()) + ")", "<dl>" + rows + "</dl>");
  }
  if (!report.files.empty()) {
    std::string rows;
    for (std::size_t i = 0; i < std::min(report.files.size(), kMostRows); ++i) {
      rows += "<tr><td class=\"n\">" + std::to_string(i + 1) + "<td>" +
              name_of(report.files[i].name) + "<td class=\"n\">" +
              human_bytes(report.files[i].bytes) + "\n";
    }
    if (report.files.size() > kMostRows) {
      rows += "<tr><td><td>and " + grouped(report.files.size() - kMostRows) + " more<td>\n";
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
    KindName{Finding::Kind::kScale, "Scales", "suspicious scales"},
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
    if (tensor >= rows_of(report)) continue;  // no row to lead to
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
  std::string lines;
  std::array<std::uint64_t, kKinds.size()> counts{};
  const auto line = [&lines](std::string_view heading, const std::string& html) {
    lines += "<li><b>" + std::string(heading) + "</b> <span>" + html + "</span></li>\n";
  };
  for (const Finding& finding : report.findings) {
    const auto kind = static_cast<std::size_t>(
        std::ranges::find(kKinds, finding.kind, &KindName::kind) - kKinds.begin());
    if (counts[kind]++ < kMostFindings) line(kKinds[kind].name, finding_html(report, finding));
  }
  std::string absent;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    if (counts[kind] > kMostFindings) {
      line(kKinds[kind].name, "and " + grouped(counts[kind] - kMostFindings) + " more");
    } else if (counts[kind] == 0) {
      absent += (absent.empty() ? "" : ", ") + std::string(kKinds[kind].absent);
    }
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
    for (std::size_t i = 0; i < std::min(report.removed.size(), kMostRows); ++i) {
      const Report::Removed& removed = report.removed[i];
      rows += "<tr><td>" + name_of(removed.name) + "<td>" + escaped(removed.type) + "<td>" +
              shape_text(removed.shape) + "<td class=\"n\">" + human_bytes(removed.bytes) + "\n";
    }
    if (report.removed.size() > kMostRows) {
      rows += "<tr><td>and " + grouped(report.removed.size() - kMostRows) + " more<td><td><td>\n";
    }
    html += details(counted(report.removed.size(), "removed tensor"),
                    "<div class=\"wide\"><table class=\"plain\"><thead><tr>" + heading("Name") +
                        heading("Type") + heading("Shape") + heading("Bytes", "n") +
                        "</tr></thead><tbody>\n" + rows + "</tbody></table></div>");
  }
  return html + "</section>\n";
}

// Writes `html`, and in place of each {{name}} what its function writes. That is not searched
// again.
using Part = std::function<void(const Write&)>;
void write_filled(std::string_view html, const std::map<std::string_view, Part>& parts,
                  const Write& write) {
  while (!html.empty()) {
    const std::size_t begin = html.find("{{");
    write(html.substr(0, begin));
    if (begin == std::string_view::npos) break;
    const std::size_t end = html.find("}}", begin);
    parts.at(html.substr(begin + 2, end - begin - 2))(write);
    html.remove_prefix(end + 2);
  }
}

Part text(std::string text) {
  return [text = std::move(text)](const Write& write) { write(text); };
}

void write_page(const Report& report, const Write& write) {
  std::vector<bool> is_linked(rows_of(report));
  for (const Finding& finding : report.findings) {
    for (const std::uint32_t tensor : finding.tensors) {
      if (tensor < is_linked.size()) is_linked[tensor] = true;
    }
  }
  const std::vector<Column> columns = columns_of(report);
  std::string head;
  for (const Column& column : columns) head += heading(column.name, column.style);
  write_filled(page_html(),
               {{"policy", text("default-src 'none'; script-src " + hash_source(page_script()) +
                                "; style-src " + hash_source(page_style()) +
                                "; img-src data:; base-uri 'none'; form-action 'none'")},
                {"version", text(STFS_VERSION)},
                {"title", text(name_of(report.title))},
                {"style", text(std::string(page_style()))},
                {"figures", text(figures(report))},
                {"what", text(what(report))},
                {"health", text(health(report))},
                {"columns", text(head)},
                {"rows", [&](const Write& to) { write_rows(report, is_linked, to); }},
                {"difference", text(difference(report))},
                {"data", [&](const Write& to) { write_data(report, columns, to); }},
                {"script", text(std::string(page_script()))}},
               write);
}

}  // namespace
}  // namespace stfs::markup

namespace stfs {

void report_page(const Report& report, const std::function<void(std::string_view)>& write) {
  markup::write_page(report, write);
}

std::string report_page(const Report& report) {
  std::string page;
  report_page(report, [&page](std::string_view part) { page += part; });
  return page;
}

}  // namespace stfs
