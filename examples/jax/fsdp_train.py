# SPDX-License-Identifier: Apache-2.0
"""Trains with fully sharded parameters under JAX: a perceptron on the digits of examples/data, or a
transformer on Python's manual.

  pip install ./bindings/python ./bindings/jax
  python examples/jax/fsdp_train.py --ranks 2
  python examples/jax/fsdp_train.py --ranks 2 --form gspmd           the sharding is left to XLA
  python examples/jax/fsdp_train.py --ranks 2 --form fused           FSCCL's own collectives,
                                                                     bfloat16 as bfloat16
  python examples/jax/fsdp_train.py --ranks 2 --model transformer    110 million parameters
  python examples/jax/fsdp_train.py --ranks 2 --collectives gloo
  mpirun -n 2 python examples/jax/fsdp_train.py                      srun likewise; JAX knows both

One line concerns FSCCL: fsccl_jax.use(), before jax is imported. --form fused calls it by itself
instead (fused_form).
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np

DIGITS = pathlib.Path(__file__).resolve().parents[1] / 'data/digits.csv'


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--collectives', choices=['fsccl', 'gloo'], default='fsccl')
    parser.add_argument(
        '--form',
        choices=['shard_map', 'fused', 'gspmd', 'replicated'],
        default='shard_map',
        help="gathers written out, FSCCL's own, a sharding from which XLA makes them, or whole parameters",
    )
    parser.add_argument('--model', choices=['digits', 'transformer'], default='digits')
    parser.add_argument(
        '--dtype', choices=['float32', 'bfloat16'], default='float32', help='in which is computed'
    )
    parser.add_argument('--layers', type=int, default=0)
    parser.add_argument('--width', type=int, default=0)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--batch', type=int, default=0, help='of all ranks together')
    parser.add_argument('--json', action='store_true', help='one line at the end: losses and times')
    parser.add_argument(
        '--ranks',
        type=int,
        default=0,
        help='start so many processes on this machine; 0: a launcher has',
    )
    parser.add_argument('--rank', type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument('--coordinator', default='', help=argparse.SUPPRESS)
    options = parser.parse_args()
    is_digits = options.model == 'digits'
    options.layers = options.layers or (3 if is_digits else 15)
    options.width = options.width or (256 if is_digits else 768)
    options.batch = options.batch or (96 if is_digits else 4)
    return options


def start(ranks):
    """Runs this program once for each rank. The first rank that fails ends all, with its status."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        coordinator = f'127.0.0.1:{free.getsockname()[1]}'
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv, '--rank', str(rank), '--coordinator', coordinator]
        )
        for rank in range(ranks)
    ]
    try:
        for _ in processes:
            _, status = os.wait()
            if status:
                return abs(os.waitstatus_to_exitcode(status))
        return 0
    finally:
        for process in processes:
            process.kill()


options = arguments()
if options.ranks and options.rank < 0:
    sys.exit(start(options.ranks))
if options.collectives == 'fsccl' and options.form != 'fused':
    import fsccl_jax

    fsccl_jax.use()

# pylint: disable=wrong-import-position
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HEADS, TOKENS = 12, 64


def normal(generator, *shape):
    return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


class Digits:
    """A perceptron with residual layers; each is a dictionary of arrays."""

    def __init__(self):
        table = np.loadtxt(DIGITS, delimiter=',', dtype=np.float32)
        self.images, self.labels = table[:, :64] / 16, table[:, 64].astype(np.int32)

    def parameters(self, width, layers):
        generator = np.random.default_rng(1)
        inner = [
            {'weight': normal(generator, width, width), 'bias': np.zeros(width, np.float32)}
            for _ in range(layers)
        ]
        return [
            {'weight': normal(generator, 64, width)},
            *inner,
            {'weight': normal(generator, width, 10)},
        ]

    def batch(self, step, size):
        rows = np.random.default_rng(step).integers(0, len(self.images), size)
        return self.images[rows], self.labels[rows]

    @staticmethod
    def apply(index, last, layer, x):
        if index == 0:
            return x.astype(layer['weight'].dtype) @ layer['weight']
        if index == last:
            return x @ layer['weight']
        return x + jax.nn.gelu(x @ layer['weight'] + layer['bias'])


