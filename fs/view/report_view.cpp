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
  // Each thread may need megabytes.
  const PassOptions options{.stop = stop,
                            .threads = std::clamp(std::thread::hardware_concurrency(), 1U, 4U)};
  Report report;
  if (const int error = collect_report(checkpoint, nullptr, checkpoint.origins(), options, report))
    return error;
  for (const ReportTensor& tensor : report.tensors) {
    // The text is kept, and the next read of the tensor may succeed.
    if (!tensor.failure.empty()) {
      const int changed = verify_all(file);
      return changed != 0 ? changed : EIO;
    }
    if (!tensor.stats) return EIO;
    file.kept->keep(*checkpoint.find(tensor.name), *tensor.stats);
  }
  // Some tensors were read a second time, after others.
  if (const int changed = verify_all(file)) return changed;
  // In pieces, since a text that grows is copied while all its tensors are still here.
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
