#!/bin/sh
# Compares FSCCL, Open MPI, Gloo and ucx_perftest over one link between two hosts, which are network
# namespaces (netns.py has the options).
exec python3 "$(dirname "$0")/netns.py" "$@"
