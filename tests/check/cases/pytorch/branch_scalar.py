"""Model (a) with a Python threshold: the branch still depends on the tensor."""

import torch

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, threshold):
        output = self.linear(x)
        if torch.sum(output) > threshold:  # expect: VX101
            return torch.relu(output)
        else:
            return torch.sigmoid(output)


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, 0.5
