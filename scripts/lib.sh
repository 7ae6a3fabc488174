# shellcheck shell=bash
# Shared by the scripts here: which Debian packages stfs needs, and how to install those that are
# missing. Sourced by bash; defines names and does nothing else.

# What it takes to configure and build every preset but fuzz.
# shellcheck disable=SC2034  # used by the scripts that source this file
STFS_BUILD_PACKAGES=(
  g++ cmake ninja-build pkg-config libfuse3-dev fuse3 nlohmann-json3-dev libcli11-dev libssl-dev
  libgtest-dev
)
# What the tests run besides: the tools that read the mounts, and those that build and check the
# package.
# shellcheck disable=SC2034
STFS_TEST_PACKAGES=(
  attr python3 python3-numpy perl-base tar findutils diffutils coreutils man-db
  dpkg-dev file e2fsprogs mount util-linux
)

# What the fuzz preset is built with.
# shellcheck disable=SC2034
STFS_FUZZ_PACKAGES=(clang libclang-rt-dev)

# What makes the report of `test --coverage`.
# shellcheck disable=SC2034
STFS_COVERAGE_PACKAGES=(gcovr)

# What looks for defects in the sources.
# shellcheck disable=SC2034
STFS_LINT_PACKAGES=(clang-tidy cppcheck findutils coreutils)

# What the benchmarks run besides: peers, and the interpreter that runs them all.
# shellcheck disable=SC2034
STFS_BENCH_PACKAGES=(python3 python3-numpy squashfuse squashfs-tools e2fsprogs mount findutils coreutils)

# die STATUS MESSAGE: one line on standard error, then the end.
die() {
  printf '%s: %s\n' "${0##*/}" "$2" >&2
  exit "$1"
}

# Installs the packages named that are not installed. Asks apt for nothing when none is missing.
install_packages() {
  local package missing=() as_root=()
  if ! command -v dpkg-query >/dev/null; then
    printf '%s: not a Debian system; these packages (or their like) are needed: %s\n' \
      "${0##*/}" "$*" >&2
    return
  fi
  for package in "$@"; do
    # One line for each architecture that dpkg knows the package in.
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die 1 "packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  command -v apt-get >/dev/null || die 1 "packages are missing and there is no apt-get: ${missing[*]}"
  printf '== installing %s\n' "${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die 1 'apt-get update failed'
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
    die 1 "apt-get could not install: ${missing[*]}"
}
