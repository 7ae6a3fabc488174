#include "core/report/run_page.h"

#include "core/base/text.h"
#include "core/report/outliers.h"
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
#include <utility>
#include <vector>

namespace stfs::markup {
namespace {

constexpr std::size_t kMaxRoles = 24;
constexpr std::size_t kMaxLines = 64;  // per chart
constexpr std::size_t kMaxRunRows = 2000;
// The number of colours for lines, from the first layer to the last.
constexpr std::size_t kColours = 8;
constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

using Values = std::vector<double>;  // by version; NaN for a missing value

struct Line {
  Values values;
  std::size_t colour;
  std::string name;
  std::size_t broken_at;  // the version, or the number of versions if it did not break
};

// --- charts

// Maps values to heights in a box of 0 to 100. Uses a logarithmic scale if the values differ much
// in magnitude.
class Scale {
 public:
  Scale(const std::vector<Line>& lines, bool from_zero) {
    for (const Line& line : lines) {
      for (const double value : line.values) {
        if (!std::isfinite(value)) continue;
        low_ = std::min(low_, value);
        high_ = std::max(high_, value);
        if (value > 0) least_ = std::min(least_, value);
      }
    }
    constexpr double kManySizes = 30;
    is_log_ = high_ > kManySizes * least_ && !from_zero;
    if (is_log_) low_ = least_;
    if (from_zero) low_ = 0;
  }

  bool is_empty() const { return !(low_ <= high_); }
  std::string text() const {
    if (is_empty()) return "";
    return low_ == high_
               ? number(low_, 3)
               : number(low_, 3) + " to " + number(high_, 3) + (is_log_ ? ", logarithmic" : "");
  }
  double height(double value) const {
    constexpr double kMargin = 4;
    double share = 0.5;
    if (is_log_) {
      share = std::log(std::max(value, least_) / least_) / std::log(high_ / least_);
    } else if (high_ == 0 && low_ == 0) {
      share = 0;
    } else if (high_ > low_) {
      share = (value - low_) / (high_ - low_);
    }
    return 100 - kMargin - share * (100 - 2 * kMargin);
  }

