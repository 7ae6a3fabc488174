// The commands of edits: each has a function and a row in kCommands.
#include "core/base/error.h"
#include "core/base/pattern.h"
#include "core/base/text.h"
#include "core/layer/edit/cast.h"
#include "core/layer/edit/edit_layer.h"
#include "core/layer/edit/edit_state.h"
#include "core/recipe/elements.h"
#include "core/recipe/slice.h"
#include "core/remote/http/url.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using Item = Edited::Item;

struct Command {
  std::string_view word, arguments;
  std::size_t least, most;  // the minimum and maximum number of arguments
  void (*apply)(const EditLine& line, Edited& edited);
};

Substitution substitution_of(const EditLine& line) {
  try {
    return Substitution(line.words[1]);
  } catch (const std::invalid_argument& error) {
    line.refuse(in_quotes(line.words[1]) + ": " + error.what());
  }
}

void change(Item& item, const Tensor& tensor) {
  item.tensor = tensor;
  item.below.reset();
}

std::string_view new_name(const EditLine& line, Edited& edited, std::string name) {
  if (!edited.may_keep(name.size())) line.refuse("the names need more than 1 GiB");
  return edited.keep(std::move(name));
}

// Returns the name of a tensor after a substitution, or nullopt if the expression does not match.
std::optional<std::string> substituted(const EditLine& line, const Substitution& substitution,
                                       std::string_view name) {
  try {
    return substitution.apply(name);
  } catch (const std::invalid_argument& error) {
    line.refuse(in_quotes(line.words[1]) + ": " + error.what());
  }
}

void rename(const EditLine& line, Edited& edited) {
  const Substitution substitution = substitution_of(line);
  bool touches = false;
  for (Item& item : edited.items) {
    std::optional<std::string> name = substituted(line, substitution, item.tensor.name);
    if (!name || *name == item.tensor.name) continue;
    Tensor tensor = item.tensor;
    tensor.name = new_name(line, edited, *std::move(name));
    change(item, tensor);
    touches = true;
  }
  if (!touches) line.refuse(in_quotes(line.words[1]) + " changes no name");
  edited.refuse_same_names(line);
}

void copy(const EditLine& line, Edited& edited) {
  const Substitution substitution = substitution_of(line);
  std::vector<Item> copies;
  for (const Item& item : edited.items) {
    std::optional<std::string> name = substituted(line, substitution, item.tensor.name);
    if (!name) continue;
    Item& added = copies.emplace_back(item);
    edited.require_room(line, copies.size());
    added.tensor.name = new_name(line, edited, *std::move(name));
    added.below.reset();
  }
  if (copies.empty()) line.refuse(in_quotes(line.words[1]) + " matches no name");
  std::ranges::copy(copies, std::back_inserter(edited.items));
  edited.refuse_same_names(line);
}

// Returns for each item whether it matches a glob. Refuses a glob that matches no item.
std::vector<bool> matching(const EditLine& line, Edited& edited,
                           std::span<const std::string> globs) {
  std::vector<bool> matches(edited.items.size());
  for (const std::string& glob : globs) {
    bool touches = false;
    for (std::size_t i = 0; i < matches.size(); ++i) {
      if (!matches_glob(glob, std::string(edited.items[i].tensor.name))) continue;
      matches[i] = touches = true;
    }
    if (!touches) line.refuse(in_quotes(glob) + " matches no name");
  }
  return matches;
}

void leave(Edited& edited, const std::vector<bool>& is_left) {
  std::size_t i = 0;
  std::erase_if(edited.items, [&](const Item&) { return !is_left[i++]; });
}

void keep(const EditLine& line, Edited& edited) {
  const std::vector<bool> kept = matching(line, edited, std::span(line.words).subspan(1));
  if (std::ranges::find(kept, false) == kept.end()) {
    line.refuse("keeps all tensors: leave the line out");
  }
  leave(edited, kept);
}

void drop(const EditLine& line, Edited& edited) {
  std::vector<bool> dropped = matching(line, edited, std::span(line.words).subspan(1));
  dropped.flip();
  leave(edited, dropped);
}

Item& named(const EditLine& line, Edited& edited, const std::string& name) {
  Item* const item = edited.find(name);
  if (item == nullptr) line.refuse("there is no tensor " + in_quotes(name));
  return *item;
}

// The tensors that a FROM argument names: a list and the numbers of tensors in it.
struct From {
  Edited::Other other;
  std::vector<std::uint32_t> numbers;
};

