#!/usr/bin/env bash
# Lets libFuzzer, with the address and undefined-behaviour sanitizers, at every target. usage: tests/fuzz/run.sh [SECONDS each]
# What it finds new stays in build-fuzz/corpus; an input that breaks something is named at the end, and belongs into a seed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-60}
folder=$root/build-fuzz
[ -f "$folder/build.ninja" ] || CC=clang CXX=clang++ meson setup "$folder" "$root" -Dfuzz=true -Dbuildtype=debugoptimized \
  -Db_sanitize=address,undefined -Db_lundef=false -Dwerror=false -Dcpp_args=-fsanitize=fuzzer-no-link >/dev/null
status=0
for target in wire settings files tables calls; do
  ninja -C "$folder" "tests/fuzz/fuzz_$target" >/dev/null
  mkdir -p "$folder/corpus/$target"
  "$folder/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$folder/broken-$target-" "$folder/corpus/$target" 2>&1 | tail -n 12 || status=1
done
exit $status
