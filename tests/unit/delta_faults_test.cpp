// If a delta is damaged, the mount must show either the correct new version or nothing.
#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/layer/delta/encoder.h"
#include "core/layer/delta/version.h"
#include "core/remote/sources.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string frame_of(DeltaEncoding encoding, const std::string& before, const std::string& after) {
  FrameEncoder encoder(encoding, DeltaChecksum::kXxh3, after.size());
  encoder.add(as_bytes(before), as_bytes(after));
  const std::vector<std::byte> frame = encoder.finish();
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

std::string xxh_of(const std::string& bytes) {
  DeltaDigest digest(DeltaChecksum::kXxh3);
  digest.add(as_bytes(bytes));
  return digest.hex();
}

std::string index_text(unsigned version, unsigned base, std::string_view encoding = "xor") {
  return R"({"metadata": {"version": ")" + std::to_string(version) + R"(", "base_version": ")" +
         std::to_string(base) + R"(", "delta_encoding": ")" + std::string(encoding) +
         R"(", "compression_format": "zstd", "checksum_format": "xxh3-128"}, "weight_map": )" +
         R"({"a": "model-00000-of-00001.safetensors", "b": "model-00000-of-00001.safetensors"}})";
}

// A base of two tensors, and the directory of a delta that changes both.
class DeltaFaults : public ::testing::Test {
 protected:
  DeltaFaults() {
    for (const char* name : {"a", "b"}) {
      std::string bytes =
          random_tensor(name, "U8", {90}, static_cast<std::uint64_t>(name[0])).bytes;
      before_.push_back(bytes);
      for (const std::size_t at : {std::size_t{3}, std::size_t{4}, std::size_t{77}}) bytes[at] ^= 5;
      after_.push_back(bytes);
    }
    test::write_safetensors(dir_ / "base.safetensors",
                            {{"a", "U8", {90}, before_[0]}, {"b", "U8", {90}, before_[1]}});
    publish(frame_of(DeltaEncoding::kXor, before_[0], after_[0]));
  }

  std::string index() const { return (run() / "model.safetensors.index.json").string(); }
  std::string shard() const { return (run() / "model-00000-of-00001.safetensors").string(); }
  std::filesystem::path run(unsigned number = 1) const {
    return dir_ / ("run/weight_v00000" + std::to_string(number));
  }
  // Writes the version with this frame for "a".
  void publish(const std::string& frame, DeltaEncoding encoding = DeltaEncoding::kXor) const {
    std::filesystem::create_directories(run());
    const std::string other = frame_of(encoding, before_[1], after_[1]);
    test::write_safetensors(
        shard(), {{"a", "U8", {frame.size()}, frame}, {"b", "U8", {other.size()}, other}},
        test::Metadata{{"a", xxh_of(after_[0])}, {"b", xxh_of(after_[1])}});
    write_file(index(), index_text(1, 0, word_of(encoding)));
  }

  enum class Shown { kNew, kNothing, kOther };
  // A wrong checksum is found when the delta is loaded, or when the tensor is read.
  Shown shown(unsigned number = 1) const {
    const std::string base = (dir_ / "base.safetensors").string();
    try {
      const Checkpoint checkpoint(std::span(&base, 1),
                                  {.layers = {{"delta", run(number).string()}}});
      Shown all = Shown::kNew;
      for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) {
        std::string bytes(checkpoint.tensor(i).length, '\0');
        const Content content = checkpoint.tensor(i).content();
        if (content.copy(0, std::as_writable_bytes(std::span(bytes))) != 0) return Shown::kNothing;
        if (bytes != after_[i]) all = Shown::kOther;
      }
      return all;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kUsage) << error.what();
      return Shown::kNothing;
    }
  }
  std::string refusal(unsigned number = 1, std::uint64_t memory = 256 << 20) const {
    Sources sources({.memory = memory});
    const std::string base = (dir_ / "base.safetensors").string();
    try {
      const Checkpoint checkpoint(
          std::span(&base, 1), {.layers = {{"delta", run(number).string()}}, .sources = &sources});
      std::string bytes(checkpoint.tensor(0).length, '\0');
      const int error =
          checkpoint.tensor(0).content().copy(0, std::as_writable_bytes(std::span(bytes)));
      if (error != 0) return checkpoint.parts().front().source->failure_text();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  // Changes each byte of the file in turn. Returns how often nothing was shown.
  std::size_t damage_each_byte(const std::string& path) const {
    const std::string good = read_file(path);
    std::size_t refused = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ "\x01\x10\x80"[at % 3]);
      write_file(path, bad);
      const Shown shows = shown();
      EXPECT_NE(shows, Shown::kOther) << path << " at " << at;
      refused += shows == Shown::kNothing ? 1 : 0;
    }
    write_file(path, good);
    EXPECT_EQ(shown(), Shown::kNew);
    return refused;
  }

  TempDir dir_;
  std::vector<std::string> before_, after_;
};

