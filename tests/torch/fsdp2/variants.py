# SPDX-License-Identifier: Apache-2.0
"""Uses of FSDP2, each as a function (rank, ranks) -> {"losses", "parameters"}. Over gloo it is
stock FSDP2, and over fsccl fsccl_torch.fsdp2.enable() is called on the model. `carried` says which
communication must have gone through units."""

import inspect
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'systems'))
import system
from fsccl_torch.fsdp2_versions import groups_of

BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
ALL_BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def registry():
    """Returns {name: function}, and the decorator that adds functions to it."""
    known = {}

    def register(function):
        known[function.__name__] = function
        return function

    return known, register


VARIANTS, variant = registry()


def fused():
    return dist.get_backend() == 'fsccl'


def shard(model, keep_bytes=None, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    if (
        inspect.signature(fully_shard).parameters['reshard_after_forward'].default is None
    ):  # before 2.8 the root is never resharded after forward, and None is no value
        options = {'reshard_after_forward': None, **options}
    return enable(fully_shard(model, **options), keep_bytes)


def enable(model, keep_bytes=None):
    if fused():
        import fsccl_torch.fsdp2

        fsccl_torch.fsdp2.enable(model, keep_bytes=keep_bytes)
    return model


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def plain_training(rank, ranks, model=None, **options):
    model = shard(model or system.Model(), **options)
    return system.result(model, system.train(model, adam(model), rank, ranks))


@variant
def plain(rank, ranks):
    return plain_training(rank, ranks)


@variant
def kept(rank, ranks):
    return plain_training(rank, ranks, keep_bytes=1 << 30)


@variant
def bfloat16(rank, ranks):
    return plain_training(rank, ranks, mp_policy=BFLOAT16)


@variant
def bfloat16_kept(rank, ranks):
    return plain_training(rank, ranks, mp_policy=BFLOAT16, keep_bytes=1 << 30)


@variant
def bfloat16_reduced_in_it(rank, ranks):
    return plain_training(rank, ranks, mp_policy=ALL_BFLOAT16)


@variant
def whole_model_in_bfloat16(rank, ranks):
    return plain_training(rank, ranks, model=system.Model().to(torch.bfloat16))


@variant
def not_resharded_after_forward(rank, ranks):
    return plain_training(rank, ranks, reshard_after_forward=False)


@variant
def root_resharded_after_forward(rank, ranks):
    return plain_training(rank, ranks, reshard_after_forward=True)


@variant
def cut_along_the_second_dimension(rank, ranks):
    return plain_training(
        rank,
        ranks,
        shard_placement_fn=lambda p: (
            Shard(1) if p.dim() > 1 and p.size(1) % ranks == 0 else Shard(0)
        ),
    )


@variant
def frozen(rank, ranks):
    model = system.Model()
    model.embedding.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    model.blocks[1].norm.requires_grad_(False)
    return plain_training(rank, ranks, model=model)


@variant
def thawed_later(rank, ranks):
    model = system.Model()
    model.blocks[1].norm.requires_grad_(False)
    model = shard(model)
    optimizer = system.new_optimizer(model)
    losses = system.train(model, optimizer, rank, ranks, range(2))
    for parameter in model.blocks[1].norm.parameters():
        parameter.requires_grad_(True)
    losses += system.train(model, optimizer, rank, ranks, range(2, 4))
    return system.result(model, losses)


@variant
def tied(rank, ranks):
    model = system.Model()
    model.head.weight = model.embedding.weight
    return plain_training(rank, ranks, model=model)


class SometimesUnused(nn.Module):
    """The second layer takes part in every second step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({'first': nn.Linear(7, 7), 'second': nn.Linear(7, 7)}) for _ in range(2)
        )
        self.step = 0

    def forward(self, x):
        return self.blocks[1]['first'](self.blocks[0]['first'](x)) + (
            self.blocks[0]['second'](x) if self.step % 2 else 0
        )


@variant
def sometimes_unused(rank, ranks):
    model = enable(fully_shard(SometimesUnused()))
    optimizer, losses = system.new_optimizer(model), []
    for step in range(4):
        model.step = step
        optimizer.zero_grad()
        loss = model(torch.full((3, 7), 0.1 * (rank + step))).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return system.result(model, losses)


def accumulate(rank, ranks, sync, make=system.Model, steps=2, **options):
    """A step has three micro-batches."""
    model = shard(make(), **options)
    optimizer, losses = adam(model), []
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(3):
            model.set_requires_gradient_sync(sync or micro == 2)
            loss = system.loss_of(model, *system.batch(3 * step + micro, rank, ranks)) / 3
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return system.result(model, losses)


@variant
def accumulated_with_sync(rank, ranks):
    return accumulate(rank, ranks, True)


@variant
def accumulated_without_sync(rank, ranks):
    return accumulate(rank, ranks, False)


@variant
def accumulated_without_sync_in_bfloat16(rank, ranks):
    return accumulate(rank, ranks, False, mp_policy=BFLOAT16)


@variant
def accumulated_in_bfloat16(rank, ranks):
    return accumulate(rank, ranks, True, mp_policy=BFLOAT16)


@variant
def gradients_kept_by_the_caller(rank, ranks):
    """The caller holds last step's gradients, so this step must not write over them."""
    model = shard(system.Model())
    optimizer, losses, sums, before = adam(model), [], [], None
    for step in range(3):
        optimizer.zero_grad(set_to_none=step != 1)
        loss = system.loss_of(model, *system.batch(step, rank, ranks))
        loss.backward()
        gradients = [parameter.grad.to_local() for parameter in model.parameters()]
        if before is not None:
            sums.append([(now - then).abs().sum().item() for now, then in zip(gradients, before)])
        before = gradients
        optimizer.step()
        losses.append(loss.item())
    return {**system.result(model, losses), 'differences': sums}


@variant
def clipped_with_a_divisor(rank, ranks):
    model = shard(system.Model())
    model.set_gradient_divide_factor(3.0)
    model.set_force_sum_reduction_for_comms(True)
    optimizer, norms = adam(model), []
    optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor()
        )
    )
    losses = system.train(model, optimizer, rank, ranks)
    return {**system.result(model, losses), 'norms': norms}


