"""Check every form of every algorithm against the numbers of a dense convolution, on many voxels.

By default each test runs for some forms, with ``-m slow`` for all. A form that is added to
``conformance/forms.py`` runs all of it without a line of test code.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import WORKLOADS, scan

from conformance.forms import FORMS, INTERPRETED
from oracle import dense_conv, dense_conv_adjoint, relative_error
from samples import make_voxels, make_weight, slow_unless
from voxax.nn.functional import spatially_sparse_conv

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
    ("kernel", "stride"), [slow_unless(case in SCAN_CASES, *case) for case in CASES]
)
def test_forward_is_dense_on_a_real_scan(kernel, stride, algorithm, scans):
    check_forward(scan(scans, 2000), kernel, stride, algorithm, TOLERANCE)


@every_form("tiles_256", but=INTERPRETED)
@pytest.mark.parametrize(("kernel", "stride"), FEW_CASES)
@pytest.mark.parametrize("workload", sorted(set(WORKLOADS) - {"random_cube"}))
def test_forward_is_dense_on_every_workload(workload, kernel, stride, algorithm):
    check_forward(WORKLOADS[workload](), kernel, stride, algorithm)


@every_form("output_stationary", "pair_lists_4")
@pytest.mark.parametrize("groups", [2, 4])
def test_groups_are_dense_groups(groups, algorithm):
    voxels = make_voxels(WORKLOADS["random_cube"](), channels=4)
    weight = make_weight(3, 3, 4, 8, groups=groups)
    out = spatially_sparse_conv(voxels, weight, 3, groups=groups, **pin(algorithm))
    rows = voxels.valid_coords()
    expected = dense_conv(voxels.valid_features(), weight, rows, rows, batch_size=2)
    assert relative_error(out.valid_features(), expected) < 1e-5


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


@every_form("im2col", "pair_lists_4")
def test_same_bits_every_run(algorithm):
    voxels, weight = make_voxels(WORKLOADS["surface"]()), make_weight(3, 3)

    def gradients():
        loss = lambda x, w: (  # noqa: E731
            spatially_sparse_conv(voxels.replace_features(x), w, **pin(algorithm)).features ** 2
        ).sum()
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(voxels.features, weight)

    jax.tree.map(np.testing.assert_array_equal, gradients(), gradients())
