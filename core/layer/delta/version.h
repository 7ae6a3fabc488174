// A version of a run that its trainer published as a delta, that is, as the changes since an
// earlier version. The index in its directory describes it:
//
//   weight_v000012/model.safetensors.index.json
//     {"metadata": {"version": "000012", "base_version": "000011", "delta_encoding": "xor",
//                   "compression_format": "zstd", "checksum_format": "xxh3-128"},
//      "weight_map": {"NAME": "model-00000-of-00002.safetensors"}}
//
// In a shard, the tensor NAME has the type U8 and holds one frame of zstd. The shard's
// `__metadata__` has, under NAME, the checksum of the tensor's new bytes. This is the format of
// slime, miles, SGLang, vime, ModelExpress and stitch.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/remote/sources.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

enum class DeltaEncoding : std::uint8_t {
  kXor,  // the frame is as long as the tensor: new = old ^ frame
  // The frame holds, in little-endian order: a u32 count, `count` ascending u32 positions in bytes,
  // and `count` bytes.
  kOverwrite,
};
enum class DeltaChecksum : std::uint8_t { kXxh3, kAdler32 };

// Convert between the words of the index ("xor", "xxh3-128") and the values.
std::optional<DeltaEncoding> delta_encoding(std::string_view word);
std::string_view word_of(DeltaEncoding encoding);
std::optional<DeltaChecksum> delta_checksum(std::string_view word);
std::string_view word_of(DeltaChecksum checksum);

// Computes the checksum of bytes that are added in pieces. Thread safety: one thread at a time.
class DeltaDigest {
 public:
  explicit DeltaDigest(DeltaChecksum checksum);
  DeltaDigest(const DeltaDigest&) = delete;
  DeltaDigest& operator=(const DeltaDigest&) = delete;
  ~DeltaDigest();

  void add(std::span<const std::byte> bytes);
  // Returns lower-case hexadecimal digits: 32 for xxh3-128, 8 for adler32.
  std::string hex() const;

 private:
  DeltaChecksum checksum_;
  void* xxh3_ = nullptr;
  std::uint32_t adler32_ = 1;
};

struct DeltaVersion {
  std::string index;      // the path or URL of the index
  std::string directory;  // the directory that contains the index
  std::uint64_t version = 0, base = 0;
  DeltaEncoding encoding = DeltaEncoding::kXor;
  DeltaChecksum checksum = DeltaChecksum::kXxh3;
  bool is_empty = false;  // the index lists no tensor, because nothing changed
};

// Reads an index, or the index in a directory; `place` is a path or a URL. Returns nullopt if it is
// not a delta: a full checkpoint, or no checkpoint. Throws Error kDelta if the index says that it
// is a delta but breaks the format.
std::optional<DeltaVersion> read_delta(const std::string& place, Sources& sources);

// A chain of deltas: each link is based on the version before it.
struct DeltaChain {
  std::vector<DeltaVersion> links;  // from the oldest to the newest
  // The full checkpoint that the oldest link is based on, as a SOURCE. It is searched for beside
  // that link. "" if that version has no directory.
  std::string base;
};
// Returns the links from `newest` back to a full checkpoint, or to a version whose directory does
// not exist. Throws Error kDelta if the name of a link's directory does not end in a number, so
// that its base cannot be found; if a directory contains another version than its name says; and
// for more than 256 links.
DeltaChain delta_chain(DeltaVersion newest, Sources& sources);

}  // namespace stfs
