#include "core/layer/quantised/layout_text.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <system_error>
#include <type_traits>

namespace stfs {
namespace {

constexpr std::string_view kUnused = "-";  // a Packing

// A new member must be visited too.
static_assert(sizeof(void*) != 8 || (sizeof(Packing) == 24 && sizeof(QuantizedLayout) == 208));

template <class P, class Visit>
void visit_packing(P& packing, const Visit& visit) {
  visit(packing.codes);
  visit(packing.type);
  visit(packing.bits);
  visit(packing.added);
  visit(packing.offset);
  visit(packing.pitch);
  visit(packing.matrix);
}

template <class Layout, class Visit>
void visit_layout(Layout& layout, const Visit& visit) {
  visit(layout.matrices);
  visit(layout.rows);
  visit(layout.columns);
  visit(layout.is_transposed);
  visit(layout.weight);
  visit(layout.block_rows);
  visit(layout.block_columns);
  visit(layout.grid_rows);
  visit(layout.grid_columns);
  visit(layout.scale);
  visit(layout.zero);
  visit(layout.bias);
  visit(layout.index_is_of_rows);
  visit(layout.index_may_be_unused);
  visit(layout.factor);
  visit(layout.factor_type);
  visit(layout.factor_is_of_matrix);
  visit(layout.nested_block);
  visit(layout.nested_offset);
  visit(layout.is_divided_by_127);
  visit(layout.row_factor_type);
  visit(layout.factor_is_of_half);
  visit(layout.column_scale);
  visit(layout.is_divided_by_scale);
}

class Writer {
 public:
  explicit Writer(std::string& text) : text_(text) {}

  template <class T>
  void operator()(const T& value) const {
    if constexpr (std::is_same_v<T, Packing>) {
      if (value == Packing{}) return add(kUnused);
      visit_packing(value, *this);
    } else if constexpr (std::is_same_v<T, DType>) {
      add(dtype_name(value));
    } else if constexpr (std::is_same_v<T, float>) {
      add(std::to_string(std::bit_cast<std::uint32_t>(value)));
    } else if constexpr (std::is_enum_v<T>) {
      add(std::to_string(static_cast<unsigned>(value)));
    } else {
      add(std::to_string(value));
    }
  }

 private:
  void add(std::string_view word) const {
    if (!text_.empty()) text_ += ' ';
    text_ += word;
  }

  std::string& text_;
};

class Reader {
 public:
  explicit Reader(std::string_view& rest, bool& is_valid) : rest_(rest), is_valid_(is_valid) {}

  template <class T>
  void operator()(T& value) const {
    if constexpr (std::is_same_v<T, Packing>) {
      if (rest_.substr(0, rest_.find(' ')) == kUnused) {
        next();
      } else {
        visit_packing(value, *this);
        is_valid_ = is_valid_ && value != Packing{};
      }
    } else if constexpr (std::is_same_v<T, DType>) {
      const auto dtype = dtype_from_name(next());
      is_valid_ = is_valid_ && dtype;
      value = dtype.value_or(value);
    } else if constexpr (std::is_same_v<T, float>) {
      value = std::bit_cast<float>(number<std::uint32_t>());
    } else if constexpr (std::is_same_v<T, bool>) {
      value = number<std::uint8_t>(1) == 1;
    } else if constexpr (std::is_same_v<T, Codes>) {
      value = static_cast<Codes>(number<std::uint8_t>(static_cast<std::uint8_t>(kLastCodes)));
    } else if constexpr (std::is_same_v<T, QuantizedLayout::Factor>) {
      value = static_cast<QuantizedLayout::Factor>(number<std::uint8_t>(1));
    } else {
      value = number<T>();
    }
  }

 private:
  static constexpr Codes kLastCodes = Codes::kCarried;

  std::string_view next() const {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view word = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    return word;
  }

