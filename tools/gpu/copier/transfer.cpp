#include "tools/gpu/copier/transfer.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/recipe/fetch_missing.h"
#include "tools/gpu/device/processors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace stfs::gpu {
namespace {

// Limits of the pinned memory: each worker has three tiles.
constexpr std::size_t kTileUnit = 4096;
static_assert(kTileUnit % kItemAlignment == 0);
constexpr std::size_t kMaxTile = 64 << 20;
constexpr unsigned kMaxWorkers = 64;

// The number of bytes after a tile that are fetched while the tile is copied.
constexpr std::size_t kAhead = 64 << 20;

constexpr std::chrono::milliseconds kRoomPause{20};  // between two attempts to get memory

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

// Rounds up to a multiple, or near overflow to the largest multiple.
std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  if (value > kMost - multiple) return kMost / multiple * multiple;
  return (value + multiple - 1) / multiple * multiple;
}

[[noreturn]] void was_stopped(const DeviceInfo& info) {
  throw Error(ErrorCode::kDeviceFailed, info.id, "the copy was stopped");
}

// Calls `attempt` until it does not throw OutOfDeviceMemory, for `wait` at most.
template <class Attempt>
auto with_room(const DeviceInfo& info, std::chrono::milliseconds wait,
               const std::atomic<bool>* stop, const Attempt& attempt) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  for (;;) {
    try {
      return attempt();
    } catch (const OutOfDeviceMemory& error) {
      const bool never_fits = error.needed() > info.total_bytes;
      if (never_fits || std::chrono::steady_clock::now() >= deadline) throw;
    }
    if (stop != nullptr && *stop) was_stopped(info);
    std::this_thread::sleep_for(kRoomPause);
  }
}

// Adjacent bytes of a segment that are copied in the same way: unchanged, or converted.
struct Run {
  std::uint64_t begin = 0;     // offset in the segment
  std::uint64_t length = 0;    // bytes on the device
  Content content;             // the bytes on the device
  std::size_t first_item = 0;  // index of its first item

  // Set if the device converts. `raw` is the recipe of the elements of first_item before that.
  bool converts = false;
  Content raw;

  // The padding between items: (offset in the run, bytes).
  std::vector<std::pair<std::uint64_t, std::uint64_t>> gaps;
};

// A piece of a run, small enough for a lane's tile.
struct Tile {
  const Run* run;
  std::size_t segment;
  std::uint64_t offset;        // the position in the run, in bytes on the device
  std::uint64_t length;        // bytes on the device
  std::uint64_t of_items = 0;  // length without gaps, in bytes
};

class Transfer {
 public:
  Transfer(Device& device, std::span<const Item> items, const Layout& layout,
           const TransferOptions& options)
      : device_(device),
        items_(items),
        layout_(layout),
        options_(options),
        stop_(options.stop == nullptr ? own_stop_ : *options.stop),
        lanes_(options.lanes == nullptr ? own_lanes_ : *options.lanes),
        sources_(items, options.sources, options.checkpoints) {
    plan();
    fetches_ahead_ = !sources_.are_complete();
  }

  Transferred run() {
    allocate();
    work(&Transfer::copy_tiles);
    Transferred result;
    result.note = note();
    result.counts = device_counts_;
    for (std::size_t i = 0; i < items_.size(); ++i) result.counts[i] += host_counts_[i].total();
    if (options_.verify) work(&Transfer::compare_tiles);
    sources_.verify();
    for (const auto& segment : segments_) result.segments.push_back(segment->publish());
    return result;
  }

 private:
  using Step = void (Transfer::*)(Lane&, std::vector<ConversionCounts>& counts);

  void allocate() {
    const std::uint64_t needed = sum_or_most(layout_.bytes(), options_.keep_free);
    with_room(device_.info(), options_.wait_for_room, &stop_, [&] { allocate_now(needed); });
  }

  void allocate_now(std::uint64_t needed) {
    const DeviceInfo info = device_.info();
    if (needed > info.free_bytes) throw OutOfDeviceMemory(info.id, needed, info.free_bytes);
    std::uint64_t had = 0;
    try {
      for (const std::uint64_t bytes : layout_.segment_bytes) {
        segments_.push_back(device_.allocate(bytes));
        had += bytes;
      }
    } catch (const OutOfDeviceMemory&) {
      segments_.clear();
      throw OutOfDeviceMemory(info.id, layout_.bytes(), had);  // less than info() reported
    }
  }

