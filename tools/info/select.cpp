#include "tools/info/select.h"

#include "core/base/error.h"
#include "core/base/posix.h"
#include "core/base/sort.h"
#include "core/base/text.h"
#include "core/checkpoint/mount_source.h"
#include "core/checkpoint/select.h"
#include "core/layer/quantised/quantised_layer.h"
#include "core/remote/http/url.h"
#include "tools/info/output.h"

#include <algorithm>
#include <compare>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace stfs {
namespace {

std::vector<std::uint32_t> selected(const Checkpoint& checkpoint, const std::string& source,
                                    const std::string& operand) {
  std::vector<std::uint32_t> numbers = select(checkpoint, operand);
  if (!numbers.empty()) return numbers;
  std::error_code error;
  if (const auto type = std::filesystem::status(operand, error).type();
      !error && type != std::filesystem::file_type::not_found) {
    const bool is_directory = type == std::filesystem::file_type::directory;
    throw Error(ErrorCode::kUsage, operand,
                (is_directory ? "a directory" : "a file") +
                    std::string(", but only the first operand is a SOURCE; the others are names of "
                                "tensors, or globs in quotes"));
  }
  std::string rule = no_such_tensor(checkpoint, operand);
  if (!rule.ends_with(')')) rule += " (stfs-info list prints the names)";
  throw Error(ErrorCode::kUsage, public_name(source), rule);
}

// Return true if a path exists, and if it does not exist. Both return false if this cannot be
// found out, for instance without permission.
bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}
bool is_absent(const std::string& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found;
}

}  // namespace

void print_warning(const std::string& line) {
  std::fprintf(stderr, "stfs-info: warning: %s\n", line.c_str());
}

void print_note(const std::string& place, const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "stfs-info: note: %s: %s\n", printable(place).c_str(), text.c_str());
}

void run_beside(const std::function<void()>& work) {
  std::exception_ptr failure;
  const auto run = [&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  std::thread other;
  try {
    other = start_thread(run);
  } catch (const Error&) {
    run();
  }
  if (other.joinable()) other.join();
  if (failure) std::rethrow_exception(failure);
}

VerbSources::VerbSources(const Arguments& arguments)
    : Sources([&] {
        SourceOptions options = arguments.sources;
        options.warn = print_warning;
        options.reads = [](const std::string& path) {
          refuse_source_as_output(path);
          if (!prints_to_file()) return;
          if (const auto mountpoint = mountpoint_around(path)) {
            for (const std::string& file : files_of_mount(*mountpoint))
              refuse_source_as_output(file);
          }
        };
        return options;
      }()) {
  refuse_source_as_output(arguments.source);
  refuse_source_as_output(arguments.other);
  refuse_source_as_output(arguments.against);
  for (const std::string& path : arguments.paths) refuse_source_as_output(path);
}

Checkpoint open_checkpoint(const Arguments& arguments, Sources& sources) {
  const std::string& source = arguments.source;
  if (!is_url(source) && is_absent(source)) {
    std::vector<std::string> others = arguments.globs;
    others.push_back(arguments.tensor);
    for (const std::string& other : others) {
      if (!is_there(other)) continue;
      throw Error(ErrorCode::kUsage, source,
                  "no such file, but " + in_quotes(other) + " exists: name the SOURCE first");
    }
  }
  return Checkpoint(std::span(&source, 1), load_options(arguments, sources));
}

std::vector<std::uint32_t> select_tensors(const Checkpoint& checkpoint, const std::string& source,
                                          std::span<const std::string> operands) {
  if (operands.empty()) return checkpoint.match({});
  std::vector<std::uint32_t> numbers;
  for (const std::string& operand : operands) {
    const std::vector<std::uint32_t> found = selected(checkpoint, source, operand);
    numbers.insert(numbers.end(), found.begin(), found.end());
  }
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

void sort_naturally(const Checkpoint& checkpoint, std::vector<std::uint32_t>& numbers) {
  std::string keys;
  std::vector<std::size_t> begins{0};
  for (const std::uint32_t number : numbers) {
    append_natural_key(keys, checkpoint.name(number));
    begins.push_back(keys.size());
  }
  const auto key = [&](std::uint32_t i) {
    return std::string_view(keys).substr(begins[i], begins[i + 1] - begins[i]);
  };
  const auto [order, any_equal] = sorted_order(static_cast<std::uint32_t>(numbers.size()), key);
  std::vector<std::uint32_t> sorted;
  sorted.reserve(numbers.size());
  for (const std::uint32_t i : order) sorted.push_back(numbers[i]);
  numbers = std::move(sorted);
  if (!any_equal) return;  // otherwise names differ only in leading zeros
  std::ranges::sort(numbers, [&](std::uint32_t a, std::uint32_t b) {
    return std::is_lt(natural_order(checkpoint.name(a), checkpoint.name(b)));
  });
}

Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& operand) {
  const std::vector<std::uint32_t> numbers = selected(checkpoint, source, operand);
  if (numbers.size() > 1) {
    throw Error(
        ErrorCode::kUsage, public_name(source),
        in_quotes(operand) + ": matches " + std::to_string(numbers.size()) + " tensors: name one");
  }
  return checkpoint.tensor(numbers.front());
}

std::string stored_codes_text(const Checkpoint& checkpoint, Sources& sources,
                              std::string_view option) {
  const std::optional<StoredCodes> codes = stored_codes(checkpoint.list(), sources);
  if (!codes) return "";
  return std::to_string(codes->weights) +
         (codes->weights == 1 ? " quantised weight (" : " quantised weights (") + codes->scheme +
         (codes->weights == 1 ? ") is" : ") are") + " shown as stored: " + std::string(option) +
         "=bf16 shows " + (codes->weights == 1 ? "its values" : "their values");
}

void note_stored_codes(const Checkpoint& checkpoint, const Arguments& arguments, Sources& sources) {
  if (arguments.json) return;
  const std::string text = stored_codes_text(checkpoint, sources);
  if (!text.empty()) print_note(public_name(arguments.source), text);
}

}  // namespace stfs
