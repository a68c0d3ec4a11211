"""All faults in one call, on both sides of a branch."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, n):
        y = self.linear(x)
        if y.sum() > 0:  # expect: VX101
            rows = y[y > 0]  # expect: VX105
            total = rows.sum()
        else:
            count = int(y.argmax())  # expect: VX104
            total = y[:count].sum()
        where = torch.nonzero(x)  # expect: VX106
        grid = torch.ones(int(n))  # expect: VX107
        return total, where, grid, x.tolist()  # expect: VX109


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.tensor(2)
