"""The honesty check: what a linear model on words reaches in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.errors import missing


def linear_logits(
    train: Sequence[str], labels: NDArray[np.int64], texts: Sequence[str], *, task: str, classes: int
) -> NDArray[np.float64]:
    """Return the decision values (N, C) of ``texts`` after fitting TF-IDF and logistic regression on ``train``.

    Args:
        train: Training texts.
        labels: (M,) class ids, or (M, C) zeros and ones for multi-label.
        texts: Texts to read.
        task: ``single-label`` or ``multi-label``.
        classes: C.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.multiclass import OneVsRestClassifier
    except ImportError as error:
        raise missing("scikit-learn", "report") from error
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2 if len(train) > 1000 else 1)
    found: Any = features.fit_transform(train)
    model: Any = LogisticRegression(C=10.0, max_iter=300)
    if task == "multi-label":
        model = OneVsRestClassifier(model)
    model.fit(found, labels)
    values = np.asarray(model.decision_function(features.transform(texts)), dtype=np.float64)
    if task == "multi-label":
        return values.reshape(len(texts), -1)
    table = np.full((len(texts), classes), -np.inf)  # a class without a training row is never predicted
    if values.ndim == 1:  # two classes have one decision value
        values = np.stack([-values, values], axis=1)
    table[:, model.classes_] = values
    return table
