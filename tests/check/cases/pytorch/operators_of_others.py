"""The kernel of an operator for tensors without values says that a size depends on data."""

import torch

VERDICT = "bounded dynamic"


@torch.library.custom_op("voxax_cases::survivors", mutates_args=())
def survivors(scores: torch.Tensor, least: float) -> torch.Tensor:
    return torch.nonzero(scores > least)[:, 0]


@survivors.register_fake
def _(scores, least):
    return torch.empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@torch.library.custom_op("voxax_cases::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


class Model(torch.nn.Module):
    def forward(self, x, scores):
        keep = survivors(scores, 0.5)  # expect: VX106
        return doubled(x)[keep]


model = Model()


def inputs():
    return torch.arange(4.0), torch.tensor([0.1, 0.9, 0.7, 0.2])
