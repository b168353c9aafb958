#!/usr/bin/env bash
# The functions that tools/demo and tools/test share. This file is sourced, not run. It installs
# what a Debian or Ubuntu machine lacks, then configures and builds one tree. If nothing is missing
# and nothing has changed, neither the network nor the compiler is used. It sets the variables root
# (the repository) and jobs, among others.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=$(nproc)
tool_folder=$root/build-tools # has a Meson of its own if the system's is too old
install_folder=$root/build/install

say() { printf '%s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; } # succeeds for 1.0.1 1.0

has_header() { printf '#include <%s>\n' "$1" | c++ -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; }

# Prints a line for each package: its name, and a command that succeeds if the parts of the package
# that are needed exist.
needed_packages() {
  cat <<'END'
build-essential have c++ && have cc && have nm
g++ have g++
pkg-config have pkg-config
cmake have cmake
ninja-build have ninja
meson have meson || [ -x "$tool_folder/bin/meson" ]
python3 have python3
git have git
libfmt-dev pkg-config --exists fmt
libsodium-dev pkg-config --exists libsodium
libhwy-dev pkg-config --exists libhwy
libhwloc-dev pkg-config --exists hwloc
libucx-dev pkg-config --exists ucx
iproute2 have ip
libgtest-dev pkg-config --exists gtest_main
libgmock-dev pkg-config --exists gmock
libbenchmark-dev pkg-config --exists benchmark
abigail-tools have abidiff
libcli11-dev has_header CLI/CLI.hpp
nlohmann-json3-dev has_header nlohmann/json.hpp
END
}

missing_packages() {
  local package test
  while read -r package test; do
    eval "$test" || printf '%s ' "$package"
  done < <(needed_packages)
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else fail "installing packages needs root or sudo: $*"; fi
}

apt_install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"; }

install_packages() {
  have apt-get || fail "these are missing, and only apt-get is known here: $*. Install their like and run this again."
  say "installing: $*"
  if [ -z "$(find /var/lib/apt/lists -name '*_Packages*' -print -quit 2>/dev/null)" ]; then as_root apt-get -q update || true; fi
  # The second try has fresh lists, because old ones name versions that the archive no longer has.
  apt_install "$@" || { as_root apt-get -q update && apt_install "$@"; } || fail "apt-get could not install: $*"
}

# The library needs C++20 as g++ 12 knows it. Ubuntu 22.04 calls an older compiler g++.
choose_compiler() {
  local version
  [ -z "${CXX:-}" ] || return 0
  version=$(g++ -dumpversion)
  if at_least "$version" 12; then return; fi
  for version in 14 13 12; do
    if have "g++-$version"; then break; fi
  done
  have "g++-$version" || install_packages "g++-$version"
  export CC=gcc-$version CXX=g++-$version
}

# make_environment FOLDER makes a virtual environment of Python.
make_environment() {
  python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
  python3 -m venv "$1"
}

# Chooses Meson 1.0 or newer: that of the system or, if it is older, one in a virtual environment of
# the tree.
choose_meson() {
  PATH=$tool_folder/bin:$PATH
  if have meson && at_least "$(meson --version)" 1.0; then return; fi
  say "the system's Meson is older than 1.0: installing one into $tool_folder"
  { make_environment "$tool_folder" && "$tool_folder/bin/python" -m pip install --quiet 'meson>=1.0,<2'; } ||
    fail "pip could not install Meson 1.0 or newer"
}

# fetch FILE HASH ADDRESS ... reads a file from the first address that has it, unless it is there.
fetch() {
  local file=$1 hash=$2 address
  shift 2
  for address in '' "$@"; do
    if [ -n "$address" ]; then
      python3 -c 'import sys, urllib.request
try:
    content = urllib.request.urlopen(sys.argv[1], timeout=60).read()
except Exception as error:
    sys.exit(f"{sys.argv[1]}: {error}")
open(sys.argv[2], "wb").write(content)' "$address" "$file" || continue
    fi
    if printf '%s  %s\n' "$hash" "$file" | sha256sum --check --status 2>/dev/null; then return; fi
  done
  fail "${file##*/} (sha256 $hash) could not be fetched: put it into ${file%/*} and run this again"
}

# Chooses the headers of Highway 1.0 or newer: those of the system or, if they are older (Ubuntu
# 22.04), those of Debian's source archive.
choose_highway() {
  local version=1.0.3 folder=$tool_folder/highway
  local archive=$tool_folder/highway_$version.orig.tar.gz place=pool/main/h/highway
  local hash=566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e
  if pkg-config --atleast-version=1.0 libhwy; then return; fi
  export PKG_CONFIG_PATH=$folder/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  if pkg-config --atleast-version=1.0 libhwy; then return; fi
  say "the system's Highway is older than 1.0: unpacking $version into $folder"
  rm -rf "$folder"
  mkdir -p "$folder/lib/pkgconfig"
  fetch "$archive" "$hash" "http://deb.debian.org/debian/$place/${archive##*/}" \
    "https://snapshot.debian.org/archive/debian/20250901T000000Z/$place/${archive##*/}"
  tar -xzf "$archive" -C "$folder" --strip-components=1 "highway-$version/hwy" "highway-$version/LICENSE"
  cat >"$folder/lib/pkgconfig/libhwy.pc" <<END
Name: libhwy
Description: Highway
Version: $version
Cflags: "-I$folder"
END
  pkg-config --atleast-version=1.0 libhwy || fail "Highway $version could not be prepared in $folder"
}

prepare_machine() {
  local missing
  missing=$(missing_packages)
  # shellcheck disable=SC2086
  [ -z "$missing" ] || install_packages $missing
  missing=$(missing_packages)
  [ -z "$missing" ] || fail "still missing after the installation: $missing"
  choose_compiler
  choose_meson
  choose_highway
}

# configure_tree FOLDER [meson option ...] configures a tree once, and again if the options or the
# place of the tree have changed. A folder that it did not make is left as it is.
configure_tree() {
  local folder=$1 stamp log
  shift
  stamp="$root ${CXX:-c++} $*"
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/.configured" 2>/dev/null)" != "$stamp" ]; then
    [ -e "$folder/.configured" ] || [ -z "$(ls -A "$folder" 2>/dev/null)" ] ||
      fail "$folder was not made here, and would be replaced: move it away or remove it, and run this again"
    rm -rf "$folder"
    mkdir -p "$folder"
    : >"$folder/.configured"
    log=$folder/setup.log
    say "configuring ${folder#"$root"/} (log: ${log#"$root"/})"
    meson setup "$folder" "$root" --libdir=lib "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "meson setup failed"; }
    printf '%s' "$stamp" >"$folder/.configured"
  fi
}

