"""Every error that rheostat raises on purpose, as one tree.

RheostatError
  +-- BudgetError              (ValueError)   a budget out of range, below the floor, or not a number
  +-- OptionError              (ValueError)   any other option with a value that can't be used
  +-- UnsupportedModelError    (ValueError)   a model that no ArchitectureSpec describes
  +-- CheckpointError          (ValueError)   a folder that is damaged, unfinished, or of a newer format
  +-- DataError                (ValueError)   labelled text that can't be read or used
  +-- UnexpectedArgumentError  (TypeError)    an argument that a call does not take
  +-- MissingDependencyError   (ImportError)  an optional dependency that is not installed
  +-- BusyError                (RuntimeError) a server that can't answer now, and when to ask again

Each message says in one line what was given, what the rule is, and what to do. The command line prints
that line and exits with 2.
"""

from __future__ import annotations

from typing import Any


class RheostatError(Exception):
    """Base of all errors that rheostat raises on purpose."""


class BudgetError(RheostatError, ValueError):
    """A budget is out of range, below the floor, or not a number."""


class OptionError(RheostatError, ValueError):
    """An option has a value that can't be used."""


class UnsupportedModelError(RheostatError, ValueError):
    """No ArchitectureSpec describes the model."""


class CheckpointError(RheostatError, ValueError):
    """A checkpoint folder is damaged, unfinished, or of a newer format."""


class DataError(RheostatError, ValueError):
    """Labelled text can't be read or used."""


class UnexpectedArgumentError(RheostatError, TypeError):
    """A call was given an argument that it does not take."""


class MissingDependencyError(RheostatError, ImportError):
    """An optional dependency is not installed."""


class BusyError(RheostatError, RuntimeError):
    """A server can't answer now; the same request may be sent again.

    Attributes:
        retry_after_ms: When that is worth while.
        refused: Whether it was refused at once; otherwise it was taken in and its answer got lost or came too late.
    """

    def __init__(self, message: str, retry_after_ms: float, *, refused: bool = True) -> None:
        super().__init__(message)
        self.retry_after_ms, self.refused = retry_after_ms, refused

    def __reduce__(self) -> Any:
        return _busy, (str(self), self.retry_after_ms, self.refused)


def _busy(message: str, retry_after_ms: float, refused: bool) -> BusyError:
    """Return an error that came from another process."""
    return BusyError(message, retry_after_ms, refused=refused)


def missing(package: str, extra: str) -> MissingDependencyError:
    """Return the error for a missing optional dependency, with the command that installs it.

    >>> str(missing("torch", "train"))
    "torch is not installed; install it with: pip install 'rheostat[train]'"
    """
    return MissingDependencyError(f"{package} is not installed; install it with: pip install 'rheostat[{extra}]'")
