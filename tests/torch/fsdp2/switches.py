# SPDX-License-Identifier: Apache-2.0
"""Every switch of FSDP2: each public method of FSDPModule and each argument of fully_shard. A
switch is a function (rank, ranks) -> (model, losses) that trains with it; SWITCHES also has what
fsdp2.report() must say: a part of the reason, or None where the groups are fused."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from variants import BFLOAT16, adam, enable, shard, system

SWITCHES = {}


def switch(gathers=None, reduces=None):
    def register(train):
        SWITCHES[train.__name__] = train, gathers, reduces
        return train

    return register


def trained(model, rank, ranks, steps=range(3)):
    return model, system.train(model, adam(model), rank, ranks, steps)


def sharded_modules(model):
    return [*model.blocks, model]


def with_each(method, *arguments, **options):
    def train(rank, ranks):
        model = shard(system.Model(), **options)
        for module in sharded_modules(model):
            getattr(module, method)(*arguments)
        return trained(model, rank, ranks)

    return train


def table(name, gathers, reduces, train):
    train.__name__ = name
    switch(gathers, reduces)(train)


class Counting:
    """A custom communication, which must be called."""

    calls = 0

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)


class OwnAllGather(Counting):
    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        OwnAllGather.calls += 1
        gather = getattr(dist, 'all_gather_single', None) or dist.all_gather_into_tensor
        return gather(output_tensor, input_tensor, group=group, async_op=async_op)


class OwnReduceScatter(Counting):
    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        OwnReduceScatter.calls += 1
        scatter = getattr(dist, 'reduce_scatter_single', None) or dist.reduce_scatter_tensor
        return scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)


@switch(gathers='OwnAllGather', reduces='OwnAllGather')
def custom_all_gather(rank, ranks):
    OwnAllGather.calls = 0
    found = with_each('set_custom_all_gather', OwnAllGather())(rank, ranks)
    assert OwnAllGather.calls >= 9, OwnAllGather.calls
    return found


@switch(reduces='OwnReduceScatter')
def custom_reduce_scatter(rank, ranks):
    OwnReduceScatter.calls = 0
    found = with_each('set_custom_reduce_scatter', OwnReduceScatter())(rank, ranks)
    assert OwnReduceScatter.calls >= 9, OwnReduceScatter.calls
    return found


@switch(gathers='OwnAllGather')
def custom_all_gather_after_a_step(rank, ranks):
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

    model = shard(system.Model(), keep_bytes=1 << 20)
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(2))
    for step, comm in ((2, OwnAllGather()), (3, None), (4, OwnAllGather())):
        for module in sharded_modules(model):
            module.set_custom_all_gather(comm or DefaultAllGather())
        losses += system.train(model, optimizer, rank, ranks, [step])
    return model, losses


def halve(gradients):
    gradients.mul_(0.5)


table('all_reduce_hook', None, 'all-reduce hook', with_each('set_all_reduce_hook', halve))
table(
    'memory_of_the_group',
    None,
    None,
    with_each('set_allocate_memory_from_process_group_for_comm', True),
)
table('sums_only', None, None, with_each('set_force_sum_reduction_for_comms', True))
table('more_input_buffers', None, None, with_each('set_reduce_scatter_max_input_buffers', 3))
table(
    'separate_group',
    None,
    'set_separate_reduce_scatter_group',
    with_each('set_separate_reduce_scatter_group'),
)
table(
    'storage_is_kept',
    'set_keep_unsharded_storage',
    'set_keep_unsharded_storage',
    with_each('set_keep_unsharded_storage', True),
)
table('unused_parameters', None, None, with_each('set_reduce_scatter_unused_params', True))
table('asynchronous_unshard', None, None, with_each('_set_unshard_async_op', True))
table('not_resharded_after_forward', None, None, with_each('set_reshard_after_forward', False))
table(
    'inputs_not_cast',
    None,
    None,
    lambda rank, ranks: trained(
        shard(
            system.Model(),
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False),
        ),
        rank,
        ranks,
    ),
)


@switch()
def output_cast(rank, ranks):
    model = system.Model()
    for block in model.blocks:
        fully_shard(block, mp_policy=BFLOAT16)
    return trained(
        enable(
            fully_shard(
                model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float64)
            )
        ),
        rank,
        ranks,
    )


@switch()
def divisor(rank, ranks):
    model = shard(system.Model())
    for module in sharded_modules(model):
        module.set_reduce_scatter_divide_factor(8.0)
        module.set_force_sum_reduction_for_comms(True)
    return trained(model, rank, ranks)


@switch()
def not_unsharded_in_backward(rank, ranks):
    model = system.Model()
    fully_shard(model.embedding)
    model = shard(model)
    model.embedding.set_unshard_in_backward(False)
    return trained(model, rank, ranks)


@switch()
def not_resharded_after_backward(rank, ranks):
    model = shard(system.Model())
    optimizer, losses = adam(model), []
    for step in range(2):
        for micro in range(2):
            for module in sharded_modules(model):
                module.set_reshard_after_backward(micro == 1)
            loss = system.loss_of(model, *system.batch(2 * step + micro, rank, ranks))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


@switch()
def resharded_after_forward_or_not(rank, ranks):
    model = shard(system.Model())
    optimizer, losses = adam(model), []
    for step in range(4):
        for module in sharded_modules(model):
            module.set_reshard_after_forward(step % 2 == 0)
        losses += system.train(model, optimizer, rank, ranks, [step])
    return model, losses


def finalized_by_hand(rank, ranks, asynchronous=False, sync=True):
    """The program finalizes two backward passes at once."""
    model = shard(system.Model())
    model.set_manual_backward_finalization(True)
    optimizer, losses = adam(model), []
    for step in range(3):
        for micro in range(2):
            model.set_requires_gradient_sync(sync)
            loss = system.loss_of(model, *system.batch(2 * step + micro, rank, ranks))
            loss.backward()
            losses.append(loss.item())
        model.set_requires_gradient_sync(True)
        handle = model.finalize_backward(async_op=asynchronous)
        if handle:
            handle.wait()
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


table('finalized_by_the_program', None, None, finalized_by_hand)
table(
    'finalized_asynchronously',
    None,
    None,
    lambda rank, ranks: finalized_by_hand(rank, ranks, asynchronous=True),
)
table(
    'finalized_without_sync',
    None,
    None,
    lambda rank, ranks: finalized_by_hand(rank, ranks, sync=False),
)


@switch()
def event_of_the_optimizer(rank, ranks):
    model = shard(system.Model())
    optimizer, losses = adam(model), []
    for step in range(3):
        losses += system.train(model, optimizer, rank, ranks, [step])
        model.set_post_optim_event(
            torch.cpu.Stream().record_event() if hasattr(torch.cpu.Stream, 'record_event') else None
        )
    return model, losses


@switch()
def forward_method(rank, ranks):
    class Scaled(system.Model):
        def scaled(self, tokens):
            return 2 * self(tokens)

        def embedded(self, tokens):
            return self.embedding(tokens).sum()

    model = shard(Scaled())
    register_fsdp_forward_method(model, 'embedded')
    optimizer, losses = adam(model), system.train(model, adam(model), rank, ranks, [0])
    for step in range(2):
        loss = model.embedded(system.batch(step, rank, ranks)[0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


@switch()
def shared_communication(rank, ranks):
    first, second = shard(system.Model()), shard(system.Model(99))
    fsdp.share_comm_ctx([first, second])
    losses = system.train(first, adam(first), rank, ranks, range(2)) + system.train(
        second, adam(second), rank, ranks, range(2)
    )
    return nn.ModuleDict({'first': first, 'second': second}), losses


@switch()
def ignored_parameters(rank, ranks):
    model = system.Model()
    ignored = {model.embedding.weight, model.blocks[0].norm.weight}
    for parameter in ignored:
        parameter.requires_grad_(False)
    return trained(shard(model, ignored_params=ignored), rank, ranks)


@switch(gathers='offloaded', reduces='offloaded')
def offloaded(rank, ranks):
    return trained(
        shard(system.Model(), offload_policy=CPUOffloadPolicy(pin_memory=False)), rank, ranks
    )


@switch(gathers='several dtypes', reduces='several dtypes')
def some_parameters_in_their_own_dtype(rank, ranks):
    policy = MixedPrecisionPolicy(
        torch.bfloat16,
        torch.float32,
        param_dtype_override_fn=lambda p: p.dtype if p.dim() == 1 else None,
    )
    model = system.Model()
    for block in model.blocks:
        block.norm.forward = lambda x, norm=block.norm: nn.functional.layer_norm(
            x.float(), (x.size(-1),)
        ).to(x.dtype)
        block.feed_forward[0], block.output.bias = nn.Identity(), None
        block.feed_forward[1].bias = block.feed_forward[3].bias = None
    return trained(shard(model, mp_policy=policy), rank, ranks)


@switch()
def modules_in_one_group(rank, ranks):
    """The head runs several times in a step, apart from the other modules of its group."""
    model = system.Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard([model.embedding, model.head])
    model = enable(fully_shard(model))
    optimizer, losses = adam(model), []
    for step in range(3):
        tokens, targets = system.batch(step, rank, ranks)
        loss = system.loss_of(model, tokens, targets) + 0.1 * system.loss_of(
            model, tokens[:, 1:], targets[:, 1:]
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses


def accumulated(rank, ranks, policy, sync=True):
    model = shard(system.Model(), mp_policy=policy)
    optimizer, losses = adam(model), []
    for step in range(2):
        for micro in range(3):
            model.set_requires_gradient_sync(sync or micro == 2)
            loss = system.loss_of(model, *system.batch(3 * step + micro, rank, ranks))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


HALVES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
for _name, _dtype in HALVES.items():
    _all = MixedPrecisionPolicy(_dtype, _dtype)
    table(
        f'{_name}_accumulated_with_sync',
        None,
        None,
        lambda rank, ranks, policy=_all: accumulated(rank, ranks, policy),
    )
    table(
        f'{_name}_accumulated_without_sync',
        None,
        None,
        lambda rank, ranks, policy=_all: accumulated(rank, ranks, policy, False),
    )
    table(
        f'only_reduced_in_{_name}',
        None,
        None,
        lambda rank, ranks, dtype=_dtype: accumulated(
            rank, ranks, MixedPrecisionPolicy(reduce_dtype=dtype)
        ),
    )


@switch()
def whole_model_in_bfloat16_accumulated(rank, ranks):
    model = shard(system.Model().to(torch.bfloat16))
    optimizer, losses = adam(model), []
    for step in range(4):
        loss = system.loss_of(model, *system.batch(step, rank, ranks))
        loss.backward()
        losses.append(loss.item())
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model, losses


@switch()
def gradients_wider_than_parameters(rank, ranks):
    model = system.Model().to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    model = shard(model)
    losses = []
    for step in range(3):
        loss = system.loss_of(model, *system.batch(step, rank, ranks))
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= (0.05 * parameter.grad).to(parameter.dtype)
                parameter.grad = None
    return model, losses


@switch(gathers='compiled autograd', reduces='compiled autograd')
def compiled_autograd(rank, ranks):
    """Compiled autograd is on in every second step. The test does not judge what stock FSDP2 does
    with it."""
    model = shard(system.Model(), mp_policy=BFLOAT16)
    optimizer, losses = adam(model), []
    import torch._dynamo.compiled_autograd as compiled

    for step in range(4):
        compiled.in_compiled_autograd_region = bool(step % 2)
        losses += system.train(model, optimizer, rank, ranks, [step])
    compiled.in_compiled_autograd_region = False
    return model, losses
