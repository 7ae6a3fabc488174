// A version of a run that its trainer published as what changed: the index of its directory.
//
//   weight_v000012/model.safetensors.index.json
//     {"metadata": {"version": "000012", "base_version": "000011", "delta_encoding": "xor",
//                   "compression_format": "zstd", "checksum_format": "xxh3-128"},
//      "weight_map": {"NAME": "model-00000-of-00002.safetensors"}}
//
// In a shard NAME is U8, one frame of zstd, and the shard's `__metadata__` has under NAME the
// checksum of the tensor's new bytes. That is the format of slime, miles, SGLang, vime,
// ModelExpress and stitch.
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
  kXor,        // the frame has the tensor's length: new = old ^ frame
  kOverwrite,  // u32 count, count u32 positions in bytes, ascending, count bytes; little-endian
};
enum class DeltaChecksum : std::uint8_t { kXxh3, kAdler32 };

// Words as the index has them: "xor", "xxh3-128".
std::optional<DeltaEncoding> delta_encoding(std::string_view word);
std::string_view word_of(DeltaEncoding encoding);
std::optional<DeltaChecksum> delta_checksum(std::string_view word);
std::string_view word_of(DeltaChecksum checksum);

// The checksum of bytes that come in pieces. Thread safety: one thread at a time.
class DeltaDigest {
 public:
  explicit DeltaDigest(DeltaChecksum checksum);
  DeltaDigest(const DeltaDigest&) = delete;
  DeltaDigest& operator=(const DeltaDigest&) = delete;
  ~DeltaDigest();

  void add(std::span<const std::byte> bytes);
  std::string hex() const;  // lower-case hexadecimal digits: 32 of xxh3-128, 8 of adler32

 private:
  DeltaChecksum checksum_;
  void* xxh3_ = nullptr;
  std::uint32_t adler32_ = 1;
};

struct DeltaVersion {
  std::string index;      // its path or URL
  std::string directory;  // of the index
  std::uint64_t version = 0, base = 0;
  DeltaEncoding encoding = DeltaEncoding::kXor;
  DeltaChecksum checksum = DeltaChecksum::kXxh3;
  bool is_empty = false;  // nothing changed
};

// Reads the index at a directory, or an index, local or a URL. nullopt: a full checkpoint, or none.
// Throws Error kDelta for an index that says it is a delta and breaks the format.
std::optional<DeltaVersion> read_delta(const std::string& place, Sources& sources);

// A chain of deltas.
struct DeltaChain {
  std::vector<DeltaVersion> links;  // from the oldest to the newest
  // The full checkpoint that the oldest stands on, found beside it, as a SOURCE; "": it has no
  // directory.
  std::string base;
};
// The links from `newest` down to a full checkpoint or to a version without a directory. Throws
// Error kDelta for a version that does not come before its own, and for more than 256 links.
DeltaChain delta_chain(DeltaVersion newest, Sources& sources);

}  // namespace stfs
