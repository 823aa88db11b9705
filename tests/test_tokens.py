"""Token classification: rows of words, labels aligned to tokens, entity F1, answers by word; from file to bundle."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from seqeval.metrics import f1_score
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import rheostat
from rheostat import DataError, OptionError
from rheostat.checkpoint import CheckpointInfo
from rheostat.cli.app import app
from rheostat.data import Collator, ReadOptions, read_corpus, read_rows, tokenize_words
from rheostat.entities import names_entities
from rheostat.losses import mixed_loss, task_losses
from rheostat.model import BudgetedModel
from rheostat.pipeline import train
from rheostat.predictions import TaggedText
from rheostat.preparing import load_tokenizer_of
from rheostat.recipe import TrainOptions
from rheostat.scoring.tags import tag_qualities

FILLERS = [f"word{i}" for i in range(8)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLERS, "ann", "bob", "lee", "par", "##is", "ro", "##me"]
LABELS = ("B-LOC", "B-PER", "I-PER", "O")
TASK = "token-classification"


def sentence(rng: random.Random) -> tuple[list[str], list[str]]:
    """Fillers, and among them people of one or two words and cities that are two tokens each."""
    words, labels = [], []
    for _ in range(rng.randint(3, 8)):
        kind = rng.random()
        if kind < 0.2:
            names = [rng.choice(["ann", "bob"]), *(["lee"] if rng.random() < 0.5 else [])]
            words += names
            labels += ["B-PER", "I-PER"][: len(names)]
        elif kind < 0.4:
            words.append(rng.choice(["paris", "rome"]))
            labels.append("B-LOC")
        else:
            words.append(rng.choice(FILLERS))
            labels.append("O")
    return words, labels


def sentences(count: int, seed: int) -> list[tuple[list[str], list[str]]]:
    rng = random.Random(seed)
    return [sentence(rng) for _ in range(count)]


def write_conll(path: Path, rows: list[tuple[list[str], list[str]]]) -> Path:
    blocks = ["\n".join(f"{word} X {label}" for word, label in zip(*row, strict=True)) for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("-DOCSTART- X O\n\n" + "\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return transformers.BertTokenizerFast(vocab=str(path), model_max_length=32)


def save_encoder(folder: Path, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> tuple[Path, Path, Any]:
    """(checkpoint, data folder, what train returned)."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, count, seed in (("train", 200, 1), ("validation", 40, 2), ("test", 40, 3)):
        write_conll(folder / "data" / f"{name}.conll", sentences(count, seed))
    options = TrainOptions(
        warm_epochs=6, learning_rate=3e-3, adapt_epochs=2, adapt_learning_rate=1e-3, soft_epochs=0.5, neuron_block=8,
        budgets=(1.0, 0.5), batch_size=16, min_budget=0.2,
    )  # fmt: skip
    result = train(
        str(save_encoder(folder / "encoder", tokenizer)),
        str(folder / "data"),
        folder / "out",
        options,
        measure_latency=False,
        soft_out=folder / "soft",
    )
    return folder / "out", folder / "data", result


# --- reading -----------------------------------------------------------------------------------------------


def test_all_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = sentences(6, 0)
    words, labels = [row[0] for row in rows], [row[1] for row in rows]
    write_conll(tmp_path / "a.conll", rows)
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f"{' '.join(a)},{' '.join(b)}\n" for a, b in rows), encoding="utf-8"
    )
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in rows), encoding="utf-8"
    )
    names = datasets.ClassLabel(names=list(LABELS))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(names)})
    numbers = [[LABELS.index(name) for name in part] for part in labels]
    hub = datasets.Dataset.from_dict({"tokens": words, "tags": numbers}, features=features)
    datasets.Dataset.from_dict({"text": words, "label": labels}).to_parquet(str(tmp_path / "a.parquet"))
    for suffix in ("conll", "csv", "jsonl", "parquet"):
        found, notes = read_rows(tmp_path / f"a.{suffix}", ReadOptions(task=TASK))
        assert list(found["words"]) == words, suffix
        assert list(found["label"]) == labels, suffix
        assert list(found["text"]) == [" ".join(cell) for cell in words], suffix
        assert any("task: token-classification" in note for note in notes), suffix
    from rheostat.data.columnar import HubSource
    from rheostat.data.rows import load_rows

    options = ReadOptions(task=TASK, text_column="tokens", label_column="tags")
    from_hub = load_rows([HubSource(hub, options, "hub")], options, "hub")
    assert list(from_hub.dataset["words"]) == words
    assert list(from_hub.dataset["label"]) == labels
    assert from_hub.counts == {name: sum(part.count(name) for part in labels) for name in LABELS}


