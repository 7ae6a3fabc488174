#!/usr/bin/env bash
# package_test.sh BUILD_DIR: what is installed is complete, the package holds the same, and a package
# that is installed and removed leaves nothing behind.
set -euo pipefail

build=${1:?usage: package_test.sh BUILD_DIR}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
remove=''  # what is installed on this system and must go
cleanup() {
  if [[ $remove ]]; then dpkg --purge "$remove" >/dev/null 2>&1; fi
  rm -rf "$work"
}
trap cleanup EXIT
# Reads all of its input: `grep -q` ends early, and a writer that is not done then fails the pipe.
has() { grep "$@" >/dev/null; }
fail() {
  printf 'package_test: %s\n' "$1" >&2
  exit 1
}

library=$(basename "$(readlink -f "$build/tools/library/libstfs.so")")
build_type=$(sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$build/CMakeCache.txt")

# The files of an installation, below its prefix; zsh's and Python's directories depend on the prefix.
expected() {
  cat <<LIST
bin/stfs
bin/stfs-gpu
bin/stfs-info
include/stfs.h
include/stfs_gpu.h
lib/cmake/stfs/stfs-config-version.cmake
lib/cmake/stfs/stfs-config.cmake
lib/cmake/stfs/stfs-targets-${build_type,,}.cmake
lib/cmake/stfs/stfs-targets.cmake
lib/cmake/stfs_gpu/stfs_gpu-config-version.cmake
lib/cmake/stfs_gpu/stfs_gpu-config.cmake
lib/libstfs.so
lib/libstfs.so.0
lib/$library
lib/libstfs_gpu.so
lib/libstfs_gpu.so.0
lib/pkgconfig/stfs.pc
lib/pkgconfig/stfs_gpu.pc
$(cd "$root/tools/library/python" && find stfs -type f -printf "lib/$2/%p\\n")
lib/$2/stfs_gpu.py
lib/systemd/system/stfs-remote@.service
lib/systemd/system/stfs@.service
lib/systemd/user/stfs-gpu.service
lib/systemd/user/stfs-gpu.socket
share/bash-completion/completions/stfs
share/bash-completion/completions/stfs-gpu
share/bash-completion/completions/stfs-info
share/doc/stfs/CHANGELOG.md
share/doc/stfs/EXAMPLES.md
share/doc/stfs/KUBERNETES.md
share/doc/stfs/LICENSE
share/doc/stfs/MANY_MACHINES.md
share/doc/stfs/NOTICE
share/doc/stfs/README.md
share/doc/stfs/REFERENCE.md
share/doc/stfs/SECURITY.md
share/doc/stfs/SEMANTICS.md
share/doc/stfs/TROUBLESHOOTING.md
share/doc/stfs/examples/acquire.c
share/doc/stfs/examples/example.conf
share/doc/stfs/examples/hand_over.py
share/doc/stfs/examples/kubernetes/csi.yaml
share/doc/stfs/examples/kubernetes/device-plugin.yaml
share/doc/stfs/examples/kubernetes/gpu.yaml
share/doc/stfs/examples/kubernetes/memory.yaml
share/doc/stfs/examples/kubernetes/secret.yaml
share/doc/stfs/examples/kubernetes/sidecar.yaml
share/doc/stfs/examples/sum.c
share/doc/stfs/examples/sum.go
share/doc/stfs/examples/sum.rs
share/man/man1/stfs-gpu.1
share/man/man1/stfs-info.1
share/man/man1/stfs.1
share/man/man3/stfs.3
share/man/man3/stfs_gpu.3
share/zsh/$1/_stfs
LIST
}
# same_list WHAT EXPECTED FOUND
same_list() {
  diff -u --label expected --label "$1" <(sort <<<"$2") <(sort <<<"$3") || fail "$1: other files"
}

DESTDIR=$work/root cmake --install "$build" --prefix /opt/stfs >/dev/null
python_dir=python$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages
same_list 'cmake --install' "$(expected site-functions "$python_dir")" \
  "$(cd "$work/root/opt/stfs" && find . ! -type d -printf '%P\n')"
[[ $(find "$work/root" -mindepth 1 -maxdepth 1) == "$work/root/opt" ]] ||
  fail 'cmake --install: a file outside the prefix'
"$work/root/opt/stfs/bin/stfs" --version | has '[0-9]' || fail 'stfs --version prints no version'
"$work/root/opt/stfs/bin/stfs-info" --version | has '[0-9]' ||
  fail 'stfs-info --version prints no version'
"$work/root/opt/stfs/bin/stfs-gpu" --version | has '[0-9]' ||
  fail 'stfs-gpu --version prints no version'
grep -q '^ExecStart=/opt/stfs/bin/stfs-gpu ' "$work/root/opt/stfs/lib/systemd/user/stfs-gpu.service" ||
  fail 'the user unit does not start the installed program'
grep -q '^ExecStart=/opt/stfs/bin/stfs ' "$work/root/opt/stfs/lib/systemd/system/stfs@.service" ||
  fail 'the unit does not start the installed program'

# The library, as a program and a script use it that were made with this tree alone.
prefix=$work/root/opt/stfs
export STFS_GPU_SOCKET=$work/holder
"$build/tests/support/make_checkpoint" --preset tiny "$work/checkpoint" >/dev/null
tensor=$work/checkpoint/model.safetensors::layer.0.bias
read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs stfs_gpu)
cc -std=c99 -Wall -Wextra -Werror -pedantic "$prefix/share/doc/stfs/examples/acquire.c" \
  -o "$work/acquire" "${flags[@]}" || fail 'the example does not build with pkg-config'
