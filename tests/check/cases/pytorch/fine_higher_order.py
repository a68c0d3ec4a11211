"""Operators of PyTorch that take functions: both sides and the body are in the program."""

import torch
from torch._higher_order_ops import while_loop

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cond(x.mean() > 0, lambda x: self.up(x).relu(), lambda x: self.down(x), (x,))

        def unfinished(turn, x):
            return (x.norm() > 1e-3) & (turn < 5)

        def halved(turn, x):
            return turn + 1, x * 0.5

        return while_loop(unfinished, halved, (torch.tensor(0), x.detach()))[1]


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
