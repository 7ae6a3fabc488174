// The hidden verb of the completions: names of tensors that begin with a prefix.
#include "core/base/posix.h"
#include "core/base/text.h"
#include "core/format/format.h"
#include "core/format/index.h"
#include "core/source/source.h"
#include "tools/info/verbs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {
namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
constexpr std::uint64_t kMostIndexBytes = std::uint64_t{1} << 30;

bool has_type(const std::string& path, mode_t type) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type;
}

// The file of `directory` that loading it would choose; "" when that is not clear.
std::string file_in(const std::string& directory) {
  for (const std::string_view suffix : {kIndexSuffix, std::string_view(".safetensors")}) {
    std::vector<std::string> files = names_in(directory);
    std::erase_if(files, [&](const std::string& name) { return !name.ends_with(suffix); });
    const std::string usual = "model" + std::string(suffix);
    if (std::ranges::find(files, usual) != files.end()) return directory + "/" + usual;
    if (files.size() == 1) return directory + "/" + files.front();
    if (!files.empty()) return "";
  }
  return "";
}

void for_each_name(const std::string& source,
                   const std::function<void(std::string_view name)>& take) {
  const std::string file = has_type(source, S_IFDIR) ? file_in(source) : source;
  if (!has_type(file, S_IFREG)) return;  // opening a pipe would wait
  if (file.ends_with(kIndexSuffix)) {
    const Index index = parse_index(read_file(file, kMostIndexBytes), file);
    for (const Index::Entry& entry : index.entries) take(index.name(entry));
  } else {
    const auto opened = open_source(file);
    const Header header = format_of(*opened).read(*opened, file);
    for (const TensorRecord& tensor : header.tensors) take(header.name(tensor));
  }
}

// Whether a shell shows and quotes a name rightly. It would obey control characters and be misled
// by marks that reorder text. bash leaves `$` and a backquote unquoted, and so would run a command
// in the name. A backslash does not survive the quoting.
bool is_safe(std::string_view name) {
  return name.find_first_of("$`\\") == std::string_view::npos && printable(name) == name;
}

// The names cut behind the first separator after `length` bytes.
std::set<std::string_view> steps_of(const std::vector<std::string>& names, std::size_t length) {
  std::set<std::string_view> steps;
  for (const std::string_view name : names) {
    const std::size_t separator = name.find_first_of("./", length);
    const bool is_whole = separator == std::string_view::npos;
    steps.insert(is_whole ? name : name.substr(0, separator + 1));
  }
  return steps;
}

void print_lines(const auto& names) {
  for (const std::string_view name : names) {
    std::fwrite(name.data(), 1, name.size(), stdout);
    std::fputc('\n', stdout);
  }
}

// Prints one name a line. A shell cannot show a million names, and a reader cannot use them: of
// more than kMostNames, it prints only the beginnings up to the next `.` or `/`, as a shell
// completes paths one directory at a time.
void print_matches(const std::vector<std::string>& names, std::size_t prefix_length) {
  constexpr std::size_t kMostNames = 200;
  if (names.size() <= kMostNames) return print_lines(names);
  std::set<std::string_view> steps = steps_of(names, prefix_length);
  while (steps.size() == 1) {  // a common beginning, since the names are unique
    const std::string_view common = *steps.begin();
    steps = steps_of(names, common.size());
  }
  print_lines(steps);
}

}  // namespace

int complete(const Arguments& arguments) {
  constexpr unsigned kPatience = 3;  // seconds that a shell may wait for a source
  ::alarm(kPatience);
  try {
    std::vector<std::string> names;
    for_each_name(arguments.source, [&](std::string_view name) {
      if (name.starts_with(arguments.tensor) && is_safe(name)) names.emplace_back(name);
    });
    print_matches(names, arguments.tensor.size());
  } catch (const std::exception&) {
    // The command itself will report the error.
  }
  return 0;
}

}  // namespace stfs
