// What the pages about checkpoints share: how a page is filled in, and which scripts and styles it
// permits.
//
// Thread safety: the functions may be called from any thread.
#pragma once

#include "core/report/page_data.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace stfs::markup {

// A source of a content security policy that permits an element with this text alone.
std::string hash_source(std::string_view text);

// A cell of a table's head.
std::string heading(std::string_view text, std::string_view style = "");

// Writes `html`, and in place of each {{name}} what its function writes. That is not searched
// again.
using PagePart = std::function<void(const Write&)>;
void write_filled(std::string_view html, const std::map<std::string_view, PagePart>& parts,
                  const Write& write);
PagePart text_part(std::string text);

}  // namespace stfs::markup
