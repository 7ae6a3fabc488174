// A text of many rows, each a function of its number: the catalogue, the header of a merged file.
// Nothing is kept but where every 64th row begins, so a table of a million rows costs 128 KiB; and
// of rows that are very long, the last 64 that were read, so that neither many readers nor many
// small reads make them again and again.
//
// Thread safety: all const members, if the function is safe to call from several threads. It must
// give the same row for the same number for ever.
#pragma once

#include "core/base/text.h"
#include "core/recipe/content.h"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace stfs {

class Table : public Producer {
 public:
  // Writes a row. All that it refers to must outlive the table.
  using WriteRow = std::function<void(std::uint64_t row, TextWriter& out)>;

  // Counts the bytes of every row once; makes no text.
  Table(std::uint64_t rows, WriteRow write_row);

  std::uint64_t size() const override { return size_; }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  void append_block(std::size_t block, std::string& text) const;

  std::uint64_t rows_;
  WriteRow write_row_;
  std::vector<std::uint64_t> block_begin_;
  std::uint64_t size_ = 0;
  mutable std::mutex long_mutex_;
  mutable std::string long_text_;
  mutable std::optional<std::size_t> long_block_;  // whose text it is
};

}  // namespace stfs
