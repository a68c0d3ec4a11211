"""The TPU's block kernels of dynamic products in interpret mode, against loops in float64.

Blocks are small, so there are several along every axis, with positions of all sizes in some and of
none in others. Packed rows hold one, two or four positions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import problems
from oracle import relative_error
from oracle.dynamic import along
from oracle.dynamic import dynamic_conv as oracle
from samples import slow_unless
from voxax.hardware import HardwareInfo, targeting
from voxax.kernels.dynamic import tpu
from voxax.kernels.dynamic.blocks import blocks_of
from voxax.nn.functional import dynamic_conv
from voxax.products.convolution import sized_spec

CHIP = HardwareInfo(
    platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1,
    matrix_unit=(128, 128),
)  # fmt: skip
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}
PRODUCTS = ("forward", "dgrad", "wgrad")
# spatial, largest kernel, stride, dilation
RELATIONS = {
    "strided": ((9, 35), (3, 3), (2, 1), (1, 2)),
    "line": ((70,), (4,), (1,), (3,)),
    "volume": ((4, 3, 5), (3, 3, 3), (1, 2, 1), (2, 1, 1)),
    "larger than the grid": ((3, 2), (5, 5), (1, 1), (1, 1)),
    "stride above the kernel": ((7, 8), (2, 2), (3, 4), (1, 3)),
    "one position": ((1, 1), (3, 3), (1, 1), (1, 1)),
    "all sizes": ((18, 40), (7, 7), (1, 1), (1, 1)),
    "plane": ((19, 130), (4, 4), (1, 1), (3, 2)),
}


def make(relation, product, dtype="float32", channels=(3, 4), scenes=2):
    spatial, shape, stride, dilation = RELATIONS[relation]
    spec = sized_spec(shape, stride, dilation)
    outputs = (scenes, *(-(-n // s) for n, s in zip(spatial, stride, strict=True)))
    problem = problems.make_problem(
        product, "dynamic", scenes * int(np.prod(spatial)), int(np.prod(outputs)),
        spec.num_offsets, *channels, 1, dtype, "highest", False, "tpu", spec,
        grid=(scenes, *spatial),
    )  # fmt: skip
    return problem, outputs


def operands(problem, relation, outputs, rng):
    """``(x, w, dy)`` in the dtype of the problem, as arrays of the definition."""
    spatial, shape, *_ = RELATIONS[relation]
    c_in, c_out = problem.in_channels, problem.out_channels
    shapes = (outputs[0], *spatial, c_in), (*shape, c_in, c_out), (*outputs, c_out)
    return [jnp.asarray(rng.standard_normal(s), problem.dtype) for s in shapes]


def run(problem, pack, rows, x, w, dy, sizes, stripes=1, body="blocks"):
    flat = {
        "forward": (x.reshape(-1, x.shape[-1]), w.reshape(-1, *w.shape[-2:])),
        "dgrad": (dy.reshape(-1, dy.shape[-1]), w.reshape(-1, *w.shape[-2:])),
        "wgrad": (x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])),
    }[problem.product]
    parameters = (*tpu.parameters(pack, rows, stripes, body), ("interpret", 1))
    views = {"sizes": jnp.asarray(sizes.reshape(-1))}
    return tpu.apply(problem, parameters, *flat, views)


def check(
    product, relation, sizes_of, pack, rows=16, dtype="float32", stripes=1, body="blocks",
    channels=(3, 4),
):  # fmt: skip
    rng = np.random.default_rng(0)
    problem, outputs = make(relation, product, dtype, channels)
    _, shape, stride, dilation = RELATIONS[relation]
    sizes = sizes_of(rng, outputs, max(shape)).astype(np.int32)
    x, w, dy = operands(problem, relation, outputs, rng)
    got = np.asarray(run(problem, pack, rows, x, w, dy, sizes, stripes, body)).astype(np.float64)
    x, w, dy = (np.asarray(a).astype(np.float64) for a in (x, w, dy))
    t = rng.standard_normal(got.shape)
    want = oracle(*along(product, x, w, t), sizes, np.asarray(dilation), stride=stride)
    if product == "forward":
        assert relative_error(got, want.reshape(got.shape)) < TOLERANCE[dtype]
    else:
        scale = np.linalg.norm(dy) * np.linalg.norm(want)
        assert abs(np.vdot(got, t) - np.vdot(dy, want)) <= TOLERANCE[dtype] * max(scale, 1e-9)


def random_sizes(rng, shape, largest):
    """Every size, and some beyond both ends."""
    return rng.integers(-1, largest + 3, shape)


def half_empty(rng, shape, largest):
    """No size at all in the first half of each scene, so that some blocks have none."""
    sizes = rng.integers(1, largest + 1, shape).reshape(shape[0], -1)
    sizes[:, : sizes.shape[1] // 2] = 0
    return sizes.reshape(shape)


def nothing(rng, shape, largest):
    return np.zeros(shape, int)


@pytest.mark.parametrize(
    ("product", "relation", "sizes", "pack", "dtype", "stripes"),
    [
        *((product, "strided", random_sizes, 2, "float32", 1) for product in PRODUCTS),
        ("forward", "strided", half_empty, 4, "bfloat16", 2),
        *(
            slow_unless(False, product, relation, random_sizes, pack, dtype, stripes)
            for product in PRODUCTS
            for relation in RELATIONS
            for pack, dtype, stripes in ((1, "float32", 2), (4, "bfloat16", 1))
        ),
        *(
            slow_unless(False, product, "line", sizes, 2, "float32", 2)
            for product in PRODUCTS
            for sizes in (half_empty, nothing)
        ),
    ],
)  # fmt: skip
def test_products(product, relation, sizes, pack, dtype, stripes):
    check(product, relation, sizes, pack, dtype=dtype, stripes=stripes)


@pytest.mark.parametrize(
    ("product", "relation", "sizes", "pack", "dtype", "stripes"),
    [
        *((product, "plane", random_sizes, 2, "bfloat16", 2) for product in PRODUCTS),
        *(
            slow_unless(False, product, relation, random_sizes, pack, dtype, stripes)
            for product in PRODUCTS
            for relation in ("plane", "larger than the grid", "one position", "all sizes")
            for pack, dtype, stripes in ((1, "float32", 1), (4, "float32", 2), (8, "bfloat16", 1))
        ),
        *(
            slow_unless(False, product, "plane", sizes, 2, "float32", 2)
            for product in PRODUCTS
            for sizes in (half_empty, nothing)
        ),
    ],
)  # fmt: skip
def test_products_of_planes_in_lanes(product, relation, sizes, pack, dtype, stripes):
    """Blocks of eight lines: some lack lines at the ends, or are read from a neighbor's."""
    check(product, relation, sizes, pack, 8, dtype, stripes, "lanes")


