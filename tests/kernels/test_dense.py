"""Check every form of every algorithm: the dense numbers, gradients, inert padding.

By default each test runs for some forms, with ``-m slow`` for all. A form that is added to
``conformance/forms.py`` runs all of it without a line of test code.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import WORKLOADS, scan

import voxax as vx
from conformance.forms import FORMS, INTERPRETED
from oracle import dense_conv, dense_conv_adjoint, relative_error
from samples import make_voxels, make_weight, slow_unless
from voxax.nn.functional import spatially_sparse_conv, spatially_sparse_depthwise_conv

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}

CASES = [(kernel, stride) for kernel in (1, 2, 3, 5) for stride in (1, 2, 3)]
# Submanifold, partition, and a window that covers much and overlaps.
FEW_CASES = [(3, 1), (2, 2), (5, 3)]
# On scans by default: one of each kind. The rest of the table needs `-m slow`.
SCAN_CASES = [(1, 1), (2, 2), (3, 1), (3, 2), (5, 3)]


pytestmark = [
    pytest.mark.filterwarnings("ignore:a kernel of extent"),
    pytest.mark.usefixtures("forms"),
]


def every_form(*default, but=()):
    """All forms except ``but``; by default those named."""
    forms = [slow_unless(form in default, form) for form in FORMS if form not in but]
    return pytest.mark.parametrize("algorithm", forms)


def pin(algorithm):
    return {"fwd_algo": algorithm, "bwd_algo": algorithm}


def wide(array):
    return jnp.asarray(array, jnp.float32)


def check_forward(rows, kernel_size, stride, algorithm, dtypes=("float32",), **options):
    for dtype in dtypes:
        voxels = make_voxels(rows, dtype=dtype)
        weight = make_weight(kernel_size, rows.shape[1] - 1, dtype=dtype)
        out = spatially_sparse_conv(
            voxels, weight, kernel_size, stride, **options, **pin(algorithm)
        )
        expected = dense_conv(
            wide(voxels.valid_features()),
            wide(weight),
            voxels.valid_coords(),
            out.valid_coords(),
            kernel_size,
            stride,
            batch_size=voxels.batch_size,
            dilation=options.get("dilation", 1),
        )
        assert out.features.dtype == jnp.dtype(dtype)
        assert relative_error(out.valid_features(), expected) < TOLERANCE[dtype], dtype


@every_form("pair_lists_1024", but=INTERPRETED)
@pytest.mark.parametrize(("kernel", "stride"), CASES)
def test_forward_is_dense_on_random_voxels(kernel, stride, algorithm):
    check_forward(WORKLOADS["random_cube"](), kernel, stride, algorithm, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", INTERPRETED)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2)])
def test_forward_is_dense_interpreted(kernel, stride, algorithm):
    """Leave out 5 x 5 x 5 taps, which take the interpreter's compiler minutes."""
    check_forward(WORKLOADS["random_cube"](), kernel, stride, algorithm, TOLERANCE)


@every_form("im2col", but=INTERPRETED)
@pytest.mark.parametrize(
    ("kernel", "stride"),
    [slow_unless(case in SCAN_CASES, *case) for case in CASES],
)
def test_forward_is_dense_on_a_real_scan(kernel, stride, algorithm, scans):
    check_forward(scan(scans, 2000), kernel, stride, algorithm, TOLERANCE)


@every_form("tiles_256", but=INTERPRETED)
@pytest.mark.parametrize(("kernel", "stride"), FEW_CASES)
@pytest.mark.parametrize("workload", sorted(set(WORKLOADS) - {"random_cube"}))
def test_forward_is_dense_on_every_workload(workload, kernel, stride, algorithm):
    check_forward(WORKLOADS[workload](), kernel, stride, algorithm)


@every_form("output_stationary")
@pytest.mark.parametrize(
    ("kernel", "stride", "ndim"),
    [
        slow_unless(stride == 2 or ndim != 4, kernel, stride, ndim)
        for ndim in (1, 2, 4)
        for kernel, stride in ((2, 2), (3, 1))
    ],
)
def test_forward_is_dense_in_other_dimensions(kernel, stride, ndim, algorithm):
    rows = WORKLOADS["random_cube"](120, ndim=ndim)
    check_forward(rows, kernel, stride, algorithm)


@every_form("pair_lists_4")
def test_forward_is_dense_for_anisotropic_kernels(algorithm):
    rows = WORKLOADS["random_cube"]()
    check_forward(rows, (1, 2, 3), (2, 1, 3), algorithm, dilation=(3, 2, 1))


@every_form("output_stationary", "pair_lists_4")
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_dense_groups(groups, algorithm):
    voxels = make_voxels(WORKLOADS["random_cube"](), channels=4)
    weight = make_weight(3, 3, 4, 8, groups=groups)
    out = spatially_sparse_conv(voxels, weight, 3, groups=groups, **pin(algorithm))
    rows = voxels.valid_coords()
    expected = dense_conv(voxels.valid_features(), weight, rows, rows, batch_size=2)
    assert relative_error(out.valid_features(), expected) < 1e-5


