#include "docs/documents.h"
#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs::documents {
namespace {

// Branches of the shell function _offer, one for each kind of value: $1 is the kind, $word the text
// to complete.
constexpr const char* kSource = R"SH(    source)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(
        compgen -d -- "$word"
        compgen -f -X '!*.safetensors' -- "$word"
        compgen -f -X '!*.safetensors.index.json' -- "$word"
        compgen -f -X '!*.gguf' -- "$word"
      )
      ;;
)SH";
constexpr const char* kPath = R"SH(    path)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
)SH";
// The names of tensors; stfs-info prints them. Bash quotes them as it quotes names of files.
constexpr const char* kTensor = R"SH(    tensor)
      _@F@_tensors "$source" "$word"
      ;;
)SH";
// A file, or SOURCE::NAME. The SOURCE stays as it was typed.
constexpr const char* kTensorPath = R"SH(    tensor_path)
      if [[ $word == *::* ]]; then
        local typed=${2#[\"\']}
        _@F@_tensors "${word%%::*}" "${word#*::}"
        COMPREPLY=("${COMPREPLY[@]/#/"${typed%%::*}::"}")
      else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
      fi
      ;;
)SH";
constexpr const char* kTensorsFunction = R"SH(
# Puts the tensors of a checkpoint that begin with a prefix into COMPREPLY: SOURCE PREFIX. The names
# are data: nothing expands them.
_@F@_tensors() {
  local source=$1 program=${COMP_WORDS[0]/%@NAME@/stfs-info}
  [[ -x $program ]] || program=stfs-info
  [[ $source == '~/'* ]] && source=$HOME/${source:2}
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <("$program" complete -- "$source" "$2" 2>/dev/null </dev/null)
  # The beginning of names goes on.
  [[ ${COMPREPLY[0]-} == *[./] ]] && compopt -o nospace 2>/dev/null
}
)SH";
constexpr const char* kMountpoint = R"SH(    mountpoint)
      # The mounts of stfs, dead ones too (proc_pid_mountinfo(5)): field 5 is the mountpoint, with
      # white space and backslashes as \ooo; the type follows a field "-".
      local mountpoint rest
      compopt -o filenames 2>/dev/null
      while read -r _ _ _ _ mountpoint rest; do
        [[ $rest == *' - fuse.stfs '* ]] || continue
        printf -v mountpoint '%b' "${mountpoint//\\/\\0}"
        [[ $mountpoint == "$word"* ]] && COMPREPLY+=("$mountpoint")
      done </proc/self/mountinfo
      ;;
)SH";
constexpr const char* kDevice = R"SH(    device)
      # Completes the names that the verb devices prints. A UUID is valid too.
      mapfile -t COMPREPLY < <(
        compgen -W "$("${COMP_WORDS[0]}" devices 2>/dev/null | cut -d ' ' -f 1)" -- "$word"
      )
      ;;
)SH";
constexpr const char* kCommand = R"SH(    command)
      # The rest is another command.
      compopt -o default 2>/dev/null
      ;;
)SH";
// Completes the last option of a list that is separated by commas.
constexpr const char* kListBegin = R"SH(    list)
      local before=''
      [[ $word == *,* ]] && before=${word%,*},
      word=${word##*,}
      case $word in
)SH";
constexpr const char* kListEnd = R"SH(        *=*) ;;
        *)
          compopt -o nospace 2>/dev/null
          mapfile -t COMPREPLY < <(compgen -P "$before" -W '@KEYS@' -- "$word")
          ;;
      esac
      ;;
)SH";

constexpr const char* kBegin =
    R"SH(# bash completion for @NAME@(1), generated from the table of its options. Needs bash 4.4, and no
# bash-completion.

)SH";
constexpr const char* kValuesBegin = R"SH(
# Puts the completions of a value into COMPREPLY: KIND WORD.
_@F@_offer() {
  # Remove the quotes of the typed word to compare it with names. Bash quotes the replies itself.
  local word=${2#[\"\']}
  word=${word//\\/}
  COMPREPLY=()
  case $1 in
    text) ;;
)SH";
constexpr const char* kValuesEnd =
    R"SH(    *) mapfile -t COMPREPLY < <(compgen -W "$1" -- "$word") ;;
  esac
}