@variant
def prefetched(rank, ranks):
    model = shard(system.Model())
    model.blocks[0].set_modules_to_forward_prefetch([model.blocks[1]])
    model.blocks[1].set_modules_to_backward_prefetch([model.blocks[0]])
    optimizer, losses = adam(model), []
    for step in range(3):
        model.unshard(async_op=True)  # as the tutorial does it
        losses += system.train(model, optimizer, rank, ranks, [step])
    return system.result(model, losses)


@variant
def checkpointed_activations(rank, ranks):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )

    model = system.Model()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, system.Block))
    for block in model.blocks:
        fully_shard(block, mp_policy=BFLOAT16)
    model = enable(fully_shard(model, mp_policy=BFLOAT16))
    losses = system.train(model, adam(model), rank, ranks)
    names = {
        name: name.replace('_checkpoint_wrapped_module.', '')
        for name, _ in model.named_parameters()
    }
    return {
        'losses': losses,
        'parameters': {names[name]: system.whole(p) for name, p in model.named_parameters()},
    }


@variant
def evaluated_between_steps(rank, ranks):
    model = shard(system.Model())
    optimizer, losses = adam(model), []
    for step in range(3):
        losses += system.train(model, optimizer, rank, ranks, [step])
        model.eval()
        with torch.inference_mode() if step == 1 else torch.no_grad():
            losses.append(system.loss_of(model, *system.batch(10 + step, rank, ranks)).item())
        model.train()
    return system.result(model, losses)


@variant
def evaluated_first_in_inference_mode(rank, ranks):
    model = shard(system.Model())
    with torch.no_grad():
        first = system.loss_of(model, *system.batch(9, rank, ranks)).item()
    return system.result(model, [first, *system.train(model, adam(model), rank, ranks)])


@variant
def evaluated_alone(rank, ranks):
    """Modules that were left unsharded need no other rank."""
    model = shard(system.Model(), reshard_after_forward=False)
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(2))
    with torch.no_grad():
        system.loss_of(model, *system.batch(9, rank, ranks))
        alone = (
            [system.loss_of(model, *system.batch(20 + i, 0, ranks)).item() for i in range(2)]
            if rank == 0
            else []
        )
    losses += system.train(model, optimizer, rank, ranks, range(2, 4))
    return {**system.result(model, losses), 'alone': alone}


@variant
def saved_and_loaded(rank, ranks):
    model = shard(system.Model())
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(1))
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses += system.train(model, optimizer, rank, ranks, range(1, 3))
    model.load_state_dict(saved)
    losses += system.train(model, optimizer, rank, ranks, range(1, 3))
    return system.result(model, losses)


@variant
def loaded_by_assignment(rank, ranks):
    """The parameters get other memory by assignment."""
    model = shard(system.Model())
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = system.train(model, adam(model), rank, ranks, range(2))
    model.load_state_dict(saved, assign=True)
    for module in model.modules():
        if hasattr(module, '_get_fsdp_state'):
            for group in groups_of(module._get_fsdp_state()):
                for parameter in group.fsdp_params:
                    parameter.reset_sharded_param()
    losses += system.train(model, adam(model), rank, ranks, range(2, 4))
    return system.result(model, losses)


@variant
def made_on_meta(rank, ranks):
    with torch.device('meta'):
        model = system.Model()
    model = shard(model)
    model.to_empty(device='cpu')
    for i, parameter in enumerate(model.parameters()):
        nn.init.normal_(
            parameter.to_local(), std=0.05, generator=torch.Generator().manual_seed(10 * i + rank)
        )
    return system.result(model, system.train(model, adam(model), rank, ranks))


@variant
def written_in_forward(rank, ranks):
    """An embedding with max_norm writes to the rows that it looks up."""
    model = system.Model()
    model.embedding.max_norm = 0.9
    return plain_training(rank, ranks, model=model)


