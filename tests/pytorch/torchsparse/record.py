"""Record what TorchSparse's CPU code computes: ``python record.py`` writes ``golden.npz``.

Run it in a Python in which ``import torchsparse`` is TorchSparse 1.4.0, the last version that
convolves on CPUs (2.1 asks CUDA at its import, and makes its maps there).
``VOXAX_TEST_SPVNAS_1_4`` and ``VOXAX_TEST_MMDETECTION3D`` name clones, SPVNAS' of a commit before
June 2023; networks without a clone are left out.

Two gradients are mended. 1.4's Python raises in the backward pass of a convolution on a CPU, though
its compiled module has one, which is called here. Its gradient of ``spdevoxelize`` on a CPU takes
rows of voxels for those of points, and so reads beyond the end.
"""

from pathlib import Path

import numpy as np
import torch
import torchsparse
import torchsparse.backend
from torchsparse.nn.functional import conv, devoxelize
from torchsparse_cases import NETWORKS, layers, network, points


def backward(ctx, grad_output):
    input, weight, maps, sizes, transposed = ctx.for_backwards
    grads = torch.zeros_like(input), torch.zeros_like(weight)
    torchsparse.backend.convolution_backward_cpu(
        input, grads[0], grad_output.contiguous(), weight, grads[1], maps, sizes.cpu(), transposed
    )
    return *grads, None, None, None, None


def of_points(ctx, grad_output):
    rows, weights, number = ctx.for_backwards
    parts = (grad_output[:, None] * weights[..., None])[rows >= 0]
    total = grad_output.new_zeros(number, grad_output.shape[1])
    return total.index_add(0, rows[rows >= 0].long(), parts), None, None


def mend():
    """Give TorchSparse the two gradients."""
    devoxelize.DevoxelizeFunction.backward = staticmethod(of_points)
    conv.ConvolutionFunction.backward = staticmethod(backward)


def main():
    mend()
    found = {}
    layers(found)
    points(found)
    for name in NETWORKS:
        try:
            network(found, name)
        except LookupError as missing:
            print(f"no {name}: {missing}")  # noqa: T201
    arrays = {name: value.detach().numpy() for name, value in found.items()}
    about = f"TorchSparse {torchsparse.__version__}, PyTorch {torch.__version__}"
    path = Path(__file__).with_name("golden.npz")
    np.savez_compressed(path, about=about, **arrays)
    print(f"{about}: {len(arrays)} arrays, {path.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
