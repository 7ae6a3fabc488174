// The parts of the report's page that are files in core/report/page. CMake converts them to string
// literals.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <string_view>

namespace stfs {

std::string_view page_html();   // each {{name}} is replaced by a text of page.cpp
std::string_view run_html();    // each {{name}} is replaced by a text of run_page.cpp
std::string_view page_style();  // for both pages
std::string_view page_script();

}  // namespace stfs
