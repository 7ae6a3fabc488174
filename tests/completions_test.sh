#!/usr/bin/env bash
# completions_test.sh COMPLETIONS DATA STFS_GPU: what bash offers for words of the three commands, as
# readline would hand them over. COMPLETIONS and DATA are directories.
set -uo pipefail

completions=${1:?usage: completions_test.sh COMPLETIONS DATA STFS_GPU}
data=$2
stfs_gpu=$3
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/checkpoint"
touch "$work/a.safetensors" "$work/a.safetensors.index.json" "$work/notes.txt" "$work/a:b.safetensors"
cd "$work" || exit 1
for program in stfs stfs-info stfs-gpu; do
  # shellcheck source=/dev/null
  source "$completions/$program.bash" || exit 1
done

# offered LINE: what is offered at the end of a line, sorted, in one line. The words are split where
# readline splits them.
offered() {
  local line=$1 function reply word
  COMP_WORDS=()
  while read -r word; do COMP_WORDS+=("$word"); done < <(tr ' ' '\n' <<<"$line" |
    sed -E 's/([=:]+)/\n\1\n/g' | sed -e '/^$/d')
  [[ $line == *' ' || $line == *[=:] ]] && COMP_WORDS+=('')
  # At a lone `=` the cursor is in the word that it is.
  [[ $line == *[=:] ]] && unset 'COMP_WORDS[-1]'
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  word=${COMP_WORDS[COMP_CWORD]}
  [[ $word == *[=:] ]] && word=''
  function=_${COMP_WORDS[0]//-/_}
  [[ ${COMP_WORDS[0]} == stfs-gpu ]] && COMP_WORDS[0]=$stfs_gpu
  COMPREPLY=()
  "$function" "${COMP_WORDS[0]}" "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
  for reply in "${COMPREPLY[@]}"; do printf '%s\n' "$reply"; done | LC_ALL=C sort | tr '\n' ' '
}

# expect LINE WORD...
expect() {
  local line=$1 found wanted
  found=$(offered "$line")
  shift
  wanted=$(for word in "$@"; do printf '%s\n' "$word"; done | LC_ALL=C sort | tr '\n' ' ')
  [[ $found == "$wanted" ]] && return
  printf 'after "%s": offered "%s", expected "%s"\n' "$line" "$found" "$wanted" >&2
  failures=$((failures + 1))
}

checkpoints=(a.safetensors a.safetensors.index.json a:b.safetensors checkpoint)

expect 'stfs ' "${checkpoints[@]}"
expect 'stfs a.safetensors ' "${checkpoints[@]}"
expect 'stfs ch' checkpoint
expect 'stfs "ch' checkpoint
expect 'stfs a:b' b.safetensors
expect 'stfs --' --foreground --help --lazy --unmount --version
expect 'stfs -o v' views=
expect 'stfs -o views=' hidden visible off
expect 'stfs -o views=hid' hidden
expect 'stfs -o cache=kernel,vi' kernel,views=
expect 'stfs -o cache=kernel,views=v' visible
expect 'stfs -o threads='
expect 'stfs -o allow_' allow_missing allow_other
expect 'stfs -o ro ch' checkpoint
expect 'stfs -u no-such'
expect 'stfs -uz ch'

expect 'stfs-info ' info list show check cat where stats hash diff extract
expect 'stfs-info s' show stats
expect 'stfs-info --' --help --version
expect 'stfs-info list a' a.safetensors a.safetensors.index.json a:b.safetensors
expect 'stfs-info list --s' --sort
expect 'stfs-info list --sort ' name size offset
expect 'stfs-info list --sort=' name size offset
expect 'stfs-info list --sort=na' name
expect 'stfs-info list --sort size ch' checkpoint
expect 'stfs-info list a.safetensors '
expect 'stfs-info cat --as ' f32
expect 'stfs-info hash -j 2 ch' checkpoint
expect 'stfs-info diff a.safetensors ch' checkpoint
expect 'stfs-info diff a.safetensors checkpoint '
expect 'stfs-info check a.safetensors ch' checkpoint
expect 'stfs-info where n' notes.txt
expect 'stfs-info extract a.safetensors w -o ch' checkpoint
expect 'stfs-info show a.safetensors --j' --json
expect 'stfs-info nothing --' --help

expect 'stfs-gpu p' plan pin
expect 'stfs-gpu c'
expect 'stfs-gpu load --device c' cpu
expect 'stfs-gpu load -d c' cpu
expect 'stfs-gpu load --as=' f32 f16 bf16
expect 'stfs-gpu load --as b' bf16
expect 'stfs-gpu load --workers '
expect 'stfs-gpu load -d cpu n' notes.txt
expect 'stfs-gpu load -d cuda:0 notes.txt n' notes.txt
expect 'stfs-gpu evict --f' --force
expect 'stfs-gpu pin --f'
expect 'stfs-gpu holder '
expect 'stfs-gpu run -d cpu notes.txt -- n'

# A name is compared without its quotes, and one with a space stays one word.
cp -r "$data/single" "$work/with space"
COMP_WORDS=(stfs 'with\ sp') COMP_CWORD=1
_stfs stfs 'with\ sp' stfs
[[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == 'with space' ]] || {
  printf 'with\\ sp: offered "%s"\n' "${COMPREPLY[*]}" >&2
  failures=$((failures + 1))
}

((failures == 0))
