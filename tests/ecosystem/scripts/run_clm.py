# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains a causal language model from scratch on a text file, with Trainer.

It says nothing about devices, and has the arguments that such scripts have:

    python run_clm.py --config_name FOLDER --tokenizer_name FOLDER --train_file FILE
        --validation_file FILE --output_dir FOLDER --do_train --do_eval
"""

import math
from dataclasses import dataclass, field

import torch
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ModelArguments:
    config_name: str
    tokenizer_name: str
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "of the configuration: n_embd=10,n_layer=2"},
    )


@dataclass
class DataArguments:
    train_file: str
    validation_file: str
    block_size: int = 128


def blocks_of(rows, size):
    """Joins the tokens of rows, and cuts them into blocks of one size."""
    joined = {name: [x for row in rows[name] for x in row] for name in rows}
    whole = len(joined["input_ids"]) // size * size
    out = {
        name: [tokens[i : i + size] for i in range(0, whole, size)]
        for name, tokens in joined.items()
    }
    return {**out, "labels": [list(block) for block in out["input_ids"]]}


def most_likely(logits, labels):
    """Only the tokens are kept of an evaluation, not their logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def accuracy(found):
    wanted, given = found.label_ids[:, 1:], found.predictions[:, :-1]
    return {"accuracy": float((wanted == given).mean())}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    of_model, of_data, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    files = {"train": of_data.train_file, "validation": of_data.validation_file}
    texts = load_dataset("text", data_files=files)
    tokenizer = AutoTokenizer.from_pretrained(of_model.tokenizer_name)
    config = AutoConfig.from_pretrained(of_model.config_name)
    if of_model.config_overrides:
        config.update_from_string(of_model.config_overrides)
    model = AutoModelForCausalLM.from_config(config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    tokens = texts.map(
        lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=["text"]
    )
    blocks = tokens.map(lambda rows: blocks_of(rows, of_data.block_size), batched=True)

    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=blocks["train"] if training.do_train else None,
        eval_dataset=blocks["validation"] if training.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=most_likely,
    )
    if training.do_train:
        result = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if training.do_eval:
        metrics = trainer.evaluate()
        metrics["perplexity"] = math.exp(metrics["eval_loss"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    prompt = tokenizer("The", return_tensors="pt").to(model.device)
    with torch.no_grad():
        found = model.eval().generate(**prompt, max_new_tokens=20, do_sample=False)
    print("generated:", tokenizer.decode(found[0]).encode("unicode_escape").decode())


if __name__ == "__main__":
    main()
