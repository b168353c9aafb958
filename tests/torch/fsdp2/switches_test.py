# SPDX-License-Identifier: Apache-2.0
"""Tests that fsccl_torch.fsdp2.enable() ignores no switch of FSDP2. With each the numbers are those
of stock FSDP2 over gloo, bit for bit on two ranks. Groups that are not fused are logged once, and
report() names them."""

import inspect
import logging
import tempfile
from pathlib import Path

import pytest
import torch
from switches import SWITCHES
from torch.distributed import fsdp
from torch.distributed.fsdp import FSDPModule
from variants import VARIANTS, fused, system

# The table names the test of each public method.
METHODS = {
    'finalize_backward': 'finalized_by_the_program',
    'reset_iter_state': 'failed_step',
    'reshard': 'edited_while_unsharded',
    'set_all_reduce_hook': 'all_reduce_hook',
    'set_allocate_memory_from_process_group_for_comm': 'memory_of_the_group',
    'set_custom_all_gather': 'custom_all_gather',
    'set_custom_reduce_scatter': 'custom_reduce_scatter',
    'set_force_sum_reduction_for_comms': 'sums_only',
    'set_gradient_divide_factor': 'clipped_with_a_divisor',
    'set_is_last_backward': 'two_backwards',
    'set_keep_unsharded_storage': 'storage_is_kept',
    'set_manual_backward_finalization': 'finalized_by_the_program',
    'set_modules_to_backward_prefetch': 'prefetched',
    'set_modules_to_forward_prefetch': 'prefetched',
    'set_post_optim_event': 'event_of_the_optimizer',
    'set_reduce_scatter_divide_factor': 'divisor',
    'set_reduce_scatter_max_input_buffers': 'more_input_buffers',
    'set_reduce_scatter_unused_params': 'unused_parameters',
    'set_requires_all_reduce': 'hsdp_accumulated_before_the_all_reduce',
    'set_requires_gradient_sync': 'accumulated_without_sync',
    'set_reshard_after_backward': 'not_resharded_after_backward',
    'set_reshard_after_forward': 'resharded_after_forward_or_not',
    'set_separate_reduce_scatter_group': 'separate_group',
    'set_symm_mem_for_comm': 'test_symmetric_memory_is_declined',
    'set_unshard_in_backward': 'not_unsharded_in_backward',
    'unshard': 'edited_while_unsharded',
}
ELSEWHERE = {
    'hsdp_accumulated_before_the_all_reduce',
    'test_symmetric_memory_is_declined',
}  # mesh_variants.py, below
# Further tests of these methods: {test: method}.
MORE = {
    'custom_all_gather_after_a_step': 'set_custom_all_gather',
    'divisor': 'set_force_sum_reduction_for_comms',
    'not_resharded_after_forward': 'set_reshard_after_forward',
    'finalized_asynchronously': 'finalize_backward',
    'finalized_without_sync': 'finalize_backward',
}
OTHERS = {
    'shared_communication': hasattr(fsdp, 'share_comm_ctx'),
    'gradients_wider_than_parameters': hasattr(torch.Tensor, 'grad_dtype'),
    'some_parameters_in_their_own_dtype': hasattr(
        fsdp.MixedPrecisionPolicy, 'param_dtype_override_fn'
    ),
}


def is_of_this_torch(name):
    """Older versions of FSDP2 have fewer switches."""
    methods = {
        method for method, test in METHODS.items() if name == test or method == MORE.get(name)
    }
    return OTHERS.get(name, all(hasattr(FSDPModule, method) for method in methods))


def test_every_method_has_its_test():
    public = {
        name
        for name, _ in inspect.getmembers(FSDPModule, inspect.isfunction)
        if not name.startswith('_')
    }
    assert public <= set(METHODS), f'methods that no test has: {public - set(METHODS)}'
    assert set(METHODS.values()) <= set(SWITCHES) | set(VARIANTS) | ELSEWHERE


def observed(train):
    """Runs the training, and returns what enable() logs and reports."""

    def run(rank, ranks):
        lines, handler = [], logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger('fsccl_torch').addHandler(handler)
        model, losses = train(rank, ranks)
        found = {**system.result(model, losses), 'lines': lines}
        if fused():
            from fsccl_torch import fsdp2

            found['report'] = [
                [group.name, group.gathers or '', group.reduces or '']
                for group in fsdp2.report(model)
            ]
            found['text'] = str(fsdp2.report(model))
        return found

    run.__name__ = train.__name__
    return run


@pytest.mark.parametrize('name', [name for name in SWITCHES if is_of_this_torch(name)])
def test_switch(name):
    train, gathers, reduces = SWITCHES[name]
    with tempfile.TemporaryDirectory() as folder:
        gloo, fsccl = (
            system.run(observed(train), backend, 2, Path(folder) / backend)
            for backend in ('gloo', 'fsccl')
        )
    for ours, stock in zip(fsccl, gloo):
        for what in ('losses', 'parameters'):
            torch.testing.assert_close(ours[what], stock[what], rtol=0, atol=0, equal_nan=False)
        assert ours['report'], ours
        for why, index in ((gathers, 1), (reduces, 2)):
            told = {group[index] for group in ours['report']}
            assert told == {''} if why is None else any(why in text for text in told), ours['text']
            of_it = [
                line
                for line in ours['lines']
                if why and why in line and ('gathers', 'reduces')[index - 1] in line
            ]
            assert why is None or len(of_it) == 1 or (index == 2 and gathers == reduces), ours[
                'lines'
            ]
        assert ours['lines'] or (gathers is None and reduces is None)
        assert not ours['lines'] or gathers or reduces, ours['lines']


@pytest.mark.skipif(not hasattr(FSDPModule, 'set_symm_mem_for_comm'), reason='this FSDP2 has none')
def test_symmetric_memory_is_declined():
    from fsccl_torch import fsdp2_switches
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

    class Group:
        _all_gather_comm = collectives.SymmMemAllGather.__new__(collectives.SymmMemAllGather)
        _reduce_scatter_comm = collectives.SymmMemReduceScatter.__new__(
            collectives.SymmMemReduceScatter
        )

    assert 'SymmMemAllGather' in fsdp2_switches.gathers_otherwise(Group)
    assert 'SymmMemReduceScatter' in fsdp2_switches.reduces_otherwise(Group)
