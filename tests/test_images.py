"""Models that read images: tokens of an image, names on disk, a bundle of pixels, and training on real digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from random_models import make_model
from safetensors import safe_open
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import rheostat
from rheostat import DataError, OptionError, UnsupportedModelError
from rheostat.bundle.engines import fitted
from rheostat.cli.app import app
from rheostat.compare import compare
from rheostat.data import PixelCollator, Pixels, ReadOptions, read_images
from rheostat.export import export
from rheostat.preparing import prepare_images
from rheostat.recipe import TrainOptions
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


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 700 handwritten digits of scikit-learn in train.parquet and 200 others in test.parquet."""
    folder, (images, labels) = tmp_path_factory.mktemp("digits"), load_digits(return_X_y=True)
    grey = (images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    for split, rows in (("train", slice(0, 700)), ("test", slice(700, 900))):
        columns = {"image": list(grey[rows]), "label": [str(label) for label in labels[rows]]}
        datasets.Dataset.from_dict(columns, features=features).to_parquet(folder / f"{split}.parquet")
    return folder


def save_vit(folder: Path, **changes: Any) -> Path:
    sizes: dict[str, Any] = {
        "image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "initializer_range": 0.15,
    }  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**{**sizes, **changes}), add_pooling_layer=False).save_pretrained(
        folder
    )
    return folder


