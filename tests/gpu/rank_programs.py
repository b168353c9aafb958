# SPDX-License-Identifier: Apache-2.0
"""Runs training with ranks that are programs of their own, on one GPU or without one, and compares
their losses with those of one process without FSCCL."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from llama import RATE, STEPS, Llama, batch, loss_of

LIMIT_S = min(
    200, 20 + float(os.environ.get('TEST_SECONDS', '200'))
)  # to import torch, and of a test


def check(program, ranks, port, folder, device, **more):
    """Runs a program that prints a line `loss NUMBER` for each step, and checks the losses. The
    test is skipped if the program ends with 77, which says that it cannot run here."""
    texts, codes = _run(program, ranks, port, folder, more)
    if all(code == 77 for code in codes):
        if os.environ.get('TEST_NEEDS_GPU') and 'nvcc' not in texts[0]:
            pytest.fail(texts[0])
        pytest.skip(texts[0].strip().splitlines()[-1])
    assert codes == [0] * ranks, '\n'.join(texts)
    wanted = _reference(ranks, device)
    assert wanted[0][-1] < wanted[0][0], 'the reference does not learn'
    for rank in range(ranks):
        found = [
            float(line.split()[1]) for line in texts[rank].splitlines() if line.startswith('loss ')
        ]
        assert found == pytest.approx(wanted[rank], rel=1e-4), f'rank {rank}'
    return texts


def _run(program, ranks, port, folder, more):
    """Returns the outputs of the ranks, and their exit codes. NCCL takes each rank for a host of
    its own, because it refuses two ranks of a host on one GPU."""
    job = {
        'WORLD_SIZE': str(ranks),
        'LOCAL_WORLD_SIZE': str(ranks),
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(port),
        'TORCHELASTIC_RUN_ID': f'training-{os.getpid()}',
        'OMP_NUM_THREADS': '1',
        'NCCL_MULTI_RANK_GPU_ENABLE': '1',
        'NCCL_NET': 'Socket',
        'NCCL_SOCKET_IFNAME': 'lo',
        'NCCL_MAX_CTAS': '2',
        **more,
    }
    outputs = [open(folder / f'rank{rank}', 'w+', encoding='utf-8') for rank in range(ranks)]
    started = [
        subprocess.Popen(
            [sys.executable, Path(__file__).with_name(program)],
            stdout=outputs[rank],
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **job,
                'RANK': str(rank),
                'LOCAL_RANK': str(rank),
                'NCCL_HOSTID': f'host{rank}',
            },
        )
        for rank in range(ranks)
    ]
    until = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < until and any(process.poll() is None for process in started):
            time.sleep(0.05)
    finally:
        for process in started:
            process.kill()
    codes, texts = [process.wait() for process in started], []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    return texts, codes


def _reference(ranks, device):
    """Returns the losses of each rank, from training in this process with the mean gradient of all
    ranks."""
    model, losses = Llama().to(device), [[] for _ in range(ranks)]
    for step in range(STEPS):
        model.zero_grad()
        for rank in range(ranks):
            words, wanted = batch(step, rank, device)
            loss = loss_of(model(words), wanted)
            (loss / ranks).backward()
            losses[rank].append(loss.item())
        with torch.no_grad():
            for param in model.parameters():
                param.sub_(param.grad, alpha=RATE)
    return losses
