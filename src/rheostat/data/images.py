"""Read labelled images and turn them into pixels: a folder of class folders, files with an image column, or the Hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rheostat.data.corpus import SPLIT_NAMES, SPLITS, split_files
from rheostat.data.optional import require
from rheostat.data.options import DEFAULTS, FORMATS, ReadOptions
from rheostat.data.splits import hold_out
from rheostat.data.wording import counted
from rheostat.errors import DataError, OptionError

if TYPE_CHECKING:
    import datasets
    import torch


@dataclass(frozen=True)
class ImageCorpus:
    """Labelled images: parts with the columns image and label, and the names of the classes in sorted order."""

    train: datasets.Dataset
    validation: datasets.Dataset
    test: datasets.Dataset | None
    labels: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pixels:
    """How images become the pixels that a model takes: ``(value / 255 - mean) / std`` a channel, resized.

    Attributes:
        shape: Channels, height, width.
        mean: One a channel.
        std: One a channel.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, shape: tuple[int, int, int], said: Mapping[str, Any]) -> Pixels:
        """Return those of a ``preprocessor_config.json`` of transformers; where it is silent, 0.5 and 0.5."""
        if said.get("do_normalize") is False:
            return cls(shape, (0.0,) * shape[0], (1.0,) * shape[0])
        halves = [0.5] * shape[0]
        return cls(shape, tuple(said.get("image_mean") or halves), tuple(said.get("image_std") or halves))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Pixels:
        """Return what ``to_json`` wrote."""
        return cls(tuple(record["shape"]), tuple(record["mean"]), tuple(record["std"]))

    def __call__(self, images: Sequence[Any]) -> torch.Tensor:
        """Return pixels (N, channels, height, width), float32.

        Args:
            images: PIL images, or arrays (height, width) or (height, width, channels) of 0 to 255; of any size, and
                grey ones for a model of colours.

        Raises:
            DataError: an image of another form.
        """
        torch_module = require("torch")
        channels, height, width = self.shape
        found = torch_module.empty(len(images), channels, height, width)
        for i, image in enumerate(images):
            planes = torch_module.from_numpy(_planes(image, channels))[None]  # (1, C, h, w)
            if planes.shape[-2:] != (height, width):
                planes = torch_module.nn.functional.interpolate(
                    planes, (height, width), mode="bilinear", align_corners=False, antialias=True
                )
            found[i] = planes[0]
        mean, std = (torch_module.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        normalised: torch.Tensor = (found / 255.0 - mean) / std
        return normalised


def _planes(image: Any, channels: int) -> npt.NDArray[np.float32]:
    """Return an image as (channels, height, width) of 0 to 255."""
    if hasattr(image, "convert"):  # of PIL
        image = image.convert("L" if channels == 1 else "RGB")
    array = np.asarray(image, np.float32)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[-1] not in (1, channels) or 0 in array.shape:
        raise DataError(
            f"images must be (height, width) or (height, width, {channels}); got {np.shape(image)}. Convert them first"
        )
    spread = np.broadcast_to(array, (*array.shape[:2], channels)).transpose(2, 0, 1)
    return spread.copy()  # torch takes no memory that can't be written


class PixelCollator:
    """Turn rows with an image and a label into pixel_values (B, channels, height, width) and labels (B,)."""

    def __init__(self, pixels: Pixels) -> None:
        """Take how images become pixels."""
        self.pixels = pixels

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of these rows, with the teacher's logits where they have some."""
        torch_module = require("torch")
        batch = {"pixel_values": self.pixels([row["image"] for row in rows])}
        if "labels" in rows[0]:
            batch["labels"] = torch_module.tensor([int(row["labels"]) for row in rows])
        if "teacher_logits" in rows[0]:
            logits = np.asarray([row["teacher_logits"] for row in rows], np.float32)  # (B, C)
            batch["teacher_logits"] = torch_module.from_numpy(logits)
        return batch


def read_images(source: str, options: ReadOptions = DEFAULTS) -> ImageCorpus:
    """Read labelled images.

    Args:
        source: A folder of train, validation and test folders that hold one folder a class; a Parquet file, or a
            folder of them, with a column of images; or a Hub data set.
        options: ``label_column``, ``validation_share`` and ``seed``; the column of images is found.

    Raises:
        DataError: nothing there, no column of images, or fewer than two classes.
    """
    parts = {split: _columns(part, options, f"{source} ({split})") for split, part in _parts(source).items()}
    if "train" not in parts:
        raise DataError(f"{source}: must have a train part; got {sorted(parts)}. Name its folder train")
    labels = tuple(sorted(set(parts["train"]["label"])))
    if len(labels) < 2:
        raise DataError(f"{source}: there must be at least 2 classes; got {list(labels)!r}. Set --label-column")
    notes = [f"{split}: {counted(len(part), 'image')}" for split, part in parts.items()]
    for split, part in parts.items():
        unknown = sorted(set(part["label"]) - set(labels))
        if unknown:
            raise DataError(f"{source} ({split}): labels must be those of the training images; got {unknown[:10]!r}")
    if "validation" not in parts:
        places = {name: i for i, name in enumerate(labels)}
        strata = np.array([places[name] for name in parts["train"]["label"]], np.int32)
        held = hold_out(strata, np.arange(len(strata), dtype=np.int32), options.validation_share, options.seed)
        notes.append(f"validation: {int(held.sum()):,} of {counted(len(held), 'image')} held out, stratified by label")
        train = parts["train"]
        parts["train"], parts["validation"] = (train.select(np.flatnonzero(rows)) for rows in (~held, held))
    return ImageCorpus(parts["train"], parts["validation"], parts.get("test"), labels, tuple(notes))


def read_image_part(source: str, options: ReadOptions = DEFAULTS) -> Any:
    """Return the images to evaluate on, with the columns image and label: the test part, or the only one there is.

    Raises:
        DataError: see :func:`read_images`.
    """
    parts = _parts(source)
    if not parts:
        raise DataError(f"{source}: must have a part with images; got none")
    split = next(name for name in reversed(SPLITS) if name in parts)
    return _columns(parts[split], options, f"{source} ({split})")


def _parts(source: str) -> dict[str, Any]:
    """Return the data sets of each part, as they were given."""
    hub, path = require("datasets"), Path(source)
    try:
        if path.is_file():
            return {"train": hub.Dataset.from_parquet(str(path))}
        if path.is_dir() and any(file.suffix.lower() in FORMATS for file in path.iterdir()):
            files = split_files(path)
            return {split: hub.Dataset.from_parquet([str(file) for file in part]) for split, part in files.items()}
        loaded = hub.load_dataset("imagefolder", data_dir=source) if path.is_dir() else hub.load_dataset(source)
    except (OSError, ValueError, hub.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise DataError(f"{source!r} must be a folder of images, Parquet or a Hub name; {reason}") from None
    named = {SPLIT_NAMES[name]: part for name, part in loaded.items() if name in SPLIT_NAMES}
    return {split: named[split] for split in SPLITS if split in named}


def _columns(part: Any, options: ReadOptions, where: str) -> Any:
    """Return a part with the columns image and label, labels as their names."""
    hub = require("datasets")
    images = [name for name, feature in part.features.items() if isinstance(feature, hub.Image)]
    label = options.label_column
    if len(images) != 1 or label not in part.features:
        raise DataError(
            f"{where}: must have one column of images and a column {label!r}; got {list(part.features)!r}. "
            "Set --label-column, or write images with datasets.Image"
        )
    feature = part.features[label]
    raw = part.with_format(None)[label]
    names = [feature.int2str(value) for value in raw] if isinstance(feature, hub.ClassLabel) else list(map(str, raw))
    plain = part.select_columns(images)
    if images != ["image"]:
        plain = plain.rename_column(images[0], "image")
    return plain.add_column("label", names)


def open_images(paths: Sequence[str]) -> list[Any]:
    """Return the images of files.

    Raises:
        DataError: one that can't be read.
    """
    pillow = require("PIL.Image")
    found = []
    for path in paths:
        try:
            with pillow.open(path) as image:
                found.append(image.convert("RGB"))
        except OSError as error:
            raise DataError(f"{path!r} must be an image; {error}. Check the path") from None
    return found


def encoded_images(part: Any, labels: Sequence[str], tokens: int) -> Any:
    """Return rows with the columns image, labels (their places) and length, ``tokens`` of every image."""
    places = {name: i for i, name in enumerate(labels)}
    numbers = [places[name] for name in part["label"]]
    return part.remove_columns("label").add_column("labels", numbers).add_column("length", [tokens] * len(numbers))


def check_image_options(options: ReadOptions) -> None:
    """Refuse options that concern texts alone.

    Raises:
        OptionError: one of them was given.
    """
    for name in ("text_column", "text_pair_column", "encoding", "delimiter", "header", "label_separator", "quotes"):
        if getattr(options, name) != getattr(DEFAULTS, name):
            raise OptionError(f"{name} must be left out for images; got {getattr(options, name)!r}")
    if options.task not in (None, "single-label"):
        raise OptionError(f"task must be single-label for images; got {options.task!r}. Leave it out")
