// A tensor that may be a quantised weight, its companions, and what the rows of the table of
// schemes (schemes.h) find of it. The functions here are what those rows share.
//
// Thread safety: one thread at a time. Lifetime: the finder and the tensor's list outlive it.
#pragma once

#include "core/layer/quantised/finder.h"
#include "core/layer/quantised/quantized_layout.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

// A quantised weight and its result.
struct QuantizedWeight {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::string name;                  // of the result
  std::vector<std::uint64_t> shape;  // of the result
  QuantizedLayout layout;
  std::array<std::uint32_t, kRoles> inputs = no_inputs();  // numbers of tensors
  std::vector<std::uint32_t> others;                       // tensors that vanish with it

  std::uint32_t& input(Role role) { return inputs[static_cast<std::size_t>(role)]; }

  static constexpr std::array<std::uint32_t, kRoles> no_inputs() {
    std::array<std::uint32_t, kRoles> none{};
    none.fill(kNone);
    return none;
  }
};

// A tensor beside a weight, and its number in the list.
struct Companion : Tensor {
  std::uint32_t number;
};

// A tensor's shape as matrices of rows and columns: the last two dimensions, and all before.
struct Matrices {
  std::uint64_t matrices = 1, rows = 1, columns = 1;

  bool operator==(const Matrices&) const = default;
};
Matrices matrices_of(std::span<const std::uint64_t> shape);

// The scales of FP4, and of FP8 with E8M0: so many columns share a number of a type.
struct Microscales {
  std::uint64_t columns;
  DType type;
};
inline constexpr Microscales kNv{16, DType::kF8E4M3};
inline constexpr Microscales kMx{32, DType::kF8E8M0};

Packing typed(DType type);
Packing fields(Codes codes, std::uint64_t bits, std::int32_t offset = 0);
// Packs a matrix densely, rows padded to `unit` bytes. nullopt: overflow.
std::optional<Packing> packed(Packing packing, std::uint64_t rows, std::uint64_t columns,
                              std::uint64_t unit = 1);

bool is_fp8(DType dtype);
// The type of the values of a scale: its dtype, or F8_E8M0 for U8. nullopt: no type of a scale.
std::optional<DType> scale_type(DType dtype);
// scale_type() without F8_E8M0.
std::optional<DType> float_scale_type(DType dtype);

std::string_view without_ending(std::string_view name, std::string_view ending);
bool has_rank(const Tensor& tensor, std::size_t rank);
std::vector<std::uint64_t> with_last(std::span<const std::uint64_t> shape, std::uint64_t last);

class Candidate {
 public:
  Candidate(const Finder& of, std::uint32_t number_in_list, const Tensor& stored)
      : finder(of), number(number_in_list), tensor(stored) {}

  const Finder& finder;
  const std::uint32_t number;
  const Tensor& tensor;
  QuantizedWeight found;

  const QuantizationConfig& config() const { return finder.config(number); }
  // tensor.name without ".weight", if it has that.
  std::string_view module() const;

  // The tensor `base` + `ending`, which is one of the known endings (finder.cpp).
  std::optional<Companion> find(std::string_view base, std::string_view ending) const;
  // As find(), but refuses a weight without the tensor.
  Companion need(std::string_view base, std::string_view ending) const;

  // --- refusals

  [[noreturn]] void refuse(const std::string& rule) const { Finder::refuse(tensor, rule); }
  // "U8 [2,4], but "scale" is F32 [3]: RULE": a companion that does not fit.
  [[noreturn]] void refuse(const Tensor& companion, const std::string& rule = "") const;
  [[noreturn]] void refuse_half(std::string_view base, std::string_view ending) const;
  // `subject` is told neither by the tensors nor by the config: "the number of bits".
  [[noreturn]] void refuse_without_config(const std::string& subject) const;
  // The config names another type of codes: `told` is what it says.
  [[noreturn]] void refuse_other_type(const std::string& told) const;
  // Refuses a weight of integers without zero points, where no weight has some and the
  // configuration says that it does. A library left out those that are all 0.
  void refuse_without_zero_points(std::string_view base) const;
  // Refuses the weight of a Conv1D: the model has [in, out], and libraries store what they quantise
  // as that of a Linear, [out, in].
  void refuse_conv1d(std::string_view module) const;
  // ModelOpt's files for ComfyUI have its config in the header, and NVFP4 whose scales may be in
  // rows or in tiles: refuses the weight of such a file.
  void refuse_of_modelopt_for_comfy() const;

  // --- steps that fill `found`

  // The product; refuses one that overflows.
  std::uint64_t times(std::uint64_t a, std::uint64_t b) const;
  // packed(), or refuses a size that overflows.
  Packing pack(const Packing& packing, std::uint64_t rows, std::uint64_t columns,
               std::uint64_t unit = 1) const;
  void take(Role role, const Companion& companion) { found.input(role) = companion.number; }
  void set_result(std::string_view name, std::span<const std::uint64_t> shape);
  // The stored matrices, and the packing of their codes.
  void set_codes(const Packing& packing, const Matrices& stored, std::uint64_t unit = 1);
  // A block of 0 rows or columns, of a matrix that has none, becomes 1.
  void set_grid(std::uint64_t rows, std::uint64_t columns, std::uint64_t block_rows,
                std::uint64_t block_columns);
  // Takes a companion that has the grid: scales, zero points or biases.
  void take_on_grid(Role role, const Companion& companion, const Packing& packing);
  // Takes scales of groups of columns, of which all rows have whole ones.
  void take_groups(const Companion& scale, const Microscales& scales, bool has_tiles = false);
  // Refuses scales that have not the shape of take_groups().
  void refuse_other_groups(const Tensor& scale, const Microscales& scales,
                           const Matrices& stored) const;
  // Takes a scale of the scales, F32: one for all, or for each matrix.
  void take_factor(const Companion& factor, QuantizedLayout::Factor use);
  // Takes the companion `base` + `ending`, if there is one: a scale for each column of the weight,
  // by which the model multiplies its inputs.
  void take_column_scale(std::string_view base, std::string_view ending);
};

}  // namespace stfs
