// The report of a checkpoint as one HTML page. Style, script and data are in the same file, which
// works without a network, with only a keyboard, and (its tables) without JavaScript. Its content
// security policy allows no external resources. Equal reports result in equal pages.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/report/report.h"

#include <functional>
#include <string>
#include <string_view>

namespace stfs {

// Calls `write` with each part of the page in turn. In a large report each part has only a few
// kilobytes.
void report_page(const Report& report, const std::function<void(std::string_view)>& write);

std::string report_page(const Report& report);

}  // namespace stfs
