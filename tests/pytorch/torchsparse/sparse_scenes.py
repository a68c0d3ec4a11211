"""Random scenes, and layers by dictionaries of voxels and by PyTorch's dense operators."""

import itertools

import torch

import voxax.torch.torchsparse as ts

SHAPE = (7, 6, 5)


def scene(rows=90, channels=3, low=0, spatial_range=(2, *SHAPE), seed=0, scenes=2):
    generator = torch.Generator().manual_seed(seed)
    axes = [range(scenes), *(range(low, low + size) for size in SHAPE)]
    cells = torch.tensor(list(itertools.product(*axes)), dtype=torch.int32)
    coords = cells[torch.randperm(len(cells), generator=generator)[:rows]]
    feats = torch.randn(rows, channels, generator=generator, dtype=torch.float64)
    return ts.SparseTensor(feats.requires_grad_(), coords, spatial_range=spatial_range)


def cloud(rows=1500, size=40, channels=4, dtype=torch.float64, seed=0):
    """Two scenes without a spatial range, large enough for a U-Net."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(2 * size**3, generator=generator)[:rows]
    axes = [cells // size**3, cells // size**2 % size, cells // size % size, cells % size]
    feats = torch.randn(rows, channels, generator=generator, dtype=torch.float64)
    return ts.SparseTensor(feats.to(dtype), torch.stack(axes, 1).int())


def taps(size, low=None):
    """The offsets of a kernel: the first axis runs fastest where their number is odd."""
    low = [-((n - 1) // 2) for n in size] if low is None else low
    axes = [range(at, at + n) for at, n in zip(low, size, strict=True)]
    if size[0] * size[1] * size[2] % 2:
        return [tap[::-1] for tap in itertools.product(*axes[::-1])]
    return list(itertools.product(*axes))


def read(coords, feats, out, kernel, offsets, stride=(1, 1, 1)):
    """Row m of the outputs is the sum of the inputs at ``m * stride + offset`` times the taps."""
    at = {tuple(row): feat for row, feat in zip(coords.tolist(), feats, strict=True)}
    rows = []
    for scene_of, *cell in out.tolist():
        total = feats.new_zeros(kernel.shape[-1])
        for offset, weight in zip(offsets, kernel, strict=True):
            place = (c * s + o for c, s, o in zip(cell, stride, offset, strict=True))
            found = at.get((scene_of, *place))
            total = total if found is None else total + found @ weight
        rows.append(total)
    return torch.stack(rows)


def grid(kernel, size):
    """``[C_out, C_in, *size]``: the taps on the axes."""
    if len(kernel) % 2:
        return kernel.reshape(*size[::-1], *kernel.shape[1:]).permute(4, 3, 2, 1, 0)
    return kernel.reshape(*size, *kernel.shape[1:]).permute(4, 3, 0, 1, 2)


def dense(tensor):
    return tensor.dense().permute(0, 4, 1, 2, 3)


def rows_at(grid_of_rows, coords):
    return grid_of_rows.permute(0, 2, 3, 4, 1)[coords.long().unbind(1)]


def same(actual, expected, *inputs):
    """Equal numbers and equal gradients."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1)).to(actual)
    found = torch.autograd.grad((actual * weights).sum(), inputs, retain_graph=True)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs, retain_graph=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
