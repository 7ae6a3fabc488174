// What the readers of archives share: they add tensors whose bytes need a Description, and they
// warn about tensors that are refused while the rest is shown.
//
// Thread safety: one thread at a time uses a Header.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Adds a tensor of `length` bytes, which are made as `from` says. Keeps `from` in the header only
// if the bytes are compressed or in another order; otherwise the offset in the source is enough.
// The caller adds the name of the member to Header::members.
void add_described(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                   std::uint64_t length, Description from, Header& header);

// Sorts the tensors by offset, and fills Header::by_name. Throws Error kDuplicateTensor.
void finish_header(Header& header, const std::string& place);

// Adds a warning to the header for each of the first kShown refused tensors. The destructor adds
// one warning with the number of the others. `place` and `header` must outlive this.
class Refusals {
 public:
  Refusals(const std::string& place, Header& header) : place_(place), header_(header) {}
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;
  ~Refusals();

  void add(std::string_view name, const std::string& why);

 private:
  static constexpr std::uint64_t kShown = 16;
  const std::string& place_;
  Header& header_;
  std::uint64_t count_ = 0;
};

}  // namespace stfs