class Transformer:
    """Reads text byte by byte."""

    def __init__(self):
        from pydoc_data.topics import topics  # pylint: disable=import-outside-toplevel

        self.text = np.frombuffer(''.join(topics.values()).encode(), np.uint8).astype(np.int32)

    def parameters(self, width, layers):
        generator = np.random.default_rng(1)
        inner = [
            {
                'heads': normal(generator, width, 3 * width),
                'output': normal(generator, width, width) / 4,
                'up': normal(generator, width, 4 * width),
                'down': normal(generator, 4 * width, width) / 4,
            }
            for _ in range(layers)
        ]
        first = {'bytes': normal(generator, 256, width), 'places': normal(generator, TOKENS, width)}
        return [first, *inner, {'weight': normal(generator, width, 256)}]

    def batch(self, step, size):
        places = np.random.default_rng(step).integers(0, len(self.text) - TOKENS - 1, size)
        rows = np.stack([self.text[place : place + TOKENS + 1] for place in places])
        return rows[:, :-1], rows[:, 1:]

    @staticmethod
    def apply(index, last, layer, x):
        if index == 0:
            return layer['bytes'][x] + layer['places']
        if index == last:
            return normalized(x) @ layer['weight']
        heads = (normalized(x) @ layer['heads']).reshape(*x.shape[:2], 3, HEADS, -1)
        attended = jax.nn.dot_product_attention(
            heads[:, :, 0], heads[:, :, 1], heads[:, :, 2], is_causal=True
        )
        x = x + attended.reshape(x.shape) @ layer['output']
        return x + jax.nn.gelu(normalized(x) @ layer['up']) @ layer['down']


def normalized(x):
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def loss_of(model, layers, gathered, batch):
    """Returns the mean loss of a batch. gathered(index, layer) makes a layer whole; it is called
    again in backward, since its result is not kept."""
    x, last = batch[0], len(layers) - 1
    for index, layer in enumerate(layers):

        def run(part, x, index=index):
            return model.apply(index, last, gathered(index, part), x)

        x = jax.checkpoint(run)(layer, x)
    return loss_at(x, batch)


def loss_at(logits, batch):
    logits = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(logits, batch[1][..., None], -1))


def adam(parameters, gradients, state, step, rate=1e-3):
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state[1], gradients)

    def moved(p, m, v):
        return p - rate * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.99**step)) + 1e-8)

    return jax.tree.map(moved, parameters, first, second), (first, second)


def cast(tree):
    return jax.tree.map(lambda leaf: leaf.astype(options.dtype), tree)


def flat_form(model, layers, mesh):
    """FSDP written out: each rank holds a flat part of every array, and a gather makes the array
    whole. The transpose of the gather is the reduce-scatter of the gradient. Arrays are gathered
    one by one, because XLA would copy each of them out of a gather of several."""
    ranks = mesh.size
    shapes = [{name: array.shape for name, array in layer.items()} for layer in layers]

    def flat(array):
        return np.pad(array.ravel(), (0, -array.size % ranks))

    def gathered(index, parts):
        return {
            name: lax.all_gather(parts[name], 'ranks', tiled=True)[: np.prod(shape)].reshape(shape)
            for name, shape in shapes[index].items()
        }

    def step(parts, state, number, batch):
        loss, gradients = jax.value_and_grad(lambda p: loss_of(model, cast(p), gathered, batch))(
            parts
        )
        gradients = jax.tree.map(lambda g: g / ranks, gradients)
        return *adam(parts, gradients, state, number), lax.pmean(loss, 'ranks')

    split = P('ranks')
    sharded = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(split, split, P(), split),
        out_specs=(split, split, P()),
        check_vma=False,
    )
    dealt = jax.tree.map(lambda array: put(flat(array), NamedSharding(mesh, split)), layers)
    return dealt, sharded


