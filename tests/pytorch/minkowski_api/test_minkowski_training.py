"""In training a normalization waits too: PyTorch's numbers, averages and gradients, one by one."""

import contextlib
import copy

import pytest
import torch
from residual_blocks import MinkowskiBlock as Block
from residual_blocks import one_by_one
from torch import nn
from torch.utils.checkpoint import checkpoint

import voxax.torch.minkowski as ME
from voxax.torch.core import features
from voxax.torch.core.features import Later

pytestmark = pytest.mark.torch


WAYS = {"waits": contextlib.nullcontext, "one by one": one_by_one}


def trained(block, x, forward=None):
    """Return the result, all gradients and all averages of a step."""
    block, features = copy.deepcopy(block), x.F.detach().clone().requires_grad_()
    out = (forward or type(block).forward)(block, x.replaced(features)).F
    torch.manual_seed(2)
    (out * torch.randn(out.shape, dtype=torch.float64).to(out.dtype)).sum().backward()
    grads = {name: part.grad for name, part in block.named_parameters()}
    return {"out": out.detach(), "x": features.grad, **grads, **dict(block.named_buffers())}


def same(block, x, forward=None, **tolerance):
    found = {}
    for name, way in WAYS.items():
        with way():
            found[name] = trained(block, x, forward)
    torch.testing.assert_close(*found.values(), **tolerance)
    return found["waits"]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_step_is_that_of_pytorch(training, affine):
    block = Block(torch.float64, affine).train(training)
    found = same(block, Block.scene(torch.float64))
    assert (found["out"] > 0).any()
    assert (found["out"] == 0).any()


@pytest.mark.parametrize("training", [True, False])
def test_a_step_in_float32_is_near_that_in_float64(training):
    torch.manual_seed(0)  # no sum lies within rounding of a ReLU
    x = Block.scene(torch.float64)
    with one_by_one():
        expected = trained(Block(torch.float64).train(training), x)
    found = trained(Block(torch.float32).train(training), x.replaced(x.F.float()))
    for name, want in expected.items():
        limit = 1e-5 * max(1.0, want.abs().max().item())  # the gradient of a bias is 0
        torch.testing.assert_close(found[name].to(want.dtype), want, rtol=0, atol=limit)


def test_it_waits_for_the_sum_and_the_relu(monkeypatch):
    computed, batch_norm = [], features.batch_norm

    def counted(*arguments):
        computed.append((arguments[5] is not None, arguments[6]))
        return batch_norm(*arguments)

    monkeypatch.setattr(features, "batch_norm", counted)
    trained(Block(torch.float32).train(), Block.scene())
    assert computed == [(False, True), (False, False), (True, True)]


class Functional(nn.Module):
    """A block whose sums and ReLUs make new tensors, which later ones do not change."""

    def forward(block, x):
        z = block.norms[0](block.conv1(x))
        rectified = ME.MinkowskiFunctional.relu(z)
        w = block.norms[1](block.conv2(rectified))
        v = block.norms[2](block.down(x))
        total = w + v
        other = v + ME.MinkowskiReLU()(total)
        z += z
        w *= total
        return ME.cat(z, rectified, w, v, total, ME.MinkowskiReLU()(total), other)


@pytest.mark.parametrize("training", [True, False])
def test_sums_and_relus_that_are_not_in_place(training):
    same(Block(torch.float64).train(training), Block.scene(torch.float64), Functional.forward)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("change", ["look", "write", "double"])
def test_who_looks_in_between(place, change):
    """Tensors that the user takes have the values of that moment, and writes count."""

    def forward(block, x):
        seen, count = [], iter(range(4))

        def look(*tensors):
            if next(count) == place:
                for tensor in tensors:
                    seen.append(tensor.F.clone())
                    if change == "write":
                        tensor.F.data.mul_(2)
                    elif change == "double":
                        tensor._F = tensor.F * 2

        out = block(x, look)
        assert len(seen) == 2
        return out.replaced(out.F + sum(part.sum() for part in seen))

    same(Block(torch.float64).train(), Block.scene(torch.float64), forward)


