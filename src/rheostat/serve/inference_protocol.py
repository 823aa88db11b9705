"""The Open Inference Protocol v2 over REST, with its binary-data extension: what ``tritonclient[http]`` speaks.

One input, ``text`` (BYTES); outputs ``label`` (BYTES), ``confidence``, ``probabilities`` and ``budget_served`` (FP32).
What may be spent goes into the request's parameters, and what was spent comes back in the response's.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rheostat import __version__
from rheostat.errors import OptionError
from rheostat.serve.answers import Answer, Ask
from rheostat.serve.plain import Fraction, MalformedError, Milliseconds, as_option_error, read

HEADER = "inference-header-content-length"
VERSION = "1"
INPUT, OUTPUTS = "text", ("label", "confidence", "probabilities", "budget_served")
Shape = Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=2)]
# Parameters that clients of the protocol send by themselves, and that mean nothing here.
IGNORED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers")
)


class InputTensor(BaseModel):
    """An input of a request."""

    name: str
    shape: Shape
    datatype: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    data: list[Any] | None = None


class WantedOutput(BaseModel):
    """An output that a request asks for."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)


class InferRequest(BaseModel):
    """A request of the protocol."""

    id: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: list[InputTensor]
    outputs: list[WantedOutput] | None = None


class Parameters(BaseModel):
    """What of the parameters is ours; the names and meanings of the plain interface."""

    model_config = ConfigDict(extra="forbid", strict=True)

    budget: Fraction | None = None
    min_budget: Fraction | None = None
    exact: bool = False
    deadline_ms: Milliseconds | None = None
    escalate: bool = False


@dataclass(frozen=True)
class Inference:
    """A request that was understood.

    Attributes:
        ask: What is asked.
        id: What the client calls it.
        outputs: (name, whether as bytes) of each wanted output.
        shape: Of the input: (N,) or (N, 1).
    """

    ask: Ask
    id: str | None
    outputs: tuple[tuple[str, bool], ...]
    shape: tuple[int, ...]


def parse_inference(body: bytes, header_length: str | None) -> Inference:
    """Return the request of a body.

    Args:
        body: JSON, and after it the bytes of binary inputs.
        header_length: Bytes of the JSON, as the header of the extension says; None where all of it is JSON.

    Raises:
        OptionError: anything that is not understood, in one line.
    """
    if header_length is None:
        head, rest = body, b""
    else:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise MalformedError(
                f"{HEADER} must be a number, at most the body's {len(body)} bytes; got {header_length!r:.40}. Mend it"
            )
        head, rest = body[: int(header_length)], body[int(header_length) :]
    request = read(InferRequest, head)
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT or request.inputs[0].datatype != "BYTES":
        got = ", ".join(f"{found.name!r:.40} ({found.datatype:.20})" for found in request.inputs[:3]) or "none"
        raise OptionError(f"inputs must be one, {INPUT!r} (BYTES); got {got}. See the model's metadata")
    (tensor,) = request.inputs
    texts = _texts(tensor, rest)
    if math.prod(tensor.shape) != len(texts) or len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ([], [1]):
        raise OptionError(f"shape must be [n] or [n, 1] for n texts; got {tensor.shape} for {len(texts)}. Mend it")
    try:
        known = {name: value for name, value in request.parameters.items() if name not in IGNORED}
        ours = Parameters.model_validate(known)
    except ValidationError as error:
        raise as_option_error(error) from None
    ask = Ask(texts, ours.budget, ours.min_budget, ours.exact, ours.deadline_ms, ours.escalate)
    return Inference(ask, request.id, _wanted(request), tuple(tensor.shape))


