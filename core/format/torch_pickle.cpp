#include "core/format/torch_pickle.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

namespace stfs {
namespace {

struct TypeRow {
  std::string_view storage;    // the class of a storage in older files; "" if there is none
  std::string_view name;       // the type is torch.NAME
  std::optional<DType> dtype;  // nullopt if safetensors has no such type
};
constexpr TypeRow kTorchTypes[] = {
    {"FloatStorage", "float32", DType::kF32},
    {"BFloat16Storage", "bfloat16", DType::kBF16},
    {"HalfStorage", "float16", DType::kF16},
    {"DoubleStorage", "float64", DType::kF64},
    {"LongStorage", "int64", DType::kI64},
    {"IntStorage", "int32", DType::kI32},
    {"ShortStorage", "int16", DType::kI16},
    {"CharStorage", "int8", DType::kI8},
    {"ByteStorage", "uint8", DType::kU8},
    {"BoolStorage", "bool", DType::kBool},
    {"ComplexFloatStorage", "complex64", DType::kC64},
    {"ComplexDoubleStorage", "complex128", std::nullopt},
    {"", "complex32", std::nullopt},
    {"", "uint16", DType::kU16},
    {"", "uint32", DType::kU32},
    {"", "uint64", DType::kU64},
    {"", "float8_e4m3fn", DType::kF8E4M3},
    {"", "float8_e5m2", DType::kF8E5M2},
    {"", "float8_e4m3fnuz", DType::kF8E4M3Fnuz},
    {"", "float8_e5m2fnuz", DType::kF8E5M2Fnuz},
    {"", "float8_e8m0fnu", DType::kF8E8M0},
    {"", "float4_e2m1fn_x2", DType::kF4},
    {"QInt8Storage", "qint8", std::nullopt},
    {"QUInt8Storage", "quint8", std::nullopt},
    {"QInt32Storage", "qint32", std::nullopt},
};

// The kinds of functions that make a tensor, by their arguments.
enum class Maker : std::uint8_t {
  kPlain,    // (storage, offset, size, stride, ...)
  kUntyped,  // the same with a storage of bytes; the type is argument 6
  kFirst,    // (tensor, ...): wraps a tensor
  kCalled,   // (callable, type, arguments, ...): calls another maker
  kRefused,  // makes a tensor that cannot be shown
};
struct MakerRow {
  std::string_view module, name;
  Maker maker;
  std::string_view refusal = {};
};
constexpr MakerRow kTensorMakers[] = {
    {"torch._utils", "_rebuild_tensor_v2", Maker::kPlain},
    {"torch._utils", "_rebuild_tensor", Maker::kPlain},
    {"torch._utils", "_rebuild_tensor_v3", Maker::kUntyped},
    {"torch._utils", "_rebuild_parameter", Maker::kFirst},
    {"torch._utils", "_rebuild_parameter_with_state", Maker::kFirst},
    {"torch._tensor", "_rebuild_from_type_v2", Maker::kCalled},
    {"torch._tensor", "_rebuild_from_type", Maker::kCalled},
    {"torch.tensor", "_rebuild_from_type", Maker::kCalled},
    {"torch._utils", "_rebuild_qtensor", Maker::kRefused,
     "is quantised: save what dequantize() gives"},
    {"torch._utils", "_rebuild_sparse_tensor", Maker::kRefused,
     "is sparse: save what to_dense() gives"},
    {"torch._utils", "_rebuild_sparse_csr_tensor", Maker::kRefused,
     "is sparse: save what to_dense() gives"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", Maker::kRefused,
     "has no bytes: it was on the \"meta\" device"},
    {"torch._utils", "_rebuild_wrapper_subclass", Maker::kRefused,
     "is made of other tensors by code of its class"},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", Maker::kRefused,
     "has its bytes in the pickle: save what cpu() gives"},
    {"torch.storage", "_load_from_bytes", Maker::kRefused,
     "has its bytes in the pickle: save it with torch.save"},
};
constexpr std::string_view kMakersModule = "torch._utils";
constexpr std::string_view kMakersBegin = "_rebuild_";

std::string name_of(const Pickle::Global& global) {
  constexpr std::size_t kLongest = 100;  // bytes
  const auto cut = [](std::string_view text) {
    return printable(
        text.substr(0, text.size() > kLongest ? utf8_floor(text, kLongest) : text.size()));
  };
  return cut(global.module) + "." + cut(global.name);
}

// Returns the name of the class of an object. If a function made the object, this is the class
// among its arguments, or the name of the function if there is none.
std::string class_of(const Pickle& pickle, const Pickle::Node& object) {
  if (object.callable.kind != PickleKind::kGlobal) return "(unknown)";
  const Pickle::Global called = pickle.global_of(object.callable);
  if (called.name == "_frombuffer" && called.module.starts_with("numpy.")) return "numpy.ndarray";
  if (called.name.starts_with('_') && object.arguments.kind == PickleKind::kTuple) {
    for (const PickleValue argument : pickle.items_of(object.arguments)) {
      if (argument.kind == PickleKind::kGlobal) return name_of(pickle.global_of(argument));
    }
  }
  return name_of(called);
}

// Reads the description of a tensor from an object of the pickle.
class TensorReader {
 public:
  explicit TensorReader(const Pickle& pickle) : pickle_(pickle) {}

