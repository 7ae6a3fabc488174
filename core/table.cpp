#include "core/table.h"

#include <algorithm>
#include <cstring>

namespace stfs {
namespace {

constexpr std::uint64_t kBlock = 64;  // rows

}  // namespace

Table::Table(std::uint64_t rows, AppendRow append_row)
    : rows_(rows), append_row_(std::move(append_row)) {
  std::string row;
  for (std::uint64_t i = 0; i < rows_; ++i) {
    if (i % kBlock == 0) block_begin_.push_back(size_);
    row.clear();
    append_row_(i, row);
    size_ += row.size();
  }
}

int Table::produce(std::uint64_t offset, std::span<std::byte> out) const {
  auto block = static_cast<std::size_t>(std::prev(std::ranges::upper_bound(block_begin_, offset)) -
                                        block_begin_.begin());
  std::string text;
  for (; !out.empty(); ++block) {
    text.clear();
    const std::uint64_t first = block * kBlock;
    const std::uint64_t last = std::min(rows_, first + kBlock);
    for (std::uint64_t i = first; i < last; ++i) append_row_(i, text);
    const auto skip = static_cast<std::size_t>(offset - block_begin_[block]);
    const std::size_t take = std::min(out.size(), text.size() - skip);
    std::memcpy(out.data(), text.data() + skip, take);
    out = out.subspan(take);
    offset += take;
  }
  return 0;
}

}  // namespace stfs
