// A run as one HTML page: what broke first, small charts by role with a line a layer, and a table.
// It has no script; all else as page.h says.
//
// Thread safety: the function may be called from any thread.
#pragma once

#include "core/report/run.h"

#include <functional>
#include <string>
#include <string_view>

namespace stfs {

void run_page(const Run& run, const std::function<void(std::string_view)>& write);

std::string run_page(const Run& run);

}  // namespace stfs
