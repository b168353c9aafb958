# SPDX-License-Identifier: Apache-2.0
"""Compares what export_model() says of a token for a module on the meta device with real
tensors."""

import ctypes
import json
import os
import pathlib

import fsccl_torch
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, HEADS, FFN, VOCABULARY, LAYERS = 64, 4, 256, 1000, 3


class Layer(nn.Module):
    attention = 'own'

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
        if self.attention == 'own':
            heads = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        elif self.attention == 'masked':
            mask = torch.ones((length, length), dtype=torch.bool, device=x.device).tril()
            heads = F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask)
        elif self.attention == 'grouped':
            k, v = k[:, :2], v[:, :2]
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(heads.transpose(1, 2).reshape(batch, length, WIDTH))
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


@pytest.mark.parametrize('attention', ['own', 'fused'])
def test_activations_against_the_tracker_of_torch(attention, monkeypatch):
    """The bytes held after the forward pass are those that torch's dispatch mode counts, within 5
    %."""
    monkeypatch.setattr(Layer, 'attention', attention)
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


class WithLoss(nn.Module):
    def __init__(self, within, compute):
        super().__init__()
        self.network, self.within = Network().to(compute), within

    def forward(self, tokens):
        logits = self.network(tokens)
        return self.loss(logits, tokens) if self.within else logits

    @staticmethod
    def loss(logits, tokens):
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), tokens.view(-1))


@pytest.mark.parametrize('compute', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('within', [True, False])
def test_the_peak_of_a_loss_is_that_of_the_tracker(within, compute, monkeypatch):
    """When the backward pass begins, the gradients of logits are there beside all activations."""
    monkeypatch.setattr(Layer, 'attention', 'fused')
    batch, length = 4, 64
    module, tracker = WithLoss(within, compute), MemTracker()
    tracker.track_external(module)
    tokens = torch.zeros((batch, length), dtype=torch.int64)
    with tracker:
        output = module(tokens)
        (output if within else module.loss(output, tokens)).backward()
    peak = {
        getattr(kind, 'value', kind): size
        for kind, size in tracker.get_tracker_snapshot('peak')[torch.device('cpu')].items()
    }
    with torch.device('meta'):
        units = fsccl_torch.export_model(WithLoss(within, compute), sequence=length)['units']
    said = sum(unit['activation_bytes'] for unit in units) + units[0]['loss_bytes']
    held = (peak['Activation'] + peak['Temp']) / (batch * length)
    assert said == pytest.approx(held, rel=0.05), peak


@pytest.mark.parametrize('attention', ['fused', 'masked', 'grouped'])
def test_fused_attention_saves_no_scores(attention, monkeypatch):
    monkeypatch.setattr(Layer, 'attention', attention)
    short, long = (fsccl_torch.export_model(on_meta(), sequence=n) for n in (128, 1024))
    assert short['sequence'] == 128 and long['sequence'] == 1024
    for of_short, of_long in zip(short['units'], long['units']):
        growth = of_long['activation_bytes'] / of_short['activation_bytes']
        # A mask is saved once, by the first layer: 2 or 4 bytes for each pair of tokens.
        assert growth == pytest.approx(1, abs=0.02) or attention == 'masked', of_long['name']
        assert of_long['forward_flops'] == pytest.approx(of_short['forward_flops'])
    last = long['units'][-1]
    assert last['forward_flops_per_context'] == pytest.approx(4 * WIDTH)
    assert last['activation_bytes'] < 64 * WIDTH * 4


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


class Chain(nn.Module):
    """Runs its modules one after the other. All are elements of one list, so none is the root's."""

    def __init__(self, *modules):
        super().__init__()
        self.layers = nn.ModuleList(modules)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_all_operations_belong_to_a_unit():
    """A module without parameters of its own, because it has none or they are those of an earlier
    one, is no unit, but what it computes counts."""
    with torch.device('meta'):
        embed, layer = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        tied = Chain(embed, layer, layer, nn.GELU(), head)
        head.weight = embed.weight
    model = fsccl_torch.export_model(tied, sequence=32)
    assert [unit['name'] for unit in model['units']] == ['layers.0', 'layers.1']
    first, second = model['units']
    assert first['forward_flops'] == pytest.approx(2 * WIDTH * VOCABULARY)
    assert second['forward_flops'] == pytest.approx(2 * 2 * WIDTH * WIDTH)
    assert first['activation_bytes'] >= 4 * (WIDTH + VOCABULARY) > 5 * first['checkpoint_bytes']
    network = on_meta()
    network.head.weight = network.embed.weight
    model = fsccl_torch.export_model(network, units=['embed', 'head'], sequence=32)
    assert [unit['name'] for unit in model['units']] == ['root', 'embed']
    assert model['units'][0]['forward_flops'] > 2 * WIDTH * VOCABULARY


def test_frozen_parameters_are_marked():
    module = on_meta()
    frozen = [name for name, _ in module.named_parameters()][1]
    module.get_parameter(frozen).requires_grad_(False)
    params = [
        param for unit in fsccl_torch.export_model(module)['units'] for param in unit['params']
    ]
    marked = [param for param in params if param[2:]]
    assert len(marked) == 1 and frozen.endswith(marked[0][0]) and marked[0][2] == 'frozen'
    assert forecast_of(module)['model']['trained_parameters'] < sum(
        parameter.numel() for parameter in module.parameters()
    )


def forecast_of(module, **more):
    """Forecasts a module on the meta device, or a dict that describes one."""
    library = ctypes.CDLL(os.environ['FSCCL_TORCH_LIBRARY'])
    answers = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    take = kind(lambda _, text, size: answers.append(text))
    machine = {'name': 'hosts', 'ranks_per_host': 4, 'tflops': {'bf16': 1, 'fp32': 1}}
    model = module if isinstance(module, dict) else fsccl_torch.export_model(module)
    given = {'model': model, 'machine': machine, 'ranks': 8, **more}
    assert library.fsccl_forecast(json.dumps(given).encode(), take, None) == 0
    return json.loads(answers[0])


class LlamaLayer(nn.Module):
    """A layer as torchtitan and others write it, with the names of perf/models/llama-3-8b.json."""

    def __init__(self, width=4096, heads=32, groups=8, ffn=14336):
        super().__init__()
        self.heads, self.groups = heads, groups
        inner = width // heads * groups
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.q_proj = nn.Linear(width, width, bias=False)
        self.self_attn.k_proj = nn.Linear(width, inner, bias=False)
        self.self_attn.v_proj = nn.Linear(width, inner, bias=False)
        self.self_attn.o_proj = nn.Linear(width, width, bias=False)
        self.mlp.gate_proj = nn.Linear(width, ffn, bias=False)
        self.mlp.up_proj = nn.Linear(width, ffn, bias=False)
        self.mlp.down_proj = nn.Linear(ffn, width, bias=False)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        y, of = self.input_layernorm(x), self.self_attn
        q, k, v = (
            each(y).view(batch, length, -1, width // self.heads).transpose(1, 2)
            for each in (of.q_proj, of.k_proj, of.v_proj)
        )
        q, k = (each + torch.cat(each.chunk(2, -1)[::-1], -1) for each in (q, k))  # rotations
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + of.o_proj(heads.transpose(1, 2).reshape(batch, length, width))
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


def estimated_of(model, compute):
    """Returns the bytes of a token that the library estimates for layers.0 of a model."""

    def total(layers):
        root = {**model['units'][0], 'forward_flops': 1, 'activation_bytes': 0}
        named = [{'name': f'layers.{i}', 'params': layer['params']} for i in range(layers)]
        answer = forecast_of({'name': 'm', 'units': [root, *named]}, sequence=1, compute=compute)
        return answer['memory']['activations_bytes']

    layer = model['units'][1]
    layer = layer['units'][0] if 'units' in layer else layer
    return total(2) - total(1)


def test_estimates_of_a_known_model_are_what_torch_keeps():
    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(128256, 4096)
            self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))

        def forward(self, tokens):
            x = self.embed_tokens(tokens)
            for layer in self.layers:
                x = layer(x)
            return x

    with torch.device('meta'):
        module = Llama().to(torch.bfloat16)
    layer = fsccl_torch.export_model(module)['units'][-1]
    known = json.loads((ROOT / 'perf/models/llama-3-8b.json').read_text())
    assert sorted(layer['params']) == sorted(known['units'][1]['units'][0]['params'])
    kept = estimated_of(known, 'bf16')
    assert kept == pytest.approx(layer['activation_bytes'], rel=0.005), layer['activation_bytes']
    assert layer['checkpoint_bytes'] == 2 * 4096


