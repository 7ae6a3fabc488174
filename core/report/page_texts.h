// The parts of the report's page that stand in core/report/page as files; CMake makes them texts.
//
// Thread safety: constants.
#pragma once

#include <string_view>

namespace stfs {

extern const std::string_view kPageHtml;  // {{name}} stands for a text of page.cpp
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace stfs
