#include "core/command/complete.h"

#include "core/base/text.h"
#include "core/checkpoint/checkpoint.h"
#include "core/layer/edit/edit_layer.h"
#include "core/remote/http/url.h"
#include "core/remote/sources.h"
#include "core/stored/directory.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace stfs {
namespace {

// Returns the index that loading `source` would read: `source` itself or a file in this directory.
// Returns "" if there is no index.
std::string index_of(const std::string& source, Sources& sources) {
  if (is_index_name(source)) return source;
  const std::string pinned = sources.pinned(source);
  const std::optional<Candidates> candidates = candidates_in(pinned, sources);
  const std::optional<std::string> index = candidates ? candidates->index() : std::nullopt;
  return index ? child_name(pinned, *index) : "";
}

// Calls `take` with the name of each tensor of a source. Reads only the index if there is one,
// because a checkpoint may have thousands of shards.
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

// Returns true if a terminal can show a name. Control characters would break its line, and marks
// that reorder text would mislead a reader. The scripts quote everything else.
bool is_plain(std::string name) {
  std::erase(name, '\\');  // printable() doubles it
  return printable(name) == name;
}

// Returns the names, each cut after the first separator that follows its first `length` bytes.
std::set<std::string> steps_of(const std::vector<std::string>& names, std::size_t length) {
  std::set<std::string> steps;
  for (const std::string& name : names) {
    const std::size_t separator = name.find_first_of("./", length);
    const bool is_whole = separator == std::string::npos;
    steps.insert(is_whole ? name + " " : name.substr(0, separator + 1));
  }
  return steps;
}

// Returns the names of a source's tensors that begin with `stem`. A shell cannot show a million
// names, and a reader cannot use them. So if there are more than kMaxNames, returns their
// beginnings up to the next `.` or `/`, as a shell completes paths one directory at a time.
std::vector<std::string> tensors_of(const std::string& source, const std::string& stem) {
  constexpr std::size_t kMaxNames = 200;
  std::vector<std::string> names;
  SourceOptions options;
  options.offline = true;  // uses only cached bytes of a URL
  Sources sources(options);
  for_each_name(source, sources, [&](std::string_view name) {
    if (name.starts_with(stem) && is_plain(std::string(name))) names.emplace_back(name);
  });
  if (names.size() <= kMaxNames) {
    for (std::string& name : names) name += ' ';
    return names;
  }
  std::set<std::string> steps = steps_of(names, stem.size());
  while (steps.size() == 1) {  // a common beginning, because the names are unique
    steps = steps_of(names, steps.begin()->size());
  }
  return {steps.begin(), steps.end()};
}

// Returns the directories whose names begin with `stem`, and the files whose names also end in one
// of `endings`.
std::vector<std::string> files_of(const std::string& stem,
                                  std::span<const std::string_view> endings) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  const std::string directory = stem.substr(0, stem.rfind('/') + 1);
  const std::string_view begin = std::string_view(stem).substr(directory.size());
  std::error_code error;
  for (fs::directory_iterator entry(directory.empty() ? "." : directory, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(begin) || (begin.empty() && name.starts_with('.'))) continue;
    // The name "-x" would be an option, so return "./-x".
    const std::string file = (directory.empty() && name.starts_with('-') ? "./" : directory) + name;
    std::error_code ignored;
    if (entry->is_directory(ignored)) {
      files.push_back(file + "/");
    } else if (std::ranges::any_of(endings, [&](auto ending) { return name.ends_with(ending); })) {
      files.push_back(file + " ");
    }
  }
  return files;
}

// Returns the mountpoints of stfs, including mounts whose daemon has died. Reads them from
// proc_pid_mountinfo(5): field 5 is the mountpoint, with white space and backslashes as \ooo, and
// the type follows a field "-".
std::vector<std::string> mountpoints() {
  std::vector<std::string> found;
  std::ifstream file("/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find(" - fuse.stfs ") == std::string::npos) continue;
    std::string path;
    const std::string_view field = parts_of(line, ' ').at(4);
    for (std::size_t i = 0; i < field.size(); ++i) {
      if (field[i] != '\\' || field.size() - i < 4) {
        path += field[i];
        continue;
      }
      path += static_cast<char>(std::stoi(std::string(field.substr(i + 1, 3)), nullptr, 8));
      i += 3;
    }
    found.push_back(path + " ");
  }
  return found;
}

// The options in a word of the command line.
struct OptionWord {
  std::vector<OptionRow> rows;
  bool takes_value = false;               // the last row takes a value
  std::size_t value = std::string::npos;  // where the value begins, if it is in this word
};

class Completion {
 public:
  explicit Completion(const CommandRow& command) : command_(command) {
    if (!command.has_verbs) forms_.assign(command.verbs.begin(), command.verbs.end());
  }

