"""Pooling under windows against loops over rows."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from voxax.torch.core import pooling  # noqa: E402
from voxax.torch.core.kernel_map import KernelMap, PairMap, pairs_of  # noqa: E402

pytestmark = pytest.mark.torch


def relation(as_pairs):
    table = torch.from_numpy(np.random.default_rng(0).permutation(np.arange(-30, 30))[:60])
    table = table.clamp(min=-1).int().reshape(12, 5)
    table[3] = -1
    made = KernelMap(table, 30)
    if not as_pairs:
        return made
    return PairMap(*pairs_of(made.backwards), 30, 12)


@pytest.mark.parametrize("as_pairs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_windows(as_pairs, dtype):
    made = relation(as_pairs)
    torch.manual_seed(0)
    features = torch.randint(-3, 4, (30, 4)).to(dtype).requires_grad_()
    table = relation(False).table
    windows = [features[row[row >= 0].long()].float() for row in table]

    def expected(of):
        return torch.stack([of(w) if len(w) else torch.zeros(4) for w in windows]).to(dtype)

    found = {
        "max": (pooling.extreme(features, made), expected(lambda w: w.amax(0))),
        "sum": (pooling.total(features, made), expected(lambda w: w.sum(0))),
        "mean": (pooling.mean(features, made), expected(lambda w: w.mean(0))),
    }
    for name, (one, other) in found.items():
        assert one.dtype is dtype
        torch.testing.assert_close(one, other, msg=name)
    for name in ("sum", "mean"):
        grads = [torch.autograd.grad(y.sum(), features, retain_graph=True)[0] for y in found[name]]
        torch.testing.assert_close(*grads)
    (grad,) = torch.autograd.grad(found["max"][0].sum(), features)
    assert grad.sum() == 4 * sum(len(w) > 0 for w in windows)  # one row of each window


@pytest.mark.parametrize("as_pairs", [False, True])
def test_the_first_of_equal_values_wins(as_pairs):
    features = torch.zeros(30, 2)
    made = relation(False)
    rows = pooling.extreme_rows(features, made)[:, 0]
    if as_pairs:
        assert torch.equal(pooling.extreme_rows(features, relation(True))[:, 0], rows)
    for row, found in zip(made.table, rows, strict=True):
        assert found == (row[row >= 0][0] if (row >= 0).any() else -1)
