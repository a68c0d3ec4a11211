"""Functions that check their arguments where these have values, and do not read them else."""

import torch
import torch.nn.functional as F

VERDICT = "static"


class Model(torch.nn.Module):
    def forward(self, x, labels):
        chosen = F.one_hot(labels, num_classes=4).to(x.dtype)
        loss = F.cross_entropy(x, labels.clamp(0, 3))
        return chosen * x, loss, F.embedding(labels, x)


model = Model()


def inputs():
    return torch.arange(12.0).reshape(3, 4) - 5, torch.tensor([1, 0, 2])
