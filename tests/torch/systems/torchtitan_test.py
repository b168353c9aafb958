# SPDX-License-Identifier: Apache-2.0
"""Tests TorchTitan's own trainers, the core one (FSDP2) and the one of SimpleFSDP, with fsccl as
the backend of CPU tensors.

TorchTitan 0.3 does not train on CPUs. It takes the device for "cuda" even if there is no GPU, and
trains language models with FlexAttention, which has no backward on CPUs. The test changes both from
outside. The trainers themselves are unchanged."""

import functools
import json
import random
import types

import pytest
import system
import tokenizers
import torch
import torch.distributed as dist
import torchtitan.tools.utils as titan_utils
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask

WORDS = [f'w{number}' for number in range(300)]
TRAINERS = {
    'core': ('llama3', 'llama3_debugmodel'),
    'simple_fsdp': ('graph_trainer.llama3', 'graph_trainer_llama3_debugmodel'),
}


def write_assets(folder):
    """Writes a tokenizer and a text of random words, in place of what TorchTitan would download."""
    special = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>'}
    vocabulary = {word: number for number, word in enumerate([*special.values(), *WORDS])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='<unk>'))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.save(str(folder / 'tokenizer.json'))
    (folder / 'tokenizer_config.json').write_text(json.dumps(special))
    (folder / 'data').mkdir()
    choose = random.Random(3)
    lines = (json.dumps({'text': ' '.join(choose.choices(WORDS, k=50))}) + '\n' for _ in range(200))
    (folder / 'data/data.json').write_text(''.join(lines))


def use_host_memory():
    """Makes the CPU the device. This comes before anything else of TorchTitan is loaded."""

    def nothing(*_, **__):
        return None

    device = types.ModuleType('host')
    device.__dict__.update(
        {name: value for name, value in vars(torch.cpu).items() if not name.startswith('__')}
    )
    device.set_device = device.empty_cache = device.reset_peak_memory_stats = nothing
    device.get_device_name, device.current_device, device.device_count = (
        lambda *_: 'cpu',
        lambda: 0,
        lambda: 1,
    )
    device.get_device_properties = lambda *_: types.SimpleNamespace(
        total_memory=1 << 34, name='cpu'
    )
    device.memory_stats = lambda *_: {}
    titan_utils.device_type, titan_utils.device_module = 'cpu', device
    titan_utils.get_local_device = lambda: torch.device('cpu')


def use_attention_of_the_cpu():
    from torchtitan.models.common.attention import FlexAttention

    def attention(query, key, value, *, block_mask, scale, enable_gqa, **_):
        mask = create_mask(
            block_mask.mask_mod, query.shape[0], None, query.shape[2], key.shape[2], device='cpu'
        )
        options = {'attn_mask': mask, 'scale': scale, 'enable_gqa': enable_gqa}
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options), None

    FlexAttention.compiled_flex_attn = staticmethod(attention)


def use_sums_on_gloo():
    """Makes FSDP2 sum on gloo. TorchTitan sets a divisor of 1, which FSDP2 turns into PREMUL_SUM,
    and gloo has no such operator."""
    set_divisor = FSDPModule.set_gradient_divide_factor

    def set_divisor_and_sum(module, factor):
        set_divisor(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_divisor_and_sum


def train(rank, ranks, backend, trainer, folder):
    dist.Backend.default_device_backend_map['cpu'] = backend
    use_host_memory()
    use_attention_of_the_cpu()
    if backend == 'gloo':
        use_sums_on_gloo()
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.config import ConfigManager

    losses, log = [], MetricsProcessor.log

    def keep_and_log(self, step, loss, *rest, **options):
        losses.append(float(loss))
        return log(self, step, loss, *rest, **options)

    MetricsProcessor.log = keep_and_log
    module, config = TRAINERS[trainer]
    options = {
        'module': module,
        'config': config,
        'hf_assets_path': folder,
        'dump_folder': folder / f'{backend}-{trainer}',
        'dataloader.dataset': 'c4_test',
        'dataloader.dataset_path': folder / 'data',
        'training.steps': system.STEPS,
        'training.seq_len': 64,
        'training.local_batch_size': 2,
        'training.mixed_precision_param': 'float32',
        'debug.seed': 1,
        'metrics.log_freq': 1,
        'comm.trace_buf_size': 0,
    }
    words = [word for name, value in options.items() for word in (f'--{name}', str(value))]
    switches = ['--training.disable_cuda_graphs', '--validator.no-enable', '--checkpoint.no-enable']
    built = ConfigManager().parse_args(words + switches).build()
    assert dist.get_backend() == backend
    built.train()
    parameters = {
        name: system.whole(parameter)
        for part in built.model_parts
        for name, parameter in part.named_parameters()
    }
    built.close()
    return {'losses': losses, 'parameters': parameters}


@pytest.mark.parametrize('trainer', TRAINERS)
def test_two_ranks(trainer, tmp_path):
    write_assets(tmp_path)
    system.compare(
        functools.partial(train, trainer=trainer, folder=tmp_path), reference=False, own_group=True
    )
