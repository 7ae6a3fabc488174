// The real stfs-gpu, with a holder of the test's own that ends with the test.
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

// Kills a process, whoever's child it is, and waits for its end.
void kill_and_wait(pid_t pid);

class GpuToolTest : public MountTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  std::string socket() const { return (dir_ / "gpu.sock").string(); }
  std::filesystem::path file(std::string_view name) const { return dir_ / name; }

  // stfs-gpu with these arguments, to its end.
  Outcome gpu(std::vector<std::string> arguments, const RunOptions& options = {}) const;
  // The same, in JSON; fails the test unless it is done.
  json gpu_json(std::vector<std::string> arguments) const;
  std::unique_ptr<Process> start(std::vector<std::string> arguments) const;
  // A holder with these options, listening.
  void start_holder(std::vector<std::string> options);

  // 0 when none runs.
  pid_t holder() const;
  // The holder's child that copies, 0 when there is none.
  pid_t copier() const;
  // The names of what is resident.
  std::vector<std::string> resident() const;

  // A source of two F32 tensors "a" [64,48] and "b" [10], and a BF16 one "layers.0.w" [128,32].
  std::filesystem::path small(std::string_view name = "m.safetensors") const;

  // A load that is in its middle, its copier stopped: some of the tensor "large" of the source has
  // been copied, and not all.
  struct MidLoad {
    std::unique_ptr<Process> client;
    pid_t copier;  // 0 when there is none, which fails the test
    // kill(2) takes 0 for the test's own process group.
    void signal_copier(int number) const;
  };
  MidLoad mid_load() const;
  std::filesystem::path large() const { return dir_ / "large.safetensors"; }

  // The bytes of a tensor that is resident, read as another process may: by what get says.
  static std::string bytes_of(const json& row);

 private:
  TempDir dir_;
  std::vector<std::unique_ptr<Process>> holders_;
};

// One line on standard error, with this exit status.
void expect_one_line(const Outcome& outcome, int status, std::string_view part = "");

}  // namespace stfs::gpu::test
