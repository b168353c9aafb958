# SPDX-License-Identifier: Apache-2.0
"""Compares what export_model() says of a token for a module on the meta device with real
tensors."""

import ctypes
import json
import os

import fsccl_torch
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

WIDTH, HEADS, FFN, VOCABULARY, LAYERS = 64, 4, 256, 1000, 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)
        x = x + self.out_proj((scores @ v).transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def on_meta():
    with torch.device('meta'):
        return Network()


def test_units_and_operations():
    model = fsccl_torch.export_model(on_meta(), sequence=128, batch=2)
    assert [unit['name'] for unit in model['units']] == ['root', 'layers.0', 'layers.1', 'layers.2']
    elements = sum(
        torch.Size(shape).numel() for unit in model['units'] for _, shape in unit['params']
    )
    assert elements == sum(value.numel() for value in Network().parameters())
    layer = model['units'][1]
    assert layer['forward_flops'] == pytest.approx(2 * (4 * WIDTH * WIDTH + 2 * WIDTH * FFN))
    assert layer['forward_flops_per_context'] == pytest.approx(4 * WIDTH)
    assert model['units'][0]['forward_flops'] == pytest.approx(2 * WIDTH * VOCABULARY)
    with FlopCounterMode(display=False) as counter:
        Network()(torch.zeros((2, 96), dtype=torch.int64))
    said = sum(
        unit['forward_flops'] + 96 * unit['forward_flops_per_context'] for unit in model['units']
    )
    assert said * 2 * 96 == pytest.approx(counter.get_total_flops())


def test_activations_against_the_tracker_of_torch():
    """The bytes held after the forward pass are those that torch's dispatch mode counts, within 5
    %."""
    batch, length = 4, 64
    network, tracker = Network(), MemTracker()
    tracker.track_external(network)
    with tracker:
        output = network(torch.zeros((batch, length), dtype=torch.int64))
        held = tracker.get_tracker_snapshot('current')[torch.device('cpu')]
    counted = next(
        size for kind, size in held.items() if getattr(kind, 'value', kind) == 'Activation'
    )
    model = fsccl_torch.export_model(on_meta(), sequence=length, batch=batch)
    said = sum(unit['activation_bytes'] for unit in model['units']) * batch * length
    assert output.requires_grad and said == pytest.approx(counted, rel=0.05), (said, held)


def test_checkpoint_is_the_input():
    model = fsccl_torch.export_model(on_meta(), sequence=128)
    for unit in model['units'][1:]:
        assert unit['checkpoint_bytes'] == 4 * WIDTH < unit['activation_bytes'] / 5


def test_own_units_names_and_file(tmp_path):
    path = tmp_path / 'model.json'
    units = ['embed', 'layers.0', 'layers.1', 'layers.2', 'head']
    model = fsccl_torch.export_model(on_meta(), units=units, name='net', path=path)
    assert json.loads(path.read_text()) == model and model['name'] == 'net'
    assert [unit['name'] for unit in model['units']] == ['root', *units]


def test_the_library_forecasts_it():
    library = ctypes.CDLL(os.environ['FSCCL_TORCH_LIBRARY'])
    answers = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    take = kind(lambda _, text, size: answers.append(text))
    machine = {'name': 'hosts', 'ranks_per_host': 4, 'tflops': {'bf16': 1}}
    given = {'model': fsccl_torch.export_model(on_meta()), 'machine': machine, 'ranks': 8}
    assert library.fsccl_forecast(json.dumps(given).encode(), take, None) == 0
    answer = json.loads(answers[0])
    assert answer['step']['step_s'] > 0 and not answer['model']['estimated']


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='parameter embed.weight is on cpu: make the module'):
        fsccl_torch.export_model(Network())
    with pytest.raises(ValueError, match="no submodule 'blocks.0'"):
        fsccl_torch.export_model(on_meta(), units=['blocks.0'])
    with pytest.raises(ValueError, match='2 or more tokens'):
        fsccl_torch.export_model(on_meta(), sequence=1)