  template <class T>
  T number(T most = std::numeric_limits<T>::max()) const {
    const std::string_view word = next();
    T value{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool is_one = error == std::errc() && end == word.data() + word.size() && !word.empty();
    is_valid_ = is_valid_ && is_one && value <= most;
    return value;
  }

  std::string_view& rest_;
  bool& is_valid_;
};

bool is_decodable(const Packing& packing) {
  if (std::abs(std::int64_t{packing.offset}) > 256) return false;
  switch (packing.codes) {
    case Codes::kTyped:
      return type_info(packing.type).to_f32 != nullptr;
    case Codes::kFields:
    case Codes::kWords:
    case Codes::kDown:
    case Codes::kWordsDown:
      return packing.bits >= 1 && packing.bits <= 8;
    case Codes::kInterleaved:
    case Codes::kHighFirst:
    case Codes::kNibblesDown:
      return packing.bits == 4;
    case Codes::kCarried:
      return packing.bits == 2 || packing.bits == 4 || packing.bits == 8;
    case Codes::kTiles:
    case Codes::kByColumn:
      return false;  // of grids alone
    default:
      return true;
  }
}

bool is_single(const TypeInfo& type) { return type.to_f32 != nullptr && type.block_elements == 1; }

// A part of a grid begins at any multiple of 32 columns.
bool is_decodable_as_grid(const Packing& packing) {
  const TypeInfo& type = type_info(packing.type);
  if (packing.codes == Codes::kTiles) return is_single(type) && type.block_bytes == 1;
  if (packing.codes == Codes::kByColumn) return is_single(type);
  if (!is_decodable(packing)) return false;
  if (packing.codes == Codes::kTyped) return is_single(type);
  return packing.codes != Codes::kWords || 32U % (32U / packing.bits) == 0;
}

// Whether its values are indices below 2^bits.
bool is_of_indices(const Packing& packing, unsigned bits) {
  constexpr Codes kNumbers[] = {Codes::kTyped,       Codes::kSigned, Codes::kF4Down,
                                Codes::kF4HighFirst, Codes::kTiles,  Codes::kByColumn};
  return std::ranges::find(kNumbers, packing.codes) == std::end(kNumbers) && packing.bits <= bits &&
         packing.offset == 0;
}

}  // namespace

std::string layout_text(const QuantizedLayout& layout) {
  std::string text;
  visit_layout(layout, Writer(text));
  return text;
}

std::optional<QuantizedLayout> parse_layout(std::string_view text) {
  QuantizedLayout layout;
  bool is_valid = !text.ends_with(' ');
  visit_layout(layout, Reader(text, is_valid));
  return is_valid && text.empty() ? std::optional(layout) : std::nullopt;
}

bool is_computable(const QuantizedLayout& layout, const QuantizedInputs& inputs) {
  const auto has = [&](Role role) {
    return inputs[static_cast<std::size_t>(role)].source != nullptr;
  };
  if (!has(Role::kWeight) || !is_decodable(layout.weight)) return false;
  // A tile of a transposed result begins at a multiple of 64 rows.
  if (layout.is_transposed && 64 % alignment(layout.weight) != 0) return false;
  if (layout.grid_rows == 0) {
    for (std::size_t i = 0; i < kRoles; ++i) {
      const auto role = static_cast<Role>(i);
      const bool is_text = role == Role::kShape || role == Role::kState;
      if (role != Role::kWeight && !is_text && has(role)) return false;
    }
    return !misfit(layout, inputs);
  }
  const auto is_decoded = [&](Role role, const Packing& packing) {
    return !has(role) || is_decodable_as_grid(packing);
  };
  if (!is_decoded(Role::kScale, layout.scale) || !is_decoded(Role::kZero, layout.zero) ||
      !is_decoded(Role::kBias, layout.bias)) {
    return false;
  }
  if (has(Role::kFactor) && !is_single(type_info(layout.factor_type))) return false;
  if (has(Role::kRowFactor) && !is_single(type_info(layout.row_factor_type))) return false;
  const Packing& columns = layout.column_scale;
  if (has(Role::kColumnScale) &&
      (columns.codes != Codes::kTyped || !is_single(type_info(columns.type)))) {
    return false;
  }
  if (has(Role::kMap) && !is_of_indices(layout.weight, 4)) return false;
  if (has(Role::kNestedScale) && !is_of_indices(layout.scale, 8)) return false;
  if (has(Role::kLevels) && !has(Role::kNestedScale)) return false;
  return !misfit(layout, inputs);  // divides by what was checked before
}

}  // namespace stfs
