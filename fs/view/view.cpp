#include "fs/view/view.h"

namespace stfs {
namespace {

constexpr unsigned kFileShift = 55;
constexpr unsigned kViewShift = 56;
constexpr std::uint64_t kNumberMask = (1ULL << kFileShift) - 1;

}  // namespace

std::uint64_t inode_of(Node node) {
  const std::uint64_t view = static_cast<std::uint64_t>(node.view) << kViewShift;
  const std::uint64_t file = std::uint64_t{!node.is_directory} << kFileShift;
  return 1 + (view | file | node.number);
}

Node node_of(std::uint64_t inode) {
  const std::uint64_t bits = inode - 1;
  return {static_cast<View>(bits >> kViewShift), (bits >> kFileShift & 1) == 0, bits & kNumberMask};
}

}  // namespace stfs
