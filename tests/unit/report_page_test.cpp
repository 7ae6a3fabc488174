#include "core/base/text.h"
#include "core/report/page.h"
#include "tests/report/reports.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++found;
  }
  return found;
}

// Returns the text between the first `begin` and the next `end`.
std::string between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t first = text.find(begin);
  if (first == std::string_view::npos) return "";
  const std::size_t at = first + begin.size();
  return std::string(text.substr(at, text.find(end, at) - at));
}

std::string data_of(const std::string& page) {
  return between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
}

TEST(ReportPage, EqualReportsGiveEqualPages) {
  EXPECT_EQ(report_page(compared_report()), report_page(compared_report()));
}

TEST(ReportPage, HasPartsInOrder) {
  const std::string page = report_page(compared_report());
  std::size_t last = 0;
  for (const char* const part :
       {"<h1>", "id=\"difference\"", "id=\"what\"", "id=\"health\"", "id=\"map\"", "id=\"layers\"",
        "id=\"tensors\"", "id=\"tensor\"", "id=\"data\""}) {
    const std::size_t at = page.find(part);
    ASSERT_NE(at, std::string::npos) << part;
    EXPECT_GT(at, last) << part;
    last = at;
  }
  EXPECT_EQ(occurrences(report_page(model_report()), "id=\"difference\""), 0U);
}

TEST(ReportPage, PolicyAllowsOnlyItsOwnScriptAndStyle) {
  const std::string page = report_page(model_report());
  const auto source_of = [](const std::string& text) {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
    std::array<unsigned char, 65> base64{};
    EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(size));
    return "'sha256-" + std::string(reinterpret_cast<const char*>(base64.data())) + "'";
  };
  EXPECT_EQ(between(page, "Content-Security-Policy\" content=\"", "\""),
            "default-src 'none'; script-src " +
                source_of(between(page, "\n<script>", "</script>")) + "; style-src " +
                source_of(between(page, "<style>", "</style>")) +
                "; img-src data:; base-uri 'none'; form-action 'none'");
  EXPECT_LT(page.find("Content-Security-Policy"), page.find("<style>"));
}

TEST(ReportPage, EscapesHostileTexts) {
  const std::string page = report_page(hostile_report());
  EXPECT_TRUE(is_utf8(page));
  EXPECT_EQ(occurrences(page, "<script"), 2U);
  EXPECT_EQ(occurrences(page, "</script"), 2U);
  EXPECT_EQ(occurrences(page, "</noscript"), 1U);
  EXPECT_EQ(occurrences(page, "</title"), 1U);
  for (const char* const part : {"<!--", "<img", "<i>", "<u>", "<s>", "<b>file", "<h1>missing"}) {
    EXPECT_EQ(occurrences(page, part), 0U) << part;
  }
  // The table has exactly one line per row.
  EXPECT_EQ(occurrences(between(page, "<noscript", "</noscript>"), "\n<tr"),
            hostile_report().tensors.size());
  for (const char c : page) {
    const auto byte = static_cast<unsigned char>(c);
    ASSERT_TRUE((byte >= 0x20 && byte != 0x7F) || byte == '\n') << static_cast<int>(byte);
  }
  for (const char* const mark : {"\u202e", "\u2066", "\u200f"})
    EXPECT_EQ(occurrences(page, mark), 0U);
  const std::string data = data_of(page);
  EXPECT_EQ(data.find('<'), std::string::npos);
  EXPECT_TRUE(nlohmann::json::accept(data));
  EXPECT_LT(page.size(), 200000U) << "long texts were not cut";
}

TEST(ReportPage, HasRowForEachTensor) {
  for (const Report& report : {model_report(), compared_report(), empty_report()}) {
    const std::string rows = between(report_page(report), "<noscript", "</noscript>");
    EXPECT_EQ(occurrences(rows, "\n<tr"), report.tensors.size() + report.removed.size());
    for (const ReportTensor& tensor : report.tensors) {
      EXPECT_EQ(occurrences(rows, "<td>" + tensor.name + "<td>"), 1U) << tensor.name;
    }
  }
}

