"""Causal language models: texts without labels, blocks, losses of next tokens, perplexity over budgets, the CLI."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from random_models import make_inputs, make_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional as F
from typer.testing import CliRunner

import rheostat
from rheostat import DataError, OptionError
from rheostat.answers import counted_answers
from rheostat.checkpoint import CheckpointInfo
from rheostat.cli.app import app
from rheostat.data import Collator, ReadOptions, pack_blocks, read_corpus, with_padding
from rheostat.losses import budget_loss, distillation_loss, mixed_loss, task_losses
from rheostat.objectives import BudgetSampler, Objective
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions
from rheostat.scoring.language import perplexities
from rheostat.training import StageOptions, train_stage

WORDS = ["<unk>", "<end>", *"abcdefgh"]
TOKENS = {"bos_token_id": 1, "eos_token_id": 1}
SIZES = {"vocab_size": len(WORDS), **TOKENS}
CONSTANT = (("lr_scheduler_type", "constant"), ("warmup_steps", 0))  # the same steps whatever the end


@pytest.fixture(scope="module")
def words() -> Any:
    """A tokenizer of single letters without a padding token."""
    model = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    model.pre_tokenizer = Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>", eos_token="<end>")


def write_texts(path: Path, count: int, seed: int = 0) -> Path:
    """Texts that go up the alphabet, from anywhere: all but their first letter can be known."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        start = rng.randrange(8)
        texts.append(" ".join("abcdefgh"[(start + i) % 8] for i in range(rng.randint(4, 20))))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def save_model(folder: Path, words: Any, family: str) -> Path:
    if family == "gpt2":
        config: Any = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SIZES)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
            max_position_embeddings=64, **SIZES,
        )  # fmt: skip
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_losses_are_those_of_transformers() -> None:
    model, inputs = make_model("gpt2", cls=transformers.GPT2LMHeadModel), make_inputs("none")
    labels = inputs["input_ids"].clone()
    labels[1, 4:] = -100
    with torch.no_grad():
        output = model(**inputs, labels=labels)
    batch = {**inputs, "labels": labels}
    assert mixed_loss(output.logits, batch, task="causal-lm").item() == pytest.approx(output.loss.item(), rel=1e-5)
    rows = task_losses("causal-lm", output.logits, labels)
    assert rows[0].item() == pytest.approx(F.cross_entropy(output.logits[0, :-1], labels[0, 1:]).item(), rel=1e-5)
    assert rows[1].item() == pytest.approx(F.cross_entropy(output.logits[1, :3], labels[1, 1:4]).item(), rel=1e-5)
    teacher = torch.randn_like(output.logits)
    distilled = mixed_loss(output.logits, batch, task="causal-lm", teacher_logits=teacher, distill_weight=1.0)
    ours, theirs = (counted_answers("causal-lm", logits, labels)[0] for logits in (output.logits, teacher))
    assert torch.equal(distilled, distillation_loss(ours, theirs, task="single-label"))
    assert len(ours) == 8 + 3 + 8
    nothing = task_losses("causal-lm", output.logits, torch.full_like(labels, -100))
    assert torch.equal(nothing, torch.zeros(3))


def test_budget_loss_takes_tokens_as_labels() -> None:
    model = rheostat.wrap(
        make_model("llama", cls=transformers.LlamaForCausalLM), neuron_block=8, info=CheckpointInfo("causal-lm")
    )
    batch = {**make_inputs("none"), "labels": make_inputs("none")["input_ids"]}
    loss = budget_loss(model, batch, budgets=(1.0, 0.6))
    loss.backward()
    assert model.base.lm_head.weight.grad.abs().sum() > 0


def test_blocks_hold_all_tokens_in_their_order(words: Any) -> None:
    texts = datasets.Dataset.from_dict({"text": ["a b c", "d", "e f g h a"]})
    packed = pack_blocks(texts, words, 5)
    tokens = [token for row in packed["input_ids"] for token in row]
    assert words.decode(tokens) == "a b c <end> d <end> e f g h"  # the last two fill no block
    assert packed["labels"] == packed["input_ids"]
    assert packed["length"] == [5, 5]
    batch = Collator(with_padding(words))(list(packed))
    assert batch["labels"].shape == batch["input_ids"].shape == (2, 5)
    assert batch["labels"].dtype == torch.int64
    with pytest.raises(DataError, match=r"texts must fill a block of 64 tokens; got 12 in 3 rows"):
        pack_blocks(texts, words, 64)
    for length in (1, True, 2.0):
        with pytest.raises(OptionError, match="max_length must be a whole number of tokens, 2 or more"):
            pack_blocks(texts, words, length)  # type: ignore[arg-type]


