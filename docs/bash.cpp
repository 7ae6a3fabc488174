#include "core/layer/edit/edit_layer.h"

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

// Branches of the shell function _offer, one for each kind of value: $1 is the kind, $stem the
// text to complete, as the shell would understand it. They add names to `found`.
constexpr const char* kSource =
    R"SH(    source) _@F@_files '*.safetensors' '*.safetensors.index.json' '*.gguf' ;;
)SH";
constexpr const char* kPath = R"SH(    path) _@F@_files '*' ;;
)SH";
// The names of tensors; stfs-info prints them.
constexpr const char* kTensor = R"SH(    tensor) _@F@_tensors "$source" ;;
)SH";
// A file, or SOURCE::NAME.
constexpr const char* kTensorPath = R"SH(    tensor_path)
      if [[ $stem == *::* ]]; then
        head+=${stem%%::*}::
        stem=${stem#*::}
        _@F@_tensors "${head%::}"
      else
        _@F@_files '*'
      fi
      ;;
)SH";
// The word of a command, or the name of a tensor behind it. Names that edits would have to quote
// are left out.
constexpr const char* kEditLine = R"SH(    edit_line)
      if [[ $stem != *' '* ]]; then
        _@F@_offer '@WORDS@'
      elif [[ $stem == @(keep|drop)' '* || $stem == @(replace|cast|reshape|slice)' '*([! ]) ]]; then
        head+="${stem% *} " stem=${stem##* }
        _@F@_tensors "$source"
        for one in "${!found[@]}"; do [[ ${found[one]} == *[\'\"\#[:blank:]]* ]] && unset 'found[one]'; done
      fi
      ;;
)SH";
constexpr const char* kTensorsFunction = R"SH(
# Finds the tensors of a SOURCE.
_@F@_tensors() {
  local program=${COMP_WORDS[0]/%@NAME@/stfs-info} names
  [[ -x $program ]] || program=stfs-info
  mapfile -t names < <("$program" complete -- "$1" "$stem" 2>/dev/null </dev/null)
  _@F@_add "${names[@]}"
  # The beginning of names goes on.
  [[ ${found[0]-} == *[./] ]] && compopt -o nospace 2>/dev/null
}
)SH";
constexpr const char* kMountpoint = R"SH(    mountpoint)
      # The mounts of stfs, dead ones too (proc_pid_mountinfo(5)): field 5 is the mountpoint, with
      # white space and backslashes as \ooo; the type follows a field "-".
      local mountpoint rest
      while read -r _ _ _ _ mountpoint rest; do
        [[ $rest == *' - fuse.stfs '* ]] || continue
        printf -v mountpoint '%b' "${mountpoint//\\/'\0'}"
        _@F@_add "$mountpoint"
      done </proc/self/mountinfo
      ;;
)SH";
constexpr const char* kDevice = R"SH(    device)
      # Completes the names that the verb devices prints. A UUID is valid too.
      local devices
      mapfile -t devices < <("${COMP_WORDS[0]}" devices 2>/dev/null </dev/null)
      _@F@_add "${devices[@]%% *}"
      ;;
)SH";
constexpr const char* kCommand = R"SH(    command)
      # The rest is another command.
      compopt -o default 2>/dev/null
      ;;
)SH";
// Completes the last option of a list that is separated by commas.
constexpr const char* kListBegin = R"SH(    list)
      [[ $stem == *,* ]] && head+=${stem%,*},
      stem=${stem##*,}
      case $stem in
)SH";
constexpr const char* kListEnd = R"SH(        *=*) ;;
        *)
          compopt -o nospace 2>/dev/null
          _@F@_offer '@KEYS@'
          ;;
      esac
      ;;
)SH";

constexpr const char* kBegin =
    R"SH(# bash completion for @NAME@(1), generated from the table of its options. Needs bash 4.4, and no