@pytest.mark.parametrize(("body", "relation"), [("blocks", "line"), ("lanes", "all sizes")])
def test_what_a_size_leaves_out_is_not_read(body, relation):
    """With one position a row: NaN at sources that no size reaches, and where a size is 0."""
    rng = np.random.default_rng(0)
    problem, outputs = make(relation, "forward")
    x, w, dy = operands(problem, relation, outputs, rng)
    sizes = np.ones(outputs, np.int32)
    clean = run(problem, 1, 16, x, w, dy, sizes, body=body)
    # Size 1 reads the position itself.
    sizes[:, 10] = 0
    x = x.at[:, 10].set(jnp.nan)
    found = np.array(run(problem, 1, 16, x, w, dy, sizes, body=body))
    assert not found.reshape(*outputs, -1)[:, 10].any()
    kept = np.delete(found.reshape(*outputs, -1), 10, axis=1)
    np.testing.assert_array_equal(kept, np.delete(np.reshape(clean, (*outputs, -1)), 10, axis=1))


def test_wide_planes_without_strides_stand_in_lanes():
    """Not narrow ones, whose registers would be half empty, nor those with strides."""
    found = {}
    for relation in ("plane", "strided", "line", "volume"):
        problem, _ = make(relation, "forward")
        found[relation] = dict(tpu.space(problem, CHIP)[0])["body"]
    spec = sized_spec((3, 3), (1, 1), (1, 1))
    problem = problems.make_problem(
        "forward", "dynamic", 20 * 250, 20 * 250, 9, 64, 64, 1, "bfloat16", "highest", False, "tpu",
        spec, grid=(1, 20, 250),
    )  # fmt: skip
    assert set(found.values()) == {"blocks"}
    assert dict(tpu.space(problem, CHIP)[0])["body"] == "lanes"


@pytest.mark.parametrize(("pack", "passes"), [(1, 49), (2, 40), (4, 36)])
def test_passes_of_a_kernel(pack, passes):
    """Of 7 x 7 taps: a pass for each, or fewer where several positions share a row."""
    problem, _ = make("all sizes", "forward")
    (call,) = blocks_of(problem, pack, 128)
    table = np.asarray([matrix.taps for matrix in call.passes])
    assert len(call.passes) == passes
    # Every tap reaches every output of a row once.
    for tap in range(49):
        assert sorted(np.argwhere(table == tap)[:, 2]) == list(range(pack))


