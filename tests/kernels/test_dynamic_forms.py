"""Every form of the dynamic strategies over many blocks and tiles, against the definition.

Grids of other tests fit into one block. Here positions of each size lie in several, and some blocks
have several sizes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import problems
from oracle.dynamic import along
from oracle.dynamic import dynamic_conv as oracle
from problems import needs_native
from samples import slow_unless
from voxax.kernels import lookup
from voxax.kernels.dynamic import cpu as dynamic_cpu
from voxax.kernels.implicit_gemm import cpu
from voxax.products.convolution import largest_size, sized_spec

# Forms as the tuner's, but smaller.
FORMS = [
    ("masked", (("block", 8), ("fetch", "gather"))),
    ("masked", (("block", 8), ("fetch", "slices"))),
    ("grouped", (("block", 8),)),
    ("tiled", (("tile", 9),)),
    ("selected", ()),
    ("specialized", (("block", 8),)),
]
# spatial, largest kernel, stride, dilation
RELATIONS = [
    ((9, 7), (4, 4), (2, 1), (1, 2)),
    ((23,), (6,), (2,), (3,)),
    ((4, 3, 5), (3, 3, 3), (1, 2, 1), (2, 1, 1)),
    ((3, 2), (5, 5), (1, 1), (1, 1)),  # a kernel that is larger than the grid
    ((7, 8), (2, 2), (3, 4), (1, 3)),  # a stride that is larger than the kernel
]


@pytest.mark.parametrize(
    "relation", [slow_unless(i == 0, r) for i, r in enumerate(RELATIONS)], ids=str
)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_products(form, relation):
    check(*form, relation)


@needs_native
@pytest.mark.parametrize(
    "relation", [slow_unless(i == 0, r) for i, r in enumerate(RELATIONS)], ids=str
)
@pytest.mark.parametrize("entries", [1 << 24, 100])
def test_native_products(relation, entries, monkeypatch):
    """Compare the whole map at once with a few rows at a time."""
    monkeypatch.setattr(dynamic_cpu, "_ENTRIES", entries)
    check("grouped", cpu.native_parameters(fwd_block_size=8, gemm_block_size=8), relation)


def check(name, parameters, relation):
    spatial, shape, stride, dilation = relation
    rng = np.random.default_rng(0)
    outputs = (2, *(-(-n // s) for n, s in zip(spatial, stride, strict=True)))
    spec = sized_spec(shape, stride, dilation)
    sizes = rng.integers(-1, max(shape) + 3, outputs).astype(np.int32)
    if name == "selected":  # one scene of one size
        sizes[1] = 2
    x = rng.standard_normal((2, *spatial, 3))
    w = rng.standard_normal((*shape, 3, 4))
    dy = rng.standard_normal((*outputs, 4))
    flat = {
        "forward": (x.reshape(-1, 3), w.reshape(-1, 3, 4)),
        "dgrad": (dy.reshape(-1, 4), w.reshape(-1, 3, 4)),
        "wgrad": (x.reshape(-1, 3), dy.reshape(-1, 4)),
    }
    at_least = tuple(int((sizes >= s).sum()) for s in range(1, largest_size(shape) + 1))
    for product, operands in flat.items():
        problem = problems.make_problem(
            product, "dynamic", x[..., 0].size, sizes.size, spec.num_offsets, 3, 4, 1,
            "float64", "highest", False, "cpu", spec, grid=x.shape[:-1],
            prefix=(sizes.size, *at_least),
        )  # fmt: skip
        with jax.enable_x64(True):
            kernels = lookup(name, "dynamic")
            kernel = kernels[0 if ("body", "native") in parameters else -1]
            apply = functools.partial(kernel.apply, problem, parameters)
            got = jax.jit(apply)(*operands, {"sizes": jnp.asarray(sizes.reshape(-1))})
        t = rng.standard_normal(got.shape)
        want = oracle(*along(product, x, w, t), sizes, np.asarray(dilation), stride=stride)
        if product == "forward":
            np.testing.assert_allclose(got, want.reshape(got.shape), atol=1e-10)
        else:
            assert np.vdot(got, t) == pytest.approx(np.vdot(dy, want), abs=1e-9)
