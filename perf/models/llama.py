#!/usr/bin/env python3
"""Writes a Llama model's list of FSDP units from its published configuration: one unit a layer, and the root (embedding,
final norm).

    llama.py > llama-3.2-1b.json

The numbers are those of config.json of meta-llama/Llama-3.2-1B. The output head is tied to the embedding, so it has no bytes
of its own.
"""
import json

NAME, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, MLP, VOCAB = "llama-3.2-1b", 2048, 16, 32, 8, 64, 8192, 128256


def layer(index):
    return {"name": f"layers.{index}", "params": [
        ["self_attn.q_proj.weight", [HEADS * HEAD, HIDDEN]],
        ["self_attn.k_proj.weight", [KV_HEADS * HEAD, HIDDEN]],
        ["self_attn.v_proj.weight", [KV_HEADS * HEAD, HIDDEN]],
        ["self_attn.o_proj.weight", [HIDDEN, HEADS * HEAD]],
        ["mlp.gate_proj.weight", [MLP, HIDDEN]],
        ["mlp.up_proj.weight", [MLP, HIDDEN]],
        ["mlp.down_proj.weight", [HIDDEN, MLP]],
        ["input_layernorm.weight", [HIDDEN]],
        ["post_attention_layernorm.weight", [HIDDEN]],
    ]}


root = {"name": "root", "params": [["embed_tokens.weight", [VOCAB, HIDDEN]], ["norm.weight", [HIDDEN]]]}
units = ",\n".join("    " + json.dumps(unit) for unit in [root] + [layer(index) for index in range(LAYERS)])
print(f'{{\n  "name": "{NAME}",\n  "units": [\n{units}\n  ]\n}}')