def test_a_vision_model_learns_digits_at_all_budgets_from_the_command_line(digits: Path, tmp_path: Path) -> None:
    model, out = save_vit(tmp_path / "vit"), tmp_path / "out"
    run = CliRunner().invoke(
        app,
        ["train", "--model", str(model), "--data", str(digits), "--out", str(out), "--warm-epochs", "8",
         "--learning-rate", "3e-3", "--adapt-epochs", "2", "--adapt-learning-rate", "1e-3", "--batch-size", "16",
         "--neuron-block", "16", "--min-budget", "0.3", "--budgets", "1.0,0.6", "--json"],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    table = json.loads(run.stdout)
    points = {point["budget"]: point for point in table["points"]}
    assert points[1.0]["accuracy"] > 0.7
    assert points[0.6]["accuracy"] > 0.6
    assert points[0.6]["latency_ms_p50"] > 0
    assert table["conditions"]["length"] == 17

    read = CliRunner().invoke(app, ["evaluate", str(out), "--data", str(digits), "--budgets", "1.0,0.6", "--json"])
    assert read.exit_code == 0, read.output
    again = {point["budget"]: point["accuracy"] for point in json.loads(read.stdout)["points"]}
    assert again == {budget: point["accuracy"] for budget, point in points.items()}
    certified = CliRunner().invoke(app, ["certify", str(out), "--batch", "1", "--length", "17"])
    assert certified.exit_code == 2
    assert "must read texts" in certified.output
    loaded = rheostat.load(out)
    images = [row["image"] for row in datasets.Dataset.from_parquet(str(digits / "test.parquet")).select(range(40))]
    said = loaded.predict(images, budget=0.6, batch_size=16)
    pixels = PixelCollator(Pixels.from_json(loaded.info.training["pixels"]))([{"image": image} for image in images])
    with torch.no_grad():
        logits = loaded(**pixels, budget=0.6).logits
    assert [p.label for p in said] == [str(place) for place in logits.argmax(-1).tolist()]
    assert loaded.materialize(0.6).predict(images)[3].score == pytest.approx(said[3].score, abs=1e-5)
    images[0].save(out.parent / "digit.png")
    shown = CliRunner().invoke(app, ["predict", str(out), str(out.parent / "digit.png"), "--budget", "0.6"])
    assert shown.stdout.split("\t")[0] == said[0].label
    lost = CliRunner().invoke(app, ["predict", str(out), str(out.parent / "none.png")])
    assert "must be an image" in lost.output
    with pytest.raises(OptionError, match="images must be a list of images; got str"):
        loaded.predict("a.png")
    assert loaded.info.labels == tuple("0123456789")
    assert loaded.costs.sequence_length == 17


def test_images_are_read_from_class_folders_and_files(digits: Path, tmp_path: Path) -> None:
    corpus = read_images(str(digits), ReadOptions(validation_share=0.2, seed=1))
    assert corpus.labels == tuple("0123456789")
    assert (len(corpus.train), len(corpus.validation), len(corpus.test or ())) == (560, 140, 200)
    one = read_images(str(digits / "train.parquet"))
    assert one.test is None
    assert len(one.train) + len(one.validation) == 700
    for split, count in (("train", 4), ("test", 2)):
        for label in ("one", "two"):
            folder = tmp_path / "folders" / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                corpus.train[i]["image"].save(folder / f"{i}.png")
    found = read_images(str(tmp_path / "folders"), ReadOptions(validation_share=0.25))
    assert found.labels == ("one", "two")
    assert (len(found.train), len(found.validation), len(found.test or ())) == (6, 2, 4)
    assert found.train[0]["image"].size == (8, 8)


def test_what_is_no_set_of_images_is_refused(digits: Path, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a"], "label": ["b"]}).to_parquet(tmp_path / "texts.parquet")
    with pytest.raises(DataError, match="must have one column of images and a column 'label'; got"):
        read_images(str(tmp_path / "texts.parquet"))
    with pytest.raises(DataError, match="a column 'digit'"):
        read_images(str(digits), ReadOptions(label_column="digit"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="must be a folder of images, Parquet or a Hub name"):
        read_images(str(tmp_path / "empty"))
    model = save_vit(tmp_path / "vit")
    for options, said in ((["--text-column", "x"], "text_column must be left out"), (["--task", "causal-lm"], "task")):
        command = ["train", "--model", str(model), "--data", str(digits), "--out", str(tmp_path / "out"), *options]
        run = CliRunner().invoke(app, command)
        assert run.exit_code == 2, run.output
        assert said in run.output
    with pytest.raises(UnsupportedModelError, match="must read texts here; got vit"):
        compare(str(model), str(digits), tmp_path / "compare")


def test_pixels_are_scaled_resized_and_coloured() -> None:
    pixels = Pixels((3, 4, 4), (0.5, 0.5, 0.25), (0.5, 0.25, 0.5))
    assert Pixels.from_json(json.loads(json.dumps(pixels.to_json()))) == pixels
    found = pixels([np.full((4, 4), 255, np.uint8), np.zeros((8, 2, 3), np.uint8)])
    assert found.shape == (2, 3, 4, 4)
    assert found[0, :, 0, 0].tolist() == [1.0, 2.0, 1.5]
    assert found[1, :, 3, 3].tolist() == [-1.0, -2.0, -0.5]
    ramp = np.repeat(np.arange(8, dtype=np.float32)[:, None], 8, axis=1)
    halved = Pixels((1, 4, 4), (0.0,), (1.0,))([ramp])[0, 0, :, 0] * 255
    assert halved[1:3].tolist() == pytest.approx([2.5, 4.5], abs=1e-4)  # between 0 1 2 3 4 5 6 7
    with pytest.raises(DataError, match=r"images must be \(height, width\) or \(height, width, 3\); got \(4, 4, 2\)"):
        pixels([np.zeros((4, 4, 2))])


def test_pixels_are_those_of_the_model_folder(digits: Path, tmp_path: Path) -> None:
    said = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    assert Pixels.of((3, 8, 8), said) == Pixels((3, 8, 8), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert Pixels.of((1, 8, 8), {}) == Pixels((1, 8, 8), (0.5,), (0.5,))
    assert Pixels.of((1, 8, 8), {"do_normalize": False, **said}) == Pixels((1, 8, 8), (0.0,), (1.0,))
    model = save_vit(tmp_path / "vit")
    corpus, config = read_images(str(digits)), transformers.AutoConfig.from_pretrained(model)
    assert prepare_images(corpus, str(model), config, TrainOptions()).info.training["pixels"]["mean"] == (0.5,)
    (model / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1], "image_std": [0.2]}))
    prepared = prepare_images(corpus, str(model), config, TrainOptions())
    assert prepared.info.training["pixels"]["mean"] == (0.1,)
    assert prepared.collator([prepared.train[0]])["pixel_values"].min() >= -0.5  # (0 - 0.1) / 0.2


def test_the_collator_takes_labels_and_the_teacher() -> None:
    rows = [{"image": np.zeros((2, 2)), "labels": i, "teacher_logits": [0.0, float(i)], "length": 2} for i in (0, 1)]
    batch = PixelCollator(Pixels((1, 2, 2), (0.5,), (0.5,)))(rows)
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        "pixel_values": (2, 1, 2, 2),
        "labels": (2,),
        "teacher_logits": (2, 2),
    }
    assert batch["labels"].tolist() == [0, 1]
