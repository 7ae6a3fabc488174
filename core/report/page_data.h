// The tensors of a report for its page, once: as the rows of a table, from which the script reads
// them, and as JSON with what the table does not say.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <string>
#include <string_view>
#include <vector>

namespace stfs::markup {

struct Column {
  std::string_view key, name, style;
};

std::vector<Column> columns_of(const Report& report);

// One line for each tensor, its cells in the order of columns_of(), without empty ones at the end.
// A row that `is_linked` has an id. A browser that runs scripts takes <noscript>, where the rows
// stand, for a text.
std::string rows_html(const Report& report, const std::vector<bool>& is_linked);

// What the table does not say, by tensor: only of those that have it.
std::string data_json(const Report& report, const std::vector<Column>& columns);

}  // namespace stfs::markup
