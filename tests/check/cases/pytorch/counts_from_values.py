"""Values say how many results there are, and no shape bounds it."""

import torch
import torch.nn.functional as F

VERDICT = "not static"


class Model(torch.nn.Module):
    def forward(self, labels, counts):
        histogram = torch.bincount(labels, minlength=2)  # expect: VX107
        spread = torch.repeat_interleave(labels, counts)  # expect: VX107
        classes = F.one_hot(labels)  # expect: VX107
        known = torch.repeat_interleave(labels, counts, output_size=3)
        return histogram, spread, classes.sum(0), known


model = Model()


def inputs():
    return torch.tensor([1, 2, 1]), torch.tensor([2, 0, 1])
