# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer with FSDP2 on Python's own documentation, character by character,
while another process writes text with the weights of the newest step.

  pip install ./bindings/python ./bindings/torch
  torchrun --standalone --nproc-per-node 2 examples/torch/publish_weights.py --ticket weights.ticket
  python examples/torch/publish_weights.py --generate --ticket weights.ticket

The first command trains, and the second one writes. The second may start before or after the first,
may start again, and may be killed at any time. Two lines publish the weights: publish() after
optimizer.step(), and update() before each text.
"""

import argparse
import pathlib
import pydoc_data.topics
import time

import fsccl_torch
import torch
import torch.distributed as dist
from fsdp2_train import CHARACTERS, Transformer
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TEXT = torch.tensor(list(''.join(pydoc_data.topics.topics.values()).encode()))


def make_model(arguments):
    torch.manual_seed(0)
    return Transformer(arguments.width, arguments.layers, arguments.heads, arguments.tokens)


def train(arguments):
    fsccl_torch.from_launcher()
    dist.init_process_group('fsccl')
    rank = dist.get_rank()
    model = make_model(arguments)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    generator = torch.Generator().manual_seed(rank)
    publisher = None
    for step in range(1, arguments.steps + 1):
        starts = torch.randint(
            len(TEXT) - arguments.tokens, (arguments.sequences, 1), generator=generator
        )
        text = TEXT[starts + torch.arange(arguments.tokens + 1)]
        logits = model(text[:, :-1]).flatten(0, 1).float()
        loss = nn.functional.cross_entropy(logits, text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        publisher = fsccl_torch.publish(model, label=step, ticket=arguments.ticket)
        if rank == 0 and (step % 10 == 0 or step == arguments.steps):
            report = publisher.report()
            share = report['record_bytes'] / report['words_bytes']
            print(
                f'step {step}  loss {loss.item():.3f}  published {100 * share:.0f} % of the bytes '
                f'to {report["subscribers"]} subscribers',
                flush=True,
            )
    publisher.close()
    dist.destroy_process_group()


@torch.no_grad()
def write(model, arguments, generator):
    text = torch.tensor([list(arguments.begin.encode())])
    for _ in range(arguments.length):
        logits = model(text[:, -arguments.tokens :])[0, -1].float() / arguments.temperature
        following = torch.multinomial(logits.softmax(0), 1, generator=generator)
        text = torch.cat([text, following[None]], 1)
    return bytes(byte for byte in text[0].tolist() if byte < CHARACTERS).decode(errors='replace')


ERR_PEER_DEAD, ERR_TIMEOUT = -60, -63


def find(state, path):
    """Subscribes to what the ticket in the file names. The file may be missing, or be that of a
    training which has ended: then the next training will write another."""
    tried = b''
    while True:
        ticket = path.read_bytes() if path.exists() else b''
        if ticket != tried:
            try:
                return fsccl_torch.subscribe(state, ticket=ticket)
            except fsccl_torch.FscclError as error:
                if error.code == ERR_TIMEOUT:
                    continue
                if error.code != ERR_PEER_DEAD:
                    raise
                print(f'wait for another ticket: {error}', flush=True)
            tried = ticket
        time.sleep(0.1)


def generate(arguments):
    model, generator = make_model(arguments), torch.Generator().manual_seed(0)
    with find(model.state_dict(), pathlib.Path(arguments.ticket)) as weights:
        while True:
            try:
                version = weights.update(timeout=None)
            except fsccl_torch.FscclError as ended:
                print(f'end: {ended}')
                return
            if version:
                text = write(model, arguments, generator)
                print(f'--- step {version.label}\n{text}', flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--ticket', required=True, help='a file that the first process makes')
    parser.add_argument('--generate', action='store_true', help='write text, do not train')
    parser.add_argument('--begin', default='The ', help='how each text begins')
    parser.add_argument('--rate', type=float, default=1e-3)
    parser.add_argument('--temperature', type=float, default=0.7)
    for name, default in {
        'steps': 200,
        'width': 128,
        'layers': 4,
        'heads': 4,
        'sequences': 8,
        'tokens': 64,
        'length': 80,
    }.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    arguments = parser.parse_args()
    (generate if arguments.generate else train)(arguments)


if __name__ == '__main__':
    main()
