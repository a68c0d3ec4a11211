"""Splitting of one large scene over several devices: its voxels, kernel maps and halos, by shard.

The *partition* assigns each voxel of each level to one shard, its owner. A shard computes the
output rows that it owns. A kernel map may read input rows that other shards own. The shard borrows
copies of these rows, which form its *halo*.

The *exchange schedule* lists which shard sends halo rows to which other shard in which round. A
round is one ``ppermute``: each shard sends one message at most, and all messages have the same
number of rows, because shapes are static. So a round wastes little if its messages have similar
sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.coords import CURVES, PAD, Curve, bucket_capacity, host, round_up_rows, sort_by_curve
from voxax.errors import CapacityError, InputError, check_known
from voxax.geometry import MapRecord, Plan, VoxelGeometry, Voxels
from voxax.geometry.halo import Halo, Round
from voxax.geometry.host import host_geometry, neighbor_table, table_views
from voxax.geometry.lost_rows import LostRows
from voxax.geometry.voxel_geometry import ShardMaps
from voxax.parallel.packing import checked_labels


@dataclasses.dataclass(frozen=True)
class LevelPartition:
    """The assignment of the N voxels (rows) of one level to shards.

    Attributes:
      owner: ``int32[N]``, the shard of each row.
      rows: for each shard the indices of its rows, ascending, so in lexicographic order.
      place: ``int32[N]``, the index of each row within ``rows[owner]``.
    """

    owner: np.ndarray
    rows: list[np.ndarray]
    place: np.ndarray

    @classmethod
    def of(cls, owner: np.ndarray, shards: int) -> LevelPartition:
        together = np.argsort(owner, kind="stable")
        ends = np.cumsum(np.bincount(owner, minlength=shards))
        rows = np.split(together, ends[:-1])
        place = np.empty(len(owner), np.int32)
        for own in rows:
            place[own] = np.arange(len(own))
        return cls(owner, rows, place)


def partition_levels(
    plan: Plan, levels: list[np.ndarray], shards: int, order: Curve
) -> list[LevelPartition]:
    """Assign the voxels of each level of a network to shards.

    The input voxels are cut along a curve into pieces whose sizes differ by at most one voxel.
    A voxel of another level belongs to the shard with the lowest number among the owners of the
    voxels from which it was made. So features stay on their device from level to level, except at
    a cut. If every level were cut evenly instead, features of whole regions would move to other
    devices, because the ratio of coarse to fine voxels varies over a scan.

    Args:
      plan: the plan of the network's kernel maps.
      levels: for each level of the plan the coordinates ``int32[N, 1 + D]`` of its voxels.
      shards: number of shards.
      order: the curve along which the voxels of each scene are ordered and cut.
    """
    owners = [_cut(levels[0], shards, order)]
    for rows, (parent, spec) in zip(levels[1:], plan.parents, strict=True):
        source, above = levels[parent], owners[parent]
        first = np.full(len(rows), shards, np.int32)
        if spec.generative:
            table = neighbor_table(source, rows, spec, len(rows))
            reached, tap = np.nonzero(table >= 0)
            np.minimum.at(first, reached, above[table[reached, tap]])
        else:
            _, of_source = host.unique_rows(host.coarsen(source, spec.stride))
            np.minimum.at(first, of_source, above)
        owners.append(first)
    return [LevelPartition.of(owner, shards) for owner in owners]


def _cut(rows: np.ndarray, shards: int, order: Curve) -> np.ndarray:
    place = np.arange(len(rows))
    if order != "lexicographic":
        # Rows are padded to a bucket, so that scenes of similar size share a compiled program.
        padded = host.pad_rows(rows, bucket_capacity(len(rows)))
        along = np.asarray(sort_by_curve(padded, order))
        assert (padded[along[len(rows) :], 0] == PAD).all()
        place[along[: len(rows)]] = np.arange(len(rows))
    return (place * shards // max(len(rows), 1)).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class ShardTable:
    """The part of a kernel map that one shard computes.

    Attributes:
      table: ``int32[M, K]`` for the M output rows that the shard owns: the neighbors as indices
        into ``extended``, or -1.
      extended: indices of the input rows that the shard owns or reads, ascending.
      borrowed: ``{owner: rows}``, for each other shard the indices of its input rows that this
        shard reads, ascending.
    """

    table: np.ndarray
    extended: np.ndarray
    borrowed: dict[int, np.ndarray]


def partition_map(
    table: np.ndarray, inputs: LevelPartition, outputs: LevelPartition
) -> list[ShardTable]:
    """Cut a kernel map into parts, one for each shard, with the output rows that the shard owns.

    ``table`` is the map, ``int32[N_out, K]``. ``inputs`` and ``outputs`` assign its input rows and
    its output rows to shards.
    """
    found = []
    for shard, (own_out, own_in) in enumerate(zip(outputs.rows, inputs.rows, strict=True)):
        part = table[own_out]
        read = np.zeros(len(inputs.owner), bool)
        read[part[part >= 0]] = True
        read[own_in] = True
        extended = np.flatnonzero(read)
        place = np.cumsum(read, dtype=np.int32) - 1
        local = np.where(part < 0, -1, place[part]) if len(place) else part
        owner = inputs.owner[extended]
        lenders = np.flatnonzero(np.bincount(owner, minlength=1)).tolist()
        borrowed = {other: extended[owner == other] for other in lenders if other != shard}
        found.append(ShardTable(local.astype(np.int32), extended, borrowed))
    return found


Messages = Mapping[tuple[int, int], int]
"""The halo rows that shards send to each other: ``{(sender, receiver): number of rows}``."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One round of an exchange schedule.

    ``pairs`` are the ``(sender, receiver)`` shards of the messages in the round. ``rows`` is the
    number of feature rows in every message.
    """

    pairs: Round
    rows: int


def matched(messages: Messages) -> tuple[Exchange, ...]:
    """Return an exchange schedule for exactly the given messages, such as those of one scene.

    ``messages`` maps ``(sender, receiver)`` shards to the number of halo rows to send. Messages
    are scheduled in descending order of size, each in the first round in which both its sender and
    its receiver are free. So the messages of a round have similar sizes. If no shard sends or
    receives more than d messages, there are at most ``2 d - 1`` rounds.
    """
    rounds: list[dict[int, int]] = []  # receiver by sender
    rows: list[int] = []
    for (sender, receiver), number in sorted(messages.items(), key=lambda m: (-m[1], m[0])):
        free = (
            index
            for index, pairs in enumerate(rounds)
            if sender not in pairs and receiver not in pairs.values()
        )
        index = next(free, None)
        if index is None:
            rounds.append({})
            rows.append(number)
            index = -1
        rounds[index][sender] = receiver
    return tuple(Exchange(tuple(sorted(p.items())), n) for p, n in zip(rounds, rows, strict=True))


def ring(messages: Messages, shards: int) -> tuple[Exchange, ...]:
    """Return an exchange schedule in which all shards send along a ring; it suits many scenes.

    ``messages`` maps ``(sender, receiver)`` shards to the number of halo rows to send. In the round
    of distance d, every shard s sends to shard ``(s + d) % shards``, with room for the largest
    message of this distance. There is a round for each distance that occurs in ``messages``, and
    always for the distances 1 and ``shards - 1``, to both neighbors.
    """
    largest = {shift: 0 for shift in {1, shards - 1} if 0 < shift < shards}
    for (sender, receiver), number in messages.items():
        shift = (receiver - sender) % shards
        largest[shift] = max(number, largest.get(shift, 0))
    return tuple(
        Exchange(tuple((place, (place + shift) % shards) for place in range(shards)), rows)
        for shift, rows in sorted(largest.items())
    )


@dataclasses.dataclass(frozen=True)
class MapRows:
    """Capacities (static numbers of rows) of one kernel map on every shard.

    Attributes:
      extended: capacity for a shard's own input rows and its halo together.
      schedule: the rounds in which shards exchange the halo.
    """

    extended: int
    schedule: tuple[Exchange, ...]


@dataclasses.dataclass(frozen=True)
class SplitRows:
    """Capacities (static numbers of rows) of a :class:`SceneSplit`, the same on every shard.

    Attributes:
      levels: for each level the capacity for a shard's own voxels.
      maps: the capacities of each kernel map, in the order of :attr:`SceneSplit.records`.
    """

    levels: tuple[int, ...]
    maps: tuple[MapRows, ...]


@dataclasses.dataclass(frozen=True)
class SceneSplit:
    """A recipe to split scenes over the devices of a mesh axis, for one network.

    Create it by :meth:`record`, then call :meth:`split` for each scene.

    Attributes:
      plan: the plan of the kernel maps that the network needs.
      shards: number of shards, and size of the mesh axis.
      axis: name of the mesh axis.
      order: the curve along which voxels are cut. ``"lexicographic"``, the default, cuts
        slabs across the first axis; each slab exchanges rows with the slabs next to it.
        ``"morton"`` and ``"hilbert"`` cut compact pieces, which exchange rows with more shards, but
        send fewer rows if there are many shards.
      capacities: capacities from :meth:`fitted`, shared by all scenes; None computes capacities for
        each scene.
    """

    plan: Plan
    shards: int
    axis: str = "space"
    order: Curve = "lexicographic"
    capacities: SplitRows | None = None

    @classmethod
    def record(
        cls,
        model: Callable[[Voxels], Any],
        voxels: Voxels,
        shards: int,
        *,
        axis: str = "space",
        order: Curve = "lexicographic",
    ) -> SceneSplit:
        """Create a split for a network; an abstract trace of the network finds its kernel maps.

        Args:
          model: the network as it runs on one device, before its batch norms are synchronized.
          voxels: a whole scene; only its shapes matter.
          shards, axis, order: see the attributes.

        Raises:
          InputError: ``shards`` is less than 1, or the order is unknown.
        """
        if shards < 1:
            raise InputError(f"a scene is split into at least one shard, got {shards}")
        check_known("order", order, CURVES)
        return cls(Plan.record(model, voxels), shards, axis, order)

    @property
    def records(self) -> tuple[MapRecord, ...]:
        """Records of all kernel maps: the plan's maps, then those that transpose another map."""
        return self.plan.records + self.plan.adjoints

    def fitted(self, samples: Iterable[Voxels], margin: float = 1.1) -> SceneSplit:
        """Return this split with fixed capacities, so that all scenes share one compiled program.

        Shards then exchange halo rows as in :func:`ring`, which suits few shards and slabs. Without
        fitted capacities, each scene has its own rounds and compiled program.

        Args:
          samples: concrete voxels, each as :meth:`split` would take them.
          margin: factor on the largest number of rows that a sample needs.

        Raises:
          InputError: there is no sample.
        """
        # Only the tables of one sample are in memory at a time.
        needs = [_Cut.of(self, sample).needs() for sample in samples]
        if not needs:
            raise InputError("a split is fitted to at least one sample, got none")
        capacities = functools.reduce(_Needs.joined, needs).capacities(
            lambda messages: ring(messages, self.shards), margin
        )
        return dataclasses.replace(self, capacities=capacities)

    def split(
        self, voxels: Voxels, labels: np.ndarray | None = None
    ) -> tuple[Voxels, np.ndarray, np.ndarray]:
        """Split a scene into shards, and attach each shard's kernel maps.

        This runs in NumPy, except that JAX sorts voxels along Morton and Hilbert curves. One
        process plans the whole scene.

        Args:
          voxels: concrete voxels, one scene or a batch; attached plans are dropped.
          labels: ``int[rows]``, negative if unknown; None makes all labels unknown.

        Returns:
          ``(voxels, labels, rows)``. The arrays of ``voxels`` are ``[shards, ...]``; use its
          properties only inside ``jax.shard_map``, which splits the first axis. ``labels`` is
          ``int32[shards, capacity]``, with -1 for padding and unknown labels. ``rows`` is
          ``int32[shards, capacity]``: for each row of a shard its row in the scene, or -1 for
          padding; pass it to :func:`join_shards`.

        Raises:
          CapacityError: the scene exceeds a fitted capacity; the message names it and the fix.
          InputError: the labels are too few for the scene's voxels, or not integers.
          TypeError: the voxels are traced.
        """
        cut = _Cut.of(self, voxels)
        needs = cut.needs()
        capacities = needs.capacities(matched) if self.capacities is None else self.capacities
        self._check(needs, capacities)
        rows = np.full((self.shards, capacities.levels[0]), -1, np.int32)
        for shard, own in enumerate(cut.own[0].rows):
            rows[shard, : len(own)] = own
        known = np.full(rows.shape, -1, np.int32)
        if labels is not None:
            known = np.where(rows < 0, -1, _checked(labels, cut)[rows])
        parts = [cut.shard(number, voxels, capacities) for number in range(self.shards)]
        return jax.tree.map(lambda *arrays: np.stack(arrays), *parts), known, rows

    def _check(self, needs: _Needs, given: SplitRows) -> None:
        """Raise :class:`CapacityError` if a scene's ``needs`` exceed the capacities ``given``."""
        fix = "fit the split to this scene too, or with a larger margin: split.fitted(samples)"
        strides = self.plan.strides
        for stride, need, limit in zip(strides, needs.levels, given.levels, strict=True):
            if need > limit:
                raise CapacityError(
                    f"a shard owns {need} voxels at the level of stride {stride}, its capacity is "
                    f"{limit}: {fix}, or take more than {self.shards} shards"
                )
        for index, (record, limit) in enumerate(zip(self.records, given.maps, strict=True)):
            name = f"the map ({record.spec}) at stride {strides[record.in_level]}"
            held = {pair: r.rows for r in limit.schedule for pair in r.pairs}
            for (sender, receiver), rows in needs.messages[index].items():
                if rows > held.get((sender, receiver), 0):
                    raise CapacityError(
                        f"halo of {name}: shard {sender} lends {rows} rows to shard {receiver}, "
                        f"the capacity is {held.get((sender, receiver), 0)}: {fix}"
                    )
            if needs.extended[index] > limit.extended:
                raise CapacityError(
                    f"{name} reads {needs.extended[index]} rows on one shard, own and halo, the "
                    f"capacity is {limit.extended}: {fix}"
                )