def test_blocks_go_on_over_batches_of_rows(words: Any) -> None:
    texts = datasets.Dataset.from_dict({"text": ["a b"] * 1500})
    packed = pack_blocks(texts, words, 7)
    assert len(packed) == 1500 * 3 // 7
    tokens = [token for row in packed["input_ids"] for token in row]
    assert tokens == ([2, 3, 1] * 1500)[: len(tokens)]


def test_a_tokenizer_without_padding_gets_the_end_of_a_text(words: Any, tmp_path: Path) -> None:
    assert words.pad_token is None
    assert with_padding(words).pad_token == "<end>"
    assert words.pad_token is None  # the one that was given stays
    model = make_model("gpt2", vocab_size=len(WORDS), pad_token_id=None, eos_token_id=1, bos_token_id=1)
    info = CheckpointInfo("single-label", ("x", "y", "z"), 16)
    wrapped = rheostat.wrap(model, neuron_block=8, tokenizer=words, info=info)
    assert model.config.pad_token_id == 1
    answers = wrapped.predict(["a b c", "d"], budget=0.7)
    wrapped.save_pretrained(tmp_path / "saved")
    again = rheostat.load(tmp_path / "saved")
    assert (again.config.pad_token_id, again.tokenizer.pad_token) == (1, "<end>")
    assert again.predict(["a b c", "d"], budget=0.7) == answers
    assert again.predict(["d"], budget=0.7)[0].score == pytest.approx(answers[1].score, abs=1e-5)  # padded or not
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer)
    with pytest.raises(OptionError, match="must have a padding token, or one that ends a text"):
        with_padding(bare)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_texts_are_read_without_labels(suffix: str, tmp_path: Path) -> None:
    texts = datasets.Dataset.from_dict({"id": list(range(40)), "text": [f"a b {i}" for i in range(40)]})
    path = tmp_path / f"texts.{suffix}"
    {"jsonl": texts.to_json, "csv": texts.to_csv, "parquet": texts.to_parquet}[suffix](str(path))
    corpus = read_corpus(str(path), ReadOptions(task="causal-lm"))
    assert corpus.task == "causal-lm"
    assert corpus.train.column_names == corpus.validation.column_names == ["text"]
    assert sorted([*corpus.train["text"], *corpus.validation["text"]]) == sorted(texts["text"])
    assert (len(corpus.validation), corpus.labels) == (4, ())
    with pytest.raises(DataError, match="column 'label' not found"):
        read_corpus(str(path))
    with pytest.raises(OptionError, match="text_pair_column must be left out"):
        ReadOptions(task="causal-lm", text_pair_column="id")


def test_perplexity_is_that_of_the_model(words: Any, tmp_path: Path) -> None:
    base = make_model("gpt2", cls=transformers.GPT2LMHeadModel, vocab_size=len(WORDS), eos_token_id=1, bos_token_id=1)
    model = rheostat.wrap(base, neuron_block=8, sequence_length=9, tokenizer=words).train()
    texts = datasets.Dataset.from_json(str(write_texts(tmp_path / "texts.jsonl", 20)))
    rows = pack_blocks(texts, words, 9)
    found = perplexities(model, rows, Collator(model.tokenizer), (1.0, 0.7), batch_size=3, progress=False)
    assert model.training
    batch = Collator(model.tokenizer)(list(rows))
    model.eval()
    for line in found:
        with torch.no_grad():
            loss = model(**batch, budget=line.budget).loss.item()
        assert line.loss == pytest.approx(loss, rel=1e-5)
        assert line.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
        assert line.tokens == 8 * len(rows)
    gated = perplexities(model, rows, Collator(model.tokenizer), (0.7,), form="gated", progress=False)
    assert gated[0].loss == pytest.approx(found[1].loss, rel=1e-5)
    with pytest.raises(OptionError, match="rows to evaluate must not be empty"):
        perplexities(model, rows.select([]), Collator(model.tokenizer), (1.0,))


