"""Images for a model: labels encoded, pixels made a batch at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers.image_processing_base import ImageProcessingMixin

from rheostat.architectures import image_shape
from rheostat.checkpoint import CheckpointInfo
from rheostat.data import SINGLE_LABEL, PixelCollator, Pixels, ReadOptions, check_known, class_weights
from rheostat.data.images import ImageCorpus, check_image_options, encoded_images, read_image_part
from rheostat.families import check_model_type
from rheostat.model import BudgetedModel
from rheostat.predict import pixels_of
from rheostat.preparing.parts import Prepared, model_labels, parts_of
from rheostat.recipe import TrainOptions


def prepare_images(corpus: ImageCorpus, model_name: str, config: Any, options: TrainOptions) -> Prepared:
    """Encode the labels of all parts of images for a model; pixels are made a batch at a time."""
    tokens = check_model_type(config).usual_length(config)
    labels = model_labels(config, corpus.labels, head_is_trained=options.trains_head)
    pixels = Pixels.of(image_shape(config), _preprocessor_of(model_name))
    parts = parts_of(corpus, options)
    rows = {name: encoded_images(part, labels, tokens) for name, part in parts.items() if part is not None}
    weighted = class_weights(np.asarray(rows["train"]["labels"]), len(labels)).tolist()
    return Prepared(
        train=rows["train"],
        validation=rows["validation"],
        test=rows.get("test"),
        collator=PixelCollator(pixels),
        tokenizer=None,
        info=CheckpointInfo(SINGLE_LABEL, labels, None, training={"seed": options.seed, "pixels": pixels.to_json()}),
        median_length=tokens,
        class_weights=tuple(weighted) if options.class_weighting else None,
    )


def _preprocessor_of(model_name: str) -> dict[str, Any]:
    """Return what a model folder or Hub name says about its pixels; nothing where it says nothing."""
    try:
        said, _ = ImageProcessingMixin.get_image_processor_dict(model_name)
    except OSError:
        return {}
    return dict(said)


def read_labelled_images(model: BudgetedModel, data: str, options: ReadOptions) -> tuple[Any, PixelCollator]:
    """Return the labelled images of one part (the only one, or the test part) for a checkpoint, and their collator.

    Raises:
        DataError: labels that the model does not know.
    """
    check_image_options(options)
    rows = read_image_part(data, options)
    check_known(rows, model.info.labels, SINGLE_LABEL, data)
    pixels = pixels_of(model.info, model.config)
    return encoded_images(rows, model.info.labels, model.usual_length), PixelCollator(pixels)