From from(const EditLine& line, Edited& edited, const std::string& text) {
  const std::size_t at = text.rfind("::");
  const bool is_npy = at == std::string::npos && public_name(text).ends_with(".npy");
  if (!is_npy && (at == std::string::npos || at == 0)) {  // the tensor's name may be empty
    line.refuse(in_quotes(public_name(text)) + ": expected SOURCE::NAME or a .npy file");
  }
  std::string path = text.substr(0, at);
  if (!is_url(path) && !path.starts_with('/')) path = child_name(line.directory, path);
  From from{};
  try {
    from.other = edited.other(path);
  } catch (const Error& error) {
    line.refuse(public_name(error.place()) + ": " + error.message());
  }
  if (is_npy) {
    from.numbers = {0};
    return from;
  }
  const std::string name = text.substr(at + 2);
  if (const auto number = from.other.list->find(name)) {
    from.numbers = {*number};
  } else {
    from.numbers = from.other.list->match(std::span(&name, 1));
  }
  if (from.numbers.empty()) {
    line.refuse(in_quotes(public_name(path)) + " has no tensor " + in_quotes(name));
  }
  return from;
}

Item item_of(const From& from, std::uint32_t number) {
  const TensorList& list = *from.other.list;
  return {list.tensor(number), from.other.first_part + list.row(number).part,
          list.row(number).record, std::nullopt};
}

// Refuses a shape if its rows are not whole blocks of `dtype`, because a block type of GGUF cannot
// have such a shape.
void require_whole_blocks(const EditLine& line, DType dtype, std::span<const std::uint64_t> shape) {
  const TypeInfo& type = type_info(dtype);
  const std::uint64_t row = shape.empty() ? 1 : shape.back();
  if (type.kind != TypeKind::kQuantized || row % type.block_elements == 0) return;
  line.refuse("rows of " + std::to_string(row) + " elements are not whole blocks of " +
              std::to_string(type.block_elements) + " of " + std::string(type.name));
}

void replace(const EditLine& line, Edited& edited) {
  const bool reshapes = line.words.size() == 4;
  if (reshapes && line.words[3] != "--reshape") {
    line.refuse(in_quotes(line.words[3]) + ": only --reshape may follow FROM");
  }
  Item& item = named(line, edited, line.words[1]);
  const From by = from(line, edited, line.words[2]);
  if (by.numbers.size() != 1) {
    line.refuse(in_quotes(public_name(line.words[2])) + " names " +
                std::to_string(by.numbers.size()) + " tensors, but must name one");
  }
  Item replaced = item_of(by, by.numbers.front());
  const bool is_same_shape = std::ranges::equal(replaced.tensor.shape, item.tensor.shape);
  const std::string shapes = in_quotes(line.words[1]) + " has shape " +
                             shape_json(item.tensor.shape) + ", but its replacement has " +
                             shape_json(replaced.tensor.shape);
  if (reshapes && replaced.tensor.elements() != item.tensor.elements()) {
    line.refuse(shapes + ": they have different numbers of elements");
  }
  if (!reshapes && !is_same_shape)
    line.refuse(shapes + ": add --reshape to keep " + shape_json(item.tensor.shape));
  replaced.tensor.name = item.tensor.name;
  replaced.tensor.shape = item.tensor.shape;
  require_whole_blocks(line, replaced.tensor.dtype, replaced.tensor.shape);
  item = replaced;
}

void add(const EditLine& line, Edited& edited) {
  const bool is_named = line.words.size() == 4;
  if (line.words.size() == 3 || (is_named && line.words[2] != "as")) {
    line.refuse("expected add FROM [as NAME]");
  }
  const From added = from(line, edited, line.words[1]);
  if (is_named && added.numbers.size() != 1) {
    line.refuse(in_quotes(public_name(line.words[1])) + " names " +
                std::to_string(added.numbers.size()) + " tensors, but \"as\" gives only one name");
  }
  edited.require_room(line, added.numbers.size());
  for (const std::uint32_t number : added.numbers) {
    Item& item = edited.items.emplace_back(item_of(added, number));
    if (is_named) item.tensor.name = new_name(line, edited, line.words[3]);
  }
  edited.refuse_same_names(line);
}

DType type_named(const EditLine& line, const std::string& word) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (lower_case(dtype_name(type)) != lower_case(word)) continue;
    if (type_info(type).from_f32 != nullptr) return type;
  }
  line.refuse(in_quotes(word) +
              ": expected BF16, F16, F32, F64, F8_E4M3, F8_E5M2, F8_E4M3FNUZ or F8_E5M2FNUZ");
}

