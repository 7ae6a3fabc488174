#include "core/report/collect.h"
#include "core/report/page.h"
#include "core/report/report.h"
#include "fs/view/families.h"
#include "fs/view/stats_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs {

int verify_all(const ViewFile& file) {
  for (const Part& part : file.checkpoint.parts()) {
    if (const int error = part.source->verify()) return error;
  }
  return 0;
}

int compute_report(const ViewFile& file, const std::atomic<bool>& stop, std::string& text) {
  const Checkpoint& checkpoint = file.checkpoint;
  // Use at most four threads, because each thread may need megabytes of memory.
  const PassOptions options{.stop = stop,
                            .threads = std::clamp(std::thread::hardware_concurrency(), 1U, 4U)};
  Report report;
  if (const int error = collect_report(checkpoint, nullptr, checkpoint.origins(), options, report))
    return error;
  for (const ReportTensor& tensor : report.tensors) {
    // Do not return a text with a failure, because the text is kept, and the next read of the
    // tensor may succeed.
    if (!tensor.failure.empty()) {
      const int changed = verify_all(file);
      return changed != 0 ? changed : EIO;
    }
    if (!tensor.stats) return EIO;
    file.kept->keep(*checkpoint.find(tensor.name), *tensor.stats);
  }
  // Verify all sources again, because some tensors were read a second time after other tensors.
  if (const int changed = verify_all(file)) return changed;
  // Write the text in pieces, because a growing text would be copied while the whole report is
  // still in memory.
  constexpr std::size_t kAtOnce = 1 << 20;
  std::vector<std::string> pieces;
  report_page(report, [&](std::string_view part) {
    if (pieces.empty() || pieces.back().size() + part.size() > kAtOnce) {
      pieces.emplace_back().reserve(std::max(kAtOnce, part.size()));
    }
    pieces.back() += part;
  });
  report = Report();
  text.reserve(pieces.size() * kAtOnce);
  for (std::string& piece : pieces) text += std::exchange(piece, std::string());
  return 0;
}

}  // namespace stfs
