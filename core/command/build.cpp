#include "core/command/build.h"

#include "core/base/carried.h"
#include "core/remote/http/http.h"

namespace stfs {
namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = "Clang " __clang_version__;
#else
constexpr std::string_view kCompiler = "GCC " __VERSION__;
#endif

}  // namespace

std::string version_text(std::string_view program, std::string_view libraries) {
  std::string text(program);
  text.append(" " STFS_VERSION "\n").append(kIsCarried ? "carried, " : "").append("built with ");
  text.append(kCompiler).append(", ").append(libraries);
  if (!libraries.empty()) text.append(", ");
  return text + http_libraries() + "\n";
}

}  // namespace stfs
