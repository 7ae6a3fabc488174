#include "core/layer/edit/edit_layer.h"

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/layer/edit/edited.h"
#include "core/layer/edit/edit_lines.h"
#include "core/remote/http/url.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace stfs {

bool name_url_in_edits(const std::string& argument) {
  if (is_edit_text(argument) || is_url(argument)) return argument.find("://") != std::string::npos;
  try {
    return read_file(argument, kMostJson).find("://") != std::string::npos;
  } catch (const Error&) {
    return false;  // loading says why
  }
}

std::string read_edits(const std::string& argument, Sources& sources) {
  if (is_edit_text(argument)) return argument;
  const std::string text = sources.read_file(argument, kMostJson);
  if (text.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kEdit, argument, "has a NUL: a text of edits is expected");
  }
  std::error_code error;
  return edit_argument(is_url(argument) ? sources.pinned(argument)
                                        : std::filesystem::absolute(argument, error).string(),
                       text);
}

TensorList edit(TensorList below, std::span<const std::string> arguments, Sources& sources) {
  std::string text(kEditOption);
  Edited edited(below, sources);
  for (const std::string& argument : arguments) {
    text.append("=").append(argument).push_back('\0');
    for (const EditLine& line : edit_lines(argument)) apply_edit(line, edited);
  }
  edited.finish(below, std::move(text));
  return below;
}

}  // namespace stfs
