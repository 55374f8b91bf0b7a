# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Fine-tunes a model on pairs of sentences with a label, with Trainer.

It says nothing about devices, and has the arguments that such scripts have:

    python run_glue.py --model_name_or_path FOLDER --train_file FILE.csv
        --validation_file FILE.csv --output_dir FOLDER --do_train --do_eval --do_predict
"""

import os
from dataclasses import dataclass

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class Arguments:
    model_name_or_path: str
    train_file: str
    validation_file: str
    max_seq_length: int = 64
    pad_to_max_length: bool = False


def measured(found):
    given = np.argmax(found.predictions, axis=1)
    return {"accuracy": (given == found.label_ids).astype(np.float32).mean().item()}


def main():
    parser = HfArgumentParser((Arguments, TrainingArguments))
    ours, training = parser.parse_args_into_dataclasses()
    set_seed(training.seed)

    files = {"train": ours.train_file, "validation": ours.validation_file}
    rows = load_dataset("csv", data_files=files)
    names = sorted(rows["train"].unique("label"))
    config = AutoConfig.from_pretrained(ours.model_name_or_path, num_labels=len(names))
    tokenizer = AutoTokenizer.from_pretrained(ours.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(
        ours.model_name_or_path, config=config
    )
    ids = {name: i for i, name in enumerate(names)}
    model.config.label2id = ids
    model.config.id2label = dict(enumerate(names))

    def tokenized(examples):
        out = tokenizer(
            examples["sentence1"],
            examples["sentence2"],
            padding="max_length" if ours.pad_to_max_length else False,
            max_length=ours.max_seq_length,
            truncation=True,
        )
        out["labels"] = [ids[name] for name in examples["label"]]
        return out

    rows = rows.map(tokenized, batched=True, remove_columns=["label"])
    eight = 8 if training.fp16 else None
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=rows["train"] if training.do_train else None,
        eval_dataset=rows["validation"] if training.do_eval else None,
        compute_metrics=measured,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=eight),
    )
    if training.do_train:
        result = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
    if training.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training.do_predict:
        unlabelled = rows["validation"].remove_columns("labels")
        found = trainer.predict(unlabelled, metric_key_prefix="predict").predictions
        path = os.path.join(training.output_dir, "predict_results.txt")
        with open(path, "w") as file:
            for i, item in enumerate(np.argmax(found, axis=1)):
                file.write(f"{i}\t{names[item]}\n")


if __name__ == "__main__":
    main()
