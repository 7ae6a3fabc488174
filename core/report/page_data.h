// The tensors of a report for its page, once: as the rows of a table, from which the script reads
// them, and as JSON with what the table does not say.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::markup {

using Write = std::function<void(std::string_view)>;

struct Column {
  std::string_view key, name, style;
};

std::vector<Column> columns_of(const Report& report);

// The number of tensors that have a row: the first of the report.
std::size_t rows_of(const Report& report);
// And that of removed ones, whose rows come after those.
std::size_t removed_rows_of(const Report& report);

// What changed in a tensor with a difference: "values", "now NaN", "type, was BF16 [4]".
std::string change_text(const ReportTensor& tensor);

// One line for each of them, its cells in the order of columns_of(), without empty ones at the end.
// A row that `is_linked` has an id. A browser that runs scripts takes <noscript>, where the rows
// stand, for a text.
void write_rows(const Report& report, const std::vector<bool>& is_linked, const Write& write);

// Writes as JSON what the table lacks: for each tensor that has such data and a row.
void write_data(const Report& report, const std::vector<Column>& columns, const Write& write);

}  // namespace stfs::markup