TEST(ReportPage, FindingsLinkToTheirTensors) {
  const Report report = model_report();
  const std::string page = report_page(report);
  const std::string health = between(page, "<section id=\"health\"", "</section>");
  for (const Finding& finding : report.findings) {
    for (const std::uint32_t tensor : finding.tensors) {
      const std::string id = "t" + std::to_string(tensor);
      EXPECT_EQ(occurrences(health, "<a href=\"#" + id + "\">"), 1U);
      EXPECT_EQ(occurrences(page, "<tr id=\"" + id + "\"><td>" + report.tensors[tensor].name), 1U);
    }
  }
  EXPECT_EQ(occurrences(health, "Nothing odd found"), 0U);
  EXPECT_EQ(occurrences(report_page(empty_report()), "No tensors: there is nothing to check"), 1U);
}

TEST(ReportPage, WorstSeverityColoursVerdictSentence) {
  using Severity = Finding::Severity;
  const auto health_of = [](const std::vector<Severity>& severities) {
    Report report = empty_report();
    report.tensors.resize(1);
    for (const Severity severity : severities) {
      report.findings.push_back({Finding::Kind::kEqual, "a finding", {0}, severity});
    }
    return between(report_page(report), "<section id=\"health\"", "</section>");
  };
  const auto verdict = [](const std::string& style, const std::string& text) {
    return "<p class=\"verdict " + style + "\">" + text + "</p>";
  };
  for (const auto& [severities, expected] :
       std::vector<std::pair<std::vector<Severity>, std::string>>{
           {{}, verdict("good", "Nothing odd found")},
           {{Severity::kUsual}, verdict("good", "Nothing odd found")},
           {{Severity::kOdd}, verdict("odd", "1 thing is odd")},
           {{Severity::kBroken, Severity::kOdd}, verdict("bad", "1 thing is broken, and 1 is odd")},
           {{Severity::kBroken, Severity::kBroken}, verdict("bad", "2 things are broken")}}) {
    EXPECT_NE(health_of(severities).find(expected), std::string::npos) << expected;
  }
  EXPECT_NE(health_of({Severity::kUsual}).find("<ul class=\"usual\"><li>Usual: a finding"),
            std::string::npos);
}

TEST(ReportPage, SevereFindingsLinkAllTheirTensors) {
  using Severity = Finding::Severity;
  for (const Severity severity : {Severity::kBroken, Severity::kUsual}) {
    Report report = empty_report();
    report.tensors.resize(3);
    for (const char* const name : {"a", "b", "c"})
      report.tensors[static_cast<std::size_t>(name[0] - 'a')].name = name;
    report.findings.push_back(
        {Finding::Kind::kNan, "NaN in \"a\" and 2 more", {0, 1, 2}, severity});
    const std::string health = between(report_page(report), "<section id=\"health\"", "</section>");
    EXPECT_EQ(occurrences(health, "<a href"), severity == Severity::kUsual ? 1U : 3U) << health;
    EXPECT_EQ(occurrences(health, "and 2 more"), 1U);
  }
}

TEST(ReportPage, ShowsCountsAndLargestDifferencesFirst) {
  const std::string page = report_page(compared_report());
  const std::string part = between(page, "<section id=\"difference\"", "</section>");
  EXPECT_NE(part.find("228 of 292 tensors differ"), std::string::npos) << part;
  EXPECT_NE(part.find("<b>1</b> removed"), std::string::npos);
  EXPECT_NE(part.find("<b>64</b> equal"), std::string::npos);
  EXPECT_NE(part.find("and 219 more, which are nearer"), std::string::npos);
  EXPECT_EQ(occurrences(part, "<rect "), 6U);

  Report report = empty_report();
  report.against = "another";
  report.tensors.resize(1);
  report.tensors[0].stats = ValueStats{2, 0.0, 0.0, 0.0, 0.0, 1, 1, 0};
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  report.tensors[0].difference = Difference{Difference::Kind::kValues, "", {}, 0.5, kInfinity};
  EXPECT_NE(report_page(report).find("now NaN"), std::string::npos);
  report.tensors[0].difference = Difference{Difference::Kind::kEqual, "", 0, 1, 0};
  EXPECT_NE(report_page(report).find("Nothing: its tensor is equal"), std::string::npos);
}

