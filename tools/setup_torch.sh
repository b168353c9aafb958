#!/usr/bin/env bash
# Makes the virtual environments of the tests of fsccl_torch in build-torch/. `base` has torch, the
# others add one framework to it, and 2.11.0 has that version of torch, without the libraries of
# CUDA. This file is sourced after tools/setup.sh. The Python of the system is not changed.
# Environments that are complete are used again.

# shellcheck disable=SC2154 # setup.sh, sourced before, sets root
torch_folder=$root/build-torch

# Prints a Python for torch, which needs 3.11 or newer. Ubuntu 22.04 calls an older one python3.
torch_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11; do
    if have "$name" && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      printf '%s' "$name"
      return
    fi
  done
  printf 'python3.11'
}

# Succeeds if a Python has venv, and the header that compiled code of torch.compile includes.
has_python_parts() {
  have "$1" && "$1" -c 'import ensurepip, os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}

# install_environment NAME REQUIREMENTS PYTHON makes an environment with all that REQUIREMENTS
# lists. Packages that `base` has are not installed again.
install_environment() {
  local folder=$torch_folder/$1 requirements=$2 python=$3 stamp
  stamp="$folder $("$python" --version) $(cat "$requirements")"
  if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$stamp" ]; then return; fi
  say "installing the packages of ${requirements#"$root"/} into build-torch/$1 (log: build-torch/$1.log)"
  rm -rf "$folder"
  "$python" -m venv "$folder" || return 1
  if [ "$1" != base ]; then
    echo "$torch_folder"/base/lib/python3*/site-packages >"$(echo "$folder"/lib/python3*/site-packages)/base.pth"
  fi
  "$folder/bin/python" -m pip install --disable-pip-version-check -r "$requirements" >"$folder.log" 2>&1 || return 1
  printf '%s' "$stamp" >"$folder/.complete"
}

# install_fsccl_torch installs the package of the tree into `base`, with the library of the tree's
# own build.
install_fsccl_torch() {
  FSCCL_TORCH_LIBRARY=$root/build/libfsccl.so "$torch_folder/base/bin/python" -m pip install --disable-pip-version-check \
    --no-deps --no-build-isolation --force-reinstall "$root/bindings/torch" >>"$torch_folder/base.log" 2>&1
}

# install_older VERSION PYTHON makes the environment of an older torch, for tests/torch/matrix.py.
install_older() {
  local folder=$torch_folder/$1 python=$2 stamp
  stamp="$folder $("$python" --version) $(cat "$root/tests/torch/requirements.txt" "$root/tests/torch/matrix.py")"
  if [ "$(cat "$folder/.complete" 2>/dev/null)" = "$stamp" ]; then return; fi
  say "installing torch $1 into build-torch/$1 (log: build-torch/$1.log)"
  "$python" "$root/tests/torch/matrix.py" --make "$1" "$folder" && printf '%s' "$stamp" >"$folder/.complete"
}

# prepare_torch [ENVIRONMENT ...] makes `base` and these environments: frameworks, and versions of
# torch. It prints what failed, and the tests that need what is missing fail.
prepare_torch() {
  local python name
  python=$(torch_python)
  has_python_parts "$python" || install_packages "$python" "$python-venv" "$python-dev"
  mkdir -p "$torch_folder"
  if ! install_environment base "$root/tests/torch/requirements.txt" "$python" || ! install_fsccl_torch; then
    say "the environment of the tests of fsccl_torch is not complete:"
    tail -n 3 "$torch_folder/base.log"
    return
  fi
  for name in "$@"; do
    if [[ $name = [0-9]* ]]; then
      install_older "$name" "$python" || say "the tests with torch $name will make its environment themselves, or fail"
      continue
    fi
    install_environment "$name" "$root/tests/torch/systems/$name.txt" "$python" ||
      { say "$name could not be installed:" && tail -n 3 "$torch_folder/$name.log"; }
  done
}
