"""The Open Inference Protocol as an unmodified client from the package index speaks it."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from servers import Server

from rheostat.bundle import open_bundle
from rheostat.errors import OptionError
from rheostat.serve.inference_protocol import OUTPUTS, parse_inference

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent and the client's own
    tritonclient = pytest.importorskip("tritonclient.http")
    from tritonclient.utils import InferenceServerException

TEXTS = ["awful word1", "great word2 word3", "süß \N{SNOWMAN}", ""]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with tritonclient.InferenceServerClient(f"127.0.0.1:{server.port}") as found:
        yield found


def text_input(texts: list[str], *, binary: bool, shape: tuple[int, ...] | None = None) -> Any:
    found = tritonclient.InferInput("text", list(shape or (len(texts),)), "BYTES")
    array = np.array([text.encode("utf-8") for text in texts], dtype=np.object_).reshape(shape or (len(texts),))
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def test_the_client_finds_out_what_is_there(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("news")
    assert client.is_model_ready("news", "1") and not client.is_model_ready("olds")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    found = client.get_model_metadata("news")
    assert found["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in found["outputs"]] == list(OUTPUTS)
    assert found["outputs"][2]["shape"] == [-1, 2] and found["platform"] == "rheostat_onnx"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("budget", [1.0, 0.5])
def test_a_budget_is_asked_for_through_the_request_parameters(
    client: Any, bundle: Path, binary_in: bool, binary_out: bool | None, budget: float
) -> None:
    outputs = None
    if binary_out is not None:
        outputs = [tritonclient.InferRequestedOutput(name, binary_data=binary_out) for name in OUTPUTS]
    found = client.infer(
        "news", [text_input(TEXTS, binary=binary_in)], outputs=outputs, request_id="mine",
        parameters={"budget": budget, "exact": True, "deadline_ms": 60_000},
    )  # fmt: skip
    expected = open_bundle(bundle).predict(TEXTS, budget=budget)
    response = found.get_response()
    assert response["id"] == "mine" and response["model_name"] == "news"
    assert response["parameters"]["budget_served"] == budget and response["parameters"]["latency_ms"] > 0.0
    labels = [x.decode() if isinstance(x, bytes) else x for x in found.as_numpy("label").tolist()]
    assert labels == [answer.label for answer in expected]
    assert found.as_numpy("confidence") == pytest.approx([answer.score for answer in expected], abs=1e-5)
    assert found.as_numpy("probabilities").shape == (4, 2)
    assert found.as_numpy("probabilities")[:, 1] == pytest.approx([a.probabilities["good"] for a in expected], abs=1e-5)
    assert found.as_numpy("budget_served").tolist() == [budget] * 4


def test_a_column_of_texts_and_a_range_of_budgets(client: Any) -> None:
    wishes = {"budget": 0.8, "min_budget": 0.4}
    found = client.infer("news", [text_input(TEXTS, binary=True, shape=(4, 1))], parameters=wishes)
    assert found.as_numpy("label").shape == (4, 1)
    assert found.get_response()["parameters"]["budget_served"] == 0.5


@pytest.mark.parametrize(
    ("model", "wishes", "message"),
    [
        ("olds", {}, "model must be 'news'"),
        ("news", {"budget": 2.0}, "budget must be valid; input should be less than or equal to 1"),
        ("news", {"budget": 0.0}, "budget must be valid; input should be greater than 0"),
        ("news", {"budgt": 0.5}, "budgt must be valid; extra inputs are not permitted"),
        ("news", {"exact": True, "budget": 0.7}, "one of the server's"),
        ("news", {"deadline_ms": -1}, "deadline_ms must be valid"),
    ],
)
def test_a_mistake_reaches_the_client_as_one_line(
    client: Any, model: str, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [text_input(["awful"], binary=True)], parameters=wishes)
    assert message in str(caught.value) and "\n" not in str(caught.value)


# --- bytes -------------------------------------------------------------------------------------------------


def body(*texts: bytes, size: int | None = None, shape: list[int] | None = None, **more: Any) -> tuple[bytes, str]:
    blob = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    tensor = {
        "name": "text", "datatype": "BYTES", "shape": shape or [len(texts)],
        "parameters": {"binary_data_size": len(blob) if size is None else size},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head + blob, str(len(head))


def test_binary_texts_are_read_one_by_one() -> None:
    found = parse_inference(*body(b"a", "ü".encode(), b""))
    assert list(found.ask.texts) == ["a", "ü", ""] and found.shape == (3,)
    assert found.outputs == tuple((name, False) for name in OUTPUTS)
    wanted = parse_inference(*body(b"a", outputs=[{"name": "label", "parameters": {"binary_data": True}}]))
    assert wanted.outputs == (("label", True),)
    assert parse_inference(*body(b"a", parameters={"binary_data_output": True})).outputs[0] == ("label", True)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (body(b"a", size=3), "binary_data_size must be the 5 bytes"),
        (body(b"a", size=-1), "binary_data_size"),
        (body(b"\xff"), "texts must be UTF-8"),
        (body(b"a", b"b", shape=[3]), r"shape must be \[n\]"),
        (body(b"a", shape=[1, 1, 1]), "inputs.0.shape must be valid"),
        (body(b"a", shape=[-1]), "inputs.0.shape.0 must be valid"),
        (body(b"a", outputs=[{"name": "logits"}]), "outputs must be among"),
        ((body(b"a")[0], "1e3"), "must be a number, at most the body's"),
        ((body(b"a")[0], "100000"), "must be a number, at most the body's"),
        ((body(b"a")[0], None), "the body must be JSON"),
        ((b"[]", None), "the body must be valid"),
        ((b'{"inputs": []}', None), "inputs must be one, 'text'"),
        (
            (b'{"inputs": [{"name": "ids", "shape": [1], "datatype": "INT64", "data": [1]}]}', None),
            "inputs must be one",
        ),
        ((b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [1]}]}', None), "must be texts"),
        ((b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES"}]}', None), "data must be there"),
    ],
)
def test_what_is_not_understood_is_said(sent: tuple[bytes, str | None], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_inference(*sent)


@pytest.mark.parametrize("cut", range(1, 6))
def test_cut_binary_texts_are_refused(cut: int) -> None:
    whole = struct.pack("<I", 1) + b"a" + struct.pack("<I", 1) + b"b"
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "text", "datatype": "BYTES", "shape": [2],
                    "parameters": {"binary_data_size": len(whole) - cut},
                }
            ]
        }
    ).encode()  # fmt: skip
    with pytest.raises(OptionError, match=r"cut|shape"):
        parse_inference(head + whole[:-cut], str(len(head)))
