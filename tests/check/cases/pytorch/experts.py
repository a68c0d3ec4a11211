"""Each expert gets the rows that chose it."""

import torch

VERDICT = "bounded dynamic"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.router = torch.nn.Linear(4, 2)

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(choice == i)  # expect: VX106
            out = out.index_add(0, rows, expert(x[rows]))
        return out


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.randn(6, 4),)
