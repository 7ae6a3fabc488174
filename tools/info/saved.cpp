#include "tools/info/saved.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/gguf_writer.h"
#include "core/checkpoint/placement.h"
#include "core/checkpoint/writer.h"
#include "core/command/terminal.h"
#include "core/recipe/written.h"
#include "tools/info/new_directory.h"
#include "tools/info/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::string_view kGgufEnding = ".gguf";
constexpr std::string_view kSafetensorsEnding = ".safetensors";

// Throws for a read that failed: with the reason of the source that knows one.
[[noreturn]] void fail_read_of(const Checkpoint& checkpoint, const std::string& source, int error) {
  for (const Part& part : checkpoint.parts()) {
    const std::string why = part.source->failure_text();
    if (!why.empty()) fail_read(part.source->path(), "", error, why);
  }
  fail_read(source, "", error);
}

// "3 tensors, 14.2 GiB; 14.2 GiB of it shared with the source"
std::string summary(std::size_t tensors, std::uint64_t bytes, std::uint64_t shared) {
  std::string text = std::to_string(tensors) + (tensors == 1 ? " tensor, " : " tensors, ") +
                     human_bytes(bytes);
  if (shared != 0) text += ", " + human_bytes(shared) + " of it shared with the source";
  return text;
}

class Saver {
 public:
  Saver(const Checkpoint& checkpoint, const Arguments& arguments)
      : checkpoint_(checkpoint), arguments_(arguments), safetensors_(checkpoint), gguf_(checkpoint) {}

  // The file with these tensors. Throws Error kUsage for what the format cannot hold.
  Content file_of(std::span<const std::uint32_t> tensors) const {
    return arguments_.output.ends_with(kGgufEnding) ? gguf_of(tensors) : safetensors_of(tensors);
  }

  // Writes a file and returns the bytes that are shared.
  std::uint64_t write(const Content& content, int fd, const std::string& to,
                      ProgressBar& bar) const {
    std::uint64_t shared = 0;
    run_beside([&] {
      shared = write_bytes(checkpoint_, content, fd, {arguments_.source, to}, &bar);
    });
    return shared;
  }

  // The tensors in shards of at most Arguments::shard_size bytes, each with one tensor or more.
  std::vector<std::vector<std::uint32_t>> shards_of(std::span<const std::uint32_t> tensors) const {
    std::vector<std::vector<std::uint32_t>> shards(1);
    std::uint64_t bytes = 0;
    for (const std::uint32_t number : tensors) {
      const std::uint64_t length = checkpoint_.tensor(number).length;
      if (arguments_.shard_size != 0 && !shards.back().empty() &&
          (bytes > arguments_.shard_size || length > arguments_.shard_size - bytes)) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back(number);
      bytes += length;
    }
    return shards;
  }

 private:
  [[noreturn]] void refuse_tensor(const Tensor& tensor, const std::string& rule) const {
    throw Error(ErrorCode::kUsage, public_name(arguments_.source),
                "tensor " + in_quotes(tensor.name) + ": " + rule);
  }

  Content safetensors_of(std::span<const std::uint32_t> tensors) const {
    for (const std::uint32_t number : tensors) {
      const Tensor tensor = checkpoint_.tensor(number);
      if (fits_safetensors(tensor)) continue;
      refuse_tensor(
          tensor,
          std::string(!is_utf8(tensor.name)           ? "its name is not UTF-8, as safetensors needs"
                      : tensor.name == "__metadata__" ? "in safetensors this names the metadata"
                                                      : "its dimensions overflow 64 bits, which "
                                                        "safetensors does not allow") +
              ": leave it out, or write a .gguf file");
    }
    std::optional<Content> content;
    if (arguments_.shares) {
      Placement placement = placement_of(checkpoint_, tensors);
      content = safetensors_.make_placed(std::move(placement.tensors), placement.phase);
    } else {
      content = safetensors_.make({tensors.begin(), tensors.end()});
    }
    if (content) return *std::move(content);
    throw Error(ErrorCode::kUsage, arguments_.output,
                "the header would exceed the format's limit of 100000000 bytes: write fewer "
                "tensors");
  }

  Content gguf_of(std::span<const std::uint32_t> tensors) const {
    for (const std::uint32_t number : tensors) {
      if (gguf_.can_hold(number)) continue;
      refuse_tensor(checkpoint_.tensor(number), "not from a GGUF file: write a .safetensors file");
    }
    Content content;
    if (gguf_.make(tensors, content) == 0) return content;
    throw Error(ErrorCode::kUsage, arguments_.output,
                "the file would have more than 2^63 bytes: write fewer tensors");
  }

  const Checkpoint& checkpoint_;
  const Arguments& arguments_;
  SafetensorsFiles safetensors_;
  GgufFiles gguf_;
};

// The bytes of a file that can be shared with local files, where its file system can.
std::uint64_t shareable_bytes(const Content& content) {
  std::uint64_t shareable = 0;
  for (const Content::Place& place : content.places()) {
    if (!place.extent || place.extent->source->local_file() == nullptr) continue;
    if (place.begin % kShareBlock != place.extent->offset % kShareBlock) continue;
    const std::uint64_t begin = (place.begin + kShareBlock - 1) / kShareBlock;
    const std::uint64_t end = (place.begin + place.length) / kShareBlock;
    if (end > begin) shareable += (end - begin) * kShareBlock;
  }
  return shareable;
}

