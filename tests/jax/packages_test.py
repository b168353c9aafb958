# SPDX-License-Identifier: Apache-2.0
"""Tests that packages on JAX run over FSCCL unchanged: a network of Flax and an optimizer of Optax
have Gloo's losses bit for bit with two ranks."""

import ranks as r

TRAIN = """
    import flax.linen as nn
    import optax
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            for width in (64, 64):
                x = nn.gelu(nn.LayerNorm()(nn.Dense(width)(x)))
            return nn.Dense(4)(x)
    network, optimizer = Network(), optax.adamw(1e-2)
    whole, parts = NamedSharding(mesh, P()), NamedSharding(mesh, P("ranks"))
    def placed(array):
        divides = array.ndim and array.shape[0] % ranks == 0
        return jax.make_array_from_callback(array.shape, parts if divides else whole, lambda i: np.asarray(array)[i])
    x = np.random.default_rng(1).standard_normal((8 * ranks, 16)).astype(np.float32)
    y = np.tanh(x[:, :4])
    first = network.init(jax.random.key(0), x)
    parameters, state = jax.tree.map(placed, (first, optimizer.init(first)))
    @jax.jit
    def step(parameters, state, x, y):
        loss = lambda p: optax.l2_loss(network.apply(p, x), y).mean()
        value, gradients = jax.value_and_grad(loss)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value
    losses = []
    for _ in range(10):
        parameters, state, value = step(parameters, state, split(x), split(y))
        losses.append(float(value).hex())
    print("losses", *losses)
    {check}
"""


def test_flax_and_optax_train_with_gloos_numbers():
    moved = 'assert fsccl_jax.counters()["operations"] > 100'
    ours = r.losses(r.run(TRAIN.format(check=moved)))
    assert ours == r.losses(r.run(TRAIN.format(check=''), use=''))
    assert ours[-1] < 0.5 * ours[0]