# bash-completion.
#
# The names of files, mounts, devices and tensors are data that others chose. They are compared as
# the shell would understand the typed word, and are quoted here: bash does not quote the `$` and the
# backquotes of a name that is no file, or of one that this user may not look at.

)SH";
constexpr const char* kValuesBegin = R"SH(
# Sets `value` to the text that the shell makes of the beginning of a word, and `open` to the quote
# that is open at its end. Fails for what only an expansion would tell.
_@F@_unquote() {
  local rest=$1 c
  value='' open=''
  [[ $rest == \~/* ]] && value=$HOME/ rest=${rest:2}
  while [[ $rest ]]; do
    c=${rest:0:1} rest=${rest:1}
    case $open$c in
      \' | \") open=$c ;;
      \'\' | \"\") open='' ;;
      \\ | \"\\)
        [[ $open && $rest != [\$\`\"\\]* ]] && value+=$c
        value+=${rest:0:1} rest=${rest:1}
        ;;
      \$ | \"\$)
        [[ $rest =~ ^([a-zA-Z_][a-zA-Z_0-9]*|\{[a-zA-Z_][a-zA-Z_0-9]*\}) ]] || return 1
        c=${BASH_REMATCH[0]} rest=${rest:${#BASH_REMATCH[0]}}
        c=${c#\{} c=${c%\}}
        value+=${!c-}
        ;;
      \` | \"\`) return 1 ;;
      *) value+=$c ;;
    esac
  done
}

# Adds those of the names to `found` that go on from $stem. A name with a dash would be an option.
_@F@_add() {
  local name
  for name; do
    [[ $name && $name == "$stem"* && ($head || $name != -*) ]] && found+=("$name")
  done
}

# Adds the directories, and the files that match a pattern: PATTERN...
_@F@_files() {
  local file pattern dash
  while IFS='' read -r -d '' file; do
    dash=''
    [[ $file == -* ]] && dash=./  # or it would be an option
    if [[ -d $file ]]; then
      compopt -o nospace 2>/dev/null
      found+=("$dash$file/")
      continue
    fi
    # shellcheck disable=SC2053  # a pattern
    for pattern; do [[ $file == $pattern ]] && found+=("$dash$file") && break; done
  done < <(
    set +f
    shopt -u failglob dotglob nocaseglob
    shopt -s nullglob
    unset GLOBIGNORE
    printf '%s\0' "$stem"*
  )
}

# Adds the completions of a value: KIND, or the words that it may be.
_@F@_offer() {
  local words one
  case $1 in
    text) ;;
)SH";
constexpr const char* kValuesEnd =
    R"SH(    *)
      read -ra words <<<"$1"
      for one in "${words[@]}"; do [[ $one == "$stem"* ]] && found+=("$one"); done
      ;;
  esac
}

# Sets COMPREPLY to what replaces $2, the end of the typed word $1, for each name in `found`.
_@F@_reply() {
  local last=$2 before=${1%"$2"} name text value open home=''
  [[ ${#before} -lt ${#1} || ! $last ]] && _@F@_unquote "$before" || return
  [[ ! $before && $last == \~/* ]] && home=\~/ value=$HOME/
  for name in "${found[@]}"; do
    if [[ ${COMP_TYPE-} == 63 && ${#found[@]} -gt 1 ]]; then  # a list to look at, without the directory
      printf -v text '%q' "${name#"${stem%"${stem##*/}"}"}"
      COMPREPLY+=("$text")
      continue
    fi
    name=$head$name
    [[ $name == "$value"* ]] || continue
    text=${name:${#value}}
    case $open in
      \') [[ $text == *[\'[:cntrl:]]* ]] ;;
      \") [[ $text == *[\"\$\`\\![:cntrl:]]* ]] ;;
      *) [[ $text ]] ;;
    esac && {
      # Outside of quotes. Readline replaces an open quote by a reply that begins with it, and adds
      # none to a reply that ends with it.
      printf -v text '%q' "$text"
      text=$open$open${text//'\,'/,}$open$open
    }
    COMPREPLY+=("$home$text")
  done
}

_@F@() {
  local words=() word last=$2 piece glue='' kind='' form='@FORM@' operand=0 operands=() options='' i
  local source=''  # the first operand
  local value='' open='' head='' stem='' found=() IFS=$' \t\n'
  COMPREPLY=()
  piece=${COMP_LINE-}
  [[ ${piece:${COMP_POINT-0}:1} == [![:space:]] && ${COMP_POINT-} ]] && return  # inside of a word
  # Readline splits words at = and at colons: join them again.
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    piece=${COMP_WORDS[i]}
    if [[ $piece && -z ${piece//[=:]/} ]]; then
      ((i == COMP_CWORD)) && last=''
      if ((${#words[@]})); then words[-1]+=$piece; else words=("$piece"); fi
      glue=1
    else
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
  _@F@_unquote "$source" && source=$value
  _@F@_unquote "$word" || return
  stem=$value

  # A value is the next word, or the rest of the word after a =.
  if [[ $word == --*=* ]] && _@F@_kind "${word%%=*}"; then
    head=${stem%%=*}= stem=${stem#*=}
  elif ((i == ${#words[@]})); then
    _@F@_kind "${words[-2]}"
  elif [[ $word == -* ]]; then
    kind=$options
  else
    kind=${operands[operand]:-text}
    ((${#operands[@]} && operand >= ${#operands[@]})) && [[ ${operands[-1]} == *... ]] &&
      kind=${operands[-1]}
  fi
  _@F@_offer "${kind%...}"
  _@F@_reply "$word" "$last"
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
    case Value::kChoice: return "'" + choices_of(row) + "'";
    case Value::kSource: return "source";
    case Value::kPath: return "path";
    case Value::kTensor: return "tensor";
    case Value::kTensorPath: return "tensor_path";
    case Value::kEditLine: return "edit_line";
    case Value::kMountpoint: return "mountpoint";
    case Value::kDevice: return "device";
    case Value::kList: return "list";
    case Value::kCommand: return "command";
    case Value::kText:
    case Value::kNumber:
    case Value::kSize: break;
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
        std::pair(Value::kEditLine, kEditLine), std::pair(Value::kMountpoint, kMountpoint),
        std::pair(Value::kDevice, kDevice), std::pair(Value::kCommand, kCommand)}) {
    if (kinds.contains(kind)) out += branch;
  }
  replace_all(out, "@WORDS@", joined(edit_words(), " "));
  if (command.list.empty()) return out;
  out += kListBegin;
  std::string keys;
  for (const OptionRow& row : command.list) {
    for (const std::string_view key : parts_of(row.flags, ',')) {
      keys += (keys.empty() ? "" : " ") + std::string(key) + (row.argument.empty() ? "" : "=");
    }
    if (row.value != Value::kChoice) continue;
    const std::string key = std::string(row.flags) + "=";
    out += "        " + key + "*)\n          head+=" + key +
           " stem=${stem#*=}\n          _@F@_offer '" + choices_of(row) + "'\n          ;;\n";
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
    cases += "      --) _@F@_offer command; return ;;\n";
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
