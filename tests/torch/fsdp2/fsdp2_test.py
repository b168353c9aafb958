# SPDX-License-Identifier: Apache-2.0
"""Tests that fsccl_torch.fsdp2.enable() changes no number: every variant trains as stock FSDP2 over
gloo does, bit for bit on two ranks."""

import mesh_variants as meshes
import pytest
import torch
import variants
from variants import system

# The oldest torch whose FSDP2 can run these variants, over any backend.
SINCE = {'failed_step': (2, 13), 'tensor_parallel': (2, 9), 'clipped_with_a_divisor': (2, 8)}
TORCH = tuple(int(number) for number in torch.__version__.split('.')[:2])
# The kinds of communication of these variants that go through units. In all other variants both
# kinds do.
CARRIED = {
    'hsdp_accumulated_before_the_all_reduce': {'unshard'},
    # Before 2.8 FSDP2 does not reshard the root after forward, whatever the program asks for. Units
    # carry the root then.
    'resharded_to_two': set() if TORCH >= (2, 8) else {'unshard', 'reduce_grads'},
}


def of_this_torch(variants_):
    """`variants_` are names or functions. HSDP on a CPU is possible from 2.8 on."""
    names = {variant: getattr(variant, '__name__', variant) for variant in variants_}
    return [
        variant
        for variant, name in names.items()
        if SINCE.get(name, (2, 8) if name.startswith('hsdp') else TORCH) <= TORCH
    ]


def carried_by_units(train):
    """Runs the variant, and checks how much of its communication went through units."""
    expected = CARRIED.get(train.__name__, {'unshard', 'reduce_grads'})

    def run(rank, ranks):
        result = train(rank, ranks)
        if variants.fused():
            import fsccl_torch

            carried = {
                name for name in ('unshard', 'reduce_grads') if fsccl_torch.stats().get(name)
            }
            assert carried == expected, f'units carried {carried}, not {expected}'
        return result

    run.__name__ = train.__name__
    return run


@pytest.mark.parametrize('name', of_this_torch(variants.VARIANTS))
def test_two_ranks(name):
    system.compare(carried_by_units(variants.VARIANTS[name]), reference=False)


@pytest.mark.parametrize('name', ['plain', 'bfloat16', 'cut_along_the_second_dimension'])
def test_three_ranks(name):
    tolerance = {'bfloat16': 2e-3}.get(name, 2e-5)
    system.compare(
        carried_by_units(variants.VARIANTS[name]), ranks=3, reference=False, atol=tolerance
    )


@pytest.mark.parametrize(
    'train',
    of_this_torch(
        [
            meshes.tensor_parallel,
            meshes.resharded_to_two,
            meshes.hsdp,
            meshes.hsdp_cut_along_the_second_dimension,
            meshes.hsdp_in_bfloat16_with_a_divisor,
            meshes.hsdp_accumulated_before_the_all_reduce,
            meshes.hsdp_with_gradients_too_large_for_slots,
        ]
    ),
)
def test_four_ranks(train):
    system.compare(carried_by_units(train), ranks=4, reference=False)
