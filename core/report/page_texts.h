// The parts of the report's page that stand in core/report/page as files; CMake makes them texts.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include <string_view>

namespace stfs {

std::string_view page_html();   // {{name}} stands for a text of page.cpp
std::string_view run_html();    // of run_page.cpp
std::string_view page_style();  // of both
std::string_view page_script();

}  // namespace stfs
