#include "core/report/page.h"

#include "core/base/text.h"
#include "core/report/page_data.h"
#include "core/report/page_parts.h"
#include "core/report/page_texts.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::markup {
namespace {

constexpr std::size_t kMaxFindings = 500;  // the maximum number of lines of each kind
constexpr std::size_t kMaxRows = 2000;     // the maximum number of rows of files
constexpr std::size_t kMaxLinks = 8;       // the maximum number of links of one finding

// --- tables

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
  std::string facts;
  for (const auto& [name, value] : report.facts) facts += item(name, escaped(value));
  facts += item("Format", escaped(report.format));
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
    for (std::size_t i = 0; i < std::min(report.files.size(), kMaxRows); ++i) {
      rows += "<tr><td class=\"n\">" + std::to_string(i + 1) + "<td>" +
              name_of(report.files[i].name) + "<td class=\"n\">" +
              human_bytes(report.files[i].bytes) + "\n";
    }
    if (report.files.size() > kMaxRows) {
      rows += "<tr><td><td>and " + grouped(report.files.size() - kMaxRows) + " more<td>\n";
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
  std::string_view absent;  // the text after "Looked for and not found:"
};
constexpr std::array kKinds = {
    KindName{Finding::Kind::kUnreadable, "Unreadable", "unreadable tensors"},
    KindName{Finding::Kind::kMissing, "Missing", "missing tensors"},
    KindName{Finding::Kind::kNan, "NaN", "NaN"},
    KindName{Finding::Kind::kInfinity, "Infinity", "infinity"},
    KindName{Finding::Kind::kAllZero, "All zero", "tensors of zeros"},
    KindName{Finding::Kind::kScale, "Scales", "quantisation scales out of range"},
    KindName{Finding::Kind::kOutlier, "Outliers", "layers and tensors unlike others of their kind"},
    KindName{Finding::Kind::kEqual, "Equal tensors", "equal tensors"},
    KindName{Finding::Kind::kConstant, "Constant", "constant tensors"},
};

std::string link(std::uint32_t tensor, const std::string& html) {
  return "<a href=\"#t" + std::to_string(tensor) + "\">" + html + "</a>";
}

// Returns the sentence as HTML. The names of its tensors become links: the quoted names in the
// sentence and, unless the finding is usual, names of further tensors after it.
std::string finding_html(const Report& report, const Finding& finding) {
  std::string html = sentence(shortened(finding.text, 4000));
  std::vector<std::uint32_t> others;
  for (const std::uint32_t tensor : finding.tensors) {
    if (tensor >= rows_of(report)) continue;  // it has no row to link to
    const std::string name = html_of(in_quotes(report.tensors[tensor].name));
    const std::size_t at = others.size() > kMaxLinks ? std::string::npos : html.find(name);
    if (at == std::string::npos) {
      others.push_back(tensor);
    } else {
      html.replace(at, name.size(), link(tensor, name));
    }
  }
  if (others.empty() || finding.severity == Finding::Severity::kUsual) return html;
  html += "<span class=\"names\">among them ";
  for (std::size_t i = 0; i < std::min(others.size(), kMaxLinks); ++i) {
    const std::string name = name_of(report.tensors[others[i]].name);
    html += link(others[i], name.empty() ? "(no name)" : name) + " ";
  }
  return html + "</span>";
}

// Returns "1 thing is broken, and 2 are odd".
std::string verdict_text(std::size_t broken, std::size_t odd) {
  const auto things = [](std::size_t count, std::string_view noun, std::string_view what) {
    return grouped(count) + std::string(noun) + (count == 1 ? " is " : " are ") + std::string(what);
  };
  std::string text;
  if (broken > 0) text = things(broken, broken == 1 ? " thing" : " things", "broken");
  if (broken > 0 && odd > 0) return text + ", and " + things(odd, "", "odd");
  if (odd > 0) return things(odd, odd == 1 ? " thing" : " things", "odd");
  return broken > 0 ? text : "Nothing odd found";
}

std::string health(const Report& report) {
  using Severity = Finding::Severity;
  if (report.tensors.empty() && report.findings.empty()) {
    return "<p class=\"verdict\">No tensors: there is nothing to check.</p>\n";
  }
  std::array<std::string, 3> lines;  // by severity
  std::array<std::uint64_t, 3> found{};
  std::array<std::uint64_t, kKinds.size()> counts{};
  for (const Finding& finding : report.findings) {
    const auto kind = static_cast<std::size_t>(
        std::ranges::find(kKinds, finding.kind, &KindName::kind) - kKinds.begin());
    const auto severity = static_cast<std::size_t>(finding.severity);
    ++found[severity];
    if (counts[kind]++ >= kMaxFindings) continue;
    const std::string html = finding_html(report, finding);
    lines[severity] +=
        finding.severity == Severity::kUsual
            ? "<li>Usual: " + html + "</li>\n"
            : "<li><b>" + std::string(kKinds[kind].name) + "</b> <span>" + html + "</span></li>\n";
  }
  std::string absent, more;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    if (counts[kind] > kMaxFindings) {
      more += "<li><b>" + std::string(kKinds[kind].name) + "</b> <span>and " +
              grouped(counts[kind] - kMaxFindings) + " more</span></li>\n";
    } else if (counts[kind] == 0) {
      absent += (absent.empty() ? "" : ", ") + std::string(kKinds[kind].absent);
    }
  }
  const std::string_view color = found[0] > 0 ? "bad" : found[1] > 0 ? "odd" : "good";
  std::string html = "<p class=\"verdict " + std::string(color) + "\">" +
                     verdict_text(found[0], found[1]) + "</p>\n";
  if (!lines[0].empty() || !lines[1].empty()) {
    html += "<div class=\"lines\" tabindex=\"0\" role=\"group\" aria-label=\"Findings\">";
    for (const auto& [list, style] : {std::pair(lines[0], "broken"), std::pair(lines[1], "odd")}) {
      if (list.empty()) continue;
      html += "<ol class=\"findings " + std::string(style) + "\">" + list + "</ol>\n";
    }
    html += (more.empty() ? "" : "<ol class=\"findings\">" + more + "</ol>\n") + "</div>\n";
  }
  if (!lines[2].empty()) html += "<ul class=\"usual\">" + lines[2] + "</ul>\n";
  if (!absent.empty()) {
    html += "<p class=\"absent\">Looked for and not found: " + absent + "</p>\n";
  }
  return html;
}

