"""Batch normalization in one native pass: PyTorch's numbers, averages and gradients."""

import copy
import itertools

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.modules import module as torch_modules  # noqa: E402

from voxax._native import host  # noqa: E402
from voxax.torch.core.features import batch_norm, is_native, statistics  # noqa: E402
from voxax.torch.core.known_calls import is_known  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not host.available(), reason="there is no native library"),
]

WAYS = ("training", "evaluation", "no averages")


def norm_of(way, dtype=torch.float64, channels=5, **options):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(channels, track_running_stats=way != "no averages", **options)
    for part in norm.parameters():
        nn.init.uniform_(part, -1, 1)
    if norm.running_mean is not None:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return norm.to(dtype).train(way == "training")


def rows_of(dtype=torch.float64, rows=33, channels=5, offset=0.0):
    return (torch.randn(rows, channels, dtype=torch.float64) + offset).to(dtype)


def native(norm, rows, weight, bias, residual=None, relu=False):
    return batch_norm(rows, weight, bias, statistics(rows, norm), norm.eps, residual, relu)


def plain(norm, rows, weight, bias, residual=None, relu=False):
    means = norm.running_mean, norm.running_var
    own = norm.training or norm.running_mean is None
    out = nn.functional.batch_norm(rows, *means, weight, bias, own, norm.momentum, norm.eps)
    out = out if residual is None else out + residual
    return out.relu() if relu else out


@pytest.mark.parametrize("rows", [2, 33, 3000])
@pytest.mark.parametrize(("added", "relu"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("way", WAYS)
def test_numbers_and_gradients_are_those_in_float64(way, added, relu, rows):
    torch.manual_seed(0)
    leaves = [rows_of(rows=rows, offset=3), torch.rand(5).double() + 0.5, torch.rand(5).double()]
    leaves += [rows_of(rows=rows)] if added else []
    leaves = [leaf.float().double() for leaf in leaves]  # float32 begins with the same numbers
    found = {}
    for function, dtype in (
        (native, torch.float32),
        (native, torch.float64),
        (plain, torch.float64),
    ):
        own = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        residual = own[3] if added else None
        norm = norm_of(way, dtype)
        out = function(norm, *own[:3], residual, relu)
        torch.manual_seed(1)
        grads = torch.autograd.grad(out, own, torch.randn(out.shape).to(dtype))
        averages = [buffer for buffer in norm.buffers() if buffer.dtype is dtype]
        found[function, dtype] = [out.detach(), *grads, *averages]
    expected = found[plain, torch.float64]
    sizes = [want.abs().max().item() for want in expected]
    # The gradient of the rows is a difference of terms of this size, and almost 0 for two rows.
    sizes[1] = max(sizes[1], (leaves[1] / leaves[0].std(0, correction=0)).max().item())
    for dtype, close in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        for got, want, size in zip(found[native, dtype], expected, sizes, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=close, atol=close * size)


@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0, None])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_averages_move_as_in_pytorch(momentum, tracked, dtype):
    norm = norm_of("training" if tracked else "no averages", dtype, momentum=momentum).train()
    reference = copy.deepcopy(norm)
    for _ in range(3):
        rows = rows_of(dtype, offset=2)
        found = statistics(rows, norm)
        reference(rows)
        torch.testing.assert_close(found.mean, rows.mean(0))
        torch.testing.assert_close(found.variance, rows.var(0, correction=0))
        torch.testing.assert_close(norm.state_dict(), reference.state_dict())
    norm.eval()
    statistics(rows_of(dtype), norm)
    torch.testing.assert_close(norm.state_dict(), reference.state_dict())


@pytest.mark.parametrize(("added", "relu"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("way", WAYS)
def test_derivatives_of_second_order(way, added, relu):
    norm = norm_of(way, momentum=0.0)
    leaves = [
        rows_of(rows=7),
        torch.rand(5).double() + 0.5,
        torch.rand(5).double(),
        rows_of(rows=7),
    ]
    leaves = [leaf.requires_grad_() for leaf in leaves[: 3 + added]]

    def function(*parts):
        return native(norm, *parts[:3], parts[3] if added else None, relu)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("asked", list(itertools.product([False, True], repeat=4)))
def test_gradients_that_nobody_asks_for(asked):
    leaves = [rows_of(), torch.rand(5).double(), torch.rand(5).double(), rows_of()]
    leaves = [leaf.requires_grad_(wanted) for leaf, wanted in zip(leaves, asked, strict=True)]
    found = []
    for function in (native, plain):
        out = function(norm_of("training"), *leaves[:3], leaves[3], True)
        assert out.requires_grad == any(asked)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found.append(torch.autograd.grad(out.square().sum(), wanted) if wanted else ())
    torch.testing.assert_close(*found)


def test_rows_with_strides():
    wide = rows_of(channels=10).requires_grad_()
    weight, bias = torch.rand(5).double(), torch.rand(5).double()
    found = []
    for function in (native, plain):
        out = function(norm_of("training"), wide[:, ::2], weight, bias, wide[:, 1::2], True)
        (grad,) = torch.autograd.grad(out.T.contiguous().T.cumsum(1).square().sum(), wide)
        found.append((out, grad))
    torch.testing.assert_close(*found)


def test_the_same_bits_with_any_number_of_threads():
    found, threads = [], torch.get_num_threads()
    rows = rows_of(torch.float32, 5000).requires_grad_()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            norm = norm_of("training", torch.float32)
            out = native(norm, rows, norm.weight, norm.bias, None, True)
            grads = torch.autograd.grad(out.square().sum(), [rows, *norm.parameters()])
            found.append([out.detach(), norm.running_var, *grads])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_what_is_left_to_pytorch():
    rows, norm = rows_of(), norm_of("training")
    assert is_native(rows, norm)
    assert is_native(rows[:1], norm_of("evaluation"))
    for other in (rows[:1], rows[:0], rows.half(), rows.float(), rows[:, :4]):
        assert not is_native(other, norm)
    assert not is_native(rows[:1], norm_of("no averages"))
    assert not is_native(rows, nn.SyncBatchNorm(5).double())
    assert not is_native(rows, type("Own", (nn.BatchNorm1d,), {})(5).double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_native(rows, norm)
    with forward_ad.dual_level():
        assert not is_native(rows, norm)
    torch.func.grad(lambda x: (x.sum(), assert_not_native(rows, norm))[0])(rows)
    assert is_native(rows, norm)


def assert_not_native(rows, norm):
    assert not is_native(rows, norm)


HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)


@pytest.mark.parametrize("hook", HOOKS)
def test_whoever_listens_hears_of_it(hook):
    rows, norm = rows_of(), norm_of("training")
    own = getattr(norm, hook)(lambda *_: None)
    assert not is_native(rows, norm)
    assert not is_known(norm)
    own.remove()
    every = getattr(torch_modules, hook.replace("register", "register_module"))(lambda *_: None)
    try:
        assert not is_native(rows, norm)
    finally:
        every.remove()
    assert is_native(rows, norm)
