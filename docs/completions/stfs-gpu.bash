# bash completion for stfs-gpu(1). Needs nothing but bash 4.4: it can be sourced as it stands.

_stfs_gpu() {
  local word=$2 previous=$3 verb='' options i
  if [[ ${COMP_WORDS[COMP_CWORD]} == '=' ]]; then
    word='' previous=${COMP_WORDS[COMP_CWORD - 1]}
  elif ((COMP_CWORD > 1)) && [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
      --)
        # What follows is a command of its own.
        compopt -o default 2>/dev/null
        COMPREPLY=()
        return
        ;;
      -*) ;;
      *) [[ $verb ]] || verb=${COMP_WORDS[i]} ;;
    esac
  done

  case $previous in
    -d | --device)
      # The names that devices prints; a UUID may be typed too.
      mapfile -t COMPREPLY < <(
        compgen -W "$("${COMP_WORDS[0]}" devices 2>/dev/null | cut -d ' ' -f 1)" -- "$word"
      )
      # bash splits words at colons: what stands before one is there already.
      [[ $word == *:* && $COMP_WORDBREAKS == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
      return
      ;;
    --as)
      mapfile -t COMPREPLY < <(compgen -W 'f32 f16 bf16' -- "$word")
      return
      ;;
    --shard | --workers | --tile | --keep-free | --rounds | --memory-limit | --exit-idle | --copier-idle)
      COMPREPLY=()
      return
      ;;
  esac
  if [[ $word == -* ]]; then
    case $verb in
      '') options='--help --version' ;;
      devices | doctor) options='--help --json' ;;
      plan) options='--help --device --as --shard --keep-free --json' ;;
      load) options='--help --device --as --shard --verify --pin --dry-run --keep-free --workers --tile --json' ;;
      ls) options='--help --device --json' ;;
      get) options='--help --device --as --shard --json' ;;
      evict) options='--help --device --as --shard --all --force --json' ;;
      pin | unpin) options='--help --device --as --shard --all --json' ;;
      run) options='--help --device --as --shard --verify --keep-free --workers --tile' ;;
      bench) options='--help --device --workers --tile --rounds --json' ;;
      holder) options='--help --memory-limit --background --exit-idle --copier-idle' ;;
      *) options='--help' ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    return
  fi
  case $verb in
    '') mapfile -t COMPREPLY < <(compgen -W 'devices plan load ls get evict pin unpin run bench doctor holder' -- "$word") ;;
    plan | load | get | evict | pin | unpin | run | bench)
      compopt -o filenames 2>/dev/null
      word=${word#[\"\']}
      mapfile -t COMPREPLY < <(compgen -f -- "${word//\\/}")
      ;;
    *) COMPREPLY=() ;;
  esac
}

complete -F _stfs_gpu stfs-gpu
