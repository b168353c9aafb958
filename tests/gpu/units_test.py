# SPDX-License-Identifier: Apache-2.0
"""Training on units of device memory by the C API (unit_training.py) against the same training in one process without FSCCL. Any
torch with CUDA; with STAND_IN=1 over the stand-in driver, on the CPU."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from llama import Llama, batch, loss_of

STEPS, RATE = 6, 0.5  # of unit_training.py
STAND_IN = bool(os.environ.get("STAND_IN"))


def reference(ranks, device):
    """The losses of each rank: the gradient is the mean of the ranks'."""
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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_are_those_of_one_process(ranks, tmp_path):
    job = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20350 + ranks),
           "TORCHELASTIC_RUN_ID": f"units-{os.getpid()}", "OMP_NUM_THREADS": "1", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    outputs = [open(tmp_path / f"rank{rank}", "w+", encoding="utf-8") for rank in range(ranks)]
    started = [subprocess.Popen([sys.executable, Path(__file__).with_name("unit_training.py")], stdout=outputs[rank],
                                stderr=subprocess.STDOUT,
                                env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"host{rank}"})
               for rank in range(ranks)]
    try:
        codes = [process.wait(200) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    if all(code == 77 for code in codes):
        if os.environ.get("TEST_NEEDS_GPU") and "nvcc" not in texts[0]:
            pytest.fail(texts[0])
        pytest.skip(texts[0].strip().splitlines()[-1])
    assert codes == [0] * ranks, "\n".join(texts)
    wanted = reference(ranks, torch.device("cpu") if STAND_IN else torch.device("cuda", 0))
    assert wanted[0][-1] < wanted[0][0], "the reference does not learn"
    for rank in range(ranks):
        found = [float(line.split()[1]) for line in texts[rank].splitlines() if line.startswith("loss ")]
        assert found == pytest.approx(wanted[rank], rel=1e-4), f"rank {rank}"
