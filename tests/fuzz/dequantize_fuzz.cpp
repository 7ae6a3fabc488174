// Opens any parts of quantised weights with any shapes, types, bytes and config.json. The result is
// a checkpoint with readable computed tensors, where any range equals the same range of the whole,
// or an stfs::Error of one printable line. A config.json from which the quantisation was removed
// contains no other quantisation.
#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/model_files.h"
#include "core/format/types.h"
#include "core/layer/quantised/quantised_layer.h"
#include "tests/fuzz/check.h"

#include <fuzzer/FuzzedDataProvider.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::fuzz {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 16;  // bytes of a tensor

// Each letter of `shape` is a dimension (see Maker::dim()).
struct PartOfWeight {
  const char* ending;
  DType dtype;
  const char* shape;
};
using Weight = std::vector<PartOfWeight>;

const std::vector<Weight>& weights() {
  static const std::vector<Weight> kAll = {
      {{".weight", DType::kF8E4M3, "rc"}, {".weight_scale_inv", DType::kF32, "bB"}},
      {{".weight", DType::kF8E4M3, "rc"}, {".weight_scale", DType::kBF16, "r1"}},
      {{".weight", DType::kI8, "rh"}, {".scale", DType::kF8E8M0, "rg"}},
      {{".weight", DType::kU8, "rh"},
       {".weight_scale", DType::kF8E4M3, "rg"},
       {".weight_scale_2", DType::kF32, ""}},
      {{"_blocks", DType::kU8, "2rgx"}, {"_scales", DType::kU8, "2rg"}},
      {{".weight_packed", DType::kI32, "rw"},
       {".weight_scale", DType::kBF16, "rg"},
       {".weight_shape", DType::kI64, "2"},
       {".weight_zero_point", DType::kI32, "dg"},
       {".weight_g_idx", DType::kI32, "c"}},
      {{".weight_packed", DType::kU8, "rh"},
       {".weight_scale", DType::kF8E4M3, "rg"},
       {".weight_global_scale", DType::kF32, "1"}},
      {{".weight", DType::kI8, "rc"},
       {".weight_scale", DType::kF32, "rg"},
       {".weight_zero_point", DType::kI8, "rg"}},
      {{".qweight", DType::kI32, "dc"},
       {".qzeros", DType::kI32, "Gw"},
       {".scales", DType::kF16, "Gc"},
       {".g_idx", DType::kI32, "r"}},
      {{".qweight", DType::kI32, "rw"},
       {".qzeros", DType::kI32, "Gw"},
       {".scales", DType::kF16, "Gc"}},
      {{".weight", DType::kU8, "h1"},
       {".weight.absmax", DType::kF32, "g"},
       {".weight.quant_map", DType::kF32, "x"},
       {".weight.quant_state.bitsandbytes__nf4", DType::kU8, "t"}},
      {{".weight", DType::kI8, "rc"}, {".SCB", DType::kF32, "r"}},
      {{".weight", DType::kU32, "rw"},
       {".scales", DType::kBF16, "rg"},
       {".biases", DType::kBF16, "rg"}}};
  return kAll;
}

constexpr auto kConfigs = std::to_array<const char*>(
    {R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[4,8]}})",
     R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":8}})",
     R"({"quantization_config":{"quant_method":"gptq","bits":3,"group_size":-1,"checkpoint_format":"gptq_v2"}})",
     R"({"quantization_config":{"quant_method":"awq","bits":4,"group_size":8,"version":"gemm"}})",
     R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{"group_0":{"weights":{"num_bits":4,"type":"int","group_size":8,"strategy":"group"}}}}})",
     R"({"text_config":{"quantization_config":{"quant_method":"mxfp4"}},"dtype":"x"})",
     R"({"quantization":{"bits":4,"group_size":8,"lm_head":false}})",
     R"({"quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}})", "{}"});
constexpr std::string_view kState =
    R"({"quant_type":"nf4","blocksize":8,"dtype":"bfloat16","shape":[4,16]})";

class Maker {
 public:
  explicit Maker(FuzzedDataProvider& data) : data_(data) {
    rows_ = data.ConsumeIntegralInRange<std::uint64_t>(0, 40);
    columns_ = data.ConsumeIntegralInRange<std::uint64_t>(0, 6) * 8;
    group_ = data.PickValueInArray<std::uint64_t>({8, 16, 32, 128, 1, 64});
    bits_ = data.PickValueInArray<std::uint64_t>({4, 2, 3, 8, 5, 6, 7});
    if (data.ConsumeBool()) columns_ += data.ConsumeIntegralInRange<std::uint64_t>(0, 7);
  }

  // Returns the bytes of a safetensors file.
  std::string file() {
    const auto count = data_.ConsumeIntegralInRange<std::size_t>(1, 3);
    for (std::size_t i = 0; i < count; ++i) {
      const auto which = data_.ConsumeIntegralInRange<std::size_t>(0, weights().size() - 1);
      for (const PartOfWeight& part : weights()[which]) add("m." + std::to_string(i), part);
    }
    std::string header = "{" + header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string bytes(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
    return bytes + header + bytes_;
  }

  std::string config() {
    std::string text = data_.PickValueInArray(kConfigs);
    const auto changes = data_.ConsumeIntegralInRange<std::size_t>(0, 3);
    for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
      const auto at = data_.ConsumeIntegralInRange<std::size_t>(0, text.size() - 1);
      text.replace(at, data_.ConsumeIntegralInRange<std::size_t>(0, 4),
                   data_.ConsumeRandomLengthString(12));
    }
    return text;
  }

