#!/usr/bin/env bash
# completions_test.sh SCRIPT DATA STFS STFS_INFO STFS_GPU: what bash offers for words of the three commands, as
# readline would hand them over. DATA is a directory.
# shellcheck disable=SC2016  # names that a shell must not expand
set -uo pipefail

script=${1:?usage: completions_test.sh SCRIPT DATA STFS STFS_INFO STFS_GPU}
data=$2
stfs=$3
stfs_info=$4
stfs_gpu=$5
failures=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/checkpoint"
touch "$work/a.safetensors" "$work/a.safetensors.index.json" "$work/notes.txt" "$work/a:b.safetensors" "$work/q.gguf"
cd "$work" || exit 1
# shellcheck source=docs/completions/stfs.bash
source "$script" || exit 1

# offered LINE: what is offered at the end of a line, sorted, in one line. The words are split where
# readline splits them.
offered() {
  local line=$1 reply word
  COMP_WORDS=()
  while read -r word; do COMP_WORDS+=("$word"); done < <(tr ' ' '\n' <<<"$line" |
    sed -E 's/([=:]+)/\n\1\n/g' | sed -e '/^$/d')
  [[ $line == *' ' || $line == *[=:] ]] && COMP_WORDS+=('')
  # At a lone `=` the cursor is in the word that it is.
  [[ $line == *[=:] ]] && unset 'COMP_WORDS[-1]'
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  word=${COMP_WORDS[COMP_CWORD]}
  [[ $word == *[=:] ]] && word=''
  case ${COMP_WORDS[0]} in
    stfs) COMP_WORDS[0]=$stfs ;;
    stfs-info) COMP_WORDS[0]=$stfs_info ;;
    stfs-gpu) COMP_WORDS[0]=$stfs_gpu ;;
  esac
  COMPREPLY=()
  _stfs "${COMP_WORDS[0]}" "$word" "${COMP_WORDS[COMP_CWORD - 1]}"
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

checkpoints=(a.safetensors a.safetensors.index.json a:b.safetensors checkpoint/ q.gguf)

expect 'stfs ' "${checkpoints[@]}"
expect 'stfs a.safetensors ' "${checkpoints[@]}"
expect 'stfs ch' checkpoint/
expect 'stfs "ch' checkpoint/
expect 'stfs a:b' b.safetensors
expect 'stfs --' --foreground --help --lazy --unmount --version
expect 'stfs -o v' views=
expect 'stfs -o views=' hidden visible off
expect 'stfs -o views=hid' hidden
expect 'stfs -o page_cache=kernel,vi' kernel,views=
expect 'stfs -o page_cache=kernel,views=v' visible
expect 'stfs -o threads='
expect 'stfs -o allow_' allow_missing allow_other
expect 'stfs -o ro ch' checkpoint/
expect 'stfs -u no-such'
expect 'stfs -o offl' offline
expect 'stfs -o prefetch=' all none
# A URL is completed from what was fetched before, and nothing was: no server is asked.
expect 'stfs hf://org/mo'
expect 'stfs-info show hf://org/model lm'
expect 'stfs-info show s3://bucket/model lm'
expect 'stfs -uz ch'
expect 'stfs -u --' --help --lazy --version
expect 'stfs -f --f'
expect 'stfs -oviews=hid' hidden
expect 'stfs -o cache_dir=ch' checkpoint/
expect './no-such-program --'

expect 'stfs-info ' info list show check cat where stats hash diff report extract edit delta follow cache
expect 'stfs-info cache ' list prune verify
expect 'stfs-info cache pr' prune
expect 'stfs-info s' show stats
expect 'stfs-info --' --help --version
expect 'stfs-info list a' a.safetensors a.safetensors.index.json a:b.safetensors
expect 'stfs-info list --so' --sort
expect 'stfs-info list --sort name --so'
expect 'stfs-info complete '
expect 'stfs-info list --sort ' name size offset
expect 'stfs-info list --sort=' name size offset
expect 'stfs-info list --sort=na' name
expect 'stfs-info list --sort size ch' checkpoint/
expect 'stfs-info stats --sort ' name count min max mean std zeros nan inf
expect 'stfs-info stats --sort=st' std
expect 'stfs-info stats --top '
expect 'stfs-info list a.safetensors '
expect 'stfs-info cat --as ' f32
expect 'stfs-info hash -j 2 ch' checkpoint/
expect 'stfs-info diff a.safetensors ch' checkpoint/
expect 'stfs-info diff a.safetensors checkpoint '
expect 'stfs-info check a.safetensors ch' checkpoint/
expect 'stfs-info where n' notes.txt
expect 'stfs-info extract a.safetensors w -o ch' checkpoint/
expect 'stfs-info report a.safetensors --ag' --against
expect 'stfs-info diff --v' --values
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

