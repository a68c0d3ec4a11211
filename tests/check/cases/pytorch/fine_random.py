"""Random numbers of PyTorch are part of the program."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        noise = torch.randn_like(x)
        return self.dropout(x) + 0.1 * noise + torch.rand(1)


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
