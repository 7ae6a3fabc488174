#include "tests/bench/walk.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace stfs::bench {
namespace {

using nlohmann::json;

// Accepts every event and keeps nothing.
struct Walker {
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(std::size_t) { return true; }
  bool end_object() { return true; }
  bool start_array(std::size_t) { return true; }
  bool end_array() { return true; }
  bool key(std::string&) { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception&) { return false; }
};

}  // namespace

bool walk(std::string_view text) {
  Walker walker;
  return json::sax_parse(text.begin(), text.end(), &walker);
}

}  // namespace stfs::bench
