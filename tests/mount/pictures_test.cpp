// Pictures and histograms in a mount, decoded by Pillow and compared with results of NumPy.
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"
#include "tests/support/mounted.h"
#include "tests/support/process.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

class Pictures : public MountTest {};

template <class T>
Tensor tensor_of(const std::string& name, const std::string& dtype, const Shape& shape,
                 const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {name, dtype, shape, bytes};
}

// Returns values like weights: most are near zero, a few are large.
std::vector<float> weights(std::size_t count) {
  RandomBytes random(count);
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(random.next() % 20'001) / 1e4 - 1;
    value = static_cast<float>(sum * 0.02);
  }
  return values;
}

// Returns tensors of each type with random bits, tensors that a picture wraps, and tensors with
// more elements than a picture has pixels.
std::vector<Tensor> kinds() {
  std::vector<Tensor> tensors;
  std::uint64_t seed = 0;
  for (const char* dtype :
       {"BOOL",    "F4",          "F6_E2M3",     "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16", "F16", "BF16",    "I32",
        "U32",     "F32",         "C64",         "F64",     "I64", "U64"}) {
    tensors.push_back(random_tensor("type/"s + dtype, dtype, {6, 24}, ++seed));
  }
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> large = weights(2100 * 2500);
  large[77] = 5;
  large[2'000'000] = nan;
  large[3'000'000] = -inf;
  tensors.push_back(tensor_of("large", "F32", {2100, 2500}, large));
  tensors.push_back(tensor_of("tall", "F32", {3, 1500, 5}, weights(3 * 1500 * 5)));
  tensors.push_back(tensor_of("vector", "F32", {5000}, weights(5000)));
  tensors.push_back(tensor_of("scalar", "F32", {}, std::vector<float>{-2.5F}));
  tensors.push_back(tensor_of("zero", "F32", {9, 9}, std::vector<float>(81)));
  tensors.push_back(tensor_of("constant", "F32", {9, 9}, std::vector<float>(81, 0.1F)));
  tensors.push_back(tensor_of("none finite", "F32", {3}, std::vector<float>{nan, inf, -inf}));
  tensors.push_back(tensor_of("offset", "F32", {64}, [] {
    std::vector<float> values = weights(64);
    for (float& value : values) value += 1000;
    return values;
  }()));
  tensors.push_back(random_tensor("empty", "BF16", {0, 3}));
  // Names that XML cannot contain, but that the SVG has to show.
  for (const char* const name : {"\xEF\xBF\xBE", "a\xEF\xBF\xBFz", "]]>&#0;<b", "\x01\x1b[m\x7f",
                                 "\xC2\x85\xE2\x80\xA8\xEF\xBB\xBF", "\xF0\x9F\xBF\xBF\"'"}) {
    tensors.push_back(tensor_of(name, "F32", {3}, std::vector<float>{1, 2, 3}));
  }
  return tensors;
}

#define REQUIRE_PILLOW()                                                        \
  if (run({"/usr/bin/python3", "-c", "import numpy, PIL.Image"}).status != 0) { \
    GTEST_SKIP() << "no NumPy or no Pillow in /usr/bin/python3";                \
  }

// Runs pictures.py, which compares files of a mount with NumPy: png/PATH.png,
// png-slice/PATH/EXPR.png and hist/PATH.svg.
void compare(const char* what, const Mounted& mount) {
  const Outcome result = run({"/usr/bin/python3", STFS_SOURCE_DIR "/tests/mount/pictures.py", what,
                              mount.path().string()});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("ok ")) << result.out;
  EXPECT_NE(result.out, "ok 0\n");
}

// The tests share a mount of kinds().
class ComparedPictures : public Pictures {
 protected:
  static const Mounted& shared() {
    if (!mount_) {
      static const TempDir dir;
      const std::string path = (dir / "kinds.safetensors").string();
      write_safetensors(path, kinds());
      mount_ = std::make_unique<const Mounted>(std::vector<std::string>{path});
    }
    return *mount_;
  }
  static void TearDownTestSuite() { mount_.reset(); }

 private:
  static inline std::unique_ptr<const Mounted> mount_;
};

TEST_F(ComparedPictures, PngsEqualPicturesOfNumpy) {
  REQUIRE_PILLOW();
  compare("png", shared());
  compare("png", Mounted({test_data("gguf/llama-2-tiny-random.gguf")}));
}

TEST_F(ComparedPictures, PngsOfSlicesUseScaleOfWholeTensor) {
  REQUIRE_PILLOW();
  compare("slices", shared());
}

TEST_F(ComparedPictures, HistogramsEqualCountsOfNumpy) {
  REQUIRE_PILLOW();
  compare("histograms", shared());
}

TEST_F(ComparedPictures, MeanAndDeviationStayWithinErrorBound) {
  REQUIRE_PILLOW();
  const TempDir dir;
  std::vector<Tensor> tensors = kinds();
  std::erase_if(tensors, [](const Tensor& tensor) { return tensor.bytes.size() > 100'000; });
  write_safetensors(dir / "some.safetensors", tensors);
  compare("exact", Mounted({(dir / "some.safetensors").string()}));
}

TEST_F(ComparedPictures, ColoursDifferForColourBlindReaders) {
  REQUIRE_PILLOW();
  compare("palette", shared());
}

TEST_F(Pictures, FileCommandRecognisesPngAndSvg) {
  const Mounted mount({test_data("sharded")});
  const Outcome png = sh(R"(file "$1"/.stfs/png/*.png | grep -vc 'PNG image data' || true)",
                         {mount.path().string()});
  if (png.err.find("not found") != std::string::npos) GTEST_SKIP() << "no file(1)";
  EXPECT_EQ(png.out, "0\n") << png.err;
  const Outcome svg = sh(R"(for f in "$1"/.stfs/hist/*.svg; do file -i - < "$f"; done |
    grep -vc 'image/svg' || true)",
                         {mount.path().string()});
  EXPECT_EQ(svg.out, "0\n") << svg.err;
}

}  // namespace
}  // namespace stfs::test
