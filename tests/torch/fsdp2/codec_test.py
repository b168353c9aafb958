# SPDX-License-Identifier: Apache-2.0
"""Tests codecs of fsdp2.enable() between hosts. gather_codec="delta" changes no number and sends
fewer bytes. "int8", and codecs of reductions, change numbers a little. The two ranks are processes
that seem to be on different hosts (FSCCL_HOST_ID)."""

import os
import sys
import tempfile
import traceback

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

STEPS = 12
LOSSLESS_STEPS = 300


class Tied(nn.Module):
    """A model whose head has the weight of its embedding, and which has a frozen weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 128)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 129), nn.GELU(), nn.Linear(129, 128)) for _ in range(3)
        )
        self.layers[1][0].weight.requires_grad_(False)
        self.head = nn.Linear(128, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        hidden = self.embedding(words)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.head(hidden)


def train_with_events(codec):
    """Trains while steps are skipped, checkpoints are loaded and parameters become NaN. Returns the
    bits of the losses and of the parameters at the end, and the report of the codec."""
    import fsccl_torch.fsdp2

    torch.manual_seed(1)
    model, policy = Tied(), MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    fsccl_torch.fsdp2.enable(model, gather_codec=codec)
    optimizer, losses, saved = torch.optim.AdamW(model.parameters(), lr=1e-3), [], None
    for step in range(LOSSLESS_STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        words = torch.randint(64, (4, 16))
        logits = model(words).float().flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, words.roll(3, 1).flatten() * 7 % 64)
        loss.backward()
        if step % 5 != 2:
            optimizer.step()
        if step % 70 == 2:
            saved = {name: value.clone() for name, value in model.state_dict().items()}
        if step % 70 == 40 and dist.get_rank() == 0:
            with torch.no_grad():
                next(model.parameters()).to_local().view(-1)[5] = float('nan')
        if step % 70 == 42:
            model.load_state_dict(saved)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer.zero_grad()
        losses.append(loss.detach())
    tensors = [torch.stack(losses), *(param.full_tensor().detach() for param in model.parameters())]
    return [tensor.numpy().tobytes() for tensor in tensors], fsccl_torch.fsdp2.codec(model)


def train(codec, reduce_codec=None):
    """Returns the losses, the parameters at the end, and the report of the codecs."""
    import fsccl_torch.fsdp2

    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(3))
    )
    for block in model:
        fully_shard(
            block,
            mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        )
    fully_shard(
        model,
        mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )
    fsccl_torch.fsdp2.enable(model, gather_codec=codec, reduce_codec=reduce_codec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        loss = (model(torch.randn(8, 256)).float() - 1).square().mean()
        loss.backward()
        if step != 5:  # one step of the optimizer is skipped
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    parameters = [param.full_tensor().detach().tolist() for param in model.parameters()]
    return losses, parameters, fsccl_torch.fsdp2.codec(model)


def rank_main(rank, store, pipe):
    try:
        import fsccl_torch  # noqa: F401

        dist.init_process_group('fsccl', store=dist.FileStore(store, 2), rank=rank, world_size=2)
        pipe.send(
            (
                [train_with_events(codec) for codec in (None, 'delta-always')],
                train(None),
                train('delta-always'),
                train('int8'),
                train(None, 'int8-feedback'),
                train(None, 'int4'),
            )
        )
        dist.destroy_process_group()
    except Exception:
        pipe.send(traceback.format_exc())


def test_two_hosts_train_alike_with_fewer_bytes():
    context, before = mp.get_context('spawn'), os.environ.get('FSCCL_HOST_ID')
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(2):
            os.environ['FSCCL_HOST_ID'] = f'codec-{rank}'
            here, there = context.Pipe()
            process = context.Process(
                target=rank_main, args=(rank, folder + '/store', there), daemon=True
            )
            process.start()
            started.append((process, here))
        os.environ.pop('FSCCL_HOST_ID')
        if before is not None:
            os.environ['FSCCL_HOST_ID'] = before
        for _process, pipe in started:
            assert pipe.poll(240), 'a rank gave no result'
            result = pipe.recv()
            assert not isinstance(result, str), result
            events, plain, coded, rough, eight, four = result
            (before, _), (after, done) = events
            assert before == after
            assert done['mended'] == 0 and done['coded'] > 0.9 * done['gathers'] > 0, done
            losses, parameters, nothing = plain
            coded_losses, coded_parameters, done = coded
            assert losses == coded_losses
            assert parameters == coded_parameters
            assert nothing['gathers'] == 0 and done['coded'] > done['plain'] > 0, done
            assert done['plain_us'] > 0 and done['coded_us'] > 0 and done['declines'] == 0, done
            assert done['sent_bytes'] < 0.5 * done['plain_bytes'], done
            rough_losses, _, lost = rough
            assert lost['coded'] == lost['gathers'] > 0 and lost['beyond_bound'] == 0, lost
            assert lost['sent_bytes'] < 0.54 * lost['plain_bytes'], lost
            assert 0 < lost['max_error'] < 0.0079 and 0 < lost['bound'] < 0.0079, lost
            assert rough_losses != losses
            assert rough_losses == pytest.approx(losses, rel=0.01)
            assert nothing['reductions'] == done['reductions'] == 0
            # Without a codec the gradients that a rank has for the other host are bf16.
            for (sum_losses, _, sums), share, tolerance in (
                (eight, 0.53, 0.01),
                (four, 0.29, 0.05),
            ):
                assert sums['reductions'] >= STEPS and sums['gathers'] == 0, sums
                assert 0 < sums['reduce_sent_bytes'] < share * sums['reduce_plain_bytes'], sums
                assert sum_losses != losses
                assert sum_losses == pytest.approx(losses, rel=tolerance)
        for process, _ in started:
            process.join(60)


def test_an_unknown_codec_is_named(monkeypatch, caplog):
    from fsccl_torch import codecs

    monkeypatch.setattr(sys.modules['fsccl_torch.announce'], '_announced', set())
    with pytest.raises(
        ValueError,
        match="'zip' is not a codec: give 'delta', 'delta-always', 'delta-nibbles', "
        "'delta-fewest-bytes', 'fp8', 'int8', 'mxfp8' or",
    ):
        codecs.known_gather('zip')
    assert codecs.known_gather('none') is None and codecs.known_gather('delta') == 'delta'
    assert codecs.gather_codec('delta', torch.float32, False) is None
    assert codecs.gather_codec('delta', torch.bfloat16, True) is None
    assert codecs.gather_codec('delta', torch.bfloat16, False).kind == 1
    assert codecs.gather_codec('delta', torch.bfloat16, False).flags == 0
    for flags, name in ((2, 'delta-always'), (3, 'delta-nibbles'), (6, 'delta-fewest-bytes')):
        assert codecs.gather_codec(name, torch.bfloat16, False).flags == flags
    assert codecs.gather_codec('int8', torch.float32, False).kind == 3
    assert codecs.gather_codec('fp8', torch.bfloat16, True).kind == 2
    assert codecs.gather_codec('int8', torch.int32, False) is None
    with pytest.raises(ValueError, match="reduce_codec='delta' is not a codec: give 'bf16', "):
        codecs.known_reduction('delta')
    assert codecs.reduce_codec('int8', torch.float64, torch.float32) is None
    feedback = codecs.reduce_codec('int8-feedback', torch.bfloat16, torch.float32)
    assert (feedback.kind, feedback.flags, feedback.scope) == (3, 8, 0)
    assert codecs.known_reduction('int8-feedback-everywhere') == 'int8-feedback-everywhere'
    everywhere = codecs.reduce_codec('int8-feedback-everywhere', torch.float32, torch.float32)
    assert (everywhere.kind, everywhere.flags, everywhere.scope) == (3, 8, 1)
    assert codecs.gather_codec('mxfp8-everywhere', torch.bfloat16, False).scope == 1
    with pytest.raises(ValueError, match="'-everywhere' is not a codec"):
        codecs.known_gather('-everywhere')
    for wrong in (5, b'delta'):
        with pytest.raises(ValueError, match=f'gather_codec={wrong!r} is not a codec'):
            codecs.known_gather(wrong)
    monkeypatch.setenv('FSCCL_TORCH_GATHER_CODEC', 'zip')
    with pytest.raises(ValueError, match="^FSCCL_TORCH_GATHER_CODEC='zip' is not a codec"):
        codecs.known_gather(None)
    assert codecs.known_gather('none') is None and codecs.known_gather('int8') == 'int8'
    # Where a codec that was asked for is not used, the log says why and what to do.
    assert "'delta' is not used for parameters that are gathered as torch.float32" in caplog.text
    assert 'give MixedPrecisionPolicy(param_dtype=torch.bfloat16)' in caplog.text
    assert "'delta' is not used for gathers on GPUs: give 'int8', 'fp8' or 'mxfp8'" in caplog.text
    assert "'int8' is not used for gradients of torch.float64" in caplog.text
