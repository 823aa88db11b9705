"""Sessions of ONNX Runtime and OpenVINO behind one call: arrays by name in, logits out; safe for many threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rheostat.errors import CheckpointError, OptionError, missing

MEMORY = ("fast", "shared")
PIXELS = ("pixel_values",)  # the inputs of a graph that reads images
Arrays = Mapping[str, NDArray[Any]]


class Session(Protocol):
    """One opened graph."""

    def run(self, inputs: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S)."""
        ...


def fitted(inputs: Arrays, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the inputs that a graph knows, as int64; missing types are zeros, a missing mask is ones.

    Of a graph that reads images: its pixels, as float32.

    Raises:
        OptionError: no ``input_ids``, or arrays that are not (B, S) alike; or no pixels (B, channels, height, width).
    """
    if tuple(names) == PIXELS:
        pixels = np.asarray(inputs.get(PIXELS[0], 0), dtype=np.float32)
        if pixels.ndim != 4 or 0 in pixels.shape:
            raise OptionError(f"pixel_values must be (images, channels, height, width); got {np.shape(pixels)}")
        return {PIXELS[0]: pixels}
    if "input_ids" not in inputs:
        raise OptionError(f"inputs must hold input_ids; got {', '.join(inputs) or 'nothing'}")
    ids = np.asarray(inputs["input_ids"], dtype=np.int64)
    shapes = {np.shape(inputs[name]) for name in names if name in inputs}
    if ids.ndim != 2 or 0 in ids.shape or shapes != {ids.shape}:
        raise OptionError(f"inputs must all be of one shape (rows, tokens); got {sorted(shapes)}")
    made_up = {"token_type_ids": np.zeros_like, "attention_mask": np.ones_like}
    return {name: np.asarray(inputs[name], dtype=np.int64) if name in inputs else made_up[name](ids) for name in names}


def _unfit(feed: Arrays, error: Exception) -> OptionError:
    """Return the error for arrays that a graph can't run: ids that are no words, or more tokens than it takes."""
    reason = " ".join(str(error).split())[:200]
    if PIXELS[0] in feed:
        return OptionError(f"pixel_values must fit the model; got shape {feed[PIXELS[0]].shape}: {reason}")
    ids = feed["input_ids"]
    return OptionError(f"inputs must fit the model; got ids {ids.min()} to {ids.max()}, shape {ids.shape}: {reason}")


class OnnxSession:
    """A graph in ONNX Runtime."""

    def __init__(self, path: Path, names: Sequence[str], *, memory: str, threads: int) -> None:
        """Open it; see :func:`open_session`."""
        try:
            import onnxruntime
        except ImportError as error:
            raise missing("onnxruntime", "onnx") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if memory == "shared":  # packed copies of the weights are what is fast, and what can't be shared
            options.add_session_config_entry("session.disable_prepacking", "1")
        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - the runtime raises classes of its own
            raise CheckpointError(f"{path.name} must load in ONNX Runtime; {error}. Export the bundle again") from None
        self._names = tuple(names)

    def run(self, inputs: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S)."""
        feed = fitted(inputs, self._names)
        try:
            logits: NDArray[np.float32] = self._session.run(None, feed)[0]
        except Exception as error:  # noqa: BLE001 - the runtime raises classes of its own
            raise _unfit(feed, error) from None
        return logits


class OpenVinoSession:
    """A graph in OpenVINO; each thread has a request of its own."""

    def __init__(self, path: Path, names: Sequence[str], *, memory: str, threads: int) -> None:
        """Open it; see :func:`open_session`."""
        core = _openvino_core()
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        try:
            self._compiled: Any = core.compile_model(core.read_model(str(path)), "CPU", settings)
        except Exception as error:  # noqa: BLE001 - the runtime raises classes of its own
            raise CheckpointError(f"{path.name} must load in OpenVINO; {error}. Export the bundle again") from None
        self._names = tuple(names)
        self._local = threading.local()

    def run(self, inputs: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S)."""
        request = getattr(self._local, "request", None)
        if request is None:
            request = self._local.request = self._compiled.create_infer_request()
        feed = fitted(inputs, self._names)
        try:
            found = request.infer(feed, share_inputs=True)
        except Exception as error:  # noqa: BLE001 - the runtime raises classes of its own
            raise _unfit(feed, error) from None
        return np.array(found[0], dtype=np.float32)  # a copy: the request's memory is used again


@functools.cache
def _openvino_core() -> Any:
    """Return the one core of the process.

    It is never freed: the CPU plugin gives the thread that loads it a stack for signals, and takes it away from
    whichever thread drops the last of its objects. The first would then crash at its next signal, Ctrl-C for example.
    """
    try:
        import openvino
    except ImportError as error:
        raise missing("openvino", "openvino") from error
    return openvino.Core()


def open_session(engine: str, path: Path, names: Sequence[str], *, memory: str, threads: int) -> Session:
    """Open a graph.

    Args:
        engine: ``onnx`` or ``openvino``.
        path: The graph; its weights lie where it says.
        names: Of its inputs.
        memory: ``fast`` packs the weights for the processor; ``shared`` uses them as they lie on disk, so that all
            budgets and processes share one copy (ONNX Runtime alone).
        threads: Threads of a call.
    """
    if memory not in MEMORY:
        raise OptionError(f"memory must be one of {', '.join(MEMORY)}; got {memory!r}. The default is fast")
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise OptionError(f"threads must be a whole number, 1 or more; got {threads!r}. The default is 1")
    if engine == "openvino" and memory == "shared":
        raise OptionError("memory must be fast with OpenVINO, which packs its weights; got shared")
    if engine == "onnx":
        return OnnxSession(path, names, memory=memory, threads=threads)
    if engine == "openvino":
        return OpenVinoSession(path, names, memory=memory, threads=threads)
    raise CheckpointError(f"engine must be onnx or openvino; got {engine!r}. Install a newer rheostat")
