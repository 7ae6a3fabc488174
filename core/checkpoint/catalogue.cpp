#include "core/checkpoint/catalogue.h"

#include "core/recipe/table.h"

namespace stfs {

void write_tensor_json(const Tensor& tensor, TextWriter& out) {
  out.add("{\"path\":").json(tensor.path).add(",\"name\":").json(tensor.name);
  out.add(",\"dtype\":").json(dtype_name(tensor.dtype)).add(",\"shape\":");
  write_shape(tensor.shape, out);
  out.add(",\"bytes\":").number(tensor.length);
  if (tensor.locator) {
    out.add(",\"source\":").json(tensor.locator->source->path());
    out.add(",\"offset\":").number(tensor.locator->offset).add("}");
  } else {
    out.add(",\"source\":null,\"offset\":null}");
  }
}

std::string tensor_json(const Tensor& tensor) {
  std::string text;
  TextWriter out(text);
  write_tensor_json(tensor, out);
  return text;
}

Totals totals_of(const Checkpoint& checkpoint) {
  Totals totals;
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
    const Tensor tensor = checkpoint.tensor(i);
    for (Total* const total : {&totals.all, &totals.by_dtype[tensor.dtype]}) {
      total->tensors += 1;
      total->parameters += tensor.elements();
      total->bytes += tensor.length;
    }
  }
  return totals;
}

void write_info_json(const Checkpoint& checkpoint, TextWriter& out) {
  const Totals totals = totals_of(checkpoint);
  // Write the text directly, because a JSON document would take hundreds of bytes per key, and the
  // metadata may have millions of keys.
  bool is_empty = true;  // the open array or object has no items yet
  const auto item = [&]() -> TextWriter& {
    out.add(is_empty ? "\n    " : ",\n    ");
    is_empty = false;
    return out;
  };
  const auto close = [&](std::string_view bracket) {
    out.add(is_empty ? "" : "\n  ").add(bracket);
    is_empty = true;
  };
  out.add("{\n  \"sources\": [");
  for (const Part& part : checkpoint.parts()) {
    const Source& source = *part.source;
    item().add("{\"label\": ").json(part.label).add(", \"path\": ").json(source.path());
    out.add(", \"size\": ").number(source.size()).add(", \"mtime\": \"");
    out.add(rfc3339(source.mtime().tv_sec, source.mtime().tv_nsec)).add("\", \"tensors\": ");
    out.number(part.header.tensors.size()).add("}");
  }
  close("]");
  out.add(",\n  \"tensors\": ").number(totals.all.tensors);
  out.add(",\n  \"bytes\": ").number(totals.all.bytes);
  out.add(",\n  \"parameters\": ").number(totals.all.parameters);
  out.add(",\n  \"bytes_per_dtype\": {");
  for (const auto& [dtype, total] : totals.by_dtype) {
    item().json(dtype_name(dtype)).add(": ").number(total.bytes);
  }
  close("}");
  out.add(",\n  \"metadata\": {");
  for (std::uint32_t i = 0; i < checkpoint.metadata_count(); ++i) {
    const MetadataItem value = checkpoint.metadata_item(i);
    if (!is_utf8(value.key)) continue;  // because two such keys could become equal in JSON
    item().json(value.key).add(": ");
    write_value_json(value, out);
  }
  close("}");
  out.add(",\n  \"metadata_conflicts\": [");
  for (const std::string& key : checkpoint.metadata_conflicts()) item().json(key);
  close("]");
  out.add(",\n  \"missing\": [");
  for (const MissingTensor& tensor : checkpoint.missing()) {
    item().add("{\"name\": ");
    if (tensor.name) out.json(*tensor.name);
    out.add(tensor.name ? ", \"source\": " : "null, \"source\": ").json(tensor.source).add("}");
  }
  close("]");
  out.add("\n}\n");
}

std::unique_ptr<const Producer> tensors_json(const Checkpoint& checkpoint) {
  // The first row is "[" and the last is "]". The rows of all tensors except the last end in a
  // comma.
  const std::uint64_t count = checkpoint.tensor_count();
  const auto write_row = [&checkpoint, count](std::uint64_t row, TextWriter& out) {
    if (row == 0) {
      out.add("[\n");
    } else if (row == count + 1) {
      out.add("]\n");
    } else {
      write_tensor_json(checkpoint.tensor(static_cast<std::uint32_t>(row - 1)), out);
      out.add(row == count ? "\n" : ",\n");
    }
  };
  return std::make_unique<Table>(count + 2, write_row);
}

std::unique_ptr<const Producer> tensors_tsv(const Checkpoint& checkpoint) {
  const auto write_row = [&checkpoint](std::uint64_t row, TextWriter& out) {
    if (row == 0) {
      out.add("path\tname\tdtype\tshape\tbytes\tsource\toffset\n");
      return;
    }
    const Tensor tensor = checkpoint.tensor(static_cast<std::uint32_t>(row - 1));
    out.add(tensor.path).add("\t").printable(tensor.name).add("\t");
    out.add(dtype_name(tensor.dtype)).add("\t");
    write_shape(tensor.shape, out);
    out.add("\t").number(tensor.length).add("\t");
    if (tensor.locator) out.printable(tensor.locator->source->path());
    out.add("\t");
    if (tensor.locator) out.number(tensor.locator->offset);
    out.add("\n");
  };
  return std::make_unique<Table>(std::uint64_t{checkpoint.tensor_count()} + 1, write_row);
}

}  // namespace stfs
