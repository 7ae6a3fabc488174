# bash completion for stfs(1), stfs-info(1) and stfs-gpu(1). Needs bash 4.4, and no bash-completion.
# shellcheck shell=bash
#
# The program itself knows its options, and the tensors of a checkpoint: core/command/complete.h
# describes what PROGRAM --complete prints. Other people chose the names of files, mounts and
# tensors. They are quoted here, because bash does not quote the `$` and the backquotes of a name
# that is not a file, or of a file that this user may not look at.

# Sets `value` to the text that the shell makes of the beginning of a word, and `open` to the quote
# that is open at its end. Fails if only an expansion would tell the text.
_stfs_unquote() {
  local rest=$1 c
  value='' open=''
  [[ $rest == \~/* ]] && value=$HOME/ rest=${rest:2}
  [[ $rest == *[\\\'\"\$\`]* ]] || value+=$rest rest=''
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

# Sets COMPREPLY to what replaces $2, the end of the typed word, for each candidate.
_stfs() {
  local program words=() typed last=$2 before piece glue='' i value='' open='' records=()
  local head stem name text home='' IFS=$' \t\n'
  COMPREPLY=()
  piece=${COMP_LINE-}
  [[ ${piece:${COMP_POINT-0}:1} == [![:space:]] && ${COMP_POINT-} ]] && return # inside of a word
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

  _stfs_unquote "${COMP_WORDS[0]}" && program=$value && type -P -- "$program" >/dev/null || return
  typed=${words[-1]}
  for ((i = 0; i < ${#words[@]}; ++i)); do
    _stfs_unquote "${words[i]}" && words[i]=$value
  done
  _stfs_unquote "$typed" || return
  mapfile -d '' -t records < <(command -- "$program" --complete "${words[@]}" 2>/dev/null </dev/null)
  [[ ${records[0]-} == command ]] && compopt -o default 2>/dev/null # the rest is another command

  head=${records[1]-} stem=${value#"${records[1]-}"}
  before=${typed%"$last"}
  [[ ${#before} -lt ${#typed} || ! $last ]] && _stfs_unquote "$before" || return
  [[ ! $before && $last == \~/* ]] && home=\~/ value=$HOME/
  for ((i = 2; i < ${#records[@]}; i += 2)); do
    name=${records[i]}
    if [[ $name == *' ' ]]; then name=${name% }; else compopt -o nospace 2>/dev/null; fi
    if [[ $name && ${COMP_TYPE-} == 63 && ${#records[@]} -gt 4 ]]; then
      # A list to look at, without the directory.
      printf -v text '%q' "${name#"${stem%"${stem##*/}"}"}"
      COMPREPLY+=("$text")
      continue
    fi
    [[ $name && $head$name == "$value"* ]] || continue
    name=$head$name
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

complete -F _stfs stfs stfs-info stfs-gpu
