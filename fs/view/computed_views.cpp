#include "core/recipe/digest.h"
#include "core/recipe/stats.h"
#include "fs/view/families.h"

namespace stfs {

int compute_stats(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  ValueStats stats;
  if (const int error = value_stats(file.tensor().content(), file.tensor().dtype, stop, stats))
    return error;
  text = stats_json(stats) + "\n";
  return 0;
}

int compute_sha256(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  std::string hex;
  if (const int error = sha256(file.tensor().content(), stop, hex)) return error;
  text = sha256sum_line(hex, file.tensor().path);
  return 0;
}

}  // namespace stfs
