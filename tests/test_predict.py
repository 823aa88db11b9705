"""Texts in, labels out: named as written, in order, the same alone as in a batch and in any thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from random_models import LABELS, make_model

import rheostat
from rheostat import OptionError
from rheostat.checkpoint import CheckpointInfo
from rheostat.predictions import Prediction, interpret

TEXTS = ["oil prices fall", "the team wins", "a", "stocks rally the oil prices rise a match", "unknownword", ""]


def model_of(tokenizer: Any, family: str = "bert", **info: Any) -> Any:
    facts = CheckpointInfo(**{"task": "single-label", "labels": LABELS, "max_length": 16, **info})
    return rheostat.wrap(make_model(family), neuron_block=8, sequence_length=9, info=facts, tokenizer=tokenizer)


@pytest.mark.parametrize("form", ["budgeted", "materialized"])
def test_batches_keep_order_and_answers(tokenizer: Any, form: str) -> None:
    model = model_of(tokenizer)
    if form == "materialized":
        small = model.materialize(0.5)

        def predict(texts: Any, **options: Any) -> list[Prediction]:
            return small.predict(texts, **options)  # type: ignore[no-any-return]
    else:

        def predict(texts: Any, **options: Any) -> list[Prediction]:
            return model.predict(texts, budget=0.5, **options)  # type: ignore[no-any-return]

    together = predict(TEXTS, batch_size=4)
    for text, answer in zip(TEXTS, together, strict=True):
        (alone,) = predict([text])
        assert answer.label == alone.label
        assert answer.label in LABELS
        assert answer.budget == 0.5
        assert list(answer.probabilities) == list(LABELS)
        assert sum(answer.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
        assert answer.score == max(answer.probabilities.values())
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt"), budget=0.5).logits[0]
        assert list(answer.probabilities.values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
        assert answer.to_json()["label"] == answer.label
    assert len({tuple(a.probabilities.values()) for a in together}) > 3
    assert predict([]) == []


def test_pairs_use_both_texts(tokenizer: Any) -> None:
    model = model_of(tokenizer)
    one, other, single = (model.predict([x])[0] for x in (("oil", "team"), ("oil", "stocks"), "oil"))
    assert one.probabilities != other.probabilities != single.probabilities
    assert model.predict([["oil", "team"]])[0] == one


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_long_texts_are_cut_not_failed(tokenizer: Any, family: str) -> None:  # C47
    words = "oil " * 10_000
    limited = model_of(tokenizer, family)
    assert limited.predict([words])[0].probabilities == pytest.approx(
        limited.predict(["oil " * 14])[0].probabilities, abs=1e-6
    )
    unlimited = model_of(tokenizer, family, max_length=None)  # what the position table takes: 32, or 30 for RoBERTa
    fits = 28 if family == "roberta" else 30
    got, wanted, shorter = (
        unlimited.predict([t])[0].probabilities for t in (words, "oil " * fits, "oil " * (fits - 1))
    )
    assert got == pytest.approx(wanted, abs=1e-6)
    assert got != pytest.approx(shorter, abs=1e-6)
    assert unlimited.materialize(0.5).predict([words])


@pytest.mark.parametrize(
    "texts", ["oil", b"oil", [1], [None], [("a",)], [("a", "b", "c")], [("a", None)], {"oil"}, None]
)
def test_what_is_no_list_of_texts(tokenizer: Any, texts: Any) -> None:
    with pytest.raises(OptionError, match="texts must be a list of texts"):
        model_of(tokenizer).predict(texts)
    with pytest.raises(OptionError, match="texts must be a list of texts"):
        model_of(tokenizer).predict(t for t in ["oil"])  # not silently empty


def test_options_that_cannot_be(tokenizer: Any) -> None:
    for batch_size in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="batch_size"):
            model_of(tokenizer).predict(TEXTS, batch_size=batch_size)
    with pytest.raises(OptionError, match="tokenizer must be set"):
        model_of(None).predict(TEXTS)


def test_tasks_read_logits_differently() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [-1.0, -2.0, -3.0]])
    multi = interpret(logits, CheckpointInfo(task="multi-label", labels=LABELS), 0.5)
    assert multi[0].label == ("negative", "positive")
    assert multi[0].score == pytest.approx(torch.sigmoid(torch.tensor(0.5)).item())
    assert multi[1].label == ()
    assert multi[1].score == pytest.approx(1 - torch.sigmoid(torch.tensor(-1.0)).item())
    assert interpret(logits, CheckpointInfo(task="regression"), 1.0)[0] == Prediction(None, 2.0, {}, 1.0)
    plain = interpret(logits, CheckpointInfo(), 1.0)
    assert [p.label for p in plain] == ["LABEL_0", "LABEL_0"]


def test_predicting_leaves_the_mode_and_runs_without_dropout(tokenizer: Any) -> None:
    model = model_of(tokenizer)
    wanted = model.predict(TEXTS, budget=0.5)
    model.train()
    assert model.predict(TEXTS, budget=0.5) == wanted
    assert model.training
    assert model.base.training
    model.eval()
    model.predict(TEXTS)
    assert not model.base.training


def test_threads_get_the_serial_answers(tokenizer: Any) -> None:  # C48, C49
    model = model_of(tokenizer)
    serial = {b: [model.predict([t], budget=b) for t in TEXTS] for b in (1.0, 0.3)}
    model._views.clear()

    def run(budget: float) -> bool:
        return all([model.predict([t], budget=budget) for t in TEXTS] == serial[budget] for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, [1.0, 0.3, 1.0, 0.3]))