  void plan() {
    runs_.resize(layout_.segment_bytes.size());
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const auto [segment, offset] = layout_.placements[i];
      if (segment == Placement::kNone) continue;
      const Item& item = items_[i];
      const OpenItem open = sources_.of(item);
      std::vector<Run>& runs = runs_[segment];
      const bool converts = item.converts() && is_for_device(item);
      const bool joins = !converts && !runs.empty() && !runs.back().converts;
      Run& run = joins ? runs.back() : runs.emplace_back();
      if (!joins) {
        run.begin = offset;
        run.first_item = i;
        run.converts = converts;
      }
      const std::uint64_t gap = offset - run.begin - run.length;
      if (gap > 0) run.gaps.emplace_back(run.length, gap);
      run.content.literal(std::string(static_cast<std::size_t>(gap), '\0'));
      run.content.append(item.content(open, converts ? nullptr : &host_counts_[i]));
      if (converts) run.raw = item.raw(open);
      run.length = run.content.size();
    }
    for (std::size_t segment = 0; segment < runs_.size(); ++segment) {
      for (const Run& run : runs_[segment]) cut(run, segment);
    }
  }

  // Returns true if the device converts an item of this type. Otherwise the host does.
  bool is_for_device(const Item& item) const {
    return device_.converts() && !item.cuts_blocks() &&
           type_info(item.request().dtype).kind == TypeKind::kFloat;
  }

  // Returns a line about tensors that the host converted although a device would be faster, or "".
  std::string note() const {
    std::size_t count = 0;
    std::set<std::string_view> blocks;  // types that no device converts
    for (const Item& item : items_) {
      if (!item.converts() || is_for_device(item)) continue;
      ++count;
      const DType from = item.request().dtype;
      if (type_info(from).kind == TypeKind::kQuantized) blocks.insert(dtype_name(from));
    }
    const std::string why = device_.why_host_converts();
    if (count == 0 || (device_.info().id == "cpu" && why.empty())) return "";
    std::string types;
    for (const std::string_view type : blocks)
      types += (types.empty() ? "" : ", ") + std::string(type);
    return std::to_string(count) + (count == 1 ? " tensor was" : " tensors were") +
           " converted on the host, which is slower: " +
           (why.empty() ? "no device converts " + types : why);
  }

  void cut(const Run& run, std::size_t segment) {
    const std::uint64_t step = tile_step(run);
    auto gap = run.gaps.begin();
    for (std::uint64_t at = 0; at < run.length; at += step) {
      Tile tile{&run, segment, at, std::min(step, run.length - at)};
      tile.of_items = tile.length;
      // Items and tiles are aligned to kItemAlignment, so each gap is inside one tile.
      for (; gap != run.gaps.end() && gap->first < at + tile.length; ++gap) {
        tile.of_items -= gap->second;
      }
      tiles_.push_back(tile);
    }
  }

  // Returns the maximum size of a tile of a run, in bytes on the device.
  std::uint64_t tile_step(const Run& run) const {
    if (!run.converts) return options_.tile_bytes;
    const Item& item = items_[run.first_item];
    const std::uint64_t widest =
        std::max(type_info(item.request().dtype).bits(), type_info(item.dtype()).bits());
    constexpr std::uint64_t kGroup = 64;  // elements; in every type they fill whole, aligned bytes
    const std::uint64_t elements =
        std::max<std::uint64_t>(options_.tile_bytes * 8 / widest / kGroup * kGroup, kGroup);
    return type_info(item.dtype()).offset_of(elements);
  }

  // Runs `step` for all tiles on several workers. Throws the first failure after all workers have
  // ended.
  void work(Step step) {
    next_ = 0;
    asked_ = 0;
    std::exception_ptr failure;
    std::mutex mutex;
    const auto worker = [&](std::size_t) {
      try {
        const OnProcessors near(device_.processors());
        std::vector<ConversionCounts> counts(items_.size());
        std::unique_ptr<Lane> lane = lanes_.take(device_, options_.tile_bytes);
        (this->*step)(*lane, counts);
        lane->drain();
        lanes_.give_back(std::move(lane));
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < items_.size(); ++i) device_counts_[i] += counts[i];
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        stop_ = true;  // the other workers end with another error, which is ignored
      }
    };
    const unsigned wanted = options_.workers == 0 ? device_.default_workers() : options_.workers;
    const std::size_t workers = std::clamp<std::size_t>(tiles_.size(), 1, wanted);
    on_threads(workers, worker);  // if fewer threads start, they do all tiles
    if (failure) std::rethrow_exception(failure);
  }

  // Returns the next tile for a worker, or nullptr if all tiles are taken.
  const Tile* take() {
    if (stop_) was_stopped(device_.info());
    const std::size_t i = next_.fetch_add(1);
    if (i >= tiles_.size()) return nullptr;
    if (fetches_ahead_) fetch_ahead(i);
    return &tiles_[i];
  }

  void report(const Tile& tile) const {
    if (options_.progress) options_.progress(tile.of_items);
  }

  void copy_tiles(Lane& lane, std::vector<ConversionCounts>& counts) {
    while (const Tile* const tile = take()) {
      copy(lane, *tile, counts);
      report(*tile);
    }
  }

  // The device copies one tile back while the worker compares another.
  void compare_tiles(Lane& lane, std::vector<ConversionCounts>&) {
    const auto read_ahead = [&](const Tile& tile) {
      lane.read_ahead(*segments_[tile.segment], tile.run->begin + tile.offset,
                      static_cast<std::size_t>(tile.length));
    };
    std::vector<std::byte> expected(options_.tile_bytes);
    const Tile* next = take();
    if (next != nullptr) read_ahead(*next);
    while (next != nullptr) {
      const Tile& tile = *next;
      next = take();
      if (next != nullptr) read_ahead(*next);
      compare(lane, tile, std::span(expected).first(static_cast<std::size_t>(tile.length)));
      report(tile);
    }
  }

  // The bytes that copy() reads for a tile: stored bytes, or bytes before the conversion.
  struct Needed {
    const Content* content;
    std::uint64_t offset, length;
  };
  Needed needed_for(const Tile& tile) const {
    const Run& run = *tile.run;
    if (!run.converts) return {&run.content, tile.offset, tile.length};
    const Item& first = items_[run.first_item];
    const TypeInfo& from = type_info(first.request().dtype);
    const TypeInfo& to = type_info(first.dtype());
    return {&run.raw, from.offset_of(to.elements_in(tile.offset)),
            from.offset_of(to.elements_in(tile.length))};
  }

  // Starts to fetch the tiles after this one, so that their bytes arrive while it is copied.
  void fetch_ahead(std::size_t tile) {
    const std::lock_guard lock(ahead_mutex_);
    asked_ = std::max(asked_, tile + 1);
    const std::size_t end =
        std::min(tiles_.size(), tile + 1 + std::max<std::size_t>(1, kAhead / options_.tile_bytes));
    for (; asked_ < end; ++asked_) {
      const Needed needed = needed_for(tiles_[asked_]);
      prefetch_content(*needed.content, needed.offset, needed.length);
    }
  }

  void copy(Lane& lane, const Tile& tile, std::vector<ConversionCounts>& counts) {
    const Run& run = *tile.run;
    DeviceSegment& segment = *segments_[tile.segment];
    const Item& first = items_[run.first_item];
    if (!run.converts) {
      const auto length = static_cast<std::size_t>(tile.length);
      read(run.content, tile, lane.tile(segment, run.begin + tile.offset, length), tile.offset);
      lane.send();
      return;
    }
    const Needed needed = needed_for(tile);
    const std::uint64_t elements = type_info(first.dtype()).elements_in(tile.length);
    read(run.raw, tile,
         lane.raw_tile(segment, run.begin + tile.offset, static_cast<std::size_t>(needed.length)),
         needed.offset);
    lane.send_converted(first.request().dtype, first.dtype(), elements, counts[run.first_item]);
  }

  void compare(Lane& lane, const Tile& tile, std::span<std::byte> expected) {
    read(tile.run->content, tile, expected, tile.offset);
    const std::span<const std::byte> found = lane.read_back();
    if (std::memcmp(expected.data(), found.data(), expected.size()) == 0) return;
    const auto differs = std::ranges::mismatch(expected, found).in1 - expected.begin();
    const std::uint64_t at = tile.run->begin + tile.offset + static_cast<std::uint64_t>(differs);
    const auto item = item_at(tile.segment, at);
    throw Error(ErrorCode::kDeviceFailed, device_.info().id,
                in_quotes(items_[item].label()) + ": byte " +
                    std::to_string(at - layout_.placements[item].offset) +
                    " on the device differs from the source: nothing was loaded; see the device's "
                    "memory (dmesg)");
  }

  // Returns the last item of a segment that begins at or before `offset`.
  std::size_t item_at(std::size_t segment, std::uint64_t offset) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Placement& placement = layout_.placements[i];
      if (placement.segment == segment && placement.offset <= offset) found = i;
    }
    return found;
  }

  void read(const Content& content, const Tile& tile, std::span<std::byte> out,
            std::uint64_t offset) const {
    int error = fetch_and_copy(content, offset, out, &stop_);
    if (error == EINTR) was_stopped(device_.info());
    if (const int changed = content.verify(offset, out.size())) error = changed;
    if (error != 0) {
      sources_.fail(items_[item_at(tile.segment, tile.run->begin + tile.offset)].request().path,
                    error);
    }
  }

  Device& device_;
  std::span<const Item> items_;
  const Layout& layout_;
  const TransferOptions& options_;
  std::atomic<bool> own_stop_ = false;
  std::atomic<bool>& stop_;
  Lanes own_lanes_;
  Lanes& lanes_;
  OpenSources sources_;
  bool fetches_ahead_ = false;
  std::mutex ahead_mutex_;
  std::size_t asked_ = 0;  // fetching has been started for the tiles before this one
  std::vector<ConversionTally> host_counts_{items_.size()};
  std::vector<std::vector<Run>> runs_;  // by segment
  std::vector<Tile> tiles_;
  std::vector<std::unique_ptr<DeviceSegment>> segments_;
  std::vector<ConversionCounts> device_counts_{items_.size()};
  std::atomic<std::size_t> next_ = 0;
};

}  // namespace

