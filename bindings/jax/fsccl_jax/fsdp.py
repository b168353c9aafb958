# SPDX-License-Identifier: Apache-2.0
"""FSDP on FSCCL's own collectives. A layer's parameters are gathered in one call where they are
used, once in forward and once more in backward. Its gradients are reduced to the shards in one
call.

    # Outside of shard_map: global arrays, with a part on each device.
    shards, shapes = fsdp.shard(group, parameters)
    layer = fsdp.Layer(group, apply, shapes, "layer 0", wire="bfloat16")
    # Inside shard_map: y = apply(parameters, x).
    y, token = layer(parts, x, token)

Gradients are means over the ranks, in the dtype of the shards.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def shard(group, tree):
    """Returns (shards, shapes). Each array is made flat, padded to a multiple of the ranks and
    dealt out over all axes of the mesh. A Layer restores the arrays with `shapes`. Each process
    gives the same whole tree."""
    sharding = NamedSharding(group.mesh, PartitionSpec(group.mesh.axis_names))

    def deal(array):
        flat = _as_jax(array).reshape(-1)
        flat = np.pad(flat, (0, -flat.size % group.ranks))
        return jax.make_array_from_callback(flat.shape, sharding, lambda index: flat[index])

    return jax.tree.map(deal, tree), jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(np.shape(array), _as_jax(array).dtype), tree
    )


def _as_jax(value):
    """Returns an array, or a number, with the dtype that JAX gives it."""
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def spec(group):
    """Returns the PartitionSpec of shards, for shard_map."""
    return PartitionSpec(group.mesh.axis_names)


class Layer:
    """Calls apply(parameters, x) with whole parameters. `wire` is the dtype in which real
    floating-point parameters and their gradients travel and which apply() takes. Other parameters
    keep their dtype, and so do all with None. Integers have no gradients. With `keep`, backward
    uses the parameters of forward and does not gather them again."""

    def __init__(self, group, apply, shapes, site, wire=None, keep=False):
        self.group, self.apply, self.site = group, apply, site
        self.wire = None if wire is None else jnp.dtype(wire)
        if self.wire is not None and self.wire.itemsize == 1:
            raise TypeError(
                f'fsccl_jax.fsdp.Layer: wire is {self.wire}, and 8-bit gradients are not reduced: '
                f'use bfloat16'
            )
        self.keep = keep
        self.shapes, self.structure = jax.tree.flatten(shapes)

    def __call__(self, parts, x, token):
        leaves, structure = jax.tree.flatten(parts)
        if structure != self.structure:
            raise ValueError(
                f'fsccl_jax.fsdp.Layer: "{self.site}" was made for {self.structure}, and is called '
                f'with {structure}'
            )
        return _layer(self, tuple(leaves), x, token)

    def gather(self, leaves, token):
        """Returns the whole parameters."""
        sent = [
            leaf.astype(self.wire)
            if self.wire is not None and jnp.issubdtype(leaf.dtype, jnp.floating)
            else leaf
            for leaf in leaves
        ]
        flats, token = self.group.all_gather(sent, token, self.site + ' gather')
        whole = [
            flat[: int(np.prod(shape.shape))].reshape(shape.shape)
            for flat, shape in zip(flats, self.shapes)
        ]
        return jax.tree.unflatten(self.structure, whole), token

    def reduce(self, gradients, like, token):
        """Returns this rank's part of the mean over the ranks."""
        flats, results = {}, [np.zeros(leaf.shape, jax.dtypes.float0) for leaf in like]
        for index, leaf in enumerate(jax.tree.leaves(gradients)):
            if leaf.dtype != jax.dtypes.float0:
                flat = leaf.reshape(-1)
                flats[index] = jnp.pad(flat, (0, -flat.size % self.group.ranks))
        parts, token = self.group.reduce_scatter(flats, token, self.site + ' reduce')
        for index, part in parts.items():
            results[index] = part.astype(like[index].dtype) / self.group.ranks
        return tuple(results), token


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layer(layer, leaves, x, token):
    whole, token = layer.gather(leaves, token)
    return layer.apply(whole, x), token


def _forward(layer, leaves, x, token):
    whole, token = layer.gather(leaves, token)
    return (layer.apply(whole, x), token), (leaves, whole if layer.keep else None, x, token)


def _backward(layer, saved, cotangents):
    leaves, whole, x, token = saved
    # This makes the calls follow all of forward, and backward of the layers behind this one.
    token = jnp.maximum(token, cotangents[1])
    if not layer.keep:
        whole, token = layer.gather(leaves, token)
    _, pull = jax.vjp(layer.apply, whole, x)
    gradients, of_x = pull(cotangents[0])
    parts, token = layer.reduce(gradients, leaves, token)
    return parts, of_x, token


_layer.defvjp(_forward, _backward)
