"""The faults: each replaces one function of the library by a slightly wrong one."""

import contextlib
import dataclasses
import importlib
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_EXPLICIT = "voxax.kernels.explicit_gemm.xla"
_IMPLICIT = "voxax.kernels.implicit_gemm.xla"

FAULTS = {}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
      targets: ``module:attribute``, each replaced by ``make(original)``.
      make: from what is there to something slightly wrong.
      tests: what to run, below ``tests/``.
      near: part of the names of the cases that run first, as they are likely to notice it; all
        others follow.
    """

    targets: tuple[str, ...]
    make: Callable[[Any], Any]
    tests: tuple[str, ...]
    near: str

    def plant(self):
        for target in self.targets:
            path, _, attribute = target.partition(":")
            # Not import_module alone: a package may hold a function of its module's name.
            importlib.import_module(path)
            *owners, last = attribute.split(".")
            owner = sys.modules[path]
            for step in owners:
                owner = getattr(owner, step)
            # Through the class's dictionary, so that properties stay properties.
            original = vars(owner).get(last, getattr(owner, last))
            setattr(owner, last, self.make(original))


def fault(name, *targets, tests=("conformance",), near=""):
    """Registers the decorated ``make`` under ``name``; see :class:`Fault`."""

    def register(make):
        FAULTS[name] = Fault(targets, make, tests, near)
        return make

    return register


def _each_table_form(attribute):
    """The attribute in every module that reads neighbor tables."""
    return tuple(f"{module}:{attribute}" for module in (_EXPLICIT, _IMPLICIT))


@fault("taps in reverse order", "voxax.geometry.kernel_spec:box_offsets")
def _(original):
    return lambda size, stride: original(size, stride)[::-1]


@fault("first axis fastest", "voxax.geometry.kernel_spec:box_offsets")
def _(original):
    return lambda size, stride: tuple(sorted(original(size, stride), key=lambda o: o[::-1]))


@fault("even kernels lean to the other side", "voxax.coords.lattice:axis_range", near="conv_even")
def _(original):
    def wrong(size, stride):
        return original(size, stride) if stride == size else range(-(size // 2), size - size // 2)

    return wrong


@fault(
    "no partition where stride equals size", "voxax.coords.lattice:axis_range", near="conv_stride_3"
)
def _(original):
    return lambda size, stride: original(size, 0)


@fault("stride rounds towards zero", "voxax.coords.cells:coarsen", near="conv_strided")
def _(original):
    def wrong(coords, stride):
        divisor = jnp.asarray([1, *stride], jnp.int32)[None, :]
        rounded = jax.lax.div(coords, jnp.broadcast_to(divisor, coords.shape))
        return jnp.where(coords[:, :1] == 2**31 - 1, coords, rounded)

    return wrong


@fault("the map forgets the stride", "voxax.geometry.build:_scaled", near="conv_strided")
def _(original):
    return lambda coarse, spec: (coarse, original(coarse, spec)[1])


@fault(
    "dilation ignored", "voxax.geometry.kernel_spec:KernelSpec.dilated_offsets", near="conv_dilated"
)
def _(original):
    del original
    return property(lambda self: np.asarray(self.offsets))


@fault("cross kernels are boxes", "voxax.geometry.kernel_spec:cross_offsets", near="conv_cross")
def _(original):
    del original
    from voxax.coords import box_offsets

    def wrong(size, stride):
        """Return as many taps as a cross, but the first ones of the box."""
        return box_offsets(size, stride)[: sum(size) - len(size) + 1]

    return wrong


@fault("batch index dropped by strides", "voxax.coords.cells:coarsen", near="conv_strided")
def _(original):
    def wrong(coords, stride):
        coarse = original(coords, stride)
        return coarse.at[:, 0].set(jnp.where(coarse[:, 0] == 2**31 - 1, coarse[:, 0], 0))

    return wrong


@fault("transposed maps keep the direction", "voxax.geometry.build:invert_neighbors",
       "voxax.geometry.kernel_maps:invert_neighbors", near="conv_transposed")  # fmt: skip
def _(original):
    return lambda neighbors, capacity: original(neighbors, capacity)[:, ::-1]


@fault("clipping forgotten", "voxax.geometry.kernel_spec:KernelSpec.output_shape", near="clipped")
def _(original):
    del original
    return property(lambda self: None)


@fault("the last voxel lost silently", "voxax.coords.unique:sort_rows")
def _(original):
    def wrong(coords):
        rows, order = original(coords)
        last = jnp.sum(rows[:, 0] != 2**31 - 1) - 1
        index = jnp.arange(rows.shape[0])
        return jnp.where((index == last)[:, None], 2**31 - 1, rows), order

    return wrong


@fault("duplicates added instead of averaged", "voxax.geometry.voxels:reduce_rows",
       "voxax.geometry.voxels:reduce_on_host", near="duplicates")  # fmt: skip
def _(original):
    def wrong(features, inverse, capacity, reduction):
        kind = "sum" if reduction == "mean" else reduction
        return original(features, inverse, capacity, kind)

    return wrong


@fault("missing neighbors read row 0", *_each_table_form("clear_missing"), near="tiles_4")
def _(original):
    del original
    return lambda neighbors, x: jnp.maximum(neighbors, 0)


@fault("groups interleaved", _EXPLICIT + ":_multiply",
       _EXPLICIT + ":times", _IMPLICIT + ":times", near="conv_grouped")  # fmt: skip
def _(original):
    def wrong(problem, gathered, w):
        if problem.layer.kind == "grouped":
            parts = gathered.reshape(*gathered.shape[:-1], -1, w.shape[-3])
            gathered = jnp.swapaxes(parts, -1, -2).reshape(gathered.shape)
        return original(problem, gathered, w)

    return wrong


@fault("dgrad forgets to mirror the taps", *_each_table_form("oriented"), near="tiles_4")
def _(original):
    def wrong(problem, b, views):
        w, table = original(problem, b, views)
        return w[::-1] if problem.product == "dgrad" and problem.layer.symmetric else w, table

    return wrong


@fault("wgrad sums over padding", *_each_table_form("clear_unreached"), near="tiles_4")
def _(original):
    del original
    return lambda dy, neighbors: dy


@fault("the last tap left out", _EXPLICIT + ":oriented", near="output_stationary")
def _(original):
    def wrong(problem, b, views):
        w, table = original(problem, b, views)
        return w[:-1], table[:, :-1]

    return wrong


@fault("lists of pairs begin one late", "voxax.geometry.kernel_maps:list_pairs")
def _(original):
    def wrong(neighbors):
        pairs, starts = original(neighbors)
        return pairs, jnp.minimum(starts.at[:-1].add(1), starts[-1])

    return wrong


@fault("the last block runs into the next tap", _EXPLICIT + ":_walk")
def _(original):
    del original

    def wrong(step, total, pairs, starts, block):
        blocks = -(-jnp.diff(starts) // block)
        ends = jnp.cumsum(blocks, dtype=jnp.int32)

        def body(index, total):
            tap = jnp.sum(ends <= index, dtype=jnp.int32)
            begin = starts[tap] + (index - (ends[tap] - blocks[tap])) * block
            i, o = jax.lax.dynamic_slice(pairs, (jnp.int32(0), begin), (2, block))
            return step(total, tap, i, o)

        return jax.lax.fori_loop(jnp.int32(0), ends[-1], body, total)

    return wrong


@fault("dgrad by pairs keeps the sides", _EXPLICIT + ":pair_lists", near="pair_lists")
def _(original):
    def wrong(problem, block, a, b, views):
        if problem.product == "dgrad":
            views = {**views, "pairs": views["pairs"][::-1]}
        return original(problem, block, a, b, views)

    return wrong


@fault("transposed maps keep their lists of pairs",
       "voxax.geometry.kernel_maps:KernelMap.transpose",
       tests=("geometry/test_views.py",))  # fmt: skip
def _(original):
    def wrong(self):
        back = original(self)
        back.views.update({k: v for k, v in self.views.items() if k.startswith("pair")})
        return back

    return wrong


@fault("a tile skips a tap that it has", _IMPLICIT + ":_present", near="tiles_4")
def _(original):
    def wrong(found):
        taps, count = original(found)
        return taps, jnp.maximum(count - 1, 0)

    return wrong


@fault("only the first stripe of wgrad counts", _IMPLICIT + ":_wgrad", near="tiles_256")
def _(original):
    def wrong(problem, size, splits, x, dy, neighbors):
        first = (jnp.arange(len(dy)) // size) % splits == 0
        dy = jnp.where(first[:, None], dy, jnp.zeros((), dy.dtype))
        return original(problem, size, splits, x, dy, neighbors)

    return wrong


@fault("problems of any density share a choice", "voxax.tuning.entry:key_of",
       tests=("tuning/test_key.py",))  # fmt: skip
def _(original):
    return lambda problem: original(problem.with_layer(density=None))


@fault("the guard looks at the mean only", "voxax.tuning.measure:_TOLERANCE",
       tests=("tuning/test_guard.py",))  # fmt: skip
def _(original):
    return {dtype: (mean, float("inf")) for dtype, (mean, _) in original.items()}


@fault("padding features kept", "voxax.geometry.voxels:Voxels.replace_features", near="norm")
def _(original):
    del original
    return lambda self, features: dataclasses.replace(self, features=features)


@fault("bias on the wrong channels", "voxax.nn.arguments:add_bias", near="conv_bias")
def _(original):
    return lambda y, bias: original(y, None if bias is None else bias[::-1])


@fault("maximum over missing voxels too", "voxax.nn.functional.pooling:take_rows", near="max_pool")
def _(original):
    return lambda features, indices: jnp.maximum(original(features, indices), 0)


@fault(
    "mean divides by the kernel's size", "voxax.nn.functional.pooling:window_mean", near="mean_pool"
)
def _(original):
    def wrong(voxels, kmap):
        number = jnp.maximum(jnp.sum(kmap.neighbors >= 0, axis=1, dtype=jnp.int32), 1)
        ratio = number.astype(jnp.float32) / kmap.num_offsets
        features = original(voxels, kmap)
        return features * ratio.astype(features.dtype)[:, None]

    return wrong


@fault(
    "blocks unfolded in another order",
    "voxax.nn.functional.channel_blocks:per_axis",
    near="space_to_channel",
)
def _(original):
    calls = itertools.count()

    def wrong(value, ndim, name):
        blocks = original(value, ndim, name)
        return blocks if next(calls) % 2 else blocks[::-1]

    return wrong


@fault("crop keeps its upper corner", "voxax.geometry.select:_inside", near="crop")
def _(original):
    return lambda coords, low, high: original(coords, low, high + 1)


@fault("union forgets its second operand", "voxax.geometry.sets:_reduce", near="union")
def _(original):
    def wrong(features, rows, reduction):
        nothing = jnp.full_like(rows[1], -1)
        return original(features, (rows[0], nothing, *rows[2:]), reduction)

    return wrong


@fault("rows moved into the next scene", "voxax.geometry.voxels:_stacked", near="batch_of")
def _(original):
    return lambda coords, sizes, capacity: original(coords[::-1], sizes[::-1], capacity)


@fault("Hilbert's curve without turns", "voxax.coords.curves:hilbert_keys", near="hilbert")
def _(original):
    del original
    from voxax.coords.curves import morton_keys

    return morton_keys


@fault("interpolation weights mirrored", "voxax.geometry.interpolate:_weight", near="trilinear")
def _(original):
    return lambda fraction, tap: original(fraction, tuple(1 - upper for upper in tap))


@fault("statistics over padding", "voxax.nn.functional:masked_moments", near="norm")
def _(original):
    return lambda features, valid, *axis: original(features, jnp.ones_like(valid), *axis)


# What the campaign notices: promises about files and processes.
_NAMED = "campaign/test_campaign.py::test_a_named_trial"


@fault("a rename is lost", "voxax._atomic_file:replacing", "voxax.export.program:replacing",
       tests=(f"{_NAMED}[an export is killed]",))  # fmt: skip
def _(original):
    @contextlib.contextmanager
    def wrong(path, **options):
        """The temporary file never takes its name."""
        with original(Path(path).with_name("lost"), **options) as file:
            yield file

    return wrong


@fault("the description is written first", "voxax.cli.learning:save_checkpoint",
       tests=(f"{_NAMED}[the first save is killed]",))  # fmt: skip
def _(original):
    def wrong(folder, tree, description, step):
        """The step has its name and its description before it has arrays."""
        place, aside = Path(folder) / str(step), Path(folder).with_name("aside")
        (place / "description").mkdir(parents=True)
        (place / "description" / "metadata").write_text(json.dumps(description))
        time.sleep(1.0)  # on a machine with other work the kill comes late
        original(aside, tree, description, step)
        (aside / str(step) / "default").rename(place / "default")
        return folder

    return wrong


@fault("a header's claim is not checked", "voxax.io.mesh:check_count",
       tests=(f"{_NAMED}[a file claims too much]",))  # fmt: skip
def _(original):
    del original
    return lambda *claim, **options: None


@fault("an interrupt is swallowed", "voxax.cli.learning:uninterrupted",
       tests=(f"{_NAMED}[a save is interrupted]",))  # fmt: skip
def _(original):
    del original

    @contextlib.contextmanager
    def wrong():
        """Ctrl-C inside the block is forgotten behind it."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield
        signal.signal(signal.SIGINT, before)

    return wrong


def _deaf_worker(*worker):
    """Set up a worker that does not look for its parent."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@fault("workers do not look for their parent", "voxax.io.pipeline:set_up_worker",
       tests=(f"{_NAMED}[a parent of workers is killed]",))  # fmt: skip
def _(original):
    del original
    return _deaf_worker


@fault("an index is not checked", "voxax.io.mesh:sample_surface", "voxax.io.ply:sample_surface",
       tests=(f"{_NAMED}[a face names other vertices]",))  # fmt: skip
def _(original):
    def wrong(vertices, triangles, *options):
        vertices.positions[triangles]
        return original(vertices, triangles, *options)

    return wrong
