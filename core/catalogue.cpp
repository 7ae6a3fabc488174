#include "core/catalogue.h"

#include "core/table.h"
#include "core/text.h"

#include <map>

namespace stfs {

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
  std::uint64_t bytes = 0;
  std::uint64_t parameters = 0;
  std::map<DType, std::uint64_t> by_dtype;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    bytes += tensor.length;
    parameters += tensor.elements();
    by_dtype[tensor.dtype] += tensor.length;
  }
  // Written by hand: metadata may have millions of keys, and as a document each would cost some
  // hundred bytes.
  std::string out = "{\n  \"sources\": [";
  const char* separator = "";
  const auto item = [&](const std::string& text) {
    ((out += separator) += "\n    ") += text;
    separator = ",";
  };
  const auto section = [&](const char* close, const char* name, const char* open) {
    ((((out += *separator == '\0' ? "" : "\n  ") += close) += ",\n  \"") += name) += "\": ";
    out += open;
    separator = "";
  };
  for (const auto& source : checkpoint.sources()) {
    const Mapping& file = source->file;
    item("{\"label\": " + json_string(source->label) + ", \"path\": " + json_string(file.path()) +
         ", \"size\": " + std::to_string(file.size()) + ", \"mtime\": \"" +
         rfc3339(file.mtime().tv_sec, file.mtime().tv_nsec) +
         "\", \"tensors\": " + std::to_string(source->header.tensors.size()) + "}");
  }
  section("]", "tensors", "");
  out += std::to_string(checkpoint.tensor_count());
  section("", "bytes", "");
  out += std::to_string(bytes);
  section("", "parameters", "");
  out += std::to_string(parameters);
  section("", "bytes_per_dtype", "{");
  for (const auto& [dtype, count] : by_dtype) {
    item(json_string(dtype_name(dtype)) + ": " + std::to_string(count));
  }
  section("}", "metadata", "{");
  for (const auto& [key, value] : checkpoint.metadata()) {
    item(json_string(key) + ": " + json_string(value));
  }
  section("}", "metadata_conflicts", "[");
  for (const std::string& key : checkpoint.metadata_conflicts()) item(json_string(key));
  section("]", "missing", "[");
  for (const MissingTensor& tensor : checkpoint.missing()) {
    item("{\"name\": " + json_string(tensor.name) + ", \"source\": " + json_string(tensor.source) +
         "}");
  }
  return (out += *separator == '\0' ? "" : "\n  ") += "]\n}\n";
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
