# SPDX-License-Identifier: Apache-2.0
"""FSDP2 as it is in torch, with all its bytes over collectives of FSCCL's C API
(fsdp2_training.py), against the same training in one process without either. Any torch whose FSDP2
takes such collectives, 2.11 among them. It says nothing of fsccl_torch.fsdp2.enable(), which puts
units in their place and needs torch 2.14 (torch_test.py). On a GPU, which the ranks share; without
one, in the host's memory."""

import pytest
import rank_programs
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda', 0) if ON_GPU else torch.device('cpu')


@pytest.mark.parametrize('transport', ['auto', 'nccl', 'staged'] if ON_GPU else ['host'])
def test_losses_are_those_of_one_process(transport, tmp_path):
    more = {'FSCCL_DEVICE_TRANSPORT': transport} if ON_GPU else {}
    texts = rank_programs.check('fsdp2_training.py', 2, 20356, tmp_path, DEVICE, **more)
    # 4 groups of parameters, of which the outermost stays gathered for the backward pass.
    assert all('all_gather 42 reduce_scatter 24' in text for text in texts), '\n'.join(texts)
