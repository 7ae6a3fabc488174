#include "tools/gpu/copier/copier.h"

#include "core/base/error.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "tools/gpu/copier/transfer.h"
#include "tools/gpu/device/device.h"
#include "tools/gpu/device/lanes.h"
#include "tools/gpu/protocol/message.h"

#include <nlohmann/json.hpp>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace stfs::gpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kProgressMs = 100;  // milliseconds between two progress messages
// The time in which a stopped load has to end. Opening a device or a remote source may take longer;
// the process then exits instead.
constexpr std::chrono::seconds kStopTime{2};

Json error_answer(std::uint64_t load, int status, const std::string& text) {
  return {{"load", load}, {"error", {{"status", status}, {"message", to_json_text(text)}}}};
}

class Copier {
 public:
  Copier(UniqueFd socket, std::string device)
      : channel_(std::move(socket), {.body_bytes = std::size_t{64} << 20, .descriptors = 0}),
        device_name_(std::move(device)),
        done_(::eventfd(0, EFD_CLOEXEC)) {
    if (!done_) throw_errno(ErrorCode::kDeviceFailed, "eventfd", "", errno);
  }

  int run(std::chrono::seconds idle) {
    channel_.send_now({{"load", 0}, {"hello", kProtocolVersion}});
    int timeout_ms = -1;  // no limit, because the first order is on its way
    for (;;) {
      while (std::optional<Message> message = channel_.next()) {
        if (message->body().contains("hello"))
          holder_version_ = number_of(message->body(), "hello");
        if (!message->body().contains("load")) continue;
        serve(message->body());
        if (holder_is_gone_ || is_broken_) return 0;
        timeout_ms = static_cast<int>(idle.count() * 1000);
      }
      const int ready = wait(-1, timeout_ms);
      if (ready == 0) return 0;
      if (!channel_.receive()) return 0;
    }
  }

 private:
  // Waits for the holder, and for `fd` unless it is negative. Returns the number of ready
  // descriptors.
  int wait(int fd, int milliseconds) {
    polled_[0] = {channel_.fd(), POLLIN, 0};
    polled_[1] = {fd, POLLIN, 0};
    return poll_events(std::span(polled_).first(fd < 0 ? 1 : 2), milliseconds);
  }

  void serve(const Json& order) {
    const std::uint64_t id = number_of(order, "load");
    std::atomic<std::uint64_t> copied = 0;
    std::atomic<bool> stop = false;
    Json answer;
    std::vector<UniqueFd> descriptors;
    {
      const std::jthread worker([&] {
        answer = copy(id, order, copied, stop, descriptors);
        ::eventfd_write(done_.get(), 1);
      });
      try {
        watch(id, copied, stop);
      } catch (...) {
        stop = true;  // before ~jthread joins the worker
        throw;
      }
    }
    if (holder_is_gone_) return;
    channel_.send_now(answer, std::move(descriptors));
  }

  // Sends progress and reads messages until the worker signals done_.
  void watch(std::uint64_t id, const std::atomic<std::uint64_t>& copied, std::atomic<bool>& stop) {
    bool is_stopped = false;  // by the holder; transfer() may set `stop` as well
    std::optional<Clock::time_point> stopped;
    for (;;) {
      if (!holder_is_gone_ && !channel_.has_output()) {
        channel_.queue({{"load", id}, {"progress", copied.load()}, {"total", total_.load()}});
      }
      if (!channel_.send()) holder_is_gone_ = true;
      if (holder_is_gone_ || is_stopped) {
        stop = true;
        if (!stopped) stopped = Clock::now();
        if (Clock::now() > *stopped + kStopTime) std::_Exit(0);
      }
      // Do not poll a closed socket, because it is always readable.
      const int ready = holder_is_gone_ ? poll_events({&done_poll_, 1}, kProgressMs)
                                        : wait(done_.get(), kProgressMs);
      if (ready > 0 && (holder_is_gone_ || (polled_[1].revents & POLLIN) != 0)) {
        eventfd_t value = 0;
        ::eventfd_read(done_.get(), &value);
        return;
      }
      if (ready == 0 || holder_is_gone_) continue;
      if (!channel_.receive()) holder_is_gone_ = true;
      while (const std::optional<Message> message = channel_.next()) {
        if (number_of(message->body(), "stop", 0) == id) is_stopped = true;
      }
    }
  }