TEST(ReportPage, HasPicturesInData) {
  const Report report = model_report();
  const auto data = nlohmann::json::parse(data_of(report_page(report)));
  ASSERT_EQ(data["pictures"].size(), report.tensors.size());
  EXPECT_EQ(data["pictures"][1][0], 1);
  const auto& histogram = data["pictures"][1][1]["h"];
  const auto& thumbnail = data["pictures"][1][1]["p"];
  EXPECT_EQ(histogram[6].get<std::string>().size(), 2 * Histogram::kBins);
  EXPECT_EQ(thumbnail[0], 48);
  EXPECT_EQ(thumbnail[1].get<std::string>().size(), 48U * 48U);
}

TEST(ReportPage, KeepsSpecialColoursInThumbnails) {
  Report report = empty_report();
  report.tensors.resize(1);
  // The lowest and highest value, zero and its neighbours, infinity, NaN, and no value.
  report.tensors[0].thumbnail = Thumbnail{8, 1, {0, 125, 126, 127, 252, 253, 254, 255}};
  const auto data = nlohmann::json::parse(data_of(report_page(report)));
  EXPECT_EQ(data["pictures"][0][1]["p"][1], "Adef89-_");
}

TEST(ReportPage, HalvesThumbnailsOfManyTensorsKeepingLargestMagnitude) {
  Report report = large_report(Report::kMaxPictured + 1);
  report.tensors[0].thumbnail = Thumbnail{3, 2, {126, 127, 255, 0, 254, 255}};
  const auto data = nlohmann::json::parse(data_of(report_page(report)));
  EXPECT_EQ(data["pictures"][0][1]["p"][0], 2);
  EXPECT_EQ(data["pictures"][0][1]["p"][1], "-_");
  report.tensors[0].thumbnail = Thumbnail{2, 2, {126, 0, 252, 100}};
  EXPECT_EQ(nlohmann::json::parse(data_of(report_page(report)))["pictures"][0][1]["p"][1], "8");
}

