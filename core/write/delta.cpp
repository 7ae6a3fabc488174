#include "core/write/delta.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/base/while_wanted.h"
#include "core/layer/delta/encoder.h"
#include "core/opened/read_failure.h"
#include "core/recipe/fetch_missing.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"
#include "core/write/header.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::size_t kTile = 1 << 20;  // the bytes that are read of each checkpoint at a time

// A tensor that changed. Its frame is stored in the file of frames.
struct EncodedTensor {
  std::string_view name;                 // may be ""
  std::uint64_t offset = 0, length = 0;  // the place of the frame in that file
  std::string digest;                    // checksum of the new bytes; "": the tensor did not change
};

std::string six_digits(std::uint64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%06llu", static_cast<unsigned long long>(number));
  return text.data();
}

// Returns the number at the end of a directory's name.
std::optional<std::uint64_t> number_at_end(std::string name) {
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  const std::size_t begin = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  std::uint64_t number = 0;
  const auto result = std::from_chars(name.data() + begin, name.data() + name.size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

void refuse_other_tensors(const Checkpoint& before, const Checkpoint& after,
                          const std::string& place) {
  const auto refuse = [&](std::string_view name, const std::string& rule) {
    throw Error(ErrorCode::kUsage, public_name(place),
                "tensor " + in_quotes(name) + ": " + rule +
                    ": a delta changes only the bytes of tensors, not their names or shapes");
  };
  for (std::uint32_t i = 0; i < before.tensor_count(); ++i) {
    if (!after.find(before.name(i))) refuse(before.name(i), "it is only in the old checkpoint");
  }
  for (std::uint32_t i = 0; i < after.tensor_count(); ++i) {
    const Tensor tensor = after.tensor(i);
    const auto number = before.find(tensor.name);
    if (!number) refuse(tensor.name, "it is only in the new checkpoint");
    if (!is_utf8(tensor.name)) {
      refuse(tensor.name, "its name is not UTF-8, which safetensors requires");
    }
    if (tensor.name == "__metadata__")
      refuse(tensor.name, "safetensors has no tensor of this name");
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
  DeltaWriter(const Checkpoint& before, const Checkpoint& after, const DeltaOptions& options,
              const Progress& progress)
      : before_(before),
        after_(after),
        options_(options),
        progress_(progress),
        encoding_(*delta_encoding(options.encoding)),
        checksum_(*delta_checksum(options.checksum)),
        directory_(options.output, options.at_signal) {}

  NewDelta write() {
    frames_ = directory_.create(kFrames);
    encode_all();
    std::erase_if(encoded_, [](const EncodedTensor& tensor) { return tensor.digest.empty(); });
    write_shards();
    directory_.remove(kFrames);
    write_index();
    directory_.commit();
    return {encoded_.size(), frames_end_};
  }

 private:
  static constexpr const char* kFrames = ".frames";

  void encode_all() {
    encoded_.resize(after_.tensor_count());
    std::atomic<std::uint32_t> next = 0;
    on_threads(options_.threads, [&](std::size_t) {
      const WhileWanted while_wanted([&] { return !is_stopped(); });
      for (std::uint32_t i = next++; i < after_.tensor_count(); i = next++) {
        if (has_failed_) return;
        try {
          encode(i);
        } catch (...) {
          has_failed_ = true;
          throw;
        }
      }
    });
  }

  bool is_stopped() const { return options_.stop != nullptr && *options_.stop; }
  void refuse_if_stopped() const {
    if (is_stopped()) throw Error(ErrorCode::kUnreadable, options_.output, "interrupted", EINTR);
  }

  void encode(std::uint32_t i) {
    const Tensor after = after_.tensor(i);
    const Tensor before = before_.tensor(*before_.find(after.name));
    if (after.length == 0 || are_one(before, after)) return progress_(after.length);
    const Content old_bytes = before.content(), new_bytes = after.content();
    SequentialReader old_reader(old_bytes, options_.stop), new_reader(new_bytes, options_.stop);
    FrameEncoder encoder(encoding_, checksum_, after.length);
    std::vector<std::byte> old_tile, new_tile;
    for (std::uint64_t at = 0; at < after.length;) {
      refuse_if_stopped();
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(kTile, after.length - at));
      old_tile.resize(some);
      new_tile.resize(some);
      if (const int error = old_reader.copy_unverified(at, old_tile))
        throw read_failure(before, error);
      if (const int error = new_reader.copy_unverified(at, new_tile))
        throw read_failure(after, error);
      encoder.add(old_tile, new_tile);
      at += some;
      progress_(some);
    }
    if (const int error = old_bytes.verify()) throw read_failure(before, error);
    if (const int error = new_bytes.verify()) throw read_failure(after, error);
    if (!encoder.has_changes()) return;
    const std::vector<std::byte> frame = encoder.finish();
    const std::lock_guard lock(mutex_);
    if (const int error = write_exact(frames_.get(), frame)) {
      throw_errno(ErrorCode::kUnreadable, options_.output, "", error);
    }
    encoded_[i] = {after.name, frames_end_, frame.size(), encoder.digest()};
    frames_end_ += frame.size();
  }

  // Writes the frames to files of at most DeltaOptions::shard_size bytes.
  void write_shards() {
    std::uint64_t bytes = 0;
    for (const EncodedTensor& tensor : encoded_) {
      const bool is_full =
          options_.shard_size != 0 && bytes != 0 && bytes + tensor.length > options_.shard_size;
      if (shards_.empty() || is_full) {
        shards_.emplace_back();
        bytes = 0;
      }
      shards_.back().push_back(&tensor);
      bytes += tensor.length;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) write_shard(i);
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
      const std::array shape{tensor->length};
      out.add(",");
      write_header_row(tensor->name, DType::kU8, shape, offset, offset + tensor->length, out);
      offset += tensor->length;
    }
    out.add("}");
    const auto length = header_length(header.size());
    if (!length) {
      throw Error(ErrorCode::kUsage, options_.output,
                  "a header would be over the limit of safetensors: ask for smaller shards");
    }
    header.resize(static_cast<std::size_t>(*length), ' ');
    const std::string name = shard_name(i, shards_.size());
    const UniqueFd file = directory_.create(name);
    write_text(file, header_prefix(*length) + header);
    const UniqueFd frames = directory_.open(kFrames);
    std::vector<std::byte> buffer;
    for (const EncodedTensor* const tensor : shards_[i]) {
      for (std::uint64_t done = 0; done < tensor->length; done += buffer.size()) {
        refuse_if_stopped();
        buffer.resize(
            static_cast<std::size_t>(std::min<std::uint64_t>(kTile, tensor->length - done)));
        if (const int error = pread_exact(frames.get(), buffer, tensor->offset + done)) {
          throw_errno(ErrorCode::kUnreadable, options_.output, "", error);
        }
        if (const int error = write_exact(file.get(), buffer)) {
          throw_errno(ErrorCode::kUnreadable, options_.output, "", error);
        }
      }
    }
    directory_.finish(file, name);
  }

  void write_index() {
    std::string metadata;
    TextWriter out(metadata);
    out.add("{\"version\": \"").add(six_digits(*options_.version));
    out.add("\", \"base_version\": \"").add(six_digits(*options_.base));
    out.add("\", \"delta_encoding\": \"").add(word_of(encoding_));
    out.add("\", \"compression_format\": \"zstd\", \"checksum_format\": \"");
    out.add(word_of(checksum_)).add("\"}");
    std::vector<std::pair<std::string_view, std::string>> rows;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      for (const EncodedTensor* const tensor : shards_[i]) {
        rows.emplace_back(tensor->name, shard_name(i, shards_.size()));
      }
    }
    const UniqueFd file = directory_.create(kIndexName);
    write_text(file, index_json(metadata, rows));
    directory_.finish(file, kIndexName);
  }

  void write_text(const UniqueFd& file, const std::string& text) const {
    if (const int error = write_exact(file.get(), std::as_bytes(std::span(text)))) {
      throw_errno(ErrorCode::kUnreadable, options_.output, "", error);
    }
  }

  const Checkpoint& before_;
  const Checkpoint& after_;
  const DeltaOptions& options_;
  const Progress& progress_;
  DeltaEncoding encoding_;
  DeltaChecksum checksum_;
  NewDirectory directory_;
  UniqueFd frames_;
  std::atomic<bool> has_failed_ = false;
  std::mutex mutex_;  // guards the members below while tensors are encoded
  std::uint64_t frames_end_ = 0;
  std::vector<EncodedTensor> encoded_;
  std::vector<std::vector<const EncodedTensor*>> shards_;
};

}  // namespace

void set_numbers(DeltaOptions& options) {
  if (!options.version) {
    const auto number = number_at_end(options.output);
    if (!number || *number == 0) {
      throw Error(ErrorCode::kUsage, options.output,
                  "the name does not end in the number of a version, as weight_v000012 does: give "
                  "the number too");
    }
    options.version = *number;
  }
  if (!options.base) options.base = *options.version - 1;
  if (*options.base >= *options.version) {
    throw Error(ErrorCode::kUsage, "",
                "the base must come before the version: give a lower number");
  }
}

NewDelta write_delta(const Checkpoint& before, const Checkpoint& after, const std::string& place,
                     DeltaOptions options, const Progress& progress) {
  set_numbers(options);
  refuse_other_tensors(before, after, place);
  if (options.encoding == "overwrite") {
    for (std::uint32_t i = 0; i < after.tensor_count(); ++i) {
      if (after.tensor(i).length >> 32 == 0) continue;
      throw Error(
          ErrorCode::kUsage, "",
          "tensor " + in_quotes(after.name(i)) +
              ": has 4 GiB or more, too large for the 32-bit positions of overwrite: use xor");
    }
  }
  return DeltaWriter(before, after, options, progress).write();
}

}  // namespace stfs
