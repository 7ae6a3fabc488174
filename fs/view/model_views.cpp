#include "fs/view/families.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace stfs {
namespace {

const ModelFile& file_of(const ViewFile& file) {
  return file.checkpoint.model_files()[file.number];
}

// An edited text in place of a source. Reading it fails once the source has changed.
class EditedFile : public Producer {
 public:
  explicit EditedFile(const ModelFile& file) : file_(file) {}

  std::uint64_t size() const override { return file_.text->size(); }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override {
    std::memcpy(out.data(), file_.text->data() + offset, out.size());
    return 0;
  }
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}
  int verify() const override { return file_.source->verify(); }

 private:
  const ModelFile& file_;
};

}  // namespace

bool has_model(const Checkpoint& checkpoint) { return !checkpoint.model_files().empty(); }

// Returns the names of the checkpoint's files, followed by the merged file.
NameList model_names(const Checkpoint& checkpoint) {
  NameList names;
  for (const ModelFile& file : checkpoint.model_files()) names.add(file.name);
  names.add("model.safetensors");
  names.sort();
  return names;
}

std::optional<Node> model_link(const Checkpoint& checkpoint, std::uint64_t number) {
  if (number < checkpoint.model_files().size()) return std::nullopt;
  return Node{View::kControl, false, kMergedFile};
}

int verify_model_file(const ViewFile& file) { return file_of(file).source->verify(); }

int make_model_file(const ViewFile& file, Content& content) {
  content.production(std::make_unique<EditedFile>(file_of(file)));
  return 0;
}

std::optional<Extent> model_file_extent(const ViewFile& file) {
  const ModelFile& shown = file_of(file);
  if (shown.text) return std::nullopt;
  return Extent{shown.source.get(), 0, shown.source->size()};
}

timespec model_file_mtime(const ViewFile& file) { return file_of(file).source->mtime(); }

}  // namespace stfs
