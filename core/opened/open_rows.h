// The options for opening a checkpoint. They have the same names in all commands, in -o and in the
// libraries. Each front end joins these rows with its own.
//
// Thread safety and lifetime: rows are constants.
#pragma once

#include "core/base/error.h"
#include "core/base/home.h"
#include "core/base/option_row.h"
#include "core/layer/layer.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/sources.h"

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace stfs {

// Describes a SOURCE in help texts.
inline constexpr std::string_view kSourceHelp =
    "a .safetensors or .gguf file, an index of shards, a directory with one, a mount of stfs, or a "
    "URL: hf://org/model, s3://bucket/key, https://host/model.safetensors";

// Returns the rows of SourceOptions. `verbs` are the verbs that have the rows; for the directory of
// the cache these are `cache_verbs`. `kMember` is the member of a command's arguments that holds
// the SourceOptions. With `in_list`, the rows are for a list such as -o: "cache_dir" instead of
// "--cache-dir".
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
       .help = "maximum bytes to keep there: 100G (default: all but 5% of the disk)",
       .man = "Keep at most <size> bytes of blocks: `100G`, `512MiB`. "
              "The least recently used blocks that are not in use are evicted first. 5% of the "
              "disk always stays free."},
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
      {.flags = in_list ? "delta_memory" : "--delta-memory",
       .verbs = verbs,
       .argument = "SIZE",
       .value = Value::kSize,
       .set = set<kMember, &SourceOptions::memory>,
       .help = "maximum memory for the changes of a delta: 1G (default: 256M)",
       .man = "Keep at most <size> bytes of the positions that a delta changes, 256M by default. "
              "Tensors whose changes are not kept are decoded again when they are read."},
      {.flags = in_list ? "insecure_http" : "--insecure-http",
       .verbs = verbs,
       .set = set<kMember, &SourceOptions::insecure_http>,
       .help = "permit http:// to hosts other than this one",
       .man = "Permit `http://` to hosts other than this one: anyone on the way can read and "
              "change the data. "
              "Requests to S3 are then signed, and other secrets are not sent."},
      {.flags = in_list ? "s3_addressing" : "--s3-addressing",
       .verbs = verbs,
       .argument = "path|virtual|auto",
       .value = Value::kChoice,
       .set = set<kMember, &SourceOptions::s3, &S3Options::addressing>,
       .help = "where the bucket's name is in URLs of S3 (default: auto)",
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
       .help = "pay for requests to a bucket whose requesters pay",
       .man = "Agree to pay for requests and transfers of a bucket of S3 whose requesters pay. "
              "`AWS_REQUEST_PAYER=requester` means the same."},
  }};
}

struct LayerWords {
  std::string_view flag;                // "--" and LayerRow::option
  std::string_view old_flag, new_flag;  // the flags for one of two checkpoints
  std::string_view argument;
  Value value;
  std::string_view help, man;
};

