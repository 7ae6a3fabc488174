#include "fs/mount/ledger.h"

#include "core/base/error.h"
#include "core/source/local_file.h"
#include "fs/mount/looked_up_names.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <map>
#include <new>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

std::optional<std::uint64_t> empty() { return 0; }

// Returns the names that a new worker restores, by number.
std::map<std::uint64_t, std::string> found_in(Ledger& ledger) {
  std::map<std::uint64_t, std::string> found;
  ledger.restore([&](const Ledger::Name& name, std::uint32_t) {
    found[name.number] = std::to_string(name.view) + " " + std::to_string(name.tensor) + " " +
                         std::string(name.expression) + " " + std::to_string(name.size) + " " +
                         std::to_string(name.lookups);
  });
  return found;
}

TEST(Ledger, KeepsLiveNames) {
  Ledger ledger(0);
  ledger.add({3, 7, "0:1", 1ULL << 40, 0, 1});
  const std::uint32_t forgotten = ledger.add({4, 8, "forgotten", 0, 1, 1});
  const std::uint32_t slot = ledger.add({5, 0xFFFFFFFF, std::string(255, 'x'), 9, 2, 1});
  ledger.count(slot, 12);
  ledger.count(forgotten, 0);

  const auto found = found_in(ledger);

  EXPECT_EQ(found, (std::map<std::uint64_t, std::string>{
                       {0, "3 7 0:1 1099511627776 1"},
                       {2, "5 4294967295 " + std::string(255, 'x') + " 9 12"}}));
  EXPECT_EQ(ledger.next_number(), 3U);
}

TEST(Ledger, KeepsNamesOfAllLengthsIntactWhileSlotsAreReused) {
  Ledger ledger(0);
  std::map<std::uint64_t, std::uint32_t> slots;
  std::map<std::uint64_t, std::string> expected;
  std::uint64_t number = 0;
  for (std::size_t round = 0; round < 5; ++round) {
    for (std::size_t length = round; length <= Ledger::kLongestName; length += 1 + round) {
      const std::string text(length, static_cast<char>('a' + round));
      slots[number] = ledger.add({1, 2, text, 0, number, 1});
      expected[number++] = "1 2 " + text + " 0 1";
    }
    for (auto slot = slots.begin(); slot != slots.end();) {
      if (slot->first % 3 != round % 3) {
        ++slot;
        continue;
      }
      ledger.count(slot->second, 0);
      expected.erase(slot->first);
      slot = slots.erase(slot);
    }
    // Restores the names as a new worker does, and continues with them.
    EXPECT_EQ(found_in(ledger), expected);
  }
}

TEST(Ledger, NextWorkerReusesFreeSlots) {
  Ledger ledger(0);
  ledger.add({1, 2, "a", 0, 0, 1});
  const std::uint32_t forgotten = ledger.add({1, 2, "b", 0, 1, 1});
  ledger.count(forgotten, 0);

  EXPECT_EQ(found_in(ledger).size(), 1U);

  EXPECT_EQ(ledger.add({1, 2, "c", 0, 2, 1}), forgotten);
}

