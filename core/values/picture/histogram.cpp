#include "core/values/picture/histogram.h"

#include "core/base/text.h"
#include "core/values/picture/markup.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

namespace stfs {
namespace {

using markup::grouped;

// All lengths are in units of the picture, which are pixels at its original size.
constexpr int kWidth = 720;
constexpr int kLeft = 40;
constexpr int kBar = 5;
constexpr int kRight = kLeft + kBar * static_cast<int>(Histogram::kBins);
constexpr int kLinearTop = 84;
constexpr int kPanel = 140;  // the height of each of the two panels
constexpr int kLogTop = kLinearTop + kPanel + 44;
constexpr int kAxis = kLogTop + kPanel;
constexpr int kTextTop = kAxis + 64;
constexpr int kHeight = kTextTop + 78;

constexpr const char* kStyle =
    "<style>:root{color-scheme:light dark}"
    "svg{--b:#fff;--t:#1f2328;--s:#59636e;--g:#d8dee4;--l:#2f6fbd;--q:#c2410c;--w:#b3121d}"
    "@media(prefers-color-scheme:dark){svg{--b:#0d1117;--t:#e6edf3;--s:#9198a1;--g:#30363d;"
    "--l:#6cb0f5;--q:#f0883e;--w:#ff7b72}}"
    "text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#59636e;fill:var(--s)}"
    ".n{font-size:15px;font-weight:600;fill:#1f2328;fill:var(--t)}"
    ".v{fill:#1f2328;fill:var(--t)}"
    ".w{font-weight:600;fill:#b3121d;fill:var(--w)}"
    ".b{fill:#fff;fill:var(--b)}"
    ".c{fill:#2f6fbd;fill:var(--l);shape-rendering:crispEdges}"
    ".g{stroke:#d8dee4;stroke:var(--g);shape-rendering:crispEdges}"
    ".q{fill:#c2410c;fill:var(--q);shape-rendering:crispEdges}"
    ".e{text-anchor:end}.m{text-anchor:middle}</style>\n";

std::string number(double value, const char* format = "%.4g") {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

class Svg {
 public:
  void raw(std::string_view text) { out_ += text; }
  void text(int x, int y, const char* style, std::string_view text) {
    out_ += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" class=\"" +
            style + "\">" + markup::html_of(text) + "</text>\n";
  }
  void line(int x1, int y1, int x2, int y2) {
    out_ += "<path class=\"g\" d=\"M" + std::to_string(x1) + ".5 " + std::to_string(y1) + ".5L" +
            std::to_string(x2) + ".5 " + std::to_string(y2) + ".5\"/>\n";
  }
  void box(const char* style, double x1, int y1, double x2, int y2) {
    out_ += "<path class=\"" + std::string(style) + "\" d=\"M" + number(x1, "%.1f") + " " +
            std::to_string(y1) + "H" + number(x2, "%.1f") + "V" + std::to_string(y2) + "H" +
            number(x1, "%.1f") + "Z\"/>\n";
  }
  // Draws a bar for each bin, `heights` above `bottom`.
  void bars(const std::array<double, Histogram::kBins>& heights, int bottom) {
    out_ += "<path class=\"c\" d=\"M" + std::to_string(kLeft) + " " + std::to_string(bottom);
    for (const double height : heights) {
      out_ += "V" + number(bottom - height, "%.4g") + "h" + std::to_string(kBar);
    }
    out_ += "V" + std::to_string(bottom) + "Z\"/>\n";
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

double position(const Histogram& histogram, double value) {
  const double share = (value - histogram.low) / (histogram.high - histogram.low);
  return kLeft + std::clamp(share, 0.0, 1.0) * (kRight - kLeft);
}

// Draws about four to eight round numbers.
void draw_axis(Svg& svg, const Histogram& histogram) {
  const double width = histogram.high - histogram.low;
  double step = std::pow(10, std::floor(std::log10(width / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (width / (step * factor) >= 4) {
      step *= factor;
      break;
    }
  }
  svg.line(kLeft, kAxis, kRight, kAxis);
  const double first = std::ceil(histogram.low / step);
  for (int i = 0; i < 20; ++i) {
    const double value = (first + i) * step;
    if (!(value <= histogram.high)) break;
    const int x = static_cast<int>(position(histogram, value));
    svg.line(x, kAxis, x, kAxis + 4);
    svg.text(x, kAxis + 18, "m", number(value, "%.5g"));
  }
}

void draw_counts(Svg& svg, const Histogram& histogram) {
  const std::uint64_t most = *std::ranges::max_element(histogram.counts);
  if (most == 0) return;
  std::array<double, Histogram::kBins> heights{};
  std::ranges::transform(histogram.counts, heights.begin(), [&](std::uint64_t count) {
    return kPanel * (static_cast<double>(count) / static_cast<double>(most));
  });
  svg.text(kLeft, kLinearTop - 6, "s", "values in each of 128 bins, at most " + grouped(most));
  svg.line(kLeft, kLinearTop, kRight, kLinearTop);
  svg.bars(heights, kLinearTop + kPanel);
  svg.line(kLeft, kLinearTop + kPanel, kRight, kLinearTop + kPanel);

  // Starts at half a value, so that a bar for a single value is visible.
  const double decades = std::max(1.0, std::log10(2 * static_cast<double>(most)));
  const auto height = [&](double count) { return kPanel * std::log10(2 * count) / decades; };
  svg.text(kLeft, kLogTop - 6, "s", "the same, on a logarithmic scale");
  const int every = decades > 6 ? 3 : 1;
  for (int power = 0; power < decades; power += every) {
    const int y = kAxis - static_cast<int>(height(std::pow(10, power)));
    svg.line(kLeft, y, kRight, y);
    const char* const unit = power < 3 ? "" : power < 6 ? "k" : power < 9 ? "M" : "G";
    svg.text(kLeft - 5, y + 4, "e", number(std::pow(10, power % 3), "%g") + unit);
  }
  std::ranges::transform(histogram.counts, heights.begin(), [&](std::uint64_t count) {
    return count == 0 ? 0 : height(static_cast<double>(count));
  });
  svg.bars(heights, kAxis);
}

// Draws below the axis: a line from 1 % to 99 %, a box from 25 % to 75 %, and the median.
void draw_quantiles(Svg& svg, const Distribution& distribution) {
  const auto at = [&](std::size_t i) {
    return position(distribution.histogram, distribution.quantiles[i]);
  };
  constexpr int kTop = kAxis + 26;
  svg.box("q", at(1), kTop + 5, std::max(at(5), at(1) + 1), kTop + 7);
  svg.box("q", at(2), kTop + 2, std::max(at(4), at(2) + 1), kTop + 10);
  svg.box("v", at(3) - 1, kTop, at(3) + 1, kTop + 12);
}

void draw_numbers(Svg& svg, const Distribution& distribution) {
  const ValueStats& stats = distribution.stats;
  struct Field {
    std::string name;
    std::string value;
    bool is_bad = false;
  };
  const auto& q = distribution.quantiles;
  const std::array<std::vector<Field>, 3> rows{{
      {{"min", number(*stats.min)},
       {"1 %", number(q[1])},
       {"25 %", number(q[2])},
       {"median", number(q[3])},
       {"75 %", number(q[4])},
       {"99 %", number(q[5])},
       {"max", number(*stats.max)}},
      {{"mean", number(*stats.mean)},
       {"std", number(*stats.std)},
       {"max |x|/std",
        *stats.std > 0 ? number(std::max(-*stats.min, *stats.max) / *stats.std, "%.3g") : "-"}},
      {{"zeros", grouped(stats.zeros), stats.zeros == stats.count},
       {"NaN", grouped(stats.nan), stats.nan > 0},
       {"infinity", grouped(stats.inf), stats.inf > 0}},
  }};
  const auto draw = [&svg](const std::vector<Field>& fields, int x, int step, int y) {
    for (const Field& field : fields) {
      svg.text(x, y, "s", field.name);
      svg.text(x, y + 16, field.is_bad ? "w" : "v", field.value);
      x += step;
    }
  };
  constexpr int kStep = (kRight - kLeft) / 7;
  draw(rows[0], kLeft, kStep, kTextTop);
  draw(rows[1], kLeft, kStep, kTextTop + 42);
  draw(rows[2], kLeft + 3 * kStep, kStep, kTextTop + 42);
}

// "3 values below, the least -4.2".
std::string outliers(std::uint64_t count, const char* where, const char* end, double value) {
  return grouped(count) + (count == 1 ? " value " : " values ") + where + ", the " + end + " " +
         number(value);
}

std::string json_of(const Distribution& distribution) {
  const Histogram& histogram = distribution.histogram;
  std::string json = "{\"low\":" + number(histogram.low, "%.17g") +
                     ",\"high\":" + number(histogram.high, "%.17g") +
                     ",\"below\":" + std::to_string(histogram.below) +
                     ",\"above\":" + std::to_string(histogram.above) + ",\"counts\":[";
  for (const std::uint64_t count : histogram.counts) json += std::to_string(count) + ",";
  json.back() = ']';
  json += ",\"quantiles\":{";
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
    json += "\"" + number(kQuantiles[i], "%g") +
            "\":" + number(distribution.quantiles[i], "%.17g") + ",";
  }
  json.back() = '}';
  return json + "}";
}

}  // namespace

std::string histogram_svg(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                          const Distribution& distribution) {
  const ValueStats& stats = distribution.stats;
  const Histogram& histogram = distribution.histogram;
  Svg svg;
  const std::string size =
      "width=\"" + std::to_string(kWidth) + "\" height=\"" + std::to_string(kHeight) + "\"";
  svg.raw("<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " +
          std::to_string(kWidth) + " " + std::to_string(kHeight) + "\" role=\"img\">\n<title>" +
          markup::escaped(markup::shortened(name, 1000)) + "</title>\n");
  if (stats.min) svg.raw("<metadata>" + json_of(distribution) + "</metadata>\n");
  svg.raw(kStyle);
  svg.raw("<rect class=\"b\" " + size + "/>\n");

  svg.text(kLeft, 26, "n", printable(markup::shortened(name, 72)));
  std::string facts(dtype_name(dtype));
  constexpr std::size_t kMaxDimensions = 8;
  std::string dimensions;
  for (const std::uint64_t dim : shape.first(std::min(shape.size(), kMaxDimensions))) {
    dimensions += (dimensions.empty() ? "" : " × ") + std::to_string(dim);
  }
  if (shape.size() > kMaxDimensions) dimensions += " × …";
  if (!dimensions.empty()) facts += " · " + dimensions;
  facts += " · " + grouped(stats.count) + (stats.count == 1 ? " value" : " values");
  svg.text(kLeft, 46, "s", facts);

  if (!stats.min) {
    svg.text(
        kLeft, kLinearTop + 40, "w",
        "No finite value: " + grouped(stats.nan) + " NaN, " + grouped(stats.inf) + " infinite");
  } else {
    draw_counts(svg, histogram);
    draw_axis(svg, histogram);
    draw_quantiles(svg, distribution);
    draw_numbers(svg, distribution);
    if (histogram.below > 0) {
      svg.text(kLeft, kLogTop - 24, "w",
               "← " + outliers(histogram.below, "below", "least", *stats.min));
    }
    if (histogram.above > 0) {
      svg.text(kRight, kLogTop - 24, "w e",
               outliers(histogram.above, "above", "greatest", *stats.max) + " →");
    }
  }
  svg.raw("</svg>\n");
  return svg.take();
}

}  // namespace stfs
