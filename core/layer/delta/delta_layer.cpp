#include "core/layer/delta/delta_layer.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/layer/delta/patched_tensor.h"
#include "core/layer/delta/version.h"
#include "core/recipe/fetch_missing.h"
#include "core/remote/http/url.h"
#include "core/stored/directory.h"
#include "core/stored/missing_checkpoint.h"
#include "core/stored/stored_tensors.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace stfs {
namespace {

[[noreturn]] void refuse(const DeltaVersion& version, const std::string& rule) {
  throw Error(ErrorCode::kDelta, public_name(version.index), rule);
}

class PatchedTensor : public ComputedTensor {
 public:
  PatchedTensor(const Patches& patches, std::size_t number, const Tensor& base, Patch patch,
                std::vector<Tensor> frames)
      : patched_(patches, number, base, std::move(patch)), frames_(std::move(frames)) {}

  Tensor tensor() const override {
    Tensor tensor = patched_.base();
    tensor.locator = std::nullopt;
    tensor.computed = this;
    tensor.values = nullptr;
    return tensor;
  }
  Content content() const override {
    Content content;
    if (patched_.base().length > 0) content.production(patched_.producer());
    return content;
  }
  std::vector<Tensor> inputs() const override {
    const Tensor& base = patched_.base();
    std::vector<Tensor> inputs =
        base.computed != nullptr ? base.computed->inputs() : std::vector{base};
    inputs.insert(inputs.end(), frames_.begin(), frames_.end());
    return inputs;
  }
  std::string_view scheme() const override { return "patched by a delta"; }

  const Patches::Tensor& patched() const { return patched_; }

 private:
  Patches::Tensor patched_;
  std::vector<Tensor> frames_;
};

class PatchedTensors : public ComputedTensors {
 public:
  PatchedTensors(std::uint64_t memory, std::size_t count, std::vector<const Source*> sources)
      : patches(memory, count, std::move(sources)) {}

  const Patches patches;
  std::deque<PatchedTensor> tensors;
};

class Patcher {
 public:
  Patcher(const TensorList& list, Sources& sources) : list_(list), sources_(sources) {}

  void add(const DeltaVersion& version) {
    smallest_.emplace_back();
    if (version.is_empty) return;
    deltas_.push_back(load_stored(version.index, {}, sources_).tensors);
    const TensorList& delta = deltas_.back();
    for (std::uint32_t i = 0; i < delta.size(); ++i) add(version, delta, i);
  }

  // Turns `list`, the list that was given to the constructor, into the result. Call it once.
  void finish(TensorList& list, const DeltaChain& chain, std::string text) {
    std::vector<const Source*> all;
    for (const Part& part : list.parts()) all.push_back(part.source.get());
    for (const TensorList& delta : deltas_) {
      for (const Part& part : delta.parts()) all.push_back(part.source.get());
    }
    auto made = std::make_unique<PatchedTensors>(sources_.memory(), found_.size(), std::move(all));
    std::vector<TensorList::Row> rows;
    std::map<std::uint32_t, const PatchedTensor*> by_number;
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      rows.push_back(list.row(i));
      const auto found = found_.find(i);
      if (found == found_.end()) continue;
      rows.back().values = nullptr;
      rows.back().computed = &made->tensors.emplace_back(
          made->patches, made->tensors.size(), list.tensor(i), std::move(found->second.patch),
          std::move(found->second.frames));
      refuse_without_room(made->tensors.back());
      by_number.emplace(i, &made->tensors.back());
    }
    for (std::size_t i = 0; i < smallest_.size(); ++i) {
      if (smallest_[i]) check(chain.links[i], *by_number.at(*smallest_[i]));
    }
    std::vector<std::vector<std::string>> hidden_keys;
    for (const Part& part : list.parts()) hidden_keys.push_back(part.hidden_keys);
    for (TensorList& delta : deltas_) {
      // Hide the checksums, because they are not metadata of the checkpoint.
      for (const Part& part : delta.parts()) hidden_keys.push_back(part.header.metadata.keys());
      list.append_inputs(std::move(delta));
    }
    list.show(std::move(rows), std::move(made), std::move(text), std::move(hidden_keys));
  }

 private:
  struct Found {
    Patch patch;
    std::vector<Tensor> frames;
  };

