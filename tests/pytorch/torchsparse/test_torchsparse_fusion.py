"""A norm waits for a sum and a ReLU: the same numbers and gradients as one by one."""

import contextlib
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import scene  # noqa: E402
from torch import nn  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.nn as spnn  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402
from voxax.torch.core.later import Later  # noqa: E402

pytestmark = pytest.mark.torch


@contextlib.contextmanager
def one_by_one(grad=False):
    """Let PyTorch compute each layer: somebody listens."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with torch.set_grad_enabled(grad):
            yield
    finally:
        handle.remove()


WAYS = {"waits": torch.no_grad, "one by one": one_by_one}


class Block(nn.Module):
    """A residual block, whose tensors ``look`` may take in between."""

    def __init__(self, dtype=torch.float64, inplace=True, layers=spnn, affine=True):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = layers.Conv3d(3, 5, 3)
        self.conv2 = layers.Conv3d(5, 5, 3, bias=True)
        self.down = layers.Conv3d(3, 5, 1)
        self.norms = nn.ModuleList(layers.BatchNorm(5, affine=affine) for _ in range(3))
        self.relu = layers.ReLU(inplace)
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
            for part in norm.parameters():
                nn.init.uniform_(part, -1, 1)
        self.to(dtype).eval()

    def forward(self, x, look=lambda *tensors: None):
        y = self.conv1(x)
        z = self.norms[0](y)
        look(y, z)
        z = self.relu(z)
        look(y, z)
        w = self.norms[1](self.conv2(z))
        v = self.norms[2](self.down(x))
        look(w, v)
        s = w + v
        look(w, v, s)
        return self.relu(s) + z


def voxels(dtype=torch.float64):
    x = scene()
    return ts.SparseTensor(x.feats.detach().to(dtype), x.coords)


def results(block, x, **arguments):
    found = []
    for way in WAYS.values():
        with way():
            found.append(block(x, **arguments).F.detach())
    return found


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers(dtype, inplace, affine):
    fused, plain = results(Block(dtype, inplace, affine=affine), voxels(dtype))
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    assert (plain > 0).any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_the_same_gradients(inplace, training):
    found = []
    for way in (torch.enable_grad, lambda: one_by_one(grad=True)):
        block, x = Block(inplace=inplace).train(training), voxels()
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
    x = voxels()
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
        y = Block(inplace=inplace).train(training)(voxels())
    assert (y.F.isfinite()).all()
    assert len(set(map(id, computed))) == 3


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("place", range(4))
def test_who_looks_sees_what_is_there(place, inplace):
    """Tensors that the user takes in between have the values of that moment."""
    seen = {}
    for name, way in WAYS.items():
        taken, count = [], iter(range(4))

        def look(*tensors, count=count, taken=taken):
            if next(count) == place:
                taken.extend(tensor.F.detach().clone() for tensor in tensors)

        with way():
            taken.append(Block(inplace=inplace)(voxels(), look=look).F.detach())
        seen[name] = taken
    torch.testing.assert_close(seen["waits"], seen["one by one"])


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("place", range(4))
def test_writes_of_the_user_count(place, which, inplace):
    """What a user writes into features in between is what later layers read."""

    def look(*tensors):
        if next(count) == place:
            tensors[which].feats.data.mul_(2)

    x, found = voxels(), []
    for way in WAYS.values():
        count = iter(range(4))
        with way():
            found.append(Block(inplace=inplace)(x, look=look).F.detach())
    torch.testing.assert_close(*found)


def test_the_tensor_before_a_relu_in_place_has_its_memory():
    block, x = Block(), voxels()
    with torch.no_grad():
        before = block.norms[0](block.conv1(x))
        behind = block.relu(before)
        again = block.norms[1](behind)
        assert before.F is behind.F
        expected = nn.BatchNorm1d.forward(block.norms[1], behind.F)
        before.F.zero_()
        torch.testing.assert_close(again.F, expected)


def test_the_input_is_normalized_at_once():
    """The user holds these features, and may use their memory again."""
    x, norm = voxels(), spnn.BatchNorm(3).double().eval()
    with torch.no_grad():
        y = norm(x)
        expected = nn.BatchNorm1d.forward(norm, x.F)
        x.F.zero_()
        torch.testing.assert_close(y.F, expected)


def test_averages_that_change_afterwards():
    block, x = Block(), voxels()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        expected = nn.BatchNorm1d.forward(block.norms[0], block.conv1(x).F)
        nn.init.zeros_(block.norms[0].weight)
        torch.testing.assert_close(y.F, expected)


def test_one_result_for_several_readers():
    block, x = Block(), voxels()
    with torch.no_grad():
        y = block.conv1(x)
        first, second = (norm(y) for norm in block.norms[:2])
        twice, total = first + first, first + second
        plain = [nn.BatchNorm1d.forward(norm, y.F) for norm in block.norms[:2]]
        torch.testing.assert_close(twice.F, 2 * plain[0])
        torch.testing.assert_close(total.F, plain[0] + plain[1])
        torch.testing.assert_close([first.F, second.F], plain)


def test_copies_of_a_tensor_that_waits():
    block, x = Block(), voxels()
    with torch.no_grad():
        for copied in (copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))):
            y = block.norms[0](block.conv1(x))
            other = copied(y)
            expected = nn.BatchNorm1d.forward(block.norms[0], block.conv1(x).F)
            torch.testing.assert_close(other.F, expected)
            torch.testing.assert_close(y.F, other.F)


@pytest.mark.parametrize("kind", ["hook", "subclass", "method", "training", "patched"])
def test_code_of_the_user_runs(kind, monkeypatch):
    block, x, called = Block(), voxels(), []
    norm, relu = block.norms[0], block.relu

    class Own(spnn.BatchNorm):
        def forward(self, input):
            called.append(1)
            return super().forward(input)

    if kind == "hook":
        relu.register_forward_hook(lambda module, args, out: called.append(out.F.min()))
    elif kind == "subclass":
        norm.__class__ = Own
    elif kind == "method":
        forward = norm.forward
        norm.forward = lambda input: called.append(1) or forward(input)
    elif kind == "training":
        norm.train()
        called.append(1)
    else:
        original = nn.ReLU.forward
        monkeypatch.setattr(
            nn.ReLU, "forward", lambda self, x: called.append(1) or original(self, x)
        )
    with torch.no_grad():
        fused = relu(norm(block.conv1(x))).F
        plain = nn.functional.batch_norm(
            block.conv1(x).F, *(norm.running_mean, norm.running_var), norm.weight, norm.bias
        )
        if kind == "training":
            plain = nn.functional.batch_norm(
                block.conv1(x).F, None, None, norm.weight, norm.bias, training=True
            )
    assert called
    torch.testing.assert_close(fused, plain.relu())


def test_features_that_are_set_are_those():
    block, x = Block(), voxels()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        y.feats = torch.ones_like(x.feats[:, :1])
        assert block.relu(y).F.sum() == len(x.feats)
        y.F = -y.F
        assert y.F.sum() == -len(x.feats)


def test_other_channels_and_voxels_are_errors():
    block, x = Block(), voxels()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        with pytest.raises(ValueError, match=r"\[5, 3\] channels"):
            y + x
        z = block.conv1(ts.SparseTensor(x.feats[1:], x.coords[1:]))
        with pytest.raises(ValueError, match="voxels that differ"):
            y + z


def test_no_rows_and_nan():
    x = voxels()
    none = ts.SparseTensor(x.feats[:0], x.coords[:0])
    with torch.no_grad():
        assert Block()(none).F.shape == (0, 5)
    x.feats[:] = torch.nan
    fused, plain = results(Block(), x)
    assert fused.isnan().all()
    assert plain.isnan().all()
