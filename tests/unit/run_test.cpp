// Tests of runs, which compare the versions of a checkpoint, and of their page.
#include "core/report/run.h"

#include "core/report/run_page.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

Tensor floats(const std::string& name, const std::vector<float>& values) {
  Tensor tensor{name, "F32", {values.size()}, std::string(values.size() * sizeof(float), '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

class Runs : public ::testing::Test {
 protected:
  // Writes each version to its own directory, as a trainer does, and collects the run.
  stfs::Run collect(const std::vector<std::pair<std::string, std::vector<Tensor>>>& versions,
                    unsigned threads = 2) {
    std::vector<std::string> names;
    std::vector<std::unique_ptr<const Checkpoint>> checkpoints;
    std::vector<const Checkpoint*> read;
    for (const auto& [name, tensors] : versions) {
      std::filesystem::create_directories(dir_ / name);
      write_safetensors(dir_ / name / "model.safetensors", tensors, Metadata{});
      names.push_back((dir_ / name).string());
      checkpoints.push_back(
          std::make_unique<const Checkpoint>(std::vector<std::string>{names.back()}));
      read.push_back(checkpoints.back().get());
    }
    are_versions_ = are_versions(read);
    const std::atomic<bool> stop = false;
    stfs::Run run;
    EXPECT_EQ(collect_run(read, names, {.stop = stop, .threads = threads}, run), 0);
    return run;
  }
  TempDir dir_;
  bool are_versions_ = false;
};

TEST_F(Runs, ReportFirstBrokenVersionAndDistances) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Tensor> first{floats("a.weight", {3, 4}), floats("b.weight", {1, -2})};
  const stfs::Run run =
      collect({{"step-1", first},
               {"step-2", {floats("a.weight", {3, 3}), floats("b.weight", {1, -2})}},
               {"step-10", {floats("a.weight", {3, nan}), floats("b.weight", {1, -2})}},
               {"step-11", {floats("a.weight", {3, nan}), floats("b.weight", {0, 0})}}});
  EXPECT_TRUE(are_versions_);
  EXPECT_EQ(run.versions, (std::vector<std::string>{"step-1", "step-2", "step-10", "step-11"}));
  const RunTensor& a = run.tensors[0];
  EXPECT_EQ(a.cells[0].distance, 0);
  EXPECT_FLOAT_EQ(a.cells[1].distance, 0.2F);
  EXPECT_TRUE(std::isnan(a.cells[2].distance));
  EXPECT_EQ(a.cells[2].not_finite, 1U);
  EXPECT_EQ(a.cells[0].largest, 4);
  EXPECT_FLOAT_EQ(a.cells[1].rms, 3);
  EXPECT_TRUE(run.tensors[1].cells[3].is_zero);
  ASSERT_TRUE(run.first_break());
  EXPECT_EQ(run.first_break()->version, 2U);
  EXPECT_EQ(run.verdict(), "step-10 is the first that is broken: NaN or infinity in \"a.weight\"");
}

TEST_F(Runs, ReportMissingTensorAndLargestJump) {
  const stfs::Run run = collect({{"1", {floats("w", {1}), floats("old", {1})}},
                                 {"2", {floats("w", {8}), floats("old", {1}), floats("new", {1})}},
                                 {"3", {floats("w", {8}), floats("new", {2})}}});
  EXPECT_EQ(run.verdict(), "3 is the first that is broken: it lacks \"old\"");
  ASSERT_TRUE(run.largest_jump());
  EXPECT_EQ(run.largest_jump()->version, 1U);
  EXPECT_EQ(run.largest_jump()->ratio, 8);
  const RunTensor& added = run.tensors[0];
  EXPECT_EQ(added.cells[0].state, RunCell::State::kAbsent);
  EXPECT_EQ(added.cells[2].distance, 1)
      << "the distance is relative to the first version with the tensor";
  const stfs::Run sound = collect({{"1", {floats("w", {1})}}, {"2", {floats("w", {2})}}});
  EXPECT_EQ(sound.verdict(), "Nothing broke in 2 versions");
}

TEST_F(Runs, NeedCommonTensorName) {
  collect({{"a", {floats("x", {1})}}, {"b", {floats("y", {1})}}});
  EXPECT_FALSE(are_versions_);
}

TEST_F(Runs, SortNumberedNamesAndKeepOrderOfOthers) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(in_order_of_run(Names{"step-1/", "step-10/", "step-2/"}),
            (Names{"step-1/", "step-2/", "step-10/"}));
  EXPECT_EQ(in_order_of_run(Names{"last", "best", "first"}), (Names{"last", "best", "first"}));
}

TEST_F(Runs, ShowChartPerRoleAndRowPerTensorOnPage) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<Tensor> before, after;
  for (int layer = 0; layer < 3; ++layer) {
    const std::string place = "layers." + std::to_string(layer) + ".<b>up";
    before.push_back(floats(place, {1, 2}));
    after.push_back(floats(place, {1, layer == 1 ? nan : 3}));
  }
  before.push_back(floats("norm", {1, 2}));
  after.push_back(floats("norm", {1, 2}));
  const stfs::Run run = collect({{"step-1", before}, {"step-2", after}, {"step-3", after}});
  const std::string page = run_page(run);
  EXPECT_EQ(page, run_page(collect({{"step-1", before}, {"step-2", after}, {"step-3", after}}, 1)));
  const auto occurrences = [&](const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = page.find(part); at != std::string::npos; at = page.find(part, at + 1)) {
      ++found;
    }
    return found;
  };
  EXPECT_EQ(occurrences("<figure>"), 4U + 3 * 2U) << "for all tensors, and for two roles";
  EXPECT_EQ(occurrences("class=\"lost\""), 3U) << "one layer breaks";
  EXPECT_EQ(occurrences("\n<tr"), 4U);
  EXPECT_EQ(occurrences("<b>up"), 0U);
  EXPECT_EQ(occurrences("<script"), 0U);
  EXPECT_LT(page.find("step-2 is the first that is broken"), page.find("<svg"));
  EXPECT_LT(page.find("<tr class=\"broken\"><td>layers.1."), page.find("<tr><td>"));
}

}  // namespace
}  // namespace stfs::test