// --- the difference

struct Changes {
  std::array<std::uint64_t, 5> counts{};  // by Difference::Kind
  std::vector<std::uint32_t> farthest;    // positions of changed tensors that have a row
  std::vector<double> distances;
};

// Returns the relative distance, or infinity if it cannot be expressed as a number.
double distance_of(const ReportTensor& tensor) {
  const Difference& difference = *tensor.difference;
  if (difference.distance) return *difference.distance;
  return std::numeric_limits<double>::infinity();
}

Changes changes_of(const Report& report) {
  Changes changes;
  for (std::uint32_t i = 0; i < report.tensors.size(); ++i) {
    const ReportTensor& tensor = report.tensors[i];
    if (!tensor.difference) continue;
    ++changes.counts[static_cast<std::size_t>(tensor.difference->kind)];
    const bool is_equal = tensor.difference->equal == 1;
    const bool is_compared = tensor.difference->equal.has_value() && !is_equal;
    if (!is_compared) continue;
    if (tensor.difference->distance) changes.distances.push_back(*tensor.difference->distance);
    if (i < rows_of(report)) changes.farthest.push_back(i);
  }
  std::ranges::stable_sort(changes.farthest, std::ranges::greater{},
                           [&](std::uint32_t i) { return distance_of(report.tensors[i]); });
  return changes;
}

std::string bar(double share) {
  return "<svg class=\"much\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" "
         "aria-hidden=\"true\"><rect width=\"" +
         number(100 * std::clamp(share, 0.005, 1.0), 3) + "\" height=\"10\"/></svg>";
}

