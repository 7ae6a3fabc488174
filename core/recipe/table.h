// A text of many rows, each computed from its number: the catalogue, the header of a merged file.
// It stores the offset of every 64th row, so a table of a million rows takes 128 KiB. A block of 64
// rows with more than 1 MiB is cached, one per table, so that small reads do not compute it again
// each time.
//
// Thread safety: const members may be called from any thread.
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
  // Writes a row. Must always write the same text for the same number. Is called from several
  // threads at once. The objects that it refers to must outlive the table.
  using WriteRow = std::function<void(std::uint64_t row, TextWriter& out)>;

  // Calls `write_row` once for each row, to count its bytes.
  Table(std::uint64_t rows, WriteRow write_row);

  std::uint64_t size() const override { return size_; }
  int produce(std::uint64_t offset, std::span<std::byte> out) const override;
  void missing(std::uint64_t, std::uint64_t, std::vector<Extent>&) const override {}

 private:
  void append_block(std::size_t block, std::string& text) const;

  std::uint64_t rows_;
  WriteRow write_row_;
  std::vector<std::uint64_t> block_begin_;  // offset of each block in the text, bytes
  std::uint64_t size_ = 0;
  mutable std::mutex long_mutex_;
  mutable std::string long_text_;
  mutable std::optional<std::size_t> long_block_;  // the block in long_text_
};

}  // namespace stfs
