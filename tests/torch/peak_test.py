"""Compares the memory that a forecast says with what torch's FSDP2 holds at one time.

FSDPMemTracker, a dispatch mode of torch, counts the tensors of a training step on one of 8 ranks,
whose collectives a process group of torch does without any peer. The forecast has no other input
than the exported module. The setups differ in what is the largest: activations, the loss, or
parameters and gradients.
"""

import functools
import json
import pathlib

import export_test
import fsccl_torch
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

RANKS = 8
MACHINES = pathlib.Path(__file__).resolve().parents[2] / 'perf/machines'


@pytest.fixture
def group():
    dist.init_process_group('fake', rank=0, world_size=RANKS, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def network(monkeypatch):
    """Returns what makes a network with these sizes."""

    def make(width, layers, words, ffn, tied):
        for name, value in [
            ('WIDTH', width),
            ('LAYERS', layers),
            ('VOCABULARY', words),
            ('FFN', ffn),
        ]:
            monkeypatch.setattr(export_test, name, value)
        made = export_test.Network()
        if tied:
            made.head.weight = made.embed.weight
        return made

    monkeypatch.setattr(export_test.Layer, 'attention', 'fused')
    return make


def every_second():
    """Returns the contexts of torchtitan's selective checkpointing: the results of attention and of
    every second product of matrices stay."""
    products = [0, 0]

    def policy(context, operation, *_, **__):
        product = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        products[context.is_recompute] += product
        stays = (
            products[context.is_recompute] % 2 == 1 if product else 'attention' in str(operation)
        )
        return CheckpointPolicy.MUST_SAVE if stays else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def drops(module, kind):
    """Wraps the forward pass of each layer in a checkpoint of this kind."""
    more = {'context_fn': every_second} if kind == 'selective' else {}
    for layer in module.layers if kind != 'none' else ():
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False, **more)


def held_at_once(module, words, batch, length, kept, reduce, kind):
    """Returns the most bytes of tensors at one time in the second of two steps."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    drops(module, kind)
    for layer in module.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=not kept)
    fully_shard(module, mp_policy=policy)
    optimizer = torch.optim.Adam(module.parameters(), foreach=True)
    tokens = torch.zeros((batch, length), dtype=torch.int64)
    tracker = FSDPMemTracker(module, optimizer)
    tracker.track_inputs((tokens,))
    with tracker:
        for step in range(2):
            logits = module(tokens)
            F.cross_entropy(logits.view(-1, words).float(), tokens.view(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                tracker.reset_mod_stats()
    peak = tracker.get_tracker_snapshot('peak')[torch.device('cpu')]
    return next(size for kind, size in peak.items() if getattr(kind, 'value', kind) == 'Total')


def forecast_of(model, **more):
    machine = json.loads((MACHINES / 'dgx-h100.json').read_text(encoding='utf-8'))
    machine['carrier'] = 'nccl'
    return export_test.forecast_of(model, machine=machine, ranks=RANKS, **more)['memory']


@pytest.mark.parametrize(
    'sizes, batch, length, kept, reduce, kind, tied',
    [
        pytest.param((512, 8, 4096, 1536), 2, 256, False, 'fp32', 'none', False, id='loss'),
        pytest.param((512, 8, 4096, 1536), 16, 256, False, 'fp32', 'none', False, id='many tokens'),
        pytest.param((256, 12, 8000, 1024), 4, 256, False, 'bf16', 'none', False, id='many words'),
        pytest.param((1024, 4, 1024, 2816), 1, 128, False, 'fp32', 'none', False, id='parameters'),
        pytest.param((1024, 4, 1024, 2816), 1, 128, False, 'bf16', 'none', False, id='bf16'),
        pytest.param((1024, 4, 1024, 2816), 8, 128, False, 'bf16', 'none', False, id='activations'),
        pytest.param((1024, 4, 1024, 2816), 1, 128, True, 'fp32', 'none', False, id='kept'),
        pytest.param((512, 12, 512, 2048), 16, 256, False, 'bf16', 'full', False, id='checkpoints'),
        pytest.param(
            (512, 12, 512, 2048), 16, 256, False, 'bf16', 'selective', False, id='selective'
        ),
        pytest.param((256, 4, 32000, 1024), 1, 64, False, 'fp32', 'none', True, id='tied'),
    ],
)
def test_a_step_holds_what_the_forecast_says(
    sizes, batch, length, kept, reduce, kind, tied, group, network
):
    types = {'fp32': torch.float32, 'bf16': torch.bfloat16}
    counted = held_at_once(
        network(*sizes, tied), sizes[2], batch, length, kept, types[reduce], kind
    )
    with torch.device('meta'):
        exported = fsccl_torch.export_model(
            network(*sizes, tied).to(torch.bfloat16), sequence=length
        )
    said = forecast_of(
        exported,
        batch=batch,
        sequence=length,
        reduce=reduce,
        keep_bytes=(1 << 40) * kept,
        checkpoint=kind,
    )
    tensors = said['at_once_bytes'] - said['context_bytes']
    assert tensors == pytest.approx(counted, rel=0.05), said
    assert said['at_once_bytes'] <= said['total_bytes']
