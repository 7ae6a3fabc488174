#!/usr/bin/env bash
# packages_test.sh DIRECTORY ROOTS MIRROR FAKE_DRIVER: what scripts/package made works in clean
# chroots: the build to carry in Debian 11 and 12 with nothing installed, the wheel (if it is there) in
# a venv there, the container's file system and the .deb (if it is there) in Debian 12. They mount, serve a
# mount that was handed over, read, and fetch over TLS. The script on_device runs beside Python alone, on the fake driver (if it is there). As root, with /dev/fuse.
# ROOTS keeps the chroots' archives. scripts/package --test runs it.
set -euo pipefail

directory=${1:?usage: packages_test.sh DIRECTORY ROOTS MIRROR FAKE_DRIVER}
roots=${2:?}
mirror=${3:?}
fake_driver=${4:?}
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() {
  printf 'packages_test: %s\n' "$1" >&2
  exit 1
}
((EUID == 0)) || fail 'only root may make a chroot'
[[ -c /dev/fuse ]] || fail 'there is no /dev/fuse'
shopt -s nullglob
tarball=("$directory"/stfs-*-linux-x86_64.tar.gz) deb=("$directory"/stfs_*_amd64.deb)
wheel=("$directory"/stfs-*.whl)
((${#tarball[@]} == 1)) || fail "no .tar.gz in $directory: make it with scripts/package carried"
# All mounts made here end with the namespace.
if [[ ${STFS_PACKAGES_TEST:-} != inside ]]; then
  STFS_PACKAGES_TEST=inside exec unshare --mount --propagation private -- "${BASH_SOURCE[0]}" "$@"
fi

work=$(mktemp -d)
server=''
cleanup() {
  if [[ $server ]]; then DIR=$server "$tests/remote/servers/nginx" stop; fi
  while read -r mounted; do umount -l "$mounted"; done \
    < <(awk -v at="$work/" 'index($5, at) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
model=$tests/data/single/voices.safetensors
tensor=tokens

# in_root COMMAND...: runs it in the chroot with an empty environment.
in_root() {
  chroot "$rootfs" /usr/bin/env -i PATH=/opt/stfs/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" "$@"
}
# expect STATUS TEXT COMMAND...: ends with the status, and prints the text.
expect() {
  local status=0 said
  said=$(in_root "${@:3}" 2>&1) || status=$?
  [[ $status == "$1" && $said == *"$2"* ]] ||
    fail "$release: ${*:3}: status $status (expected $1), \"$said\" (expected \"$2\")"
}
# wait_for_mount PROCESS: which mounts on /mnt.
wait_for_mount() {
  until grep -qF " $rootfs/mnt " /proc/self/mountinfo; do
    kill -0 "$1" || fail "$release: process $1 ended without a mount"
  done
}
same_as_source() {
  in_root stfs-info cat /model.safetensors "$tensor" | cmp - "$rootfs/mnt/$tensor" ||
    fail "$release: $1: other bytes"
}

DIR=$work/nginx
export DIR
started=$("$tests/remote/servers/nginx" start)
server=$DIR
eval "$started"
cp "$model" "$NGINX_ROOT/model.safetensors"
url=https://127.0.0.1:$NGINX_TLS_PORT/model.safetensors

# make_root NAME [PACKAGE]: a clean chroot of $release, in $rootfs.
make_root() {
  local archive=$roots/$release${2+-$2}.tar
  printf '== %s: %s\n' "$release" "$1"
  if [[ ! -f $archive ]]; then
    mkdir -p "$roots"
    mmdebstrap --quiet --format=tar --variant=minbase ${2+--include="$2"} "$release" "$archive.part" \
      "deb $mirror $release main"
    mv "$archive.part" "$archive"
  fi
  rootfs=$work/$release-$1
  variables=()
  mkdir -p "$rootfs"/{dev,mnt,opt/stfs,proc}
  tar -C "$rootfs" --exclude='./dev/*' -xf "$archive"
  mknod -m 666 "$rootfs/dev/fuse" c 10 229
  touch "$rootfs"/dev/{null,urandom}
  for device in null urandom; do mount --bind "/dev/$device" "$rootfs/dev/$device"; done
  mount -t proc proc "$rootfs/proc"
  cp "$model" "$rootfs/model.safetensors"
}

# end_holder STFS_GPU...: ends the holder that was started, if it runs.
end_holder() {
  in_root "$@" doctor >"$work/doctor" 2>&1 || true
  holder=$(sed -n 's/.*runs as process \([0-9]*\).*/\1/p' "$work/doctor")
  if [[ $holder ]]; then kill "$holder"; fi
}

# The wheel, in a fresh venv of an ordinary user: the programs, the modules, README's block for Python,
# and what is said where fusermount3 is not.
try_wheel() {
  local as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups --) home visible
  make_root wheel python3-venv,python3-numpy
  home=$rootfs/home/user
  printf 'user:x:1000:1000::/home/user:/bin/sh\n' >>"$rootfs/etc/passwd"
  install -d -o 1000 -g 1000 "$home" "$home/mnt"
  variables=(HOME=/home/user PATH=/home/user/venv/bin:/usr/bin:/bin XDG_RUNTIME_DIR=/home/user)
  cp "${wheel[0]}" "$home"
  python3 -c '
import json, struct, sys
header = json.dumps({"lm_head.weight": {"dtype": "BF16", "shape": [128, 64], "data_offsets": [0, 16384]}}).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(header)) + header + b"\x80\x3f" * 8192)' >"$home/model.safetensors"
  readme_block >"$home/readme.py"
  expect 0 '' sh -c '! { command -v cc || command -v gcc || command -v fusermount3; }'
  expect 0 '' "${as_user[@]}" python3 -m venv /home/user/venv
  expect 0 '' "${as_user[@]}" pip install --quiet --no-index "/home/user/${wheel[0]##*/}"
  expect 0 'No broken requirements' "${as_user[@]}" pip check
  for program in stfs stfs-info stfs-gpu; do
    expect 0 'carried, built with GCC 12' "${as_user[@]}" "$program" --version
  done
  visible=$(nm -D --defined-only "$home/venv/libexec/stfs/libstfs.so.0" |
    awk '$2 != "A" && $3 !~ /^(stfs_[a-z0-9_]+|_Z[0-9]+stfs(_info|_gpu)?_mainiPPc)@/ { print $3 }')
  [[ -z $visible ]] || fail "$release: programs see $visible"
  expect 0 'BF16' "${as_user[@]}" stfs-info list /home/user/model.safetensors
  # Without NumPy; then with Debian's beside the venv.
  expect 0 '803f' "${as_user[@]}" python -c '
import stfs
print(bytes(stfs.open("/home/user/model.safetensors")["lm_head.weight"][0, 0]).hex())'
  variables+=(PYTHONPATH=/usr/lib/python3/dist-packages)
  expect 0 '(4, 64)' "${as_user[@]}" sh -c 'cd && python readme.py'
  # The library starts the stfs-gpu of the venv, also where $PATH does not name it.
  variables+=(PATH=/usr/bin:/bin)
  expect 0 "'lm_head.weight'" "${as_user[@]}" /home/user/venv/bin/python -c '
import stfs, stfs_gpu
assert stfs.gpu.acquire is stfs_gpu.acquire
print(list(stfs_gpu.acquire("/home/user/model.safetensors", device="cpu", load_if_missing=True)))'
  end_holder "${as_user[@]}" /home/user/venv/bin/stfs-gpu
  expect 4 'install the package fuse3' "${as_user[@]}" /home/user/venv/bin/stfs /home/user/model.safetensors /home/user/mnt
}

# The container's file system, as Containerfile makes it, without an engine: user 65534 mounts.
try_container() {
  local removed as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups --)
  make_root container ca-certificates,fuse3
  variables=(PATH=/usr/local/bin:/usr/bin:/bin STFS_CACHE=/var/cache/stfs)
  tar -C "$rootfs/usr/local" --strip-components=1 -xzf "${tarball[0]}"
  read -ra removed < <(sed -n 's|.*rm -r \(/stfs/.*\)|\1|p' "$tests/../Containerfile")
  ((${#removed[@]})) || fail 'Containerfile removes nothing'
  rm -r "${removed[@]/#\/stfs/$rootfs/usr/local}"
  chown 65534:65534 "$rootfs/mnt"
  install -d -o 65534 -g 65534 -m 0700 "$rootfs/var/cache/stfs"
  ln -s ../proc/self/mounts "$rootfs/etc/mtab"  # an engine makes it
  cp "$NGINX_CA" "$rootfs/etc/ssl/certs/ca-certificates.crt"
  chroot "$rootfs" /usr/bin/env -i "${variables[@]}" "${as_user[@]}" stfs -f "$url" /mnt &
  served=$!
  wait_for_mount "$served"
  expect 0 259248 "${as_user[@]}" stat -c %s /mnt/tokens
  kill -TERM "$served"
  wait "$served" || fail "the container: SIGTERM: status $?"
}

# readme_block: the lines for Python under README's "In a program".
readme_block() {
  awk '/^## / { here = $0 == "## In a program" } here && /^```/ { inside = $0 == "```python"; next } here && inside' \
    "$tests/../README.md"
}

for release in bullseye bookworm; do
  if ((${#wheel[@]} == 1)); then try_wheel; fi
  make_root carried
  tar -C "$rootfs/opt/stfs" --strip-components=1 -xzf "${tarball[0]}"

  for program in stfs stfs-info stfs-gpu; do expect 0 'carried, built with GCC 12' "$program" --version; done
  expect 0 'libfuse 3.' stfs --version
  expect 0 'GLIBC' ldd --version

  # fusermount3 is not there: root mounts by itself.
  expect 0 '' stfs /model.safetensors /mnt
  same_as_source 'the mount'
  expect 0 '' stfs -u /mnt
  # Its threads are cancelled, which takes libgcc_s of the system.
  chroot "$rootfs" /opt/stfs/bin/stfs -f /model.safetensors /mnt &
  served=$!
  wait_for_mount "$served"
  same_as_source 'the mount in the foreground'
  kill -TERM "$served"
  wait "$served" || fail "$release: SIGTERM: status $?"
  # A handed-over mount, without any privilege. It ends well when the mount goes.
  python3 -B "$tests/../docs/examples/hand_over.py" "$rootfs/mnt" --user 65534 --allow-other -- \
    chroot --userspec=65534:65534 "$rootfs" /opt/stfs/bin/stfs -f /model.safetensors @FD@ &
  handed=$!
  wait_for_mount "$handed"
  same_as_source 'the mount that was handed over'
  umount "$rootfs/mnt"
  wait "$handed" || fail "$release: the server of the mount that was handed over ended with status $?"

  expect 0 'there is no NVIDIA driver' stfs-gpu devices
  variables=(STFS_GPU_SOCKET=/run/holder)
  expect 5 'there is no NVIDIA driver' stfs-gpu load --device cuda:0 /model.safetensors
  expect 0 '' stfs-gpu load --device cpu /model.safetensors
  expect 0 "$tensor" stfs-gpu ls --all
  expect 0 '' stfs-gpu evict --all
  end_holder stfs-gpu

  # The certificates are the system's.
  variables=(STFS_CACHE=/var/cache/stfs)
  expect 3 'cannot trust' stfs-info list "$url"
  variables+=(SSL_CERT_FILE=/ca.pem)
  cp "$NGINX_CA" "$rootfs/ca.pem"
  expect 0 "$tensor" stfs-info list "$url"
  variables=(STFS_CACHE=/var/cache/stfs2)
  for place in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    mkdir -p "$rootfs${place%/*}"
    cp "$NGINX_CA" "$rootfs$place"
    expect 0 "$tensor" stfs-info list "$url"
    expect 0 '' stfs "$url" /mnt
    same_as_source 'the mount over TLS'
    expect 0 '' stfs -u /mnt
    rm "$rootfs$place"
  done

  if [[ -f $fake_driver ]]; then
    make_root on_device python3  # python3-minimal has neither ctypes nor json
    tar -C "$rootfs/opt/stfs" --strip-components=1 -xzf "${tarball[0]}"
    cp "$fake_driver" "$rootfs/libcuda.so.1"
    variables=(STFS_GPU_DRIVER=/libcuda.so.1 STFS_FAKE_CUDA_SPACE="packages_test.$$.$release")
    in_root /opt/stfs/share/stfs/on_device --small --output /on_device.json >"$work/on_device" 2>&1 ||
      { cat "$work/on_device" >&2; fail "$release: on_device has failed"; }
  else
    printf '== %s: on_device: skipped: there is no fake driver (scripts/package carried makes it)\n' "$release"
  fi
done

try_container  # of Debian 12
if ((${#deb[@]} == 1)); then
  make_root deb
  cp "${deb[0]}" "$rootfs/stfs.deb"
  cp -L /etc/resolv.conf "$rootfs/etc/resolv.conf"
  { in_root apt-get update && in_root DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends /stfs.deb; } >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; fail "the .deb cannot be installed"; }
  expect 0 $'\nbuilt with GCC 12' stfs --version
  expect 0 '' stfs /model.safetensors /mnt
  same_as_source 'the mount'
  expect 0 '' stfs -u /mnt
  # Another user mounts through fusermount3.
  chown 65534:65534 "$rootfs/mnt"
  ln -s ../proc/self/mounts "$rootfs/etc/mtab"  # an init makes it
  expect 0 '' setpriv --reuid 65534 --regid 65534 --clear-groups stfs /model.safetensors /mnt
  expect 0 259248 setpriv --reuid 65534 --regid 65534 --clear-groups stat -c %s /mnt/tokens
  expect 0 '' setpriv --reuid 65534 --regid 65534 --clear-groups stfs -u /mnt
fi
printf 'packages_test: passed\n'
