// Makes the frame of a tensor that changed: what Frame decodes.
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
  // `length` is the tensor's, in bytes; under 2^32 for kOverwrite.
  FrameEncoder(DeltaEncoding encoding, DeltaChecksum checksum, std::uint64_t length);
  FrameEncoder(const FrameEncoder&) = delete;
  FrameEncoder& operator=(const FrameEncoder&) = delete;
  ~FrameEncoder();

  // The next bytes of the old and the new tensor. Throws std::bad_alloc.
  void add(std::span<const std::byte> before, std::span<const std::byte> after);

  bool has_changes() const { return has_changes_; }
  // After the last byte: the frame, with the size of its content.
  std::vector<std::byte> finish();
  std::string digest() const { return digest_.hex(); }  // of the new bytes

 private:
  void begin(std::uint64_t content);  // of a frame
  void compress(std::span<const std::byte> bytes, bool is_last);

  DeltaEncoding encoding_;
  DeltaDigest digest_;
  std::uint64_t length_;
  std::uint64_t at_ = 0;
  bool has_changes_ = false;
  void* context_ = nullptr;  // ZSTD_CCtx
  std::vector<std::byte> frame_;
  std::vector<std::byte> difference_;     // of kXor
  std::vector<std::uint32_t> positions_;  // of kOverwrite
  std::vector<std::byte> bytes_;
};

}  // namespace stfs
