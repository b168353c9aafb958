#!/usr/bin/env python3
"""Writes a C++ source that holds the image of the kernels (image.h): embed.py OUTPUT ARCHITECTURES
[IMAGE]"""

import sys

output, architectures, *images = sys.argv[1:]
data = open(images[0], 'rb').read() if images else b''
lines = ['#include "kernels/cuda/image.h"', 'namespace fsccl::cuda {']
if data:
    lines += ['namespace {', 'alignas(16) constexpr unsigned char kImageBytes[] = {']
    lines += [','.join(map(str, data[at : at + 64])) + ',' for at in range(0, len(data), 64)]
    lines += ['};', '}']
lines += [
    f'const KernelImage kKernelImage = '
    f'{{{"kImageBytes" if data else "nullptr"}, {len(data)}, "{architectures}"}};',
    '}',
]
with open(output, 'w', encoding='utf-8') as file:
    file.write('\n'.join(lines) + '\n')
