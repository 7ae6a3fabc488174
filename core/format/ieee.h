// While an IeeeArithmetic exists, the thread that made it computes with the defaults of IEEE 754:
// it rounds to nearest, keeps subnormal numbers and does not trap. This is needed because a program
// that loads libstfs may have chosen something else for its threads (torch.set_flush_denormal,
// fesetround, feenableexcept). The destructor restores the choice of the program.
//
// The compiler may move arithmetic before the constructor or after the destructor. So a function
// that makes an IeeeArithmetic must call the arithmetic through a function pointer.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace stfs {

class IeeeArithmetic {
 public:
  IeeeArithmetic() : before_(get()) {
    if ((before_ & kControl) != kDefault) set(kDefault);
  }
  ~IeeeArithmetic() {
    if ((before_ & kControl) != kDefault) set(before_);
  }
  IeeeArithmetic(const IeeeArithmetic&) = delete;
  IeeeArithmetic& operator=(const IeeeArithmetic&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;                    // MXCSR
  static constexpr Word kControl = 0xFFC0;  // the other bits are flags of past exceptions
  static constexpr Word kDefault = 0x1F80;  // all exceptions masked
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;  // FPCR
  static constexpr Word kControl = ~Word{0};
  static constexpr Word kDefault = 0;
  static Word get() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = unsigned;
  static constexpr Word kControl = 0;
  static constexpr Word kDefault = 0;
  static Word get() { return 0; }
  static void set(Word) {}
#endif

  Word before_;
};

}  // namespace stfs