def test_estimates_of_layers_with_gelu_are_what_torch_keeps(monkeypatch):
    monkeypatch.setattr(Layer, 'attention', 'fused')
    model = fsccl_torch.export_model(on_meta())
    kept = estimated_of(model, 'fp32')
    assert kept == pytest.approx(model['units'][-1]['activation_bytes'], rel=0.02)


def test_the_library_forecasts_it():
    answer = forecast_of(on_meta())
    assert answer['step']['step_s'] > 0 and not answer['model']['estimated']


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match='parameter embed.weight is on cpu: make the module'):
        fsccl_torch.export_model(Network())
    with pytest.raises(ValueError, match="no submodule 'blocks.0'"):
        fsccl_torch.export_model(on_meta(), units=['blocks.0'])
    with pytest.raises(ValueError, match="'layers.0' is inside another unit"):
        fsccl_torch.export_model(on_meta(), units=['layers', 'layers.0'])
    with pytest.raises(ValueError, match='give a list of names'):
        fsccl_torch.export_model(on_meta(), units='layers.0')
    with pytest.raises(OSError):
        fsccl_torch.export_model(on_meta(), path='/nowhere/model.json')
    with pytest.raises(ValueError, match='has no parameters'):
        fsccl_torch.export_model(nn.GELU())
    with pytest.raises(ValueError, match='1 or more sequences'):
        fsccl_torch.export_model(on_meta(), batch=0)
    with pytest.raises(ValueError, match='2 or more tokens'):
        fsccl_torch.export_model(on_meta(), sequence=1)
