# SPDX-License-Identifier: Apache-2.0
"""Compares training on units of device memory by the C API (unit_training.py) with the same
training in one process without FSCCL. It needs any torch with CUDA, or with STAND_IN=1 runs on the
CPU over the stand-in driver."""

import os

import pytest
import rank_programs
import torch

DEVICE = torch.device('cpu') if os.environ.get('STAND_IN') else torch.device('cuda', 0)


@pytest.mark.parametrize('ranks', [1, 2, 3])
def test_losses_are_those_of_one_process(ranks, tmp_path):
    rank_programs.check('unit_training.py', ranks, 20350 + ranks, tmp_path, DEVICE)