void cast_some(const EditLine& line, Edited& edited) {
  const DType type = type_named(line, line.words[2]);
  const std::vector<bool> matches = matching(line, edited, std::span(line.words).subspan(1, 1));
  bool touches = false;
  std::size_t others = 0, codes = 0;
  // The first matching tensor that cannot be cast; the first one that holds codes, and its scheme.
  std::string first, first_codes, scheme;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    Item& item = edited.items[i];
    const Tensor& tensor = item.tensor;
    if (!matches[i] || tensor.dtype == type) continue;
    if (type_info(tensor.dtype).to_f32 == nullptr) {
      if (others++ == 0) {
        first = in_quotes(tensor.name) + " is " + std::string(dtype_name(tensor.dtype));
      }
      continue;
    }
    if (!has_f32(tensor.dtype, tensor.elements())) {
      line.refuse(in_quotes(tensor.name) + ": its values would be larger than 2^63 bytes");
    }
    const std::string_view found = edited.scheme_of_codes(item);
    if (!found.empty() && codes++ == 0) {
      first_codes = in_quotes(tensor.name);
      scheme = found;
    }
    change(item, edited.computed(item, type, tensor.shape, "cast",
                                 [](const Tensor& in, const Tensor& out, const std::string&) {
                                   Content content;
                                   if (in.length == 0) return content;
                                   const Tensor values = in.valued();
                                   content.production(cast(values.content(), values.dtype,
                                                           out.dtype, in.elements()));
                                   return content;
                                 }));
    touches = true;
  }
  if (!touches && others != 0)
    line.refuse(first + ": only floating-point types can be cast; exclude this tensor");
  if (!touches)
    line.refuse("all matching tensors are " + std::string(dtype_name(type)) + " already");
  const auto warn = [&](const std::string& rule) {
    edited.warnings.push_back(printable(line.place) + ": line " + std::to_string(line.number) +
                              ": cast: " + rule);
  };
  if (codes != 0) {
    warn(first_codes +
         (codes == 1 ? " belongs" : " and " + std::to_string(codes - 1) + " more belong") +
         " to quantised weights (" + scheme +
         "): cast shows codes without their scales: use --dequantize=bf16 first");
  }
  if (others == 0) return;
  warn(std::to_string(others) +
       (others == 1 ? " matching tensor stays unchanged (" : " matching tensors stay unchanged (") +
       first + "): only floating-point types are cast");
}

void reshape(const EditLine& line, Edited& edited) {
  Item& item = named(line, edited, line.words[1]);
  std::string_view rest = line.words[2];
  const bool is_list = rest.size() >= 2 && rest.front() == '[' && rest.back() == ']';
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 1;
  bool is_good = is_list;
  if (is_list) rest = rest.substr(1, rest.size() - 2);
  while (is_good && !rest.empty()) {
    std::uint64_t dim = 0;
    const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
    rest.remove_prefix(static_cast<std::size_t>(result.ptr - rest.data()));
    is_good = result.ec == std::errc() && !__builtin_mul_overflow(elements, dim, &elements) &&
              (rest.empty() || (rest.front() == ',' && rest.size() > 1));
    if (!rest.empty()) rest.remove_prefix(1);
    shape.push_back(dim);
  }
  if (!is_good) line.refuse(in_quotes(line.words[2]) + ": expected a shape such as [2,3]");
  if (elements != item.tensor.elements()) {
    line.refuse(in_quotes(line.words[1]) + " has shape " + shape_json(item.tensor.shape) +
                ", which is " + std::to_string(item.tensor.elements()) +
                " elements, but the new shape has " + std::to_string(elements));
  }
  if (std::ranges::equal(shape, item.tensor.shape))
    line.refuse("the tensor already has this shape");
  require_whole_blocks(line, item.tensor.dtype, shape);
  Tensor tensor = item.tensor;
  tensor.shape = edited.keep(std::move(shape));
  change(item, tensor);
}

void slice(const EditLine& line, Edited& edited) {
  Item& item = named(line, edited, line.words[1]);
  const Tensor& tensor = item.tensor;
  const std::string refusal = slice_refusal(line.words[2], tensor.dtype, tensor.shape);
  if (!refusal.empty()) line.refuse(in_quotes(line.words[2]) + ": " + refusal);
  std::vector<Range> ranges;
  parse_ranges(line.words[2], tensor.shape, ranges);
  if (canonical_expression(ranges, tensor.shape).empty())
    line.refuse("the slice is the whole tensor");
  if (tensor.values != nullptr) {
    line.refuse(
        in_quotes(tensor.name) +
        ": another tensor scales it, and would not be sliced: dequantise the checkpoint too");
  }
  change(item,
         edited.computed(
             item, tensor.dtype, edited.keep(elements_of(ranges, tensor.shape).shape), "slice",
             [](const Tensor& in, const Tensor&, const std::string& expression) {
               Slice part;
               parse_slice(expression, in.dtype, in.shape, part);
               return slice_content(part, in.content());
             },
             line.words[2]));
}