  // Returns nullopt if `value` is not a tensor.
  std::optional<TorchTensor> read(PickleValue value) {
    constexpr int kMaxWraps = 16;  // a parameter of a subclass has two wraps
    if (value.kind != PickleKind::kObject) return std::nullopt;
    const Pickle::Node& first = pickle_.node(value);
    PickleValue callable = first.callable;
    PickleValue arguments = first.arguments;
    if (Pickle::is_persistent(first)) return refused("is a storage, without a type and a shape");
    std::string class_name;
    for (int wraps = 0; wraps < kMaxWraps; ++wraps) {
      if (callable.kind != PickleKind::kGlobal || arguments.kind != PickleKind::kTuple)
        return std::nullopt;
      const Pickle::Global called = pickle_.global_of(callable);
      const auto* const row = std::ranges::find_if(kTensorMakers, [&](const MakerRow& maker) {
        return maker.name == called.name && maker.module == called.module;
      });
      if (row == std::end(kTensorMakers)) {
        if (called.module != kMakersModule || !called.name.starts_with(kMakersBegin)) {
          return std::nullopt;
        }
        TorchTensor tensor =
            refused("is made by " + name_of(called) + ", which stfs does not support");
        tensor.class_name = class_of(pickle_, first);
        return tensor;
      }
      const std::span items = pickle_.items_of(arguments);
      if (row->maker == Maker::kRefused) {
        const std::string what = class_name.empty() ? "" : "is a " + class_name + ": it ";
        TorchTensor tensor = refused(what + std::string(row->refusal));
        tensor.class_name = class_name.empty() ? class_of(pickle_, first) : class_name;
        return tensor;
      }
      if (row->maker == Maker::kPlain || row->maker == Maker::kUntyped) {
        return plain(items, row->maker == Maker::kUntyped);
      }
      if (row->maker == Maker::kFirst) {
        if (items.empty() || items[0].kind != PickleKind::kObject) return std::nullopt;
        callable = pickle_.node(items[0]).callable;
        arguments = pickle_.node(items[0]).arguments;
      } else {
        if (items.size() < 3) return std::nullopt;
        callable = items[0];
        arguments = items[2];
        if (items[1].kind == PickleKind::kGlobal) class_name = name_of(pickle_.global_of(items[1]));
      }
    }
    return refused("has too many nested wrappers");
  }

 private:
  static TorchTensor refused(std::string why) {
    TorchTensor tensor;
    tensor.refusal = std::move(why);
    return tensor;
  }
  static TorchTensor broken() { return refused("its description is broken"); }

  static const TypeRow* type_of(std::string_view TypeRow::*member, std::string_view name) {
    const auto* const row = std::ranges::find(kTorchTypes, name, member);
    return row == std::end(kTorchTypes) ? nullptr : row;
  }

  bool dims_of(PickleValue tuple, std::vector<std::uint64_t>& out) const {
    if (tuple.kind == PickleKind::kObject) {  // a torch.Size
      const PickleValue arguments = pickle_.node(tuple).arguments;
      if (arguments.kind != PickleKind::kTuple || arguments.count != 1) return false;
      tuple = pickle_.items_of(arguments)[0];
    }
    if (tuple.kind != PickleKind::kTuple || tuple.count > kMaxDims) return false;
    for (const PickleValue dim : pickle_.items_of(tuple)) {
      if (dim.kind != PickleKind::kInt || dim.number() < 0) return false;
      out.push_back(dim.at);
    }
    return true;
  }

  // Returns the name of a flag that is set in the dictionary and means that the bytes are not yet
  // the values, such as "conj". Returns "" if no flag is set.
  std::string_view changing_flag(PickleValue metadata) const {
    if (metadata.kind != PickleKind::kDict) return {};
    const std::vector<PickleValue>& items = pickle_.node(metadata).items;
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const bool is_set = items[i + 1].kind == PickleKind::kBool && items[i + 1].at != 0;
      if (is_set && items[i].kind == PickleKind::kText) return pickle_.text_of(items[i]);
    }
    return {};
  }

