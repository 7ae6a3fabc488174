// The rows of the command lines for SourceOptions: the same words in each command.
//
// Thread safety and lifetime: rows are constants.
#pragma once

#include "core/base/home.h"
#include "core/command/command.h"
#include "core/remote/sources.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

// What a SOURCE is, for help.
inline constexpr std::string_view kSourceHelp =
    "a .safetensors or .gguf file, an index of shards, a directory with one, a mount of stfs, or a "
    "URL: hf://org/model, s3://bucket/key, https://host/model.safetensors";

// `verbs` take the rows, and `cache_verbs` the directory of the cache. `kMember` is the member of a
// command's arguments that holds the SourceOptions. With `in_list` the rows are those of a list, as
// of -o: "cache_dir" in place of "--cache-dir".
template <auto kMember>
constexpr std::array<OptionRow, 10> source_rows(std::string_view verbs,
                                                std::string_view cache_verbs, bool in_list) {
  using Owner = decltype(owner_of(kMember));
  return {{
      {.flags = in_list ? "cache_dir" : "--cache-dir",
       .verbs = cache_verbs,
       .argument = "DIR",
       .value = Value::kPath,
       .set =
           [](void* to, const std::string& value) {
             (static_cast<Owner*>(to)->*kMember).cache_dir = with_home(value);
           },
       .help = "where fetched blocks are kept",
       .man = "Keep the blocks that are fetched from a remote source in <dir>. "
              "The default is the value of `STFS_CACHE`, or `stfs` in `$XDG_CACHE_HOME`, or "
              "`~/.cache/stfs`. "
              "Commands and mounts share the directory. "
              "`~/` at the beginning is the home directory."},
      {.flags = in_list ? "cache_size" : "--cache-size",
       .verbs = verbs,
       .argument = "SIZE",
       .value = Value::kSize,
       .set = set<kMember, &SourceOptions::cache_size>,
       .help = "the most bytes to keep there: 100G (default: what leaves 5% free)",
       .man = "Keep at most <size> bytes of blocks: `100G`, `512MiB`. "
              "What was used least recently and is not in use goes first. "
              "5 per cent of the disk stay free in any case."},
      {.flags = in_list ? "connections" : "--connections",
       .verbs = verbs,
       .argument = "N",
       .value = Value::kNumber,
       .set = set<kMember, &SourceOptions::connections>,
       .help = "connections to a server at a time (default: 8)",
       .man = "Open at most <n> connections to a server at a time, from 1 to 64; 8 by default.",
       .least = 1,
       .most = 64},
      {.flags = in_list ? "timeout" : "--timeout",
       .verbs = verbs,
       .argument = "SECONDS",
       .value = Value::kNumber,
       .set = set<kMember, &SourceOptions::timeout>,
       .help = "how long a read waits for a server (default: 60)",
       .man = "Let a read that waits for a server fail with `EIO` after <seconds>, from 1 to 3600; "
              "60 by default. "
              "The next read tries again.",
       .least = 1,
       .most = 3600},
      {.flags = in_list ? "offline" : "--offline",
       .verbs = verbs,
       .set = set<kMember, &SourceOptions::offline>,
       .help = "use no network: serve what was fetched before",
       .man = "Use no network, and serve what was fetched before. "
              "A source means the version that it meant when it was last opened. "
              "A read of bytes that were never fetched fails with `EIO`. "
              "The variables `HF_HUB_OFFLINE` and `TRANSFORMERS_OFFLINE` mean the same."},
      {.flags = in_list ? "memory" : "--memory",
       .verbs = verbs,
       .argument = "SIZE",
       .value = Value::kSize,
       .set = set<kMember, &SourceOptions::memory>,
       .help = "the most memory for what a delta changes: 1G (default: 256M)",
       .man = "Keep at most <size> bytes of the positions that a delta changes, 256M by default. "
              "Tensors whose changes are not kept are decoded again when they are read."},
      {.flags = in_list ? "insecure_http" : "--insecure-http",
       .verbs = verbs,
       .set = set<kMember, &SourceOptions::insecure_http>,
       .help = "permit http:// to other hosts than this one",
       .man = "Permit `http://` to hosts other than this one: anybody on the way can read and "
              "change what is sent. "
              "Requests to S3 are then signed, and other secrets are not sent."},
      {.flags = in_list ? "s3_addressing" : "--s3-addressing",
       .verbs = verbs,
       .argument = "path|virtual|auto",
       .value = Value::kChoice,
       .set = set<kMember, &SourceOptions::s3, &S3Options::addressing>,
       .help = "where the bucket's name stands in URLs of S3 (default: auto)",
       .man = "Name the bucket of S3 in the path of a URL, or in its host. "
              "The default is `addressing_style` of the profile's `s3` section, or `auto`: "
              "the path at an endpoint of your own and for a bucket with a dot, else the host."},
      {.flags = in_list ? "s3_unsigned" : "--s3-unsigned",
       .verbs = verbs,
       .set = set<kMember, &SourceOptions::s3, &S3Options::is_unsigned>,
       .help = "do not sign requests to S3: for public buckets",
       .man = "Do not sign requests to S3, whatever credentials there are: for public buckets. "
              "`AWS_NO_SIGN_REQUEST=YES` means the same."},
      {.flags = in_list ? "s3_requester_pays" : "--s3-requester-pays",
       .verbs = verbs,
       .set = set<kMember, &SourceOptions::s3, &S3Options::requester_pays>,
       .help = "pay for what a bucket's owner lets requesters pay for",
       .man = "Agree to pay for requests and transfers of a bucket of S3 whose requesters pay. "
              "`AWS_REQUEST_PAYER=requester` means the same."},
  }};
}

// The rows of two tables in one.
template <std::size_t kA, std::size_t kB>
constexpr std::array<OptionRow, kA + kB> joined(const std::array<OptionRow, kA>& a,
                                                const std::array<OptionRow, kB>& b) {
  std::array<OptionRow, kA + kB> all{};
  for (std::size_t i = 0; i < kA; ++i) all[i] = a[i];
  for (std::size_t i = 0; i < kB; ++i) all[kA + i] = b[i];
  return all;
}

}  // namespace stfs