def test_conll_files_settle_the_task(tmp_path: Path) -> None:
    path = write_conll(tmp_path / "a.conll", sentences(30, 0))
    corpus = read_corpus(str(path))
    assert corpus.task == TASK
    assert corpus.labels == LABELS
    assert any("1 line of -DOCSTART- left out" in note for note in corpus.notes)
    assert len(corpus.train) + len(corpus.validation) == 30
    with pytest.raises(OptionError, match="task must be token-classification for CoNLL files"):
        read_corpus(str(path), ReadOptions(task="single-label"))
    with pytest.raises(OptionError, match="text_column must be left out for CoNLL files"):
        read_corpus(str(path), ReadOptions(text_column="word"))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "a.conll",
            "ann B-PER\nbob\n",
            r"line 2: a line must hold a word and, in the last column, its label; got 'bob'",
        ),
        ("b.conll", "-DOCSTART- O\n\n", "has no words"),
        ("a.csv", "text,label\nann went,B-PER\n", r"got 2 words and 1 labels in row 1: 'ann went'"),
        ("a.jsonl", '{"text": ["ann", "b"], "label": ["O", ""]}\n', "labels of words must not be empty"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        read_rows(tmp_path / name, ReadOptions(task=TASK))


def test_pairs_are_refused() -> None:
    with pytest.raises(OptionError, match="text_pair_column must be left out with task token-classification"):
        ReadOptions(task=TASK, text_pair_column="b")


# --- alignment ---------------------------------------------------------------------------------------------


def words_dataset(rows: list[tuple[list[str], list[str]]]) -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {"text": [" ".join(a) for a, _ in rows], "words": [a for a, _ in rows], "label": [b for _, b in rows]}
    )


def test_the_first_token_of_a_word_has_its_label(tokenizer: Any) -> None:
    rows = words_dataset([(["word0", "paris", "", "ann"], ["O", "B-LOC", "O", "B-PER"]), ([], [])])
    found = tokenize_words(rows, tokenizer, labels=LABELS, max_length=16)
    first, empty = found.dataset[0], found.dataset[1]
    assert tokenizer.convert_ids_to_tokens(first["input_ids"]) == ["[CLS]", "word0", "par", "##is", "ann", "[SEP]"]
    assert first["labels"] == [-100, 3, 0, -100, 1, -100]
    assert first["starts"] == [1, 2, -1, 4]  # nothing is made of an empty word
    assert first["tags"] == [3, 0, 3, 1]
    assert empty["labels"] == [-100, -100]
    assert found.lost_words == 1
    cut = tokenize_words(rows, tokenizer, labels=LABELS, max_length=5)
    assert cut.dataset[0]["starts"] == [1, 2, -1, -1]
    assert cut.truncated == 1
    assert "2 of 4 words without a token" in cut.note()
    batch = Collator(tokenizer)(list(found.dataset))
    assert batch["labels"].tolist() == [first["labels"], [-100] * 6]
    with pytest.raises(DataError, match="got 1 unknown: 'B-LOC'"):
        tokenize_words(rows, tokenizer, labels=("B-PER", "O"), max_length=16)
    with pytest.raises(DataError, match="rows must have a label for every word"):
        tokenize_words(rows.remove_columns("words"), tokenizer, labels=LABELS, max_length=16)