LD_LIBRARY_PATH=$prefix/lib "$work/acquire" --device cpu "$tensor" |
  has '^layer.0.bias F32 \[64\] 256 bytes on cpu ' || fail 'the example prints another tensor'
# A program that was linked with the library of its own that stfs_gpu.h had: one with the same names.
names=$(sed -n 's/^STFS_GPU_API .*[ *]\(stfs_gpu_[a-z0-9_]*\)(.*/void \1(void) {}/p' "$prefix/include/stfs_gpu.h")
printf 'STFS_GPU_1 { global: stfs_gpu_*; local: *; };\n' >"$work/old.map"
cc -shared -Wl,-soname,libstfs_gpu.so.0 -Wl,--version-script="$work/old.map" -o "$work/libold.so" -x c - <<<"$names"
cc -I "$prefix/include" "$prefix/share/doc/stfs/examples/acquire.c" -o "$work/old" -L "$work" -lold \
  -Wl,-rpath,"$prefix/lib"
"$work/old" "$tensor" | has '^layer.0.bias ' || fail 'a program linked with libstfs_gpu.so.0 does not run'
mkdir "$work/consumer"
cat >"$work/consumer/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(consumer LANGUAGES C)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(stfs_gpu ${STFS_VERSION} EXACT REQUIRED)
add_executable(acquire acquire.c)
target_link_libraries(acquire PRIVATE stfs::gpu)
CMAKE
cp "$prefix/share/doc/stfs/examples/acquire.c" "$work/consumer"
{ cmake -S "$work/consumer" -B "$work/consumer/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_BUILD_TYPE=Release -DSTFS_VERSION="${library#libstfs.so.}" &&
  cmake --build "$work/consumer/build"; } >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; fail 'the example does not build with find_package(stfs_gpu)'; }
"$work/consumer/build/acquire" "$tensor" | has '^layer.0.bias ' ||
  fail 'the example that CMake built prints another tensor'
! grep -qE 'FORTIFY|-Wall|-std=|-I' "$work/consumer/build/compile_commands.json" ||
  fail 'the CMake package gives its users options of stfs'
holder=$("$prefix/bin/stfs-gpu" doctor | sed -n 's/.*runs as process \([0-9]*\).*/\1/p')
[[ $(readlink "/proc/$holder/exe") == "$prefix/bin/stfs-gpu" ]] ||
  fail 'the library started another holder'
kill "$holder"
PYTHONPATH=$prefix/lib/$python_dir PYTHONDONTWRITEBYTECODE=1 "$prefix/bin/stfs-gpu" run \
  --device cpu "$tensor" -- /usr/bin/python3 -c '
import stfs_gpu
print(stfs_gpu.acquire()[0].numpy().shape)' | has -x '(64,)' ||
  fail 'the Python module does not find its library'

