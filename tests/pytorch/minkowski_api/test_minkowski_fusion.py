"""In evaluation a normalization waits for a sum and a ReLU: the same numbers as one by one."""

import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn

import voxax.torch.minkowski as ME
from voxax.torch.core.later import Later

pytestmark = pytest.mark.torch


@contextlib.contextmanager
def one_by_one():
    """Let PyTorch compute each layer: somebody listens."""
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def one_by_one_in_evaluation():
    with torch.no_grad(), one_by_one():
        yield


WAYS = {"waits": torch.no_grad, "one by one": one_by_one_in_evaluation}


class Block(nn.Module):
    """A residual block, whose tensors ``look`` may take in between."""

    def __init__(self, dtype, affine=True):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = ME.MinkowskiConvolution(4, 5, kernel_size=3, dimension=2)
        self.conv2 = ME.MinkowskiConvolution(5, 5, kernel_size=3, bias=True, dimension=2)
        self.down = ME.MinkowskiConvolution(4, 5, kernel_size=1, dimension=2)
        self.norms = nn.ModuleList(ME.MinkowskiBatchNorm(5, affine=affine) for _ in range(3))
        self.relu = ME.MinkowskiReLU(inplace=True)
        for norm in self.norms:
            norm.bn.running_mean.uniform_(-1, 1)
            norm.bn.running_var.uniform_(0.5, 2)
            for part in norm.bn.parameters():
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
        w += v
        look(w, v)
        return self.relu(w)


def scene(dtype=torch.float32, size=60):
    rows = torch.cat([torch.zeros(size, 1), torch.randint(0, 9, (size, 2))], 1).int()
    return ME.SparseTensor(torch.randn(size, 4, dtype=dtype), coordinates=rows)


def results(block, x, **arguments):
    found = []
    for way in WAYS.values():
        with way():
            found.append(block(x, **arguments).F.detach())
    return found


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers(dtype, affine):
    fused, plain = results(Block(dtype, affine), scene(dtype))
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)
    assert (plain > 0).any()
    assert (plain == 0).any()


def test_it_waits(monkeypatch):
    """One native pass computes a normalization with what follows."""
    computed = []
    result = Later.result
    monkeypatch.setattr(Later, "result", lambda self: computed.append(self) or result(self))
    x = scene()
    with torch.no_grad():
        y = Block(torch.float32)(x)
        assert len(set(map(id, computed))) == 2
        assert (y.F >= 0).all()
    assert len(set(map(id, computed))) == 3


@pytest.mark.parametrize("place", range(4))
def test_who_looks_sees_what_is_there(place):
    """Tensors that the user takes in between have the values of that moment."""
    seen = {}
    for name, way in WAYS.items():
        taken = []
        count = iter(range(4))

        def look(*tensors, count=count, taken=taken):
            if next(count) == place:
                taken.extend(tensor.F.detach().clone() for tensor in tensors)

        torch.manual_seed(1)
        with way():
            taken.append(Block(torch.float64)(scene(torch.float64), look=look).F.detach())
        seen[name] = taken
    assert len(seen["waits"]) == 3
    torch.testing.assert_close(seen["waits"], seen["one by one"])


@pytest.mark.parametrize("place", range(4))
def test_writes_of_the_user_count(place):
    """What a user writes into features in between is what later layers read."""

    def look(*tensors):
        if next(count) == place:
            for tensor in tensors:
                tensor.F.data.mul_(2)

    x, found = scene(torch.float64), []
    for way in WAYS.values():
        count = iter(range(4))
        with way():
            found.append(Block(torch.float64)(x, look=look).F.detach())
    torch.testing.assert_close(*found)


def test_the_input_is_normalized_at_once():
    """The user holds these features, and may use their memory again."""
    x = scene()
    norm = ME.MinkowskiBatchNorm(4).eval()
    with torch.no_grad():
        y = norm(x)
        expected = norm.bn(x.F)
        x.F.zero_()
        torch.testing.assert_close(y.F, expected)


def test_averages_that_change_afterwards():
    block, x = Block(torch.float32), scene()
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        expected = block.norms[0].bn(block.conv1(x).F)
        nn.init.zeros_(block.norms[0].bn.weight)
        torch.testing.assert_close(y.F, expected)


def test_one_result_for_two_norms_and_for_itself():
    block, x = Block(torch.float64), scene(torch.float64)
    with torch.no_grad():
        y = block.conv1(x)
        first, second = (norm(y) for norm in block.norms[:2])
        first += first
        torch.testing.assert_close(first.F, 2 * block.norms[0].bn(y.F))
        torch.testing.assert_close(second.F, block.norms[1].bn(y.F))


def test_copies_of_a_tensor_that_waits():
    block, x = Block(torch.float32), scene()
    with torch.no_grad():
        for copied in (copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))):
            y = block.norms[0](block.conv1(x))
            other = copied(y)
            torch.testing.assert_close(other.F, block.norms[0].bn(block.conv1(x).F))
            torch.testing.assert_close(y.F, other.F)


@pytest.mark.parametrize("kind", ["hook", "subclass", "half", "training", "global hook"])
def test_code_of_the_user_runs(kind):
    block, x, called = Block(torch.float32), scene(), []
    norm = block.norms[0].bn

    class Own(nn.BatchNorm1d):
        def forward(self, input):
            called.append(1)
            return super().forward(input)

    if kind == "hook":
        norm.register_forward_hook(lambda *_: called.append(1))
    elif kind == "subclass":
        norm.__class__ = Own
    elif kind == "training":
        norm.train()
        norm.register_forward_pre_hook(lambda *_: called.append(1))
    elif kind == "half":
        block.to(torch.bfloat16)
        x = x.replaced(x.F.bfloat16())
        called.append(1)
    handle = None
    if kind == "global hook":
        handle = nn.modules.module.register_module_forward_hook(lambda *_: called.append(1))
    try:
        with torch.no_grad():
            fused = block.relu(block.norms[0](block.conv1(x))).F
            norm.eval() if kind != "training" else norm.train()
            plain = torch.relu(nn.BatchNorm1d.forward(norm, block.conv1(x).F))
    finally:
        if handle is not None:
            handle.remove()
    assert called
    torch.testing.assert_close(fused, plain)


def test_no_rows():
    x = ME.SparseTensor(torch.zeros(0, 4), coordinates=torch.zeros((0, 3), dtype=torch.int32))
    with torch.no_grad():
        assert Block(torch.float32)(x).F.shape == (0, 5)


def test_nan_stays():
    x = scene()
    x.F[:] = torch.nan
    fused, plain = results(Block(torch.float32), x)
    assert fused.isnan().all()
    assert plain.isnan().all()


@pytest.mark.parametrize("write", ["F", "+="])
def test_writes_to_features_that_two_tensors_hold(write):
    """A ReLU in place leaves two tensors on one memory: what waits and reads it comes first."""
    block, x, found = Block(torch.float64), scene(torch.float64), []
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
