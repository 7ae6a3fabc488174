// The verb cache.
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sha256.h"
#include "core/base/text.h"
#include "core/command/terminal.h"
#include "core/remote/cache/cache.h"
#include "tools/info/json.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {
namespace {

using Listed = Cache::Listed;

constexpr std::size_t kShownId = 12;

std::uint64_t blocks_of(const Listed& listed) {
  const std::uint64_t size = listed.version.size;
  return size / CacheEntry::kBlock + (size % CacheEntry::kBlock != 0 ? 1 : 0);
}

// Returns true if the word is the entry's name, a model or bucket that contains it, or the first
// digits of its ID.
bool means(std::string_view word, const Listed& listed) {
  const std::string_view name = listed.version.name;
  constexpr std::size_t kLeastDigits = 4;
  if (word.size() >= kLeastDigits && listed.id.starts_with(word)) return true;
  return !word.empty() && name.starts_with(word) &&
         (name.size() == word.size() || word.ends_with('/') ||
          std::string_view("/@?").find(name[word.size()]) != std::string_view::npos);
}

// Keeps the entries that the words mean. Throws Error kUsage for a word that means no entry.
void select_entries(std::vector<Listed>& entries, const std::vector<std::string>& words) {
  if (words.empty()) return;
  for (const std::string& word : words) {
    if (std::ranges::none_of(entries, [&](const Listed& one) { return means(word, one); })) {
      throw Error(ErrorCode::kUsage, "",
                  "no entry of the cache is " + in_quotes(word) +
                      ": \"stfs-info cache list\" prints their names");
    }
  }
  std::erase_if(entries, [&](const Listed& one) {
    return std::ranges::none_of(words, [&](const std::string& word) { return means(word, one); });
  });
}

std::string time_of(const Listed& listed) {
  return rfc3339(listed.used.tv_sec, listed.used.tv_nsec);
}

// Returns "37%". It is 100% only for a complete entry.
std::string share_of(const Listed& listed) {
  const std::uint64_t all = blocks_of(listed);
  if (all == 0) return "100%";
  return std::to_string(listed.blocks_there * 100 / all) + "%";
}

std::string json_of(const Listed& listed) {
  return json_line({{"id", listed.id},
                    {"name", listed.version.name},
                    {"size", listed.version.size},
                    {"bytes_on_disk", listed.bytes},
                    {"blocks", blocks_of(listed)},
                    {"blocks_there", listed.blocks_there},
                    {"used", time_of(listed)},
                    {"in_use", listed.in_use}});
}

int list_entries(const Arguments& arguments, const std::vector<Listed>& entries,
                 const std::string& directory) {
  if (arguments.json) {
    JsonArray objects;
    for (const Listed& listed : entries) objects.add(json_of(listed));
    objects.end();
    return 0;
  }
  const Terminal terminal;
  TextTable table(terminal, {{.heading = "ID", .is_dim = true, .drop = 3},
                             {.heading = "NAME", .least = 8, .is_name = true},
                             {.heading = "SIZE", .is_right_aligned = true},
                             {.heading = "ON DISK", .is_right_aligned = true, .drop = 2},
                             {.heading = "HERE", .is_right_aligned = true},
                             {.heading = "LAST USED", .is_dim = true, .drop = 1},
                             {.heading = "IN USE", .drop = 4}});
  std::vector<std::array<std::string, 7>> rows;
  std::uint64_t bytes = 0;
  for (const Listed& listed : entries) {
    constexpr std::size_t kSeconds = 19;  // the length of "2026-01-31T08:00:00" without the rest
    rows.push_back({listed.id.substr(0, kShownId), printable(listed.version.name),
                    human_bytes(listed.version.size), human_bytes(listed.bytes), share_of(listed),
                    time_of(listed).substr(0, kSeconds) + "Z", listed.in_use ? "yes" : "no"});
    table.measure(rows.back());
    bytes += listed.bytes;
  }
  if (!rows.empty()) print(table.heading());
  for (const auto& row : rows) print(table.line(row));
  if (terminal.is_terminal) {
    const std::string summary = std::to_string(rows.size()) +
                                (rows.size() == 1 ? " entry, " : " entries, ") + human_bytes(bytes);
    const std::size_t taken = std::min(terminal.width, columns_of(summary) + 4);
    print(terminal.bold(summary) + " in " +
          terminal.shortened(printable(directory), terminal.width - taken) + "\n");
  }
  return 0;
}

int prune_entries(const Arguments& arguments, Cache& cache, const std::vector<Listed>& selected) {
  if (arguments.globs.empty() && !arguments.prune_to && !arguments.prune_all) {
    std::uint64_t bytes = 0, entries = 0;
    for (const Listed& listed : selected) {
      if (listed.in_use) continue;
      bytes += listed.bytes;
      ++entries;
    }
    throw Error(ErrorCode::kUsage, "cache prune",
                "nothing was removed: --all would remove " + std::to_string(entries) +
                    (entries == 1 ? " entry, " : " entries, ") + human_bytes(bytes) +
                    "; --to=SIZE keeps those that were used last, and names select single entries");
  }
  std::uint64_t freed = 0;
  if (arguments.globs.empty()) {
    freed = cache.prune(arguments.prune_to.value_or(0));
  } else {
    for (const Listed& listed : selected) {
      if (cache.remove(listed.id)) freed += listed.bytes;
    }
  }
  std::uint64_t left = 0, in_use = 0;
  for (const Listed& listed : cache.list()) {
    left += listed.bytes;
    in_use += listed.in_use ? listed.bytes : 0;
  }
  if (arguments.json) {
    print(json_line({{"freed", freed}, {"left", left}, {"in_use", in_use}}) + "\n");
  } else {
    print(human_bytes(freed) + " freed, " + human_bytes(left) + " left" +
          (in_use > 0 ? ", of which " + human_bytes(in_use) + " in use" : "") + "\n");
  }
  return 0;
}

// The state of an entry.
struct Verified {
  bool is_readable = false;
  std::uint64_t good = 0, bad = 0;  // blocks
  enum class Digest { kUnknown, kEqual, kDifferent } digest = Digest::kUnknown;

