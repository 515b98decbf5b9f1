"""Products of few rows on a CPU: the weights from the left, which MKL does faster.

A decode step multiplies a row for each sequence of the batch. `nn.Linear` asks for `x @ W.T`: of one row MKL makes a
product with a vector, on one thread, and of two rows it takes 1.4 to 2.5 times as long. `W @ x.T` has the same sums in
another order (1e-6 of float32) and takes less for two rows than the other for one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST_ROWS, MOST_ENTRIES = 8, 5_000
"""Of `x`, for MKL's kernel of few columns; two and three rows of any width are faster, too (docs/performance.md)."""


class FewRows(nn.Linear):
    """A linear layer, `[..., in_features]` to `[..., out_features]`."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        columns = max(rows, 2)  # one row twice is faster than once
        is_few = rows <= MOST_ROWS and columns * self.in_features <= MOST_ENTRIES
        if rows == 0 or not (is_few or rows in (2, 3)):
            return super().forward(x)
        few = x.reshape(rows, self.in_features).expand(columns, -1).contiguous()
        out = (self.weight @ few.T).T[:rows].contiguous()
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.out_features)


def speed_up_few_rows(model: nn.Module) -> None:
    """Turn the model's plain linear layers into such ones, where that is known to be faster: float32, a CPU, MKL."""
    if not torch.backends.mkl.is_available():
        return
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.float32 and module.weight.device.type == "cpu":
            module.__class__ = FewRows