// If a worker has accepted a changed ctime, the next worker must accept it without guessing.
TEST(Ledger, KeepsLocalFileStateAdoptedByWorker) {
  const TempDir dir;
  const std::string path = dir / "f";
  write_file(path, "0123456789");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  const LocalFile file(path);
  const std::string before = file.token();
  Ledger ledger(1);
  file.share_state(ledger.standing(0));
  const pid_t worker = ::fork();
  ASSERT_GE(worker, 0);
  if (worker == 0) {
    // Repeats, because the ctime does not change within one tick of a coarse clock.
    while (file.token() == before) {
      for (const mode_t mode : {0640U, 0600U}) {
        if (::chmod(path.c_str(), mode) != 0 || file.verify() != 0) ::_exit(1);
      }
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(worker, &status, 0), worker);
  ASSERT_EQ(status, 0);

  EXPECT_EQ(file.verify(), 0);
  EXPECT_EQ(file.token(), LocalFile(path).token());
}

TEST(Ledger, NeverReusesNumbersOfForgottenNames) {
  Ledger ledger(0);
  ledger.count(ledger.add({1, 2, "a", 0, 41, 1}), 0);

  EXPECT_TRUE(found_in(ledger).empty());
  EXPECT_EQ(ledger.next_number(), 42U);
}

TEST(Ledger, ThrowsWhenFullAndReusesFreedSpace) {
  Ledger ledger(0, 4096);
  std::vector<std::uint32_t> slots;
  const auto fill = [&] {
    for (std::uint64_t number = 0;; ++number)
      slots.push_back(ledger.add({1, 2, "a", 0, number, 1}));
  };
  EXPECT_THROW(fill(), std::bad_alloc);
  EXPECT_EQ(slots.size(), 64U);
  EXPECT_EQ(found_in(ledger).size(), 64U);

  ledger.count(slots[5], 0);
  EXPECT_THROW(ledger.add({1, 2, std::string(100, 'x'), 0, 70, 1}), std::bad_alloc);
  EXPECT_EQ(ledger.add({1, 2, "b", 0, 71, 1}), slots[5]);

  EXPECT_THROW(ledger.add({1, 2, std::string(256, 'x'), 0, 72, 1}), std::bad_alloc);
}

TEST(Ledger, RemembersChangedAndFailedSources) {
  Ledger ledger(5000);
  ledger.change(4999) = true;
  ledger.mark_reported(4999);
  const LocalFile::Failure failures[] = {{0, 4096, EIO, false}, {1 << 30, 3U << 30, EIO, false}};
  ledger.keep_failures(7, failures);
  EXPECT_TRUE(ledger.failures(4999).empty());
  ASSERT_EQ(ledger.failures(7).size(), 2U);
  EXPECT_EQ(ledger.failures(7)[1].begin, failures[1].begin);
  EXPECT_FALSE(ledger.change(7));
  EXPECT_FALSE(ledger.is_reported(0));
  EXPECT_TRUE(ledger.change(4999));
  EXPECT_TRUE(ledger.is_reported(4999));
}

TEST(Ledger, StaysConsistentWheneverWorkerIsKilled) {
  Ledger ledger(0);
  std::uint64_t last = 0;
  for (int life = 0; life < 50; ++life) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t worker = ::fork();
    ASSERT_GE(worker, 0);
    if (worker == 0) {
      LookedUpNames names(&ledger);
      names.restore();
      std::vector<std::uint64_t> numbers;
      for (std::size_t i = 0;; ++i) {
        const std::string text(i * 7 % 250, static_cast<char>('a' + i % 26));
        numbers.push_back(*names.look_up(9, 1, text + std::to_string(i), empty));
        if (i % 5 != 0) names.forget(numbers[i * 3 % numbers.size()], 1);
        if (i == 20 && ::write(ends[1], "x", 1) != 1) ::_exit(1);
        // Bounds the memory, in case the signal is late.
        if (i == 20'000) {
          for (const std::uint64_t number : numbers) names.forget(number, 1);
          numbers.clear();
          i = 0;
        }
      }
    }
    char byte = 0;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);
    ::kill(worker, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(worker, &status, 0), worker);
    ASSERT_TRUE(WIFSIGNALED(status));
    ::close(ends[0]);
    ::close(ends[1]);

    for (const auto& [number, text] : found_in(ledger)) {
      ASSERT_TRUE(text.starts_with("9 1 ")) << text;
      ASSERT_LT(number, ledger.next_number());
      // "9 1 " + one letter repeated + digits + " " + size + " " + lookups
      const std::size_t letters = text.find_first_not_of(text[4], 4);
      ASSERT_EQ(text.find_first_not_of("0123456789 ", letters), std::string::npos) << text;
    }
    ASSERT_GE(ledger.next_number(), last);
    last = ledger.next_number();
  }
}

TEST(LookedUpNamesInLedger, NextProcessRestoresThemUntilForgotten) {
  Ledger ledger(0);
  std::uint64_t kept = 0;
  std::uint64_t other = 0;
  {
    LookedUpNames names(&ledger);
    kept = *names.look_up(1, 2, "0:1", [] { return 77; });
    names.look_up(1, 2, "0:1", empty);
    other = *names.look_up(1, 2, "other", empty);
    names.forget(*names.look_up(1, 2, "forgotten", empty), 1);
    names.forget(kept, 1);
    names.look_up(1, 2, "0:1", empty);
  }

  LookedUpNames names(&ledger);
  names.restore();

  EXPECT_EQ(names.size(), 2U);
  ASSERT_NE(names.find(kept), nullptr);
  EXPECT_EQ(names.find(kept)->expression, "0:1");
  EXPECT_EQ(names.find(kept)->size, 77U);
  EXPECT_EQ(names.look_up(1, 2, "other", empty), other);
  EXPECT_GT(names.look_up(1, 2, "new", empty), other);
  names.forget(kept, 1);
  EXPECT_NE(names.find(kept), nullptr);
  names.forget(kept, 1);
  EXPECT_EQ(names.find(kept), nullptr);
}

}  // namespace
}  // namespace stfs::test
