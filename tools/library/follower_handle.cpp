#include "tools/library/follower_handle.h"

#include "core/base/error.h"
#include "core/opened/open_rows.h"
#include "tools/library/open_options.h"

#include <array>
#include <utility>

namespace stfs {
namespace {

constexpr std::array kFollowRows = {
    OptionRow{.flags = "latest", .set = set<&FollowOptions::follow, &Follower::Options::latest>},
    OptionRow{.flags = "marker",
              .argument = "NAME",
              .set = set<&FollowOptions::follow, &Follower::Options::marker>},
};
constexpr auto kAllFollowRows =
    joined(kFollowRows, source_rows<&FollowOptions::sources>("", "", true));

}  // namespace

FollowOptions::FollowOptions(std::span<const std::string> options) {
  for (const std::string& option : options) {
    set_option(kAllFollowRows, option, this);
  }
}

FollowerHandle::FollowerHandle(std::string directory, const FollowOptions& options)
    : sources_(options.sources), follower_(std::move(directory), sources_, options.follow) {}

bool FollowerHandle::is_inherited() const { return process_ != this_process(); }

const char* FollowerHandle::next() {
  if (is_inherited()) {
    throw Error(ErrorCode::kUsage, "",
                "the follower belongs to another process: make a new one in this process");
  }
  const auto version = follower_.next();
  if (!version) return nullptr;
  version_ = *version;
  return version_.c_str();
}

}  // namespace stfs
