# SPDX-License-Identifier: Apache-2.0
"""Tests a model of PyTorch that torchax runs on JAX's arrays. Its parameters are sharded, and XLA
inserts the collectives. Over FSCCL two ranks get the same numbers as over Gloo, bit for bit. torch
comes from build-torch/2.11.0, which tests/torch/matrix.py makes, because torchax 0.0.13 does not
support torch 2.15."""

import os

import pytest
import ranks as r

TORCH = next(r.ROOT.glob('build-torch/2.11.0/lib/python3*/site-packages'), None)
TRAIN = """
    import torch, torchax
    from torchax import interop
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 64),
                                torch.nn.GELU(), torch.nn.Linear(64, 4))
    whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))
    def placed(tensor):
        array = tensor.detach().numpy()
        sharding = parts if array.shape[0] % ranks == 0 else whole
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
    parameters = {{name: placed(tensor) for name, tensor in model.state_dict().items()}}
    environment = torchax.default_env()
    def apply(parameters, x):
        with environment:
            tensors = interop.torch_view(parameters), (interop.torch_view(x),)
            return interop.jax_view(torch.func.functional_call(model, *tensors))
    def loss(parameters, x, y):
        gathered = jax.tree.map(lambda array: lax.with_sharding_constraint(array, whole), parameters)
        return ((apply(gathered, x) - y) ** 2).mean()
    @jax.jit
    def step(parameters, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return jax.tree.map(lambda p, g: p - 0.5 * g, parameters, gradients), value
    x = np.random.default_rng(1).standard_normal((8 * ranks, 16)).astype(np.float32)
    y = np.tanh(x[:, :4])
    losses = []
    for _ in range(10):
        parameters, value = step(parameters, split(x), split(y))
        losses.append(float(value).hex())
    print("losses", *losses)
    {check}
"""


@pytest.mark.skipif(TORCH is None, reason='build-torch/2.11.0 is missing: tools/test makes it')
def test_a_model_of_pytorch_trains_with_gloos_numbers():
    path = {'PYTHONPATH': f'{os.environ["PYTHONPATH"]}:{TORCH}'}
    moved = 'assert fsccl_jax.counters()["operations"] > 100'
    ours = r.losses(r.run(TRAIN.format(check=moved), **path))
    assert ours == r.losses(r.run(TRAIN.format(check=''), use='', **path))
    assert ours[-1] < 0.8 * ours[0]
