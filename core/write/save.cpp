#include "core/write/save.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/opened/read_failure.h"
#include "core/recipe/write_content.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"
#include "core/write/file_layout.h"
#include "core/write/header.h"
#include "core/write/input_files.h"
#include "core/write/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

namespace stfs {
namespace {

constexpr std::string_view kGgufEnding = ".gguf";
// The endings of formats that stfs does not write. Programs that choose the format by the ending
// would refuse such a file.
constexpr std::array<std::string_view, 5> kOtherEndings{".npz", ".npy", ".pt", ".pth", ".ckpt"};
constexpr std::string_view kSafetensorsEnding = ".safetensors";

std::string file_name(std::size_t i, std::size_t count) {
  return count == 1 ? "model.safetensors" : shard_name(i + 1, count);
}

// Returns the number of bytes of `content` that a file can share with local files, in whole blocks.
std::uint64_t shareable_bytes(const Content& content) {
  std::uint64_t shareable = 0;
  for (const Content::Place& place : content.places()) {
    if (!place.extent || place.extent->source->local_file() == nullptr) continue;
    shareable += shareable_part(place.begin, *place.extent).length;
  }
  return shareable;
}

}  // namespace

std::uint64_t write_bytes(const Checkpoint& checkpoint, const Content& content, int fd,
                          const std::string& output, const Progress& progress,
                          const std::atomic<bool>* stop) {
  const auto tell = [&](std::uint64_t bytes) {
    if (progress) progress(bytes);
  };
  const Written written = write_content(content, fd, tell, stop);
  if (written.failed_reading) throw read_failure(checkpoint, "", written.error);
  if (written.error != 0) throw_errno(ErrorCode::kUnreadable, output, "", written.error);
  return written.shared;
}

bool means_directory(const SaveOptions& options) {
  const std::string& output = options.output;
  if (options.shard_size != 0 &&
      (output == "-" || output.ends_with(kSafetensorsEnding) || output.ends_with(kGgufEnding))) {
    throw Error(ErrorCode::kUsage, output, "shards need a directory: choose a new one");
  }
  for (const std::string_view ending : kOtherEndings) {
    if (!output.ends_with(ending)) continue;
    throw Error(
        ErrorCode::kUsage, output,
        "stfs writes only safetensors and GGUF: use a name that ends in .safetensors or .gguf");
  }
  if (options.shard_size != 0 || output.ends_with('/')) return true;
  if (!options.shares || output == "-" || output.ends_with(kSafetensorsEnding) ||
      output.ends_with(kGgufEnding)) {
    return false;
  }
  struct stat status {};
  return ::stat(output.c_str(), &status) != 0 || S_ISDIR(status.st_mode);
}

Plan::Plan(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
           SaveOptions options)
    : checkpoint_(checkpoint),
      options_(std::move(options)),
      safetensors_(checkpoint),
      gguf_(checkpoint),
      is_directory_(means_directory(options_)),
      shards_(shards_of(tensors)) {
  for (const auto& shard : shards_) bytes_ += files_.emplace_back(file_of(shard)).size();
}

std::uint64_t Plan::shareable() const {
  std::string directory = options_.output;
  while (is_directory_ && directory.size() > 1 && directory.back() == '/') directory.pop_back();
  directory = parent_name(directory);
  const UniqueFd file(
      ::open(directory.empty() ? "." : directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  const auto can_share_one = [&](const Content::Place& place) {
    return place.extent && can_share(*place.extent, file.get());
  };
  std::uint64_t shareable = 0;
  bool can = false;
  for (const Content& content : files_) {
    can = can || (file && std::ranges::any_of(content.places(), can_share_one));
    shareable += shareable_bytes(content);
  }
  return can ? shareable : 0;
}

std::uint64_t Plan::write_file(int fd, const std::string& output, const Progress& progress) const {
  return write_bytes(checkpoint_, files_.front(), fd, output, progress, options_.stop);
}

std::uint64_t Plan::write_directory(SignalCleanup at_signal, const Progress& progress) const {
  NewDirectory directory(options_.output, at_signal);
  std::uint64_t shared = 0;
  const auto write = [&](const Content& content, const std::string& name) {
    const UniqueFd file = directory.create(name);
    shared += write_bytes(checkpoint_, content, file.get(), options_.output + "/" + name, progress,
                          options_.stop);
    directory.finish(file, name);
  };
  for (std::size_t i = 0; i < files_.size(); ++i) write(files_[i], file_name(i, files_.size()));
  for (const ModelFile& file : checkpoint_.model_files()) {
    Content content;
    if (file.text) {
      content.borrowed(*file.text);
    } else {
      content.extent(*file.source, 0, file.source->size());
    }
    write(content, file.name);
  }
  if (shards_.size() > 1) {
    Content content;
    content.literal(index());
    write(content, kIndexName);
  }
  directory.commit();
  return shared;
}

// Divides tensors into shards of at most SaveOptions::shard_size bytes. Each shard has at least one
// tensor, so a larger tensor has a shard of its own.
std::vector<std::vector<std::uint32_t>> Plan::shards_of(
    std::span<const std::uint32_t> tensors) const {
  std::vector<std::vector<std::uint32_t>> shards(1);
  std::uint64_t bytes = 0;
  for (const std::uint32_t number : tensors) {
    const std::uint64_t length = checkpoint_.tensor(number).length;
    if (options_.shard_size != 0 && !shards.back().empty() &&
        (bytes > options_.shard_size || length > options_.shard_size - bytes)) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(number);
    bytes += length;
  }
  return shards;
}

Content Plan::file_of(std::span<const std::uint32_t> tensors) const {
  const bool is_gguf = !is_directory_ && options_.output.ends_with(kGgufEnding);
  return is_gguf ? gguf_of(tensors) : safetensors_of(tensors);
}

void Plan::refuse_tensor(const Tensor& tensor, const std::string& rule) const {
  throw Error(ErrorCode::kUsage, public_name(options_.source),
              "tensor " + in_quotes(tensor.name) + ": " + rule);
}

Content Plan::safetensors_of(std::span<const std::uint32_t> tensors) const {
  for (const std::uint32_t number : tensors) {
    const Tensor tensor = checkpoint_.tensor(number);
    if (fits_safetensors(tensor)) continue;
    refuse_tensor(tensor, std::string(!is_utf8(tensor.name)
                                          ? "its name is not UTF-8, which safetensors requires"
                                      : tensor.name == "__metadata__"
                                          ? "safetensors reserves this name for the metadata"
                                          : "its dimensions overflow 64 bits, which "
                                            "safetensors does not allow") +
                              ": leave the tensor out, or write a .gguf file");
  }
  std::optional<Content> content;
  if (options_.shares) {
    FileLayout placement = placement_of(checkpoint_, tensors);
    content = safetensors_.make_placed(std::move(placement.tensors), placement.phase);
  } else {
    content = safetensors_.make({tensors.begin(), tensors.end()});
  }
  if (content) return *std::move(content);
  throw Error(ErrorCode::kUsage, options_.output,
              "the header would exceed the format's limit of 100000000 bytes: write fewer tensors");
}

Content Plan::gguf_of(std::span<const std::uint32_t> tensors) const {
  for (const std::uint32_t number : tensors) {
    if (gguf_.can_hold(number)) continue;
    const Tensor tensor = checkpoint_.tensor(number);
    refuse_tensor(tensor, gguf_.is_dequantized(number)
                              ? "it is dequantised: write a .safetensors file"
                          : is_gguf_part(checkpoint_.parts().front())
                              ? "a GGUF file cannot hold its type, its name or its shape: edit it"
                              : "not from a GGUF file: write a .safetensors file");
  }
  if (const auto number = gguf_.with_other_scale(tensors)) {
    refuse_tensor(checkpoint_.tensor(*number),
                  "its scale would not be beside it under its name, or would scale it a second "
                  "time: leave both unchanged, or dequantise and write a .safetensors file");
  }
  Content content;
  if (gguf_.make(tensors, content) == 0) return content;
  throw Error(ErrorCode::kUsage, options_.output,
              "the file would have more than 2^63 bytes: write fewer tensors");
}

// Returns the text of the index of the shards, in the form of Hugging Face's libraries.
std::string Plan::index() const {
  std::map<std::string_view, std::size_t> shard_of;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const std::uint32_t number : shards_[i]) {
      shard_of.emplace(checkpoint_.name(number), i);
      total += checkpoint_.tensor(number).length;
    }
  }
  std::vector<std::pair<std::string_view, std::string>> rows;
  rows.reserve(shard_of.size());
  for (const auto& [name, shard] : shard_of) {
    rows.emplace_back(name, file_name(shard, shards_.size()));
  }
  return index_json("{\"total_size\": " + std::to_string(total) + "}", rows);
}

std::uint64_t save(const Checkpoint& checkpoint, const Sources& sources, const SaveOptions& options,
                   bool replaces) {
  std::vector<std::uint32_t> all(checkpoint.tensor_count());
  std::iota(all.begin(), all.end(), 0U);
  const Plan plan(checkpoint, all, options);
  if (plan.is_directory()) return plan.write_directory(SignalCleanup::kNothing, nullptr);
  struct stat status {};
  if (::stat(options.output.c_str(), &status) == 0 && is_read(status, options.output, sources)) {
    throw Error(ErrorCode::kUsage, options.output, "a file of the source: choose another name");
  }
  NewFile file(options.output, replaces ? NewFile::Existing::kReplace : NewFile::Existing::kKeep,
               SignalCleanup::kNothing);
  const std::uint64_t shared = plan.write_file(file.fd(), options.output, nullptr);
  file.commit();
  return shared;
}

}  // namespace stfs
