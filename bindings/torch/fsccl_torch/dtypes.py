# SPDX-License-Identifier: Apache-2.0
"""Translates torch's dtypes and reduction operators to FSCCL's.

A dtype is moved as (code, elements): a complex number is two reals, and an fp8 format that FSCCL
does not know is bytes. FSCCL does not have all reductions: bitwise operators on integers and
arithmetic on fp8 are missing. For these FSCCL gathers the contributions, and torch reduces them in
rank order, which is FSCCL's order; `combine` is the function that does it.
"""

import functools
from typing import NamedTuple

import torch
from torch.distributed import ReduceOp

from . import _capi as c

_Kind = ReduceOp.RedOpType


class _Moved(dict):
    def __missing__(self, dtype):
        raise TypeError(
            f'{dtype} cannot be sent: cast or view it as one of '
            f'{", ".join(str(known) for known in self)}'
        )


MOVED = _Moved(
    {
        torch.float32: (c.FLOAT32, 1),
        torch.bfloat16: (c.BFLOAT16, 1),
        torch.float16: (c.FLOAT16, 1),
        torch.float64: (c.FLOAT64, 1),
        torch.int64: (c.INT64, 1),
        torch.int32: (c.INT32, 1),
        torch.int16: (c.INT16, 1),
        torch.int8: (c.INT8, 1),
        torch.uint8: (c.UINT8, 1),
        torch.uint16: (c.UINT16, 1),
        torch.uint32: (c.UINT32, 1),
        torch.uint64: (c.UINT64, 1),
        torch.bool: (c.BOOL, 1),
        torch.float8_e4m3fn: (c.FLOAT8_E4M3, 1),
        torch.float8_e5m2: (c.FLOAT8_E5M2, 1),
        torch.complex32: (c.FLOAT16, 2),
        torch.complex64: (c.FLOAT32, 2),
        torch.complex128: (c.FLOAT64, 2),
    }
)
for _name in ('float8_e4m3fnuz', 'float8_e5m2fnuz', 'float8_e8m0fnu', 'float4_e2m1fn_x2'):
    if hasattr(torch, _name):
        MOVED[getattr(torch, _name)] = (c.UINT8, 1)

# These types can have gradients.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

_KINDS = {
    _Kind.SUM: c.OP_SUM,
    _Kind.AVG: c.OP_AVG,
    _Kind.MIN: c.OP_MIN,
    _Kind.MAX: c.OP_MAX,
    _Kind.PRODUCT: c.OP_PROD,
    _Kind.PREMUL_SUM: c.OP_PREMUL_SUM,
}
_LOGICAL = {_Kind.BAND: c.OP_MIN, _Kind.BOR: c.OP_MAX}  # these serve for booleans
_BITWISE = {
    _Kind.BAND: torch.bitwise_and,
    _Kind.BOR: torch.bitwise_or,
    _Kind.BXOR: torch.bitwise_xor,
}
_ARITHMETIC = {
    _Kind.SUM: torch.add,
    _Kind.AVG: torch.add,
    _Kind.PREMUL_SUM: torch.add,
    _Kind.MIN: torch.minimum,
    _Kind.MAX: torch.maximum,
    _Kind.PRODUCT: torch.mul,
}


class Reduction(NamedTuple):
    code: int  # FSCCL's number of the dtype
    per: int  # FSCCL's elements for one of torch
    op: c.Op
    combine: object = None  # makes the result of the rows of contributions, which FSCCL only moves


def reduction(reduce_op, dtype):
    """Returns how `dtype` is reduced with `reduce_op`. Raises TypeError if it cannot be."""
    kind = reduce_op.op
    if kind == _Kind.PREMUL_SUM:
        # The factor has no name before torch 2.14.
        return _with_factor(dtype, float(reduce_op.__getstate__()[1]))
    return _reduction(kind, dtype)


def _with_factor(dtype, factor):
    if not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(
            f'PREMUL_SUM is for floating point, not {dtype}: use SUM and multiply, or cast'
        )
    known = _reduction(_Kind.PREMUL_SUM, dtype)
    combine = known.combine and functools.partial(known.combine, factor=factor)
    return known._replace(op=c.Op(c.OP_PREMUL_SUM, 0, factor), combine=combine)


@functools.cache
def _reduction(kind, dtype):
    code, per = MOVED[dtype]
    name = f'ReduceOp.{kind.name}'
    if dtype.is_complex and kind not in (_Kind.SUM, _Kind.AVG, _Kind.PREMUL_SUM):
        raise TypeError(f'{name} is not defined for {dtype}')
    if dtype is torch.bool and kind == _Kind.AVG:
        raise TypeError(f'{name} is not defined for {dtype}: use BAND or BOR, or cast')
    if dtype is getattr(torch, 'float4_e2m1fn_x2', None):
        raise TypeError(
            f'{name} is not defined for {dtype}, whose numbers torch cannot convert: reduce the '
            f'numbers before they are packed'
        )
    if dtype is torch.bool and kind in _LOGICAL:
        return Reduction(code, per, c.Op(_LOGICAL[kind], 0, 1.0))
    if kind in _BITWISE:
        if dtype.is_floating_point or dtype.is_complex:
            raise TypeError(f'{name} is for integers and bool, not {dtype}')
        return Reduction(code, per, None, functools.partial(_combine_bitwise, _BITWISE[kind]))
    if kind not in _KINDS:
        raise TypeError(f'{name} is not known to FSCCL')
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return Reduction(code, per, None, functools.partial(_combine_wide, kind))
    return Reduction(code, per, c.Op(_KINDS[kind], 0, 1.0))


def _combine_bitwise(combine, rows):
    return functools.reduce(combine, rows.unbind(0))


def _combine_wide(kind, rows, factor=1.0):
    """Combines fp8 contributions in fp32, and rounds once."""
    wide = rows.to(torch.float32)
    if factor != 1.0:
        wide *= factor
    combined = functools.reduce(_ARITHMETIC[kind], wide.unbind(0))
    if kind == _Kind.AVG:
        combined = combined / rows.size(0)
    return combined.to(rows.dtype)
