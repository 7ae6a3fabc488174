#!/usr/bin/env bash
# carried_test.sh TARBALL ROOTS MIRROR: the carried build works in clean chroots of Debian 11 and 12,
# where nothing is installed: it mounts, serves a mount that was handed over, reads, fetches over
# TLS. As root, with /dev/fuse. ROOTS keeps the chroots' archives. scripts/package --test runs it.
set -euo pipefail

tarball=${1:?usage: carried_test.sh TARBALL ROOTS MIRROR}
roots=${2:?}
mirror=${3:?}
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() {
  printf 'carried_test: %s\n' "$1" >&2
  exit 1
}
((EUID == 0)) || fail 'only root may make a chroot'
[[ -c /dev/fuse ]] || fail 'there is no /dev/fuse'
[[ -f $tarball ]] || fail "$tarball is missing: make it with scripts/package carried"
# All mounts made here end with the namespace.
if [[ ${STFS_CARRIED_TEST:-} != inside ]]; then
  STFS_CARRIED_TEST=inside exec unshare --mount --propagation private -- "${BASH_SOURCE[0]}" "$@"
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
  chroot "$rootfs" /usr/bin/env -i PATH=/opt/stfs/bin:/usr/bin:/bin "${variables[@]}" "$@"
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

for release in bullseye bookworm; do
  printf '== %s\n' "$release"
  archive=$roots/$release.tar
  if [[ ! -f $archive ]]; then
    mkdir -p "$roots"
    mmdebstrap --quiet --variant=minbase "$release" "$archive.part" "deb $mirror $release main"
    mv "$archive.part" "$archive"
  fi
  rootfs=$work/$release
  variables=()
  mkdir "$rootfs"
  tar -C "$rootfs" --exclude='./dev/*' -xf "$archive"
  mkdir -p "$rootfs/opt/stfs" "$rootfs/proc" "$rootfs/dev" "$rootfs/mnt"
  tar -C "$rootfs/opt/stfs" --strip-components=1 -xzf "$tarball"
  touch "$rootfs"/dev/{null,fuse,urandom}
  for device in null fuse urandom; do mount --bind "/dev/$device" "$rootfs/dev/$device"; done
  mount -t proc proc "$rootfs/proc"
  cp "$model" "$rootfs/model.safetensors"

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
  expect 0 "$tensor" stfs-gpu ls
  expect 0 '' stfs-gpu evict --all
  in_root stfs-gpu doctor >"$work/doctor" 2>&1 || true
  holder=$(sed -n 's/.*runs as process \([0-9]*\).*/\1/p' "$work/doctor")
  if [[ $holder ]]; then kill "$holder"; fi

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
done
printf 'carried_test: passed\n'