def fused_form(model, layers, mesh):
    """FSDP on FSCCL's own collectives, which need no use(): a layer's arrays are gathered in one
    call, in the dtype of the wire."""
    import fsccl_jax  # pylint: disable=import-outside-toplevel

    group = fsccl_jax.join(mesh)
    split, last = fsccl_jax.fsdp.spec(group), len(layers) - 1
    dealt = [fsccl_jax.fsdp.shard(group, layer) for layer in layers]
    fused = [
        fsccl_jax.fsdp.Layer(
            group,
            lambda layer, x, index=index: model.apply(index, last, layer, x),
            shapes,
            f'layer {index}',
            wire=options.dtype,
        )
        for index, (_, shapes) in enumerate(dealt)
    ]

    def loss_over(parts, batch, token):
        x = batch[0]
        for layer, part in zip(fused, parts):
            x, token = layer(part, x, token)
        return loss_at(x, batch)

    def step(parts, state, number, batch):
        # The gradient of the token is the token of the end of backward.
        loss, (gradients, token) = jax.value_and_grad(loss_over, argnums=(0, 2))(
            parts, batch, group.token()
        )
        sums, token = group.all_reduce(loss, token, 'loss')
        return *adam(parts, gradients, state, number), sums / group.ranks

    sharded = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(split, split, P(), split),
        out_specs=(split, split, P()),
        check_vma=False,
    )
    return [shards for shards, _ in dealt], sharded


def xla_form(model, layers, mesh, is_sharded):
    """Leaves the collectives to XLA. A parameter is split along its first dimension if this can be
    divided by the number of ranks, and is whole on each rank otherwise."""
    whole = NamedSharding(mesh, P())

    def sharding(array):
        return (
            NamedSharding(mesh, P('ranks'))
            if is_sharded and array.shape[0] % mesh.size == 0
            else whole
        )

    def gathered(_, layer):
        return lax.with_sharding_constraint(layer, whole)

    def step(parameters, state, number, batch):
        loss, gradients = jax.value_and_grad(lambda p: loss_of(model, cast(p), gathered, batch))(
            parameters
        )
        gradients = jax.tree.map(lambda g: lax.with_sharding_constraint(g, sharding(g)), gradients)
        return *adam(parameters, gradients, state, number), loss

    return jax.tree.map(lambda array: put(array, sharding(array)), layers), step


def put(array, sharding):
    """Makes a sharded array of one that all processes have: each gives its own part."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def main():
    if options.ranks > 1:
        jax.distributed.initialize(options.coordinator, options.ranks, options.rank)
    elif not options.ranks:
        jax.distributed.initialize()
    mesh = Mesh(jax.devices(), ('ranks',))
    model = {'digits': Digits, 'transformer': Transformer}[options.model]()
    layers = model.parameters(options.width, options.layers)
    say = print if jax.process_index() == 0 else lambda *_, **__: None
    say(
        f'{sum(array.size for layer in layers for array in layer.values()):,} parameters, '
        f'{mesh.size} ranks, {options.form}, '
        f'{options.collectives}'
    )
    if options.form in ('shard_map', 'fused'):
        parameters, step = {'shard_map': flat_form, 'fused': fused_form}[options.form](
            model, layers, mesh
        )
    else:
        parameters, step = xla_form(model, layers, mesh, options.form == 'gspmd')
    step = jax.jit(step, donate_argnums=(0, 1))
    state = jax.tree.map(jnp.zeros_like, (parameters, parameters))
    losses, times = [], []
    for number in range(1, options.steps + 1):
        batch = [
            put(array, NamedSharding(mesh, P('ranks')))
            for array in model.batch(number, options.batch)
        ]
        begin = time.perf_counter()
        parameters, state, loss = step(parameters, state, np.float32(number), batch)
        losses.append(float(loss))
        times.append(time.perf_counter() - begin)
        say(f'step {number:3}  loss {losses[-1]:.6f}  {1e3 * times[-1]:9.1f} ms', flush=True)
    if options.json:
        say(json.dumps({'losses': [value.hex() for value in losses], 'seconds': times}))


if __name__ == '__main__':
    main()
