#!/usr/bin/env python3
"""Writes the models' lists of FSDP units, one JSON file for each model, beside this script.

  models.py          # writes all files
  models.py --check  # only says whether the files are as they would be written

A unit is a layer or, in a mixture of experts, a layer's attention or its routed experts. The root
has the parameters that belong to no layer: the embedding, the final norm, and the output head
unless it is tied to the embedding. Shapes are [out, in] as in the published weights, with the
numbers of each model's config.json. The experts of a layer are stacked into one tensor, whose first
dimension is the expert. perf/model.h describes the format.
"""

import json
import pathlib
import sys


def dense_mlp(hidden, width, prefix='mlp'):
    return [
        [f'{prefix}.gate_proj.weight', [width, hidden]],
        [f'{prefix}.up_proj.weight', [width, hidden]],
        [f'{prefix}.down_proj.weight', [hidden, width]],
    ]


def stacked_experts(experts, hidden, width):
    return [
        ['mlp.experts.gate_proj', [experts, width, hidden]],
        ['mlp.experts.up_proj', [experts, width, hidden]],
        ['mlp.experts.down_proj', [experts, hidden, width]],
    ]


def attention(hidden, heads, kv_heads, head, biased=()):
    """Grouped-query attention; `biased` names the projections that have a bias."""
    params = []
    for name, shape in (
        ('q', [heads * head, hidden]),
        ('k', [kv_heads * head, hidden]),
        ('v', [kv_heads * head, hidden]),
        ('o', [hidden, heads * head]),
    ):
        params.append([f'self_attn.{name}_proj.weight', shape])
        if name in biased:
            params.append([f'self_attn.{name}_proj.bias', shape[:1]])
    return params


def latent_attention(hidden, heads, q_rank, kv_rank, nope, rope, value):
    """DeepSeek's multi-head latent attention (arXiv 2405.04434)."""
    return [
        ['self_attn.q_a_proj.weight', [q_rank, hidden]],
        ['self_attn.q_a_layernorm.weight', [q_rank]],
        ['self_attn.q_b_proj.weight', [heads * (nope + rope), q_rank]],
        ['self_attn.kv_a_proj_with_mqa.weight', [kv_rank + rope, hidden]],
        ['self_attn.kv_a_layernorm.weight', [kv_rank]],
        ['self_attn.kv_b_proj.weight', [heads * (nope + value), kv_rank]],
        ['self_attn.o_proj.weight', [hidden, heads * value]],
    ]


def norms(hidden):
    return [['input_layernorm.weight', [hidden]], ['post_attention_layernorm.weight', [hidden]]]


def root(hidden, vocabulary, tied=False):
    head = [] if tied else [['lm_head.weight', [vocabulary, hidden]]]
    return unit(
        'root', [['embed_tokens.weight', [vocabulary, hidden]], ['norm.weight', [hidden]]] + head
    )


def unit(name, params):
    return {'name': name, 'params': params}


def repeat(count, *units, first=0):
    return {'repeat': count, 'first': first, 'units': list(units)}


def llama(hidden, layers, heads, kv_heads, head, width, vocabulary, tied=False, biased=()):
    layer = (
        attention(hidden, heads, kv_heads, head, biased) + dense_mlp(hidden, width) + norms(hidden)
    )
    return [root(hidden, vocabulary, tied), repeat(layers, unit('layers.{}', layer))]


def mixtral():
    hidden, experts = 4096, 8
    attend = (
        attention(hidden, 32, 8, 128) + [['mlp.gate.weight', [experts, hidden]]] + norms(hidden)
    )
    return [
        root(hidden, 32000),
        repeat(
            32,
            unit('layers.{}.attention', attend),
            unit('layers.{}.experts', stacked_experts(experts, hidden, 14336)),
        ),
    ]


def deepseek_v3():
    """The main model, without the layer of multi-token prediction."""
    hidden, experts = 7168, 256
    attend = latent_attention(hidden, 128, 1536, 512, 128, 64, 128) + norms(hidden)
    shared = [
        ['mlp.gate.weight', [experts, hidden]],
        ['mlp.gate.e_score_correction_bias', [experts]],
    ]
    shared += dense_mlp(hidden, 2048, 'mlp.shared_experts')
    return [
        root(hidden, 129280),
        repeat(3, unit('layers.{}', attend + dense_mlp(hidden, 18432))),
        repeat(
            58,
            unit('layers.{}.attention', attend + shared),
            unit('layers.{}.experts', stacked_experts(experts, hidden, 2048)),
            first=3,
        ),
    ]


def gpt_oss_120b():
    hidden, width, experts, heads = 2880, 2880, 128, 64
    attend = attention(hidden, heads, 8, 64, biased='qkvo') + [['self_attn.sinks', [heads]]]
    attend += [['mlp.router.weight', [experts, hidden]], ['mlp.router.bias', [experts]]] + norms(
        hidden
    )
    routed = [
        ['mlp.experts.gate_up_proj', [experts, hidden, 2 * width]],
        ['mlp.experts.gate_up_proj_bias', [experts, 2 * width]],
        ['mlp.experts.down_proj', [experts, width, hidden]],
        ['mlp.experts.down_proj_bias', [experts, hidden]],
    ]
    return [
        root(hidden, 201088),
        repeat(36, unit('layers.{}.attention', attend), unit('layers.{}.experts', routed)),
    ]


MODELS = {
    'llama-3.2-1b': llama(2048, 16, 32, 8, 64, 8192, 128256, tied=True),
    'llama-3-8b': llama(4096, 32, 32, 8, 128, 14336, 128256),
    'llama-3-70b': llama(8192, 80, 64, 8, 128, 28672, 128256),
    'llama-3.1-405b': llama(16384, 126, 128, 8, 128, 53248, 128256),
    'qwen2.5-7b': llama(3584, 28, 28, 4, 128, 18944, 152064, biased='qkv'),
    'mixtral-8x7b': mixtral(),
    'deepseek-v3': deepseek_v3(),
    'gpt-oss-120b': gpt_oss_120b(),
}


def text_of_unit(one, indent):
    params = (',\n' + indent + '  ').join(json.dumps(param) for param in one['params'])
    return f'{indent}{{"name": "{one["name"]}", "params": [\n{indent}  {params}]}}'


def text_of_entry(entry):
    if 'repeat' not in entry:
        return text_of_unit(entry, '    ')
    units = ',\n'.join(text_of_unit(one, '      ') for one in entry['units'])
    return f'    {{"repeat": {entry["repeat"]}, "first": {entry["first"]}, "units": [\n{units}]}}'


def main():
    wrong = 0
    for name, entries in MODELS.items():
        path = pathlib.Path(__file__).parent / f'{name}.json'
        text = (
            f'{{\n  "name": "{name}",\n  "units": [\n'
            + ',\n'.join(text_of_entry(entry) for entry in entries)
            + '\n  ]\n}\n'
        )
        if sys.argv[1:] != ['--check']:
            path.write_text(text, encoding='utf-8')
        elif not path.is_file() or path.read_text(encoding='utf-8') != text:
            print(f'{path.name} differs from what models.py writes; run models.py')
            wrong = 1
    sys.exit(wrong)


if __name__ == '__main__':
    main()
