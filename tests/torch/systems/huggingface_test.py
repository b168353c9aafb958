# SPDX-License-Identifier: Apache-2.0
"""Tests transformers' Llama with random weights over fsccl. FSDP2 shards it layer by layer, plain
and fused, and so do HSDP, accelerate and the Trainer. Nothing is downloaded."""

import functools
import os
import tempfile

os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1')

import pytest
import system
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

BFLOAT16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def new_llama():
    torch.manual_seed(system.SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=system.VOCABULARY,
            hidden_size=32,
            intermediate_size=56,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def fused():
    return dist.get_backend() == 'fsccl'


def sharded(model, mesh=None, enable=True, **options):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    if enable and fused():
        import fsccl_torch.fsdp2

        fsccl_torch.fsdp2.enable(model)
    return model


def train(model, optimizer, rank, ranks, backward=torch.Tensor.backward):
    losses = []
    for step in range(system.STEPS):
        tokens, targets = system.batch(step, rank, ranks)
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained(model, rank, ranks):
    return system.result(model, train(model, system.new_optimizer(model), rank, ranks))


def went_through_units():
    import fsccl_torch

    carried = fsccl_torch.stats()
    return carried.get('unshard', 0) > 0 and carried.get('reduce_grads', 0) > 0


def by_layer(rank, ranks, enable, **options):
    result = trained(sharded(new_llama(), enable=enable, **options), rank, ranks)
    assert not fused() or went_through_units() == enable
    return result


@pytest.mark.parametrize('enable', [False, True], ids=['plain', 'fused'])
@pytest.mark.parametrize('options', [{}, {'mp_policy': BFLOAT16}], ids=['float32', 'bfloat16'])
def test_llama_by_layer(enable, options):
    system.compare(functools.partial(by_layer, enable=enable, **options), reference=False)


def hybrid(rank, ranks):
    mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('replicate', 'shard'))
    return trained(sharded(new_llama(), mesh), rank, ranks)


def test_llama_hybrid():
    system.compare(hybrid, ranks=4, reference=False)


def accelerated(rank, ranks, way):
    """accelerate uses the process group that exists. It takes any group on a CPU for gloo's, and
    then uses DDP in place of FSDP2. So for `fsdp2` the test sets its state to FSDP, and
    accelerate's own code shards the model."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    accelerator = Accelerator(cpu=True)
    model = new_llama()
    if way == 'fsdp2':
        assert accelerator.distributed_type == DistributedType.MULTI_CPU
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy='transformer_based_wrap',
            transformer_cls_names_to_wrap=['LlamaDecoderLayer'],
            cpu_ram_efficient_loading=False,
        )
    model, optimizer = accelerator.prepare(model, system.new_optimizer(model))
    assert isinstance(model, FSDPModule) == (way == 'fsdp2')
    if way == 'fsdp2' and fused():
        import fsccl_torch.fsdp2

        fsccl_torch.fsdp2.enable(model)
    losses = train(model, optimizer, rank, ranks, accelerator.backward)
    assert way == 'ddp' or not fused() or went_through_units()
    return system.result(model, losses)


@pytest.mark.parametrize('way', ['ddp', 'fsdp2'])
def test_accelerate(way):
    system.compare(functools.partial(accelerated, way=way), reference=False)


class Losses(Trainer):
    def compute_loss(self, model, inputs, **_):
        logits = model(input_ids=inputs['tokens']).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), inputs['targets'].flatten()
        )
        self.found.append(loss.item())
        return loss


def arguments(folder, **more):
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        max_steps=system.STEPS,
        per_device_train_batch_size=system.SEQUENCES,
        learning_rate=1e-2,
        report_to=[],
        save_strategy='no',
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )


def by_trainer(rank, ranks):
    """The Trainer refuses ddp_backend='fsccl', but uses the process group that exists."""
    data = [
        {'tokens': tokens, 'targets': targets}
        for step in range(4 * system.STEPS)
        for tokens, targets in zip(*system.batch(step, 0, 1))
    ]
    with tempfile.TemporaryDirectory() as folder:
        if fused():
            with pytest.raises(ValueError, match='fsccl'):
                arguments(folder, ddp_backend='fsccl').device  # noqa: B018
        trainer = Losses(new_llama(), arguments(folder), train_dataset=data)
        trainer.found = []
        trainer.train()
    assert trainer.args.world_size == ranks
    return system.result(trainer.model, trainer.found)


def test_trainer():
    system.compare(by_trainer, reference=False)
