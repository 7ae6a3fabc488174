# bash completion for stfs-info(1). Needs nothing but bash 4.4: it can be sourced as it stands.

# Puts into COMPREPLY the directories and the files of a checkpoint that begin with the word at the
# cursor.
_stfs_info_sources() {
  # What has been typed may be quoted; names are compared without quotes, and bash quotes the replies.
  local word=${1#[\"\']}
  word=${word//\\/}
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(
    compgen -d -- "$word"
    compgen -f -X '!*.safetensors' -- "$word"
    [[ $2 == check ]] || compgen -f -X '!*.safetensors.index.json' -- "$word"
  )
}

_stfs_info() {
  local word=$2 previous=$3 verb='' positional=0 options i
  if [[ ${COMP_WORDS[COMP_CWORD]} == '=' ]]; then
    word='' previous=${COMP_WORDS[COMP_CWORD - 1]}
  elif ((COMP_CWORD > 1)) && [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --sort | --slice | --as | --jobs | -j | --output | -o)
        # Its value is the next word, with or without `=`.
        [[ ${COMP_WORDS[i + 1]} == '=' ]] && ((++i))
        ((++i))
        ;;
      -*) ;;
      *) if [[ $verb ]]; then ((++positional)); else verb=${COMP_WORDS[i]}; fi ;;
    esac
  done

  if [[ $previous == --sort && $verb == list ]]; then
    mapfile -t COMPREPLY < <(compgen -W 'name size offset' -- "$word")
    return
  fi
  if [[ $previous == --as && $verb == cat ]]; then
    mapfile -t COMPREPLY < <(compgen -W 'f32' -- "$word")
    return
  fi
  if [[ $previous == -o || $previous == --output ]]; then
    _stfs_info_sources "$word" "$verb"
    return
  fi
  if [[ $word == -* ]]; then
    case $verb in
      '') options='--help --version' ;;
      list) options='--help --json --sort --allow-missing' ;;
      show) options='--help --json --allow-missing' ;;
      cat) options='--help --slice --as --npy --allow-missing' ;;
      stats | hash | diff) options='--help --json --jobs --allow-missing' ;;
      extract) options='--help --output --allow-missing' ;;
      where) options='--help --json' ;;
      *) options='--help' ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    return
  fi
  case $verb:$positional in
    :*) mapfile -t COMPREPLY < <(compgen -W 'list show check cat where stats hash diff extract' -- "$word") ;;
    list:0 | show:0 | cat:0 | stats:0 | hash:0 | extract:0 | diff:[01] | check:*) _stfs_info_sources "$word" "$verb" ;;
    where:*)
      compopt -o filenames 2>/dev/null
      word=${word#[\"\']}
      mapfile -t COMPREPLY < <(compgen -f -- "${word//\\/}")
      ;;
    *) COMPREPLY=() ;;
  esac
}

complete -F _stfs_info stfs-info
