#include "core/layer/edit/npy_file.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/recipe/npy.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kMostHeader = 1 << 20;  // bytes of the dictionary

// A part alone has it; nothing recognises a file by it.
constexpr Format kNpyFormat{.name = "npy",
                            .recognises = nullptr,
                            .read = nullptr,
                            .header_length = nullptr,
                            .raw_suffix = ".npy"};

class Reader {
 public:
  Reader(const std::string& path, std::unique_ptr<const Source> source, Sources& sources)
      : place_(public_name(path)), source_(std::move(source)), sources_(sources) {}

  Part read(const std::string& path) {
    std::string prefix = bytes(0, 10);
    if (!prefix.starts_with(kMagic)) refuse("not a NumPy file");
    const auto major = static_cast<unsigned char>(prefix[6]);
    if (major < 1 || major > 3) refuse("a NumPy file of a version that is not known");
    const std::uint64_t length_bytes = major == 1 ? 2 : 4;
    prefix = bytes(8, length_bytes);
    std::uint64_t length = 0;
    for (std::size_t i = prefix.size(); i-- > 0;) {
      length = length << 8 | static_cast<unsigned char>(prefix[i]);
    }
    if (length > kMostHeader) refuse("its header is too long");
    const std::uint64_t begin = 8 + length_bytes;
    dict_ = bytes(begin, length);
    return part(path, begin + length);
  }

 private:
  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::kEdit, place_, rule);
  }

  std::string bytes(std::uint64_t offset, std::uint64_t length) {
    if (offset > source_->size() || length > source_->size() - offset) {
      refuse("not a NumPy file: it ends in its header");
    }
    std::string text(static_cast<std::size_t>(length), '\0');
    if (const int error =
            sources_.read(*source_, offset, std::as_writable_bytes(std::span(text)))) {
      throw_errno(ErrorCode::kUnreadable, place_, "", error);
    }
    return text;
  }

  // The text behind a key of the dictionary, which NumPy writes in one way.
  std::string_view behind(std::string_view key) const {
    const std::size_t at = dict_.find("'" + std::string(key) + "':");
    if (at == std::string::npos) refuse("its header has no " + in_quotes(key));
    std::string_view rest = std::string_view(dict_).substr(at + key.size() + 3);
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    return rest;
  }

  DType dtype() const {
    std::string_view descr = behind("descr");
    if (!descr.starts_with('\'')) refuse("an array of structures: only numbers are tensors");
    descr.remove_prefix(1);
    descr = descr.substr(0, descr.find('\''));
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto type = static_cast<DType>(i);
      const TypeInfo& info = type_info(type);
      if (info.npy == descr && !descr.starts_with("<V") && !descr.starts_with("|V")) return type;
    }
    refuse("the type " + in_quotes(descr) +
           " is none of safetensors' (little-endian numbers and bool)");
  }

  std::vector<std::uint64_t> shape() const {
    std::string_view rest = behind("shape");
    const std::size_t end = rest.find(')');
    if (!rest.starts_with('(') || end == std::string_view::npos) refuse("its shape is none");
    rest = rest.substr(1, end - 1);
    std::vector<std::uint64_t> dims;
    while (!rest.empty()) {
      std::uint64_t dim = 0;
      const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), dim);
      if (result.ec != std::errc()) refuse("its shape is none");
      dims.push_back(dim);
      rest.remove_prefix(static_cast<std::size_t>(result.ptr - rest.data()));
      rest.remove_prefix(std::min(rest.find_first_not_of(", "), rest.size()));
    }
    if (dims.size() > kNpyMaxRank) refuse("too many dimensions");
    return dims;
  }

  Part part(const std::string& path, std::uint64_t data) {
    TensorRecord record{.offset = data, .dtype = dtype()};
    std::vector<std::uint64_t> dims = shape();
    const std::string_view order = behind("fortran_order");
    if (!order.starts_with("False") && dims.size() > 1) {
      refuse("stored in Fortran's order: save numpy.ascontiguousarray() of it");
    }
    std::uint64_t elements = 1;
    bool overflows = false;
    for (const std::uint64_t dim : dims) {
      overflows = overflows || __builtin_mul_overflow(elements, dim, &elements);
    }
    const std::optional<std::uint64_t> length = type_info(record.dtype).bytes_of(elements);
    if (overflows || !length || data > source_->size() || *length != source_->size() - data) {
      refuse("its size does not fit its shape");
    }
    std::string name = last_component(path);
    constexpr std::string_view kEnding = ".npy";
    if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
    record.length = *length;
    record.name_length = static_cast<std::uint32_t>(name.size());
    record.rank = static_cast<std::uint32_t>(dims.size());
    Header header;
    header.raw = {0, data};
    header.tensors = {record};
    header.names = std::move(name);
    header.dims = std::move(dims);
    header.by_name = {0};
    return {.source = std::move(source_),
            .format = &kNpyFormat,
            .header = std::move(header),
            .label = last_component(path),
            .directory = parent_name(path)};
  }

  std::string place_;
  std::unique_ptr<const Source> source_;
  Sources& sources_;
  std::string dict_;
};

}  // namespace

Part read_npy(const std::string& path, Sources& sources) {
  return Reader(path, sources.open(path), sources).read(path);
}

}  // namespace stfs
