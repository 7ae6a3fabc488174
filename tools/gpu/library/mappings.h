// The segments that this process maps, until nobody uses them and the device lets them go.
//
//     used ──1──> ended
//       └────2──> parked ──3──> ended
//
//   1  the last reference goes: MappedSegment::unmap() waits for the work of this process on the
//      device, then unmaps
//   2  the same while a stream captures a graph, during which nothing may wait for the device
//   3  retry(), when the capture is over
//
// A mapping that is parked when this object ends stays until the process ends.
//
// Thread safety: all of it. Lifetime: references outlive this object. After fork(2) a child must
// not end references: it leaks them (tensor_leases.h).
#pragma once

#include "tools/gpu/device/device.h"

#include <forward_list>
#include <memory>
#include <mutex>
#include <utility>

namespace stfs::gpu {

class Mappings {
 public:
  // Takes a segment. The end of the last reference allocates nothing.
  std::shared_ptr<const MappedSegment> adopt(std::unique_ptr<MappedSegment> segment);

  // Unmaps what is parked, as far as possible.
  void retry() noexcept;

 private:
  using Segments = std::forward_list<std::unique_ptr<MappedSegment>>;

  // Segments that wait for the end of a capture.
  struct Parked {
    std::mutex mutex;
    Segments segments;

    void add(Segments one) noexcept;
    void retry() noexcept;
  };
  // A segment that is used.
  struct Used {
    Used(std::shared_ptr<Parked> where, Segments one)
        : parked(std::move(where)), segment(std::move(one)) {}
    Used(const Used&) = delete;
    Used& operator=(const Used&) = delete;
    ~Used();

    std::shared_ptr<Parked> parked;
    Segments segment;  // one: a node of `parked->segments` to be
  };

  std::shared_ptr<Parked> parked_ = std::make_shared<Parked>();
};

}  // namespace stfs::gpu