TEST_F(DeltaFaults, DamagedIndexShowsNewVersionOrNothing) {
  EXPECT_GT(damage_each_byte(index()), read_file(index()).size() / 3);
}

TEST_F(DeltaFaults, DamagedShardShowsNewVersionOrNothing) {
  EXPECT_GT(damage_each_byte(shard()), read_file(shard()).size() * 2 / 3);
}

TEST_F(DeltaFaults, TruncatedIndexOrShardShowsNothing) {
  for (const std::string& path : {index(), shard()}) {
    const std::string good = read_file(path);
    for (std::size_t size = 0; size < good.size(); size += 7) {
      write_file(path, good.substr(0, size));
      EXPECT_EQ(shown(), Shown::kNothing) << path << " of " << size;
    }
    write_file(path, good);
  }
}

TEST_F(DeltaFaults, FrameWithWrongSizeShowsNothing) {
  const std::string good = frame_of(DeltaEncoding::kXor, before_[0], after_[0]);
  // Magic number, a descriptor (a single segment with its size in one byte), the size.
  ASSERT_EQ(static_cast<unsigned char>(good[4]) & 0xe0, 0x20);
  ASSERT_EQ(good[5], 90);
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{89}, std::uint64_t{91},
                                   std::uint64_t{1} << 32, std::uint64_t{1} << 60}) {
    std::string claimed(sizeof size, '\0');
    std::memcpy(claimed.data(), &size, sizeof size);
    for (const char descriptor :
         {'\xe0', '\xc0'}) {  // a single segment; a frame with its own window
      std::string frame = good;
      frame[4] = static_cast<char>((frame[4] & 0x1f) | descriptor);
      frame.replace(5, 1, (descriptor == '\xc0' ? "\x78" : "") + claimed);
      publish(frame);
      EXPECT_EQ(shown(), Shown::kNothing) << size;
    }
  }
  publish(good);
  EXPECT_EQ(shown(), Shown::kNew);
}

TEST_F(DeltaFaults, UnorderedOrTooLargePositionsShowNothing) {
  // The frame contains a count, positions and bytes. It is made as differences from zeros.
  const auto overwritten = [&](std::uint32_t count, std::vector<std::uint32_t> at,
                               std::size_t bytes) {
    std::string content(reinterpret_cast<const char*>(&count), sizeof count);
    content.append(reinterpret_cast<const char*>(at.data()), at.size() * sizeof(std::uint32_t));
    content.append(bytes, 'x');
    publish(frame_of(DeltaEncoding::kXor, std::string(content.size(), '\0'), content),
            DeltaEncoding::kOverwrite);
    return shown();
  };
  EXPECT_EQ(overwritten(2, {4, 3}, 2), Shown::kNothing);
  EXPECT_EQ(overwritten(2, {3, 3}, 2), Shown::kNothing);
  EXPECT_EQ(overwritten(1, {90}, 1), Shown::kNothing);
  EXPECT_EQ(overwritten(1, {0xffffffff}, 1), Shown::kNothing);
  EXPECT_EQ(overwritten(91, std::vector<std::uint32_t>(91, 0), 91), Shown::kNothing);
  EXPECT_EQ(overwritten(0xffffffff, {1}, 1), Shown::kNothing);
  EXPECT_EQ(overwritten(1, {3}, 2), Shown::kNothing);
  EXPECT_EQ(overwritten(3, {3, 4, 77}, 2), Shown::kNothing);
  publish(frame_of(DeltaEncoding::kOverwrite, before_[0], after_[0]), DeltaEncoding::kOverwrite);
  EXPECT_EQ(shown(), Shown::kNew);
}