  TorchTensor plain(std::span<const PickleValue> arguments, bool is_untyped) const {
    TorchTensor tensor;
    const std::size_t least = is_untyped ? 7 : 4;
    if (arguments.size() < least || arguments[0].kind != PickleKind::kObject ||
        arguments[1].kind != PickleKind::kInt || arguments[1].number() < 0) {
      return broken();
    }
    const Pickle::Node& object = pickle_.node(arguments[0]);
    if (!Pickle::is_persistent(object)) return broken();
    if (object.arguments.kind != PickleKind::kTuple) return broken();
    const std::span storage = pickle_.items_of(object.arguments);
    const bool is_storage = storage.size() >= 5 && storage[0].kind == PickleKind::kText &&
                            pickle_.text_of(storage[0]) == "storage" &&
                            storage[1].kind == PickleKind::kGlobal &&
                            storage[2].kind == PickleKind::kText &&
                            storage[4].kind == PickleKind::kInt && storage[4].number() >= 0;
    if (!is_storage) return broken();
    tensor.storage = pickle_.text_of(storage[2]);
    const std::string_view class_name = pickle_.global_of(storage[1]).name;
    const PickleValue type = is_untyped ? arguments[6] : storage[1];
    if (type.kind != PickleKind::kGlobal) return broken();
    const std::string_view type_name = pickle_.global_of(type).name;
    const TypeRow* const row =
        is_untyped ? type_of(&TypeRow::name, type_name) : type_of(&TypeRow::storage, type_name);
    if (row == nullptr || !row->dtype) {
      return refused("safetensors has no type for " +
                     in_quotes(row == nullptr ? type_name : row->name));
    }
    tensor.dtype = *row->dtype;
    if (!dims_of(arguments[2], tensor.shape) || !dims_of(arguments[3], tensor.strides) ||
        tensor.strides.size() != tensor.shape.size()) {
      return refused("it has no valid shape and strides, or more than 64 dimensions");
    }
    const std::size_t flags = is_untyped ? 7 : 6;
    const std::string_view flag =
        arguments.size() > flags ? changing_flag(arguments[flags]) : std::string_view();
    if (!flag.empty()) {
      return refused("its bytes are not its values (" + printable(flag) +
                     "): save what resolve_conj() or resolve_neg() gives");
    }
    const std::uint64_t width = type_info(tensor.dtype).block_bytes;
    const bool counts_bytes = is_untyped || class_name == "UntypedStorage";
    if (__builtin_mul_overflow(storage[4].at, counts_bytes ? 1 : width, &tensor.storage_bytes)) {
      return broken();
    }
    return placed(std::move(tensor), arguments[1].at, width);
  }

  // Checks that a tensor is inside its storage, and converts the offset and the strides from
  // elements to bytes.
  static TorchTensor placed(TorchTensor tensor, std::uint64_t offset, std::uint64_t width) {
    std::uint64_t elements = 1, last = offset;
    const bool is_empty = std::ranges::find(tensor.shape, 0U) != tensor.shape.end();
    bool overflows = __builtin_mul_overflow(offset, width, &tensor.begin);
    bool is_dense = true;
    for (std::size_t i = tensor.shape.size(); i-- > 0 && !is_empty;) {
      std::uint64_t reach = 0;
      is_dense = is_dense && (tensor.shape[i] == 1 || tensor.strides[i] == elements);
      overflows = overflows || __builtin_mul_overflow(elements, tensor.shape[i], &elements) ||
                  __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &reach) ||
                  __builtin_add_overflow(last, reach, &last);
    }
    if (is_empty) {
      // safetensors refuses a shape if its product overflows before the factor 0 is reached.
      std::uint64_t product = tensor.dtype == DType::kF4 ? 2 : 1;
      for (const std::uint64_t dim : tensor.shape) {
        if (__builtin_mul_overflow(product, dim, &product))
          return refused("its shape is too large");
      }
      if (tensor.dtype == DType::kF4 &&
          __builtin_mul_overflow(tensor.shape.back(), 2, &tensor.shape.back())) {
        return refused("its shape is too large");
      }
      tensor.begin = std::min(tensor.begin, tensor.storage_bytes);
      tensor.strides.clear();
      return tensor;
    }
    overflows = overflows || __builtin_mul_overflow(elements, width, &tensor.bytes);
    if (overflows || last >= tensor.storage_bytes / width) {
      return refused("extends past the end of its storage");
    }
    if (tensor.dtype == DType::kF4) {  // an element of PyTorch is a byte with two F4 elements
      if (!is_dense || tensor.shape.empty())
        return refused(
            "each of its bytes holds two elements, so only contiguous tensors are supported");
      tensor.shape.back() *= 2;
    }
    for (std::uint64_t& stride : tensor.strides) stride *= width;
    if (is_dense) tensor.strides.clear();
    return tensor;
  }

  static constexpr std::uint32_t kMaxDims = 64;  // PyTorch's limit

  const Pickle& pickle_;
};

