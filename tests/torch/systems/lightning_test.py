# SPDX-License-Identifier: Apache-2.0
"""Tests Lightning's FSDPStrategy, ModelParallelStrategy and DDPStrategy, with fsccl named as their
process_group_backend."""

import functools
import tempfile

import lightning
import pytest
import system
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class HostFSDPStrategy(FSDPStrategy):
    """Lightning allows its FSDPStrategy on CUDA only, and on a CPU passes no device to FSDP."""

    def _setup_model(self, model):
        return FullyShardedDataParallel(
            model,
            device_id=torch.device('cpu'),
            use_orig_params=True,
            **{name: value for name, value in self.kwargs.items() if name != 'use_orig_params'},
        )


class Module(lightning.LightningModule):
    def __init__(self, way):
        super().__init__()
        self.way, self.plain, self.losses, self.parameters_found = way, None, [], None

    def configure_model(self):
        if self.plain is not None:
            return
        self.plain = system.Model()
        if self.way == 'fsdp2':
            for block in self.plain.blocks:
                fully_shard(block, mesh=self.device_mesh['data_parallel'])
            fully_shard(self.plain, mesh=self.device_mesh['data_parallel'])

    def training_step(self, batch, _):
        loss = system.loss_of(self.plain, *batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return system.new_optimizer(self)

    def on_train_end(self):
        if self.way == 'fsdp1':
            with FullyShardedDataParallel.summon_full_params(
                self.trainer.strategy.model, writeback=False
            ):
                self.keep_parameters()
        else:
            self.keep_parameters()

    def keep_parameters(self):
        self.parameters_found = {
            name.replace('_fsdp_wrapped_module.', '').removeprefix('plain.'): system.whole(
                parameter
            )
            for name, parameter in self.named_parameters()
        }


def train(rank, ranks, backend, way):
    kind, options = {
        'fsdp1': (HostFSDPStrategy, {'auto_wrap_policy': {system.Block}}),
        'fsdp2': (ModelParallelStrategy, {'data_parallel_size': ranks, 'tensor_parallel_size': 1}),
        'ddp': (DDPStrategy, {}),
    }[way]
    strategy = kind(process_group_backend=backend, **options)
    trainer = lightning.Trainer(
        accelerator='cpu',
        devices=ranks,
        strategy=strategy,
        max_steps=system.STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    module = Module(way)
    batches = [system.batch(step, rank, ranks) for step in range(system.STEPS)]
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    assert dist.get_backend() == backend
    return {'losses': module.losses, 'parameters': module.parameters_found}


@pytest.mark.parametrize('way', ['fsdp1', 'fsdp2', 'ddp'])
def test_two_ranks(way):
    system.compare(functools.partial(train, way=way), own_group=True)
