#include "tools/gpu/reserve.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace stfs::gpu {
namespace {

Reserve* the_reserve = nullptr;

}  // namespace

Reserve::Reserve() {
  restore();
  the_reserve = this;
  std::set_new_handler(give_one);
}

Reserve::~Reserve() {
  std::set_new_handler(nullptr);
  the_reserve = nullptr;
  for (void* piece : pieces_) std::free(piece);
}

bool Reserve::restore() noexcept {
  bool is_whole = true;
  for (void*& piece : pieces_) {
    if (piece == nullptr) piece = std::malloc(kPieceBytes);  // which calls no handler
    if (piece == nullptr) is_whole = false;
  }
  return is_whole;
}

void Reserve::give_one() {
  for (void*& piece : the_reserve->pieces_) {
    if (piece == nullptr) continue;
    std::free(std::exchange(piece, nullptr));
    return;
  }
  throw std::bad_alloc();
}

}  // namespace stfs::gpu
