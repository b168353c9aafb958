# SPDX-License-Identifier: Apache-2.0
"""Tests supervised fine-tuning with TRL, of a Llama with random weights on generated tokens."""

import os
import tempfile

os.environ.update(HF_HUB_OFFLINE='1', TRANSFORMERS_OFFLINE='1', HF_DATASETS_OFFLINE='1')

import huggingface_test as huggingface
import system
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Losses(TrainerCallback):
    def __init__(self):
        self.found = []

    def on_log(self, _arguments, _state, _control, logs, **_):
        if 'loss' in logs:
            self.found.append(float(logs['loss']))


def tokenizer():
    words = {f'w{i}': i for i in range(system.VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token='w0')),
        pad_token='w0',
        eos_token='w1',
        unk_token='w0',
    )


def tuned(rank, ranks):
    """TRL's trainer uses the process group that exists, as the Trainer of transformers does."""
    rows = [
        {'input_ids': tokens.tolist()}
        for step in range(4 * system.STEPS)
        for tokens in system.batch(step, 0, 1)[0]
    ]
    losses = Losses()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            huggingface.new_llama(),
            SFTConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                max_steps=system.STEPS,
                per_device_train_batch_size=system.SEQUENCES,
                gradient_accumulation_steps=2,
                learning_rate=1e-2,
                logging_steps=1,
                report_to=[],
                save_strategy='no',
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer(),
            callbacks=[losses],
        )
        trainer.train()
    assert trainer.args.world_size == ranks
    return system.result(trainer.model, losses.found)


def test_supervised_fine_tuning():
    system.compare(tuned, reference=False)
