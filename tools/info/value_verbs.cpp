// The verbs stats and hash.
#include "core/base/text.h"
#include "core/checkpoint/catalogue.h"
#include "core/checkpoint/checkpoint.h"
#include "core/command/terminal.h"
#include "core/opened/read_failure.h"
#include "core/values/digest.h"
#include "core/values/stats.h"
#include "tools/info/json.h"
#include "tools/info/lines.h"
#include "tools/info/select.h"
#include "tools/info/stats_rows.h"
#include "tools/info/verbs.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stfs {
namespace {

std::uint64_t bytes_of(const Checkpoint& checkpoint, std::span<const std::uint32_t> tensors) {
  std::uint64_t bytes = 0;
  for (const std::uint32_t number : tensors) bytes += checkpoint.tensor(number).length;
  return bytes;
}

// Prints `line_of` for each selected tensor. For `stats`, the order and the heading come from the
// rows.
int for_selected(
    const Arguments& arguments,
    const std::function<std::string(std::size_t position, const Tensor&, const std::atomic<bool>&,
                                    const Progress&)>& line_of,
    StatsRows* stats = nullptr) {
  VerbSources sources(arguments);
  const Checkpoint checkpoint = open_checkpoint(arguments, sources);
  const std::vector<std::uint32_t> tensors =
      select_tensors(checkpoint, arguments.source, arguments.globs);
  if (stats) note_stored_codes(checkpoint, arguments, sources);
  ProgressBar bar(bytes_of(checkpoint, tensors));
  const std::vector<std::uint32_t> order = stats ? stats->begin(checkpoint, tensors) : tensors;
  Lines out(arguments.json, bar, stats ? stats->heading() : "");
  add_in_order(out, order.size(), arguments.threads(),
               [&](std::size_t i, const std::atomic<bool>& stop) {
                 return line_of(i, checkpoint.tensor(order[i]), stop,
                                [&bar](std::uint64_t bytes) { bar.add(bytes); });
               });
  bar.end();
  if (stats) {
    for (std::string& line : stats->sorted_lines()) out.add(std::move(line));
  }
  out.end();
  return stats ? stats->end() : 0;
}

}  // namespace

int stats(const Arguments& arguments) {
  StatsRows rows(arguments);
  const std::size_t jobs = arguments.threads();
  return for_selected(
      arguments,
      [&](std::size_t position, const Tensor& tensor, const std::atomic<bool>& stop,
          const Progress& progress) {
        ValueStats values;
        // The last tensors share the threads that would otherwise be idle.
        const std::size_t left = std::clamp<std::size_t>(rows.tensors() - position, 1, jobs);
        const auto threads = static_cast<unsigned>(jobs / left);
        const Tensor of = tensor.valued();
        if (const int error =
                value_stats(of.content(), of.dtype, {stop, progress, threads}, values)) {
          throw read_failure(tensor, error);
        }
        return rows.line(position, tensor, values);
      },
      &rows);
}

int hash(const Arguments& arguments) {
  const bool for_people = ::isatty(STDOUT_FILENO) == 1;
  return for_selected(arguments, [&](std::size_t, const Tensor& tensor,
                                     const std::atomic<bool>& stop, const Progress& progress) {
    std::string hex;
    if (const int error = sha256(tensor.content(), stop, hex, progress))
      throw read_failure(tensor, error);
    if (!arguments.json) {
      if (for_people) return hex + "  " + printable(tensor.path);
      std::string line = sha256sum_line(hex, tensor.path);
      line.pop_back();  // removes the line end
      return line;
    }
    return json_line({{"name", tensor.name}, {"path", tensor.path}, {"sha256", hex}});
  });
}

}  // namespace stfs
