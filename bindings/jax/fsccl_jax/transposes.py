# SPDX-License-Identifier: Apache-2.0
"""The calls of XLA's FFI, and their transposes. Backward runs the transposed collectives in reverse
order, after all of forward.

A token is an array of two numbers. The first is the mark of its group, which every call checks. The
second is the number of the call that returned the token. It grows in a program, and is 0 in the
first token. Backward's tokens are cotangents of forward's. The first cotangent knows nothing of
forward. Therefore each transposed call takes the later of two tokens, which is the larger in both
numbers: its cotangent, and the token that the call returned in forward.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .place import place

TARGET = 'fsccl_jax_collective'
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, ALL_TO_ALL = range(5)


def _shape(kind, leaf, ranks, counts):
    if kind == ALL_GATHER:
        return (sum(counts) if counts else leaf.shape[0] * ranks, *leaf.shape[1:])
    if kind == REDUCE_SCATTER:
        return (max(counts) if counts else leaf.shape[0] // ranks, *leaf.shape[1:])
    return leaf.shape


def _counts(kind, leaf, ranks, counts):
    """Returns the number of elements of each rank's part."""
    if kind == BROADCAST:
        return [leaf.size] * ranks
    if kind in (ALL_GATHER, REDUCE_SCATTER) and counts:
        return [count * int(np.prod(leaf.shape[1:])) for count in counts]
    return [leaf.size if kind == ALL_GATHER else leaf.size // ranks] * ranks


def call(kind, group, site, counts, leaves, token, root=0):
    """Runs one collective of all leaves. Returns their results and the next token."""
    results = [
        jax.ShapeDtypeStruct(_shape(kind, leaf, group.ranks, counts), leaf.dtype) for leaf in leaves
    ]
    # The token and what is broadcast keep their memory.
    kept = range(len(leaves)) if kind == BROADCAST else ()
    run = jax.ffi.ffi_call(
        TARGET,
        (*results, jax.ShapeDtypeStruct(token.shape, token.dtype)),
        has_side_effect=True,
        input_output_aliases={**{index: index for index in kept}, len(leaves) + 1: len(leaves)},
    )
    group.announce(site)
    numbers = np.asarray(
        [_counts(kind, leaf, group.ranks, counts) for leaf in leaves], np.int64
    ).reshape(-1)
    *values, token = run(
        *leaves,
        place(group.mesh),
        token,
        kind=np.int64(kind),
        group=np.int64(group.number),
        site=site,
        counts=numbers,
        root=np.int64(root),
    )
    if kind == REDUCE_SCATTER and counts:
        values = [_without_rest(value, counts, place(group.mesh)) for value in values]
    return tuple(values), token


def _without_rest(value, counts, own_place):
    """Sets the rows beyond this rank's own to zero."""
    own = jnp.asarray(counts)[own_place]
    rows = jnp.arange(value.shape[0]).reshape(-1, *[1] * (value.ndim - 1))
    return jnp.where(rows < own, value, jnp.zeros((), value.dtype))


def _back(kind, group, site, counts, cotangents, token, root=0):
    """Runs the transposed collective of the cotangents that exist. Integers have empty
    cotangents."""
    present = [index for index, leaf in enumerate(cotangents) if leaf.dtype != jax.dtypes.float0]
    if kind in (REDUCE_SCATTER, ALL_REDUCE):
        for index in present:
            if cotangents[index].dtype.itemsize == 1:
                raise TypeError(
                    f'fsccl_jax: the gradient of "{site}" is of {cotangents[index].dtype}: 8-bit '
                    f'floats are not '
                    'reduced. Gather them under jax.lax.stop_gradient, or cast before the gather'
                )
    results = [None] * len(cotangents)
    if present:
        values, token = call(
            kind,
            group,
            site + ' (transposed)',
            counts,
            [cotangents[index] for index in present],
            token,
            root,
        )
        for index, value in zip(present, values):
            results[index] = value
    return tuple(results), token


def _linear(forward, backward):
    """Makes a collective with its transpose."""

    @partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
    def function(group, site, counts, leaves, token):
        return call(forward, group, site, counts, leaves, token)

    def run(group, site, counts, leaves, token):
        results, token = call(forward, group, site, counts, leaves, token)
        return (results, token), token

    def transpose(group, site, counts, token, cotangents):
        return _back(
            backward, group, site, counts, cotangents[0], jnp.maximum(token, cotangents[1])
        )

    function.defvjp(run, transpose)
    return function


gathered = _linear(ALL_GATHER, REDUCE_SCATTER)
scattered = _linear(REDUCE_SCATTER, ALL_GATHER)
reduced = _linear(ALL_REDUCE, ALL_REDUCE)
permuted = _linear(ALL_TO_ALL, ALL_TO_ALL)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def sent(root, group, site, counts, leaves, token):
    """Broadcasts. The transpose is the sum at root."""
    return call(BROADCAST, group, site, counts, leaves, token, root)


def _sent_forward(root, group, site, counts, leaves, token):
    results, token = call(BROADCAST, group, site, counts, leaves, token, root)
    return (results, token), token


def _sent_transpose(root, group, site, counts, token, cotangents):
    sums, after = _back(
        ALL_REDUCE, group, site, counts, cotangents[0], jnp.maximum(token, cotangents[1])
    )
    is_root = place(group.mesh) == root
    return tuple(
        None if leaf is None else jnp.where(is_root, leaf, jnp.zeros_like(leaf)) for leaf in sums
    ), after


sent.defvjp(_sent_forward, _sent_transpose)