_@F@() {
  local words=() word last=$2 piece glue='' kind='' form='@FORM@' operand=0 operands=() options='' i
  local source=''  # the first operand, without its quotes
  # Readline splits words at = and at colons: join them again.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    piece=${COMP_WORDS[i]}
    if [[ $piece && -z ${piece//[=:]/} ]]; then
      ((i == COMP_CWORD)) && last=''
      if ((${#words[@]})); then words[-1]+=$piece; else words=("$piece"); fi
      glue=1
    else
      ((i == COMP_CWORD)) && piece=$2
      if [[ $glue ]]; then words[-1]+=$piece; else words+=("$piece"); fi
      glue=''
    fi
  done
  word=${words[-1]}

  for ((i = 0; i + 1 < ${#words[@]}; ++i)); do
    case ${words[i]} in
@CASES@      -*) _@F@_kind "${words[i]}" && ((++i)) ;;
      *) @OPERAND@ ;;
    esac
  done
  case $form in
@FORMS@    *) options='-h --help' ;;
  esac
  source=${source#[\"\']} source=${source%[\"\']} source=${source//\\/}

  # A value is the next word, or the rest of the word after a =.
  if [[ $word == --*=* && $last != --*=* ]] && _@F@_kind "${word%%=*}"; then
    word=${word#*=}
  elif ((i == ${#words[@]})); then
    _@F@_kind "${words[-2]}"
  elif [[ $word == -* ]]; then
    kind=$options
  else
    kind=${operands[operand]:-text}
    ((${#operands[@]} && operand >= ${#operands[@]})) && [[ ${operands[-1]} == *... ]] &&
      kind=${operands[-1]}
  fi
  _@F@_offer "${kind%...}" "$word"
  # Readline replaces only the last part of a word.
  COMPREPLY=("${COMPREPLY[@]#"${word%"$last"}"}")
}

complete -F _@F@ @NAME@
)SH";

void replace_all(std::string& text, std::string_view mark, std::string_view by) {
  for (std::size_t at = text.find(mark); at != std::string::npos;
       at = text.find(mark, at + by.size())) {
    text.replace(at, mark.size(), by);
  }
}

std::string choices_of(const OptionRow& row) { return joined(parts_of(row.argument, '|'), " "); }

std::string kind_of(const OptionRow& row) {
  switch (row.value) {
    case Value::kChoice:
      return "'" + choices_of(row) + "'";
    case Value::kSource:
      return "source";
    case Value::kPath:
      return "path";
    case Value::kTensor:
      return "tensor";
    case Value::kTensorPath:
      return "tensor_path";
    case Value::kMountpoint:
      return "mountpoint";
    case Value::kDevice:
      return "device";
    case Value::kList:
      return "list";
    case Value::kCommand:
      return "command";
    case Value::kText:
    case Value::kNumber:
    case Value::kSize:
      break;
  }
  return "text";
}

std::string flags_of(std::span<const OptionRow> rows) {
  std::string out;
  for (const OptionRow& row : rows) {
    if (!is_operand(row)) out += (out.empty() ? "" : " ") + joined(parts_of(row.flags, ','), " ");
  }
  return out;
}

// The shell function _kind.
std::string kind_function(const CommandRow& command) {
  std::string out =
      "# Sets `kind` to the kind of a flag's value; fails for a flag without a value.\n"
      "_@F@_kind() {\n  case $1 in\n";
  const std::vector<OptionRow> rows = options_of(command);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const OptionRow& row = rows[i];
    const auto has_its_flags = [&row](const OptionRow& other) { return other.flags == row.flags; };
    const auto others = std::span(rows).subspan(i + 1);
    if (row.argument.empty() ||
        std::ranges::any_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i),
                            has_its_flags))
      continue;
    out += "    " + joined(parts_of(row.flags, ','), " | ") + ") ";
    // A flag may have other values with another verb.
    for (const OptionRow& other : others) {
      if (!has_its_flags(other)) continue;
      std::string verbs = joined(parts_of(other.verbs, ' '), " | ");
      std::erase(verbs, '!');
      out += "case $form in " + verbs + ") kind=" + kind_of(other) + " ;; *) kind=" + kind_of(row) +
             " ;; esac ;;\n";
      break;
    }
    if (std::ranges::none_of(others, has_its_flags)) out += "kind=" + kind_of(row) + " ;;\n";
  }
  return out + "    *) return 1 ;;\n  esac\n}\n";
}

std::string offers(const CommandRow& command) {
  std::set<Value> kinds;
  for (const OptionRow& row : command.options) kinds.insert(row.value);
  std::string out;
  for (const auto& [kind, branch] :
       {std::pair(Value::kSource, kSource), std::pair(Value::kPath, kPath),
        std::pair(Value::kTensor, kTensor), std::pair(Value::kTensorPath, kTensorPath),
        std::pair(Value::kMountpoint, kMountpoint), std::pair(Value::kDevice, kDevice),
        std::pair(Value::kCommand, kCommand)}) {
    if (kinds.contains(kind)) out += branch;
  }
  if (command.list.empty()) return out;
  out += kListBegin;
  std::string keys;
  for (const OptionRow& row : command.list) {
    for (const std::string_view key : parts_of(row.flags, ',')) {
      keys += (keys.empty() ? "" : " ") + std::string(key) + (row.argument.empty() ? "" : "=");
    }
    if (row.value != Value::kChoice) continue;
    const std::string key = std::string(row.flags) + "=";
    out += "        " + key + "*) mapfile -t COMPREPLY < <(compgen -P \"${before}" + key +
           "\" -W '" + choices_of(row) + "' -- \"${word#*=}\") ;;\n";
  }
  std::string end = kListEnd;
  replace_all(end, "@KEYS@", keys);
  return out + end;
}

// The operands and the options of each verb, or of each form.
std::string forms(const CommandRow& command) {
  std::string out;
  for (const VerbRow& verb : command.verbs) {
    if (verb.help.empty()) continue;
    std::string operands;
    const std::vector<OptionRow> rows = rows_of(command, &verb);
    for (const OptionRow& row : rows) {
      if (!is_operand(row) || row.value == Value::kCommand) continue;
      operands += (operands.empty() ? "" : " ") + kind_of(row) + (may_repeat(row) ? "..." : "");
      if (may_repeat(row)) break;
    }
    out += "    " + std::string(verb.name) + ") operands=(" + operands + ") options='" +
           flags_of(command.has_verbs ? rows : options_of(command)) + "' ;;\n";
  }
  return out;
}

// The branches that detect a form by the flag that it requires, alone ("-u") or with others in one
// word ("-zu").
std::string form_cases(const CommandRow& command) {
  std::string others;
  for (const OptionRow& row : command.options) {
    if (row.argument.empty() && row.flags.starts_with('-')) others += row.flags[1];
  }
  std::string out;
  for (const VerbRow& form : command.verbs) {
    for (const OptionRow& row : command.options) {
      if (is_operand(row) || !is_required(row, form).value_or(false)) continue;
      const std::string letter(1, row.flags[1]);
      out += "      -" + letter + "* | -[" + others + "]" + letter + "* | " +
             std::string(parts_of(row.flags, ',').back()) + ") form=" + std::string(form.name) +
             " ;;\n";
    }
  }
  return out;
}

}  // namespace

std::string bash_completion(const CommandRow& command) {
  std::string function(command.name);
  std::ranges::replace(function, '-', '_');
  std::string end = kValuesEnd;
  std::string cases, all_forms = forms(command);
  if (command.has_verbs) {
    std::vector<std::string_view> verbs;
    for (const VerbRow& verb : command.verbs) {
      if (!verb.help.empty()) verbs.push_back(verb.name);
    }
    all_forms += "    '') operands=('" + joined(verbs, " ") + "') options='" +
                 flags_of(rows_of(command, nullptr)) + "' ;;\n";
  } else {
    cases = form_cases(command);
  }
  if (std::ranges::find(command.options, Value::kCommand, &OptionRow::value) !=
      command.options.end()) {
    cases += "      --) _@F@_offer command ''; return ;;\n";
  }
  replace_all(end, "@CASES@", cases);
  replace_all(end, "@FORMS@", all_forms);
  replace_all(end, "@FORM@", command.has_verbs ? "" : std::string_view(command.verbs.front().name));
  replace_all(
      end, "@OPERAND@",
      command.has_verbs
          ? "if [[ $form ]]; then ((operand++)) || source=${words[i]}; else form=${words[i]}; fi"
          : "((operand++)) || source=${words[i]}");
  const bool names_tensors = std::ranges::any_of(command.options, [](const OptionRow& row) {
    return row.value == Value::kTensor || row.value == Value::kTensorPath;
  });
  std::string out = kBegin + kind_function(command) + (names_tensors ? kTensorsFunction : "") +
                    kValuesBegin + offers(command) + end;
  replace_all(out, "@F@", function);
  replace_all(out, "@NAME@", command.name);
  return out;
}

}  // namespace stfs::documents
