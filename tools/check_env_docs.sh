#!/bin/sh
# Fails if docs/env.md differs from what the library says of itself. Usage: check_env_docs.sh
# <fsccl-info> <docs/env.md>
set -eu
# The page has only defaults, so a setting that is not accepted must not change it.
if ! FSCCL_TIMEOUT_MS=never "$1" config --markdown | diff -u "$2" -; then
  echo "docs/env.md is out of date; write it anew: $1 config --markdown > docs/env.md" >&2
  exit 1
fi