# Names of tensors: of a file, of an index whose shards are absent, of a directory.
write_tensors() { # FILE NAME...
  local file=$1 header='' name
  shift
  for name in "$@"; do header+=${header:+,}"\"$name\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"; done
  header="{$header}"
  printf -v length '%04x' ${#header}
  {
    printf '%b' "\\x${length:2:2}\\x${length:0:2}\\x00\\x00\\x00\\x00\\x00\\x00"
    printf '%s' "$header"
  } >"$file"
}
write_tensors "$work/t.safetensors" model.a.weight model.b.weight lm_head 'x y' 'ev$(touch executed)il' \
  'a:b' '[c]' 'back\\slash' 'tab\tname' "q'uote" '`touch executed`'
mkdir "$work/indexed"
{
  printf '{"weight_map":{"lm_head":"gone.safetensors"'
  for ((n = 0; n < 300; ++n)); do printf ',"model.layers.%d.w":"gone.safetensors"' $n; done
  printf '}}'
} >"$work/indexed/model.safetensors.index.json"

expect 'stfs-info show t.safetensors mod' model.a.weight model.b.weight
expect 'stfs-info cat t.safetensors lm' lm_head
expect 'stfs-info hash t.safetensors lm_head model.a' model.a.weight
expect 'stfs-info extract -o n.safetensors t.safetensors model.b' model.b.weight
expect 'stfs-info stats -j 2 t.safetensors nothing'
expect 'stfs-info list t.safetensors' t.safetensors
expect 'stfs-info show t.safetensors a:' b
expect 'stfs-info show t.safetensors x' 'x\ y'
expect 'stfs-info show t.safetensors ev' 'ev\$\(touch\ executed\)il'
expect 'stfs-info show t.safetensors [' '\[c\]'
expect 'stfs-info show t.safetensors q' "q\\'uote"
expect 'stfs-info show t.safetensors `'
expect 'stfs-info show t.safetensors back' 'back\\slash'
expect 'stfs-info show t.safetensors tab'
expect 'stfs-info show t.safetensors $(touch'
expect 'stfs-info show $(touch${IFS}executed) m'
expect 'stfs-info show gone.safetensors m'
expect 'stfs-info cat t.safetensors lm_head '
expect 'stfs-info show indexed lm' lm_head
expect 'stfs-info show indexed model.layers.29' model.layers.29.w model.layers.29{0..9}.w
expect 'stfs-info show indexed/model.safetensors.index.json l' lm_head
# More than 200 names go on at the next separator where they differ.
expect 'stfs-info show indexed mo' model.layers.{0..299}.
expect 'stfs-info show indexed ' lm_head model.
expect 'stfs-gpu load -d cpu t.safetensors::mod' model.a.weight model.b.weight
expect 'stfs-gpu load -d cpu t.safetensors::' '\[c\]' '\`touch\ executed\`' a:b \
  'back\\slash' 'ev\$\(touch\ executed\)il' lm_head model.a.weight model.b.weight "q\\'uote" 'x\ y'
expect 'stfs-gpu plan -d cpu indexed::lm' lm_head
expect 'stfs-gpu get -d cpu t.safetensors::a:' b
expect 'stfs-gpu run -d cpu gone::l'
mkfifo "$work/pipe.safetensors"
expect 'stfs-info show pipe.safetensors m'
rm "$work/pipe.safetensors"
[[ -e executed ]] && {
  printf 'a completion was executed\n' >&2
  failures=$((failures + 1))
}
cp "$work/t.safetensors" "$work/b c.safetensors"
COMP_WORDS=("$stfs_info" show 'b\ c.safetensors' 'lm') COMP_CWORD=3
_stfs "$stfs_info" lm 'b\ c.safetensors'
[[ ${COMPREPLY[*]} == lm_head ]] || {
  printf 'b\\ c.safetensors: offered "%s"\n' "${COMPREPLY[*]}" >&2
  failures=$((failures + 1))
}
COMP_WORDS=("$stfs_gpu" load 'b\ c.safetensors' :: lm) COMP_CWORD=4
_stfs "$stfs_gpu" lm ::
[[ ${COMPREPLY[*]} == lm_head ]] || {
  printf 'b\\ c.safetensors::lm: offered "%s"\n' "${COMPREPLY[*]}" >&2
  failures=$((failures + 1))
}
# A line of edits is one word of the shell.
edit_line() { # WORD EXPECTED...
  local found
  COMP_WORDS=("$stfs_info" edit t.safetensors -e "$1") COMP_CWORD=4 COMPREPLY=()
  _stfs "$stfs_info" "${1#\'}" -e
  shift
  found=${COMPREPLY[*]}
  [[ $found == "$*" ]] || {
    printf 'a line of edits: offered "%s", expected "%s"\n' "$found" "$*" >&2
    failures=$((failures + 1))
  }
}
edit_line "'re" rename replace reshape
edit_line ke keep
edit_line "'drop mod" 'drop model.a.weight' 'drop model.b.weight'
edit_line "'keep model.a.weight lm" 'keep model.a.weight lm_head'
edit_line "'cast lm" 'cast lm_head'
edit_line "'cast lm_head "
edit_line "'rename mod"
edit_line "'drop x"
rm "$work"/*.safetensors
rm -r "$work/indexed"

# A name is compared without its quotes, and one with a space stays one word.
cp -r "$data/single" "$work/with space"
COMP_WORDS=("$stfs" 'with\ sp') COMP_CWORD=1
_stfs "$stfs" 'with\ sp' "$stfs"
[[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == 'with\ space/' ]] || {
  printf 'with\\ sp: offered "%s"\n' "${COMPREPLY[*]}" >&2
  failures=$((failures + 1))
}

((failures == 0))
