// A tensor that may be a quantised weight, its companions, and the results of the table of schemes
// (schemes.h) for it. The functions here are shared by the rows of that table.
//
// Thread safety: one thread at a time. Lifetime: the finder and the tensor's list must outlive it.
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

// A quantised weight and the tensor that its values become.
struct QuantizedWeight {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::string name;                  // the name of the result
  std::vector<std::uint64_t> shape;  // the shape of the result
  QuantizedLayout layout;
  // The tensor numbers of the inputs, by role.
  std::array<std::uint32_t, kRoles> inputs = no_inputs();
  std::vector<std::uint32_t> others;  // other tensors that vanish with it

  std::uint32_t& input(Role role) { return inputs[static_cast<std::size_t>(role)]; }

  static constexpr std::array<std::uint32_t, kRoles> no_inputs() {
    std::array<std::uint32_t, kRoles> none{};
    none.fill(kNone);
    return none;
  }
};

// A tensor beside a weight, with its number in the list.
struct Companion : Tensor {
  std::uint32_t number;
};

// The shape of a tensor as matrices: the last two dimensions are rows and columns, and all
// dimensions before them count matrices.
struct Matrices {
  std::uint64_t matrices = 1, rows = 1, columns = 1;

  bool operator==(const Matrices&) const = default;
};
Matrices matrices_of(std::span<const std::uint64_t> shape);

// The scales of FP4, and of FP8 with E8M0 scales: `columns` columns share one number of type
// `type`.
struct Microscales {
  std::uint64_t columns;
  DType type;
};
inline constexpr Microscales kNv{16, DType::kF8E4M3};
inline constexpr Microscales kMx{32, DType::kF8E8M0};

// Return packings without a pitch: elements of a type, or fields of some bits.
Packing typed(DType type);
Packing fields(Codes codes, std::uint64_t bits, std::int32_t offset = 0);
// Returns the packing with the pitch and size of a dense matrix with rows padded to `unit` bytes.
// Returns nullopt on overflow.
std::optional<Packing> packed(Packing packing, std::uint64_t rows, std::uint64_t columns,
                              std::uint64_t unit = 1);

// Returns true for the floating types of 8 bits, but not for F8_E8M0, the type of scales.
bool is_fp8(DType dtype);
// Returns the type of a scale's values: F8_E8M0 for U8, else its dtype. Returns nullopt if it is
// not a type of a scale.
std::optional<DType> scale_type(DType dtype);
// Like scale_type(), but without F8_E8M0.
std::optional<DType> float_scale_type(DType dtype);

// Returns `name` without `ending`, with which it must end.
std::string_view without_ending(std::string_view name, std::string_view ending);
bool has_rank(const Tensor& tensor, std::size_t rank);
// Returns `shape`, which must not be empty, with another last dimension.
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
  // Returns tensor.name without the ending ".weight", if it has that ending.
  std::string_view module() const;

  // Returns the tensor named `base` + `ending`, or nullopt. `ending` must be a known ending
  // (finder.cpp).
  std::optional<Companion> find(std::string_view base, std::string_view ending) const;
  // Like find(), but refuses the weight if the tensor is missing.
  Companion need(std::string_view base, std::string_view ending) const;

  // --- Refusals: all throw Error kQuantized and name the tensor.

  [[noreturn]] void refuse(const std::string& rule) const { Finder::refuse(tensor, rule); }
  // Refuses a companion that does not fit: "U8 [2,4], but "scale" is F32 [3]: RULE".
  [[noreturn]] void refuse(const Tensor& companion, const std::string& rule = "") const;
  // Refuses a weight that lacks the tensor `base` + `ending`.
  [[noreturn]] void refuse_half(std::string_view base, std::string_view ending) const;
  // Refuses a weight because neither its tensors nor the config contain `subject`: "the number of
  // bits".
  [[noreturn]] void refuse_without_config(const std::string& subject) const;
  // Refuses a weight because the config names another type of codes: `told` is its text.
  [[noreturn]] void refuse_other_type(const std::string& told) const;
  // Refuses a weight of integers without zero points if the configuration says that the weight has
  // zero points, but the checkpoint has none at all. A single weight may lack them, because one
  // library omits zero points that are all 0.
  void refuse_without_zero_points(std::string_view base) const;
  // Refuses the weight of a Conv1D. The model expects [in, out], but libraries store the weights
  // that they quantise like the weights of a Linear, as [out, in].
  void refuse_conv1d(std::string_view module) const;
  // Refuses an NVFP4 weight of a file that ModelOpt wrote for ComfyUI, which has ModelOpt's config
  // in its header. Its scales may be in rows or in tiles, and nothing in the file shows which.
  void refuse_of_modelopt_for_comfy() const;

  // --- Steps that fill `found`

  // Returns the product. Refuses a product that overflows.
  std::uint64_t times(std::uint64_t a, std::uint64_t b) const;
  // Like packed(), but refuses a size that overflows.
  Packing pack(const Packing& packing, std::uint64_t rows, std::uint64_t columns,
               std::uint64_t unit = 1) const;
  // Makes the companion an input of the weight.
  void take(Role role, const Companion& companion) { found.input(role) = companion.number; }
  // Sets the name and the shape of the result.
  void set_result(std::string_view name, std::span<const std::uint64_t> shape);
  // Sets the stored matrices and the packing of their codes. Rows are padded to `unit` bytes.
  void set_codes(const Packing& packing, const Matrices& stored, std::uint64_t unit = 1);
  // Sets the size of the grid and of its blocks. A block of 0 rows or columns, as a matrix without
  // elements has, becomes 1.
  void set_grid(std::uint64_t rows, std::uint64_t columns, std::uint64_t block_rows,
                std::uint64_t block_columns);
  // Takes a companion with one element per grid element: scales, zero points or biases.
  void take_on_grid(Role role, const Companion& companion, const Packing& packing);
  // Takes scales of groups of columns. Each row must consist of whole groups.
  void take_groups(const Companion& scale, const Microscales& scales, bool has_tiles = false);
  // Refuses scales that do not have the shape that take_groups() expects.
  void refuse_other_groups(const Tensor& scale, const Microscales& scales,
                           const Matrices& stored) const;
  // Takes an F32 scale of the scales: one for the whole weight, or one per matrix.
  void take_factor(const Companion& factor, QuantizedLayout::Factor use);
  // Takes the companion `base` + `ending` if there is one: a scale per column of the weight, by
  // which the model multiplies its inputs.
  void take_column_scale(std::string_view base, std::string_view ending);
};

}  // namespace stfs