def _texts(tensor: InputTensor, rest: bytes) -> list[str]:
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        if tensor.data is None:
            raise OptionError("data must be there, or binary_data_size; got neither. Send texts")
        flat = [part for item in tensor.data for part in (item if isinstance(item, list) else [item])]
        if not all(isinstance(item, str) for item in flat):
            raise OptionError("data must be texts, one level deep at most; got something else. Send strings")
        return flat
    if type(size) is not int or size != len(rest):
        raise MalformedError(
            f"binary_data_size must be the {len(rest)} bytes after the JSON; got {size!r:.40}. Mend it"
        )
    found, at = [], 0
    while at < len(rest):
        if at + 4 > len(rest):
            raise MalformedError("binary texts must each be preceded by 4 bytes of length; the last is cut. Mend it")
        (length,) = struct.unpack_from("<I", rest, at)
        text = rest[at + 4 : at + 4 + length]
        if len(text) != length:
            raise MalformedError("binary texts must be as long as they say; one is cut. Mend it")
        try:
            found.append(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise OptionError(f"texts must be UTF-8; {error}. Mend or leave out the text") from None
        at += 4 + length
    return found


def _wanted(request: InferRequest) -> tuple[tuple[str, bool], ...]:
    always = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return tuple((name, always) for name in OUTPUTS)
    unknown = [output.name for output in request.outputs if output.name not in OUTPUTS]
    if unknown:
        raise OptionError(f"outputs must be among {', '.join(OUTPUTS)}; got {unknown[0]!r:.40}. See the metadata")
    return tuple((output.name, output.parameters.get("binary_data", always) is True) for output in request.outputs)


def written(
    inference: Inference, answer: Answer, *, model: str, labels: Sequence[str]
) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of a response."""
    tensors, blobs = [], []
    for name, binary in inference.outputs:
        values, datatype = _output(name, answer, labels)
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": _shape(name, values, inference.shape)}
        if binary:
            blob = _packed(values) if datatype == "BYTES" else np.asarray(values, "<f4").tobytes()
            tensor["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            tensor["data"] = list(values) if datatype == "BYTES" else np.asarray(values).ravel().tolist()
        tensors.append(tensor)
    content = {
        "model_name": model,
        "model_version": VERSION,
        **({} if inference.id is None else {"id": inference.id}),
        "parameters": {
            "budget_served": answer.budget_served,
            "latency_ms": round(answer.latency_ms, 3),
            "truncated": answer.truncated,
        },
        "outputs": tensors,
    }
    head = json.dumps(content, ensure_ascii=False).encode("utf-8")
    if not blobs:
        return head, {"content-type": "application/json"}
    return head + b"".join(blobs), {"content-type": "application/octet-stream", HEADER: str(len(head))}


def _output(name: str, answer: Answer, labels: Sequence[str]) -> tuple[Sequence[Any], str]:
    found = [row.prediction for row in answer.rows]
    if name == "label":
        return [_joined(prediction.label) for prediction in found], "BYTES"
    if name == "probabilities":
        return [[p.probabilities.get(label, 0.0) for label in labels] for p in found], "FP32"
    if name == "budget_served":
        return [prediction.budget for prediction in found], "FP32"
    return [prediction.score for prediction in found], "FP32"


def _joined(label: str | tuple[str, ...] | None) -> str:
    return label if isinstance(label, str) else "|".join(label or ())


def _shape(name: str, values: Sequence[Any], asked: Sequence[int]) -> list[int]:
    return [len(values), len(values[0])] if name == "probabilities" else list(asked)


def _packed(texts: Sequence[str]) -> bytes:
    parts = [text.encode("utf-8") for text in texts]
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def server_metadata() -> dict[str, Any]:
    """Return what the server says of itself."""
    return {"name": "rheostat", "version": __version__, "extensions": ["binary_tensor_data", "parameters"]}


def model_metadata(name: str, engine: str, labels: Sequence[str]) -> dict[str, Any]:
    """Return what the server says of the model."""
    shapes = {"probabilities": [-1, len(labels)]}
    outputs = [
        {"name": output, "datatype": "BYTES" if output == "label" else "FP32", "shape": shapes.get(output, [-1])}
        for output in OUTPUTS
    ]
    return {
        "name": name,
        "versions": [VERSION],
        "platform": f"rheostat_{engine}",
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": outputs,
    }