// Returns the tensors with the largest distances from the other checkpoint, each with a bar.
std::string farthest_html(const Report& report, const Changes& changes) {
  constexpr std::size_t kMost = 6;
  if (changes.farthest.empty()) return "";
  double most = 0;
  for (const double distance : changes.distances) most = std::max(most, distance);
  std::string rows;
  const std::size_t shown = std::min(changes.farthest.size(), kMost);
  for (std::size_t i = 0; i < shown; ++i) {
    const ReportTensor& tensor = report.tensors[changes.farthest[i]];
    const std::string name = name_of(tensor.name);
    const double distance = distance_of(tensor);
    rows += "<tr><td>" + link(changes.farthest[i], name.empty() ? "(no name)" : name) + "<td>" +
            bar(std::isfinite(distance) && most > 0 ? distance / most : 1) + "<td class=\"n\">" +
            (std::isfinite(distance) ? number(distance, 3) : html_of(change_text(tensor))) + "\n";
  }
  const std::size_t more = changes.farthest.size() - shown;
  return "<table class=\"plain far\"><thead><tr>" + heading("Farthest") + heading("") +
         heading("Relative distance", "n") + "</tr></thead><tbody>\n" + rows +
         "</tbody></table>\n" +
         (more > 0
              ? "<p class=\"absent\">and " + grouped(more) +
                    (more == 1 ? " more, which is nearer" : " more, which are nearer") + "</p>\n"
              : "");
}

std::string difference(const Report& report) {
  if (!report.against) return "";
  constexpr std::array<std::string_view, 5> kNames{"equal", "changed in values", "changed in shape",
                                                   "changed in type", "added"};
  Changes changes = changes_of(report);
  const std::uint64_t all = report.tensors.size() + report.removed.size();
  const std::uint64_t differ = all - changes.counts[0];
  const std::string other = "<bdi>" + escaped(shortened(*report.against, 2000)) + "</bdi>";
  std::string html =
      "<section id=\"difference\" aria-labelledby=\"difference-heading\">\n"
      "<h2 id=\"difference-heading\">What differs from " +
      other + "</h2>\n<p class=\"verdict\">" +
      (differ == 0 ? "Nothing: " + (all == 1 ? std::string("its tensor is equal")
                                             : "all " + counted(all, "tensor") + " are equal")
                   : grouped(differ) + " of " + counted(all, "tensor") +
                         (differ == 1 ? " differs" : " differ")) +
      "</p>\n<ul class=\"checks\">";
  for (const std::size_t i : {1U, 2U, 3U, 4U}) {
    if (changes.counts[i] == 0) continue;
    html += "<li><b>" + grouped(changes.counts[i]) + "</b> " + std::string(kNames[i]) + "</li>\n";
  }
  if (!report.removed.empty()) {
    html += "<li><b>" + grouped(report.removed.size()) + "</b> removed</li>\n";
  }
  html += "<li><b>" + grouped(changes.counts[0]) + "</b> equal</li>\n</ul>\n";
  if (!changes.distances.empty()) {
    auto middle =
        changes.distances.begin() + static_cast<std::ptrdiff_t>(changes.distances.size() / 2);
    std::ranges::nth_element(changes.distances, middle);
    html += "<p class=\"absent\">The median relative distance of the changed tensors is " +
            number(*middle, 2) + ", and the largest " +
            number(*std::ranges::max_element(changes.distances), 2) + ".</p>\n";
  }
  html += farthest_html(report, changes);
  const std::size_t cut = report.removed.size() - removed_rows_of(report);
  if (cut > 0) {
    html += "<p class=\"absent\">" + grouped(cut) +
            " removed tensors have no row below: stfs-info diff prints them</p>\n";
  }
  return html + "</section>\n";
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
  write_filled(
      page_html(),
      {{"policy", text_part("default-src 'none'; script-src " + hash_source(page_script()) +
                            "; style-src " + hash_source(page_style()) +
                            "; img-src data:; base-uri 'none'; form-action 'none'")},
       {"version", text_part(STFS_VERSION)},
       {"title", text_part(name_of(report.title))},
       {"style", text_part(std::string(page_style()))},
       {"figures", text_part(figures(report))},
       {"what", text_part(what(report))},
       {"health", text_part(health(report))},
       {"columns", text_part(head)},
       {"rows", [&](const Write& to) { write_rows(report, is_linked, to); }},
       {"difference", text_part(difference(report))},
       {"data", [&](const Write& to) { write_data(report, columns, to); }},
       {"script", text_part(std::string(page_script()))}},
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