 private:
  std::uint64_t dim(char letter) {
    const auto ceil = [](std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; };
    if (data_.ConsumeIntegralInRange(0, 31) == 31) {
      return data_.ConsumeIntegralInRange<std::uint64_t>(0, 64);
    }
    switch (letter) {
      case 'r': return rows_;
      case 'c': return columns_;
      case 'h': return columns_ / 2;
      case 'g': return ceil(columns_, group_);
      case 'G': return ceil(rows_, group_);
      case 'w': return ceil(columns_ * bits_, 32);
      case 'd': return ceil(rows_ * bits_, 32);
      case 'b': return ceil(rows_, 4);
      case 'B': return ceil(columns_, 8);
      case 'x': return 16;
      case 't': return kState.size();
      default: return static_cast<std::uint64_t>(letter - '0');
    }
  }

  void add(const std::string& module, const PartOfWeight& part) {
    if (data_.ConsumeIntegralInRange(0, 15) == 15) return;  // omits the part
    DType dtype = part.dtype;
    if (data_.ConsumeIntegralInRange(0, 15) == 15) {
      dtype = data_.PickValueInArray({DType::kF32, DType::kBF16, DType::kU8, DType::kI32,
                                      DType::kF8E8M0, DType::kI8, DType::kF16});
    }
    std::uint64_t elements = 1;
    std::string shape;
    for (const char* at = part.shape; *at != '\0'; ++at) {
      const std::uint64_t dim = this->dim(*at);
      elements *= dim;
      shape += (shape.empty() ? "" : ",") + std::to_string(dim);
    }
    const auto length = type_info(dtype).bytes_of(elements);
    if (!length || *length > kMaxBytes) return;
    std::string bytes = data_.ConsumeBytesAsString(std::min<std::size_t>(*length, 64));
    if (std::string_view(part.shape) == "t" && *length == kState.size()) bytes = kState;
    if (std::string_view(part.ending) == ".weight_shape" && *length == 16) {
      bytes.assign(16, '\0');
      bytes[0] = static_cast<char>(rows_);
      bytes[8] = static_cast<char>(columns_);
    }
    if (bytes.empty()) bytes = "\x01";
    const std::string pattern = bytes;
    while (bytes.size() < *length) bytes += pattern;
    bytes.resize(*length);
    header_ += std::string(header_.empty() ? "" : ",") + "\"" + module + part.ending +
               R"(":{"dtype":")" + std::string(dtype_name(dtype)) + R"(","shape":[)" + shape +
               R"(],"data_offsets":[)" + std::to_string(bytes_.size()) + "," +
               std::to_string(bytes_.size() + *length) + "]}";
    bytes_ += bytes;
  }

  FuzzedDataProvider& data_;
  std::uint64_t rows_, columns_, group_, bits_;
  std::string header_, bytes_;
};

void read_all(const Checkpoint& checkpoint, FuzzedDataProvider& data) {
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    check(type_info(tensor.dtype).bytes_of(tensor.elements()) == tensor.length);
    const Content content = tensor.content();
    check(content.size() == tensor.length);
    if (tensor.length > 4 * kMaxBytes) continue;
    std::vector<std::byte> whole(tensor.length);
    const int error = content.copy(0, whole);
    check(error == 0 || error == EIO);  // an index of groups may be out of range
    const auto begin = data.ConsumeIntegralInRange<std::uint64_t>(0, tensor.length);
    const auto end = data.ConsumeIntegralInRange<std::uint64_t>(begin, tensor.length);
    std::vector<std::byte> part(end - begin);
    if (error != 0 || content.copy(begin, part) != 0) continue;
    check(std::ranges::equal(part, std::span(whole).subspan(begin, end - begin)));
  }
}

void write(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  check(file.good());
}

void check_config(const std::string& config) {
  const ConfigChange change{.type = DType::kBF16, .is_dequantized = true};
  const auto shown = changed_config(config, change);
  if (!shown) return;
  check(changed_config(*shown, change) == shown);  // a second change has no effect
}

void run(FuzzedDataProvider& data) {
  static const std::string directory =
      "/dev/shm/stfs_dequantize_fuzz." + std::to_string(::getpid());
  static const bool is_made = std::filesystem::create_directories(directory);
  static const int removed_at_exit = std::atexit([] { std::filesystem::remove_all(directory); });
  check(is_made && removed_at_exit == 0);
  const DType type = data.PickValueInArray({DType::kBF16, DType::kF16, DType::kF32});
  Maker maker(data);
  const std::string config = maker.config();
  check_config(config);
  write(directory + "/config.json", config);
  write(directory + "/model.safetensors", maker.file());
  try {
    const Checkpoint checkpoint(
        std::span(&directory, 1),
        {.layers = {{std::string(kDequantizeOption), std::string(dequantized_word(type))}},
         .with_model_files = true});
    read_all(checkpoint, data);
  } catch (const Error& error) {
    check(exit_status(error.code()) != 0);
    for (const char c : std::string_view(error.what())) {
      const auto byte = static_cast<unsigned char>(c);
      check(byte >= 0x20 && byte != 0x7f);
    }
  }
}

}  // namespace
}  // namespace stfs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider provider(data, size);
  stfs::fuzz::run(provider);
  return 0;
}
