// The hidden verb of the completions: names of tensors that begin with a prefix.
#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "core/stored/directory.h"
#include "tools/info/verbs.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {
namespace {

// The index that loading `source` would read, itself or in a directory; "" when there is none.
std::string index_of(const std::string& source, Sources& sources) {
  if (is_index_name(source)) return source;
  const std::string pinned = sources.pinned(source);
  const std::optional<Candidates> candidates = candidates_in(pinned, sources);
  const std::optional<std::string> index = candidates ? candidates->index() : std::nullopt;
  return index ? child_name(pinned, *index) : "";
}

// Reads the index alone where there is one: a checkpoint may have thousands of shards.
void for_each_name(const std::string& source, Sources& sources,
                   const std::function<void(std::string_view name)>& take) {
  if (const std::string file = index_of(source, sources); !file.empty()) {
    const Index index = read_index(file, sources);
    for (const Index::Entry& entry : index.entries) take(index.name(entry));
    return;
  }
  const Checkpoint checkpoint(std::span(&source, 1), {.sources = &sources});
  for (std::uint32_t i = 0; i < checkpoint.tensor_count(); ++i) take(checkpoint.name(i));
}

// Whether a name can be shown: a line holds no control characters, and marks that reorder text
// would mislead a reader. The completions quote everything else.
bool is_plain(std::string name) {
  std::erase(name, '\\');  // printable() doubles it
  return printable(name) == name;
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
    SourceOptions options = arguments.sources;
    options.offline = true;  // what the cache knows of a URL
    Sources sources(options);
    for_each_name(arguments.source, sources, [&](std::string_view name) {
      if (name.starts_with(arguments.tensor) && is_plain(std::string(name)))
        names.emplace_back(name);
    });
    print_matches(names, arguments.tensor.size());
  } catch (const std::exception&) {
    // The command itself will report the error.
  }
  return 0;
}

}  // namespace stfs
