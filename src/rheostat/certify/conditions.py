"""What a latency is measured under. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from rheostat.errors import OptionError

RUNTIMES = ("torch", "onnx", "openvino", "onnx-int8", "openvino-int8")


@dataclass(frozen=True)
class Conditions:
    """What a latency is worth nothing without.

    Attributes:
        batch: Rows a call.
        length: Tokens a row.
        threads: Threads of a call.
        runtime: ``torch``, ``onnx``, ``openvino``, ``onnx-int8`` or ``openvino-int8``.
    """

    batch: int = 1
    length: int = 128
    threads: int = 1
    runtime: str = "torch"

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.length} tokens, {self.threads} thread(s), {self.runtime}"


def check_runtime(name: str) -> str:
    """Return the name of a known runtime.

    Raises:
        OptionError: it is not one of ``RUNTIMES``.
    """
    if name not in RUNTIMES:
        raise OptionError(f"runtime must be one of {', '.join(RUNTIMES)}; got {name!r}. The default is torch")
    return name


def engine_of(runtime: str) -> str:
    """Return the engine of a runtime: ``onnx`` of ``onnx-int8``."""
    return runtime.removesuffix("-int8")
