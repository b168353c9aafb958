# SPDX-License-Identifier: Apache-2.0
"""How parameters of FSDP2's groups travel between hosts: the names of codecs, and what they add up
to."""

import torch

from . import _capi as c

# by name: kind and flags
_KINDS = {
    'delta': (c.CODEC_DELTA, 0),
    'delta-always': (c.CODEC_DELTA, c.CODEC_NEVER_DECLINES),
    'fp8': (c.CODEC_FP8, 0),
    'int8': (c.CODEC_INT8, 0),
    'mxfp8': (c.CODEC_MXFP8, 0),
}
# types that the delta codec takes; the others take fp32 as well
_WORDS = (torch.bfloat16, torch.float16)


def known(name):
    """The name of a codec, or None; ValueError names what there is."""
    if name in (None, '', 'none'):
        return None
    if name not in _KINDS:
        raise ValueError(
            f'gather_codec={name!r} is not a codec: give {", ".join(map(repr, _KINDS))} or None'
        )
    return name


def codec_for(name, dtype, on_gpu):
    """The fsccl_codec_t of a unit whose parameters travel as `dtype`; None where it has none."""
    if name is None or on_gpu:
        return None
    kind, flags = _KINDS[name]
    takes = _WORDS if kind == c.CODEC_DELTA else (*_WORDS, torch.float32)
    return c.Codec(kind=kind, flags=flags) if dtype in takes else None


def add_up(reports):
    """A dict of what several units' codecs have done: gathers, coded, plain, declined, mended,
    plain_bytes, sent_bytes, blocks, exact_blocks, audited_blocks, beyond_bound, and the largest
    max_error."""
    names = (
        'gathers',
        'coded',
        'plain',
        'declined',
        'mended',
        'plain_bytes',
        'sent_bytes',
        'blocks',
        'exact_blocks',
        'audited_blocks',
        'beyond_bound',
    )
    there = [report for report in reports if report is not None]
    sums = {name: sum(getattr(report, name) for report in there) for name in names}
    return {**sums, 'max_error': max((report.max_error for report in there), default=0.0)}
