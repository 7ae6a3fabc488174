// The verb report.
#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/remote/http/url.h"
#include "core/report/collect.h"
#include "core/report/page.h"
#include "core/report/report.h"
#include "core/report/run.h"
#include "core/report/run_page.h"
#include "tools/info/output.h"
#include "tools/info/select.h"
#include "tools/info/verbs.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  if (const int error = write_exact(fd, std::as_bytes(std::span(page)))) {
    throw_errno(ErrorCode::kUnreadable, to, "", error);
  }
}

// Prints the findings that a user would look for first on the page.
void print_findings(const Arguments& arguments, const Report& report, std::size_t bytes) {
  constexpr std::size_t kMost = 10;
  if (!Terminal().is_terminal) return;
  const std::size_t tensors = report.tensors.size();
  print(printable(arguments.output) + ": " + std::to_string(tensors) +
        (tensors == 1 ? " tensor, " : " tensors, ") + human_bytes(bytes) + "\n");
  std::size_t told = 0, more = 0;
  for (const Finding& finding : report.findings) {
    if (finding.severity == Finding::Severity::kUsual) continue;
    if (told >= kMost) {
      ++more;
      continue;
    }
    ++told;
    print((finding.severity == Finding::Severity::kBroken ? "broken: " : "odd: ") + finding.text +
          "\n");
  }
  if (told == 0) print("nothing is odd\n");
  if (more > 0) print("and " + std::to_string(more) + " more findings\n");
}

// Returns the versions of a training run, each as a checkpoint. Returns an empty list if the
// sources are anything else.
std::vector<std::unique_ptr<const Checkpoint>> versions_of(std::span<const std::string> paths,
                                                           const LoadOptions& options) {
  std::vector<std::unique_ptr<const Checkpoint>> versions;
  std::vector<const Checkpoint*> read;
  try {
    for (const std::string& path : paths) {
      versions.push_back(std::make_unique<const Checkpoint>(std::span(&path, 1), options));
      read.push_back(versions.back().get());
    }
  } catch (const Error&) {
    return {};  // because the caller has the Error of loading them together
  }
  if (!are_versions(read)) versions.clear();
  return versions;
}

int report_run(const Arguments& arguments, const std::vector<std::string>& paths,
               const std::vector<std::unique_ptr<const Checkpoint>>& versions,
               VerbSources& sources) {
  if (!arguments.against.empty()) {
    throw Error(ErrorCode::kUsage, "report",
                "--against needs a single checkpoint: several versions are compared with the first "
                "of them");
  }
  std::vector<const Checkpoint*> read;
  std::uint64_t bytes = 0;
  for (const auto& version : versions) {
    read.push_back(version.get());
    bytes += bytes_to_read(*version, nullptr);
  }
  Output output(arguments, sources);
  Run run;
  std::string page;
  ProgressBar bar(bytes);
  const std::atomic<bool> stop = false;
  run_beside([&] {
    collect_run(read, paths,
                {stop, [&bar](std::uint64_t count) { bar.add(count); }, arguments.threads()}, run);
    page = run_page(run);
  });
  write_page(output.fd(), page, output.name());
  output.commit();
  if (output.is_new_file() && Terminal().is_terminal) {
    print(printable(arguments.output) + ": " + std::to_string(run.versions.size()) + " versions, " +
          human_bytes(page.size()) + "\n" + run.verdict() + "\n");
  }
  const auto is_unreadable = [](const RunTensor& tensor) {
    return std::ranges::any_of(tensor.cells, [](const RunCell& cell) {
      return cell.state == RunCell::State::kUnreadable;
    });
  };
  const auto unreadable = std::ranges::count_if(run.tensors, is_unreadable);
  if (unreadable == 0) return 0;
  throw Error(ErrorCode::kUnreadable, public_name(paths.front()),
              std::to_string(unreadable) + " of " + std::to_string(run.tensors.size()) +
                  " tensors cannot be read in all versions: the report says which");
}

}  // namespace

int report(const Arguments& arguments) {
  VerbSources sources(arguments);
  LoadOptions options = load_options(arguments, sources, arguments.new_layers);
  options.with_model_files = true;  // config.json
  std::optional<Checkpoint> together;
  try {
    together.emplace(arguments.paths, options);
  } catch (const Error&) {
    // Sources that have a tensor name in common are not one namespace, but may be versions.
    if (arguments.paths.size() < 2) throw;
    const std::vector<std::string> paths = in_order_of_run(arguments.paths);
    const auto versions = versions_of(paths, options);
    if (versions.empty()) {
      refuse_source_as_output(sources);
      throw;
    }
    return report_run(arguments, paths, versions, sources);
  }
  const Checkpoint& checkpoint = *together;
  std::optional<Checkpoint> against;
  if (!arguments.against.empty()) {
    against.emplace(std::span(&arguments.against, 1),
                    load_options(arguments, sources, arguments.old_layers));
  }
  const std::string codes = stored_codes_text(checkpoint, sources);
  // Open the output after all sources are open, so that it can be compared with them, and before
  // hours of reading, so that a directory without permission is noticed early.
  Output output(arguments, sources);
  if (!codes.empty()) print_note(public_name(arguments.paths.front()), codes);
  Report report;
  const std::string page = page_of(arguments, checkpoint, against ? &*against : nullptr, report);
  write_page(output.fd(), page, output.name());
  output.commit();
  if (output.is_new_file()) print_findings(arguments, report, page.size());
  std::size_t unreadable = 0;  // the number of unreadable tensors in both checkpoints
  for (const Finding& finding : report.findings) {
    if (finding.kind == Finding::Kind::kUnreadable) unreadable += finding.tensors.size();
  }
  if (unreadable == 0) return 0;
  throw Error(ErrorCode::kUnreadable, public_name(arguments.paths.front()),
              std::to_string(unreadable) + " of " + std::to_string(report.tensors.size()) +
                  (report.tensors.size() == 1 ? " tensor" : " tensors") +
                  std::string(" cannot be read: the report says why"));
}

}  // namespace stfs
