"""quality: against scikit-learn and scipy, the paired bootstrap against plain resampling, and the cheapest budget."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sklearn import metrics

from rheostat.errors import OptionError
from rheostat.quality import (
    Quality,
    accuracy,
    cheapest_within,
    macro_f1,
    multilabel_f1,
    paired_bootstrap,
    quality_at,
    score,
)

CLASSES = 6
pairs_of_ids = st.integers(1, 40).flatmap(
    lambda rows: st.tuples(*[npst.arrays(np.int64, rows, elements=st.integers(0, CLASSES - 2))] * 2)
)


# --- metrics -----------------------------------------------------------------------------------------------


@given(pairs_of_ids)
def test_accuracy_and_macro_f1_are_those_of_scikit_learn(pair: tuple[Any, Any]) -> None:
    predictions, labels = pair
    everything = np.arange(CLASSES)  # the last class never occurs
    assert accuracy(predictions, labels) == pytest.approx(metrics.accuracy_score(labels, predictions))
    assert macro_f1(predictions, labels) == pytest.approx(
        metrics.f1_score(labels, predictions, average="macro", zero_division=0)
    )
    assert macro_f1(predictions, labels, label_set=everything) == pytest.approx(
        metrics.f1_score(labels, predictions, labels=everything, average="macro", zero_division=0)
    )
    assert macro_f1(predictions, labels, label_set=[0, 2]) == pytest.approx(
        metrics.f1_score(labels, predictions, labels=[0, 2], average="macro", zero_division=0)
    )


def test_macro_f1_takes_names_as_well_as_ids() -> None:
    predictions, labels = ["b", "a", "a"], ["b", "a", "c"]
    expected = metrics.f1_score(labels, predictions, labels=["a", "b", "c"], average="macro", zero_division=0)
    assert macro_f1(predictions, labels, label_set=["a", "b", "c"]) == pytest.approx(expected)


@given(st.integers(1, 30).flatmap(lambda rows: st.tuples(*[npst.arrays(np.bool_, (rows, 4))] * 2)))
def test_multilabel_f1_is_that_of_scikit_learn(pair: tuple[Any, Any]) -> None:
    predictions, labels = (table.astype(int) for table in pair)
    expected = [
        metrics.f1_score(labels, predictions, average=average, zero_division=0) for average in ("macro", "micro")
    ]
    assert multilabel_f1(predictions, labels) == pytest.approx(expected)
    assert accuracy(predictions, labels) == pytest.approx(metrics.accuracy_score(labels, predictions))


@pytest.mark.parametrize(
    ("predictions", "labels"),
    [([], []), ([1, 2], [1]), ([[1, 0]], [1]), (1, 1)],
    ids=["empty", "length", "rank", "one"],
)
def test_rows_that_do_not_match_are_refused(predictions: Any, labels: Any) -> None:
    for metric in (accuracy, macro_f1, multilabel_f1, paired_bootstrap):
        with pytest.raises(OptionError, match="must be of one shape with at least one row; got"):
            metric(predictions, labels)


def test_macro_f1_refuses_tables_and_an_empty_label_set() -> None:
    with pytest.raises(OptionError, match=r"shape \(rows,\); got \(1, 2\)"):
        macro_f1([[0, 1]], [[0, 1]])
    with pytest.raises(OptionError, match="label_set must hold at least one class"):
        macro_f1([0], [0], label_set=[])


# --- scores of a task --------------------------------------------------------------------------------------


def test_score_of_single_labels_counts_every_class_of_the_model() -> None:
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.5, 0.0, 0.1], [1.0, 2.0, 0.0]])
    result = score("single-label", logits, [0, 1, 1, 1])
    expected = metrics.f1_score([0, 1, 1, 1], [0, 1, 0, 1], labels=[0, 1, 2], average="macro", zero_division=0)
    assert result == {"accuracy": 0.75, "macro_f1": pytest.approx(expected)}


def test_score_of_many_labels_cuts_at_zero_and_wants_every_column_right() -> None:
    logits, labels = np.array([[1.0, -1.0], [0.5, 2.0], [-3.0, -0.1]]), np.array([[1, 0], [1, 0], [0, 0]])
    result = score("multi-label", logits, labels)
    assert result["accuracy"] == pytest.approx(2 / 3)
    assert (result["macro_f1"], result["micro_f1"]) == pytest.approx(multilabel_f1((logits > 0).astype(int), labels))


@given(
    st.integers(3, 25).flatmap(
        lambda rows: st.tuples(*[npst.arrays(np.float64, rows, elements=st.integers(-4, 4).map(float))] * 2)
    )
)
def test_score_of_regression_is_that_of_scipy(pair: tuple[Any, Any]) -> None:
    stats = pytest.importorskip("scipy.stats")
    predicted, wanted = pair
    result = score("regression", predicted[:, None], wanted)
    assert result["accuracy"] is None
    assert result["mse"] == pytest.approx(metrics.mean_squared_error(wanted, predicted))
    if np.ptp(predicted) == 0 or np.ptp(wanted) == 0:
        assert result["spearman"] is None
    else:
        assert result["spearman"] == pytest.approx(stats.spearmanr(predicted, wanted).statistic)


@pytest.mark.parametrize(
    ("task", "logits", "message"),
    [
        ("ranking", [[0.0]], "task must be one of"),
        ("single-label", [[float("nan"), 0.0]], "logits must be finite"),
        ("single-label", [0.0], "logits must be of shape"),
        ("multi-label", [0.0], "logits must be of shape"),
        ("regression", [[0.0, 1.0]], "logits must be one value a row"),
    ],
)
def test_scores_that_make_no_sense_are_refused(task: str, logits: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        score(task, logits, [0])


# --- paired bootstrap --------------------------------------------------------------------------------------


def test_the_interval_is_that_of_resampling_the_rows() -> None:
    generator = np.random.default_rng(1)
    full = generator.random(800) < 0.92
    small = np.where(generator.random(800) < 0.06, ~full, full)
    ours = paired_bootstrap(full, small, samples=20_000)
    rows = generator.integers(0, 800, size=(4000, 800))
    plain = (full[rows].mean(axis=1) - small[rows].mean(axis=1)) * 100
    assert ours.value == pytest.approx((full.mean() - small.mean()) * 100)
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(plain, [0.025, 0.975])), abs=0.15)


def test_the_interval_is_paired() -> None:
    # Both are right on half the rows. On the same half there is nothing to doubt; on random halves there is.
    generator = np.random.default_rng(2)
    one, other = generator.permutation(1000) < 500, generator.permutation(1000) < 500
    same, apart = paired_bootstrap(one, one), paired_bootstrap(one, other)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert apart.value == 0.0
    assert apart.low < -2 < 2 < apart.high


def test_the_interval_follows_its_options() -> None:
    generator = np.random.default_rng(3)
    full, small = generator.random(500) < 0.9, generator.random(500) < 0.8
    wide, narrow = paired_bootstrap(full, small, level=0.99), paired_bootstrap(full, small, level=0.5)
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert paired_bootstrap(full, small) == paired_bootstrap(full, small, seed=0)
    assert paired_bootstrap(full, small) != paired_bootstrap(full, small, seed=1)
    assert paired_bootstrap(full, small) != paired_bootstrap(full, small, samples=500)
    mirrored = paired_bootstrap(small, full, samples=50_000)
    assert (-mirrored.high, -mirrored.low) == pytest.approx(
        (paired_bootstrap(full, small, samples=50_000).low, paired_bootstrap(full, small, samples=50_000).high), abs=0.3
    )


def test_the_interval_covers_the_truth_about_as_often_as_promised() -> None:
    generator, covered = np.random.default_rng(4), 0
    for _ in range(300):
        full = generator.random(400) < 0.9
        small = np.where(generator.random(400) < 0.1, False, full)  # the true drop is 9 points
        interval = paired_bootstrap(full, small, samples=400)
        covered += interval.low <= 9.0 <= interval.high
    assert 0.90 <= covered / 300 <= 0.99


def test_a_bootstrap_never_holds_rows_times_samples() -> None:
    import tracemalloc

    full = np.arange(7600) % 13 != 0
    tracemalloc.start()
    paired_bootstrap(full, np.roll(full, 5), samples=2000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 7600 * 2000 / 10


def test_seeds_over_the_same_rows_are_averaged_before_rows_are_drawn() -> None:
    one, other = [1, 1, 0, 1] * 50, [1, 0, 0, 1] * 50
    alone = paired_bootstrap(one, other)
    assert paired_bootstrap([one, one], [other, other]) == alone  # a second look at the same rows adds nothing
    mixed = paired_bootstrap([one, other], [other, one])
    assert (mixed.value, mixed.low, mixed.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("correct", "options", "message"),
    [
        ([1, 0], {"samples": 0}, "samples must be at least 1; got 0"),
        ([1, 0], {"level": 1.0}, r"level must be between 0 and 1; got 1\.0"),
        ([2, 0], {}, "correct_a must be true or false for each row"),
        ([[[1, 0]]], {}, "correct_a must be true or false for each row"),
    ],
)
def test_bad_bootstraps_are_refused(correct: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        paired_bootstrap(correct, correct, **options)


# --- one budget beside the full model ----------------------------------------------------------------------


def test_quality_at_joins_the_metrics_and_the_drop() -> None:
    labels = np.arange(200) % 4
    full, small = labels.copy(), labels.copy()
    full[:10] = (labels[:10] + 1) % 4
    small[:30] = (labels[:30] + 1) % 4
    quality = quality_at(0.5, small, labels, full_predictions=full, label_set=range(5))
    assert (quality.budget, quality.rows, quality.accuracy) == (0.5, 200, 0.85)
    assert quality.macro_f1 == macro_f1(small, labels, label_set=range(5))
    assert quality.drop_points == pytest.approx(10.0)
    assert 0 < quality.drop_low < 10 < quality.drop_high
    assert Quality.from_json(json.loads(json.dumps(quality.to_json()))) == quality


def test_quality_of_the_full_model_drops_by_nothing() -> None:
    quality = quality_at(1.0, [0, 1, 1], [0, 1, 0], full_predictions=[0, 1, 1])
    assert (quality.drop_points, quality.drop_low, quality.drop_high) == (0.0, 0.0, 0.0)


def curve(**accuracies: float) -> list[Quality]:
    full = accuracies["b100"]
    return [
        Quality(int(name[1:]) / 100, 1000, value, value, (full - value) * 100, 0.0, 0.0)
        for name, value in accuracies.items()
    ]


def test_the_cheapest_is_the_smallest_budget_within_the_drop() -> None:
    qualities = curve(b100=0.926, b75=0.925, b50=0.921, b25=0.910)
    assert cheapest_within(qualities, 0.5).budget == 0.5
    assert cheapest_within(qualities, 0.4).budget == 0.75
    assert cheapest_within(qualities, 0).budget == 1.0
    assert cheapest_within(qualities, 5).budget == 0.25


def test_a_drop_of_exactly_the_limit_is_within_it_whatever_floats_say() -> None:
    assert 0.8906 * 100 < 0.9006 * 100 - 1.0
    assert cheapest_within(curve(b100=0.9006, b50=0.8906), 1.0).budget == 0.5


def test_a_larger_budget_that_misses_does_not_rule_out_a_smaller_one() -> None:
    assert cheapest_within(curve(b25=0.925, b50=0.915, b75=0.918, b100=0.926), 0.3).budget == 0.25


def test_a_budget_better_than_full_qualifies_at_zero() -> None:
    assert cheapest_within(curve(b100=0.920, b50=0.924), 0.0).budget == 0.5


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.5", None, True])
def test_a_drop_that_is_no_amount_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match=r"^max_drop_points must be a number of at least 0; got .*\. Give points"):
        cheapest_within(curve(b100=0.9), value)


def test_a_list_without_the_full_model_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^qualities must include budget 1\.0; got \[0\.5\]\. Evaluate"):
        cheapest_within(curve(b100=0.9, b50=0.9)[1:], 0.5)
    with pytest.raises(OptionError, match=r"got \[\]"):
        cheapest_within([], 0.5)
