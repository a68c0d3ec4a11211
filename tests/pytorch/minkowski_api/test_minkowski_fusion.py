"""In evaluation a normalization waits for a sum and a ReLU: the same numbers as one by one."""

import pytest
import torch
from residual_blocks import WAYS
from residual_blocks import MinkowskiBlock as Block

from voxax.torch.core.features import Later

pytestmark = pytest.mark.torch


def test_it_waits(monkeypatch):
    """One native pass computes a normalization with what follows."""
    computed = []
    result = Later.result
    monkeypatch.setattr(Later, "result", lambda self: computed.append(self) or result(self))
    x = Block.scene()
    with torch.no_grad():
        y = Block(torch.float32)(x)
        assert len(set(map(id, computed))) == 2
        assert (y.F >= 0).all()
    assert len(set(map(id, computed))) == 3


@pytest.mark.parametrize("write", ["F", "+="])
def test_writes_to_features_that_two_tensors_hold(write):
    """A ReLU in place leaves two tensors on one memory: what waits and reads it comes first."""
    block, x, found = Block(torch.float64), Block.scene(torch.float64), []
    for way in WAYS.values():
        with way():
            z = block.norms[0](block.conv1(x))
            y = block.relu(z)
            normed, added = block.norms[1](y), block.norms[2](block.conv2(y))
            added += y
            if write == "F":
                z.F.mul_(3)
            else:
                z += block.conv1(x)
            found.append([tensor.F.clone() for tensor in (normed, added, y, z)])
    torch.testing.assert_close(*found)
