// Memory that is kept for when there is none left. The holder must not end for want of some, and
// nlohmann's JSON needs some even to be destroyed: then operator new gets what is kept here.
//
// One in a process, which has no other handler of its own (std::set_new_handler). Not thread-safe:
// neither its functions nor operator new while there is one.
#pragma once

#include <array>
#include <cstddef>

namespace stfs::gpu {

class Reserve {
 public:
  Reserve();
  ~Reserve();
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;

  // Takes back what was given away, as far as there is memory; whether all of it is there.
  bool restore() noexcept;

 private:
  // What a message of the usual size takes, many times over. In pieces: each want of memory takes
  // one.
  static constexpr std::size_t kPieces = 256;
  static constexpr std::size_t kPieceBytes = 16 << 10;

  static void give_one();  // the handler: throws std::bad_alloc when there is none left

  std::array<void*, kPieces> pieces_{};
};

}  // namespace stfs::gpu