// Whether the directory of the output can share the first extent of a file.
bool directory_shares(const Content& content, const std::string& output, bool is_directory) {
  std::string directory = output;
  if (is_directory) {
    while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  }
  directory = parent_name(directory);
  const UniqueFd file(::open(directory.empty() ? "." : directory.c_str(),
                             O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) return false;
  const std::vector<Content::Place> places = content.places();
  return std::ranges::any_of(places, [&](const Content::Place& place) {
    return place.extent && place.extent->length >= 2 * kShareBlock &&
           can_share(*place.extent, file.get());
  });
}

std::string shard_name(std::size_t i, std::size_t count) {
  if (count == 1) return "model.safetensors";
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, count);
  return name.data();
}

// The JSON of an index of shards, as Hugging Face writes it.
std::string index_of(const Checkpoint& checkpoint,
                     const std::vector<std::vector<std::uint32_t>>& shards) {
  std::map<std::string_view, std::size_t> shard_of;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const std::uint32_t number : shards[i]) {
      shard_of.emplace(checkpoint.name(number), i);
      total += checkpoint.tensor(number).length;
    }
  }
  std::string text;
  TextWriter out(text);
  out.add("{\n  \"metadata\": {\"total_size\": ").number(total).add("},\n  \"weight_map\": {");
  const char* separator = "\n    ";
  for (const auto& [name, shard] : shard_of) {
    out.add(separator).json(name).add(": ").json(shard_name(shard, shards.size()));
    separator = ",\n    ";
  }
  out.add("\n  }\n}\n");
  return text;
}

bool is_directory(const Arguments& arguments) {
  const std::string& output = arguments.output;
  if (arguments.shard_size != 0 || output.ends_with('/')) return true;
  if (!arguments.shares || output == "-" || output.ends_with(kSafetensorsEnding) ||
      output.ends_with(kGgufEnding)) {
    return false;
  }
  struct stat status {};
  return ::stat(output.c_str(), &status) != 0 || S_ISDIR(status.st_mode);
}

// Writes a directory: shards, the files for loaders, and the index last.
std::uint64_t write_directory(const Saver& saver, const Checkpoint& checkpoint,
                              const std::vector<std::vector<std::uint32_t>>& shards,
                              const std::vector<Content>& files, const Arguments& arguments,
                              ProgressBar& bar) {
  NewDirectory directory(arguments.output);
  std::uint64_t shared = 0;
  const auto write = [&](const Content& content, const std::string& name) {
    const UniqueFd file = directory.create(name);
    shared += saver.write(content, file.get(), arguments.output + "/" + name, bar);
    directory.finish(file, name);
  };
  for (std::size_t i = 0; i < files.size(); ++i) write(files[i], shard_name(i, files.size()));
  for (const ModelFile& file : checkpoint.model_files()) {
    Content content;
    if (file.text) {
      content.borrowed(*file.text);
    } else {
      content.extent(*file.source, 0, file.source->size());
    }
    write(content, file.name);
  }
  if (shards.size() > 1) {
    Content content;
    content.literal(index_of(checkpoint, shards));
    write(content, "model.safetensors.index.json");
  }
  directory.commit();
  return shared;
}

}  // namespace

std::uint64_t write_bytes(const Checkpoint& checkpoint, const Content& content, int fd,
                          const CopyNames& names, ProgressBar* bar) {
  const Written written = write_content(content, fd, [bar](std::uint64_t bytes) {
    if (bar != nullptr) bar->add(bytes);
  });
  if (written.is_of_source) fail_read_of(checkpoint, names.source, written.error);
  if (written.error != 0) throw_errno(ErrorCode::kUnreadable, names.output, "", written.error);
  return written.shared;
}

int save(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors,
         const Arguments& arguments, const Sources& sources) {
  const Saver saver(checkpoint, arguments);
  const bool has_shards = is_directory(arguments);
  std::vector<std::vector<std::uint32_t>> shards(1);
  if (has_shards) {
    shards = saver.shards_of(tensors);
  } else {
    shards.front().assign(tensors.begin(), tensors.end());
  }
  std::vector<Content> files;
  std::uint64_t bytes = 0;
  for (const auto& shard : shards) bytes += files.emplace_back(saver.file_of(shard)).size();
  std::uint64_t shared = 0;
  if (arguments.dry_run) {
    const bool can = std::ranges::any_of(files, [&](const Content& content) {
      return directory_shares(content, arguments.output, has_shards);
    });
    for (const Content& content : files) shared += can ? shareable_bytes(content) : 0;
    print(printable(arguments.output) + ": would have " +
          summary(tensors.size(), bytes, shared) + ", " + human_bytes(bytes - shared) +
          " copied\n");
    return 0;
  }
  bool is_new_file = true;
  {
    ProgressBar bar(bytes);
    if (has_shards) {
      shared = write_directory(saver, checkpoint, shards, files, arguments, bar);
    } else {
      Output output(arguments, std::array{&checkpoint}, sources);
      shared = saver.write(files.front(), output.fd(), output.name(), bar);
      is_new_file = output.is_new_file();
      bar.end();
      output.commit();
    }
  }
  if (is_new_file && Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + summary(tensors.size(), bytes, shared) + "\n");
  }
  return 0;
}

}  // namespace stfs