def join_shards(values: Any, rows: np.ndarray) -> np.ndarray:
    """Merge per-shard values, such as a network's outputs, into the order of the scene's rows.

    Args:
      values: ``[shards, capacity, ...]``.
      rows: ``int32[shards, capacity]``, the rows that :meth:`SceneSplit.split` returned.

    Returns:
      ``[count, ...]``, one value for each voxel of the scene, without padding.

    Raises:
      InputError: the first two axes of ``values`` differ from ``rows``.
    """
    values, rows = np.asarray(values), np.asarray(rows)
    if values.shape[:2] != rows.shape:
        raise InputError(f"values of shape {values.shape}: expected [{rows.shape}, ...]")
    joined = np.zeros((int((rows >= 0).sum()), *values.shape[2:]), values.dtype)
    joined[rows[rows >= 0]] = values[rows >= 0]
    return joined


@dataclasses.dataclass(frozen=True)
class _Needs:
    """The numbers of rows that a scene needs, without margin.

    Attributes:
      levels: for each level the largest number of voxels that a shard owns.
      extended: for each kernel map the largest number of input rows that a shard owns or receives
        from other shards.
      messages: for each kernel map, ``{(sender, receiver): number of rows}``, the input rows that
        one shard sends to another.
    """

    levels: list[int]
    extended: list[int]
    messages: list[dict[tuple[int, int], int]]

    def joined(self, other: _Needs) -> _Needs:
        """Return the needs of two scenes: each number is the maximum of ``self`` and ``other``."""
        messages = [
            {pair: max(a.get(pair, 0), b.get(pair, 0)) for pair in {**a, **b}}
            for a, b in zip(self.messages, other.messages, strict=True)
        ]
        levels = list(map(max, self.levels, other.levels))
        return _Needs(levels, list(map(max, self.extended, other.extended)), messages)

    def capacities(
        self, schedule: Callable[[Messages], tuple[Exchange, ...]], margin: float = 1.0
    ) -> SplitRows:
        """Return capacities for ``margin`` times the needs, rounded up, and the exchange rounds.

        ``schedule`` is a function from the messages of one kernel map to its rounds.
        """

        def padded(rows: int) -> int:
            return round_up_rows(math.ceil(margin * rows))

        maps = []
        for extended, messages in zip(self.extended, self.messages, strict=True):
            rounds = (dataclasses.replace(r, rows=padded(r.rows)) for r in schedule(messages))
            maps.append(MapRows(padded(extended), tuple(rounds)))
        return SplitRows(tuple(map(padded, self.levels)), tuple(maps))


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The coordinates and kernel maps of a scene, cut into shards as ``split`` describes.

    For each level, ``levels`` has the coordinates ``int32[N, 1 + D]`` of the scene's voxels, and
    ``own`` says which shard each voxel belongs to. ``tables[m][s]`` is the part of kernel map m
    that shard s computes.
    """

    split: SceneSplit
    levels: list[np.ndarray]
    own: list[LevelPartition]
    tables: list[list[ShardTable]]

    @classmethod
    def of(cls, split: SceneSplit, voxels: Voxels) -> _Cut:
        if _compat.is_traced(voxels.coords, voxels.count):
            raise TypeError("a scene is split ahead of the trace: call split() outside jax.jit")
        if int(voxels.num_dropped):
            voxels.raise_if_overflowed()
        coords = np.asarray(voxels.geometry.coords)
        levels = split.plan.level_rows(coords[coords[:, 0] != PAD])
        own = partition_levels(split.plan, levels, split.shards, split.order)
        tables = []
        for record in split.records:
            source, out = levels[record.in_level], levels[record.out_level]
            table = neighbor_table(source, out, record.spec, len(out))
            tables.append(partition_map(table, own[record.in_level], own[record.out_level]))
        return cls(split, levels, own, tables)

    def needs(self) -> _Needs:
        messages = [
            {
                (sender, receiver): len(rows)
                for receiver, table in enumerate(tables)
                for sender, rows in table.borrowed.items()
            }
            for tables in self.tables
        ]
        return _Needs(
            [max(map(len, own.rows)) for own in self.own],
            [max(len(table.extended) for table in tables) for tables in self.tables],
            messages,
        )

    def shard(self, number: int, voxels: Voxels, capacities: SplitRows) -> Voxels:
        """Return the voxels of shard ``number`` with its kernel maps attached, in NumPy."""
        geometries = [
            self._geometry(level, own.rows[number], capacities.levels[level], voxels)
            for level, own in enumerate(self.own)
        ]
        plan = self.split.plan
        records, views, sources, halos = [], [], [], []
        for record, tables, size in zip(
            self.split.records, self.tables, capacities.maps, strict=True
        ):
            mine = tables[number]
            # On one device a symmetric map is its own adjoint; the map of a shard is not, so it
            # always has the transposed table.
            names = tuple(sorted({*record.views, "transposed_neighbors"}))
            records.append(dataclasses.replace(record, views=names))
            table = np.full(
                (capacities.levels[record.out_level], mine.table.shape[1]), -1, np.int32
            )
            table[: len(mine.table)] = mine.table
            views.append(table_views(table, record.spec, names, size.extended, plan.views))
            source = self._geometry(record.in_level, mine.extended, size.extended, voxels)
            sources.append(dataclasses.replace(source, level=-1))
            own_capacity = capacities.levels[record.in_level]
            halos.append(self._halo(number, record.in_level, tables, size, own_capacity))
        attached = ShardMaps(
            tuple(geometries[1:]), tuple(views), tuple(records), tuple(sources), tuple(halos)
        )
        own = self.own[0].rows[number]
        features = np.zeros((capacities.levels[0], voxels.num_channels), voxels.features.dtype)
        features[: len(own)] = np.asarray(voxels.features)[own]
        geometry = dataclasses.replace(geometries[0], attached=attached)
        return dataclasses.replace(voxels, geometry=geometry, features=features)  # type: ignore[arg-type]

    def _geometry(
        self, level: int, rows: np.ndarray, capacity: int, voxels: Voxels
    ) -> VoxelGeometry:
        stride = self.split.plan.strides_from(voxels.stride)[level]
        geometry = host_geometry(
            self.levels[level][rows], capacity, LostRows.of({}), stride, voxels.batch_size, level
        )
        return dataclasses.replace(geometry, split_over=self.split.axis)

    def _halo(
        self, number: int, level: int, tables: list[ShardTable], size: MapRows, own_capacity: int
    ) -> Halo:
        own, mine = self.own[level], tables[number]
        source = np.full(size.extended, -1, np.int32)
        # Rows of other shards are overwritten below, by the round that brings them.
        source[: len(mine.extended)] = own.place[mine.extended]
        send, start = [], own_capacity
        for exchange in size.schedule:
            rows = np.full(exchange.rows, -1, np.int32)
            for sender, receiver in exchange.pairs:
                if number == sender and sender in tables[receiver].borrowed:
                    lent = own.place[tables[receiver].borrowed[sender]]
                    rows[: len(lent)] = lent
                if number == receiver and sender in mine.borrowed:
                    borrowed = mine.borrowed[sender]
                    place = np.searchsorted(mine.extended, borrowed)
                    source[place] = start + np.arange(len(borrowed))
            send.append(rows)
            start += exchange.rows
        schedule = tuple(exchange.pairs for exchange in size.schedule)
        ends = self.split.shards, own_capacity, self.split.axis
        return Halo(tuple(send), source, schedule, *ends)  # type: ignore[arg-type]


def _checked(labels: np.ndarray, cut: _Cut) -> np.ndarray:
    """Return the labels of the scene's n voxels, checked, and a final -1: ``int32[n + 1]``.

    Negative labels become -1. Padding rows read the final entry.
    """
    count = len(cut.levels[0])
    labels = checked_labels(labels, count, "labels", "the scene's")
    return np.append(np.maximum(labels[:count], -1), -1).astype(np.int32)
