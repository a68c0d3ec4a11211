"""Numbers that functions take as values, and from which they make shapes."""

import torch
import torch.nn.functional as F

VERDICT = "static per value"
STATIC = ("ratio", "scale", "step")


class Model(torch.nn.Module):
    def forward(self, x, scale, slope, ratio, step):
        x = F.leaky_relu(x, slope) * slope
        large = F.interpolate(x, scale_factor=scale, mode="nearest")  # expect: VX201
        small = F.interpolate(x, scale_factor=(ratio, 1.0), mode="nearest")  # expect: VX201
        return large, small, torch.arange(0.0, 3.0, step)  # expect: VX201


model = Model()


def inputs():
    return torch.arange(16.0).reshape(1, 1, 4, 4), 2.0, 0.1, 0.5, 0.5
