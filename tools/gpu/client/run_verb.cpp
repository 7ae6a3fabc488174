// The verb run, which uses no holder: the command owns the tensors, and they end with it.
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/without_queries.h"
#include "core/command/terminal.h"
#include "tools/gpu/client/verbs.h"
#include "tools/gpu/copier/transfer.h"
#include "tools/gpu/protocol/message.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace stfs::gpu {
namespace {

// The exit statuses that env(1) and shells use.
constexpr int kCannotRun = 126;
constexpr int kNoSuchCommand = 127;

// Returns a copy of the descriptor without close-on-exec, and closes the original.
int inherit(UniqueFd fd) {
  const int copy = ::fcntl(fd.get(), F_DUPFD, 3);  // without close-on-exec
  if (copy < 0) throw_errno(ErrorCode::kDeviceFailed, "a segment", "", errno);
  return copy;
}

// Copies with a progress bar. Closes the device before it returns, so that the command gets the
// memory but no context.
Transferred copy(const DeviceInfo& info, std::span<const Item> items, const Layout& layout,
                 TransferOptions options) {
  const std::unique_ptr<Device> device = open_with_room(info, options.wait_for_room);
  ProgressBar bar(work_of(items, options));
  options.progress = [&](std::uint64_t bytes) { bar.add(bytes); };
  return transfer(*device, items, layout, options);
}

}  // namespace

int run(const GpuArguments& arguments) {
  const DeviceInfo info = find_device(arguments.device);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);

  Selection selection(source_options(arguments));
  std::vector<Item> items = selection.resolve_once(arguments.tensors, arguments.selection);
  for (const std::string& line : exceptions(items, arguments.selection)) {
    std::fprintf(stderr, "stfs-gpu: %s\n", line.c_str());
  }
  TransferOptions options;
  options.verify = arguments.verify;
  options.keep_free = arguments.keep_free.value_or(default_keep_free(info.id));
  if (info.id != "cpu") options.wait_for_room = kRoomTime;
  options.workers = arguments.workers;
  Sources sources(arguments.sources);
  options.sources = &sources;
  if (arguments.tile_bytes != 0)
    options.tile_bytes = static_cast<std::size_t>(arguments.tile_bytes);
  std::vector<std::uint64_t> sizes;
  sizes.reserve(items.size());
  for (const Item& item : items) sizes.push_back(item.bytes());
  const Layout layout = lay_out(sizes);
  Transferred transferred;
  selection.load_resolved(items, arguments.tensors, arguments.selection,
                          [&] { transferred = copy(info, items, layout, options); });
  if (!transferred.note.empty())
    std::fprintf(stderr, "stfs-gpu: warning: %s\n", printable(transferred.note).c_str());

  std::vector<int> descriptors;
  for (UniqueFd& segment : transferred.segments) descriptors.push_back(inherit(std::move(segment)));
  Json tensors = Json::array();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    const auto [segment, offset] = layout.placements[i];
    const bool has_bytes = segment != Placement::kNone;
    tensors.push_back({{"name", item.request().tensor},
                       {"label", item.label()},
                       {"key", item.key()},
                       {"fd", has_bytes ? descriptors[segment] : -1},
                       {"offset", offset},
                       {"bytes", item.bytes()},
                       {"segment_bytes", has_bytes ? layout.segment_bytes[segment] : 0},
                       {"dtype", dtype_name(item.dtype())},
                       {"shape", item.shape()},
                       {"device", info.id},
                       {"uuid", info.uuid}});
    if (const std::string& name = item.request().tensor; !is_utf8(name)) {
      tensors.back()["raw_name"] = to_json_text(name);
    }
    if (!is_utf8(item.label())) tensors.back()["raw_label"] = to_json_text(item.label());
  }
  UniqueFd description(::memfd_create("stfs-gpu-tensors", MFD_CLOEXEC));
  if (!description) throw_errno(ErrorCode::kDeviceFailed, "memfd", "", errno);
  const std::string text = tensors.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (const int error = write_exact(description.get(), std::as_bytes(std::span(text)))) {
    throw_errno(ErrorCode::kDeviceFailed, "memfd", "", error);
  }
  const int described = inherit(std::move(description));
  ::setenv("STFS_GPU_TENSORS", ("/proc/self/fd/" + std::to_string(described)).c_str(), 1);

  if (static_cast<rlim_t>(described) < before.rlim_cur) ::setrlimit(RLIMIT_NOFILE, &before);
  std::vector<char*> argv;
  for (const std::string& word : arguments.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::signal(SIGXFSZ, SIG_DFL);  // because run_to_exit() ignores it
  ::execvp(argv[0], argv.data());
  const int error = errno;
  std::fprintf(stderr, "stfs-gpu: %s: %s\n",
               printable(without_queries(arguments.command[0])).c_str(), errno_text(error).c_str());
  return error == ENOENT ? kNoSuchCommand : kCannotRun;
}

}  // namespace stfs::gpu
