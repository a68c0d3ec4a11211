"""What benchmarks/tpu/device_suite.py runs: every kernel for TPUs, at sizes of the chip's memory.

Kernels are those of the registry, with the parameters of their own space: a new one is a new case.
Rows are as many as do not fit vector memory twice, as the window kernels store them, so that they
copy; a fourth of them does. Maps are of the recorded LiDAR scene. The host's results come from what
voxax takes on a CPU, in float32 where the chip computes in bfloat16.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.tpu.sources import digest_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import voxax as vx
from voxax.coords import tile_sort
from voxax.errors import InputError
from voxax.geometry import KernelSpec, VoxelGeometry
from voxax.geometry.host import table_views
from voxax.geometry.kernel_maps import View
from voxax.hardware import HardwareInfo, describe
from voxax.kernels import GridSizes, Kernel, Layer, Parameters, Problem, names
from voxax.kernels.implicit_gemm.items import defined
from voxax.kernels.kernel import EVERY_PRODUCT
from voxax.kernels.registry import kernels
from voxax.predict.candidates import passes_of
from voxax.products.convolution import sized_spec
from voxax.tuning.measure import objection, split_terms_of
from voxax.tuning.occupancy import DEFAULT_KIND, sample_map
from voxax.tuning.sample import sample_of
from voxax.tuning.space import Candidate, space_of, views_read

GRADIENTS = "gradients"
"""dgrad and wgrad at once."""
_DTYPES = ("bfloat16", "float32", "int8")
_WIDTHS = (64, 256)
_DYNAMIC_SIZE = 5
_SEED = 1
# Of a network's gradients, leaf by leaf: the chip adds in another order in every layer.
_NETWORK_TOLERANCE = 2e-3

Arrays = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One program, its operands, and what must come out.

    Attributes:
      name: of the case.
      code: digest of the code that it runs.
      run: the program, in traceable JAX.
      shapes: of its operands.
      make: returns the operands, in NumPy.
      expect: operands to the results on the host.
      differs: results and expected ones, both in NumPy, to the reason why they differ, or None.
      passes: operands to the passes of the loops whose length these decide, for the prediction;
        None: not known.
      parameters: of the kernel, where it is one.
      devices: that it runs on.
    """

    name: str
    code: str
    run: Callable[..., Any]
    shapes: Arrays
    make: Callable[[], Arrays]
    expect: Callable[[Arrays], Any]
    differs: Callable[[Any, Any], str | None]
    passes: Callable[[Arrays], float] | None = None
    parameters: Parameters = ()
    devices: int = 1


@dataclasses.dataclass(frozen=True)
class Scale:
    """Sizes of the cases.

    Attributes:
      hardware: facts of the TPU.
      rehearsal: small sizes, one axis, and kernels interpreted, on any machine.
      devices: those of the case that takes all.
    """

    hardware: HardwareInfo
    rehearsal: bool = False
    devices: tuple[Any, ...] = ()

    @property
    def ndim(self) -> int:
        return 1 if self.rehearsal else 3

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels: few, and many."""
        return (16, 24) if self.rehearsal else _WIDTHS

    def rows(self, channels: int) -> int:
        """Return how many rows of bfloat16 fill half of vector memory."""
        if self.rehearsal:
            return 768
        if not self.hardware.vmem_bytes:
            raise InputError(f"the vector memory of {self.hardware.device_kind} is unknown")
        return self.hardware.vmem_bytes // (4 * channels)

    def chosen(self, parameters: Parameters) -> Parameters:
        """Return a kernel's parameters, of a rehearsal those of the interpreter."""
        return tuple(sorted((*parameters, *((("interpret", 1),) if self.rehearsal else ()))))


def cases(scale: Scale) -> list[Case]:
    """Return all cases, those first that others build upon; names are unique."""
    found = [*_sorts(scale), *_products(scale), *_maps(scale), *_steps(scale)]
    assert len({case.name for case in found}) == len(found)
    return found


