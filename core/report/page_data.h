// Writes the tensors of a report for its page without repetition: as rows of a table, from which
// the script reads them, and as JSON with the data that the table does not contain.
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

// A column of the table: its key in the JSON, its heading, and the CSS class of the heading.
struct Column {
  std::string_view key, name, style;
};

std::vector<Column> columns_of(const Report& report);

// Returns the number of tensors that have a row. These are the first tensors of the report.
std::size_t rows_of(const Report& report);
// Returns the number of removed tensors that have a row. Their rows follow the others.
std::size_t removed_rows_of(const Report& report);

// Describes the change in a tensor with a difference: "values", "now NaN", "type, was BF16 [4]".
std::string change_text(const ReportTensor& tensor);

// Writes one row per tensor, with its cells in the order of columns_of() and without empty cells at
// the end. Rows for which `is_linked` is true get an id. The rows are in <noscript>: its content is
// text for a browser that runs scripts.
void write_rows(const Report& report, const std::vector<bool>& is_linked, const Write& write);

// Writes the data that the table does not contain, as JSON, for each tensor that has such data and
// a row.
void write_data(const Report& report, const std::vector<Column>& columns, const Write& write);

}  // namespace stfs::markup