def test_the_share_of_the_vocabulary() -> None:
    model = rheostat.wrap(make_model("llama", cls=transformers.LlamaForCausalLM), neuron_block=8, sequence_length=9)
    macs = 9 * 40 * 24
    assert model.vocabulary_share == macs / model.costs.total(model.subnet(1.0))
    assert model.floor == model.vocabulary_share  # nothing else of it stays
    assert rheostat.wrap(make_model("llama")).vocabulary_share == 0.0


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_language_model_is_trained_and_read_from_the_command_line(family: str, words: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", words, family)
    data = write_texts(tmp_path / "texts.jsonl", 300)
    run = CliRunner().invoke(
        app,
        ["train", "--model", str(model), "--data", str(data), "--task", "causal-lm", "--out", str(tmp_path / "out"),
         "--max-length", "16", "--warm-epochs", "6", "--learning-rate", "5e-3", "--adapt-epochs", "3",
         "--soft-epochs", "0.5", "--batch-size", "16", "--neuron-block", "8", "--budgets", "1.0,0.6,0.4",
         "--min-budget", "0.3", "--no-measure", "--json"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    table = json.loads(run.stdout)
    by_budget = {point["budget"]: point["perplexity"] for point in table["points"]}
    assert by_budget.keys() == {1.0, 0.6, 0.4}
    # a text is 12 letters in the mean; where it ends and what comes next is chance, so about 1.4 is the best
    assert by_budget[1.0] < 2.0
    assert by_budget[0.6] < 2.5
    assert "perplexity" in table["soft"][0]
    assert "vocabulary takes" in table["conditions"]["vocabulary"]

    read = CliRunner().invoke(app, ["evaluate", str(tmp_path / "out"), "--data", str(data), "--budgets", "1.0,0.6"])
    assert read.exit_code == 0, read.output
    assert "perplexity" in read.stdout
    assert "macro F1" not in read.stdout
    assert "vocabulary takes" in " ".join(read.stdout.split())
    for refused, said in (
        (["predict", "OUT", "a b", "--budget", "0.6"], "Call generate"),
        (["materialize", "OUT", str(tmp_path / "small"), "--max-drop", "1"], "has perplexities"),
        (["report", "OUT", "--out", str(tmp_path / "page.html")], "must be a classifier"),
        (["export", "OUT", str(tmp_path / "bundle")], "one row of logits a text"),
    ):
        answer = CliRunner().invoke(app, [str(tmp_path / "out") if word == "OUT" else word for word in refused])
        assert answer.exit_code == 2, answer.output
        assert said in " ".join(answer.output.split())

    loaded = rheostat.load(tmp_path / "out")
    assert loaded.info.task == "causal-lm"
    prompt = loaded.tokenizer("c d e f", return_tensors="pt")
    assert set(prompt) == {"input_ids", "attention_mask"}
    written = loaded.generate(**prompt, budget=0.6, max_new_tokens=2, do_sample=False)
    assert loaded.tokenizer.decode(written[0]).startswith("c d e f g")
    small = loaded.materialize(0.6)
    assert torch.equal(small.generate(**prompt, max_new_tokens=2, do_sample=False), written)
    assert "| budget | perplexity |" in (tmp_path / "out" / "README.md").read_text("utf-8")

    ordered: dict[str, float] = {}
    for choice in ("--corrections", "--no-corrections"):
        run = CliRunner().invoke(
            app,
            ["order", str(tmp_path / "out"), "--data", str(data), "--task", "causal-lm", "--out", str(tmp_path / "new"),
             "--rows", "200", "--max-length", "16", "--neuron-block", "8", "--budgets", "1.0,0.4", "--no-measure",
             "--json", choice],
        )  # fmt: skip
        assert run.exit_code == 0, run.output
        ordered[choice] = {p["budget"]: p["perplexity"] for p in json.loads(run.stdout)["points"]}[0.4]
    assert ordered["--corrections"] < ordered["--no-corrections"]


def test_a_tied_model_resumes(words: Any, tmp_path: Path) -> None:
    texts = datasets.Dataset.from_json(str(write_texts(tmp_path / "texts.jsonl", 40)))
    rows = pack_blocks(texts, words, 9)

    def stage(epochs: float, folder: Path) -> rheostat.BudgetedModel:
        base = make_model("gpt2", cls=transformers.GPT2LMHeadModel, vocab_size=len(WORDS), **TOKENS)
        model = rheostat.wrap(base, neuron_block=8, tokenizer=words, info=CheckpointInfo("causal-lm"))
        options = StageOptions(epochs=epochs, batch_size=8, save_every=1, dropout=False, extra=CONSTANT)
        collator, sampler = Collator(model.tokenizer), BudgetSampler("sandwich", 0.4)
        train_stage(Objective(model, "sandwich"), rows, collator, sampler, options, folder, "Test")
        return model

    stage(1.0, tmp_path / "in two parts")
    resumed, whole = stage(2.0, tmp_path / "in two parts"), stage(2.0, tmp_path / "at once")
    assert resumed.base.lm_head.weight is resumed.base.transformer.wte.weight
    for one, other in zip(resumed.base.parameters(), whole.base.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_an_encoder_is_no_language_model(words: Any, tmp_path: Path) -> None:
    make_model("bert", vocab_size=len(WORDS)).save_pretrained(tmp_path / "bert")
    words.save_pretrained(tmp_path / "bert")
    data = write_texts(tmp_path / "texts.jsonl", 30)
    with pytest.raises(DataError, match="task causal-lm must have a decoder"):
        train(
            str(tmp_path / "bert"),
            str(data),
            tmp_path / "out",
            TrainOptions(),
            read_options=ReadOptions(task="causal-lm"),
        )
