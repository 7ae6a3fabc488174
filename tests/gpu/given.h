// Passes tensors as `stfs-gpu run` passes them to its command: in a memfd, with a list that the
// environment names. For tests of stfs_gpu.h without a holder and a mount.
#pragma once

#include "tests/support/checkpoint_writer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

// One entry of the list. Strings are not checked, so that tests can write invalid ones.
struct GivenTensor {
  std::string name;  // the name in the checkpoint; the label is "/w/model.safetensors::NAME"
  std::string dtype = "F32";
  Shape shape;
  std::string bytes;
  std::string device = "cpu";
};

// Sets STFS_GPU_TENSORS during a scope. The tensors are in one sealed segment, at multiples of 512
// bytes.
class Given {
 public:
  explicit Given(const std::vector<GivenTensor>& tensors);
  ~Given();
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  const std::string& json() const { return json_; }

 private:
  int segment_ = -1;
  int list_ = -1;
  std::string json_;
};

// Sets STFS_GPU_TENSORS to a list with this text, which need not be valid.
class GivenText {
 public:
  explicit GivenText(const std::string& text);
  ~GivenText();
  GivenText(const GivenText&) = delete;
  GivenText& operator=(const GivenText&) = delete;

 private:
  int list_ = -1;
};

// Returns a sealed memfd with these bytes. It is not close-on-exec.
int memfd_of(const std::string& name, const std::string& bytes);

}  // namespace stfs::gpu::test