def program(case: str, hardware: Mapping[str, Any]) -> Arrays:
    """Return a case for ``voxax.predict``: the function, and the shapes of its operands.

    Args:
      case: its name.
      hardware: what ``HardwareInfo.to_json`` wrote.
    """
    for one in cases(Scale(HardwareInfo.from_json(hardware))):
        if one.name == case:
            return one.run, *one.shapes
    raise InputError(f"no case {case!r} among those of this hardware")


def _code(*modules: str, within: str = "voxax") -> str:
    return digest_of(*modules, within=within, files=(Path(__file__),))


# Products.


def _products(scale: Scale) -> Iterator[Case]:
    narrow, wide = scale.widths
    ours = (kernel for kernel in kernels() if kernel.platform == "tpu")
    for kernel in sorted(ours, key=lambda kernel: kernel.kind):  # dense ones first
        if kernel.kind == "dynamic":
            for product, dtype in _computed(kernel, _DTYPES[:2]):
                yield from _of(scale, kernel, _grid_problem(scale, product, dtype, narrow))
            continue
        make = functools.partial(_problem, scale, kernel)
        for product, dtype in _computed(kernel, _DTYPES):
            yield from _of(scale, kernel, make(product, dtype, narrow), product)
        for product, _ in _computed(kernel, _DTYPES[:1]):
            if kernel.kind == "dense":
                yield from _of(scale, kernel, make(product, "bfloat16", wide), product)
            yield from _of(scale, kernel, make(product, "bfloat16", narrow, stride=2), product)
        # Where all rows are in vector memory, and each other value of a parameter once; few
        # neighbors, so that what is meant for such maps is among them.
        small = make("forward", "bfloat16", narrow, share=4, density=1.0)
        for parameters in _every_value(kernel.space(small, scale.hardware)):
            yield from _of(scale, kernel, small, parameters=parameters)