# build_targets FOLDER [target ...] builds these targets, or everything.
build_targets() {
  local folder=$1 log=$1/build.log
  shift
  say "building ${folder#"$root"/} (log: ${log#"$root"/})"
  if ninja -C "$folder" -j "$jobs" "$@" >"$log" 2>&1; then return; fi
  grep -A 12 -m 1 FAILED "$log" >&2 || tail -n 20 "$log" >&2
  fail "the build failed"
}

build_tree() { # FOLDER [meson option ...]
  configure_tree "$@"
  build_targets "$1"
}

# Installs a Python for JAX, whose wheels need Python 3.11 or newer. Ubuntu 22.04 has one beside its
# own.
prepare_jax() {
  local version
  for version in python3 python3.13 python3.12 python3.11; do
    if have "$version" && "$version" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then return; fi
  done
  if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then install_packages python3-venv; return; fi
  install_packages python3.11 python3.11-venv
}

# Installs what tools/format needs to make an environment of Python for its tools.
prepare_format() {
  python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
}

configure_main_tree() {
  prepare_machine
  configure_tree "$root/build" "--prefix=$install_folder"
}

# Builds the tree that both commands use, or some targets of it, and installs what it has, or what
# has these tags of Meson.
build_main_tree() { # [--tags LIST] [target ...]
  local tags=()
  if [ "${1:-}" = --tags ]; then
    tags=(--tags "$2")
    shift 2
  fi
  configure_main_tree
  build_targets "$root/build" "$@"
  meson install -C "$root/build" --no-rebuild --only-changed --quiet "${tags[@]}" >"$root/build/install.log" 2>&1 ||
    { tail -n 20 "$root/build/install.log" >&2; fail "the installation into $install_folder failed"; }
}
