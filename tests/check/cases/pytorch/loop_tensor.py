"""Model (c): as many turns as a tensor says."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def forward(self, x, reps):
        res = x
        for _ in range(reps):  # expect: VX103
            res = res + x
        return res


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(4.0), torch.tensor(3)
