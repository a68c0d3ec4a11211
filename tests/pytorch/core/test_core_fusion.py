"""In evaluation a norm waits for a sum and a ReLU: the numbers of two doors as one by one."""

import copy
import functools
import pickle
from types import SimpleNamespace

import pytest
import torch
from residual_blocks import WAYS, MinkowskiBlock, TorchsparseBlock, results
from torch import nn

pytestmark = pytest.mark.torch

DOORS = {
    "minkowski": (MinkowskiBlock, True),
    "torchsparse": (TorchsparseBlock, True),
    "torchsparse, not in place": (TorchsparseBlock, False),
}


@pytest.fixture(params=DOORS)
def door(request):
    kind, inplace = DOORS[request.param]
    block = functools.partial(kind, inplace=inplace)
    return SimpleNamespace(block=block, scene=kind.scene, bn=kind.bn, norm=kind.norm)


def plain(bn, rows):
    return nn.BatchNorm1d.forward(bn, rows)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_numbers(door, dtype, affine):
    fused, single = results(door.block(dtype, affine), door.scene(dtype))
    tolerance = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(fused, single, rtol=tolerance, atol=tolerance)
    assert (single > 0).any()


@pytest.mark.parametrize("place", range(4))
def test_who_looks_sees_what_is_there(door, place):
    """Tensors that the user takes in between have the values of that moment."""
    x, seen = door.scene(torch.float64), []
    for way in WAYS.values():
        taken, count = [], iter(range(4))

        def look(*tensors, count=count, taken=taken):
            if next(count) == place:
                taken.extend(tensor.F.detach().clone() for tensor in tensors)

        with way():
            taken.append(door.block()(x, look=look).F.detach())
        seen.append(taken)
    assert len(seen[0]) > 2
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("which", [slice(1), slice(1, 2), slice(-1, None), slice(None)])
@pytest.mark.parametrize("place", range(4))
def test_writes_of_the_user_count(door, place, which):
    """What a user writes into features in between is what later layers read."""

    def look(*tensors):
        if next(count) == place:
            for tensor in tensors[which]:
                tensor.F.data.mul_(2)

    x, found = door.scene(torch.float64), []
    for way in WAYS.values():
        count = iter(range(4))
        with way():
            found.append(door.block()(x, look=look).F.detach())
    torch.testing.assert_close(*found)


def test_the_input_is_normalized_at_once(door):
    """The user holds these features, and may use their memory again."""
    x = door.scene(torch.float32)
    norm = door.norm(x.F.shape[1]).eval()
    with torch.no_grad():
        y, expected = norm(x), plain(door.bn(norm), x.F)
        x.F.zero_()
        torch.testing.assert_close(y.F, expected)


def test_averages_that_change_afterwards(door):
    block, x = door.block(), door.scene(torch.float64)
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
        expected = plain(door.bn(block.norms[0]), block.conv1(x).F)
        nn.init.zeros_(door.bn(block.norms[0]).weight)
        torch.testing.assert_close(y.F, expected)


def test_one_result_for_several_readers(door):
    block, x = door.block(), door.scene(torch.float64)
    with torch.no_grad():
        y = block.conv1(x)
        first, second = (norm(y) for norm in block.norms[:2])
        twice, total = first + first, first + second
        expected = [plain(door.bn(norm), y.F) for norm in block.norms[:2]]
        torch.testing.assert_close(twice.F, 2 * expected[0])
        torch.testing.assert_close(total.F, expected[0] + expected[1])
        torch.testing.assert_close([first.F, second.F], expected)
        first, second = (norm(y) for norm in block.norms[:2])
        first += first
        torch.testing.assert_close([first.F, second.F], [2 * expected[0], expected[1]])


def test_copies_of_a_tensor_that_waits(door):
    block, x = door.block(), door.scene(torch.float64)
    with torch.no_grad():
        for copied in (copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))):
            y = block.norms[0](block.conv1(x))
            other = copied(y)
            expected = plain(door.bn(block.norms[0]), block.conv1(x).F)
            torch.testing.assert_close(other.F, expected)
            torch.testing.assert_close(y.F, other.F)


KINDS = ["hook", "hook of the ReLU", "subclass", "method", "half", "training", "patched", "global"]


@pytest.mark.parametrize("kind", KINDS)
def test_code_of_the_user_runs(door, kind, monkeypatch):
    block, called = door.block(torch.float32), []
    norm = door.bn(block.norms[0])
    x = door.scene(torch.bfloat16 if kind == "half" else torch.float32)

    def listen(*_):
        called.append(1)

    class Own(type(norm)):
        def forward(self, input):
            listen()
            return super().forward(input)

    handle = None
    if kind == "hook":
        norm.register_forward_hook(listen)
    elif kind == "hook of the ReLU":
        block.relu.register_forward_hook(listen)
    elif kind == "subclass":
        norm.__class__ = Own
    elif kind == "method":
        forward = norm.forward
        norm.forward = lambda input: called.append(1) or forward(input)
    elif kind == "half":
        block.to(torch.bfloat16)
        listen()
    elif kind == "training":
        norm.train()
        norm.register_forward_pre_hook(listen)
    elif kind == "patched":
        original = nn.ReLU.forward
        patch = lambda self, x: called.append(1) or original(self, x)  # noqa: E731
        monkeypatch.setattr(nn.ReLU, "forward", patch)
    else:
        handle = nn.modules.module.register_module_forward_hook(listen)
    try:
        with torch.no_grad():
            rows = block.conv1(x).F
            averages = (None, None) if kind == "training" else (norm.running_mean, norm.running_var)
            own = (rows, *averages, norm.weight, norm.bias, kind == "training")
            expected = nn.functional.batch_norm(*own).relu()
            fused = block.relu(block.norms[0](block.conv1(x))).F
    finally:
        if handle is not None:
            handle.remove()
    assert called
    torch.testing.assert_close(fused, expected)


def test_no_rows_and_nan(door):
    with torch.no_grad():
        assert door.block()(door.scene(torch.float64, size=0)).F.shape == (0, 5)
    x = door.scene(torch.float64)
    x.F[:] = torch.nan
    assert all(found.isnan().all() for found in results(door.block(), x))
