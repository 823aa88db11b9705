"""Corrections: small vectors that repair what is left of a model whose weights were not trained for it.

Removing units moves mean and scale of what a sub-layer adds. At an operating point output biases and norms get
``v + c(share)``, and no shared matrix is touched: some 0.1 % of the weights a point. Between the points of a fit ``c``
lies on a line in the share, at budget 1 it is 0, and below the smallest point it stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rheostat.errors import CheckpointError, OptionError


class Corrections(nn.Module):
    """What is added to the vectors of every layer at a share of the cost.

    Attributes:
        shares: Of the points, smallest first, all below 1.
        points: One parameter (L, K, E) a point, in the order of :func:`rheostat.forms.corrected_vectors`; layers with
            fewer than K vectors leave the last rows alone.
    """

    def __init__(self, shares: Sequence[float], sizes: tuple[int, int, int]) -> None:
        """Begin with zeros of ``sizes`` (L, K, E).

        Raises:
            OptionError: no share, one outside (0, 1), or some that do not rise.
        """
        super().__init__()
        self.shares = tuple(float(share) for share in shares)
        rising = all(a < b for a, b in zip((0.0, *self.shares), (*self.shares, 1.0), strict=True))
        if not self.shares or not rising:
            raise OptionError(f"shares of corrections must rise between 0 and 1; got {self.shares}")
        self.points = nn.ParameterList(nn.Parameter(torch.zeros(sizes)) for _ in self.shares)

    def at(self, share: float) -> Tensor | None:
        """Return c(share), (L, K, E); None where it is 0."""
        if share >= 1.0:
            return None
        points: list[Tensor] = list(self.points)
        above = bisect_left(self.shares, share)
        if above == 0 or (above < len(points) and self.shares[above] == share):
            return points[above]
        low, left = points[above - 1], self.shares[above - 1]
        if above == len(points):
            return (1.0 - share) / (1.0 - left) * low
        part = (share - left) / (self.shares[above] - left)
        return (1.0 - part) * low + part * points[above]

    def to_tensors(self) -> dict[str, Tensor]:
        """Return what is saved: ``shares`` (P,) in float64 and ``points`` (P, L, K, E)."""
        points = torch.stack([point.detach() for point in self.points]).contiguous()
        return {"shares": torch.tensor(self.shares, dtype=torch.float64), "points": points}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], sizes: tuple[int, int, int]) -> Corrections:
        """Return what :meth:`to_tensors` gave.

        Raises:
            CheckpointError: of another model.
        """
        shares, found = tensors["shares"], tensors["points"]
        wanted = (len(shares), *sizes)
        if tuple(found.shape) != wanted:
            raise CheckpointError(f"corrections must be of shape {wanted}; got {tuple(found.shape)}. Save it again")
        made = cls(shares.tolist(), sizes)
        for point, values in zip(made.points, found, strict=True):
            point.data = values.clone()
        return made
