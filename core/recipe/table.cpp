#include "core/recipe/table.h"

#include <algorithm>
#include <cstring>

namespace stfs {
namespace {

constexpr std::uint64_t kBlock = 64;              // rows
constexpr std::uint64_t kLongBlock = 1ULL << 20;  // bytes; a longer block is cached

}  // namespace

Table::Table(std::uint64_t rows, WriteRow write_row)
    : rows_(rows), write_row_(std::move(write_row)) {
  TextWriter counted;
  for (std::uint64_t i = 0; i < rows_; ++i) {
    if (i % kBlock == 0) block_begin_.push_back(counted.size());
    write_row_(i, counted);
  }
  size_ = counted.size();
}

void Table::append_block(std::size_t block, std::string& text) const {
  const std::uint64_t first = block * kBlock;
  const std::uint64_t last = std::min(rows_, first + kBlock);
  TextWriter out(text);
  for (std::uint64_t i = first; i < last; ++i) write_row_(i, out);
}

int Table::produce(std::uint64_t offset, std::span<std::byte> out) const {
  auto block = static_cast<std::size_t>(std::prev(std::ranges::upper_bound(block_begin_, offset)) -
                                        block_begin_.begin());
  std::string text;
  for (; !out.empty(); ++block) {
    const std::uint64_t begin = block_begin_[block];
    const std::uint64_t end = block + 1 < block_begin_.size() ? block_begin_[block + 1] : size_;
    const auto skip = static_cast<std::size_t>(offset - begin);
    const std::size_t take = std::min(out.size(), static_cast<std::size_t>(end - offset));
    if (end - begin > kLongBlock) {
      const std::lock_guard lock(long_mutex_);
      if (long_block_ != block) {
        long_block_.reset();
        long_text_.clear();
        long_text_.reserve(static_cast<std::size_t>(end - begin));
        append_block(block, long_text_);
        long_block_ = block;
      }
      std::memcpy(out.data(), long_text_.data() + skip, take);
    } else {
      text.clear();
      append_block(block, text);
      std::memcpy(out.data(), text.data() + skip, take);
    }
    out = out.subspan(take);
    offset += take;
  }
  return 0;
}

}  // namespace stfs
