// delta: what changed from one checkpoint to another, as trainers publish it.
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/new_file.h"
#include "core/command/terminal.h"
#include "core/layer/delta/encoder.h"
#include "core/layer/delta/version.h"
#include "core/recipe/arrival.h"
#include "core/remote/http/url.h"
#include "core/values/compare.h"
#include "tools/info/verbs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kTile = 1 << 20;  // bytes that are read of each checkpoint at a time

// A tensor that changed. Its frame lies in the file of frames.
struct EncodedTensor {
  std::string_view name;                 // may be ""
  std::uint64_t offset = 0, length = 0;  // of the frame
  std::string digest;                    // "": the tensor did not change
};

std::string six_digits(std::uint64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%06llu", static_cast<unsigned long long>(number));
  return text.data();
}

// The number at the end of a directory's name.
std::optional<std::uint64_t> number_at_end(std::string name) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  const std::size_t begin = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  std::uint64_t number = 0;
  const auto result = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

void refuse_other_tensors(const Checkpoint& before, const Checkpoint& after,
                          const Arguments& arguments) {
  const auto refuse = [&](std::string_view name, const std::string& rule) {
    throw Error(ErrorCode::kUsage, public_name(arguments.other),
                "tensor " + in_quotes(name) + ": " + rule +
                    ": a delta changes bytes of tensors, neither names nor shapes");
  };
  for (std::uint32_t i = 0; i < before.tensor_count(); ++i) {
    if (!after.find(before.name(i))) refuse(before.name(i), "only the old checkpoint has it");
  }
  for (std::uint32_t i = 0; i < after.tensor_count(); ++i) {
    const Tensor tensor = after.tensor(i);
    const auto number = before.find(tensor.name);
    if (!number) refuse(tensor.name, "only the new checkpoint has it");
    if (!is_utf8(tensor.name)) {
      refuse(tensor.name, "its name is not UTF-8, as safetensors needs");
    }
    const Tensor old = before.tensor(*number);
    if (old.dtype != tensor.dtype || !std::ranges::equal(old.shape, tensor.shape)) {
      refuse(tensor.name, std::string(dtype_name(old.dtype)) + " " + shape_json(old.shape) +
                              " became " + std::string(dtype_name(tensor.dtype)) + " " +
                              shape_json(tensor.shape));
    }
  }
}

class DeltaWriter {
 public:
  DeltaWriter(const Checkpoint& before, const Checkpoint& after, const Arguments& arguments)
      : before_(before),
        after_(after),
        arguments_(arguments),
        encoding_(*delta_encoding(arguments.encoding)),
        checksum_(*delta_checksum(arguments.checksum)),
        directory_(arguments.output, AtSignal::kRemove) {}

  void write() {
    frames_ = directory_.create(kFrames);
    encode_all();
    std::erase_if(encoded_, [](const EncodedTensor& tensor) { return tensor.digest.empty(); });
    write_shards();
    directory_.remove(kFrames);
    write_index();
    directory_.commit();
  }

  std::size_t changed() const { return encoded_.size(); }
  std::uint64_t bytes() const { return frames_end_; }

 private:
  static constexpr const char* kFrames = ".frames";