  // Takes a word before the one to complete.
  void take(const std::string& word) {
    if (std::exchange(value_row_, std::nullopt)) return;
    if (!is_after_dashes_ && word == "--") {
      is_after_dashes_ = true;
    } else if (is_after_dashes_ || !word.starts_with('-')) {
      take_operand(word);
    } else {
      const OptionWord options = options_in(word);
      for (const OptionRow& row : options.rows) {
        given_.insert(row.flags);
        if (command_.has_verbs || row.verbs.empty()) continue;
        std::erase_if(forms_, [&](const VerbRow& form) { return !is_required(row, form); });
      }
      if (options.takes_value && options.value == std::string::npos) {
        value_row_ = options.rows.back();
      }
    }
  }

  // Finds the candidates for the word to complete.
  void complete_word(const std::string& word) {
    stem_ = word;
    const OptionWord options = options_in(word);
    if (value_row_) {
      add_value(*value_row_);
    } else if (is_after_dashes_ && takes_command()) {
      kind_ = "command";
    } else if (!is_after_dashes_ && options.value <= word.size()) {
      move_to_head(options.value);
      add_value(options.rows.back());
    } else if (!is_after_dashes_ && word.starts_with('-')) {
      add_options();
    } else if (command_.has_verbs && forms_.empty()) {
      kind_ = "verb";
      for (const VerbRow& verb : command_.verbs) {
        if (!verb.help.empty()) add(std::string(verb.name) + " ", verb.help);
      }
    } else if (const auto row = operand_row()) {
      add_value(*row);
    }
  }

  void print() const {
    const auto put = [](const std::string& record) {
      std::fwrite(record.c_str(), 1, record.size() + 1, stdout);
    };
    put(kind_);
    put(head_);
    for (const auto& [candidate, description] : found_) {
      put(candidate);
      put(description);
    }
  }

 private:
  // Returns the rows of the options that fit the words so far.
  std::vector<OptionRow> rows() const {
    const bool has_verb = command_.has_verbs && !forms_.empty();
    std::vector<OptionRow> rows = rows_of(command_, has_verb ? &forms_.front() : nullptr);
    std::erase_if(rows, [&](const OptionRow& row) {
      const auto takes_it = [&](const VerbRow& form) { return is_required(row, form).has_value(); };
      return !row.verbs.empty() && std::ranges::none_of(forms_, takes_it);
    });
    return rows;
  }

  bool takes_command() const {
    return std::ranges::count(rows(), Value::kCommand, &OptionRow::value) != 0;
  }

  // Returns the options in a word such as "--sort=name", "-zu" or "-j4". Stops at an unknown
  // option.
  OptionWord options_in(const std::string& word) const {
    OptionWord found;
    const std::vector<OptionRow> known = rows();
    const auto find = [&](const std::string& name) {
      for (const OptionRow& row : known) {
        const auto is_it = [&](std::string_view flag) { return same_option(flag, name); };
        if (is_operand(row) || std::ranges::none_of(parts_of(row.flags, ','), is_it)) continue;
        found.rows.push_back(row);
        found.takes_value = !row.argument.empty();
        return true;
      }
      return false;
    };
    if (word.starts_with("--")) {
      const std::size_t equals = word.find('=');
      if (find(word.substr(0, equals)) && found.takes_value && equals < word.size()) {
        found.value = equals + 1;
      }
    } else if (word.starts_with('-')) {
      std::size_t at = 1;
      while (at < word.size() && !found.takes_value && find({'-', word[at]})) ++at;
      if (found.takes_value && at < word.size()) found.value = at;
    }
    return found;
  }

  void take_operand(const std::string& word) {
    if (!command_.has_verbs || !forms_.empty()) return operands_.push_back(word);
    const auto verb = std::ranges::find(command_.verbs, std::string_view(word), &VerbRow::name);
    const bool is_known = verb != command_.verbs.end() && !verb->help.empty();
    forms_.push_back(is_known ? *verb : VerbRow{});
  }

  // Returns the row of the next operand.
  std::optional<OptionRow> operand_row() const {
    std::size_t before = operands_.size();
    for (const OptionRow& row : rows()) {
      const bool is_one = is_operand(row) && row.value != Value::kCommand;
      if (!is_one || forms_.empty() || !is_required(row, forms_.front())) continue;
      if (before == 0 || may_repeat(row)) return row;
      --before;
    }
    return std::nullopt;
  }

  // Moves the first bytes of the word to head_. They remain, and candidates complete the rest.
  void move_to_head(std::size_t length) {
    head_ += stem_.substr(0, length);
    stem_.erase(0, length);
  }

  // Adds a candidate. Leaves out an empty name, and a name with a dash that would be an option.
  void add(const std::string& candidate, std::string_view description = "") {
    const bool would_be_option = kind_ != "option" && head_.empty() && candidate.starts_with('-');
    if (candidate == " " || !candidate.starts_with(stem_) || would_be_option) return;
    found_.emplace_back(candidate, description);
  }
  void add_all(const std::vector<std::string>& candidates) {
    for (const std::string& candidate : candidates) add(candidate);
  }

