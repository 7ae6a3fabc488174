// What `stfs-gpu run` gives to a process, made by hand: tensors in a memfd, and the list of them in
// the environment. For tests of libstfs_gpu that need neither a holder nor a mount.
#pragma once

#include "tests/support/checkpoint_writer.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

// One entry of the list. Texts are written as they are, so that they can be wrong.
struct GivenTensor {
  std::string name;  // in the checkpoint; the label is "/w/model.safetensors::NAME"
  std::string dtype = "F32";
  Shape shape;
  std::string bytes;
  std::string device = "cpu";
};

// STFS_GPU_TENSORS for the length of a scope: tensors in one sealed segment, 512 bytes apart.
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

// The same for a list of any text.
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
