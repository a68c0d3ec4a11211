"""A norm waits for a sum and a ReLU: the same numbers and gradients as one by one."""

import pytest

torch = pytest.importorskip("torch")

from residual_blocks import TorchsparseBlock as Block  # noqa: E402
from residual_blocks import one_by_one, results  # noqa: E402
from torch import nn  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402
from voxax.torch.core.features import Later  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_the_same_gradients(inplace, training):
    found = []
    for way in (torch.enable_grad, lambda: one_by_one(grad=True)):
        block, x = Block(inplace=inplace).train(training), Block.scene()
        x.feats.requires_grad_()
        with way():
            for _ in range(2):
                out = block(x).F
            out.square().sum().backward()
        grads = {name: value.grad for name, value in block.named_parameters()}
        found.append([out.detach(), x.feats.grad, grads, block.state_dict()])
    torch.testing.assert_close(*found)
    assert found[0][3]["norms.0.num_batches_tracked"] == 2 * training


def test_the_same_numbers_in_1_4():
    x = Block.scene()
    x = ts_1_4.SparseTensor(x.feats, x.coords[:, [1, 2, 3, 0]])
    fused, plain = results(Block(layers=ts_1_4.nn), x)
    torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_it_waits(monkeypatch, inplace, training):
    """One native pass computes a norm with what follows; nothing else is computed."""
    computed = []
    result = Later.result
    monkeypatch.setattr(Later, "result", lambda self: computed.append(self) or result(self))
    with torch.set_grad_enabled(training):
        y = Block(inplace=inplace).train(training)(Block.scene())
    assert (y.F.isfinite()).all()
    assert len(set(map(id, computed))) == 3


def test_the_tensor_before_a_relu_in_place_has_its_memory():
    block, x = Block(), Block.scene()
    with torch.no_grad():
        before = block.norms[0](block.conv1(x))
        behind = block.relu(before)
        again = block.norms[1](behind)
        assert before.F is behind.F
        expected = nn.BatchNorm1d.forward(block.norms[1], behind.F)
        before.F.zero_()
        torch.testing.assert_close(again.F, expected)


def test_features_that_are_set_are_those():
    block, x = Block(), Block.scene()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        y.feats = torch.ones_like(x.feats[:, :1])
        assert block.relu(y).F.sum() == len(x.feats)
        y.F = -y.F
        assert y.F.sum() == -len(x.feats)


def test_other_channels_and_voxels_are_errors():
    block, x = Block(), Block.scene()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        with pytest.raises(ValueError, match=r"5\] and .*3\]: expected as many channels"):
            y + x
        z = block.conv1(ts.SparseTensor(x.feats[1:], x.coords[1:]))
        with pytest.raises(ValueError, match="voxels that differ"):
            y + z