  void add(const DeltaVersion& version, const TensorList& delta, std::uint32_t i) {
    const Tensor frame = delta.tensor(i);
    const std::string name = in_quotes(frame.name);
    if (frame.dtype != DType::kU8 || frame.shape.size() != 1) {
      refuse(version, "tensor " + name + ": a frame is U8 of one dimension");
    }
    const auto number = list_.find(frame.name);
    if (!number) {
      refuse(version, "tensor " + name +
                          ": the base lacks it: a delta changes tensors that there are, name "
                          "the checkpoint that it was made for");
    }
    const Tensor base = list_.tensor(*number);
    if (version.encoding == DeltaEncoding::kOverwrite &&
        base.length > std::numeric_limits<std::uint32_t>::max()) {
      refuse(version,
             "tensor " + name + ": has 4 GiB or more, whose positions \"overwrite\" cannot tell");
    }
    const Metadata& metadata = delta.part_of(i).header.metadata;
    const auto digest = metadata.find(frame.name);
    if (!digest) refuse(version, "tensor " + name + ": its checksum is missing");
    Found& found = found_[*number];
    found.patch.links.push_back({version.encoding, *frame.locator});
    found.patch.checksum = version.checksum;
    found.patch.digest = lower_case(metadata[*digest].second);
    found.frames.push_back(frame);
    std::optional<std::uint32_t>& smallest = smallest_.back();
    if (base.length > 0 && (!smallest || base.length < list_.tensor(*smallest).length)) {
      smallest = *number;
    }
  }

  // Refuses a tensor if checking it needs more bytes of a source than the source keeps, because all
  // bytes that the check reads must be kept until it has read them.
  static void refuse_without_room(const PatchedTensor& tensor) {
    const Content content = tensor.content();
    std::map<const Source*, std::vector<Extent>> missing;
    for (const Extent& extent : content.missing(0, content.size())) {
      missing[extent.source].push_back(extent);
    }
    for (auto& [source, extents] : missing) {
      if (join(extents) <= source->cache_capacity()) continue;
      throw Error(ErrorCode::kUnreadable, source->path(),
                  "tensor " + in_quotes(tensor.patched().base().name) +
                      " is checked as a whole, and without a cache " +
                      human_bytes(source->cache_capacity()) +
                      " of a source are kept: name a directory with cache_dir");
    }
  }

  // Checks a tensor. Fetches the bytes that the check reads first, so that a process that must not
  // use the network has them.
  void check(const DeltaVersion& link, const PatchedTensor& tensor) {
    std::vector<Extent> needed;
    const Content content = tensor.content();
    for (const Extent& extent : content.missing(0, content.size())) needed.push_back(extent);
    constexpr std::uint64_t kSome = 1 << 20;  // bytes per fetch, each with its own deadline
    for (const Extent& extent : needed) {
      for (std::uint64_t done = 0; done < extent.length; done += kSome) {
        const Extent part = extent.part(done, kSome);
        if (const int error = part.source->fetch({part.offset, part.length})) {
          throw_read_failure(*part.source, part.source->path(), "", error);
        }
      }
    }
    std::byte first{};
    const int error = content.copy_unverified(0, std::span(&first, 1));
    if (error == 0) return;
    const Tensor base = tensor.patched().base();
    if (error != ESTALE && !base.locator) {  // computed from a source, such as a compressed array
      throw Error(ErrorCode::kUnreadable, "",
                  "tensor " + in_quotes(base.name) + ": " + errno_text(error), error);
    }
    if (error != ESTALE) {
      throw_read_failure(*base.locator->source, base.locator->source->path(),
                         "tensor " + in_quotes(base.name), error);
    }
    const std::string why = tensor.patched().patch().links.back().frame.source->failure_text();
    if (why.find("looks back") != std::string::npos) refuse(link, why);
    refuse(link, "tensor " + in_quotes(base.name) + ": its checksum does not hold: " +
                     printable(base.locator ? base.locator->source->path() : "the source") +
                     " is not the base of this delta, or one of both is damaged");
  }

  const TensorList& list_;
  Sources& sources_;
  std::deque<TensorList> deltas_;
  std::map<std::uint32_t, Found> found_;  // by tensor number in the list below
  // One per link: the number of its smallest tensor.
  std::vector<std::optional<std::uint32_t>> smallest_;
};

// Returns the directory of a shard of a delta, or nullopt if the name is not the name of a shard.
std::optional<std::string> directory_of_shard(const std::string& source) {
  if (!is_shard_name(last_component(public_name(source)))) return std::nullopt;
  return parent_name(source);
}

bool is_same_place(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || (!is_url(a) && !is_url(b) && std::filesystem::equivalent(a, b, error));
}

}  // namespace

