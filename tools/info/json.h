// The JSON that stfs-info prints. Objects keep the order of their members.
//
// Thread safety: one thread at a time uses a JsonArray.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace stfs {

using Json = nlohmann::ordered_json;

// Returns one line, without a line end. Bytes that are not UTF-8 become U+FFFD.
std::string json_line(const Json& json);

// Prints the elements of a JSON array, one per line.
class JsonArray {
 public:
  void add(std::string_view element);
  void end() const;

 private:
  bool is_empty_ = true;
};

}  // namespace stfs
