# bash completion for stfs(1). Needs nothing but bash 4.4: it can be sourced as it stands.

# Puts into COMPREPLY the directories and the files of a checkpoint that begin with the word at the
# cursor.
_stfs_sources() {
  # What has been typed may be quoted; names are compared without quotes, and bash quotes the replies.
  local word=${1#[\"\']}
  word=${word//\\/}
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(
    compgen -d -- "$word"
    compgen -f -X '!*.safetensors' -- "$word"
    compgen -f -X '!*.safetensors.index.json' -- "$word"
  )
}

# The same with the mounts of stfs, dead ones among them.
_stfs_mountpoints() {
  local word=${1#[\"\']} mountpoint rest
  word=${word//\\/}
  compopt -o filenames 2>/dev/null
  COMPREPLY=()
  # The fifth field is the mountpoint, with white space and backslashes as \ooo; the type stands
  # after a lone dash.
  while read -r _ _ _ _ mountpoint rest; do
    [[ $rest == *' - fuse.stfs '* ]] || continue
    printf -v mountpoint '%b' "${mountpoint//\\/\\0}"
    [[ $mountpoint == "$word"* ]] && COMPREPLY+=("$mountpoint")
  done </proc/self/mountinfo
}

_stfs() {
  local word=$2 previous at=$COMP_CWORD unmount='' i
  # `=` ends a word for readline: put `cache=kernel,views=hid` together again.
  [[ ${COMP_WORDS[at]} == '=' ]] && word='='
  while ((at > 1)) && [[ ${COMP_WORDS[at]} == '=' || ${COMP_WORDS[at - 1]} == '=' ]]; do
    ((at -= 1))
    word=${COMP_WORDS[at]}$word
  done
  previous=${COMP_WORDS[at - 1]}

  for ((i = 1; i < at; ++i)); do
    case ${COMP_WORDS[i]} in
      -u | --unmount | -uz | -zu) unmount=1 ;;
    esac
  done

  if [[ $previous == -o ]]; then
    # Options are separated by commas; the last is the one being typed.
    local option=${word##*,} before=''
    [[ $word == *,* ]] && before=${word%,*},
    case $option in
      views=*) mapfile -t COMPREPLY < <(compgen -P "${before}views=" -W 'hidden visible off' -- "${option#*=}") ;;
      cache=*) mapfile -t COMPREPLY < <(compgen -P "${before}cache=" -W 'kernel direct' -- "${option#*=}") ;;
      *=*) COMPREPLY=() ;;
      *)
        compopt -o nospace 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -P "$before" -W 'views= cache= allow_missing supervise threads= uid=
          gid= umask= allow_other default_permissions ro noexec fsname= max_read=' -- "$option")
        ;;
    esac
    # Readline replaces only what follows the last `=`.
    if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
      COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W '-f --foreground -h --help -o -u --unmount -V --version
      -z --lazy' -- "$word")
  elif [[ $unmount ]]; then
    _stfs_mountpoints "$word"
  else
    _stfs_sources "$word"
  fi
}

complete -F _stfs stfs