TEST(ReportPage, StaysSmall) {
  EXPECT_LT(report_page(model_report()).size(), 1'000'000U);
  EXPECT_LT(report_page(model_report(77)).size(), 2'000'000U) << "nearly 700 tensors";
  Report large = large_report(100'000);
  const std::vector<ReportTensor> pictured = model_report(230).tensors;
  ASSERT_GT(pictured.size(), Report::kMaxPictured);
  large.against = "another";
  for (std::size_t i = 0; i < large.tensors.size(); ++i) {
    large.tensors[i].difference =
        Difference{Difference::Kind::kValues, "", 0.01234567, 0.7654321, 0.001234567};
    large.removed.push_back({large.tensors[i].name, "BF16", {2048, 1408}, 5'767'168});
    if (i >= Report::kMaxPictured) continue;
    large.tensors[i].histogram = pictured[i].histogram;
    large.tensors[i].quantiles = pictured[i].quantiles;
    large.tensors[i].thumbnail = pictured[i].thumbnail;
  }
  const std::string page = report_page(large);
  EXPECT_LT(page.size(), 20'000'000U);
  EXPECT_NE(page.find("99,000 removed tensors have no row below"), std::string::npos);
  for (std::size_t i = 1; i < large.tensors.size(); ++i) large.tensors[i].equal_to = 0;
  EXPECT_LT(report_page(large).size(), 30'000'000U);
}

TEST(ReportPage, StaysSmallWithLongEscapedNames) {
  for (const char* const part : {"\"", "\u202e"}) {
    Report report = large_report(40'000);
    std::string name;
    while (name.size() < 392) name += part;
    for (std::size_t i = 0; i < report.tensors.size(); ++i) {
      report.tensors[i].name = name + std::to_string(i);
      report.tensors[i].path = report.tensors[i].name;
      if (i > 0) report.tensors[i].equal_to = static_cast<std::uint32_t>(i - 1);
    }
    const std::string page = report_page(report);
    EXPECT_LT(page.size(), 40'000'000U) << part;
    EXPECT_TRUE(is_utf8(page));
  }
}

// No browser can open a page with millions of rows.
TEST(ReportPage, LimitsAndReportsNumberOfRows) {
  Report report = empty_report();
  report.tensors.resize(Report::kMaxRows + 2);
  report.tensors[Report::kMaxRows].name = "without a row";
  report.tensors[0].equal_to = Report::kMaxRows;
  report.findings.push_back({Finding::Kind::kNan, "NaN", {0, Report::kMaxRows}});

  const std::string page = report_page(report);

  EXPECT_EQ(occurrences(page, "<tr id=\"t0\">"), 1U);
  EXPECT_EQ(occurrences(page, "#t" + std::to_string(Report::kMaxRows)), 0U);
  EXPECT_NE(page.find("the first 400,000 of the tensors"), std::string::npos);
  EXPECT_NE(page.find("400,002"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(data_of(page))["equal"].empty());
  EXPECT_LT(page.size(), 30'000'000U);
}

TEST(ReportPage, MountLinksHaveFullPath) {
  Report report = empty_report();
  report.tensors.resize(3);
  const std::array<std::string, 3> paths{"plain.weight", std::string(600, 'n'),
                                         std::string(5000, 'n')};
  for (std::size_t i = 0; i < paths.size(); ++i) {
    report.tensors[i].path = paths[i];
    report.tensors[i].name = paths[i];
  }
  const auto data = nlohmann::json::parse(data_of(report_page(report)));
  EXPECT_FALSE(data["paths"].contains("0")) << "the row already has the path";
  EXPECT_EQ(data["paths"]["1"], paths[1]);
  EXPECT_TRUE(data["paths"]["2"].is_null()) << "too long: no links";
}

TEST(ReportPage, NeverShowsDifferingTensorAsEqual) {
  Report report = empty_report();
  report.against = "another";
  report.tensors.resize(1);
  report.tensors[0].name = "w";
  for (const double share : {0.9996, 0.99999, 1 - 1e-12}) {
    report.tensors[0].difference = Difference{Difference::Kind::kValues, "", 1e-9, share, 1e-9};
    const std::string row = between(report_page(report), "<tr><td>w<td>", "\n");
    EXPECT_NE(row.find("<td>0.999"), std::string::npos) << row;
  }
  report.tensors[0].difference->equal = 1;
  EXPECT_NE(report_page(report).find("<td>1<td>1e-09"), std::string::npos);
}

TEST(ReportPage, KeepsLargestNumbersFinite) {
  Report report = empty_report();
  report.tensors.resize(1);
  constexpr double kLargest = std::numeric_limits<double>::max();
  report.tensors[0].stats =
      ValueStats{2, -kLargest, kLargest, 0.0, std::numeric_limits<double>::infinity(), 0, 0, 0};
  const std::string page = report_page(report);
  for (const char* const part :
       {"<td>-1.7976931348623157e+308<td>1.7976931348623157e+308<td>0<td>Infinity<td>0"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(ReportPage, ReportsElementCountOfCutShape) {
  Report report = empty_report();
  report.tensors.resize(2);
  report.tensors[0].shape = std::vector<std::uint64_t>(17, 2);
  report.tensors[0].elements = 1U << 17;
  report.tensors[1].shape = {3};
  const auto data = nlohmann::json::parse(data_of(report_page(report)));
  EXPECT_EQ(data["elements"], nlohmann::json({{"0", 131072}}));
}

}  // namespace
}  // namespace stfs::test
