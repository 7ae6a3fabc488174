// report
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/remote/http/url.h"
#include "core/report/collect.h"
#include "core/report/page.h"
#include "core/report/report.h"
#include "tools/info/output.h"
#include "tools/info/verbs.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace stfs {
namespace {

std::uint64_t bytes_to_read(const Checkpoint& checkpoint, const Checkpoint* against) {
  std::uint64_t bytes = 0;
  for (std::uint32_t number = 0; number < checkpoint.tensor_count(); ++number) {
    const Tensor tensor = checkpoint.tensor(number);
    bytes += tensor.length;
    const auto other = against == nullptr ? std::nullopt : against->find(tensor.name);
    if (other) bytes += against->tensor(*other).length;
  }
  return bytes;
}

std::string page_of(const Arguments& arguments, const Checkpoint& checkpoint,
                    const Checkpoint* against, Report& report) {
  ProgressBar bar(bytes_to_read(checkpoint, against));
  const std::atomic<bool> stop = false;
  std::string page;
  run_beside([&] {
    collect_report(checkpoint, against, arguments.paths,
                   {stop, [&bar](std::uint64_t bytes) { bar.add(bytes); }, arguments.threads()},
                   report);
    page = report_page(report);
  });
  return page;
}

void write_page(int fd, const std::string& page, const std::string& to) {
  ::signal(SIGXFSZ, SIG_IGN);  // write(2) returns EFBIG
  if (const int error = write_exact(fd, std::as_bytes(std::span(page)))) {
    throw_errno(ErrorCode::kUnreadable, to, "", error);
  }
}

// Prints what a user would look for first on the page.
void print_findings(const Arguments& arguments, const Report& report, std::size_t bytes) {
  constexpr std::size_t kMost = 10;
  if (!Terminal().is_terminal) return;
  const std::size_t tensors = report.tensors.size();
  print(printable(arguments.output) + ": " + std::to_string(tensors) +
        (tensors == 1 ? " tensor, " : " tensors, ") + human_bytes(bytes) + "\n");
  const std::size_t shown = std::min(report.findings.size(), kMost);
  for (std::size_t i = 0; i < shown; ++i) {
    print("! " + report.findings[i].text + "\n");
  }
  if (report.findings.empty()) print("nothing is suspicious\n");
  if (report.findings.size() > shown) {
    print("and " + std::to_string(report.findings.size() - shown) + " more findings\n");
  }
}

}  // namespace

int report(const Arguments& arguments) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint(arguments.paths,
                              load_options(arguments, sources, arguments.new_layers));
  std::optional<Checkpoint> against;
  if (!arguments.against.empty()) {
    against.emplace(std::span(&arguments.against, 1),
                    load_options(arguments, sources, arguments.old_layers));
  }
  std::vector<const Checkpoint*> read{&checkpoint};
  if (against) read.push_back(&*against);
  // Before hours of reading: a directory without permission is found here.
  Output output(arguments, read, sources);
  Report report;
  const std::string page = page_of(arguments, checkpoint, against ? &*against : nullptr, report);
  write_page(output.fd(), page, output.name());
  output.commit();
  if (output.is_new_file()) print_findings(arguments, report, page.size());
  std::size_t unreadable = 0;  // in either checkpoint
  for (const Finding& finding : report.findings) {
    if (finding.kind == Finding::Kind::kUnreadable) unreadable += finding.tensors.size();
  }
  if (unreadable == 0) return 0;
  throw Error(ErrorCode::kUnreadable, public_name(arguments.paths.front()),
              std::to_string(unreadable) + " of " + std::to_string(report.tensors.size()) +
                  " tensors cannot be read: the report says why");
}

}  // namespace stfs
