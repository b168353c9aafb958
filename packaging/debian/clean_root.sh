#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages into a fresh Debian and uses them there. As root; needs debootstrap.
# usage: packaging/debian/clean_root.sh FOLDER_OF_PACKAGES [SUITE] [MIRROR]
set -euo pipefail

packages=$(cd "${1:?usage: clean_root.sh FOLDER_OF_PACKAGES [SUITE] [MIRROR]}" && pwd)
suite=${2:-bookworm} mirror=${3:-http://deb.debian.org/debian}
command -v debootstrap >/dev/null || { echo "clean_root.sh: debootstrap is missing: apt install debootstrap" >&2; exit 1; }
ls "$packages"/libfsccl0_*.deb "$packages"/libfsccl-dev_*.deb "$packages"/fsccl-tools_*.deb "$packages"/fsccl-jax_*.deb >/dev/null ||
  { echo "clean_root.sh: $packages lacks a package: build them as packaging/README.md says" >&2; exit 1; }

root=$(mktemp -d)
finish() {
  umount "$root/dev/shm" "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap finish EXIT
debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
rm -f "$root.log"
mkdir -p "$root/packages" "$root/dev/shm"
cp "$packages"/*fsccl*.deb "$root/packages"
rm -f "$root"/packages/*dbgsym*
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cat >"$root/try" <<'END'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get -q update
apt-get -q install -y --no-install-recommends /packages/*.deb gcc libc6-dev pkg-config
fsccl-info version
fsccl-perf collectives --ranks 2 --maxbytes 64K
printf '#include <fsccl/fsccl.h>\nint main(void) { int version; return fsccl_version(&version); }\n' >/program.c
gcc -std=c99 -o /program /program.c $(pkg-config --cflags --libs fsccl)
/program
apt-get -q purge -y libfsccl0 libfsccl-dev fsccl-tools fsccl-jax
left=$(find / -xdev -name '*fsccl*' -not -path '/packages/*' -not -path '/proc/*')
[ -z "$left" ] || { echo "purging left: $left"; exit 1; }
END
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C chroot "$root" bash /try
echo "clean_root.sh: installed, used and purged in a fresh $suite"