  void add_options() {
    kind_ = "option";
    for (const OptionRow& row : rows()) {
      if (is_operand(row) || (given_.contains(row.flags) && !may_repeat(row))) continue;
      for (const std::string_view flag : parts_of(row.flags, ',')) {
        add(std::string(flag) + " ", row.help);
      }
    }
  }

  void add_choices(const OptionRow& row) {
    kind_ = "value";
    for (const std::string_view word : parts_of(row.argument, '|')) add(std::string(word) + " ");
  }

  // Completes the last option of a list that is separated by commas.
  void add_list() {
    kind_ = "setting";
    move_to_head(stem_.rfind(',') + 1);
    const std::size_t equals = stem_.find('=');
    for (const OptionRow& row : command_.list) {
      for (const std::string_view key : parts_of(row.flags, ',')) {
        if (equals == std::string::npos) {
          add(std::string(key) + (row.argument.empty() ? "" : "="), row.help);
        } else if (!row.argument.empty() && same_option(key, stem_.substr(0, equals))) {
          move_to_head(equals + 1);
          add_value(row);
          // Leave out names that would need a backslash in the list.
          std::erase_if(found_, [](const auto& one) {
            return one.first.find_first_of(",\\") != std::string::npos;
          });
          return;
        }
      }
    }
  }

  void add_tensors(const std::string& source) {
    kind_ = "tensor";
    add_all(tensors_of(source, stem_));
  }

  // Completes a command of edits, or after a command the name of a tensor that needs no quotes in a
  // line of edits.
  void add_edit_line() {
    kind_ = "edit";
    const std::vector<std::string_view> words = parts_of(stem_, ' ');
    const std::size_t space = stem_.rfind(' ');
    if (space == std::string::npos) {
      for (const std::string_view word : edit_words()) add(std::string(word) + " ");
      return;
    }
    if (words.empty()) return;
    const bool takes_many = words.front() == "keep" || words.front() == "drop";
    constexpr std::string_view kTakeOne[] = {"replace", "cast", "reshape", "slice"};
    const bool takes_one = std::ranges::count(kTakeOne, words.front()) != 0;
    if (!takes_many && !(takes_one && space == words.front().size())) return;
    move_to_head(space + 1);
    for (const std::string& name : tensors_of(operands_.at(0), stem_)) {
      const std::string_view without_end = std::string_view(name).substr(0, name.size() - 1);
      if (without_end.find_first_of("'\"# \t") == std::string::npos) add(name);
    }
  }

  void add_value(const OptionRow& row) {
    constexpr std::string_view kAny[] = {""};
    constexpr std::string_view kCheckpoints[] = {".safetensors", ".safetensors.index.json",
                                                 ".gguf"};
    switch (row.value) {
      case Value::kChoice: return add_choices(row);
      case Value::kSource: kind_ = "source"; return add_all(files_of(stem_, kCheckpoints));
      case Value::kPath: kind_ = "path"; return add_all(files_of(stem_, kAny));
      case Value::kTensor: return add_tensors(operands_.at(0));
      case Value::kTensorPath: {
        const std::size_t colons = stem_.find("::");
        if (colons == std::string::npos) {
          kind_ = "path";
          return add_all(files_of(stem_, kAny));
        }
        const std::string source = stem_.substr(0, colons);
        move_to_head(colons + 2);
        return add_tensors(source);
      }
      case Value::kEditLine: return add_edit_line();
      case Value::kMountpoint: kind_ = "mountpoint"; return add_all(mountpoints());
      case Value::kDevice:
        kind_ = "device";
        for (const std::string& device : command_.devices()) add(device + " ");
        return;
      case Value::kList: return add_list();
      case Value::kText:
      case Value::kNumber:
      case Value::kSize:
      case Value::kCommand: break;
    }
    kind_ = "text";
    found_.emplace_back("", row.argument);  // zsh shows which text is expected
  }

  const CommandRow& command_;
  std::vector<VerbRow> forms_;        // the verb, or the forms that fit the words so far
  std::set<std::string_view> given_;  // OptionRow::flags
  std::vector<std::string> operands_;
  std::optional<OptionRow> value_row_;  // the next word is its value
  bool is_after_dashes_ = false;
  std::string head_, stem_;  // the word to complete, in two parts
  std::string kind_ = "none";
  std::vector<std::pair<std::string, std::string>> found_;  // candidates and descriptions
};

}  // namespace

int complete(const CommandRow& command, std::span<const std::string> words) {
  constexpr unsigned kPatience = 3;  // seconds that a shell may wait for a source
  ::alarm(kPatience);
  try {
    Completion completion(command);
    for (std::size_t i = 0; i + 1 < words.size(); ++i) completion.take(words[i]);
    completion.complete_word(words.empty() ? "" : words.back());
    completion.print();
  } catch (const std::exception&) {
    // The command itself will report the error.
  }
  return 0;
}

}  // namespace stfs