def _computed(kernel: Kernel, dtypes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield products and dtypes; of integers forward alone, as in inference."""
    products = [p for p in ("forward", "dgrad", "wgrad") if p in EVERY_PRODUCT & kernel.products]
    fused = [GRADIENTS] if kernel.fused is not None else []
    for dtype in dtypes:
        for product in products[:1] if dtype == "int8" else [*products, *fused]:
            yield product, dtype


def _every_value(space: Sequence[Parameters]) -> list[Parameters]:
    """Return the first parameters of a space that have each value of each parameter."""
    known: set[tuple[str, int | str]] = set()
    found = []
    for parameters in space:
        if not known.issuperset(parameters):
            known.update(parameters)
            found.append(parameters)
    return found


def _problem(
    scale: Scale,
    kernel: Kernel,
    product: str,
    dtype: str,
    channels: int,
    stride: int = 1,
    share: int = 1,
    density: float | None = None,
) -> Problem:
    rows = scale.rows(channels) // share
    spec = KernelSpec.make(scale.ndim, 3, stride)
    symmetric = spec.keeps_coords and spec.symmetric
    layer = Layer(rows, rows, spec.num_offsets, symmetric, kernel.kind, 1, "highest", spec)
    layer = dataclasses.replace(layer, density=density)
    return _with(layer, product, dtype, channels)


def _grid_problem(scale: Scale, product: str, dtype: str, channels: int) -> Problem:
    """A fourth of the rows, as a grid of two axes whose positions have sizes of their own."""
    bits = (scale.rows(channels) // 4).bit_length() - 1
    grid = 1 << bits // 2, 1 << bits - bits // 2
    size = 2 if scale.rehearsal else _DYNAMIC_SIZE  # the interpreter's program grows with the taps
    rows, spec = math.prod(grid), sized_spec((size,) * 2, (1, 1), (1, 1))
    sides, taps = (rows, rows), spec.num_offsets
    layer = Layer(*sides, taps, False, "dynamic", 1, "highest", spec, sizes=GridSizes((1, *grid)))
    return _with(layer, product, dtype, channels)


def _with(layer: Layer, product: str, dtype: str, channels: int) -> Problem:
    """A product of a layer; both gradients are asked for as dgrad."""
    asked: Any = "dgrad" if product == GRADIENTS else product
    return Problem(asked, layer, channels, channels, dtype, "tpu")


def _of(
    scale: Scale,
    kernel: Kernel,
    problem: Problem,
    product: str = "",
    parameters: Parameters | None = None,
) -> Iterator[Case]:
    """Yield the case of a product, or nothing where the kernel refuses it or is not for both."""
    hardware, product = scale.hardware, product or problem.product
    if kernel.refusal(problem, hardware) is not None:
        return
    chosen = parameters or kernel.heuristic(problem, hardware)
    if product == GRADIENTS:
        assert kernel.fused is not None
        chosen = kernel.fused.heuristic(problem, hardware, chosen)
        if chosen is None:  # one after the other
            return
    layer = problem.layer
    where = f"{layer.out_capacity:,} x {problem.in_channels}"
    if layer.sizes.grid:
        where = f"{layer.sizes.grid[1]} x {layer.sizes.grid[2]} x {problem.in_channels}"
    elif not layer.symmetric:
        where += ", stride 2"
    name = f"{kernel.kind} {kernel.name}, {product}, {problem.dtype}, {where}"
    if parameters is not None:
        name += ", " + " ".join(f"{key}={value}" for key, value in parameters)
    candidate = Candidate(kernel, scale.chosen(chosen))
    kind = _Gradients if product == GRADIENTS else _Product
    one = kind(problem, candidate)
    yield Case(
        name,
        _code(kernel.apply.__module__, within="voxax.kernels"),
        one.run,
        one.shapes,
        one.make,
        one.expect,
        one.differs,
        one.passes,
        candidate.parameters,
    )


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product by a candidate: operands ``a, b, views``."""

    problem: Problem
    candidate: Candidate

    def run(self, a: Any, b: Any, views: dict[str, Any]) -> Any:
        apply = self.candidate.kernel.apply
        return apply(self.problem, self.candidate.parameters, a, b, views)

    @property
    def shapes(self) -> Arrays:
        a, b = (jax.ShapeDtypeStruct(s, self.problem.dtype) for s in self.problem.operand_shapes)
        return a, b, _view_shapes(self.problem, self._views)

    @property
    def _views(self) -> dict[str, View | None]:
        return self.candidate.kernel.views_of(self.problem, self.candidate.parameters)

    def make(self) -> Arrays:
        sample = sample_of(self.problem, None, self._views)
        return np.asarray(sample.a), np.asarray(sample.b), _numpy(sample.views)

    def expect(self, operands: Arrays) -> Any:
        return _on_host(self.problem, *operands[:2])

    def differs(self, result: Any, expected: Any) -> str | None:
        return _differs(self.problem, result, expected)

    def passes(self, operands: Arrays) -> float:
        return passes_of(self.problem, self.candidate, operands[-1])


class _Gradients(_Product):
    """Both gradients: operands ``dy, x, w, views``."""

    def run(self, dy: Any, x: Any, w: Any, views: dict[str, Any]) -> Any:
        fused = self.candidate.kernel.fused
        assert fused is not None
        return fused.apply(self.problem, self.candidate.parameters, dy, x, w, views)

    @property
    def shapes(self) -> Arrays:
        dy, w, views = super().shapes
        x = self.problem.layer.in_capacity, self.problem.in_channels
        return dy, jax.ShapeDtypeStruct(x, self.problem.dtype), w, views

    def make(self) -> Arrays:
        dy, w, views = super().make()
        x = np.random.default_rng(_SEED).standard_normal(self.shapes[1].shape, np.float32)
        return dy, x.astype(dy.dtype), w, views

    def expect(self, operands: Arrays) -> Any:
        dy, x, w, _ = operands
        return _on_host(self.problem, dy, w), _on_host(self._of_weights, x, dy)

    @property
    def _of_weights(self) -> Problem:
        return dataclasses.replace(self.problem, product="wgrad")

    def differs(self, result: Any, expected: Any) -> str | None:
        for problem, got, want in zip(
            (self.problem, self._of_weights), result, expected, strict=True
        ):
            if (reason := _differs(problem, got, want)) is not None:
                return f"{problem.product}: {reason}"
        return None


def _view_shapes(problem: Problem, views: Mapping[str, View | None]) -> dict[str, Any]:
    """Shapes of the map's arrays by name."""
    layer = problem.layer
    rows = {"neighbors": layer.out_capacity, "transposed_neighbors": layer.in_capacity}
    found = {}
    for name, view in views.items():
        if name == "sizes":
            found[name] = jax.ShapeDtypeStruct((layer.out_capacity,), "int32")
            continue
        of = rows[view.table if view is not None else name]
        table = jax.ShapeDtypeStruct((of, layer.num_offsets), "int32")
        found[name] = table if view is None else _built(view, table, layer.spec)
    return found


@functools.cache
def _built(view: View, table: Any, spec: KernelSpec) -> Any:
    return jax.eval_shape(lambda table: view.build(table, spec), table)


def _numpy(views: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(view) for name, view in views.items()}


def _on_host(problem: Problem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product as a CPU computes it, in float32 but for integers."""
    exact = problem.dtype == "int8"
    problem = dataclasses.replace(
        problem, platform="cpu", dtype=problem.dtype if exact else "float32"
    )
    host = describe(jax.devices("cpu")[0])
    taken = space_of(problem, names(problem.layer.kind), host).heuristics[0]
    needed = views_read(problem, [taken])
    views = _numpy(sample_of(problem, None, needed).views)
    run = jax.jit(functools.partial(taken.kernel.apply, problem, taken.parameters))
    return np.asarray(run(a.astype(problem.dtype), b.astype(problem.dtype), views))


def _differs(problem: Problem, result: np.ndarray, expected: np.ndarray) -> str | None:
    """The reason that the tuner would give for refusing such a result, or None."""
    expected = expected.astype(result.dtype)
    asked = problem.dtype, problem.layer.precision
    return objection(result, expected, *asked, "the CPU", split_terms_of(problem))


# Sorting and kernel maps.


def _recorded(scale: Scale, rows: int, stride: int = 1) -> Any:
    """The recorded scene in so many rows, and its map."""
    spec = KernelSpec.make(scale.ndim, 3, stride)
    return spec, sample_map(DEFAULT_KIND, spec, (), rows, rows)


def _padded(found: np.ndarray, rows: int) -> np.ndarray:
    padded = np.full((rows, found.shape[1]), vx.PAD, np.int32)
    padded[: len(found)] = found
    return padded


def _sorts(scale: Scale) -> Iterator[Case]:
    """Yield the sort of shuffled rows, of several blocks."""
    rows, width = scale.rows(scale.widths[0]), scale.ndim + 1

    def run(coords: jax.Array) -> Any:
        columns = [coords[:, axis] for axis in range(width)]
        columns.append(jnp.arange(rows, dtype=jnp.int32))
        return jnp.stack(tile_sort.sort_columns(columns, width + 1, scale.rehearsal), axis=1)

    def make() -> Arrays:
        coords = _padded(_recorded(scale, rows)[1].in_rows, rows)
        return (np.random.default_rng(_SEED).permutation(coords),)

    def expect(operands: Arrays) -> Any:
        order = np.lexsort(operands[0].T[::-1])
        return np.column_stack([operands[0][order], order.astype(np.int32)])

    name, shape = f"sort, {rows:,} rows", jax.ShapeDtypeStruct((rows, width), "int32")
    yield Case(name, _code(tile_sort.__name__), run, (shape,), make, expect, _unequal)


def _maps(scale: Scale) -> Iterator[Case]:
    """Yield kernel maps with all views that kernels for TPUs read: search, and sort of voxels."""
    rows = scale.rows(scale.widths[-1])
    views = {name: v for k in kernels() if k.platform == "tpu" for name, v in k.views.items()}
    read = ("neighbors", "transposed_neighbors", *views)
    modules = ("voxax.geometry.build", *(k.apply.__module__ for k in kernels()))
    shape = jax.ShapeDtypeStruct((rows, scale.ndim + 1), "int32")
    for stride in (1, 2):

        def run(coords: jax.Array, stride: int = stride) -> Any:
            kmap = vx.kernel_map(_voxels(coords), 3, stride)
            return [kmap.view(name, views.get(name)) for name in read]

        def make(stride: int = stride) -> Arrays:
            return (_padded(_recorded(scale, rows, stride)[1].in_rows, rows),)

        def differs(result: Any, expected: Any, taps: int = 3**scale.ndim) -> str | None:
            def compared(arrays: Any) -> list[np.ndarray]:
                named = zip(read, arrays, strict=True)
                return [defined(a, rows, taps) if n.endswith("items") else a for n, a in named]

            return _unequal(compared(result), compared(expected))

        def expect(_: Arrays, stride: int = stride) -> Any:
            spec, found = _recorded(scale, rows, stride)
            symmetric = spec.keeps_coords and spec.symmetric
            given = found.neighbors, spec, read, rows, list(views.values())
            return list(table_views(*given, symmetric=symmetric))

        name = f"kernel map, {rows:,} rows, stride {stride}"
        yield Case(name, _code(*modules), run, (shape,), make, expect, differs)


def _voxels(coords: jax.Array) -> vx.Voxels:
    """Rows that are in canonical order already, as those inside of a network are."""
    count = jnp.sum(coords[:, 0] != vx.PAD, dtype=jnp.int32)
    ndim = coords.shape[1] - 1
    stride = (1,) * ndim
    lost = {stride: jnp.zeros((), jnp.int32)}
    geometry = VoxelGeometry(coords, count, lost, None, stride, 1, -1, ())
    return vx.Voxels(geometry, jnp.zeros((len(coords), 1)))


def _unequal(result: Any, expected: Any) -> str | None:
    for place, (got, want) in enumerate(
        zip(*map(jax.tree.leaves, (result, expected)), strict=True)
    ):
        if got.shape != want.shape:
            return f"array {place} has shape {got.shape}, expected {want.shape}"
        if wrong := int((got != want).sum()):
            return f"{wrong} of {want.size} integers of array {place} differ"
    return None


# Training.


def _steps(scale: Scale) -> Iterator[Case]:
    """Yield loss and gradients of a small MinkUNet: on one device, and a scene on each of all."""
    rows = scale.rows(scale.widths[0]) // (1 if scale.rehearsal else 16)
    network = _Network(scale, rows)
    modules = ("voxax.models.minkunet", "voxax.models.training", "voxax.geometry.build")
    code = _code(*modules, *(k.apply.__module__ for k in kernels()))
    name = f"training step of a MinkUNet, {rows:,} rows"
    run, shapes, make = network.gradients, network.shapes, network.make
    yield Case(name, code, run, shapes, make, network.expect, _far_apart)
    if not scale.devices:
        return
    number, mesh = len(scale.devices), Mesh(np.asarray(scale.devices), ("scenes",))
    specs = PartitionSpec(), PartitionSpec(), PartitionSpec("scenes")

    def own(params: Any, rest: Any, scenes: Any) -> Any:
        found = network.gradients(params, rest, jax.tree.map(lambda x: x[0], scenes))
        return jax.lax.pmean(found, "scenes")

    def on_all(*operands: Any) -> Any:
        return jax.shard_map(
            own, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False
        )(*operands)

    def placed(tree: Any, spec: PartitionSpec, *more: int) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*more, *x.shape), x.dtype, sharding=sharding), tree
        )

    params, rest, scene = shapes
    shapes = placed(params, specs[0]), placed(rest, specs[1]), placed(scene, specs[2], number)
    make = functools.partial(network.make, number)
    name = f"{name} on each of {number} devices"
    expect = network.expect_mean
    yield Case(name, code, on_all, shapes, make, expect, _far_apart, devices=number)


@dataclasses.dataclass(frozen=True)
class _Network:
    """A MinkUNet of one block a stage in float32, and its loss on the recorded scene.

    Operands: parameters, the rest of the module, and of a scene coordinates, features and labels.
    """

    scale: Scale
    rows: int

    CHANNELS = 4
    CLASSES = 8

    def _model(self) -> Any:
        from flax import nnx

        from voxax.models import MinkUNet

        width, rngs = 0.25 if self.scale.rehearsal else 0.5, nnx.Rngs(0)
        given = {"blocks": (1,) * 8, "width": width, "ndim": self.scale.ndim, "rngs": rngs}
        return MinkUNet(self.CHANNELS, self.CLASSES, **given)

    def gradients(self, params: Any, rest: Any, scene: Any) -> Any:
        """Return the loss and its gradients."""
        from flax import nnx

        from voxax.models.training import masked_cross_entropy

        coords, features, labels = scene
        graph = nnx.split(nnx.eval_shape(self._model))[0]

        def loss_of(params: Any) -> jax.Array:
            voxels = dataclasses.replace(_voxels(coords), features=features)
            with vx.algorithms(forward="implicit_gemm", backward="implicit_gemm"):
                out = nnx.merge(graph, params, rest, copy=True)(voxels)
            return masked_cross_entropy(out.features, labels)

        return jax.value_and_grad(loss_of)(params)

    @property
    def shapes(self) -> Arrays:
        from flax import nnx

        _, params, rest = nnx.split(nnx.eval_shape(self._model), nnx.Param, ...)
        given = ((self.scale.ndim + 1,), "int32"), ((self.CHANNELS,), "float32"), ((), "int32")
        scene = tuple(jax.ShapeDtypeStruct((self.rows, *more), dtype) for more, dtype in given)
        return params, rest, scene

    def make(self, scenes: int = 0) -> Arrays:
        """Return the operands; of several scenes with a leading axis."""
        from flax import nnx

        _, params, rest = nnx.split(self._model(), nnx.Param, ...)
        made = [self._scene(number) for number in range(scenes or 1)]
        scene = tuple(map(np.stack, zip(*made, strict=True))) if scenes else made[0]
        return (*jax.tree.map(np.asarray, (params, rest)), scene)

    def _scene(self, number: int) -> Arrays:
        """The recorded scene with random features and labels, different ones for each number."""
        coords = _padded(_recorded(self.scale, self.rows)[1].in_rows, self.rows)
        rng = np.random.default_rng(number)
        features = rng.standard_normal((self.rows, self.CHANNELS), np.float32)
        labels = rng.integers(0, self.CLASSES, self.rows).astype(np.int32)
        return coords, features, np.where(coords[:, 0] == vx.PAD, -1, labels).astype(np.int32)

    def expect(self, operands: Arrays) -> Any:
        return jax.tree.map(np.asarray, jax.jit(self.gradients)(*operands))

    def expect_mean(self, operands: Arrays) -> Any:
        """Return the mean over scenes, one after the other."""
        params, rest, scenes = operands
        run = jax.jit(self.gradients)
        each = [
            jax.tree.map(np.asarray, run(params, rest, tuple(x[n] for x in scenes)))
            for n in range(len(scenes[0]))
        ]
        return jax.tree.map(lambda *parts: np.mean(parts, axis=0), *each)


def _far_apart(result: Any, expected: Any) -> str | None:
    """Compare leaf by leaf, relative to the largest gradient's root mean square or the leaf's."""
    got, want = map(jax.tree.leaves, (result, expected))
    scale = max(float(np.sqrt(np.mean(np.square(leaf)))) for leaf in want[1:])
    for place, (a, b) in enumerate(zip(got, want, strict=True)):
        if not np.isfinite(a).all():
            return f"array {place} of loss and gradients has values that are not finite"
        own = max(float(np.sqrt(np.mean(np.square(b)))), 1e-3 * scale)
        error = float(np.sqrt(np.mean(np.square(a - b)))) / own
        if error > _NETWORK_TOLERANCE:
            return (
                f"array {place} of loss and gradients, shape {a.shape}, differs from the CPU by "
                f"{error:.1e} of its root mean square, admitted are {_NETWORK_TOLERANCE:.0e}"
            )
    return None