  Json copy(std::uint64_t id, const Json& order, std::atomic<std::uint64_t>& copied,
            std::atomic<bool>& stop, std::vector<UniqueFd>& descriptors) {
    try {
      if (holder_version_ != kProtocolVersion) {
        throw Error(
            ErrorCode::kDeviceFailed, "",
            version_error(holder_version_, ::getppid(), kInstalled, kProtocolVersion, false));
      }
      DeviceInfo info = find_device(device_name_);
      if (info.id != "cpu") info.id = info.uuid;  // clients number devices in their own ways
      const std::vector<Item> items = items_of(order);
      std::vector<std::uint64_t> sizes;
      sizes.reserve(items.size());
      for (const Item& item : items) sizes.push_back(item.bytes());
      TransferOptions options;
      const CopyOptions asked = copy_options_from_json(order);
      options.verify = asked.verify;
      options.keep_free = asked.keep_free.value_or(default_keep_free(info.id));
      if (flag_of(order, "wait_for_room")) options.wait_for_room = kRoomTime;
      options.workers = static_cast<unsigned>(
          std::min<std::uint64_t>(asked.workers, std::numeric_limits<unsigned>::max()));
      if (asked.tile_bytes != 0) options.tile_bytes = static_cast<std::size_t>(asked.tile_bytes);
      options.stop = &stop;
      options.sources = &sources_for(to_json(asked.sources));
      options.checkpoints = &checkpoints_;
      options.lanes = &lanes_;
      options.progress = [&](std::uint64_t bytes) { copied += bytes; };
      total_ = work_of(items, options);
      if (!device_) device_ = open_with_room(info, options.wait_for_room, &stop);
      Transferred result = transfer(*device_, items, lay_out(sizes), options);
      Json counts = Json::array();
      for (const ConversionCounts& count : result.counts) {
        counts.push_back({{"out_of_range", count.out_of_range}, {"nan", count.nan}});
      }
      descriptors = std::move(result.segments);
      return {{"load", id}, {"counts", std::move(counts)}, {"note", to_json_text(result.note)}};
    } catch (const OutOfDeviceMemory& error) {
      return {{"load", id}, {"needed", error.needed()}, {"free", error.free()}};
    } catch (const DriverError& error) {
      is_broken_ = true;
      return error_answer(id, exit_status(error.code()), error.what());
    } catch (const Error& error) {
      return error_answer(id, exit_status(error.code()), error.what() + advice(error));
    } catch (const std::bad_alloc&) {
      return error_answer(id, exit_status(ErrorCode::kDeviceFailed), "the copier is out of memory");
    } catch (const std::exception& error) {
      return error_answer(id, exit_status(ErrorCode::kDeviceFailed), error.what());
    }
  }

  // Returns the sources that are opened with these options. Tokens and proxies come from the
  // environment of this process, which is the holder's.
  Sources& sources_for(const Json& given) {
    if (!sources_ || given != source_options_) {
      checkpoints_.clear();
      sources_.reset();
      sources_ = std::make_unique<Sources>(source_options_from_json(given));
      source_options_ = given;
    }
    return *sources_;
  }

  // Returns what to do if the client could open the source with its own environment.
  static std::string advice(const Error& error) {
    const bool is_denied = error.system_error() == EACCES ||
                           error.message().find(errno_text(EACCES)) != std::string::npos;
    if (!is_url(error.place()) || !is_denied) return "";
    const std::string pid = std::to_string(::getppid());
    return ": the holder (process " + pid + ") uses the tokens with which it was started: end it" +
           " (kill " + pid + "), and load again";
  }

  Channel channel_;
  std::string device_name_;
  UniqueFd done_;
  pollfd done_poll_{done_.get(), POLLIN, 0};
  pollfd polled_[2] = {};
  Json source_options_;  // the options of sources_
  std::unique_ptr<Sources> sources_;
  OpenCheckpoints checkpoints_;  // opened by sources_
  std::unique_ptr<Device> device_;
  Lanes lanes_;                       // lanes of device_
  std::uint64_t holder_version_ = 1;  // version 1 sends no hello
  std::atomic<std::uint64_t> total_ = 0;
  bool holder_is_gone_ = false;
  bool is_broken_ = false;  // the driver has failed
};

}  // namespace

int run_copier(UniqueFd socket, const std::string& device, std::chrono::seconds idle) {
  // `device` is a UUID or "cpu". CUDA hides all instances of a GPU except the first unless the
  // variable names one, and the environment comes from the client that started the holder.
  ::setenv("CUDA_VISIBLE_DEVICES", device.c_str(), 1);
  return Copier(std::move(socket), device).run(idle);
}

}  // namespace stfs::gpu