def test_stripes_get_blocks_of_every_cost():
    reached = jnp.asarray([3, 1, 3, 1, 2, 2, 0], jnp.int32)
    from voxax.kernels.dynamic.tpu_kernel import Steps

    order = Steps.of(reached, 2, np.zeros(1, int)).order
    first, second = np.asarray(order).reshape(2, -1)
    assert sorted({*first, *second}) == list(range(7))
    assert abs(int(reached[first].sum()) - int(reached[second[:-1]].sum())) <= 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "cpu"}, "run on TPUs"),
        ({"dtype": "float16"}, "multiply float32 and bfloat16"),
        ({"in_channels": 4096, "out_channels": 4096}, "bytes of vector memory"),
    ],
)
def test_reasons(changes, reason):
    problem, _ = make("all sizes", "forward")
    assert tpu.supports(problem, CHIP) is None
    assert reason in tpu.supports(problems.changed(problem, **changes), CHIP)


def test_many_sizes_are_refused():
    spec = sized_spec((40,), (1,), (1,))
    problem = problems.make_problem(
        "forward", "dynamic", 100, 100, 40, 3, 4, 1, "float32", "highest", False, "tpu", spec,
        grid=(1, 100),
    )  # fmt: skip
    assert "16 sizes at most, got 40" in tpu.supports(problem, CHIP)


def test_it_is_taken_first_on_tpus():
    """But where every scene has one size, which is an ordinary convolution."""
    from voxax.tuning.request import admitted
    from voxax.tuning.space import space_of

    for uniform, name in (("", "tiled"), ("scenes", "selected")):
        problem, _ = make("strided", "forward")
        problem = problems.changed(problem, uniform=uniform)
        request = admitted("auto", kind="dynamic", product="forward")
        assert space_of(problem, request.names, CHIP).heuristics[0].kernel.name == name


def test_interpreted_as_jax_does():
    """Under jit, with another size no recompilation."""
    rng = np.random.default_rng(0)
    problem, outputs = make("line", "forward")
    x, w, dy = operands(problem, "line", outputs, rng)
    call = jax.jit(lambda sizes: run(problem, 2, 16, x, w, dy, sizes))
    for size in (1, 4):
        call(jnp.full(outputs, size, jnp.int32))
    assert call._cache_size() == 1


def kernels_of(run, shapes, **options):
    """Custom calls of Pallas in a program for TPUs, of ``run`` and of its three products."""
    found = []
    with targeting(CHIP):
        for function in (run, jax.grad(lambda *args: run(*args).sum(), (0, 1))):
            traced = jax.jit(function, **options).trace(*shapes)
            program = traced.lower(lowering_platforms=("tpu",)).as_text()
            found.append(program.count("@tpu_custom_call"))
    return tuple(found)


@pytest.mark.parametrize("algorithm", ["auto", "tiled"])
def test_shards_take_the_kernel_and_what_xla_spreads_does_not(algorithm):
    """XLA does not partition kernels in Pallas: alone over two devices, or in a `shard_map` over
    one of two axes of the mesh, `tiled` is plain XLA."""

    def run(x, w, sizes):
        return dynamic_conv(x, w, size=sizes, algorithm=algorithm)

    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (
            ((4, 8, 16, 3), jnp.float32), ((3, 3, 3, 4), jnp.float32), ((4, 8, 16), jnp.int32)
        )
    ]  # fmt: skip
    auto = jax.sharding.AxisType.Auto
    mesh = jax.sharding.AbstractMesh((2, 2), ("part", "other"), axis_types=(auto, auto))
    part, whole = jax.sharding.PartitionSpec("part"), jax.sharding.PartitionSpec()
    sides = {"mesh": mesh, "in_specs": (part, whole, part), "out_specs": part}
    in_every_axis = jax.shard_map(run, **sides)
    in_one_axis = jax.shard_map(run, **sides, axis_names={"part"})
    over = {"in_shardings": tuple(jax.sharding.NamedSharding(mesh, s) for s in sides["in_specs"])}
    # Without what XLA computes again, each product is one call.
    assert kernels_of(run, shapes) == (1, 2)
    assert kernels_of(in_every_axis, shapes, **over) == (1, 2)
    assert kernels_of(run, shapes, **over) == (0, 0)
    assert kernels_of(in_one_axis, shapes, **over) == (0, 0)
