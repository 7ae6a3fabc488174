// A mounted file in which ggml has written a tensor of every type. NumPy must read ggml's values
// through the kernel, bit for bit.
#include "core/format/types.h"
#include "tests/gguf/blocks.h"
#include "tests/gguf/ggml.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

class GgmlMount : public MountTest {
 protected:
  void SetUp() override {
    MountTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) find_ggml(ggml_);
  }

  // Returns the types in GGUF files that have real numbers as values.
  static std::vector<DType> types() {
    std::vector<DType> types;
    for (int i = 0; i < kDTypeCount; ++i) {
      const TypeInfo& info = type_info(static_cast<DType>(i));
      if (info.gguf != TypeInfo::kNotInGguf && info.to_f32 != nullptr) {
        types.push_back(static_cast<DType>(i));
      }
    }
    return types;
  }

  std::vector<float> values_of(DType dtype, const std::string& raw) const {
    const TypeInfo& info = type_info(dtype);
    std::vector<float> values(info.elements_in(raw.size()));
    const auto count = static_cast<std::int64_t>(values.size());
    auto* const to_float = ggml_->get_type_traits(info.gguf)->to_float;
    if (dtype == DType::kF32) {
      std::memcpy(values.data(), raw.data(), raw.size());
    } else if (dtype == DType::kF64) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        double wide = 0;
        std::memcpy(&wide, &raw[8 * i], sizeof wide);
        values[i] = static_cast<float>(wide);
      }
    } else if (dtype == DType::kQ8_K) {
      ggml_->dequantize_row_q8_K(raw.data(), values.data(), count);
    } else if (dtype == DType::kQ8_1) {  // ggml has no decoder; as Q8_0, with a sum after the scale
      std::string q8_0;
      for (std::size_t i = 0; i < raw.size(); i += 36)
        q8_0 += raw.substr(i, 2) + raw.substr(i + 4, 32);
      ggml_->get_type_traits(type_info(DType::kQ8_0).gguf)
          ->to_float(q8_0.data(), values.data(), count);
    } else {
      to_float(raw.data(), values.data(), count);
    }
    return values;
  }

  const Ggml* ggml_ = nullptr;
};

TEST_F(GgmlMount, NumPyReadsGgmlValuesForEveryType) {
  ASSERT_EQ(run({"/usr/bin/python3", "-c", "import numpy"}).status, 0)
      << "python3-numpy is missing";
  const TempDir dir;
  void* const context = ggml_->init({64 << 20, nullptr, false});
  void* const file = ggml_->gguf_init_empty();
  nlohmann::json blocks;
  for (const DType dtype : types()) {
    const TypeInfo& info = type_info(dtype);
    const std::int64_t dims[] = {1280, 5, 11};  // 70,400 elements, several reads of the converter
    void* const tensor = ggml_->new_tensor(context, info.gguf, 3, dims);
    const std::string name = "of." + std::string(info.name);
    ggml_->set_name(tensor, name.c_str());
    const std::string raw = random_blocks(dtype, 70'400 / info.block_elements);
    ASSERT_EQ(ggml_->nbytes(tensor), raw.size());
    std::memcpy(ggml_->get_data(tensor), raw.data(), raw.size());
    ggml_->gguf_add_tensor(file, tensor);
    const std::vector<float> values = values_of(dtype, raw);
    write_file(dir / (name + ".raw"), raw);
    write_file(dir / (name + ".f32"),
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    blocks[name] = {info.block_elements, info.block_bytes};
  }
  ASSERT_TRUE(ggml_->gguf_write_to_file(file, (dir / "m.gguf").c_str(), false));
  ggml_->gguf_free(file);
  ggml_->free(context);
  write_file(dir / "blocks.json", blocks.dump());
  const Mounted mount({dir / "m.gguf"});

  const Outcome outcome = run({"/usr/bin/python3", STFS_SOURCE_DIR "/tests/gguf/mounted_values.py",
                               mount.path(), dir.path()});

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out.substr(0, 11), "31 tensors,") << outcome.out;
}

}  // namespace
}  // namespace stfs::test
