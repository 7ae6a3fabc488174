// What the readers of archives share: tensors whose bytes need a Description, and those that are
// refused while the rest is shown.
//
// Thread safety: one thread at a time uses a Header.
#pragma once

#include "core/format/header.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace stfs {

// Adds a tensor: its bytes are those of `from` where that says more than a place; whoever calls
// adds its member. `length`: of the tensor, bytes.
void add_described(std::string_view name, DType dtype, std::span<const std::uint64_t> shape,
                   std::uint64_t length, Description from, Header& header);

// Sorts the tensors by offset, and `by_name`. Throws Error kDuplicateTensor.
void finish_header(Header& header, const std::string& place);

// A line for each refused tensor; of more than a few, how many there are.
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
