#!/bin/sh
# Downloads the package of RMM and builds FOLDER/librmm_peer.so for `fsccl-perf pool --rmm`. usage:
# build.sh FOLDER. It needs pip, g++ and the headers of the CUDA toolkit (in $CUDA_HOME, or else
# /usr/local/cuda), but no device and no driver.
set -e
[ -n "$1" ] || { echo "usage: build.sh FOLDER" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
[ -f "$cuda/include/cuda_runtime_api.h" ] || { echo "build.sh: no headers of the CUDA toolkit in $cuda" >&2; exit 1; }
mkdir -p "$1"
cd "$1"
python3 -m pip download --quiet --no-deps --dest wheels librmm-cu13==26.10.0 rapids-logger==0.3.0
for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" .; done
${CXX:-g++} -std=c++20 -O2 -fPIC -shared -Wl,-z,defs -Ilibrmm/include -Ilibrmm/include/rapids -Irapids_logger/include \
  -isystem "$cuda/include" "$here/peer.cpp" -o librmm_peer.so -Llibrmm/lib64 -Lrapids_logger/lib64 -lrmm -lrapids_logger \
  "-Wl,-rpath,\$ORIGIN/librmm/lib64:\$ORIGIN/rapids_logger/lib64"
echo "$PWD/librmm_peer.so"
