"""Integer arguments of voxax.torch.spconv: of Python, NumPy and PyTorch."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
spconv = pytest.importorskip("voxax.torch.spconv")

from voxax.errors import InputError  # noqa: E402
from voxax.torch.spconv import core, functional, ops, pool, test_utils, utils  # noqa: E402

pytestmark = pytest.mark.torch

KINDS = {
    "numpy scalar": np.int64,
    "numpy int32": np.int32,
    "numpy array": np.array,
    "tensor": torch.tensor,
    "int32 tensor": lambda value: torch.tensor(value, dtype=torch.int32),
}
ROWS = torch.tensor([[0, 1, 1, 1], [0, 2, 2, 2], [1, 3, 2, 4], [1, 3, 2, 5]], dtype=torch.int32)
FEATURES = torch.arange(16.0).reshape(4, 4)
POINTS = torch.tensor([[0.5, 0.5], [0.6, 0.5], [2.5, 1.5], [2.6, 1.5]])
ONES, TWOS = [1, 1, 1], [2, 2, 2]


def sparse(i=int, shape=(6, 6, 6)):
    return spconv.SparseConvTensor(FEATURES, ROWS, list(map(i, shape)), i(2))


def written(i):
    x = sparse()
    x.batch_size, x.spatial_shape = i(2), torch.tensor([6, 6, 6])
    return spconv.SubMConv3d(4, 4, 3)(x).dense()


def pairs(i):
    sizes = [list(map(i, sizes)) for sizes in (TWOS, TWOS, ONES, ONES, ONES)]
    native = spconv.ConvAlgo.Native
    out, found, numbers = ops.get_indice_pairs(ROWS, i(2), list(map(i, (6, 6, 6))), native, *sizes)
    weight = torch.ones(4, 2, 2, 2, 4)
    y = functional.indice_conv(FEATURES, weight, found, numbers, i(len(out)))
    z = functional.indice_maxpool(FEATURES, found, numbers, i(len(out)))
    return [out, found, numbers, y, z]


def tables(i):
    sizes = [list(map(i, sizes)) for sizes in (TWOS, TWOS, ONES, ONES, ONES)]
    implicit = spconv.ConvAlgo.MaskImplicitGemm
    grid = i(2), list(map(i, (6, 6, 6)))
    return list(ops.get_indice_pairs_implicit_gemm(ROWS, *grid, implicit, *sizes)[:4])


def drawn(i):
    np.random.seed(0)  # noqa: NPY002 (spconv draws from the global generator)
    sizes = [i(4), i(4)], [i(3), i(2)], i(2)
    made = test_utils.generate_sparse_data(*sizes, shape_scale=i(2))
    return [torch.from_numpy(made["features"]), torch.from_numpy(made["indices"])]


def clamped(i):
    values = torch.zeros(1, dtype=torch.int32)
    ops.maximum_value_int_(values, i(7))
    return values


# Of spconv: each takes the kind of integer, and returns what must not depend on it.
CALLS = {
    "batch_size": lambda i: sparse(i).dense(),
    "batch_size of replace_feature": lambda i: sparse(i).replace_feature(FEATURES).dense(),
    "attributes": written,
    "spatial_shape": lambda i: sparse(i).spatial_shape,
    "spatial_size": lambda i: sparse(i).spatial_size,
    "global pooling": lambda i: spconv.SparseGlobalMaxPool()(sparse(i)),
    "sum": lambda i: functional.sparse_add(sparse(i), sparse()).features,
    "submanifold": lambda i: spconv.SubMConv3d(
        i(4), i(3), i(3), i(1), i(0), i(2), i(1), indice_key="a"
    )(sparse(i)),
    "sizes of axes": lambda i: spconv.SubMConv3d(4, 3, [i(3), i(1), i(3)], dilation=(i(1),) * 3)(
        sparse(i)
    ),
    "sizes in one": lambda i: spconv.SubMConv3d(4, 3, torch.tensor([3, 1, 3]), np.ones(3, int))(
        sparse(i)
    ),
    "strided": lambda i: spconv.SparseConv3d(i(4), i(3), i(3), i(2), i(1), i(1), i(1))(sparse(i)),
    "transposed": lambda i: spconv.SparseConvTranspose3d(4, 3, i(3), i(2), i(1), i(1))(sparse(i)),
    "output_padding": lambda i: spconv.conv.SparseConvolution(
        i(3), 4, 3, 3, 2, 1, transposed=True, output_padding=i(1)
    )(sparse(i)),
    "inverse": lambda i: spconv.SparseInverseConv3d(i(4), i(3), i(3), "a")(
        spconv.SparseConv3d(4, 4, i(3), i(2), indice_key="a")(sparse(i))
    ),
    "max pooling": lambda i: spconv.SparseMaxPool3d(i(2), i(2), i(1), i(1))(sparse(i)),
    "mean pooling": lambda i: spconv.SparseAvgPool3d(i(2), i(2), i(1), i(1))(sparse(i)),
    "pooling of ndim": lambda i: pool.SparseMaxPool(i(3), i(3), subm=True)(sparse(i)),
    "PointToVoxel": lambda i: list(
        utils.PointToVoxel([1.0, 1.0], [0, 0, 4, 4], i(2), i(9), i(3)).generate_voxel_with_id(
            POINTS
        )
    ),
    "pairs": pairs,
    "tables": tables,
    "sizes of outputs": lambda i: [
        ops.get_conv_output_size([i(6)], [i(3)], [i(2)], [i(1)], [i(1)]),
        ops.get_deconv_output_size([i(6)], [i(3)], [i(2)], [i(1)], [i(1)], [i(0)]),
        core.expand_nd(i(3), i(2)),
    ],
    "rows of scenes": lambda i: list(ops.global_pool_rearrange(ROWS, i(2))),
    "scatter_nd": lambda i: core.scatter_nd(ROWS, FEATURES, [i(2), i(6), i(6), i(6), i(4)]),
    "maximum_value_int_": clamped,
    "random data": drawn,
    "index of a module": lambda i: spconv.SparseSequential(torch.nn.Linear(2, 2))[i(0)].weight,
}


def parts(value):
    """Tensors and numbers of a result."""
    if isinstance(value, spconv.SparseConvTensor):
        return [value.indices, value.features, value.spatial_shape, value.batch_size]
    return value if isinstance(value, list) else [value]


def result(call, kind):
    torch.manual_seed(0)
    return parts(call(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_integers_of_every_kind(name, kind):
    expected, found = result(CALLS[name], int), result(CALLS[name], KINDS[kind])
    for value, want in zip(found, expected, strict=True):
        if isinstance(want, torch.Tensor):
            assert torch.equal(value, want)
        else:
            assert repr(value) == repr(want)  # Python's integers, nothing that prints otherwise


def test_batch_size_as_it_is_computed():
    """A tensor of the last row, as networks for points and images compute it."""
    x = spconv.SparseConvTensor(FEATURES, ROWS, np.array([6, 6, 6]), ROWS[-1, 0] + 1)
    assert (x.batch_size, x.spatial_shape) == (2, [6, 6, 6])
    assert copy.deepcopy(x).batch_size == 2
    assert spconv.SparseConv3d(4, 3, 3)(x).dense().shape == (2, 3, 4, 4, 4)


@pytest.mark.parametrize("wrong", [1.5, 2.0, "2", None, torch.tensor([1, 2]), float("nan"), [2]])
@pytest.mark.parametrize(
    "call",
    [
        lambda value: spconv.SparseConvTensor(FEATURES, ROWS, [6, 6, 6], value),
        lambda value: spconv.SubMConv3d(value, 4, 3),
        lambda value: spconv.SparseConv3d(4, 4, [value, value, value]),
        lambda value: utils.PointToVoxel([1.0], [0, 4], 1, value, 2),
        lambda value: ops.global_pool_rearrange(ROWS, value),
    ],
)
def test_what_is_no_integer(call, wrong):
    with pytest.raises(InputError, match="expected an integer"):
        call(wrong)
