// The common parts of the pages about checkpoints: filling in a page, and naming the scripts and
// styles that it permits.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/page_data.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace stfs::markup {

// Returns a source for a content security policy that permits only elements with exactly this text.
std::string hash_source(std::string_view text);

// Returns a cell of a table's head.
std::string heading(std::string_view text, std::string_view style = "");

// Writes `html`, and instead of each {{name}} the output of the function with this name. The output
// is not searched for {{name}} again.
using PagePart = std::function<void(const Write&)>;
void write_filled(std::string_view html, const std::map<std::string_view, PagePart>& parts,
                  const Write& write);
// Returns a part that writes `text`.
PagePart text_part(std::string text);

}  // namespace stfs::markup