  bool is_ok() const { return is_readable && bad == 0 && digest != Digest::kDifferent; }
};

// Reads and checks each block that the entry has.
void check_blocks(const CacheEntry& entry, unsigned jobs, ProgressBar& bar, Verified& verified) {
  std::atomic<std::uint64_t> next = 0, good = 0, bad = 0;
  const std::uint64_t blocks = entry.blocks();
  const auto work = [&](std::size_t) {
    const auto buffer = std::make_unique<std::array<std::byte, CacheEntry::kBlock>>();
    for (std::uint64_t block; (block = next++) < blocks;) {
      if (!entry.is_there(block)) continue;
      const int error = entry.check(block, *buffer);
      if (error != ENODATA) ++(error == 0 ? good : bad);
      bar.add(entry.range_of(block).length);
    }
  };
  run_beside([&] { on_threads(std::min<std::uint64_t>(jobs, blocks), work); });
  verified.good = good;
  verified.bad = bad;
}

// Returns the SHA-256 of all bytes, or "" if a read fails.
std::string digest_of(const CacheEntry& entry, ProgressBar& bar) {
  std::string hex;
  run_beside([&] {
    const auto buffer = std::make_unique<std::array<std::byte, CacheEntry::kBlock>>();
    Sha256 sum;
    for (std::uint64_t block = 0; block < entry.blocks(); ++block) {
      const ByteRange range = entry.range_of(block);
      const auto bytes = std::span(*buffer).first(range.length);
      if (entry.read(bytes, range.offset) != 0) return;
      sum.add(bytes);
      bar.add(range.length);
    }
    hex = sum.hex();
  });
  return hex;
}

Verified verify_entry(Cache& cache, const Listed& listed, unsigned jobs, ProgressBar& bar) {
  Verified verified;
  std::unique_ptr<CacheEntry> entry = cache.open(listed.version, true);
  if (!entry) return verified;
  verified.is_readable = true;
  check_blocks(*entry, jobs, bar, verified);
  const std::string known = lower_case(listed.version.sha256);
  if (known.empty() || verified.good != entry->blocks()) return verified;
  const std::string digest = digest_of(*entry, bar);
  if (digest.empty()) return verified;
  verified.digest = digest == known ? Verified::Digest::kEqual : Verified::Digest::kDifferent;
  if (verified.digest == Verified::Digest::kDifferent) {
    // It is not known which block is wrong, so forget all blocks.
    for (std::uint64_t block = 0; block < entry->blocks(); ++block) entry->forget(block);
    entry.reset();
    cache.remove(listed.id);
  }
  return verified;
}

std::string text_of(const Verified& verified, const Listed& listed) {
  const std::string all = std::to_string(blocks_of(listed)) + " blocks";
  if (!verified.is_readable) return "error\tdamaged, and in use by another process";
  if (verified.bad > 0) {
    return "error\t" + std::to_string(verified.bad) + " of " + all +
           " damaged: the next read fetches them again";
  }
  switch (verified.digest) {
    case Verified::Digest::kDifferent:
      return "error\tnot the published SHA-256: all blocks are dropped";
    case Verified::Digest::kEqual: return "ok\t" + all + ", the published SHA-256";
    case Verified::Digest::kUnknown: break;
  }
  return "ok\t" + std::to_string(verified.good) + " of " + all;
}

std::string json_of(const Verified& verified, const Listed& listed) {
  Json object{{"id", listed.id},        {"name", listed.version.name},
              {"ok", verified.is_ok()}, {"blocks", blocks_of(listed)},
              {"good", verified.good},  {"bad", verified.bad}};
  if (verified.digest != Verified::Digest::kUnknown) {
    object["sha256_matches"] = verified.digest == Verified::Digest::kEqual;
  }
  return json_line(object);
}

int verify_entries(const Arguments& arguments, Cache& cache, std::vector<Listed> entries) {
  std::uint64_t bytes = 0;
  for (const Listed& listed : entries) {
    const std::uint64_t size = listed.version.size;
    bytes += std::min(size, listed.blocks_there * CacheEntry::kBlock);
    const bool is_whole = listed.blocks_there == blocks_of(listed);
    if (is_whole && !listed.version.sha256.empty()) bytes += size;
  }
  ProgressBar bar(bytes);
  std::vector<std::string> objects;  // printed after the bar was removed
  bool is_any_bad = false;
  // Opening an entry marks it as used. In this order, the entry that was used last remains the
  // last.
  std::ranges::reverse(entries);
  for (const Listed& listed : entries) {
    const Verified verified = verify_entry(cache, listed, arguments.threads(), bar);
    is_any_bad = is_any_bad || !verified.is_ok();
    if (arguments.json) {
      objects.push_back(json_of(verified, listed));
    } else {
      bar.print(printable(listed.version.name) + "\t" + text_of(verified, listed) + "\n");
    }
  }
  bar.end();
  if (arguments.json) {
    JsonArray array;
    for (const std::string& object : objects) array.add(object);
    array.end();
  }
  return is_any_bad ? 1 : 0;
}

}  // namespace

