// A text of many rows, each a function of its number: the catalogue, the header of a merged file.
// Nothing is kept but where every 64th row begins, so a table of a million rows costs 128 KiB.
//
// Thread safety: as that of the function, which must give the same row for the same number for
// ever.
#pragma once

#include "core/content.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stfs {

class Table : public Producer {
 public:
  // Appends a row to a text. What it refers to must outlive the table.
  using AppendRow = std::function<void(std::uint64_t row, std::string& text)>;

  // Makes every row once, to learn its size.
  Table(std::uint64_t rows, AppendRow append_row);

  std::uint64_t size() const override { return size_; }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::uint64_t rows_;
  AppendRow append_row_;
  std::vector<std::uint64_t> block_begin_;
  std::uint64_t size_ = 0;
};

}  // namespace stfs
