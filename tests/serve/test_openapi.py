"""Made-up requests to every operation of the OpenAPI: no 5xx, and answers as the schema says."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from servers import Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis")


def test_no_made_up_request_makes_the_server_fail(server: Server) -> None:
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    tried = {"count": 0}
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=15, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
            derandomize=True, deadline=None,
        )  # fmt: skip
        def ask(case: Any) -> None:
            response = case.call()
            tried["count"] += 1
            assert response.status_code < 500, (case.method, case.path, case.body, response.text)
            described = case.operation.definition.raw["responses"]
            assert str(response.status_code) in described or response.status_code in (404, 405), case.path

        ask()
    assert tried["count"] > 60
    assert server.predict("awful")["predictions"]
