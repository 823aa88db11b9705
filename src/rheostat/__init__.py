"""One transformer checkpoint with one budget knob.

Every public name is loaded on first use, so `import rheostat` is quick and needs neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rheostat.bundle import open_bundle
    from rheostat.cost import CostTable
    from rheostat.errors import (
        BudgetError,
        CheckpointError,
        DataError,
        MissingDependencyError,
        OptionError,
        RheostatError,
        UnexpectedArgumentError,
        UnsupportedModelError,
    )
    from rheostat.losses import budget_loss
    from rheostat.measure import Measurement
    from rheostat.model import BudgetedModel, load, wrap
    from rheostat.order import UnitOrder
    from rheostat.subnet import ModelShape, Subnet

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "BudgetedModel",
    "CheckpointError",
    "CostTable",
    "DataError",
    "Measurement",
    "MissingDependencyError",
    "ModelShape",
    "OptionError",
    "RheostatError",
    "Subnet",
    "UnexpectedArgumentError",
    "UnitOrder",
    "UnsupportedModelError",
    "__version__",
    "budget_loss",
    "load",
    "open_bundle",
    "wrap",
]

# The module that owns each name. No public name may also be the name of a module: importing the module would put it
# in the name's place. So the function `measure` is reached as `from rheostat.measure import measure`.
_HOMES = {
    "BudgetError": "errors",
    "BudgetedModel": "model",
    "CheckpointError": "errors",
    "CostTable": "cost",
    "DataError": "errors",
    "Measurement": "measure",
    "MissingDependencyError": "errors",
    "ModelShape": "subnet",
    "OptionError": "errors",
    "RheostatError": "errors",
    "Subnet": "subnet",
    "UnexpectedArgumentError": "errors",
    "UnitOrder": "order",
    "UnsupportedModelError": "errors",
    "budget_loss": "losses",
    "load": "model",
    "open_bundle": "bundle",
    "wrap": "model",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
