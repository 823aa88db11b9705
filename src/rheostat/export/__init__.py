"""From a budgeted checkpoint to a bundle that runs without torch."""

from rheostat.export.exporting import export

__all__ = ["export"]
