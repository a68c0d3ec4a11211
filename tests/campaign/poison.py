"""NaN and infinities in padding rows and in single rows, through every module and network.

What stands in the padding changes no bit of outputs and gradients. What stands in a row of scene 0
changes no bit of scene 1. A trial is one module in one dtype; modules are in evaluation mode, as
statistics of a batch mix its scenes.
"""

import contextlib
import functools
import sys
from pathlib import Path

import numpy as np

from campaign.trials import TrialError, generator, require

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "nn" / "modules"))
from test_static_attributes import MADE

from voxax import models
from voxax.nn import modules

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Those whose arguments there fit no input here.
OTHERS = {
    "PTv3Stage": lambda s, n: models.PTv3Stage(
        None, [models.PTv3Block(4, 2, 16)], modules.SerialOrders(shuffle=False)
    ),
    "Cat": lambda s, n: modules.Cat("union"),
    "ToBEV": lambda s, n: modules.ToBEV(extent=(0, 6)),
}
NEITHER = {"RelativeTable": "has no input", "SerialOrders": "reads coordinates alone"}
CASES = [(name, dtype) for name in MADE if name not in NEITHER for dtype in DTYPES]
WHOLE = len(CASES)
SECONDS = 600
ROWS, CAPACITY = 40, 64
VALUES = {"NaN": np.nan, "infinity": np.inf, "minus infinity": -np.inf}
PLANNED = ("CenterPoint", "MultiHeadSECOND", "SECOND", "SmallCenterPoint", "VoxelBackBone8x")
PLANNED += ("VoxelNeXt", "VoxelNeXtBackbone")
GRIDS = ("AnchorHead", "BEVBackbone", "CenterHead", "DeformConv", "DynamicConv")
POINTS = (
    *("Voxelize", "VoxelFeatureEncoder", "PillarEncoder"),
    *("ContinuousConv", "KernelPointConv", "Splat"),
)


def draw(seed, number):
    """Each seed has an order of its own, so that a few trials a seed come to all."""
    order = generator("poison", seed, 0).permutation(WHOLE)
    name, dtype = CASES[order[number % WHOLE]]
    return {"module": name, "dtype": dtype}


def start(folder):
    """Programs are compiled without optimizations."""
    import jax

    del folder
    jax.config.update("jax_disable_most_optimizations", True)
    return attempt


def attempt(trial):
    """Run it clean and with each value in each place, in one program."""
    import jax

    with jax.enable_x64(trial["dtype"] == "float64"):
        return Poisoned(trial["module"], trial["dtype"]).run()


