// Runs the real stfs-gpu. Its holder is killed at the end of the test.
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

// Returns the device to which these tests load: $STFS_TEST_DEVICE, or "cpu" if it is not set.
std::string device();

// Kills a process, which need not be a child, and waits until it has ended.
void kill_and_wait(pid_t pid);

class GpuToolTest : public MountTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string socket() const { return (dir_ / "gpu.sock").string(); }
  std::filesystem::path file(std::string_view name) const { return dir_ / name; }

  // Runs stfs-gpu with these arguments until it exits.
  Outcome gpu(std::vector<std::string> arguments, const RunOptions& options = {}) const;
  // Runs stfs-gpu with --json and returns its output. Fails the test unless the exit status is 0.
  json gpu_json(std::vector<std::string> arguments) const;
  std::unique_ptr<Process> start(std::vector<std::string> arguments) const;
  // Starts a holder and waits until it listens.
  void start_holder(std::vector<std::string> options);

  // Returns what the last holder from start_holder() has written to standard error.
  std::string holder_err() const { return holders_.back()->err(); }
  // Returns the pid of the holder, or 0 if no holder answers.
  pid_t holder() const;
  // Returns the pid of the copier, or 0 if no copier runs.
  pid_t copier() const;
  // Returns the sorted names of resident tensors.
  std::vector<std::string> resident() const;

  // Writes a source with the F32 tensors "a" [64,48] and "b" [10], and the BF16 tensor "layers.0.w"
  // [128,32]. Returns its path.
  std::filesystem::path small(std::string_view name = "m.safetensors") const;

  // A load with a copier that was stopped after it had copied a part of the tensor "large".
  struct MidLoad {
    std::unique_ptr<Process> client;
    pid_t copier;  // 0: not found, and the test has failed
    // Does nothing if `copier` is 0, because kill(2) would signal the process group of the test.
    void signal_copier(int number) const;
  };
  MidLoad mid_load(const std::string& dtype = "BF16",
                   const std::vector<std::string>& options = {"--as", "f32"}) const;
  std::filesystem::path large() const { return dir_ / "large.safetensors"; }

  // Returns the bytes of a resident tensor. Reads them through the path that `get` prints.
  static std::string bytes_of(const json& row);

 private:
  TempDir dir_;
  std::vector<std::unique_ptr<Process>> holders_;
};

// Checks the exit status, and that standard error is one line that contains `part`.
void expect_one_line(const Outcome& outcome, int status, std::string_view part = "");

}  // namespace stfs::gpu::test