// One row for each row of layer_table().
inline constexpr std::array<LayerWords, 4> kLayerWords{{
    {.flag = "--delta",
     .old_flag = "--old-delta",
     .new_flag = "--new-delta",
     .argument = "VERSION",
     .value = Value::kPath,
     .help = "show the checkpoint after the updates of a delta",
     .man = "Show the checkpoint after an update that a trainer published as a delta: <version> "
            "is its directory, such as `run/weight_v000012`, its index, or a URL of one. "
            "The updates before it are found beside it, down to a full checkpoint, which is the "
            "source, or to a version without a directory, in whose place the source is taken. "
            "No byte of a changed tensor is shown before its checksum has been verified."},
    {.flag = "--dequantize",
     .old_flag = "--old-dequantize",
     .new_flag = "--new-dequantize",
     .argument = kDequantizedWords,
     .value = Value::kChoice,
     .help = "show quantised weights with their values, in this type",
     .man = "Show each quantised weight as a tensor of its values, under the name that the code of "
            "the model expects, in BF16, F16 or F32. "
            "The values are computed as they are read. "
            "Scales and zero points disappear, and tensors that are not quantised stay as they "
            "are. "
            "Supported are the types of GGUF, FP8 with scales, MXFP4, compressed-tensors, "
            "ModelOpt, GPTQ, AWQ, bitsandbytes and MLX. "
            "A quantised checkpoint that is incomplete or of an unknown kind is an error."},
    {.flag = "--lora",
     .old_flag = "--old-lora",
     .new_flag = "--new-lora",
     .argument = "[SCALE@]ADAPTER...",
     .value = Value::kPath,
     .help = "merge a LoRA adapter into the weights",
     .man = "Show the weights with a LoRA adapter merged into them: a directory that PEFT wrote, "
            "or a URL of one. "
            "A number before it, as in `0.5@adapter`, scales its updates. "
            "Given several times, adapters are merged in their order. "
            "A quantised base needs `dequantize`."},
    {.flag = "--edit",
     .old_flag = "--old-edit",
     .new_flag = "--new-edit",
     .argument = "FILE...",
     .value = Value::kPath,
     .help = "show the checkpoint after the edits in FILE",
     .man = "Show the checkpoint after the edits in <file>: tensors renamed, left out, copied, "
            "replaced, added, cast or cut, and other metadata. "
            "The section EDITS of `stfs-info`(1) has the language."},
}};

template <auto kLayersOf, std::size_t kIndex>
void set_layer(void* to, const std::string& value) {
  const LayerRow& row = *find_layer(kLayerWords[kIndex].flag.substr(2));
  if (!row.accepts(value)) {
    throw Error(ErrorCode::kUsage, "", "expected " + std::string(row.arguments));
  }
  choose(kLayersOf(to), row.option, value);
}

enum class LayersOf { kAll, kOld, kNew };

// Returns the rows of layers. `verbs` are the verbs that have the rows. kLayersOf(arguments)
// returns the Layers in a command's arguments. With `in_list`, the rows are for a list such as -o:
// "lora" instead of "--lora".
template <auto kLayersOf>
constexpr std::array<OptionRow, kLayerWords.size()> layer_rows(std::string_view verbs, bool in_list,
                                                               LayersOf of = LayersOf::kAll) {
  constexpr std::array<Setter, kLayerWords.size()> kSetters{
      set_layer<kLayersOf, 0>, set_layer<kLayersOf, 1>, set_layer<kLayersOf, 2>,
      set_layer<kLayersOf, 3>};
  std::array<OptionRow, kLayerWords.size()> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LayerWords& words = kLayerWords[i];
    const bool is_old = of == LayersOf::kOld;
    rows[i] = {.flags = in_list ? words.flag.substr(2) : words.flag,
               .verbs = verbs,
               .argument = words.argument,
               .value = words.value,
               .set = kSetters[i],
               .help = words.help,
               .man = words.man};
    if (of == LayersOf::kAll) continue;
    rows[i].flags = is_old ? words.old_flag : words.new_flag;
    rows[i].help =
        is_old ? "the same, only for the first checkpoint" : "only for the second checkpoint";
    rows[i].man = is_old ? "The same, only for the first of two checkpoints."
                         : "The same, only for the second of two checkpoints.";
  }
  return rows;
}

// Returns the row of allow_missing. `kMember...` is the path of members from a command's arguments
// to a bool such as LoadOptions::allow_missing.
template <auto... kMember>
constexpr std::array<OptionRow, 1> missing_row(std::string_view verbs, bool in_list) {
  return {{{.flags = in_list ? "allow_missing" : "--allow-missing",
            .verbs = verbs,
            .set = set<kMember...>,
            .help = "continue without missing shards and tensors",
            .man = "Continue if a shard of the index is missing, a tensor of a shard, or a part of "
                   "a split GGUF file. "
                   "Without this option these are errors. "
                   "In a mount the file `.stfs/info.json` lists what is missing."}}};
}

}  // namespace stfs