@every_form("im2col", "tiles_256")
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2)])
def test_depthwise_is_one_group_per_channel(kernel, stride, algorithm):
    voxels = make_voxels(WORKLOADS["random_cube"]())
    weight = make_weight(kernel, 3)[:, :, 0]
    kmap = vx.kernel_map(voxels, kernel, stride)

    def sparse(x, w):
        return spatially_sparse_depthwise_conv(
            x, w, kmap, fwd_algo=algorithm, bwd_algo=algorithm, num_out_coords=kmap.out_capacity
        )

    count = int(kmap.out_geometry.count)

    def dense(x, w):
        rows, out_rows = voxels.valid_coords(), np.asarray(kmap.out_geometry.coords)[:count]
        y = dense_conv(
            x[: len(rows)], w[:, :, None, None], rows, out_rows, kernel, stride, batch_size=2
        )
        return jnp.pad(y, ((0, kmap.out_capacity - count), (0, 0)))

    same_values_and_gradients(sparse, dense, voxels.features, weight)


@every_form("pair_lists_4")
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_transposed_is_the_dense_adjoint(kernel, stride, algorithm):
    """Map coarse voxels back onto those of a skip connection."""
    skip = make_voxels(WORKLOADS["random_cube"]())
    down = spatially_sparse_conv(skip, make_weight(kernel, 3), kernel, stride)
    weight = make_weight(kernel, 3, 4, 2)
    options = {"transposed": True, "out_voxels": skip}
    up = spatially_sparse_conv(down, weight, kernel, stride, **options, **pin(algorithm))
    rows, out_rows = down.valid_coords(), skip.valid_coords()
    expected = dense_conv_adjoint(
        down.valid_features(), weight, rows, out_rows,
        kernel_size=kernel, stride=stride, batch_size=2,
    )  # fmt: skip
    assert up.geometry.same_as(skip.geometry)
    assert relative_error(up.valid_features(), expected) < 1e-5


@every_form("tiles_4")
@pytest.mark.parametrize("stride", [1, 2])
def test_generative_is_dense_at_every_reached_site(stride, algorithm):
    check_forward(WORKLOADS["surface"](100), 3, stride, algorithm, generative=True)


def same_values_and_gradients(sparse, dense, *arguments, tolerance=1e-5):
    """Values, and all gradients under one random cotangent."""
    actual, actual_vjp = jax.vjp(sparse, *arguments)
    expected, expected_vjp = jax.vjp(dense, *arguments)
    assert relative_error(actual, expected) < tolerance
    cotangent = jax.random.normal(jax.random.key(0), expected.shape, expected.dtype)
    for one, other in zip(actual_vjp(cotangent), expected_vjp(cotangent), strict=True):
        assert relative_error(one, other) < tolerance


@every_form("im2col", "pair_lists_1024")
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 1), (2, 2), (3, 2)])
def test_gradients_are_dense(kernel, stride, algorithm):
    """Compare gradients of features, weight and bias."""
    voxels, weight = make_voxels(WORKLOADS["random_cube"]()), make_weight(kernel, 3)
    bias = jnp.arange(4.0)
    out = spatially_sparse_conv(voxels, weight, kernel, stride)
    rows, out_rows = voxels.valid_coords(), out.valid_coords()

    def sparse(x, w, b):
        v = voxels.replace_features(x)
        return spatially_sparse_conv(v, w, kernel, stride, bias=b, **pin(algorithm)).features

    def dense(x, w, b):
        y = dense_conv(x[: len(rows)], w, rows, out_rows, kernel, stride, batch_size=2)
        return jnp.pad(y + b[None, :], ((0, out.capacity - len(out_rows)), (0, 0)))

    same_values_and_gradients(sparse, dense, voxels.features, weight, bias)


@every_form("im2col", "pair_lists_4")
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2)])
def test_padding_is_inert(kernel, stride, algorithm):
    """NaN in the padding rows of features and cotangent reaches nothing."""
    voxels, weight = make_voxels(WORKLOADS["random_cube"]()), make_weight(kernel, 3)
    kmap = vx.kernel_map(voxels, kernel, stride)

    def products(poison):
        def poisoned(array, valid):
            return jnp.where(valid[:, None], array, poison)

        x = poisoned(voxels.features, voxels.valid)
        v = vx.Voxels(voxels.geometry, x)  # not replace_features, which would clean it

        def conv(x, w):
            v = vx.Voxels(voxels.geometry, x)
            return spatially_sparse_conv(v, w, kernel, stride, **pin(algorithm)).features

        y, vjp = jax.vjp(conv, v.features, weight)
        return y, *vjp(poisoned(jnp.ones_like(y), kmap.out_geometry.valid))

    for clean, dirty in zip(products(0.0), products(jnp.nan), strict=True):
        np.testing.assert_array_equal(clean, dirty)


@every_form("im2col", "pair_lists_4")
def test_same_bits_every_run(algorithm):
    voxels, weight = make_voxels(WORKLOADS["surface"]()), make_weight(3, 3)

    def gradients():
        loss = lambda x, w: (  # noqa: E731
            spatially_sparse_conv(voxels.replace_features(x), w, **pin(algorithm)).features ** 2
        ).sum()
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(voxels.features, weight)

    jax.tree.map(np.testing.assert_array_equal, gradients(), gradients())
