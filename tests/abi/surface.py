#!/usr/bin/env python3
"""Writes a C file with one pointer for each function of the public headers, so that the debugging
information of a library made of it has every public type and signature.
usage: surface.py OUTPUT HEADER...
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'tools/checks'))
from symbols import declared_functions

output, *headers = map(pathlib.Path, sys.argv[1:])
names = set()
for header in headers:
    names.update(declared_functions(header.read_text(encoding='utf-8')))
lines = [f'#include <fsccl/{header.name}>' for header in headers]
lines += [f'__typeof__({name})* const pointer_to_{name} = {name};' for name in sorted(names)]
# Tables that plug-ins fill are not an argument of any function.
lines += ['fsccl_transport_ops_t transport_ops;', 'fsccl_transport_request_t transport_request;']
output.write_text('\n'.join(lines) + '\n', encoding='utf-8')