int cache(const Arguments& arguments) {
  const bool is_prune = arguments.action == "prune";
  if ((arguments.prune_to || arguments.prune_all) && (!is_prune || !arguments.globs.empty())) {
    throw Error(ErrorCode::kUsage, arguments.prune_to ? "--to" : "--all",
                "an option of \"cache prune\" without names");
  }
  if (arguments.prune_to && arguments.prune_all) {
    throw Error(ErrorCode::kUsage, "--all", "--to keeps some entries: give only one of the two");
  }
  std::string directory = arguments.sources.cache_dir;
  if (directory.empty()) directory = Cache::default_directory();
  std::error_code error;
  const bool is_missing =
      !directory.empty() && !std::filesystem::exists(directory, error) && !error;
  if (is_missing && !arguments.sources.cache_dir.empty()) throw_unreadable(directory, ENOENT);
  // Listing must not create a directory.
  if (is_missing && arguments.action == "list" && arguments.globs.empty()) {
    return list_entries(arguments, {}, directory);
  }
  Cache cache({.directory = directory});
  if (!cache.unusable().empty()) throw Error(ErrorCode::kUnreadable, "", cache.unusable());
  std::vector<Listed> entries = cache.list();
  select_entries(entries, arguments.globs);
  if (is_prune) return prune_entries(arguments, cache, entries);
  if (arguments.action == "verify") return verify_entries(arguments, cache, entries);
  return list_entries(arguments, entries, cache.directory());
}

}  // namespace stfs
