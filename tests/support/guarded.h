// For tests of code that reads and converts arrays: memory next to pages without access, and
// threads with other floating-point settings than the IEEE 754 defaults.
//
// Thread safety: one thread at a time.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace stfs::test {

// `size` bytes that end where a page without access begins, or with Flush::kBegin begin where one
// ends. An access outside ends the test with SIGSEGV.
class Guarded {
 public:
  enum class Flush { kEnd, kBegin };

  explicit Guarded(std::size_t size, Flush flush = Flush::kEnd) : size_(size) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t inner = (size + page - 1) / page * page;
    length_ = inner + 2 * page;
    pages_ = ::mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED) throw std::bad_alloc();
    auto* const first = static_cast<std::byte*>(pages_) + page;
    if (inner > 0 && ::mprotect(first, inner, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    begin_ = flush == Flush::kEnd ? first + inner - size : first;
  }
  explicit Guarded(std::span<const std::byte> bytes, Flush flush = Flush::kEnd)
      : Guarded(bytes.size(), flush) {
    if (!bytes.empty()) std::memcpy(begin_, bytes.data(), bytes.size());
  }
  ~Guarded() { ::munmap(pages_, length_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* data() const { return begin_; }
  std::span<const std::byte> bytes() const { return {begin_, size_}; }

 private:
  std::size_t size_;
  std::size_t length_ = 0;
  void* pages_ = nullptr;
  std::byte* begin_ = nullptr;
};

#if defined(__x86_64__)
// While the object exists, this thread rounds up, treats subnormal numbers as zero, and traps on
// every floating-point exception except overflow.
class OtherArithmetic {
 public:
  OtherArithmetic() { _mm_setcsr(kDenormalsAreZero | kFlushToZero | kUp | kTrapsButOverflow); }
  ~OtherArithmetic() { _mm_setcsr(before_); }
  OtherArithmetic(const OtherArithmetic&) = delete;
  OtherArithmetic& operator=(const OtherArithmetic&) = delete;

  // Returns true if the settings have not been changed.
  static bool is_set() {
    return (_mm_getcsr() & 0xFFC0) == (kDenormalsAreZero | kFlushToZero | kUp | kTrapsButOverflow);
  }

 private:
  static constexpr unsigned kDenormalsAreZero = 0x0040;
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kUp = 0x4000;
  static constexpr unsigned kTrapsButOverflow = 0x0400;  // masks only overflow
  unsigned before_ = _mm_getcsr();
};
#endif

}  // namespace stfs::test
