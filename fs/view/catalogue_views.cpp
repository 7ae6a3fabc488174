#include "core/checkpoint/catalogue.h"
#include "fs/view/families.h"

namespace stfs {
namespace {

const Part& part_of(const ViewFile& file) { return file.checkpoint.parts()[file.number]; }

MetadataItem item_of(const ViewFile& file) { return file.checkpoint.metadata_item(file.number); }

}  // namespace

int needs_no_source(const ViewFile&) { return 0; }

int json_size(const ViewFile& file, std::uint64_t& bytes) {
  TextWriter counted;
  write_tensor_json(file.tensor(), counted);
  bytes = counted.size() + 1;
  return 0;
}
int make_json(const ViewFile& file, Content& content) {
  content.literal(tensor_json(file.tensor()) + "\n");
  return 0;
}

int info_json_size(const ViewFile& file, std::uint64_t& bytes) {
  TextWriter counted;
  write_info_json(file.checkpoint, counted);
  bytes = counted.size();
  return 0;
}
int make_info_json(const ViewFile& file, Content& content) {
  std::uint64_t bytes = 0;
  info_json_size(file, bytes);
  std::string text;
  text.reserve(static_cast<std::size_t>(bytes));
  TextWriter out(text);
  write_info_json(file.checkpoint, out);
  content.literal(std::move(text));
  return 0;
}

int make_tensors_json(const ViewFile& file, Content& content) {
  content.production(tensors_json(file.checkpoint));
  return 0;
}
int make_tensors_tsv(const ViewFile& file, Content& content) {
  content.production(tensors_tsv(file.checkpoint));
  return 0;
}

NameList header_names(const Checkpoint& checkpoint) {
  NameList names;
  for (const Part& part : checkpoint.parts()) {
    names.add(encode_component(part.label) + std::string(part.format->raw_suffix));
  }
  names.sort();
  return names;
}
int verify_header(const ViewFile& file) { return part_of(file).source->verify(); }
timespec header_mtime(const ViewFile& file) { return part_of(file).source->mtime(); }
std::optional<Extent> header_extent(const ViewFile& file) {
  const auto& [offset, length] = part_of(file).header.raw;
  return Extent{part_of(file).source.get(), offset, length};
}

NameList metadata_names(const Checkpoint& checkpoint) {
  NameList names;
  for (std::uint32_t i = 0; i < checkpoint.metadata_count(); ++i) {
    names.add(encode_component(checkpoint.metadata_item(i).key));
  }
  names.sort();
  return names;
}
int metadata_size(const ViewFile& file, std::uint64_t& bytes) {
  return text_size(item_of(file), bytes);
}
int verify_metadata(const ViewFile& file) {
  const MetadataItem item = item_of(file);
  return item.value.has_text ? 0 : item.source->verify();
}
int make_metadata(const ViewFile& file, Content& content) {
  return make_text(item_of(file), content);
}

}  // namespace stfs