TEST_F(DeltaFaults, ChainWithCycleFailsAndChainWithGapIsShown) {
  const std::string frames = read_file(shard());
  std::filesystem::remove_all(run(1));
  const auto link = [&](unsigned version, unsigned base) {
    std::filesystem::create_directories(run(version));
    write_file(run(version) / "model-00000-of-00001.safetensors", frames);
    write_file(run(version) / "model.safetensors.index.json", index_text(version, base));
  };
  link(5, 0);  // 1 to 4 were never written
  EXPECT_EQ(shown(5), Shown::kNew);
  link(2, 1);
  link(1, 2);
  EXPECT_NE(refusal(2).find("does not come before"), std::string::npos) << refusal(2);
  link(3, 3);
  EXPECT_NE(refusal(3).find("does not come before"), std::string::npos) << refusal(3);
  std::filesystem::remove_all(run(1));  // 2 is now based on the source instead
  EXPECT_EQ(shown(2), Shown::kNew);
  link(4, 2);
  EXPECT_EQ(shown(4), Shown::kNothing);
}

TEST_F(DeltaFaults, VersionDeletedAfterLoadIsStillShown) {
  const std::string base = (dir_ / "base.safetensors").string();
  const Checkpoint checkpoint(std::span(&base, 1), {.layers = {{"delta", run().string()}}});
  std::filesystem::remove_all(run());
  std::string bytes(90, '\0');
  EXPECT_EQ(checkpoint.tensor(0).content().copy(0, std::as_writable_bytes(std::span(bytes))), 0);
  EXPECT_EQ(bytes, after_[0]);  // the file was already open
  EXPECT_NE(refusal(), "");
}

// Returns a frame with the given window size and one raw block with the changes.
std::string frame_with_window(unsigned log, const std::string& before, const std::string& after) {
  std::string frame = "\x28\xb5\x2f\xfd"s + '\0' + static_cast<char>((log - 10) << 3);
  const std::uint32_t block = static_cast<std::uint32_t>(before.size()) << 3 | 1;
  frame.append(reinterpret_cast<const char*>(&block), 3);
  for (std::size_t i = 0; i < before.size(); ++i) frame += static_cast<char>(before[i] ^ after[i]);
  return frame;
}

TEST_F(DeltaFaults, FrameWithWindowAboveMemoryLimitFails) {
  const auto refused = [&](unsigned log, std::uint64_t memory) {
    publish(frame_with_window(log, before_[0], after_[0]));
    return refusal(1, memory);
  };
  EXPECT_EQ(refused(27, 256 << 20), "");
  EXPECT_EQ(refused(21, 1), "");  // as zstd -3 writes frames
  const std::string words =
      "\"a\" in the chain of the delta " + shard() +
      " needs a larger window than the 16.0 MiB that each of its 1 decoders has of 16.0 MiB: "
      "give more with -o delta_memory=";
  EXPECT_NE(refused(27, 16 << 20).find(words), std::string::npos) << refused(27, 16 << 20);
}

TEST_F(DeltaFaults, OverwriteNeedsTensorBelow4GiB) {
  constexpr std::uint64_t kWraps = std::uint64_t{1} << 32;
  const auto refused = [&](std::uint64_t size) {
    const std::filesystem::path base = dir_ / "base.safetensors";
    HeaderBuilder header;
    header.add("a", "U8", {size}, size);
    header.add("b", "U8", {90}, 90);
    const std::string begin = safetensors_bytes(header.finish(), "");
    write_file(base, begin);  // the data is a hole
    EXPECT_EQ(::truncate(base.c_str(), static_cast<off_t>(begin.size() + size + 90)), 0);
    return refusal();
  };
  publish(frame_of(DeltaEncoding::kOverwrite, before_[0], after_[0]), DeltaEncoding::kOverwrite);
  EXPECT_NE(refused(kWraps).find("has 4 GiB or more"), std::string::npos);
  EXPECT_NE(refused(kWraps - 1).find("its checksum does not match"),
            std::string::npos);  // the checksum of "b"
}

}  // namespace
}  // namespace stfs::test
