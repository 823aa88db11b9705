"""An encoder of another shape, taught by a larger one to give its hidden states on unlabelled texts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.trainer_callback import PrinterCallback

from rheostat.data import Collator, ReadOptions, read_corpus, tokenize
from rheostat.errors import OptionError
from rheostat.preparing import load_tokenizer_of
from rheostat.training import ProgressToStderr, RowOrder, StageOptions, last_checkpoint, training_arguments


class Distillation(nn.Module):
    """Mean squared error of projected hidden states, the last ones and the embeddings, over tokens.

    Attributes:
        student: The encoder that learns.
        last: Projects its last hidden states to the teacher's width.
        first: Projects its embeddings.
    """

    def __init__(self, student: Any, teacher: Any) -> None:
        """Keep the teacher out of what is trained and saved."""
        super().__init__()
        width, wanted = student.config.hidden_size, teacher.config.hidden_size
        self.student, self.last, self.first = student, nn.Linear(width, wanted), nn.Linear(width, wanted)
        self.__dict__["teacher"] = teacher.eval().requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> dict[str, Tensor]:
        """Return the loss of a batch (B, S)."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "output_hidden_states": True}
        with torch.no_grad():
            wanted = self.__dict__["teacher"].to(input_ids.device)(**inputs).hidden_states
        found = self.student(**inputs).hidden_states
        keep = attention_mask.bool()
        loss = input_ids.new_zeros((), dtype=torch.float32)
        for project, own, other in ((self.last, found[-1], wanted[-1]), (self.first, found[0], wanted[0])):
            target = other[keep]
            loss = loss + nn.functional.mse_loss(project(own[keep]), target) / target.var()
        return {"loss": loss}


class RowOrderTrainer(transformers.Trainer):
    """The Trainer with rows in an order that a resumed run finds again."""

    def _get_train_sampler(self, train_dataset: Any = None) -> RowOrder:
        rows, args = self.train_dataset, self.args
        return RowOrder(rows["length"], args.train_batch_size, args.seed, lambda: int(self.state.epoch or 0))


def distil(
    teacher_name: str,
    data: str,
    read: ReadOptions,
    folder: Path,
    *,
    seed: int,
    hidden_size: int,
    layers: int,
    heads: int,
    intermediate_size: int,
    max_length: int,
    epochs: float,
    learning_rate: float = 5e-4,
    dropout: float = 0.1,
) -> None:
    """Write a BERT of this shape and the teacher's tokenizer, in the Hugging Face layout; resumes where it stopped.

    Words begin with the leading principal components of the teacher's embeddings; labels are never read.

    Args:
        teacher_name: Folder or Hub name of the larger encoder.
        data: The rows; only training texts are used.
        read: How they are read.
        folder: Where it goes; ``FOLDER.steps`` keeps what a stopped run resumes from.
        seed: Of everything random.
        hidden_size: E.
        layers: L.
        heads: H a layer.
        intermediate_size: F.
        max_length: Tokens a row.
        epochs: Passes over the texts.
        learning_rate: Largest.
        dropout: Of hidden states and attention, in its config.
    """
    tokenizer = load_tokenizer_of(teacher_name)
    teacher = transformers.AutoModel.from_pretrained(teacher_name)
    corpus = read_corpus(data, read)
    rows = tokenize(corpus.train, tokenizer, labels=corpus.labels, task=corpus.task, max_length=max_length).dataset
    transformers.set_seed(seed)
    config = transformers.BertConfig(
        vocab_size=teacher.config.vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
        max_position_embeddings=teacher.config.max_position_embeddings,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    student = transformers.BertModel(config)
    words = teacher.get_input_embeddings().weight.detach()  # (V, wanted)
    if hidden_size > words.shape[1]:
        raise OptionError(f"hidden_size must be at most the teacher's {words.shape[1]}; got {hidden_size}")
    _, _, components = torch.pca_lowrank(words, q=hidden_size, niter=4)
    with torch.no_grad():
        student.get_input_embeddings().weight.copy_((words - words.mean(0)) @ components)
    steps = folder.with_name(f"{folder.name}.steps")
    options = StageOptions(epochs=epochs, learning_rate=learning_rate, seed=seed)
    objective = Distillation(student, teacher)
    trainer = RowOrderTrainer(
        model=objective,
        args=training_arguments(options, steps),
        train_dataset=rows.select_columns(["input_ids", "attention_mask", "length"]),
        data_collator=Collator(tokenizer),
        callbacks=[ProgressToStderr("Distilling")],
    )
    trainer.remove_callback(PrinterCallback)
    last = last_checkpoint(steps)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    student.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(steps, ignore_errors=True)
