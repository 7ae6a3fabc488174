#include "tools/info/json.h"

#include "core/command/terminal.h"

#include <nlohmann/json.hpp>

namespace stfs {

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void JsonArray::add(std::string_view element) {
  print(is_empty_ ? "[\n" : ",\n");
  print(element);
  is_empty_ = false;
}

void JsonArray::end() const { print(is_empty_ ? "[]\n" : "\n]\n"); }

}  // namespace stfs