// Returns true if `text` is a valid value of a GGUF metadata type: a string, a number or a boolean.
bool is_text_of(ValueType type, std::string_view text) {
  const char* const end = text.data() + text.size();
  const auto is_number = [&](auto number) {
    const auto result = std::from_chars(text.data(), end, number);
    return result.ec == std::errc() && result.ptr == end;
  };
  switch (type) {
    case ValueType::kString: return true;
    case ValueType::kBool: return text == "true" || text == "false";
    case ValueType::kU8: return is_number(std::uint8_t{});
    case ValueType::kI8: return is_number(std::int8_t{});
    case ValueType::kU16: return is_number(std::uint16_t{});
    case ValueType::kI16: return is_number(std::int16_t{});
    case ValueType::kU32: return is_number(std::uint32_t{});
    case ValueType::kI32: return is_number(std::int32_t{});
    case ValueType::kU64: return is_number(std::uint64_t{});
    case ValueType::kI64: return is_number(std::int64_t{});
    case ValueType::kF32: return is_number(float{});
    case ValueType::kF64: return is_number(double{});
    case ValueType::kArray: return false;
  }
  return false;
}

// Refuses GGUF keys that describe the layout of the file.
void refuse_key_of_layout(const EditLine& line) {
  const std::string& key = line.words[1];
  if (key == "general.alignment" || key.starts_with("split.")) {
    line.refuse(in_quotes(key) + " describes the layout of the file and cannot be changed");
  }
}

void set_key(const EditLine& line, Edited& edited) {
  if (!is_utf8(line.words[1]) || !is_utf8(line.words[2])) line.refuse("expected UTF-8");
  refuse_key_of_layout(line);
  constexpr std::size_t kMostKey = 65535;  // the length limit of GGUF, in bytes
  if (edited.is_gguf() && (line.words[1].empty() || line.words[1].size() > kMostKey)) {
    line.refuse("a key of GGUF has 1 to " + std::to_string(kMostKey) + " bytes");
  }
  const ValueType type = edited.type_of(line.words[1]);
  if (!is_text_of(type, line.words[2])) {
    line.refuse(in_quotes(line.words[1]) + " has another type in this file than " +
                in_quotes(line.words[2]));
  }
  edited.metadata[line.words[1]] = line.words[2];
}

void unset_key(const EditLine& line, Edited& edited) {
  if (!edited.has_key(line.words[1])) line.refuse("there is no key " + in_quotes(line.words[1]));
  refuse_key_of_layout(line);
  edited.metadata[line.words[1]] = std::nullopt;
}

constexpr std::array<Command, 11> kCommands{{
    {"rename", "s/REGEX/NEW/", 1, 1, rename},
    {"keep", "GLOB...", 1, ~std::size_t{0}, keep},
    {"drop", "GLOB...", 1, ~std::size_t{0}, drop},
    {"copy", "s/REGEX/NEW/", 1, 1, copy},
    {"replace", "NAME FROM [--reshape]", 2, 3, replace},
    {"add", "FROM [as NAME]", 1, 3, add},
    {"cast", "GLOB TYPE", 2, 2, cast_some},
    {"reshape", "NAME [2,3]", 2, 2, reshape},
    {"slice", "NAME EXPR", 2, 2, slice},
    {"metadata", "KEY VALUE", 2, 2, set_key},
    {"unset", "KEY", 1, 1, unset_key},
}};

}  // namespace

std::vector<std::string_view> edit_words() {
  std::vector<std::string_view> words(kCommands.size());
  std::ranges::transform(kCommands, words.begin(), &Command::word);
  return words;
}

void apply_edit(const EditLine& line, Edited& edited) {
  const std::string& word = line.words.front();
  const auto* const command = std::ranges::find(kCommands, word, &Command::word);
  if (command == kCommands.end()) {
    std::string words;
    for (const std::string_view known : edit_words()) words.append(" ").append(known);
    line.refuse(in_quotes(word) + ": not a command; the commands are" + words);
  }
  const std::size_t arguments = line.words.size() - 1;
  if (arguments < command->least || arguments > command->most) {
    line.refuse("expected " + std::string(command->word) + " " + std::string(command->arguments));
  }
  command->apply(line, edited);
}

}  // namespace stfs
