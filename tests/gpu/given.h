// Tensors as `stfs-gpu run` gives them to a process: a memfd, and their list in the environment.
// For tests of stfs_gpu.h without a holder and a mount.
#pragma once

#include "tests/support/checkpoint_writer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

// One entry of the list. Strings are not checked, so tests can write wrong ones.
struct GivenTensor {
  std::string name;  // in the checkpoint; the label is "/w/model.safetensors::NAME"
  std::string dtype = "F32";
  Shape shape;
  std::string bytes;
  std::string device = "cpu";
};

// Sets STFS_GPU_TENSORS during a scope: tensors in one sealed segment, at multiples of 512 bytes.
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

// Sets STFS_GPU_TENSORS to a list of any text.
class GivenText {
 public:
  explicit GivenText(const std::string& text);
  ~GivenText();
  GivenText(const GivenText&) = delete;
  GivenText& operator=(const GivenText&) = delete;

 private:
  int list_ = -1;
};

// A memfd with these bytes, not closed on exec.
int memfd_of(const std::string& name, const std::string& bytes);

}  // namespace stfs::gpu::test
