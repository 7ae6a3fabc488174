// Encodes the changes of a tensor as a frame that Frame decodes.
//
// Thread safety: one thread at a time uses an encoder.
#pragma once

#include "core/layer/delta/version.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stfs {

class FrameEncoder {
 public:
  // `length` is the tensor's size in bytes. It must be less than 2^32 for kOverwrite.
  FrameEncoder(DeltaEncoding encoding, DeltaChecksum checksum, std::uint64_t length);
  FrameEncoder(const FrameEncoder&) = delete;
  FrameEncoder& operator=(const FrameEncoder&) = delete;
  ~FrameEncoder();

  // Adds the next bytes of the old and the new tensor; both have the same number. Throws
  // std::bad_alloc.
  void add(std::span<const std::byte> before, std::span<const std::byte> after);

  bool has_changes() const { return has_changes_; }
  // Call it after the last byte, and only if has_changes(). Returns the frame. Its header contains
  // the size of its content.
  std::vector<std::byte> finish();
  std::string digest() const { return digest_.hex(); }  // the checksum of the new bytes

 private:
  void begin(std::uint64_t content);  // begins a frame with a content of this size
  void compress(std::span<const std::byte> bytes, bool is_last);

  DeltaEncoding encoding_;
  DeltaDigest digest_;
  std::uint64_t length_;
  std::uint64_t at_ = 0;  // bytes that were added
  bool has_changes_ = false;
  void* context_ = nullptr;  // ZSTD_CCtx
  std::vector<std::byte> frame_;
  std::vector<std::byte> difference_;     // for kXor
  std::vector<std::uint32_t> positions_;  // for kOverwrite
  std::vector<std::byte> bytes_;          // for kOverwrite
};

}  // namespace stfs