def test_averages_move_though_nobody_takes_the_result():
    block, x = Block(torch.float64).train(), Block.scene(torch.float64)
    expected = copy.deepcopy(block.norms[0].bn)
    expected(block.conv1(x).F)
    with torch.no_grad():
        y = block.norms[0](block.conv1(x))
    torch.testing.assert_close(block.norms[0].bn.state_dict(), expected.state_dict())
    expected(block.conv1(x).F)
    del y
    block.norms[0](block.conv1(x))
    torch.testing.assert_close(block.norms[0].bn.state_dict(), expected.state_dict())


def test_the_moment_of_the_call_counts():
    """Neither a step of the optimizer in between nor another mode changes a result."""
    block, x = Block(torch.float64).train(), Block.scene(torch.float64)
    norm = block.norms[0]
    expected = norm.bn(block.conv1(x).F)
    y = norm(block.conv1(x))
    with torch.no_grad():
        norm.bn.weight.zero_()
    norm.eval()
    with torch.no_grad():
        rows = y.F
    torch.testing.assert_close(rows, expected)
    assert rows.requires_grad
    assert torch.autograd.grad(rows.square().sum(), norm.bn.weight)[0].abs().min() > 0
    with torch.inference_mode():
        y = norm(block.conv1(x))
    assert not y.F.requires_grad


def test_switches_of_modes():
    block, x = Block(torch.float64), Block.scene(torch.float64)

    def forward(block, x):
        outs = []
        for training in (True, False):
            outs.append(block.train(training)(x))
            with torch.no_grad():
                block(x)
        return ME.cat(outs)

    same(block, x, forward)


@pytest.mark.parametrize("hook", ["forward", "backward", "tensor"])
def test_hooks_are_called(hook):
    block, x, called = Block(torch.float64).train(), Block.scene(torch.float64), []
    expected = trained(block, x)
    if hook == "forward":
        block.norms[0].bn.register_forward_hook(lambda *_: called.append(1))
    elif hook == "backward":
        block.norms[0].bn.register_full_backward_hook(lambda *_: called.append(1))
        block.relu.module.inplace = False  # PyTorch refuses it behind such a hook

    def forward(block, x):
        def look(y, z):
            if hook == "tensor":
                z.F.register_hook(lambda _: called.append(1))

        return block(x, look)

    torch.testing.assert_close(trained(block, x, forward), expected)
    assert called


def test_one_row_and_none():
    block = Block(torch.float32).train()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(Block.scene(size=1))
    x = ME.SparseTensor(torch.zeros(0, 4), coordinates=torch.zeros((0, 3), dtype=torch.int32))
    assert block(x).F.shape == (0, 5)
    assert block.eval()(Block.scene(size=1)).F.shape == (1, 5)


def test_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        found = same(Block(torch.float32).train(), Block.scene())
    assert found["out"].dtype is torch.bfloat16
    assert found["conv1.kernel"].dtype is torch.float32


def test_derivatives_of_second_order():
    block, x = Block(torch.float64).train(), Block.scene(torch.float64)
    found = []
    for way in WAYS.values():
        with way():
            features = x.F.detach().clone().requires_grad_()
            out = block(x.replaced(features)).F
            (grad,) = torch.autograd.grad(out.square().sum(), features, create_graph=True)
            parts = [features, *block.parameters()]
            found.append(torch.autograd.grad(grad.square().sum(), parts, allow_unused=True))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    def forward(block, x):
        run = lambda features: block(x.replaced(features)).F  # noqa: E731
        return x.replaced(checkpoint(run, x.F, use_reentrant=reentrant))

    expected = trained(Block(torch.float64).train(), Block.scene(torch.float64), forward)
    with one_by_one():
        torch.testing.assert_close(
            trained(Block(torch.float64).train(), Block.scene(torch.float64), forward), expected
        )


def test_a_graph_that_is_kept():
    block, x = Block(torch.float64).train(), Block.scene(torch.float64)
    loss = block(x).F.square().sum()
    first = torch.autograd.grad(loss, list(block.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, list(block.parameters())), first)


def test_what_waits_is_let_go():
    import gc
    import weakref

    block, x = Block(torch.float32).train(), Block.scene()
    gc.disable()
    try:
        y = block.norms[0](block.conv1(x))
        z = ME.MinkowskiFunctional.relu(y)
        waiting = [weakref.ref(tensor._features._later) for tensor in (y, z)]
        assert all(isinstance(one(), Later) for one in waiting)
        z.F.sum().backward()
        del y, z
        assert not any(one() for one in waiting)
    finally:
        gc.enable()