def test_byte_level_tokenizers_put_a_blank_before_every_word(tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = {letter: i for i, letter in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"Ġabc"])}
    transformers.RobertaTokenizerFast(vocab=alphabet, merges=[]).save_pretrained(tmp_path)
    plain, by_word = (load_tokenizer_of(str(tmp_path), words=words) for words in (False, True))
    rows = [["ab", "c"]]
    assert plain.convert_ids_to_tokens(plain(rows, is_split_into_words=True)["input_ids"][0])[1] == "a"
    tokens = by_word.convert_ids_to_tokens(by_word(rows, is_split_into_words=True)["input_ids"][0])
    assert tokens == ["<s>", "Ġ", "a", "b", "Ġ", "c", "</s>"]


# --- loss and score ----------------------------------------------------------------------------------------


def test_losses_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 4), torch.randint(0, 4, (3, 5))
    labels[0, 2:] = -100
    labels[2] = -100
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert mixed_loss(logits, {"labels": labels}, task=TASK).item() == pytest.approx(expected.item(), rel=1e-6)
    rows = task_losses(TASK, logits, labels)
    assert rows[0].item() == pytest.approx(torch.nn.functional.cross_entropy(logits[0, :2], labels[0, :2]).item())
    assert rows[2].item() == 0.0
    nothing = mixed_loss(logits, {"labels": torch.full_like(labels, -100)}, task=TASK, teacher_logits=logits)
    assert nothing.item() == 0.0
    teacher = torch.randn_like(logits)
    moved = teacher.clone()
    moved[2] += torch.randn(5, 4)  # where nothing is counted, the teacher does not matter
    first, second = (
        mixed_loss(logits, {"labels": labels}, task=TASK, teacher_logits=told, distill_weight=1.0)
        for told in (teacher, moved)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("side", ["left", "right"])
def test_scores_are_those_of_seqeval(tokenizer: Any, side: str) -> None:
    tokenizer.padding_side = side
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        num_labels=4,
    )  # fmt: skip
    base = transformers.BertForTokenClassification(config).eval()
    with torch.no_grad():
        base.classifier.weight.normal_(std=1.0)
        base.bert.embeddings.position_embeddings.weight.zero_()  # padding on the left moves positions
    model = rheostat.wrap(base, neuron_block=8, info=CheckpointInfo(TASK, LABELS, 32))
    rows = tokenize_words(words_dataset(sentences(25, 4)), tokenizer, labels=LABELS, max_length=9)
    assert rows.lost_words > 0
    (quality,) = tag_qualities(model, rows.dataset, Collator(tokenizer), (0.6,), batch_size=4)
    wanted, found = [], []
    for row in rows.dataset:
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            best = model(input_ids=ids, attention_mask=torch.ones_like(ids), budget=0.6).logits[0].argmax(-1).tolist()
        wanted.append([LABELS[tag] for tag in row["tags"]])
        found.append(["O" if start < 0 else LABELS[best[start]] for start in row["starts"]])
    assert quality.entity_f1 == pytest.approx(f1_score(wanted, found), abs=1e-9)
    pairs = [
        pair
        for own, other, row in zip(wanted, found, rows.dataset, strict=True)
        for pair in zip(own, other, row["starts"], strict=True)
    ]
    assert quality.words == len(pairs)
    assert quality.accuracy == pytest.approx(np.mean([a == b and start >= 0 for a, b, start in pairs]))
    assert quality.drop_low <= quality.drop_points <= quality.drop_high
    with pytest.raises(OptionError, match="rows to evaluate must not be empty"):
        tag_qualities(model, rows.dataset.select([]), Collator(tokenizer), (1.0,))


def test_labels_without_entities_have_no_f1() -> None:
    assert names_entities(["O", "B-X", "I-X"])
    assert not names_entities(["NOUN", "VERB"])
    assert not names_entities(["O"])


# --- from file to bundle -----------------------------------------------------------------------------------


