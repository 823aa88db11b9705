"""Models that read images: how many tokens there are, names on disk, and a bundle that takes pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_models import make_model
from safetensors import safe_open

import rheostat
from rheostat import OptionError
from rheostat.bundle.engines import fitted
from rheostat.export import export
from rheostat.testing import counted_macs, image_batch


def test_the_length_is_that_of_an_image() -> None:
    model = make_model("vit", image_size=[8, 16])
    wrapped = rheostat.wrap(model, neuron_block=8)
    assert wrapped.costs.sequence_length == wrapped.usual_length == 9
    assert wrapped.costs.fixed == 8 * 3 * 4 * 4 * 24 + 24 * 3  # patches; the classifier once
    assert counted_macs(model, image_batch(model.config)) == 3 * wrapped.macs_table(9).total(wrapped.subnet(1.0))
    with pytest.raises(OptionError, match="sequence_length must be 9, the tokens of an image of the model; got 128"):
        rheostat.wrap(model, sequence_length=128)


def test_names_on_disk_are_those_of_transformers(tmp_path: Path) -> None:  # C23
    model = rheostat.wrap(make_model("vit"), neuron_block=8)
    model.save_pretrained(tmp_path / "vit")
    with safe_open(tmp_path / "vit" / "model.safetensors", "pt") as file:
        on_disk = set(file.keys())
    assert on_disk != set(model.base.state_dict())
    inputs = image_batch(model.config)
    again = rheostat.load(tmp_path / "vit")
    for budget in (1.0, 0.5):
        assert torch.equal(model(**inputs, budget=budget).logits, again(**inputs, budget=budget).logits)


def test_eager_and_fused_attention_agree() -> None:  # C16
    models = [rheostat.wrap(make_model("vit", attention=name), neuron_block=8) for name in ("eager", "sdpa")]
    inputs = image_batch(models[0].config)
    for budget in (1.0, 0.4):
        with torch.no_grad():
            eager, fused = (model(**inputs, budget=budget).logits for model in models)
        assert torch.allclose(eager, fused, atol=1e-5)


def test_a_bundle_takes_pixels(tmp_path: Path) -> None:
    model = rheostat.wrap(make_model("vit"), neuron_block=8)
    with pytest.raises(OptionError, match="must be left out of a bundle that reads images"):
        export(model, tmp_path / "bundle", validate="rows.csv")
    export(model, tmp_path / "bundle", budgets=(0.5,))
    bundle = rheostat.open_bundle(tmp_path / "bundle")
    inputs = image_batch(model.config, batch=5)
    with torch.no_grad():
        expected = model(**inputs, budget=0.5).logits.numpy()
    found = bundle.run({"pixel_values": inputs["pixel_values"].numpy()}, budget=0.5)
    assert np.abs(found - expected).max() < 1e-4
    with pytest.raises(OptionError, match="must hold a tokenizer"):
        bundle.predict(["text"])
    with pytest.raises(OptionError, match=r"pixel_values must fit the model; got shape \(1, 3, 8, 8\)"):
        bundle.run({"pixel_values": np.zeros((1, 3, 8, 8), np.float32)})


def test_pixels_of_another_form_are_refused() -> None:
    for wrong in ({}, {"input_ids": np.zeros((1, 2))}, {"pixel_values": np.zeros((3, 12, 12))}):
        with pytest.raises(OptionError, match=r"must be \(images, channels, height, width\)"):
            fitted(wrong, ("pixel_values",))
    assert fitted({"pixel_values": np.zeros((1, 3, 2, 2))}, ("pixel_values",))["pixel_values"].dtype == np.float32