 private:
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
  double least_ = std::numeric_limits<double>::infinity();  // the smallest positive value
  bool is_log_ = false;
};

std::string across(std::size_t version, std::size_t versions) {
  return number(versions < 2
                    ? 100
                    : 4 + 192 * static_cast<double>(version) / static_cast<double>(versions - 1),
                4);
}

// Returns a path with a piece for each run of values. A single value becomes a dot.
std::string path_of(const Values& values, const Scale& scale) {
  std::string path;
  bool is_open = false;
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (!std::isfinite(values[v])) {
      is_open = false;
      continue;
    }
    const std::string at = across(v, values.size()) + " " + number(scale.height(values[v]), 3);
    path += is_open ? "L" + at : "M" + at + "h0";
    is_open = true;
  }
  return path;
}

std::string chart(const Run& run, const std::string& title, const std::vector<Line>& lines,
                  bool from_zero, std::size_t broken_at) {
  const Scale scale(lines, from_zero);
  std::string svg =
      "<svg viewBox=\"0 0 200 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"" +
      title + ": " + scale.text() + "\">";
  if (broken_at < run.versions.size()) {
    svg += "<path class=\"broke\" d=\"M" + across(broken_at, run.versions.size()) + " 0V100\"/>";
  }
  for (const Line& line : lines) {
    const std::string path = path_of(line.values, scale);
    if (path.empty()) continue;
    svg += "<path class=\"l" + std::to_string(line.colour) + "\" d=\"" + path + "\"><title>" +
           line.name + "</title></path>";
    // Mark the last value if the broken version has none.
    std::size_t at = std::min(line.broken_at, line.values.size() - 1);
    while (at > 0 && !std::isfinite(line.values[at])) --at;
    if (line.broken_at < line.values.size() && std::isfinite(line.values[at])) {
      svg += "<path class=\"lost\" d=\"M" + across(at, line.values.size()) + " " +
             number(scale.height(line.values[at]), 3) + "h0\"><title>" + line.name +
             " breaks</title></path>";
    }
  }
  return "<figure><figcaption><b>" + title + "</b> " + scale.text() + "</figcaption>" + svg +
         "</svg><div class=\"axis\"><span>" + name_of(run.versions.front()) + "</span><span>" +
         name_of(run.versions.back()) + "</span></div></figure>\n";
}

// --- the numbers of a run

Values of_cells(const RunTensor& tensor, float RunCell::*member) {
  Values values;
  for (const RunCell& cell : tensor.cells) {
    values.push_back(cell.state == RunCell::State::kThere ? static_cast<double>(cell.*member)
                                                          : kNoValue);
  }
  return values;
}

std::string whole(const Run& run, std::size_t broken_at) {
  const std::size_t versions = run.versions.size();
  Line rms{Values(versions, kNoValue), 1, "RMS", versions},
      largest{Values(versions, kNoValue), 1, "largest", versions};
  Line distance{Values(versions, kNoValue), 1, "median", versions},
      not_finite{Values(versions, 0), 1, "values", versions};
  for (std::size_t v = 0; v < versions; ++v) {
    double squares = 0, elements = 0;
    std::vector<double> distances;
    for (const RunTensor& tensor : run.tensors) {
      const RunCell& cell = tensor.cells[v];
      if (cell.state != RunCell::State::kThere) continue;
      not_finite.values[v] += static_cast<double>(cell.not_finite);
      if (std::isfinite(cell.distance)) distances.push_back(static_cast<double>(cell.distance));
      if (!std::isfinite(cell.rms)) continue;
      const auto count = static_cast<double>(tensor.elements);
      squares += static_cast<double>(cell.rms) * static_cast<double>(cell.rms) * count;
      elements += count;
      largest.values[v] = std::fmax(largest.values[v], static_cast<double>(cell.largest));
    }
    if (elements > 0) rms.values[v] = std::sqrt(squares / elements);
    if (distances.empty()) continue;
    const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
    std::ranges::nth_element(distances, middle);
    distance.values[v] = *middle;
  }
  return chart(run, "Median distance to the first", {distance}, true, broken_at) +
         chart(run, "RMS", {rms}, false, broken_at) +
         chart(run, "Largest |x|", {largest}, false, broken_at) +
         chart(run, "NaN and infinite values", {not_finite}, true, broken_at);
}

struct Role {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> tensors;
};

// Returns the largest roles, in the order of their first tensors.
std::vector<Role> roles_of(const Run& run) {
  std::map<std::string, Role> by_name;
  for (std::uint32_t i = 0; i < run.tensors.size(); ++i) {
    const std::string name = without_numbers(run.tensors[i].name);
    Role& role = by_name[name];
    role.name = name;
    role.bytes += run.tensors[i].bytes;
    role.tensors.push_back(i);
  }
  std::vector<Role> roles;
  roles.reserve(by_name.size());
  for (auto& [name, role] : by_name) roles.push_back(std::move(role));
  std::ranges::stable_sort(roles, std::ranges::greater{}, &Role::bytes);
  roles.resize(std::min(roles.size(), kMaxRoles));
  std::ranges::stable_sort(roles, {}, [](const Role& role) { return role.tensors.front(); });
  return roles;
}

// Returns lines for some tensors of a role, evenly chosen, and for tensors that broke.
std::vector<Line> lines_of(const Run& run, const Role& role, float RunCell::*member) {
  std::vector<Line> lines;
  const std::size_t step = (role.tensors.size() + kMaxLines - 1) / kMaxLines;
  constexpr std::size_t kMaxBroken = 16;
  std::size_t broken = 0;
  for (std::size_t i = 0; i < role.tensors.size(); ++i) {
    const RunTensor& tensor = run.tensors[role.tensors[i]];
    const bool is_shown =
        i % step == 0 || (tensor.broken_at() < run.versions.size() && ++broken <= kMaxBroken);
    if (!is_shown) continue;
    const std::size_t most = std::max<std::size_t>(role.tensors.size() - 1, 1);
    lines.push_back({of_cells(tensor, member), i * (kColours - 1) / most, name_of(tensor.name),
                     tensor.broken_at()});
  }
  return lines;
}

std::string roles(const Run& run, std::size_t broken_at) {
  struct Metric {
    std::string_view id, name;
    float RunCell::*member;
    bool from_zero;
  };
  constexpr std::array kMetrics = {
      Metric{"distance", "Distance to the first, relative", &RunCell::distance, true},
      Metric{"rms", "RMS", &RunCell::rms, false},
      Metric{"largest", "Largest |x|", &RunCell::largest, false},
  };
  const std::vector<Role> all = roles_of(run);
  std::string html;
  for (const Metric& metric : kMetrics) {
    const std::string id(metric.id);
    html += "<section id=\"" + id + "\" aria-labelledby=\"" + id + "-heading\">\n<h2 id=\"" + id +
            "-heading\">" + std::string(metric.name) +
            ", by layer</h2>\n<p class=\"legend\"><span>first layer<i class=\"layers\"></i>last "
            "layer</span></p>\n<div class=\"charts\">";
    for (const Role& role : all) {
      std::string name = role.name;
      if (name.ends_with(".weight")) name.resize(name.size() - 7);
      html += chart(run, name_of(name), lines_of(run, role, metric.member), metric.from_zero,
                    broken_at);
    }
    html += "</div>\n</section>\n";
  }
  return html;
}

// --- the table

double last_distance(const RunTensor& tensor) {
  const auto distance = static_cast<double>(tensor.cells.back().distance);
  return std::isfinite(distance) ? distance : -1;
}

// Returns "<b>step-30</b>", "<b>missing in step-20</b>", or "".
std::string trouble_of(const Run& run, const RunTensor& tensor) {
  const std::size_t at = tensor.broken_at();
  if (at == run.versions.size()) return "";
  const bool is_gone = tensor.cells[at].state == RunCell::State::kAbsent;
  return (is_gone ? "<b>missing in " : "<b>") + name_of(run.versions[at]) + "</b>";
}

std::string row_of(const Run& run, const RunTensor& tensor) {
  const std::size_t broken = tensor.broken_at();
  const RunCell& first = tensor.cells.front();
  const RunCell& last = tensor.cells.back();
  const auto cell = [](const RunCell& of, float value) {
    const bool is_number = of.state == RunCell::State::kThere && std::isfinite(value);
    return "<td class=\"n\">" + (is_number ? number(static_cast<double>(value), 3) : "–");
  };
  const std::vector<Line> lines{{of_cells(tensor, &RunCell::distance), 1, "", broken}};
  const Scale scale(lines, true);
  return (broken < run.versions.size() ? "<tr class=\"broken\"><td>" : "<tr><td>") +
         name_of(tensor.name) + "<td>" + trouble_of(run, tensor) +
         "<td><svg class=\"line\" viewBox=\"0 0 200 100\" preserveAspectRatio=\"none\" "
         "aria-hidden=\"true\"><path class=\"l1\" d=\"" +
         path_of(lines[0].values, scale) + "\"/></svg>" + cell(last, last.distance) +
         cell(first, first.rms) + cell(last, last.rms) + cell(first, first.largest) +
         cell(last, last.largest) + "<td class=\"n\">" + grouped(last.not_finite) + "\n";
}

// Tensors that broke come first, the earliest first. The others follow, with the largest distance
// from the first version first.
std::vector<std::uint32_t> order_of(const Run& run) {
  std::vector<std::uint32_t> order(run.tensors.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    const auto key = [&](std::uint32_t i) {
      return std::pair(run.tensors[i].broken_at(), -last_distance(run.tensors[i]));
    };
    return key(a) < key(b);
  });
  return order;
}