class TensorWalk {
 public:
  using Found = std::function<void(std::string_view, const TorchTensor&)>;

  TensorWalk(const Pickle& pickle, const std::string& place, const Found& found)
      : pickle_(pickle),
        reader_(pickle),
        place_(place),
        found_(found),
        states_(pickle.node_count()),
        is_barren_tuple_(pickle.item_count()),
        most_visits_(8 * pickle.length() + 1024),
        most_tensors_(pickle.length() / 16 + 1024),
        most_parts_(64 * pickle.length() + 1024),
        most_names_(2 * pickle.length() + (64 << 10)) {}

  ClassCounts walk() {
    visit(pickle_.result(), {});
    while (!frames_.empty()) {
      const std::size_t here = frames_.size() - 1;
      name_.resize(frames_[here].way.name);
      PickleValue child;
      Way way;
      if (next_child(frames_[here], child, way)) {
        visit(child, way);
      } else {
        leave();
      }
    }
    for (const PickleValue object : barren_) count(class_of(pickle_, pickle_.node(object)));
    return std::move(left_out_);
  }

 private:
  // The path to a value.
  struct Way {
    std::size_t name = 0;   // the first bytes of name_ are its name
    bool is_named = false;  // the path has keys, so the name is valid even if it is ""
    bool is_state = false;  // the value is the state from BUILD; its keys count as the object's
  };
  struct Frame {
    PickleValue value;
    Way way;
    std::uint64_t found;        // the number of tensors found before this value
    std::size_t barren;         // the size of barren_ before this value
    std::uint64_t at = 0;       // the next child
    std::uint64_t skipped = 0;  // values before the next child that a list does not keep
  };
  enum class State : std::uint8_t {
    kNew,
    kOpen,   // the walk is inside the node; if it meets the node again, the node contains itself
    kBarren  // the node contains no tensors
  };

  // The depth that is always allowed. The depth has a limit because each byte of the pickle may add
  // a frame, which takes much more memory. The recursion limit of Python is far lower.
  static constexpr std::size_t kFewDeep = 1 << 17;

  static bool may_hold_tensors(PickleValue value) {
    return value.kind == PickleKind::kTuple || value.is_node();
  }

  void visit(PickleValue value, Way way) {
    if (++visits_ > most_visits_) refuse();
    if (!may_hold_tensors(value)) return;
    if (value.kind == PickleKind::kTuple && (value.count == 0 || is_barren_tuple_[value.at]))
      return;
    if (value.is_node() && states_[value.at] != State::kNew) return;
    way.name = name_.size();
    if (const std::optional<TorchTensor> tensor = reader_.read(value)) return tell(*tensor, way);
    if (value.is_node()) states_[value.at] = State::kOpen;
    if (frames_.size() >= kFewDeep + pickle_.length() / 64) {
      throw Error(ErrorCode::kPickle, place_, "the pickle is nested too deeply");
    }
    frames_.push_back({.value = value, .way = way, .found = count_, .barren = barren_.size()});
  }

  void tell(const TorchTensor& tensor, const Way& way) {
    const std::string_view name = way.is_named ? std::string_view(name_) : "tensor";
    if (++count_ > most_tensors_) refuse();
    if (!tensor.refusal.empty())
      count(tensor.class_name.empty() ? "torch.Tensor" : tensor.class_name);
    charge(name.size(), names_, most_names_);
    found_(name, tensor);
  }

  void count(const std::string& class_name) {
    constexpr std::size_t kMaxClasses = 64;
    ++left_out_[left_out_.size() < kMaxClasses ? class_name : "other classes"];
  }

  // Adds `bytes` to `sum` and throws if it exceeds `most`. The total length of names needs a limit,
  // because two bytes of the pickle may refer to a shared value and give it another long name.
  void charge(std::uint64_t bytes, std::uint64_t& sum, std::uint64_t most) const {
    sum += bytes;
    if (sum > most) refuse();
  }

