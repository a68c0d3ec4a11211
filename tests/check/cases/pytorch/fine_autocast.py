"""Mixed precision by autocast: it decides the dtypes."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x + self.mix(x)


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
