# SPDX-License-Identifier: Apache-2.0
"""Compares training with torch's own FSDP2, all bytes of which move over collectives of FSCCL's C
API (fsdp2_training.py), with the same training in one process without FSDP2 and FSCCL. It needs a
torch whose FSDP2 accepts custom collectives, such as 2.11. It does not test
fsccl_torch.fsdp2.enable(), which uses units and needs torch 2.14 (torch_test.py). The ranks share a
GPU, or use the host's memory if there is none."""

import pytest
import rank_programs
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda', 0) if ON_GPU else torch.device('cpu')


@pytest.mark.parametrize('transport', ['auto', 'nccl', 'staged'] if ON_GPU else ['host'])
def test_losses_are_those_of_one_process(transport, tmp_path):
    more = {'FSCCL_DEVICE_TRANSPORT': transport} if ON_GPU else {}
    texts = rank_programs.check('fsdp2_training.py', 2, 20356, tmp_path, DEVICE, **more)
    # There are 4 groups of parameters. The outermost stays gathered for the backward pass.
    assert all('all_gather 42 reduce_scatter 24' in text for text in texts), '\n'.join(texts)