@variant
def written_in_forward_by_the_program(rank, ranks):
    """The program writes to the parameters in forward without announcing it."""
    model = system.Model()

    def halve(module, *_):
        with torch.no_grad():
            module.output.weight.mul_(0.5 + 0.1 * rank)

    model.blocks[0].register_forward_pre_hook(halve)
    return plain_training(rank, ranks, model=model)


@variant
def edited_while_unsharded(rank, ranks):
    """Writes to unsharded parameters, as FSDP1's summon_full_params allows. The values are dropped
    when the module is resharded."""
    model = shard(system.Model())
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(1))
    model.blocks[0].unshard()
    with torch.no_grad():
        for parameter in model.blocks[0].parameters():
            parameter.mul_(2.0 + rank)
        losses.append(sum(parameter.sum().item() for parameter in model.blocks[0].parameters()))
    model.blocks[0].reshard()
    losses += system.train(model, optimizer, rank, ranks, range(1, 3))
    return system.result(model, losses)


@variant
def shards_written_through_data(rank, ranks):
    """Swaps in other parameters, as an exponential moving average does. No version counter
    changes."""
    model = shard(system.Model(), keep_bytes=1 << 30)
    optimizer, losses = adam(model), []
    for step in range(3):
        losses += system.train(model, optimizer, rank, ranks, [step])
        for parameter in model.parameters():
            parameter.data.to_local().mul_(0.9)
    return system.result(model, losses)


@variant
def optimizer_in_backward(rank, ranks):
    model = shard(system.Model())
    optimizers = {
        parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()
    }

    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    losses = []
    for step in range(3):
        loss = system.loss_of(model, *system.batch(step, rank, ranks))
        loss.backward()
        losses.append(loss.item())
    return system.result(model, losses)


@variant
def two_backwards(rank, ranks):
    model = shard(system.Model())
    optimizer, losses = adam(model), []
    for step in range(2):
        optimizer.zero_grad()
        model.set_is_last_backward(False)
        first = system.loss_of(model, *system.batch(step, rank, ranks))
        first.backward()
        losses.append(
            sum(parameter.grad.to_local().sum().item() for parameter in model.parameters())
        )
        model.set_is_last_backward(True)
        second = system.loss_of(model, *system.batch(step + 5, rank, ranks))
        second.backward()
        optimizer.step()
        losses += [first.item(), second.item()]
    return system.result(model, losses)


@variant
def failed_step(rank, ranks):
    """A forward ends in an exception on all ranks, and the next step must be right."""
    model = shard(system.Model())
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(1))
    handle = model.blocks[1].register_forward_pre_hook(
        lambda *_: (_ for _ in ()).throw(ValueError('on purpose'))
    )
    try:
        system.loss_of(model, *system.batch(1, rank, ranks))
        raise AssertionError('the hook did not raise')
    except ValueError:
        pass
    handle.remove()
    model.reset_iter_state()
    losses += system.train(model, optimizer, rank, ranks, range(1, 3))
    return system.result(model, losses)


@variant
def two_models(rank, ranks):
    first, second = shard(system.Model()), shard(system.Model(99), mp_policy=BFLOAT16)
    optimizers, losses = [adam(first), adam(second)], []
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        tokens, targets = system.batch(step, rank, ranks)
        with torch.no_grad():
            teacher = second(tokens).float()
        loss = system.loss_of(first, tokens, targets) + nn.functional.mse_loss(
            first(tokens).float(), teacher
        )
        loss.backward()
        system.loss_of(second, tokens, targets).backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    one, two = system.result(first, losses), system.result(second, losses)
    return {
        'losses': losses,
        'parameters': {
            **one['parameters'],
            **{f'second.{name}': t for name, t in two['parameters'].items()},
        },
    }


@variant
def called_twice(rank, ranks):
    """The same block is called twice in one forward."""
    model = system.Model()
    model.blocks = nn.ModuleList([model.blocks[0], model.blocks[1], model.blocks[0]])
    for block in (model.blocks[0], model.blocks[1]):
        fully_shard(block)
    model = enable(fully_shard(model))
    return system.result(model, system.train(model, adam(model), rank, ranks))


@variant
def used_before_enable(rank, ranks):
    model = system.Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = adam(model)
    losses = system.train(model, optimizer, rank, ranks, range(1))
    enable(model)
    enable(model)  # a second call changes nothing
    losses += system.train(model, optimizer, rank, ranks, range(1, 4))
    return system.result(model, losses)


def keeping_all():
    """Keeps frozen parameters however few bytes they have."""
    if fused():
        from fsccl_torch import fsdp2_gather

        fsdp2_gather._WORTH_A_UNIT = 1


def without_slots_for_gradients():
    """Trains as if no gradient was small enough to have a slot."""
    if fused():
        from fsccl_torch import fsdp2_reduction

        fsdp2_reduction._SLOT_BYTES = 256


@variant
def gradients_too_large_for_slots(rank, ranks):
    without_slots_for_gradients()
    return accumulate(rank, ranks, sync=True)
