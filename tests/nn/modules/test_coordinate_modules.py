"""Every module of the coordinate algebra is its function: both trace to one program."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax.nn.modules import coordinates as modules

ROWS = np.indices((2, 4, 4)).reshape(3, -1).T
A, B = (make_voxels(r, channels=4, capacity=48) for r in (ROWS[:20], ROWS[10:32]))
SCORES = np.arange(48, dtype=np.float32)

CASES = {
    "Union": (modules.Union("max", capacity=96), (A, B), vx.union, {"reduction": "max"}),
    "Intersection": (modules.Intersection("min"), (A, B), vx.intersection, {"reduction": "min"}),
    "Cat": (modules.Cat("union", capacity=96), ([A, B],), vx.cat, {"join": "union"}),
    "Inject": (modules.Inject(), (A, B), vx.inject, {}),
    "Prune": (modules.Prune(capacity=48), (A, SCORES > 5), vx.prune, {}),
    "TopK": (modules.TopK(3, capacity=16), (A, SCORES), vx.top_k, {"k": 3}),
    "Crop": (
        modules.Crop([0, 1], np.array([2, 3])), (A,), vx.crop, {"low": (0, 1), "high": (2, 3)},
    ),
    "Dilate": (
        modules.Dilate(kernel_shape=np.array([[0, 1], [1, 0]]), dilation=[1, 2]), (A,), vx.dilate,
        {"kernel_shape": ((0, 1), (1, 0)), "dilation": (1, 2)},
    ),
    "Refine": (modules.Refine([2, 1]), (A,), vx.refine, {"factor": (2, 1)}),
    "Coarsen": (
        modules.Coarsen(2, reduction="sum"), (A,), vx.coarsen, {"factor": 2, "reduction": "sum"},
    ),
    "ToBEV": (
        modules.ToBEV(0, reduction="concat", extent=[0, 4]), (A,), vx.to_bev,
        {"axis": 0, "reduction": "concat", "extent": (0, 4)},
    ),
    "Batch": (modules.Batch(capacity=96), ([A, B],), vx.batch, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_module_is_its_function(name):
    module, inputs, function, options = CASES[name]
    graph, state = nnx.split(module)
    assert not jax.tree.leaves(state)
    hash(graph)
    capacity = getattr(module, "capacity", None)
    options = options if capacity is None else {**options, "capacity": capacity}

    ours, theirs = (
        jax.make_jaxpr(call, return_shape=True)(*inputs)
        for call in (nnx.merge(graph, state), functools.partial(function, **options))
    )
    assert str(ours[0]) == str(theirs[0])
    assert jax.tree.structure(ours[1]) == jax.tree.structure(theirs[1])
