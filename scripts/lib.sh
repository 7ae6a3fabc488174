# shellcheck shell=bash
# Shared by the scripts here: lists the Debian packages that stfs needs, and installs the missing ones. Scripts
# that run in bash source it; it only defines names.

# Packages needed to configure and build every preset except fuzz.
# shellcheck disable=SC2034  # used by the scripts that source this file
STFS_BUILD_PACKAGES=(
  g++ cmake ninja-build pkg-config libfuse3-dev fuse3 nlohmann-json3-dev libcli11-dev libssl-dev
  libcurl4-openssl-dev libpugixml-dev libxxhash-dev libre2-dev libzstd-dev zlib1g-dev libhwy-dev
  libgtest-dev
)
# Packages needed to run the tests: a fast linker, tools that read mounts, and tools that build and check the package.
# shellcheck disable=SC2034
STFS_TEST_PACKAGES=(
  mold attr python3 python3-numpy python3-pil perl-base tar findutils diffutils coreutils man-db
  dpkg-dev file e2fsprogs mount util-linux bash zsh python3-zstandard python3-xxhash openssl
)

# Packages needed to test against real servers, which `test --all` does.
# shellcheck disable=SC2034
STFS_SERVER_PACKAGES=(
  ceph-mon ceph-osd ceph-common radosgw nginx-light python3-boto3 curl openssl
)

# Packages needed to compare with the values of other programs, for `test --all`: PyTorch, mypy, file systems that
# share blocks, and the npm client, which gets ggml's library and Kubernetes' schemas.
# shellcheck disable=SC2034
STFS_ORACLE_PACKAGES=(python3-torch mypy xfsprogs btrfs-progs)
command -v npm >/dev/null || STFS_ORACLE_PACKAGES+=(npm)

# Packages needed to open the report's page in a browser, for `test --all`. npm gets puppeteer-core, which drives it.
# shellcheck disable=SC2034
STFS_BROWSER_PACKAGES=(chromium fonts-dejavu-core)
command -v node >/dev/null || STFS_BROWSER_PACKAGES+=(nodejs)

# Packages needed to make the carried build with `package`. Its compiler and libraries are downloaded in addition.
# shellcheck disable=SC2034
STFS_CARRY_PACKAGES=(binutils cmake ninja-build pkg-config dpkg-dev g++ debian-archive-keyring python3)

# Packages needed to build the asan preset.
# shellcheck disable=SC2034
STFS_CLANG_PACKAGES=(clang libclang-rt-dev)

# Packages needed for the report of `test --coverage`.
# shellcheck disable=SC2034
STFS_COVERAGE_PACKAGES=(gcovr)

# Packages needed to run `lint`.
# shellcheck disable=SC2034
STFS_LINT_PACKAGES=(clang clang-format clang-tidy cppcheck findutils coreutils python3)

# Packages needed to run the benchmarks: other tools, and the interpreter of bench.py.
# shellcheck disable=SC2034
STFS_BENCH_PACKAGES=(
  python3 python3-numpy python3-zstandard python3-xxhash squashfuse squashfs-tools e2fsprogs mount findutils coreutils nginx-light
  curl rclone xfsprogs
)

# die STATUS MESSAGE: prints one line to standard error and exits.
die() {
  printf '%s: %s\n' "${0##*/}" "$2" >&2
  exit "$1"
}

# install_packages NAME...: installs missing packages. Does not run apt-get if none is missing.
install_packages() {
  local package missing=() as_root=()
  if ! command -v dpkg-query >/dev/null; then
    printf '%s: not a Debian system; these packages (or their like) are needed: %s\n' \
      "${0##*/}" "$*" >&2
    return
  fi
  for package in "$@"; do
    # dpkg-query prints one line per architecture of the package.
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
