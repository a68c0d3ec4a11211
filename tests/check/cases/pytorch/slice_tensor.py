"""Model (b): the slice ends where a tensor says."""

import torch

VERDICT = "bounded dynamic"


class Model(torch.nn.Module):
    def forward(self, output, size_factor):
        return output[: int(size_factor * 5)]  # expect: VX104


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(24.0).reshape(8, 3), torch.tensor(0.75)
