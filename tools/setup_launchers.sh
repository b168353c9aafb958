#!/usr/bin/env bash
# Installs the launchers that tests/launchers runs: Open MPI, MPICH and Slurm from the system, and
# Open MPI 5 with PRRTE from a wheel into build-launchers/. This file is sourced after
# tools/setup.sh. A launcher that cannot be installed is named, and its tests are skipped.

# shellcheck disable=SC2154 # root is setup.sh's
launcher_folder=$root/build-launchers

# Slurm's plugin for PMIx loads libpmix.so by the name that only libpmix-dev has.
needed_launcher_packages() {
  cat <<'END'
openmpi-bin have mpirun.openmpi
mpich have mpiexec.mpich
munge have munged
slurmctld have slurmctld
slurmd have slurmd
slurm-client have srun && have sinfo
libpmix-dev ls /usr/lib/*/pmix2/lib/libpmix.so >/dev/null 2>&1
END
}

missing_launcher_packages() {
  local PATH=$PATH:/usr/sbin:/sbin package test # the PATH of some users lacks the folders of daemons
  while read -r package test; do
    eval "$test" || printf '%s ' "$package"
  done < <(needed_launcher_packages)
}

install_launcher_wheel() {
  local requirements=$root/tests/launchers/requirements.txt stamp log=$launcher_folder/install.log
  stamp="$launcher_folder $(cat "$requirements")"
  if [ "$(cat "$launcher_folder/.complete" 2>/dev/null)" = "$stamp" ]; then return; fi
  say "installing the packages of ${requirements#"$root"/} into build-launchers (log: ${log#"$root"/})"
  rm -rf "$launcher_folder"
  mkdir -p "$launcher_folder"
  { make_environment "$launcher_folder" &&
    "$launcher_folder/bin/python" -m pip install --disable-pip-version-check -r "$requirements"; } >"$log" 2>&1 || return 1
  printf '%s' "$stamp" >"$launcher_folder/.complete"
}

prepare_launchers() {
  local missing
  missing=$(missing_launcher_packages)
  # These run in their own processes, because a failure there ends the process.
  # shellcheck disable=SC2086
  [ -z "$missing" ] || (install_packages $missing) || say "not installed, and not tested: $missing"
  (install_launcher_wheel) || say "not installed, and not tested: Open MPI 5 and PRRTE (build-launchers/install.log says why)"
}
