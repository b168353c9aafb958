# SPDX-License-Identifier: Apache-2.0
"""Tests DeepSpeed's ZeRO stages 1 to 3 on a process group of fsccl that was made before
deepspeed.initialize."""

import functools
import os

os.environ['DS_ACCELERATOR'] = 'cpu'  # read when deepspeed is loaded

import deepspeed
import pytest
import system


def train(rank, ranks, stage):
    settings = {
        'train_micro_batch_size_per_gpu': system.SEQUENCES,
        'gradient_clipping': 0.0,
        'zero_allow_untested_optimizer': True,
        'zero_force_ds_cpu_optimizer': False,
        'steps_per_print': 10**9,
        'zero_optimization': {
            'stage': stage,
            'overlap_comm': False,
            'stage3_param_persistence_threshold': 0,
        },
    }
    deepspeed.init_distributed(dist_init_required=False)
    model = system.Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=system.new_optimizer(model),
        config=settings,
        dist_init_required=False,
    )
    losses = []
    for step in range(system.STEPS):
        loss = system.loss_of(engine, *system.batch(step, rank, ranks))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        return system.result(model, losses)


@pytest.mark.parametrize('stage', [1, 2, 3])
def test_two_ranks(stage):
    system.compare(functools.partial(train, stage=stage))