std::uint64_t sum_or_most(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

std::uint64_t Layout::bytes() const {
  return std::accumulate(segment_bytes.begin(), segment_bytes.end(), std::uint64_t{0}, sum_or_most);
}

Layout lay_out(std::span<const std::uint64_t> item_bytes) {
  Layout layout;
  std::uint32_t shared = Placement::kNone;  // the current segment for small items
  std::uint64_t used = 0;                   // bytes used in `shared`
  const auto segment = [&](std::uint64_t bytes) {
    layout.segment_bytes.push_back(bytes);
    return static_cast<std::uint32_t>(layout.segment_bytes.size() - 1);
  };
  for (const std::uint64_t bytes : item_bytes) {
    Placement& placement = layout.placements.emplace_back();
    if (bytes == 0) continue;
    if (bytes >= kOwnSegment) {
      placement.segment = segment(round_up(bytes, kSegmentGranularity));
      continue;
    }
    if (shared == Placement::kNone || used + bytes > kOwnSegment) {
      shared = segment(0);
      used = 0;
    }
    placement = {shared, used};
    used = round_up(used + bytes, kItemAlignment);
    layout.segment_bytes[shared] = round_up(used, kSegmentGranularity);
  }
  return layout;
}

std::uint64_t work_of(std::span<const Item> items, const TransferOptions& options) {
  std::uint64_t bytes = 0;
  for (const Item& item : items) bytes = sum_or_most(bytes, item.bytes());
  return options.verify ? sum_or_most(bytes, bytes) : bytes;
}

std::unique_ptr<Device> open_with_room(const DeviceInfo& info, std::chrono::milliseconds wait,
                                       const std::atomic<bool>* stop) {
  return with_room(info, wait, stop, [&] { return open_device(info); });
}

Transferred transfer(Device& device, std::span<const Item> items, const Layout& layout,
                     const TransferOptions& options) {
  if (options.tile_bytes % kTileUnit != 0 || options.tile_bytes == 0 ||
      options.tile_bytes > kMaxTile || options.workers > kMaxWorkers) {
    throw Error(ErrorCode::kUsage, "",
                "tiles are multiples of 4 KiB up to 64 MiB, and workers at most 64");
  }
  return Transfer(device, items, layout, options).run();
}

}  // namespace stfs::gpu
