"""The order of tokens in the sequence, defined here and nowhere else."""

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLayout(NamedTuple):
    """Order of the tokens of one picture: CLS, then patches row by row, then registers.

    Attributes:
        grid: Rows and columns of patches (h, w).
        num_registers: Number of register tokens R.
    """

    grid: tuple[int, int]
    num_registers: int

    @property
    def parts(self) -> tuple[int, int, int]:
        """Number of CLS, patch and register tokens."""
        return 1, self.grid[0] * self.grid[1], self.num_registers

    def patches(self, x: Tensor, dim: int = 1) -> Tensor:
        """The patch tokens: of N tokens along ``dim``, the h * w that form the picture."""
        return x.split(self.parts, dim)[1]

    def specials(self, x: Tensor, dim: int = 1) -> Tensor:
        """The special tokens: of N tokens along ``dim``, CLS and then the R registers."""
        cls, _, registers = x.split(self.parts, dim)
        return torch.cat((cls, registers), dim)

    def join(self, patches: Tensor, specials: Tensor, dim: int = 1) -> Tensor:
        """Sequence order from what ``patches`` and ``specials`` gave."""
        cls, registers = specials.split((1, self.num_registers), dim)
        return torch.cat((cls, patches, registers), dim)
