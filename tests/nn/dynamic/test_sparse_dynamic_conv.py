"""sparse_dynamic_conv against one loop over voxels in float64, and its map against a count."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import gap_in_batch, no_voxel, one_voxel, random_cube, surface

import voxax as vx
from oracle import relative_error
from oracle.rows import box_offsets
from oracle.sparse_dynamic import dynamic_convolution, reaching
from samples import slow_unless
from voxax.errors import AlgorithmError, InputError
from voxax.geometry.voxel_geometry import Memo
from voxax.nn.functional import (
    DYNAMIC_CONV_ALGO_MODE,
    max_pool,
    mean_pool,
    sparse_dynamic_conv,
    spatially_sparse_conv,
)

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 3e-2}
CAPACITY = 64
SETS = {
    "cube": functools.partial(random_cube, 40),
    "surface": functools.partial(surface, 50),
    "gap": functools.partial(gap_in_batch, 40),
    "one": one_voxel,
    "none": no_voxel,
}


class Case:
    """Voxels with NaN in their padding, and everything that a voxel may choose."""

    def __init__(self, rows="cube", kernel_size=4, stride=1, dtype="float32", bank=3, groups=1):
        rows = SETS[rows]()
        rows = rows[np.lexsort(rows.T[::-1])]
        rng = np.random.default_rng(7)
        ndim = rows.shape[1] - 1
        padded = np.full((CAPACITY, ndim + 1), vx.PAD)
        padded[: len(rows)] = rows
        plain = vx.Voxels.from_coords(
            padded, jnp.zeros((CAPACITY, 4), dtype), 3, capacity=CAPACITY
        )  # fmt: skip
        self.geometry, self.rows, self.dtype = plain.geometry, rows, dtype
        self.offsets = box_offsets((kernel_size,) * ndim, (1,) * ndim)
        taps = len(self.offsets)
        self.relation = {"kernel_size": kernel_size, "stride": stride}
        coarse = rows.copy()
        coarse[:, 1:] //= stride
        self.out_rows = np.unique(coarse, axis=0).reshape(-1, ndim + 1)
        outs = len(self.out_rows)

        def padded_with(values, fill):
            """Values by voxel, and the same with ``fill`` in the padding, as the dtype has them."""
            shape = (CAPACITY, *values.shape[1:])
            wide = np.full(shape, fill, np.float64)
            wide[: len(values)] = values
            array = jnp.asarray(wide, dtype)
            return np.asarray(array[: len(values)]).astype(np.float64), array

        def normal(*shape):
            return rng.normal(size=shape)

        self.x, self.features = padded_with(normal(len(rows), 4), np.nan)
        self.mask, self.mask_rows = padded_with(normal(outs, taps), np.nan)
        self.mixture, self.mixture_rows = padded_with(normal(outs, bank), np.nan)
        # Quarters, which every dtype has exactly; 0 and beyond the kernel too.
        sizes = rng.integers(0, 4 * (kernel_size + 1), outs) / 4 + 1 / 8
        self.size, self.size_rows = padded_with(sizes, np.nan)
        self.whole = np.floor(self.size).astype(int)
        self.whole_rows = jnp.full(CAPACITY, 99).at[:outs].set(jnp.asarray(self.whole))
        self.dilation = rng.integers(1, 3, outs)
        self.dilation_rows = jnp.full(CAPACITY, 99).at[:outs].set(jnp.asarray(self.dilation))
        bank = jnp.asarray(normal(bank, taps, 4, 3) / 4, dtype)
        self.bank = bank
        self.b = np.asarray(bank).astype(np.float64)
        self.weight, self.w = bank[0], self.b[0]

    def voxels(self, features=None):
        return vx.Voxels(self.geometry, self.features if features is None else features)

    def expected(self, weight=None, **choices):
        w = self.b if choices.get("mixture") is not None else self.w
        return dynamic_convolution(
            self.x, self.rows, self.out_rows, self.offsets, w,
            stride=self.relation["stride"], **choices,
        )  # fmt: skip

    def check(self, expected, weight=None, **choices):
        w = self.bank if choices.get("mixture") is not None else self.weight
        out = _call(self.voxels(), w, self.relation, choices)
        features = np.asarray(out.features).astype(np.float64)
        count = len(self.out_rows)
        np.testing.assert_array_equal(out.valid_coords(), self.out_rows)
        assert (features[count:] == 0).all()
        assert relative_error(features[:count], expected) < TOLERANCE[self.dtype]


def _call(voxels, weight, relation, choices):
    """One program, where the eager call would compile a dozen."""
    arrays = {n: v for n, v in choices.items() if isinstance(v, jax.Array)}
    static = {n: v for n, v in choices.items() if n not in arrays}
    run = functools.partial(sparse_dynamic_conv, **relation, **static)
    return jax.jit(lambda v, w, a: run(v, w, **a))(voxels, weight, arrays)


def wide(dtype):
    return jax.enable_x64(dtype == "float64")


METHODS = [
    ("hard", "grouped"),
    slow_unless(False, "hard", "masked"),
    ("soft", "grouped"),
    ("soft", "masked"),
]


@pytest.mark.parametrize(
    "dtype", ["float64", slow_unless(False, "float32"), slow_unless(False, "bfloat16")]
)
@pytest.mark.parametrize(("kind", "algorithm"), METHODS)
def test_sizes(kind, algorithm, dtype):
    with wide(dtype):
        case = Case(dtype=dtype)
        soft = kind == "soft"
        size, rows = (case.size, case.size_rows) if soft else (case.whole, case.whole_rows)
        tau = 1.5 if soft else None
        expected, _ = case.expected(size=size, tau=tau)
        case.check(expected, size=rows, tau=tau, algorithm=algorithm)


@pytest.mark.parametrize(
    ("rows", "stride"),
    [
        ("gap", 2),
        ("none", 1),
        ("one", 1),
        *(slow_unless(False, r, s) for r in ("one", "none") for s in (2, 3)),
        slow_unless(False, "gap", 3),
        *(slow_unless(False, "surface", s) for s in (1, 2, 3)),
    ],
)
def test_layouts_and_strides(rows, stride):
    with wide("float64"):
        case = Case(rows, kernel_size=3, stride=stride, dtype="float64")
        everything = {"tau": 2.0, "size": case.size, "mask": case.mask, "mixture": case.mixture}
        given = {"size": case.size_rows, "mask": case.mask_rows, "mixture": case.mixture_rows}
        case.check(case.expected(**everything)[0], **{**everything, **given})
        case.check(case.expected(size=case.whole)[0], size=case.whole_rows)


@pytest.mark.parametrize("choice", ["mask", "mixture", "dilation"])
def test_each_choice_alone(choice):
    with wide("float64"):
        case = Case(kernel_size=3, dtype="float64")
        rows = {
            "mask": case.mask_rows,
            "mixture": case.mixture_rows,
            "dilation": case.dilation_rows,
        }
        more = {"dilations": (1, 2)} if choice == "dilation" else {}
        expected, _ = case.expected(**{choice: getattr(case, choice)})
        case.check(expected, **{choice: rows[choice]}, **more)


def test_dilation_and_size_together():
    with wide("float64"):
        case = Case(kernel_size=3, dtype="float64")
        expected, _ = case.expected(size=case.whole, dilation=case.dilation)
        case.check(expected, size=case.whole_rows, dilation=case.dilation_rows, dilations=(2, 1))


@pytest.mark.parametrize("size", [2, *(slow_unless(False, s) for s in (1, 3, 4, 5))])
def test_one_size_is_that_kernel(size):
    """Check one size for all voxels: the fixed kernel of that size."""
    case = Case(kernel_size=5)
    reach = np.asarray([reaching(offset) for offset in case.offsets])
    inner = case.weight[np.flatnonzero(reach <= size)]
    plain = spatially_sparse_conv(case.voxels(), inner, kernel_size=size)
    own = sparse_dynamic_conv(case.voxels(), case.weight, 5, size=size)
    assert relative_error(own.features, plain.features) < 1e-5


def test_groups_and_bias():
    case = Case(kernel_size=3)
    rng = np.random.default_rng(3)
    bank = jnp.asarray(rng.normal(size=(3, 27, 2, 2, 3)), "float32")
    bias = jnp.asarray(rng.normal(size=6), "float32")
    out = sparse_dynamic_conv(
        case.voxels(), bank, 3, bias=bias, groups=2, mixture=case.mixture_rows
    )  # fmt: skip
    whole = np.zeros((3, 27, 4, 6))
    for g in range(2):
        whole[:, :, 2 * g : 2 * g + 2, 3 * g : 3 * g + 3] = np.asarray(bank)[:, :, g]
    expected, _ = dynamic_convolution(
        case.x, case.rows, case.out_rows, case.offsets, whole, mixture=case.mixture
    )
    assert relative_error(out.valid_features(), expected + np.asarray(bias)) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
def test_pairs_are_those_that_sizes_leave(stride):
    """The map has exactly the valid pairs, in every view and in its transpose."""
    case = Case("surface", kernel_size=5, stride=stride)
    _, number = case.expected(size=case.whole)
    full = vx.kernel_map(case.voxels(), 5, stride)
    kmap = full.within(case.whole_rows)
    neighbors = np.asarray(kmap.neighbors)
    assert 0 < number < (np.asarray(full.neighbors) >= 0).sum()
    assert (neighbors >= 0).sum() == number == int(kmap.view("pair_starts")[-1])
    turned = kmap.transpose()
    expected = np.full((full.in_capacity, full.num_offsets), -1)
    for m, k in zip(*np.nonzero(neighbors >= 0), strict=True):
        expected[neighbors[m, k], k] = m
    np.testing.assert_array_equal(turned.neighbors, expected)
    np.testing.assert_array_equal(turned.transpose().neighbors, neighbors)
    assert turned.restricted
    assert not turned.symmetric
    assert not kmap.symmetric
    leaves, structure = jax.tree.flatten(kmap)
    assert jax.tree.unflatten(structure, leaves).restricted


def test_pooling_in_windows_of_each_voxels_own():
    case = Case(kernel_size=3)
    kmap = vx.kernel_map(case.voxels(), 3).within(case.whole_rows)
    ones = np.ones((27, 4, 4)) * np.eye(4)
    total, _ = dynamic_convolution(
        case.x, case.rows, case.rows, case.offsets, ones, size=case.whole
    )
    number, _ = dynamic_convolution(
        np.ones_like(case.x), case.rows, case.rows, case.offsets, ones, size=case.whole
    )
    mean = mean_pool(case.voxels(), kernel_map=kmap).valid_features()
    assert relative_error(mean, total / np.maximum(number, 1)) < 1e-5
    only = case.whole >= 1
    largest = max_pool(case.voxels(), kernel_map=kmap).valid_features()
    assert (largest[only] >= case.x[only].astype(np.float32)).all()


# Every gradient, by central differences in float64, and to order 2.

ALL = ("features", "weight", "size", "mask", "mixture")


def differentiable(algorithm, names):
    """``(f(operands) -> scalar, operands)`` for the choices among ``names``."""
    case = Case("cube", kernel_size=3, dtype="float64")
    # Away from the ramp's kinks, at multiples of a quarter.
    size = jnp.where(case.geometry.valid, case.size_rows, 0)
    have = {
        "features": jnp.where(case.geometry.valid[:, None], case.features, 0),
        "weight": case.bank if "mixture" in names else case.weight,
        "size": size,
        "mask": jnp.nan_to_num(case.mask_rows),
        "mixture": jnp.nan_to_num(case.mixture_rows),
    }
    operands = {name: have[name] for name in names}
    tau = 1.75 if "size" in names else None
    scale = jnp.asarray(np.random.default_rng(0).normal(size=(CAPACITY, 3)))

    def f(operands):
        given = dict(operands)
        voxels, weight = case.voxels(given.pop("features")), given.pop("weight")
        size = given.pop("size", case.whole_rows)
        out = sparse_dynamic_conv(
            voxels, weight, 3, size=size, tau=tau, algorithm=algorithm, **given
        )
        return jnp.sum(jnp.sin(out.features) * scale)

    return f, operands


GRADIENTS = [
    ("grouped", ("features", "weight")),
    ("grouped", ("features", "weight", "size")),
    slow_unless(False, "masked", ALL),
    slow_unless(False, "grouped", ("features", "weight", "mixture")),
    slow_unless(False, "masked", ("features", "weight", "mask")),
    slow_unless(False, "masked", ("features", "weight", "size")),
]


@pytest.mark.parametrize(("algorithm", "names"), GRADIENTS)
def test_gradients_to_order_two(algorithm, names):
    with wide("float64"):
        f, operands = differentiable(algorithm, names)
        rng = np.random.default_rng(1)
        direction = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), operands)
        step = 1e-6

        def moved(t):
            return jax.tree.map(lambda a, d: a + t * d, operands, direction)

        value, grad = jax.jit(f), jax.jit(jax.grad(f))

        def along(tree):
            return {n: float(jnp.vdot(tree[n], direction[n])) for n in operands}

        slopes = along(grad(operands))
        for name in names:
            lone = {n: d if n == name else 0 * d for n, d in direction.items()}
            ends = [
                float(value(jax.tree.map(lambda a, d, t=t: a + t * d, operands, lone)))
                for t in (step, -step)
            ]
            assert abs((ends[0] - ends[1]) / (2 * step) - slopes[name]) < 1e-6 * max(
                1, abs(slopes[name])
            ), name

        # Forward over reverse, and reverse over reverse, against differences of gradients.
        @jax.jit
        def both(o):
            def slope(o):
                return sum(jnp.vdot(jax.grad(f)(o)[n], direction[n]) for n in names)

            return jax.jvp(jax.grad(f), (o,), (direction,))[1], jax.grad(slope)(o)

        forward, reverse = both(operands)
        high, low = grad(moved(step)), grad(moved(-step))
        for name in names:
            expected = (high[name] - low[name]) / (2 * step)
            assert relative_error(forward[name], expected) < 1e-6, name
            assert relative_error(reverse[name], expected) < 1e-6, name


def test_padding_is_inert_in_gradients():
    """NaN in the padding rows of every operand reaches no gradient."""
    case = Case(kernel_size=3)

    def f(features, weight, size, mask, mixture):
        out = sparse_dynamic_conv(
            case.voxels(features), weight, 3, size=size, tau=1.0, mask=mask, mixture=mixture
        )
        return jnp.sum(out.features**2)

    operands = (case.features, case.bank, case.size_rows, case.mask_rows, case.mixture_rows)
    grads = jax.jit(jax.grad(f, range(5)))(*operands)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in grads)
    for g in (grads[0], *grads[2:]):
        assert (np.asarray(g)[len(case.rows) :] == 0).all()

    def soft(features, size):
        out = sparse_dynamic_conv(case.voxels(features), case.weight, 3, size=size, tau=1.0)
        return jnp.sum(out.features**2)

    for g in jax.jit(jax.grad(soft, (0, 1)))(case.features, case.size_rows):
        assert bool(jnp.all(jnp.isfinite(g)))


def test_new_sizes_compile_nothing():
    case = Case(kernel_size=3)
    traced = []

    @jax.jit
    def f(voxels, weight, size):
        traced.append(1)
        return sparse_dynamic_conv(voxels, weight, 3, size=size).features

    for seed in range(3):
        size = jnp.asarray(np.random.default_rng(seed).integers(0, 5, CAPACITY))
        expected, _ = case.expected(size=np.asarray(size))
        out = np.asarray(f(case.voxels(), case.weight, size))[: len(expected)]
        assert relative_error(out, expected) < 1e-5
    assert len(traced) == 1


def test_vmap_over_sizes():
    case = Case(kernel_size=3)
    sizes = jnp.stack([case.whole_rows, case.whole_rows[::-1] % 5])

    def f(size):
        return sparse_dynamic_conv(case.voxels(), case.weight, 3, size=size).features

    together = jax.vmap(f)(sizes)
    for one, size in zip(together, sizes, strict=True):
        assert relative_error(one, f(size)) < 1e-6


def test_integers():
    case = Case(kernel_size=3)
    features = jnp.asarray(np.random.default_rng(0).integers(-3, 4, (CAPACITY, 4)), jnp.int8)
    weight = jnp.asarray(np.random.default_rng(1).integers(-3, 4, (27, 4, 3)), jnp.int8)
    out = sparse_dynamic_conv(case.voxels(features), weight, 3, size=case.whole_rows)
    assert out.features.dtype == jnp.int32
    expected, _ = dynamic_convolution(
        np.asarray(features), case.rows, case.rows, case.offsets, np.asarray(weight, int),
        size=case.whole,
    )  # fmt: skip
    np.testing.assert_array_equal(np.asarray(out.features)[: len(expected)], expected)


def test_errors_name_value_limit_and_fix():
    case = Case(kernel_size=3)
    run = functools.partial(sparse_dynamic_conv, case.voxels(), case.weight, 3)
    with pytest.raises(InputError, match=r"size of shape \(3,\).*\[64\]"):
        run(size=jnp.ones(3))
    with pytest.raises(InputError, match=r"mask of shape.*\[64, 27\]"):
        run(mask=jnp.ones((64, 26)))
    with pytest.raises(InputError, match=r"tau=1\.0 makes sizes soft"):
        run(size=case.whole_rows, tau=1.0)
    with pytest.raises(InputError, match="tau=0"):
        run(size=case.size_rows, tau=0)
    with pytest.raises(AlgorithmError, match="algorithm admits grouped: on voxels with a mask"):
        run(mask=case.mask_rows, algorithm="grouped")
    with pytest.raises(InputError, match="needs dilations="):
        run(dilation=case.dilation_rows)
    with pytest.raises(InputError, match=r"dilation 2 occurs, dilations=\(1,\)"):
        run(dilation=case.dilation_rows, dilations=(1,))
    with pytest.raises(InputError, match="weight of shape"):
        run(mixture=case.mixture_rows)
    integers = case.voxels(jnp.ones((CAPACITY, 4), jnp.int32))
    with pytest.raises(InputError, match="mask with features of int32"):
        sparse_dynamic_conv(
            integers, jnp.ones((27, 4, 3), jnp.int32), 3, mask=jnp.ones((CAPACITY, 27))
        )
    with pytest.raises(InputError, match="keep of shape"):
        vx.kernel_map(case.voxels(), 3).restrict(jnp.ones((CAPACITY, 27)))


def test_method_is_a_request_as_on_grids():
    """A name, an enum member or a list, of the argument or an overlay."""
    case = Case(kernel_size=3)
    run = functools.partial(sparse_dynamic_conv, case.voxels(), case.weight, 3)
    want = run(size=case.whole_rows).features
    for algorithm in (
        "auto",
        DYNAMIC_CONV_ALGO_MODE.MASKED,
        ["tiled", "masked"],
        "[grouped,masked]",
    ):
        y = run(size=case.whole_rows, algorithm=algorithm).features
        np.testing.assert_allclose(y, want, atol=1e-5)
    with vx.algorithms(dynamic_forward="tiled"):
        with pytest.raises(AlgorithmError, match="admits tiled: on voxels only 'grouped'"):
            run(size=case.whole_rows)
        np.testing.assert_array_equal(run(size=case.whole_rows, algorithm="auto").features, want)


def test_requests_hold_for_every_method():
    case = Case(kernel_size=3)
    for given in ({"size": 2}, {"mask": case.mask_rows}, {"size": case.size_rows, "tau": 1.0}):
        with pytest.raises(AlgorithmError, match="nonsense"):
            sparse_dynamic_conv(case.voxels(), case.weight, 3, fwd_algo="nonsense", **given)


def test_a_mask_keeps_its_digits_beside_sizes_of_half_precision():
    case = Case(kernel_size=3)
    mask = jnp.full((CAPACITY, 27), 1.003)
    size = jnp.full(CAPACITY, 3, jnp.bfloat16)
    out = sparse_dynamic_conv(case.voxels(), case.weight, 3, size=size, tau=1.0, mask=mask)
    plain = sparse_dynamic_conv(case.voxels(), case.weight, 3, mask=mask)
    assert relative_error(out.features, plain.features) < 1e-6


@pytest.mark.parametrize("shape", ["box", "cross"])
def test_a_stride_of_the_kernels_size_leaves_it_centered(shape):
    case = Case("gap", kernel_size=3)
    taps = 27 if shape == "box" else 7
    options = {"stride": 3, "kernel_shape": shape}
    out = sparse_dynamic_conv(case.voxels(), case.weight[:taps], 3, size=3, **options)
    plain = sparse_dynamic_conv(case.voxels(), case.weight[:taps], 3, **options)
    assert np.abs(np.asarray(plain.features)).max() > 0
    np.testing.assert_array_equal(out.features, plain.features)


def test_tables_of_a_plan_made_on_the_host_inside_a_trace():
    case = Case(kernel_size=3)
    full = vx.kernel_map(case.voxels(), 3)
    views = {"neighbors": np.asarray(full.neighbors)}
    full = dataclasses.replace(full, views=views, memo=Memo())
    own = jax.jit(lambda keep: full.of_taps([3, 1]).restrict(keep).neighbors)(
        jnp.ones((1, 1), bool)
    )
    np.testing.assert_array_equal(own, views["neighbors"][:, [3, 1]])


def test_a_dilation_that_is_not_listed_is_nan_in_a_trace():
    case = Case(kernel_size=3)

    @jax.jit
    def f(dilation):
        return sparse_dynamic_conv(
            case.voxels(), case.weight, 3, dilation=dilation, dilations=(1,)
        ).features

    lost = np.isnan(np.asarray(f(case.dilation_rows))).all(axis=1)
    np.testing.assert_array_equal(lost[: len(case.rows)], case.dilation == 2)
    assert not lost[len(case.rows) :].any()


@pytest.mark.parametrize("far", [2**31, 2**32, 2**63 - 1])
def test_sizes_beyond_32_bits_have_every_tap(far):
    case = Case(kernel_size=3)
    voxels = case.voxels()
    expected = sparse_dynamic_conv(voxels, case.weight, 3).features
    kmap = vx.kernel_map(voxels, 3)
    for size in (far, np.int64(far), np.full(kmap.out_capacity, far)):
        np.testing.assert_array_equal(kmap.within(size).neighbors, kmap.neighbors)
        y = sparse_dynamic_conv(voxels, case.weight, 3, size=size).features
        assert relative_error(y, expected) < 1e-6


def test_a_mixture_needs_several_weights():
    case = Case(kernel_size=3)
    factors = np.ones((case.voxels().capacity, 2), np.float32)
    with pytest.raises(InputError, match=r"with a mixture expected M weights"):
        sparse_dynamic_conv(case.voxels(), case.weight, 3, mixture=factors)


def test_plan_attaches_the_map_once():
    case = Case(kernel_size=3)

    def model(voxels):
        size = jnp.where(voxels.features[:, 0] > 0, 3, 2)
        return sparse_dynamic_conv(voxels, case.weight, 3, size=size)

    planned = vx.plan(model, case.voxels())
    assert len(planned.geometry.attached.records) == 1
    expected = model(case.voxels()).features
    assert relative_error(jax.jit(model)(planned).features, expected) < 1e-6


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_lowers(platform):
    case = Case(kernel_size=3)

    def f(features, weight, size, mask):
        voxels = case.voxels(features)
        hard = sparse_dynamic_conv(voxels, weight, 3, size=jnp.round(size)).features
        soft = sparse_dynamic_conv(voxels, weight, 3, size=size, tau=1.0).features
        both = sparse_dynamic_conv(voxels, weight, 3, size=size, mask=mask).features
        return jnp.sum((hard + soft + both) ** 2)

    lowered = jax.jit(jax.grad(f, (0, 1, 2, 3))).trace(
        case.features, case.weight, case.size_rows, case.mask_rows
    )
    assert lowered.lower(lowering_platforms=(platform,)).as_text()
