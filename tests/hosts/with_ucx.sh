#!/usr/bin/env bash
# Runs the tests over UCX with another UCX than the system's: with_ucx.sh [VERSION] [BUILD-FOLDER]
# [option of meson test ...]. VERSION is a version of libucx-cu12 on PyPI, and 1.22.0 if none is
# given. It is kept in build-tools/.
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh"

version=${1:-1.22.0}
build=${2:-$root/build}
shift $(($# < 2 ? $# : 2))
folder=$tool_folder/ucx-$version
if [ ! -f "$folder/complete" ]; then
  rm -rf "$folder"
  make_environment "$folder"
  "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps "libucx-cu12==$version" ||
    fail "libucx-cu12 $version could not be installed"
  touch "$folder/complete"
fi
LD_LIBRARY_PATH=$(echo "$folder"/lib/python3*/site-packages/libucx/lib)
export LD_LIBRARY_PATH
say "with UCX $(python3 -c 'import ctypes
name = ctypes.CDLL("libucp.so.0").ucp_get_version_string
name.restype = ctypes.c_char_p
print(name().decode())'), from $LD_LIBRARY_PATH"
meson test -C "$build" --no-rebuild --print-errorlogs --suite ucx "$@"
