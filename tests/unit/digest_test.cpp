#include "core/values/digest.h"

#include "core/source/local_file.h"
#include "tests/support/checkpoint_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>

namespace stfs::test {
namespace {

std::string digest_of(const std::string& text) {
  Content content;
  content.literal(text);
  std::string hex = "before";
  EXPECT_EQ(sha256(content, std::atomic<bool>(false), hex), 0);
  return hex;
}

// FIPS 180-4 and NIST's example vectors.
TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, ReportsEachHashedByte) {
  Content content;
  content.literal(std::string(1'000'000, 'a'));
  std::uint64_t seen = 0;
  std::string hex;

  EXPECT_EQ(
      sha256(content, std::atomic<bool>(false), hex, [&](std::uint64_t bytes) { seen += bytes; }),
      0);

  EXPECT_EQ(seen, 1'000'000U);
}

TEST(Sha256, ReturnsEINTRWhenStopped) {
  Content content;
  content.literal(std::string(10'000'000, 'a'));
  std::atomic<bool> stop = false;
  std::uint64_t seen = 0;
  std::string hex;

  const int error = sha256(content, stop, hex, [&](std::uint64_t bytes) {
    seen += bytes;
    stop = true;
  });

  EXPECT_EQ(error, EINTR);
  EXPECT_LT(seen, 10'000'000U);
}

TEST(Sha256, ReturnsErrnoOfFailedRead) {
  const TempDir dir;
  write_file(dir / "source", std::string(1000, 'x'));
  const LocalFile source((dir / "source").string());
  Content content;
  content.extent(source, 0, 1000);
  std::filesystem::resize_file(dir / "source", 10);
  std::string hex;

  EXPECT_EQ(sha256(content, std::atomic<bool>(false), hex), ESTALE);
}

TEST(Sha256sumLine, MatchesSha256sumOutput) {
  EXPECT_EQ(sha256sum_line("00ff", "a b"), "00ff  a b\n");
  EXPECT_EQ(sha256sum_line("00ff", ""), "00ff  \n");
  EXPECT_EQ(sha256sum_line("00ff", "a\\b"), "\\00ff  a\\\\b\n");
  EXPECT_EQ(sha256sum_line("00ff", "a\nb"), "\\00ff  a\\nb\n");
  EXPECT_EQ(sha256sum_line("00ff", "a\rb"), "\\00ff  a\\rb\n");
  EXPECT_EQ(sha256sum_line("00ff", "\\n"), "\\00ff  \\\\n\n");
}

}  // namespace
}  // namespace stfs::test