std::string health(const Run& run) {
  const auto broken = run.first_break();
  std::string html = "<p class=\"verdict " + std::string(broken ? "bad" : "good") + "\">" +
                     sentence(run.verdict()) + "</p>\n";
  if (const auto jump = run.largest_jump()) {
    html += "<p class=\"odd\"><b>Odd</b> RMS of " + name_of(run.tensors[jump->tensor].name) + " " +
            (jump->ratio > 1 ? "grows " + number(jump->ratio, 2)
                             : "shrinks " + number(1 / jump->ratio, 2)) +
            " times from " + name_of(run.versions[jump->version - 1]) + " to " +
            name_of(run.versions[jump->version]) + "</p>\n";
  }
  return html;
}

std::string figures(const Run& run) {
  std::uint64_t elements = 0;
  for (const RunTensor& tensor : run.tensors) elements += tensor.elements;
  const auto figure = [](const std::string& value, const std::string& name) {
    return "<li><b>" + value + "</b> " + name + "</li>\n";
  };
  const std::size_t versions = run.versions.size();
  return figure(grouped(versions), versions == 1 ? "version" : "versions") +
         figure(grouped(run.tensors.size()), run.tensors.size() == 1 ? "tensor" : "tensors") +
         figure(human_count(elements), "parameters each");
}

void write_run(const Run& run, const Write& write) {
  const auto broken = run.first_break();
  const std::size_t broken_at = broken ? broken->version : run.versions.size();
  std::string head;
  for (const std::string_view name : {"Tensor", "Broken in", "Distance"}) head += heading(name);
  for (const std::string_view name :
       {"at the end", "RMS, first", "last", "Largest, first", "last", "NaN and infinite"}) {
    head += heading(name, "n");
  }
  const std::string title = name_of(run.versions.front() + " to " + run.versions.back());
  const std::size_t rows = std::min(run.tensors.size(), kMaxRunRows);
  const auto write_rows = [&](const Write& to) {
    const std::vector<std::uint32_t> order = order_of(run);
    for (std::size_t i = 0; i < rows; ++i) to(row_of(run, run.tensors[order[i]]));
  };
  write_filled(
      run_html(),
      {{"policy", text_part("default-src 'none'; style-src " + hash_source(page_style()) +
                            "; img-src data:; base-uri 'none'; form-action 'none'")},
       {"version", text_part(STFS_VERSION)},
       {"title", text_part(title)},
       {"style", text_part(std::string(page_style()))},
       {"figures", text_part(figures(run))},
       {"health", text_part(health(run))},
       {"whole", text_part(whole(run, broken_at))},
       {"roles", text_part(roles(run, broken_at))},
       {"order", text_part("Broken tensors come first, then those that are farthest from " +
                           name_of(run.versions.front()) +
                           (rows < run.tensors.size() ? ": the first " + grouped(rows) + " of " +
                                                            grouped(run.tensors.size())
                                                      : ""))},
       {"columns", text_part(head)},
       {"rows", write_rows}},
      write);
}

}  // namespace
}  // namespace stfs::markup

namespace stfs {

void run_page(const Run& run, const std::function<void(std::string_view)>& write) {
  markup::write_run(run, write);
}

std::string run_page(const Run& run) {
  std::string page;
  run_page(run, [&page](std::string_view part) { page += part; });
  return page;
}

}  // namespace stfs