  [[noreturn]] void refuse() const {
    throw Error(ErrorCode::kPickle, place_,
                "the pickle refers to its values so often that it has too many paths for its " +
                    human_bytes(pickle_.length()));
  }

  void leave() {
    const Frame& frame = frames_.back();
    if (frame.value.kind == PickleKind::kTuple) {
      is_barren_tuple_[frame.value.at] = count_ == frame.found;
    } else {
      states_[frame.value.at] = count_ == frame.found ? State::kBarren : State::kNew;
      if (count_ == frame.found && frame.value.kind == PickleKind::kObject) {
        barren_.resize(frame.barren);  // drop the objects inside this one
        barren_.push_back(frame.value);
      }
    }
    frames_.pop_back();
  }

  // Sets `child` to the next child of the frame, and adds its key to name_. Returns false if there
  // is no other child.
  bool next_child(Frame& frame, PickleValue& child, Way& way) {
    if (frame.value.kind == PickleKind::kTuple) {
      return next_item(frame, pickle_.items_of(frame.value), child, way);
    }
    const Pickle::Node& node = pickle_.node(frame.value);
    if (frame.value.kind == PickleKind::kList) return next_item(frame, node.items, child, way);
    // The arguments of an object come before its items.
    const bool has_arguments =
        frame.value.kind == PickleKind::kObject && node.arguments.kind == PickleKind::kTuple;
    const std::span<const PickleValue> arguments =
        has_arguments ? pickle_.items_of(node.arguments) : std::span<const PickleValue>();
    if (frame.at < arguments.size()) return next_item(frame, arguments, child, way);
    const std::uint64_t pair = frame.at - arguments.size();
    if (2 * pair + 1 >= node.items.size()) return false;
    ++frame.at;
    child = node.items[2 * pair + 1];
    const PickleValue key = node.items[2 * pair];
    way.is_state = key.kind == PickleKind::kState;
    way.is_named = frame.way.is_named || !way.is_state;
    if (!way.is_state && may_hold_tensors(child)) add_key(frame, key, pair);
    return true;
  }

  bool next_item(Frame& frame, std::span<const PickleValue> items, PickleValue& child, Way& way) {
    if (frame.at >= items.size()) return false;
    child = items[static_cast<std::size_t>(frame.at)];
    if (child.kind == PickleKind::kOther && child.count > 0) frame.skipped += child.count - 1;
    // A state may be a tuple of two dictionaries, attributes and slots. Their positions in the
    // tuple do not become parts of names.
    const bool is_part_of_state = frame.way.is_state && frame.value.kind == PickleKind::kTuple;
    way.is_named = frame.way.is_named || !is_part_of_state;
    if (!is_part_of_state && may_hold_tensors(child))
      add_part(frame, std::to_string(frame.at + frame.skipped));
    ++frame.at;
    return true;
  }

  void add_key(const Frame& frame, PickleValue key, std::uint64_t position) {
    switch (key.kind) {
      case PickleKind::kText:
      case PickleKind::kBytes: return add_part(frame, pickle_.text_of(key));
      case PickleKind::kInt: return add_part(frame, std::to_string(key.number()));
      case PickleKind::kBool: return add_part(frame, key.at != 0 ? "True" : "False");
      case PickleKind::kNone: return add_part(frame, "None");
      default: return add_part(frame, std::to_string(position));
    }
  }

  void add_part(const Frame& frame, std::string_view part) {
    charge(part.size(), parts_, most_parts_);
    if (name_.size() + part.size() > most_names_) refuse();  // one name may not exceed the limit
    if (frame.way.is_named) name_ += '.';
    name_ += part;
  }

  const Pickle& pickle_;
  TensorReader reader_;
  const std::string& place_;
  const Found& found_;
  std::vector<State> states_;          // one per node
  std::vector<bool> is_barren_tuple_;  // indexed by the place of a tuple's first item
  std::uint64_t most_visits_, most_tensors_, most_parts_, most_names_;
  std::uint64_t visits_ = 0, parts_ = 0, names_ = 0, count_ = 0;
  ClassCounts left_out_;
  std::vector<PickleValue> barren_;  // objects without tensors, except those inside another one
  std::string name_;
  std::vector<Frame> frames_;
};

}  // namespace

ClassCounts walk_tensors(
    const Pickle& pickle, const std::string& place,
    const std::function<void(std::string_view name, const TorchTensor&)>& found) {
  return TensorWalk(pickle, place, found).walk();
}

}  // namespace stfs