  void encode_all() {
    encoded_.resize(after_.tensor_count());
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < after_.tensor_count(); ++i) bytes += after_.tensor(i).length;
    ProgressBar bar(bytes);
    std::atomic<std::uint32_t> next = 0;
    on_threads(arguments_.threads(), [&](std::size_t) {
      for (std::uint32_t i = next++; i < after_.tensor_count(); i = next++) {
        if (has_failed_) return;
        try {
          encode(i, bar);
        } catch (...) {
          has_failed_ = true;
          throw;
        }
      }
    });
  }

  void encode(std::uint32_t i, ProgressBar& bar) {
    const Tensor after = after_.tensor(i);
    const Tensor before = before_.tensor(*before_.find(after.name));
    if (after.length == 0 || are_one(before, after)) return bar.add(after.length);
    const Content old_bytes = before.content(), new_bytes = after.content();
    SequentialReader old_reader(old_bytes), new_reader(new_bytes);
    FrameEncoder encoder(encoding_, checksum_, after.length);
    std::vector<std::byte> old_tile, new_tile;
    for (std::uint64_t at = 0; at < after.length;) {
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(kTile, after.length - at));
      old_tile.resize(some);
      new_tile.resize(some);
      if (const int error = old_reader.copy_unverified(at, old_tile)) fail(before, error);
      if (const int error = new_reader.copy_unverified(at, new_tile)) fail(after, error);
      encoder.add(old_tile, new_tile);
      at += some;
      bar.add(some);
    }
    if (const int error = old_bytes.verify()) fail(before, error);
    if (const int error = new_bytes.verify()) fail(after, error);
    if (!encoder.has_changes()) return;
    const std::vector<std::byte> frame = encoder.finish();
    const std::lock_guard lock(mutex_);
    if (const int error = write_exact(frames_.get(), frame)) {
      throw_errno(ErrorCode::kUnreadable, arguments_.output, "", error);
    }
    encoded_[i] = {after.name, frames_end_, frame.size(), encoder.digest()};
    frames_end_ += frame.size();
  }

  [[noreturn]] static void fail(const Tensor& tensor, int error) {
    const std::vector<Tensor> inputs =
        tensor.computed != nullptr ? tensor.computed->inputs() : std::vector{tensor};
    const Source& source = *inputs.front().locator->source;
    throw_read_failure(source, public_name(source.path()), "tensor " + in_quotes(tensor.name),
                       error);
  }

  // The frames in files of at most Arguments::shard_size bytes.
  void write_shards() {
    std::uint64_t bytes = 0;
    for (const EncodedTensor& tensor : encoded_) {
      const bool is_full =
          arguments_.shard_size != 0 && bytes != 0 && bytes + tensor.length > arguments_.shard_size;
      if (shards_.empty() || is_full) {
        shards_.emplace_back();
        bytes = 0;
      }
      shards_.back().push_back(&tensor);
      bytes += tensor.length;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) write_shard(i);
  }

  std::string shard_name(std::size_t i) const {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i, shards_.size());
    return name.data();
  }

  void write_shard(std::size_t i) {
    std::string header;
    TextWriter out(header);
    out.add("{\"__metadata__\":{");
    const char* separator = "";
    for (const EncodedTensor* const tensor : shards_[i]) {
      out.add(separator).json(tensor->name).add(":").json(tensor->digest);
      separator = ",";
    }
    out.add("}");
    std::uint64_t offset = 0;
    for (const EncodedTensor* const tensor : shards_[i]) {
      out.add(",").json(tensor->name).add(":{\"dtype\":\"U8\",\"shape\":[").number(tensor->length);
      out.add("],\"data_offsets\":[").number(offset).add(",").number(offset + tensor->length);
      out.add("]}");
      offset += tensor->length;
    }
    out.add("}");
    header.append((8 - header.size() % 8) % 8, ' ');
    std::uint64_t length = header.size();
    std::string prefix(sizeof length, '\0');
    std::memcpy(prefix.data(), &length, sizeof length);
    const UniqueFd file = directory_.create(shard_name(i));
    write_text(file, prefix + header);
    const UniqueFd frames = directory_.open(kFrames);
    std::vector<std::byte> buffer;
    for (const EncodedTensor* const tensor : shards_[i]) {
      for (std::uint64_t done = 0; done < tensor->length; done += buffer.size()) {
        buffer.resize(
            static_cast<std::size_t>(std::min<std::uint64_t>(kTile, tensor->length - done)));
        if (const int error = pread_exact(frames.get(), buffer, tensor->offset + done)) {
          throw_errno(ErrorCode::kUnreadable, arguments_.output, "", error);
        }
        if (const int error = write_exact(file.get(), buffer)) {
          throw_errno(ErrorCode::kUnreadable, arguments_.output, "", error);
        }
      }
    }
    directory_.finish(file, shard_name(i));
  }

  void write_index() {
    std::string text;
    TextWriter out(text);
    out.add("{\n  \"metadata\": {\"version\": \"").add(six_digits(*arguments_.version_number));
    out.add("\", \"base_version\": \"").add(six_digits(*arguments_.base_number));
    out.add("\", \"delta_encoding\": \"").add(word_of(encoding_));
    out.add("\", \"compression_format\": \"zstd\", \"checksum_format\": \"");
    out.add(word_of(checksum_)).add("\"},\n  \"weight_map\": {");
    const char* separator = "\n    ";
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      for (const EncodedTensor* const tensor : shards_[i]) {
        out.add(separator).json(tensor->name).add(": ").json(shard_name(i));
        separator = ",\n    ";
      }
    }
    out.add("}\n}\n");
    const std::string name = "model.safetensors.index.json";
    const UniqueFd file = directory_.create(name);
    write_text(file, text);
    directory_.finish(file, name);
  }

  void write_text(const UniqueFd& file, const std::string& text) const {
    if (const int error = write_exact(file.get(), std::as_bytes(std::span(text)))) {
      throw_errno(ErrorCode::kUnreadable, arguments_.output, "", error);
    }
  }

  const Checkpoint& before_;
  const Checkpoint& after_;
  const Arguments& arguments_;
  DeltaEncoding encoding_;
  DeltaChecksum checksum_;
  NewDirectory directory_;
  UniqueFd frames_;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;  // of the rest while tensors are encoded
  std::uint64_t frames_end_ = 0;
  std::vector<EncodedTensor> encoded_;
  std::vector<std::vector<const EncodedTensor*>> shards_;
};

}  // namespace

int delta(const Arguments& given) {
  Arguments arguments = given;
  if (!arguments.version_number) {
    const auto number = number_at_end(arguments.output);
    if (!number || *number == 0) {
      throw Error(ErrorCode::kUsage, arguments.output,
                  "the name does not end in the number of a version, as weight_v000012 does: give "
                  "it by --version");
    }
    arguments.version_number = *number;
  }
  if (!arguments.base_number) arguments.base_number = *arguments.version_number - 1;
  if (*arguments.base_number >= *arguments.version_number) {
    throw Error(ErrorCode::kUsage, "", "the base comes before the version: give a lower --base");
  }
  VerbSources sources(arguments);
  const Checkpoint before(std::span(&arguments.source, 1),
                          load_options(arguments, sources, arguments.old_layers));
  const Checkpoint after(std::span(&arguments.other, 1),
                         load_options(arguments, sources, arguments.new_layers));
  refuse_other_tensors(before, after, arguments);
  if (arguments.encoding == "overwrite") {
    for (std::uint32_t i = 0; i < after.tensor_count(); ++i) {
      if (after.tensor(i).length >> 32 == 0) continue;
      throw Error(ErrorCode::kUsage, "",
                  "tensor " + in_quotes(after.name(i)) +
                      ": has 4 GiB or more, whose positions overwrite cannot tell: use xor");
    }
  }
  DeltaWriter writer(before, after, arguments);
  writer.write();
  if (Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + std::to_string(writer.changed()) + " of " +
          std::to_string(after.tensor_count()) + " tensors changed, " +
          human_bytes(writer.bytes()) + "\n");
  }
  return 0;
}

}  // namespace stfs
