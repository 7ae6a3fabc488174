#include "core/layer/edit/edit_layer.h"

#include "docs/documents.h"
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::documents {
namespace {

constexpr const char* kMountpoints = R"SH(
# The mounts of stfs (proc_pid_mountinfo(5)): field 5 is the mountpoint, with white space and
# backslashes as \ooo; the type follows a field "-".
_stfs_mountpoints() {
  local line mountpoint expl
  local -a mountpoints
  for line in "${(@f)$(</proc/self/mountinfo)}"; do
    [[ $line == *' - fuse.stfs '* ]] || continue
    mountpoint=${${(s: :)line}[5]}
    mountpoints+=("${(g:o:)mountpoint}")
  done
  _wanted mountpoints expl 'mounted checkpoint' compadd -M 'r:|/=* r:|=*' -a mountpoints
}
)SH";

constexpr const char* kTensors = R"SH(
# Offers the tensors of a checkpoint: SOURCE. stfs-info prints their names, and nothing expands them.
_stfs_tensors_of() {
  local -a names beginnings expl
  names=("${(@f)$(stfs-info complete -- "${1/#\~\//$HOME/}" "${(Q)PREFIX}" 2>/dev/null </dev/null)}")
  names=("${(@)names:#(|-*)}")  # a name with a dash would be an option
  beginnings=("${(@M)names:#*[.\/]}")
  names=("${(@)names:#*[.\/]}")
  _wanted tensors expl tensor compadd -a names
  _wanted tensors expl tensor compadd -S '' -a beginnings
}

# The checkpoint is the first word that is a file or a directory.
_stfs_tensor() {
  local word
  for word in "${(@Q)words[2,CURRENT-1]}"; do
    [[ -e ${word/#\~\//$HOME/} ]] || continue
    _stfs_tensors_of "$word"
    return
  done
  return 1
}

# A file, or SOURCE::NAME.
_stfs_tensor_path() {
  if [[ $PREFIX == *::* ]]; then
    local checkpoint=${PREFIX%%::*}
    IPREFIX+=$checkpoint::
    PREFIX=${PREFIX#*::}
    _stfs_tensors_of "${(Q)checkpoint}"
  else
    _files -F '(-*)'
  fi
}
)SH";

constexpr const char* kEditLines = R"SH(
# A line of edits: a word, or behind it the name of a tensor.
_stfs_edit_line() {
  local word checkpoint expl
  for word in "${(@Q)words[2,CURRENT-1]}"; do
    [[ -e ${word/#\~\//$HOME/} ]] && checkpoint=$word && break
  done
  compset -q || return
  if ((CURRENT == 1)); then
    _wanted commands expl 'command of edits' compadd @WORDS@
  elif [[ $words[1] == (keep|drop) || $CURRENT$words[1] == 2(replace|cast|reshape|slice) ]]; then
    _stfs_tensors_of "$checkpoint"
  else
    return 1
  fi
}
)SH";

// `text` for single quotes, with a backslash before each character of `special`.
std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out;
}

// The action of _arguments that completes a value.
std::string action_of(const OptionRow& row) {
  switch (row.value) {
    case Value::kChoice: return "(" + joined(parts_of(row.argument, '|'), " ") + ")";
    case Value::kSource:
      return R"SH(_files -F "(-*)" -g "*.(safetensors(|.index.json)|gguf)(-.)")SH";
    case Value::kPath: return R"SH(_files -F "(-*)")SH";
    case Value::kTensor: return "_stfs_tensor";
    case Value::kTensorPath: return "_stfs_tensor_path";
    case Value::kEditLine: return "_stfs_edit_line";
    case Value::kMountpoint: return "_stfs_mountpoints";
    case Value::kDevice: return R"SH((cpu cuda\:0))SH";
    case Value::kList: return "->list";
    case Value::kCommand:
    case Value::kText:
    case Value::kNumber:
    case Value::kSize: break;
  }
  return " ";
}

// "[help]:N:action": the part of a spec after the option's name.
std::string meaning_of(const OptionRow& row) {
  std::string out = "[" + escaped(row.help, "[]") + "]";
  if (row.argument.empty()) return out;
  const std::string_view name = row.value == Value::kChoice ? "value" : row.argument;
  return out + ":" + escaped(name, ":[]") + ":" + action_of(row);
}

// Whether two rows exclude each other: no form takes both.
bool exclude(const CommandRow& command, const OptionRow& one, const OptionRow& other) {
  return !command.has_verbs && !one.verbs.empty() && !other.verbs.empty() &&
         std::ranges::none_of(command.verbs, [&](const VerbRow& form) {
           return is_required(one, form) && is_required(other, form);
         });
}

// The spec of an option for _arguments.
std::string spec_of(const CommandRow& command, const OptionRow& row) {
  const std::vector<std::string_view> flags = parts_of(row.flags, ',');
  std::vector<std::string_view> excluded;
  const auto add = [&](const OptionRow& other) {
    for (const std::string_view flag : parts_of(other.flags, ',')) excluded.push_back(flag);
  };
  if (row.verbs.empty()) {
    excluded = {"-", "*"};  // --help and --version stand alone
  } else {
    if (!may_repeat(row) && flags.size() > 1) add(row);
    for (const OptionRow& other : command.options) {
      if (!is_operand(other) && exclude(command, row, other)) add(other);
    }
  }
  std::string names;
  for (const std::string_view flag : flags) {
    names += (names.empty() ? "" : ",") + std::string(flag);
    if (!row.argument.empty()) names += flag.starts_with("--") ? "=" : "+";
  }
  std::string begin = excluded.empty() ? "" : "(" + joined(excluded, " ") + ")";
  if (may_repeat(row)) begin += "*";
  if (flags.size() == 1) return "'" + begin + names + meaning_of(row) + "'";
  return (begin.empty() ? "" : "'" + begin + "'") + "{" + names + "}'" + meaning_of(row) + "'";
}

std::string specs_of(const CommandRow& command, const VerbRow* verb, std::string_view indent) {
  std::string out;
  int position = 0;
  for (const OptionRow& row : rows_of(command, verb)) {
    if (row.value == Value::kCommand) continue;  // it has no fixed position
    out += " \\\n" + std::string(indent);
    if (!is_operand(row)) {
      out += spec_of(command, row);
      continue;
    }
    std::string name(row.flags);
    if (may_repeat(row)) name.resize(name.size() - 3);
    out += "'" + (may_repeat(row) ? "*" : std::to_string(++position)) + ":" + name + ":" +
           action_of(row) + "'";
  }
  return out;
}

std::string verbs_of(const CommandRow& command) {
  std::string out = "  case $state in\n    verb)\n      verbs=(\n";
  std::string branches;
  for (const VerbRow& verb : command.verbs) {
    if (verb.help.empty()) continue;
    const std::string name(verb.name);
    out += "        '" + name + ":" + escaped(verb.help, ":") + "'\n";
    branches += "        " + name + ")\n          _arguments" +
                specs_of(command, &verb, "            ") + " && ret=0\n          ;;\n";
  }
  return out +
         "      )\n      _describe -t verbs verb verbs && ret=0\n      ;;\n    argument)\n"
         "      curcontext=${curcontext%:*}-$line[1]:\n      case $line[1] in\n" +
         branches + "      esac\n      ;;\n  esac\n";
}

// The action of a form's first operand.
std::string operand_action(const CommandRow& command, const VerbRow& form) {
  const auto row = std::ranges::find_if(command.options, [&](const OptionRow& one) {
    return is_operand(one) && is_required(one, form);
  });
  return action_of(*row);
}

// The states of a command without verbs: the list, and the operands. The flags that were typed
// decide the form.
std::string forms_of(const CommandRow& command) {
  std::string out = "  case $state in\n    list)\n      _values -s , 'options'";
  for (const OptionRow& row : command.list) {
    for (const std::string_view key : parts_of(row.flags, ',')) {
      out += " \\\n        '" + std::string(key) + meaning_of(row) + "'";
    }
  }
  out += " && ret=0\n      ;;\n    operand)\n";
  std::string usual_form;
  for (const VerbRow& form : command.verbs) {
    const std::string action = operand_action(command, form) + " && ret=0\n";
    std::string condition;
    for (const OptionRow& row : command.options) {
      if (is_operand(row) || !is_required(row, form).value_or(false)) continue;
      for (const std::string_view flag : parts_of(row.flags, ',')) {
        condition += (condition.empty() ? "" : " || ") + ("$+opt_args[" + std::string(flag)) + "]";
      }
    }
    if (condition.empty()) {
      usual_form = "        " + action;
    } else {
      out += "      if (( " + condition + " )); then\n        " + action;
    }
  }
  return out + "      else\n" + usual_form + "      fi\n      ;;\n  esac\n";
}

}  // namespace

std::string zsh_completion(const CommandRow& command) {
  const std::string name(command.name);
  std::string out = "#compdef " + name + "\n# Generated from the table of its options.\n";
  out += command.has_verbs ? kTensors : kMountpoints;
  if (std::ranges::find(command.options, Value::kEditLine, &OptionRow::value) !=
      command.options.end()) {
    std::string lines = kEditLines;
    constexpr std::string_view kWords = "@WORDS@";
    out += lines.replace(lines.find(kWords), kWords.size(), joined(edit_words(), " "));
  }
  out += "\n_" + name + "() {\n  local curcontext=$curcontext ret=1\n" +
         "  local -a state line verbs\n  typeset -A opt_args\n\n  _arguments ";
  if (command.has_verbs) {
    out += "-C" + specs_of(command, nullptr, "    ") +
           " \\\n    '1:verb:->verb' \\\n    '*::argument:->argument' && ret=0\n\n" +
           verbs_of(command);
  } else {
    out += "-s -S -C";
    for (const OptionRow& row : options_of(command)) {
      out += " \\\n    " + spec_of(command, row);
    }
    out += " \\\n    '*:file:->operand' && ret=0\n\n" + forms_of(command);
  }
  return out + "  return ret\n}\n\n_" + name + " \"$@\"\n";
}

}  // namespace stfs::documents
