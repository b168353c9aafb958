# SPDX-License-Identifier: Apache-2.0
"""Codecs of FSDP2's parameters and gradients: their names, and the sum of what the codecs of
several units have done."""

import os

import torch

from . import _capi as c
from .announce import announce

# The kind and the flags of each codec, by the codec's name.
_GATHERS = {
    'delta': (c.CODEC_DELTA, 0),
    'delta-always': (c.CODEC_DELTA, c.CODEC_NEVER_DECLINES),
    'delta-nibbles': (c.CODEC_DELTA, c.CODEC_NEVER_DECLINES | c.CODEC_NIBBLES_ONLY),
    'delta-fewest-bytes': (c.CODEC_DELTA, c.CODEC_NEVER_DECLINES | c.CODEC_FEWEST_BYTES),
    'fp8': (c.CODEC_FP8, 0),
    'int8': (c.CODEC_INT8, 0),
    'mxfp8': (c.CODEC_MXFP8, 0),
}
_REDUCTIONS = {
    'bf16': (c.CODEC_BF16, 0),
    'bf16-feedback': (c.CODEC_BF16, c.CODEC_ERROR_FEEDBACK),
    'int8': (c.CODEC_INT8, 0),
    'int8-feedback': (c.CODEC_INT8, c.CODEC_ERROR_FEEDBACK),
    'int4': (c.CODEC_INT4, 0),
    'int4-feedback': (c.CODEC_INT4, c.CODEC_ERROR_FEEDBACK),
}
# With this behind its name a codec with a loss codes on one host, too (FSCCL_CODEC_EVERYWHERE).
_EVERYWHERE = '-everywhere'
# The delta codec takes these types. The others take fp32 as well.
_WORDS = (torch.bfloat16, torch.float16)
_FLOATS = (*_WORDS, torch.float32)


def known_gather(name):
    """Returns the name of a codec of gathers, by default that of the environment, or None.
    ValueError names the codecs that exist."""
    return _known(name, 'gather_codec', 'FSCCL_TORCH_GATHER_CODEC', _GATHERS)


def known_reduction(name):
    """Returns the name of a codec of reductions, by default that of the environment, or None.
    ValueError names the codecs that exist."""
    return _known(name, 'reduce_codec', 'FSCCL_TORCH_REDUCE_CODEC', _REDUCTIONS)


def _known(name, source, variable, codecs):
    if name in (None, ''):
        name, source = os.environ.get(variable), variable
    if name in (None, '', 'none'):
        return None
    if not isinstance(name, str) or name.removesuffix(_EVERYWHERE) not in codecs:
        raise ValueError(
            f'{source}={name!r} is not a codec: give {", ".join(map(repr, codecs))} or "none"; '
            f'"{_EVERYWHERE}" behind the name codes inside hosts, too'
        )
    return name


def _codec(name, codecs):
    kind, flags = codecs[name.removesuffix(_EVERYWHERE)]
    everywhere = name.endswith(_EVERYWHERE)
    scope = c.CODEC_EVERYWHERE if everywhere else c.CODEC_BETWEEN_HOSTS
    return c.Codec(kind=kind, flags=flags, scope=scope)


def gather_codec(name, dtype, on_gpu):
    """Returns the fsccl_codec_t of a unit whose parameters travel as `dtype`, or None where the
    unit has no codec."""
    if name is None:
        return None
    codec = _codec(name, _GATHERS)
    takes = _WORDS if codec.kind == c.CODEC_DELTA else _FLOATS
    if dtype not in takes:
        advice = ': give MixedPrecisionPolicy(param_dtype=torch.bfloat16)'
        announce(
            f'the codec {name!r} is not used for parameters that are gathered as {dtype}, because it '
            f'takes {_listed(takes)}{advice if dtype.is_floating_point else ""}'
        )
        return None
    if codec.kind == c.CODEC_DELTA and on_gpu:
        announce(
            f"the codec {name!r} is not used for gathers on GPUs: give 'int8', 'fp8' or 'mxfp8'"
        )
        return None
    return codec


def reduce_codec(name, dtype, sum_dtype):
    """Returns the fsccl_codec_t of a unit whose gradients of `dtype` are summed in `sum_dtype`, or
    None where the unit has no codec."""
    if name is None:
        return None
    if dtype not in _FLOATS or sum_dtype not in _FLOATS:
        announce(
            f'the codec {name!r} is not used for gradients of {dtype} that are summed as '
            f'{sum_dtype}, because it takes {_listed(_FLOATS)}'
        )
        return None
    return _codec(name, _REDUCTIONS)


def _listed(dtypes):
    return ', '.join(map(str, dtypes))


def add_up(reports):
    """Returns a dict of what the codecs of several units have done: the sums of the numbers named
    below, and the largest max_error and bound."""
    names = (
        'gathers',
        'coded',
        'plain',
        'declined',
        'declines',
        'mended',
        'plain_us',
        'coded_us',
        'plain_bytes',
        'sent_bytes',
        'blocks',
        'exact_blocks',
        'audited_blocks',
        'beyond_bound',
        'reductions',
        'reduce_plain_bytes',
        'reduce_sent_bytes',
    )
    there = [report for report in reports if report is not None]
    sums = {name: sum(getattr(report, name) for report in there) for name in names}
    largest = {
        name: max((getattr(report, name) for report in there), default=0.0)
        for name in ('max_error', 'bound')
    }
    return {**sums, **largest}
