// A run as one HTML page: the tensors that broke first, small charts per role with a line per
// layer, and a table. It has no script; otherwise it has the same properties as the page of page.h.
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
