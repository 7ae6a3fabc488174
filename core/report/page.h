// The report of a checkpoint as one HTML page: style, script and data in one file, which opens
// without a network, without JavaScript (its tables) and from the keyboard. Its content security
// policy allows nothing from elsewhere. Equal reports give equal pages.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <functional>
#include <string>
#include <string_view>

namespace stfs {

// Calls `write` with each part of the page in turn: of a large report, none is larger than some
// kilobytes.
void report_page(const Report& report, const std::function<void(std::string_view)>& write);

std::string report_page(const Report& report);

}  // namespace stfs
