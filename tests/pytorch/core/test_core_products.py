"""The three products, of dense and channelwise weights: native, PyTorch's, and their gradients."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from voxax.torch.core import kernel_map, products  # noqa: E402
from voxax.torch.core.sites import Sites  # noqa: E402

pytestmark = pytest.mark.torch


def sites(rows, ndim):
    cells = list(itertools.product(range(2), *[range(7)] * ndim))
    return Sites(torch.tensor(cells, dtype=torch.int32)[torch.randperm(len(cells))[:rows]], None, 2)


def relations(ndim, rows):
    here = sites(rows, ndim)
    strided, _ = here.reached([3] * ndim, [2] * ndim, [1] * ndim, [1] * ndim, [4] * ndim)
    one_sided = kernel_map.box((3,) * ndim, (1,) * ndim) + 1
    return (
        here.submanifold([3] * ndim, [1] * ndim),
        here.kept(one_sided),
        strided,
        strided.transpose(),
    )


@pytest.mark.parametrize("channelwise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_pytorch_multiplies_what_the_kernels_do(channelwise, dtype, monkeypatch):
    torch.manual_seed(0)
    for relation in relations(3, 200):
        rows = torch.randn(relation.in_rows, 3).to(dtype)
        grad = torch.randn(relation.out_rows, 3 if channelwise else 4).to(dtype)
        weight = (torch.randn(27, 3) if channelwise else torch.randn(27, 3, 4)).to(dtype)

        def three(rows=rows, weight=weight, grad=grad, relation=relation):
            yield products._forward(rows, weight, relation)
            yield products._data_gradient(grad, weight, relation)
            yield products._weight_gradient(rows, grad, relation, weight.dim())

        found = list(three())
        with monkeypatch.context() as without:
            without.setattr(products, "natively", lambda kernel_map: False)
            expected = list(three())
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype == dtype
            scale = b.abs().max().item()
            limit = {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 1e-2)
            torch.testing.assert_close(a, b, rtol=0, atol=limit * scale)


@pytest.mark.parametrize("channelwise", [False, True])
def test_gradients_of_any_order(channelwise):
    torch.manual_seed(0)
    for relation in relations(2, 12):
        features = torch.randn(relation.in_rows, 3, dtype=torch.float64, requires_grad=True)
        shape = (9, 3) if channelwise else (9, 3, 2)
        weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def out(features, weight, relation=relation):
            return products.convolve(features, weight, relation)

        assert torch.autograd.gradcheck(out, (features, weight), fast_mode=True)
        assert torch.autograd.gradgradcheck(out, (features, weight), fast_mode=True)


def test_bias_and_relu():
    relation = relations(2, 30)[0]
    for shape in ((9, 3), (9, 3, 3)):
        features, weight, bias = torch.randn(30, 3), torch.randn(shape), torch.randn(3)
        expected = products.convolve(features, weight, relation, bias)
        with torch.no_grad():
            found = products.convolve(features, weight, relation, bias, relu=True)
        torch.testing.assert_close(found, expected.relu())
