// Runs the real stfs-gpu, with a holder that ends with the test.
#pragma once

#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"
#include "tools/gpu/client/client.h"

#include <nlohmann/json.hpp>
#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

using nlohmann::json;

// The device that these tests load to: $STFS_TEST_DEVICE, else "cpu".
std::string device();

// Kills a process, not only a child, and waits for its end.
void kill_and_wait(pid_t pid);

class GpuToolTest : public MountTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string socket() const { return (dir_ / "gpu.sock").string(); }
  std::filesystem::path file(std::string_view name) const { return dir_ / name; }

  // Runs stfs-gpu with these arguments until it exits.
  Outcome gpu(std::vector<std::string> arguments, const RunOptions& options = {}) const;
  // The same with --json; fails the test unless the exit status is 0.
  json gpu_json(std::vector<std::string> arguments) const;
  std::unique_ptr<Process> start(std::vector<std::string> arguments) const;
  // Starts a holder and waits until it listens.
  void start_holder(std::vector<std::string> options);

  // What the last holder of start_holder() has written to standard error.
  std::string holder_err() const { return holders_.back()->err(); }
  // The holder's pid; 0 without one.
  pid_t holder() const;
  // The copier's pid; 0 without one.
  pid_t copier() const;
  // The names of resident tensors.
  std::vector<std::string> resident() const;

  // A source with F32 tensors "a" [64,48] and "b" [10], and a BF16 tensor "layers.0.w" [128,32].
  std::filesystem::path small(std::string_view name = "m.safetensors") const;

  // A load in progress with a stopped copier: a part of the source's tensor "large" has been
  // copied.
  struct MidLoad {
    std::unique_ptr<Process> client;
    pid_t copier;  // 0 without one, which fails the test
    // kill(2) takes 0 for the test's own process group.
    void signal_copier(int number) const;
  };
  MidLoad mid_load(const std::string& dtype = "BF16",
                   const std::vector<std::string>& options = {"--as", "f32"}) const;
  std::filesystem::path large() const { return dir_ / "large.safetensors"; }

  // The bytes of a resident tensor, read by the path that `get` prints.
  static std::string bytes_of(const json& row);

 private:
  TempDir dir_;
  std::vector<std::unique_ptr<Process>> holders_;
};

// One line on standard error, with this exit status.
void expect_one_line(const Outcome& outcome, int status, std::string_view part = "");

}  // namespace stfs::gpu::test