def rows_of(ndim, seed=0, low=0):
    """Distinct rows of two scenes in a box, the same number in each."""
    rng = np.random.default_rng(seed)
    edge = {1: 40, 2: 8, 3: 6, 4: 4}[ndim]
    axes = np.indices((edge,) * ndim).reshape(ndim, -1).T + low
    chosen = [axes[rng.permutation(len(axes))[: ROWS // 2]] for _ in range(2)]
    return np.concatenate([np.insert(c, 0, i, axis=1) for i, c in enumerate(chosen)])


class Poisoned:
    def __init__(self, name, dtype):
        import jax
        import jax.numpy as jnp
        from flax import nnx

        self.name, self.dtype = name, jnp.dtype(dtype)
        module = OTHERS.get(name, MADE[name])(tuple, int)
        module.eval()
        graph, state = nnx.split(module)
        self.graph = graph
        self.state = jax.tree.map(self._cast, state)
        self.channels = 4
        self.given = self._inputs(module)

    def _cast(self, leaf):
        import jax.numpy as jnp

        return leaf.astype(self.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def _inputs(self, module):
        """``(features, scene of each row or -1, what makes the module's arguments of them)``."""
        import jax.numpy as jnp

        import voxax as vx

        rng = np.random.default_rng(1)
        if self.name in GRIDS:
            x = rng.normal(size=(2, 8, 8, self.channels))
            scene = np.arange(2)
            return jnp.asarray(x, self.dtype), scene, lambda x: self._grid_arguments(module, x)
        if self.name in POINTS:
            return self._points(rng)
        ndim = getattr(module, "NDIM", None) or getattr(type(module), "NDIM", None) or 3
        stride = _stride(self.name, module, ndim)
        features = np.zeros((CAPACITY, self.channels))
        features[:ROWS] = rng.normal(size=(ROWS, self.channels))
        voxels = vx.Voxels.from_coords(
            rows_of(ndim).astype(np.int32), features[:ROWS].astype("f4"), 2,
            capacity=CAPACITY, stride=stride,
        )  # fmt: skip
        fine = vx.Voxels.from_coords(
            rows_of(ndim, 1).astype(np.int32), features[:ROWS].astype("f4"), 2, capacity=CAPACITY
        )
        if self.name in PLANNED:
            voxels = vx.plan(module, voxels)
        scene = np.where(np.arange(CAPACITY) < ROWS, np.asarray(voxels.coords)[:, 0], -1)
        arguments = functools.partial(self._arguments, module, voxels.geometry, fine)
        return jnp.asarray(features, self.dtype), scene, arguments

    def _points(self, rng):
        import jax.numpy as jnp

        import voxax as vx

        positions = np.full((CAPACITY, 3), 0.0, np.float32)
        positions[:ROWS] = rng.uniform(0.05, 2.95, (ROWS, 3))
        scene = np.where(np.arange(CAPACITY) < ROWS, np.arange(CAPACITY) % 2, -1)
        features = np.zeros((CAPACITY, self.channels))
        features[:ROWS] = rng.normal(size=(ROWS, self.channels))
        index = jnp.asarray(np.maximum(scene, 0), jnp.int32)
        count = jnp.asarray(ROWS, jnp.int32)
        fine = vx.Voxels.from_coords(
            rows_of(3, 1).astype(np.int32), np.ones((ROWS, 1), "f4"), 2, capacity=CAPACITY,
            voxel_size=0.5,
        )  # fmt: skip

        def arguments(x):
            points = vx.Points(jnp.asarray(positions), index, x, count, 2)
            if self.name == "Splat":
                return points, None, fine
            if "PointConv" in self.name or self.name == "ContinuousConv":
                return points, vx.radius_search(points, radius=1.0, capacity=16)
            return (points,)

        return jnp.asarray(features, self.dtype), scene, arguments

    def _grid_arguments(self, module, x):
        import jax.numpy as jnp

        del module
        if self.name == "DynamicConv":
            return x, {"size": jnp.full((2, 8, 4), 2, jnp.int32)}
        return (x,)

    def _arguments(self, module, geometry, fine, x):
        import jax.numpy as jnp

        import voxax as vx

        voxels, name = vx.Voxels(geometry, x), self.name
        other = vx.Voxels(fine.geometry, jnp.ones(fine.features.shape, x.dtype))
        if name in ("Union", "Intersection", "Inject", "CrossAttention"):
            return voxels, other
        if name in ("Cat",):
            return ([voxels, voxels.map(lambda f: 2 * f)],)
        if name == "Batch":
            return ([voxels, other],)
        if name in ("Prune", "TopK"):
            score = jnp.arange(CAPACITY)
            return voxels, score % 3 > 0 if name == "Prune" else score.astype(jnp.float32)
        if name == "Devoxelize":
            rng = np.random.default_rng(2)
            at = jnp.asarray(rng.uniform(0, 5, (30, 3)), jnp.float32)
            return voxels, at, jnp.asarray(np.arange(30) % 2, jnp.int32)
        if name in ("GridUnpool", "Unpool") or "Transpose" in name:
            return voxels, other
        if name == "PTv3Block":
            return voxels, "z"
        return (voxels,)

    def run(self):
        import jax
        import jax.numpy as jnp
        from flax import nnx

        x, scene, arguments = self.given

        def outputs(state, x):
            given = arguments(x)
            options = given[-1] if isinstance(given[-1], dict) else {}
            positional = given[: len(given) - bool(options)]
            out = nnx.merge(self.graph, state, copy=True)(*positional, **options)
            return list(_by_scene(out))

        @jax.jit
        def both(state, x):
            floats = [leaf for leaf in jax.tree.leaves(state) if _is_float(leaf)]

            def of(floats, x):
                left = iter(floats)
                leaves, tree = jax.tree.flatten(state)
                filled = [next(left) if _is_float(leaf) else leaf for leaf in leaves]
                return outputs(jax.tree.unflatten(tree, filled), x)

            found = of(floats, x)
            back = jax.vjp(lambda f, x: [v for v, _ in of(f, x) if _is_float(v)], floats, x)[1]
            slopes = back([_cotangent(v, s) for v, s in found if _is_float(v)])
            return found, slopes

        clean = jax.device_get(both(self.state, x))
        count = {"programs": 1, f"in {self.dtype}": 1, "checks": 0}
        padding = jnp.asarray(scene < 0)
        shape = (len(scene),) + (1,) * (x.ndim - 1)
        valid = [v[s >= 0].astype(np.float64) for v, s in clean[0] if _is_float(v)]
        require(all(np.isfinite(v).all() for v in valid), "not finite without poison")
        for name, value in VALUES.items():
            poison = jnp.asarray(value, x.dtype)
            if padding.any():
                dirty = both(self.state, jnp.where(padding.reshape(shape), poison, x))
                _check_equal(jax.device_get(dirty), clean, f"{name} in the padding")
                count["checks"] += 1
            row = int(np.flatnonzero(scene == 0)[3 % (scene == 0).sum()])
            dirty = x.at[(row, *[2] * (x.ndim - 2))].set(poison)
            found = jax.device_get(both(self.state, dirty)[0])
            what = f"{name} in a row of scene 0, read in scene 1"
            for (a, now), (b, before) in zip(found, clean[0], strict=True):
                _same(a[now == 1], b[before == 1], what)
            count["checks"] += 1
        return count


def _stride(name, module, ndim):
    if "Transpose" in name or name == "Unpool":
        stride = module.stride if name == "Unpool" else module.relation["stride"]
        return stride if isinstance(stride, tuple) else (stride,) * ndim
    if name == "GridUnpool":
        return module.stride
    if name == "ChannelToSpace":
        return module.factor
    return 1


def _is_float(leaf):
    import jax.numpy as jnp

    return jnp.issubdtype(leaf.dtype, jnp.inexact)


def _by_scene(out):
    """``(array, scene of each of its first axis or -1)`` of everything that came out."""
    import dataclasses

    import jax.numpy as jnp

    import voxax as vx

    if isinstance(out, vx.Voxels):
        scenes = jnp.where(out.valid, out.coords[:, 0], -1)
        yield out.features, scenes
        yield out.coords, scenes
    elif isinstance(out, vx.Points):
        valid = jnp.arange(out.features.shape[0]) < out.count
        yield out.features, jnp.where(valid, out.batch_index, -1)
    elif type(out).__name__ == "VoxelNeXtOutput":
        yield from _by_scene(out.voxels)
        scenes = jnp.where(out.voxels.valid, out.voxels.coords[:, 0], -1)
        for group in out.groups:
            for value in group.values():
                yield value, scenes
    elif isinstance(out, dict):
        for value in out.values():
            yield from _by_scene(value)
    elif isinstance(out, list | tuple):
        for value in out:
            yield from _by_scene(value)
    elif dataclasses.is_dataclass(out):
        for field in dataclasses.fields(out):
            yield from _by_scene(getattr(out, field.name))
    elif hasattr(out, "shape") and out.ndim:
        # The scenes themselves, or the 30 positions that Devoxelize was asked for.
        yield out, jnp.arange(out.shape[0]) % 2


def _cotangent(value, scenes):
    """Numbers that differ in valid rows; padding rows of a gradient hold garbage too."""
    import jax.numpy as jnp

    numbers = jnp.cos(jnp.arange(value.size, dtype=jnp.float32)).reshape(value.shape)
    valid = (scenes >= 0).reshape(-1, *[1] * (value.ndim - 1))
    return jnp.where(valid, numbers, jnp.nan).astype(value.dtype)


def _check_equal(dirty, clean, what):
    import jax

    for (a, _), (b, _) in zip(dirty[0], clean[0], strict=True):
        _same(a, b, f"{what}: outputs")
    for a, b in zip(jax.tree.leaves(dirty[1]), jax.tree.leaves(clean[1]), strict=True):
        _same(a, b, f"{what}: gradients")


def _same(a, b, what):
    with contextlib.suppress(AttributeError):
        a, b = (v.astype(np.float64) if v.dtype.kind == "V" else v for v in (a, b))
    if not np.array_equal(a, b):
        error = np.abs(a.astype(np.float64) - b).max() if a.shape == b.shape else "shapes"
        raise TrialError(f"{what} differ by {error}: {a.shape} of {a.dtype}")