def test_training_learns_entities_at_every_budget(trained: tuple[Path, Path, Any]) -> None:
    folder, _, result = trained
    full, half = result.points
    assert full.entity_f1 > 0.97
    assert half.entity_f1 > 0.9
    assert half.drop_low <= half.drop_points <= half.drop_high
    assert result.conditions()["entity F1 on"] == "test rows"
    assert {"accuracy", "entity_f1"} <= set(result.soft[0])
    record = rheostat.load(folder).info.evaluation[0]
    assert record["words"] > record["rows"] == 40
    assert "| budget | word accuracy | entity F1 |" in (folder / "README.md").read_text(encoding="utf-8")


def test_predict_labels_words(trained: tuple[Path, Path, Any]) -> None:
    model: BudgetedModel = rheostat.load(trained[0])
    text = "word1 ann  lee word2 paris"
    found = model.predict([text, "", "bob"], budget=0.5)
    first = found[0]
    assert isinstance(first, TaggedText)
    assert [(word.text, word.label) for word in first.words] == [
        ("word1", "O"), ("ann", "B-PER"), ("lee", "I-PER"), ("word2", "O"), ("paris", "B-LOC"),
    ]  # fmt: skip
    assert [(e.kind, e.text, text[e.start : e.end]) for e in first.entities()] == [
        ("PER", "ann  lee", "ann  lee"), ("LOC", "paris", "paris"),
    ]  # fmt: skip
    assert all(0.0 < word.score <= 1.0 for word in first.words)
    assert found[1].words == ()
    small = model.materialize(0.5)
    assert [t.words for t in small.predict([text, "", "bob"], batch_size=1)] == [
        tuple(w.__class__(w.text, w.label, pytest.approx(w.score, abs=1e-5), w.start, w.end) for w in t.words)
        for t in found
    ]
    with pytest.raises(OptionError, match="texts must be a list of texts; got"):
        model.predict([("a", "b")])
    with pytest.raises(OptionError, match="encode gives vectors, and a model of task token-classification has none"):
        model.encode(["a"])


def test_commands_take_token_classifiers(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, data, _ = trained
    done = CliRunner().invoke(
        app, ["evaluate", str(folder), "--data", str(data / "test.conll"), "--budgets", "1.0,0.5", "--json"]
    )
    assert done.exit_code == 0, done.output
    points = {point["budget"]: point for point in json.loads(done.stdout)["points"]}
    assert points[0.5]["entity_f1"] > 0.9
    table = CliRunner().invoke(
        app, ["evaluate", str(folder), "--data", str(data / "test.conll"), "--budgets", "1.0,0.5"]
    )
    assert "entity F1" in table.stdout
    assert "entity F1's difference" in table.stdout.replace("\n", " ")
    said = CliRunner().invoke(app, ["predict", str(folder), "ann word1 rome", "--max-drop", "50"])
    assert said.stdout.strip() == "ann/B-PER word1/O rome/B-LOC"
    assert "points below full" in said.stderr
    report = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert report.exit_code != 0
    assert "must be a classifier to report on it" in report.output.replace("\n", " ")


@pytest.mark.slow
def test_a_bundle_labels_the_same_words(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    from rheostat.export import export

    model: BudgetedModel = rheostat.load(trained[0])
    export(model, tmp_path / "bundle", budgets=(1.0, 0.5))
    bundle = rheostat.open_bundle(tmp_path / "bundle")
    texts = ["word1 ann  lee word2 paris", "", "bob", "rome word3"]
    for ours, theirs in zip(bundle.predict(texts, budget=0.5), model.predict(texts, budget=0.5), strict=True):
        assert [(w.text, w.label, w.start, w.end) for w in ours.words] == [
            (w.text, w.label, w.start, w.end) for w in theirs.words
        ]
        assert [w.score for w in ours.words] == pytest.approx([w.score for w in theirs.words], abs=1e-4)
    with pytest.raises(OptionError, match="logits must be of a bundle of task single-label"):
        bundle.logits(texts)
    with pytest.raises(
        OptionError, match="validate and int8 must be left out of a bundle of task token-classification"
    ):
        export(model, tmp_path / "other", validate=str(trained[1] / "test.conll"))
