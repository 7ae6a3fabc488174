#include "core/catalogue.h"

#include "core/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

namespace stfs {
namespace {

// A text of many rows, each a function of its number. What is kept is where every 64th row begins.
class Table : public Producer {
 public:
  using AppendRow = std::function<void(std::uint64_t, std::string&)>;

  Table(std::uint64_t rows, AppendRow append_row)
      : rows_(rows), append_row_(std::move(append_row)) {
    std::string row;
    for (std::uint64_t i = 0; i < rows_; ++i) {
      if (i % kBlock == 0) block_begin_.push_back(size_);
      row.clear();
      append_row_(i, row);
      size_ += row.size();
    }
  }

  std::uint64_t size() const override { return size_; }

  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    auto block = static_cast<std::size_t>(
        std::prev(std::ranges::upper_bound(block_begin_, offset)) - block_begin_.begin());
    std::string text;
    for (; !out.empty(); ++block) {
      text.clear();
      const std::uint64_t first = block * kBlock;
      const std::uint64_t last = std::min(rows_, first + kBlock);
      for (std::uint64_t i = first; i < last; ++i) append_row_(i, text);
      const auto skip = static_cast<std::size_t>(offset - block_begin_[block]);
      const std::size_t take = std::min(out.size(), text.size() - skip);
      std::memcpy(out.data(), text.data() + skip, take);
      out = out.subspan(take);
      offset += take;
    }
    return 0;
  }

 private:
  static constexpr std::uint64_t kBlock = 64;

  std::uint64_t rows_;
  AppendRow append_row_;
  std::vector<std::uint64_t> block_begin_;
  std::uint64_t size_ = 0;
};

}  // namespace

std::string shape_json(std::span<const std::uint64_t> shape) {
  std::string out = "[";
  for (const std::uint64_t dim : shape) {
    if (out.size() > 1) out += ',';
    out += std::to_string(dim);
  }
  return out + ']';
}

std::string tensor_json(const Tensor& tensor) {
  return "{\"path\":" + json_string(tensor.path) + ",\"name\":" + json_string(tensor.name) +
         ",\"dtype\":" + json_string(dtype_name(tensor.dtype)) +
         ",\"shape\":" + shape_json(tensor.shape) + ",\"bytes\":" + std::to_string(tensor.length) +
         ",\"source\":" + json_string(tensor.source->file.path()) +
         ",\"offset\":" + std::to_string(tensor.offset) + "}";
}

std::string info_json(const Checkpoint& checkpoint) {
  using nlohmann::ordered_json;
  ordered_json sources = ordered_json::array();
  for (const auto& source : checkpoint.sources()) {
    const Mapping& file = source->file;
    sources.push_back({{"label", source->label},
                       {"path", file.path()},
                       {"size", file.size()},
                       {"mtime", rfc3339(file.mtime().tv_sec, file.mtime().tv_nsec)},
                       {"tensors", source->header.tensors.size()}});
  }
  std::uint64_t bytes = 0;
  std::uint64_t parameters = 0;
  std::map<DType, std::uint64_t> by_dtype;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    bytes += tensor.length;
    parameters += tensor.elements();
    by_dtype[tensor.dtype] += tensor.length;
  }
  ordered_json bytes_per_dtype = ordered_json::object();
  for (const auto& [dtype, count] : by_dtype) bytes_per_dtype[dtype_name(dtype)] = count;
  nlohmann::json metadata = nlohmann::json::object();
  for (const auto& [key, value] : checkpoint.metadata()) metadata[key] = value;
  ordered_json missing = ordered_json::array();
  for (const MissingTensor& tensor : checkpoint.missing()) {
    missing.push_back({{"name", tensor.name}, {"source", tensor.source}});
  }
  const ordered_json info = {{"sources", sources},
                             {"tensors", checkpoint.tensor_count()},
                             {"bytes", bytes},
                             {"parameters", parameters},
                             {"bytes_per_dtype", bytes_per_dtype},
                             {"metadata", metadata},
                             {"metadata_conflicts", checkpoint.metadata_conflicts()},
                             {"missing", missing}};
  return info.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::unique_ptr<const Producer> tensors_json(const Checkpoint& checkpoint) {
  // Row 0 is "[", the last is "]"; every tensor but the last ends in a comma.
  const std::uint64_t count = checkpoint.tensor_count();
  const auto append_row = [&checkpoint, count](std::uint64_t row, std::string& out) {
    if (row == 0) {
      out += "[\n";
    } else if (row == count + 1) {
      out += "]\n";
    } else {
      out += tensor_json(checkpoint.tensor(static_cast<std::uint32_t>(row - 1)));
      out += row == count ? "\n" : ",\n";
    }
  };
  return std::make_unique<Table>(count + 2, append_row);
}

std::unique_ptr<const Producer> tensors_tsv(const Checkpoint& checkpoint) {
  const auto append_row = [&checkpoint](std::uint64_t row, std::string& out) {
    if (row == 0) {
      out += "path\tname\tdtype\tshape\tbytes\tsource\toffset\n";
      return;
    }
    const Tensor tensor = checkpoint.tensor(static_cast<std::uint32_t>(row - 1));
    ((out += tensor.path) += '\t') += printable(tensor.name);
    ((out += '\t') += dtype_name(tensor.dtype)) += '\t';
    out += shape_json(tensor.shape);
    (out += '\t') += std::to_string(tensor.length);
    (out += '\t') += printable(tensor.source->file.path());
    ((out += '\t') += std::to_string(tensor.offset)) += '\n';
  };
  return std::make_unique<Table>(std::uint64_t{checkpoint.tensor_count()} + 1, append_row);
}

}  // namespace stfs
