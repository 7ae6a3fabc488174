#include "tools/info/select.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/select.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>

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
  throw Error(ErrorCode::kUsage, source, rule);
}

// Neither is true of a path that cannot be looked up.
bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}
bool is_absent(const std::string& path) {
  std::error_code error;
  return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found;
}

}  // namespace

Checkpoint open_checkpoint(const Arguments& arguments) {
  const std::string& source = arguments.source;
  if (is_absent(source)) {
    std::vector<std::string> others = arguments.globs;
    others.push_back(arguments.tensor);
    for (const std::string& other : others) {
      if (!is_there(other)) continue;
      throw Error(ErrorCode::kUsage, source,
                  "no such file, but " + in_quotes(other) + " is there: name the SOURCE first");
    }
  }
  return Checkpoint(std::span(&source, 1), load_options(arguments));
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

Tensor find_tensor(const Checkpoint& checkpoint, const std::string& source,
                   const std::string& operand) {
  const std::vector<std::uint32_t> numbers = selected(checkpoint, source, operand);
  if (numbers.size() > 1) {
    throw Error(
        ErrorCode::kUsage, source,
        in_quotes(operand) + ": matches " + std::to_string(numbers.size()) + " tensors, name one");
  }
  return checkpoint.tensor(numbers.front());
}

}  // namespace stfs