TensorList apply_delta(TensorList below, const std::string& version, Sources& sources) {
  std::optional<DeltaVersion> newest = read_delta(version, sources);
  if (std::error_code error;
      !newest && !is_url(version) && !std::filesystem::exists(version, error)) {
    throw Error(ErrorCode::kAbsent, version, "No such file or directory", ENOENT);
  }
  if (!newest) {
    throw Error(ErrorCode::kDelta, public_name(version),
                "no delta: a directory is expected whose model.safetensors.index.json has "
                "delta_encoding; a full checkpoint needs no layer");
  }
  const DeltaChain chain = delta_chain(*std::move(newest), sources);
  const std::string base = is_checkpoint_name(chain.base) ? parent_name(chain.base) : chain.base;
  const bool stands_on_it = std::ranges::any_of(below.parts(), [&](const Part& part) {
    return is_same_place(part.directory.empty() ? "." : part.directory, base);
  });
  if (!chain.base.empty() && !stands_on_it) {
    refuse(chain.links.front(), "stands on the full checkpoint " +
                                    printable(public_name(chain.base)) +
                                    ": name that one as the source");
  }
  std::string text = std::string(kDeltaOption) + "=";
  for (const DeltaVersion& link : chain.links) {
    text.append(public_name(link.index)).append(" ").append(word_of(link.encoding)).append(" ");
    text.append(word_of(link.checksum)).push_back('\0');
  }
  Patcher patcher(below, sources);
  for (const DeltaVersion& link : chain.links) patcher.add(link);
  patcher.finish(below, chain, std::move(text));
  if (const std::uint64_t stands_for = chain.links.front().base;
      chain.base.empty() && stands_for != 0) {
    below.add_warning(printable(public_name(chain.links.front().index)) +
                      ": the source stands for version " + std::to_string(stands_for) +
                      ", which has no directory");
  }
  return below;
}

void refuse_frames(const TensorList& list) {
  const auto is_digest_of_delta = [](std::string_view text) {
    return (text.size() == 8 || text.size() == 32 || text.size() == 64) &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  };
  const auto is_frame = [&](std::uint32_t i) {
    const TensorRecord& record = list.record(i);
    if (record.dtype != DType::kU8 || record.rank != 1) return false;
    const Metadata& metadata = list.part_of(i).header.metadata;
    const auto digest = metadata.find(list.name(i));
    return digest && is_digest_of_delta(metadata[*digest].second);
  };
  for (std::uint32_t i = 0; i < list.size();) {
    const std::uint32_t part = list.row(i).part;
    bool is_of_frames = true;
    for (; i < list.size() && list.row(i).part == part; ++i)
      is_of_frames = is_of_frames && is_frame(i);
    if (!is_of_frames) continue;
    throw Error(ErrorCode::kDelta, list.part_of(i - 1).source->path(),
                "frames of a delta without its index, which is written last: wait for it, and name "
                "the directory by the option delta=");
  }
}

std::optional<DeltaChain> chain_at(const std::string& source, Sources& sources) {
  if (const auto directory = directory_of_shard(source)) {
    if (const auto delta = read_delta(*directory, sources)) {
      throw Error(ErrorCode::kDelta, public_name(source),
                  "one shard of a delta: name its directory, by the option delta=" +
                      printable(public_name(*directory)));
    }
    return std::nullopt;
  }
  const std::string name = last_component(public_name(source));
  if (is_source_name(name) && !name.ends_with(kIndexSuffix)) return std::nullopt;
  // Ask a server only about a directory that may be one version of many: its name ends in a digit.
  const std::string directory = name.ends_with(kIndexSuffix) ? parent_name(source) : source;
  const std::string last = last_component(public_name(directory));
  if (is_url(source) && (last.empty() || last.back() < '0' || last.back() > '9')) {
    return std::nullopt;
  }
  std::optional<DeltaVersion> newest = read_delta(source, sources);
  if (!newest) return std::nullopt;
  return delta_chain(*std::move(newest), sources);
}

DeltaFacts facts_of(const DeltaVersion& link, Sources& sources) {
  DeltaFacts facts;
  if (link.is_empty) return facts;
  const TensorList list = load_stored(link.index, {}, sources).tensors;
  facts.tensors = list.size();
  for (std::uint32_t i = 0; i < list.size(); ++i) facts.bytes += list.tensor(i).length;
  return facts;
}

std::optional<std::string> delta_as_source(std::string& source, Sources& sources) {
  const std::optional<DeltaChain> chain = chain_at(source, sources);
  if (!chain) return std::nullopt;
  if (chain->base.empty()) {
    throw Error(ErrorCode::kDelta, public_name(source),
                "a delta upon version " + std::to_string(chain->links.front().base) +
                    ", which has no directory: name that checkpoint as the source, and this as "
                    "the option delta=" +
                    printable(public_name(source)));
  }
  return std::exchange(source, chain->base);
}

std::string resolved_delta(const std::string& argument, Sources& sources) {
  std::error_code error;
  return is_url(argument) ? sources.pinned(argument)
                          : std::filesystem::absolute(argument, error).string();
}

}  // namespace stfs
