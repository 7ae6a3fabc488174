#include "core/layer/edit/edit_layer.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/layer/edit/edit_lines.h"
#include "core/layer/edit/edit_state.h"
#include "core/remote/http/url.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace stfs {

bool name_url_in_edits(const std::string& argument) {
  if (is_edit_text(argument) || is_url(argument)) return argument.find("://") != std::string::npos;
  try {
    return read_file(argument, kMaxJson).find("://") != std::string::npos;
  } catch (const Error&) {
    return false;  // loading the file reports the error
  }
}

std::string read_edits(const std::string& argument, Sources& sources) {
  if (is_edit_text(argument)) return argument;
  std::string text = sources.read_file(argument, kMaxJson);
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (text.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kEdit, argument, "contains a NUL byte: expected a text file of edits");
  }
  std::error_code error;
  return edit_argument(is_url(argument) ? sources.pinned(argument)
                                        : std::filesystem::absolute(argument, error).string(),
                       text);
}

TensorList edit(TensorList below, std::span<const std::string> arguments, Sources& sources,
                const LoadSource& load) {
  std::string text(kEditOption);
  Edited edited(below, sources, load);
  for (const std::string& argument : arguments) {
    text.append("=").append(public_edits(argument)).push_back('\0');
    for_each_edit_line(argument, [&](const EditLine& line) { apply_edit(line, edited); });
  }
  edited.finish(below, std::move(text));
  return below;
}

}  // namespace stfs
