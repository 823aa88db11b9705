"""From a budgeted checkpoint to a bundle that runs without torch."""

from importlib.util import find_spec

from rheostat.errors import missing

for _package in ("onnx", "onnxscript"):
    if find_spec(_package) is None:
        raise missing(_package, "export")

from rheostat.export.exporting import check_request, export  # noqa: E402 - it imports onnx

__all__ = ["check_request", "export"]
