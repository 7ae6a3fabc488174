// The segments that this process has mapped. A segment stays mapped while a reference to it exists,
// and after that until it can be unmapped.
//
//     used ──1──> ended
//       └────2──> parked ──3──> ended
//
//   1  The last reference is dropped: MappedSegment::unmap() waits for the work of this process on
//      the device, then unmaps the segment.
//   2  The last reference is dropped while a stream captures a graph. No thread may wait for the
//      device during a capture, so the segment stays mapped.
//   3  retry() unmaps the segment after the capture has ended.
//
// A segment that is parked when this object is destroyed stays mapped until the process ends.
//
// Thread safety: all members may be called from any thread. Lifetime: references may outlive this
// object. After fork(2) a child must not drop references: it leaks them (tensor_leases.h).
#pragma once

#include "tools/gpu/device/device.h"

#include <forward_list>
#include <memory>
#include <mutex>
#include <utility>

namespace stfs::gpu {

class Mappings {
 public:
  // Takes over a segment and returns the first reference to it. Dropping the last reference
  // allocates no memory.
  std::shared_ptr<const MappedSegment> adopt(std::unique_ptr<MappedSegment> segment);

  // Unmaps the parked segments, unless a stream still captures a graph.
  void retry() noexcept;

 private:
  using Segments = std::forward_list<std::unique_ptr<MappedSegment>>;

  // The segments that wait for the end of a capture.
  struct Parked {
    std::mutex mutex;
    Segments segments;

    void add(Segments one) noexcept;
    void retry() noexcept;
  };
  // A segment that is in use.
  struct Used {
    Used(std::shared_ptr<Parked> where, Segments one)
        : parked(std::move(where)), segment(std::move(one)) {}
    Used(const Used&) = delete;
    Used& operator=(const Used&) = delete;
    ~Used();

    std::shared_ptr<Parked> parked;
    Segments segment;  // a list of one, so that parking it moves a node and allocates no memory
  };

  std::shared_ptr<Parked> parked_ = std::make_shared<Parked>();
};

}  // namespace stfs::gpu
