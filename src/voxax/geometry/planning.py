"""Plans: find the kernel maps that a network needs, choose capacities, and build the maps ahead.

The model is traced once, abstractly, to find its maps. The resulting :class:`Plan` is
small, static and picklable; worker processes apply it to their clouds in NumPy.

Capacities of coarser levels follow from the input's: see :mod:`voxax.geometry.level_fit`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat, _limits
from voxax.coords import PAD, bucket_capacity, ladder_capacity
from voxax.errors import CapacityError, InputError
from voxax.geometry.build import MapRequest, output_stride, recording_maps
from voxax.geometry.call_checks import axes_hint, check_kind, checked_operator
from voxax.geometry.default_capacity import has_ladder
from voxax.geometry.eager import to_device_of
from voxax.geometry.host import host_geometry, neighbor_table, output_rows, table_views
from voxax.geometry.input_checks import check_capacity
from voxax.geometry.kernel_maps import KernelMap, View, opposite
from voxax.geometry.kernel_spec import KernelSpec
from voxax.geometry.level_fit import Fit, fitted_to, rows_by_stride
from voxax.geometry.lost_rows import Level
from voxax.geometry.voxel_geometry import AttachedMaps, MapRecord, VoxelGeometry
from voxax.geometry.voxels import Voxels

# The largest factor on an input's capacity if a level needs more than its fitted capacity.
_MOST_GROWTH = 16
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The kernel maps and levels (sets of voxels) that a network needs, as a static description.

    Attributes:
      records: the maps to build.
      parents: for level 1, 2, ...: the level it is computed from, and the spec of this step.
      strides: total stride of level 0, 1, 2, ...
      fixed: for level 1, 2, ...: the ``capacity=`` that the network itself gives, or None.
      fit: capacities fitted to samples, or None before :meth:`fitted`.
      adjoints: transposed maps that the network needs and that exchange inputs and outputs of a
        map in ``records``, so that no map is built for them.
      views: recipes of the arrays, other than tables and pair lists, that convolution kernels read
        from kernel maps.
      on_ladder: True chooses from few capacities in coarse steps, as on CPUs, where padding costs
        memory but no time. False rounds numbers of rows up by :func:`voxax.bucket_capacity`, for
        inputs and for levels that are not fitted.
    """

    records: tuple[MapRecord, ...]
    parents: tuple[tuple[int, KernelSpec], ...]
    strides: tuple[Level, ...]
    fixed: tuple[int | None, ...]
    fit: Fit | None = None
    adjoints: tuple[MapRecord, ...] = ()
    views: tuple[View, ...] = ()
    on_ladder: bool = False

    @classmethod
    def record(cls, model: Callable[[Voxels], Any], voxels: Voxels) -> Plan:
        """Make the plan of every kernel map that ``model(voxels)`` needs, by an abstract trace.

        Args:
          model: any callable on Voxels; a ``flax.nnx`` module is traced without being changed.
          voxels: an example; only its shapes matter.

        Raises:
          InputError: ``model`` cannot be called, or ``voxels`` is no Voxels.
        """
        check_kind("record", "model", model, "Callable[...]")
        check_kind("record", "voxels", voxels, "Voxels")
        begin, recorder = time.perf_counter(), _Recorder(voxels.geometry)
        example = dataclasses.replace(
            voxels, geometry=dataclasses.replace(voxels.geometry, attached=None)
        )

        def run(state: Any, v: Voxels) -> Any:
            out = call(state, dataclasses.replace(v, geometry=recorder.root(v.geometry)))
            recorder.finish()
            return jax.tree.leaves(out)

        call, state = pure_call(model)
        with recording_maps(recorder), _compat.separate_traces("plan"):
            jax.eval_shape(run, state, example)
        _log.info(
            "planned in %.1f s: %d kernel maps on %d levels",
            time.perf_counter() - begin,
            len(recorder.records),
            len(recorder.strides),
        )
        return cls(
            tuple(recorder.records),
            tuple(recorder.parents),
            tuple(recorder.strides),
            tuple(recorder.fixed),
            adjoints=tuple(recorder.adjoints),
            views=tuple(sorted(recorder.views, key=lambda view: view.name)),
            on_ladder=has_ladder(),
        )

    def level_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the coordinate rows of every level, level 0 first, computed from the input's.

        Args:
          rows: the input's rows, ``int32[N, 1 + D]``, without padding.
        """
        levels = [rows]
        for parent, spec in self.parents:
            levels.append(output_rows(levels[parent], spec))
        return levels

    def strides_from(self, stride: Level) -> tuple[Level, ...]:
        """Return the total stride of every level for an input of total stride ``stride``.

        Raises:
          InputError: the stride has another number of axes than the plan, or the stride of a
            transposed layer does not divide the stride of its input.
        """
        if len(stride) != len(self.strides[0]):
            raise InputError(
                f"this plan was recorded on {len(self.strides[0])}-D voxels, the given ones are "
                f"{len(stride)}-D: record a plan with voxels like these, Plan.record(model, voxels)"
                f"{axes_hint(len(self.strides[0]), len(stride))}"
            )
        strides = [stride]
        for parent, spec in self.parents:
            strides.append(output_stride(strides[parent], spec))
        return tuple(strides)

    def fitted(self, samples: Iterable[Voxels | Sequence[int]], margin: float = 1.03) -> Plan:
        """Return this plan with capacities fitted to samples, whose order does not matter.

        Args:
          samples: voxels, or lists of the number of voxels at each level (level 0 first).
          margin: factor on the rows that the samples need at levels 1, 2, ...

        Raises:
          InputError: there are no samples, a sample is neither Voxels nor a number for each level,
            or the margin is below 1 or no number.
        """
        _limits.MARGIN.check("margin", margin)
        if isinstance(samples, Voxels) or not isinstance(samples, Iterable):
            raise InputError(f"samples is a list, got {type(samples).__name__}: write [voxels]")
        counts, levels = [], len(self.strides)
        for sample in samples:
            if isinstance(sample, Voxels):
                self.strides_from(sample.stride)
                sample = [len(rows) for rows in self.level_rows(_valid_rows(sample))]
            if np.shape(sample) != (levels,) or np.asarray(sample).dtype.kind not in "iu":
                raise InputError(
                    f"a sample is Voxels, or a list of {levels} integers, the number of voxels at "
                    f"each level, got {type(sample).__name__} of shape {list(np.shape(sample))}"
                )
            counts.append(sample)
        if not counts:
            raise InputError("a plan is fitted to at least one sample, got none")
        return dataclasses.replace(self, fit=fitted_to(np.asarray(counts), margin, self.on_ladder))

    def with_fit(self, fit: Fit) -> Plan:
        """Return this plan with capacities that were fitted before, for instance from a checkpoint.

        Raises:
          InputError: ``fit`` has another number of levels.
        """
        if len(fit.levels) != len(self.parents):
            raise InputError(
                f"the capacities are of {len(fit.levels)} levels, and the network has "
                f"{len(self.parents)} below its input: fit the plan to samples anew"
            )
        return dataclasses.replace(self, fit=fit)

    def capacity(self, n: int) -> int:
        """Return the capacity for an input of ``n`` voxels.

        With ``on_ladder`` it is the smallest fitted input capacity of at least ``n``. If there is
        none, ``n`` is rounded up by :func:`voxax.coords.ladder_capacity`. Without ``on_ladder``,
        ``n`` is rounded up by :func:`voxax.bucket_capacity`. The same ``n`` gives the same capacity
        in every order, process and resumed run.
        """
        if not self.on_ladder:
            return bucket_capacity(max(n, self.fit.least if self.fit else 0))
        rungs = () if self.fit is None else self.fit.rungs
        return next((rung for rung in rungs if rung >= n), ladder_capacity(n))

    def capacities(self, capacity: int) -> tuple[int, ...]:
        """Return each level's fitted capacity for ``capacity`` input rows; needs :meth:`fitted`."""
        if self.fit is None:
            raise InputError("this plan has no fitted capacities: call plan.fitted(samples) first")
        fitted = (level(capacity) for level in self.fit.levels)
        return (capacity, *(own or n for own, n in zip(self.fixed, fitted, strict=True)))

    def attach(
        self,
        voxels: Voxels,
        *,
        maps: bool = True,
        grow: bool = True,
        capacity: int | None = None,
    ) -> Voxels:
        """Build all kernel maps of the plan for ``voxels``, and return the voxels with the maps.

        The capacity of each level is attached too.

        Args:
          voxels: concrete voxels. NumPy arrays give NumPy results, without use of a device.
          maps: False attaches only the capacities and builds no maps.
          grow: what to do if a level needs more rows than its fitted capacity. False raises an
            error. True takes larger capacities. On CPUs these are the capacities of a plan that is
            not fitted. On accelerators the input takes a larger capacity too, until the fitted
            capacities suffice. If 16 times the input's capacity is not enough, the capacities are
            chosen as on CPUs.
          capacity: rows of the result before ``grow`` enlarges it, for instance from
            :meth:`capacity`; None takes the capacity of ``voxels``.

        Raises:
          InputError: ``voxels`` is no Voxels, the voxels have another number of axes than the plan,
            or the stride of a transposed layer does not divide the stride of its input.
          CapacityError: the voxels do not fit ``capacity``, or a level does not fit the capacity
            that the network gives it or, with ``grow=False``, its fitted capacity.
          TypeError: the voxels are traced.
        """
        check_kind("attach", "voxels", voxels, "Voxels")
        if _compat.is_traced((voxels.coords, voxels.features)):
            raise TypeError("vx.plan works ahead of the trace: call it outside jax.jit")
        strides = self.strides_from(voxels.stride)
        levels = self.level_rows(_valid_rows(voxels))
        given = voxels.capacity if capacity is None else check_capacity(capacity)
        if len(levels[0]) > given:
            raise CapacityError(
                f"{len(levels[0])} voxels do not fit into capacity {given}: give "
                f"capacity={bucket_capacity(len(levels[0]))} or more"
            )
        capacities = self._fitting(given, [len(rows) for rows in levels], grow)
        largest: dict[Level, int] = {}
        for stride, size in zip(strides[1:], capacities[1:], strict=True):
            largest[stride] = max(size, largest.get(stride, 0))
        by_stride = tuple(largest.items())
        on_host = isinstance(voxels.geometry.coords, np.ndarray)

        geometries = [
            host_geometry(
                rows,
                size,
                voxels.geometry.drops.copy_on_host(),
                stride,
                voxels.batch_size,
                index,
                by_stride,
            )
            for index, (rows, size, stride) in enumerate(
                zip(levels, capacities, strides, strict=True)
            )
        ]
        attached = None
        if maps:
            views = tuple(self._views(record, levels, capacities) for record in self.records)
            attached = AttachedMaps(tuple(geometries[1:]), views, self.records)  # type: ignore[arg-type]
        root = dataclasses.replace(geometries[0], attached=attached)
        features = np.asarray(voxels.features)[: len(levels[0])]
        padded = np.zeros((capacities[0], features.shape[1]), features.dtype)
        padded[: len(features)] = features
        planned = dataclasses.replace(voxels, geometry=root, features=padded)
        return planned if on_host else to_device_of(voxels, planned)

    def _fitting(self, capacity: int, counts: Sequence[int], grow: bool) -> tuple[int, ...]:
        for level, (own, count) in enumerate(zip(self.fixed, counts[1:], strict=True), 1):
            if own is not None and count > own:
                raise CapacityError(
                    f"level of stride {self.strides[level]} needs {count} rows, the network gives "
                    f"it capacity={own}: give that layer bucket_capacity({count}) = "
                    f"{bucket_capacity(count)} or more"
                )
        if self.fit is None and self.on_ladder:
            return rows_by_stride(capacity, counts, self.parents, self.fixed)
        if self.fit is None:
            levels = zip(self.fixed, counts[1:], strict=True)
            return (capacity, *(own or bucket_capacity(n) for own, n in levels))
        first = capacity
        while True:
            capacities = self.capacities(capacity)
            short = [i for i, (n, c) in enumerate(zip(counts, capacities, strict=True)) if n > c]
            if not short:
                return capacities
            if not grow:
                level = short[0]
                raise CapacityError(
                    f"level of stride {self.strides[level]} needs {counts[level]} rows, its fitted "
                    f"capacity is {capacities[level]} (input capacity {capacity}): refit the plan "
                    "on samples like this one, or allow grow=True"
                )
            _log.info("a level of %s rows needs more: %s", capacities, counts)
            # On a ladder the input keeps its capacity, since labels have as many rows. Otherwise it
            # only keeps it if 16 times as many rows do not help: then the level does not grow with
            # the input.
            if self.on_ladder or capacity > _MOST_GROWTH * max(first, 1):
                return rows_by_stride(first, counts, self.parents, self.fixed)
            capacity = self.capacity(capacity + 1)

    def _views(
        self, record: MapRecord, levels: list[np.ndarray], capacities: Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        source, out = levels[record.in_level], levels[record.out_level]
        in_capacity, out_capacity = capacities[record.in_level], capacities[record.out_level]
        table = neighbor_table(source, out, record.spec, out_capacity)
        return table_views(table, record.spec, record.views, in_capacity, self.views)


@functools.partial(checked_operator, on_whole_arrays=False)
def plan(
    model: Callable[[Voxels], Any],
    voxels: Voxels,
    *,
    samples: Iterable[Voxels] | None = None,
    margin: float = 1.03,
) -> Voxels:
    """Build every kernel map that ``model(voxels)`` needs, and return the voxels with the maps.

    The capacities of the model's levels are fitted to ``samples`` if there are any. Otherwise, on
    CPUs, they follow from the capacity of the voxels, so that inputs of one capacity share a
    program. On accelerators, the number of voxels of each level is rounded up. For many inputs make
    one :class:`Plan` by ``Plan.record(model, voxels).fitted(samples)``, and call its
    :meth:`Plan.attach` for each input.

    Args:
      model: a module or function of Voxels; it is traced, not run.
      voxels: the voxels to attach the maps to.
      samples, margin: see :meth:`Plan.fitted`; ``samples=None`` does not fit capacities.

    Raises:
      InputError: as in :meth:`Plan.fitted`.
      TypeError: the function is called under ``jax.jit``.

    Examples:
      >>> model = models.MinkUNet18(4, 20, width=0.25, rngs=nnx.Rngs(0))
      >>> planned = vx.plan(model, voxels)  # with every kernel map
      >>> model(planned).num_channels
      20
    """
    _limits.MARGIN.check("margin", margin)
    made = Plan.record(model, voxels)
    return (made.fitted(samples, margin) if samples is not None else made).attach(voxels)


def _valid_rows(voxels: Voxels) -> np.ndarray:
    coords = np.asarray(voxels.geometry.coords)
    return coords[coords[:, 0] != PAD]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("levels", "views"),
    meta_fields=("records", "recorder"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class _Watched(AttachedMaps):
    """A placeholder for attached maps, in the geometry of voxels whose kernel maps are recorded.

    It marks the voxels that derive from the input of the traced model. The recorder is part of the
    pytree's structure. So JAX traces a jitted function again if its arguments are marked voxels,
    and the kernel maps of the function are recorded. Jitted functions of other arguments are taken
    from JAX's cache.
    """

    recorder: _Recorder | None = None


class _Recorder:
    """Numbers the levels and collects the kernel maps of one traced call of a model."""

    def __init__(self, root: VoxelGeometry) -> None:
        self.records: list[MapRecord] = []
        self.adjoints: list[MapRecord] = []
        self.parents: list[tuple[int, KernelSpec]] = []
        self.strides: list[Level] = [root.stride]
        self.fixed: list[int | None] = []
        self.views: set[View] = set()
        self._levels: dict[tuple[int, KernelSpec, int | None], int] = {}
        self._maps: list[tuple[int, KernelSpec, int, KernelMap]] = []
        self._numbered: dict[int, tuple[KernelMap, KernelMap]] = {}

    def root(self, geometry: VoxelGeometry) -> VoxelGeometry:
        """Return the geometry of the model's input, marked as level 0 of this recording."""
        return dataclasses.replace(geometry, attached=_Watched((), (), (), recorder=self), level=0)

    def _is_watched(self, geometry: VoxelGeometry) -> bool:
        attached = geometry.attached
        return isinstance(attached, _Watched) and attached.recorder is self

    def __call__(self, request: MapRequest, kernel_map: KernelMap) -> KernelMap:
        """Record a requested kernel map, and return it with the number of its output's level.

        The number becomes the ``level`` of the returned map's output geometry. A map whose input
        voxels do not come from the model's input is returned unchanged and not recorded.
        """
        geometry, out_geometry, spec = request.geometry, request.out_geometry, request.spec
        if not self._is_watched(geometry):  # voxels that do not come from the input
            return kernel_map
        if out_geometry is not None:
            if self._is_watched(out_geometry):
                self._maps.append((geometry.level, spec, out_geometry.level, kernel_map))
            return kernel_map
        if id(kernel_map) not in self._numbered:
            key = geometry.level, spec, request.capacity
            if key not in self._levels:
                self.parents.append((geometry.level, spec))
                self.strides.append(kernel_map.out_geometry.stride)
                self.fixed.append(request.capacity)
                self._levels[key] = len(self.parents)
            level = self._levels[key]
            out = dataclasses.replace(kernel_map.out_geometry, level=level)
            numbered = dataclasses.replace(kernel_map, out_geometry=out, check=False)
            self._maps.append((geometry.level, spec, level, numbered))
            self._numbered[id(kernel_map)] = kernel_map, numbered
        return self._numbered[id(kernel_map)][1]

    def finish(self) -> None:
        """Fill ``records``, ``adjoints`` and ``views`` from the recorded maps, and forget the maps.

        Call it when the model has been traced.
        """
        wanted: dict[tuple[int, KernelSpec, int], set[str]] = {}
        for source, spec, out, kernel_map in self._maps:
            keys = kernel_map.memo.names()
            built = {view for view in keys if isinstance(view, View)}
            self.views |= built | {view.opposite for view in built}
            names = {name for name in keys if isinstance(name, str)} | {view.name for view in built}
            wanted.setdefault((source, spec, out), set()).update(names | {"neighbors"})
        forwards = {
            (source, spec.relation, out): names
            for (source, spec, out), names in wanted.items()
            if not spec.transposed
        }
        served = set()
        for (source, spec, out), names in wanted.items():
            forward = forwards.get((out, spec.adjoint().relation, source))
            if spec.transposed and forward is not None:
                pairs = names & {"pairs", "pair_starts"}
                forward |= pairs | {opposite(name) for name in names - pairs}
                served.add((source, spec, out))
                self.adjoints.append(MapRecord(source, spec, out, tuple(sorted(names))))
            else:
                symmetric = source == out and spec.keeps_coords and spec.symmetric
                names -= {"transposed_neighbors"} if symmetric else set()
        for (source, spec, out), names in wanted.items():
            if (source, spec, out) not in served:
                self.records.append(MapRecord(source, spec, out, tuple(sorted(names))))
        # Tracers must not outlive their trace.
        self._maps.clear()
        self._numbered.clear()


def pure_call(model: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """Return ``(call, state)``: a pure function with ``call(state, *args) == model(*args)``.

    A flax.nnx module is split, so that tracing cannot write tracers into its variables. flax is
    used only if the caller has imported it. For other callables ``state`` is ().
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        graph, state = nnx.split(model)
        return lambda state, *args: nnx.merge(graph, state, copy=True)(*args), state
    return lambda _, *args: model(*args), ()
