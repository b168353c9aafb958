#!/usr/bin/env bash
# Runs libFuzzer on every target, with the address and undefined-behaviour sanitizers.
# usage: tests/fuzz/run.sh [SECONDS each [TARGET ...]]
# Each target begins with its seeds. New inputs stay in build-fuzz/corpus. Inputs that break
# something are named at the end, and should become seeds.
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/setup.sh"
seconds=${1:-60}
targets=("${@:2}")
[ $# -gt 1 ] || targets=(wire tcp mirror plugin settings files trace codec redistribute tables calls)
folder=$root/build-fuzz
prepare_machine
# The run-time libraries of the sanitizers are packages of their own.
echo 'int main() {}' | clang++ -fsanitize=address -x c++ - -o /dev/null 2>/dev/null ||
  install_packages clang libclang-rt-dev
if [ ! -f "$folder/build.ninja" ]; then
  mkdir -p "$folder"
  CC=clang CXX=clang++ meson setup "$folder" "$root" -Dfuzz=true -Dcuda=disabled -Dbuildtype=debugoptimized \
    -Db_sanitize=address,undefined -Db_lundef=false -Dwerror=false -Dcpp_args=-fsanitize=fuzzer-no-link >"$folder/setup.log" ||
    { cat "$folder/setup.log"; exit 1; }
fi
programs=()
for target in "${targets[@]}"; do programs+=("tests/fuzz/fuzz_$target" "tests/fuzz/seeds_$target"); done
ninja -C "$folder" "${programs[@]}" >"$folder/build.log" || { cat "$folder/build.log"; exit 1; }

# fuzz TARGET: its log is build-fuzz/TARGET.log.
fuzz() {
  local corpus=$folder/corpus/$1
  mkdir -p "$corpus"
  "$folder/tests/fuzz/seeds_$1" --seeds "$corpus" || return 1
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$folder/tests/fuzz/fuzz_$1" -max_total_time="$seconds" -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$folder/broken-$1-" "$corpus" >"$folder/$1.log" 2>&1
}

status=0
for target in "${targets[@]}"; do
  if fuzz "$target"; then
    printf '%-10s %s\n' "$target" "$(grep -E '^#[0-9]+\s+DONE' "$folder/$target.log")"
  else
    printf '%-10s FAILED\n' "$target"
    tail -n 40 "$folder/$target.log"
    status=1
  fi
done
exit $status