# A wheel of this tree: equal trees give equal wheels, and its record is right.
version=${library#libstfs.so.}
for out in first second; do
  mkdir "$work/$out"
  python3 -B "$root/scripts/wheel.py" "$prefix" "$prefix" "$root" "$version" "$work/$out" || fail 'wheel.py fails'
  touch "$prefix"/bin/* "$prefix"/lib/*
done
cmp "$work"/{first,second}/*.whl || fail 'a second wheel is another'
python3 -c '
import base64, csv, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
rows = {row[0]: row[1:] for row in csv.reader(wheel.read(f"stfs-{sys.argv[2]}.dist-info/RECORD").decode().splitlines())}
assert rows.keys() == set(wheel.namelist()), rows.keys() ^ set(wheel.namelist())
for name, (digest, size) in rows.items():
    content = wheel.read(name)
    right = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode(), str(len(content))
    assert name.endswith("/RECORD") or (digest, size) == right, name' \
  "$work"/first/*.whl "$version" || fail 'the wheel is not what its record says'

# libstfs, likewise.
read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs stfs)
cc -std=c99 -Wall -Wextra -Werror -pedantic "$prefix/share/doc/stfs/examples/sum.c" -o "$work/sum" "${flags[@]}" ||
  fail 'sum.c does not build with pkg-config'
LD_LIBRARY_PATH=$prefix/lib "$work/sum" "$work/checkpoint" | has ' F32 layer.0.bias$' || fail 'sum.c prints something else'
sed 's/find_package.*/find_package(stfs ${STFS_VERSION} EXACT REQUIRED)/; s/acquire/sum/g; s/stfs::gpu/stfs::stfs/' \
  "$work/consumer/CMakeLists.txt" >"$work/CMakeLists.txt"
mkdir "$work/other"
mv "$work/CMakeLists.txt" "$work/other"
cp "$prefix/share/doc/stfs/examples/sum.c" "$work/other"
{ cmake -S "$work/other" -B "$work/other/build" -DCMAKE_PREFIX_PATH="$prefix" -DSTFS_VERSION="${library#libstfs.so.}" &&
  cmake --build "$work/other/build"; } >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; fail 'sum.c does not build with find_package(stfs)'; }
PYTHONPATH=$prefix/lib/$python_dir PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c '
import stfs, sys
print(stfs.open(sys.argv[1])["layer.0.bias"].numpy().shape)' "$work/checkpoint" | has -x '(64,)' ||
  fail 'import stfs does not find its library'

if ! command -v dpkg-deb >/dev/null; then
  printf 'package_test: no dpkg-deb: the package was not built\n'
  exit 0
fi
(cd "$work" && cpack --config "$build/CPackConfig.cmake" -B "$work/cpack" >"$work/log" 2>&1) ||
  { cat "$work/log" >&2; fail 'cpack failed'; }
shopt -s nullglob
packages=("$work"/cpack/stfs_*.deb)
((${#packages[@]} == 1)) || fail 'cpack did not make one package'
package=${packages[0]}
same_list 'the package' "$(expected vendor-completions python3/dist-packages | sed 's|^|./usr/|')" \
  "$(dpkg-deb --fsys-tarfile "$package" | tar -t | grep -v '/$')"
dpkg-deb --field "$package" Depends | has -w fuse3 || fail 'the package does not depend on fuse3'
dpkg-deb --field "$package" Depends | has libfuse3- || fail 'the package does not depend on libfuse3'
dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/lib/systemd/system/stfs@.service |
  has '^ExecStart=/usr/bin/stfs ' || fail "the package's unit does not start its program"

if ((EUID != 0)) || dpkg-query -W stfs >/dev/null 2>&1; then
  printf 'package_test: not root, or stfs is installed here: the package was not installed\n'
  exit 0
fi
dpkg -i "$package" >/dev/null
remove=stfs
mapfile -t installed < <(dpkg-deb --fsys-tarfile "$package" | tar -t | grep -v '/$' | sed 's|^\.||')
[[ $(/usr/bin/stfs --version) == "$("$work/root/opt/stfs/bin/stfs" --version)" ]] ||
  fail 'the installed stfs is another'
ldconfig -p | has -F 'libstfs_gpu.so.0 ' || fail 'the linker does not find the library'
(cd / && PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -c 'import stfs_gpu') ||
  fail 'Python does not find the installed module'
dpkg --purge stfs >/dev/null  # a package with a library has scripts, which -r alone keeps
remove=''
for file in "${installed[@]}"; do
  [[ ! -e $file ]] || fail "$file: left behind by dpkg --purge"
done
[[ ! -e /usr/share/doc/stfs ]] || fail '/usr/share/doc/stfs: left behind by dpkg --purge'
! dpkg-query -W stfs >/dev/null 2>&1 || fail 'dpkg still knows the package after dpkg --purge'
