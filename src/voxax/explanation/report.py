"""The report of ``vx.tune`` and ``vx.explain``: each product's algorithm, reason and times."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence

from voxax.explanation.lower_bound import LowerBound
from voxax.explanation.tpu_rows import RowsMoved
from voxax.tuning.decide import Choice
from voxax.tuning.entry import key_of

_WHY = {
    "measured": "the fastest measured just now",
    "cached": "the fastest measured before on this device",
    "shipped": "the fastest on hardware of this kind, measured by voxax's makers",
    "predicted": "not measured: the fastest by what was predicted for this device, or the default",
    "pinned": "the only candidate that the request admits and that can run",
}
_COLUMNS = (
    *("", "layer", "product", "rows", "taps", "channels", "dtype", "choice"),
    *("lower bound", "bound by", "time", "ratio", "source"),
)
_RIGHT = frozenset({"", "taps", "lower bound", "time", "ratio"})
# Times of another machine do not compare with the lower bounds of this one.
_OWN_TIMES = frozenset({"measured", "cached", "pinned"})
_TIMES = (
    "times, and so ratios, are of one map of the problem's bucket: its rows may differ by a factor "
    "of 2"
)
_ESTIMATED = "~ pairs were not counted: those of a concrete map like it, or of a recorded scene"
# Differentiation and batching write these around the name of a scope.
_WRAPPER = re.compile(r"\b(?:transpose|jvp|vmap)\(")


@dataclasses.dataclass(frozen=True)
class Explained:
    """Row of a report: one product (forward, dgrad or wgrad of a layer), and its algorithm.

    Attributes:
      scope: the product's place in the function: its ``jax.named_scope`` path.
      choice: the algorithm, and the source of the decision. ``choice.seconds`` is the time that the
        tuner measured on a similar map, which may have from half to twice as many rows.
      pairs: number of (input row, output row) pairs of the map.
      counted: whether ``pairs`` was counted on the product's own map; otherwise it was counted on a
        concrete map like it, or on a recorded scene.
      lower_bound: the work, and the least time in which the hardware can do it.
      rows_moved: how the chosen kernel reads input rows, if it is ``implicit_gemm`` on a TPU in a
        forward product; otherwise None.
    """

    scope: str
    choice: Choice
    pairs: int | None = None
    counted: bool = False
    lower_bound: LowerBound | None = None
    rows_moved: RowsMoved | None = None

    @property
    def ratio(self) -> float | None:
        """Time divided by lower bound; 1 is the best possible.

        None if the time or the bound is unknown, or if the time is from another machine.
        """
        seconds, bound = self.choice.seconds, self.lower_bound
        if seconds is None or bound is None or not bound.seconds:
            return None
        return seconds / bound.seconds if self.choice.source in _OWN_TIMES else None

    @property
    def why(self) -> str:
        """The reason for the choice, as a text."""
        reason = _WHY[self.choice.source]
        entry = self.choice.entry
        if entry is not None and self.choice.seconds is not None:
            reason += f", on {entry.sample}, {entry.when[:10]}"
        return reason

    @property
    def problem(self) -> str:
        """Product, rows, taps, channels and dtype, as a text of one line."""
        product, rows, taps, channels, dtype = self._problem()
        return f"{product}, {rows} rows, {taps} taps, {channels}, {dtype}"

    def candidates(self) -> Iterator[tuple[str, float | None, str]]:
        """Yield ``(candidate, seconds or None, verdict)``, the fastest first, refused ones last.

        The candidates are those of the tuning cache, and the algorithms that cannot run.
        """
        entry = self.choice.entry
        if entry is not None:
            ranked = sorted(entry.measured, key=lambda m: (m.seconds is None, m.seconds or 0.0))
            for m in ranked:
                verdict = f"{m.verdict}: {m.reason}" if m.reason else m.verdict
                yield str(m), m.seconds, verdict
        for name, reason in self.choice.refused:
            yield name, None, f"refused: {reason}"

    def _problem(self) -> tuple[str, str, str, str, str]:
        p = self.choice.problem
        product = p.product if p.layer.kind == "dense" else f"{p.product} {p.layer.kind}"
        return (
            product,
            f"{p.layer.in_capacity} -> {p.layer.out_capacity}",
            str(p.layer.num_offsets),
            f"{p.in_channels} -> {p.out_channels}",
            p.dtype,
        )


@dataclasses.dataclass(frozen=True)
class Total:
    """Sums over those products of a report whose ratio of time to lower bound is known.

    Attributes:
      products: number of these products.
      lower_bound: sum of their lower bounds, in seconds.
      seconds: sum of their measured times, in seconds.
    """

    products: int
    lower_bound: float
    seconds: float

    @property
    def ratio(self) -> float:
        """``seconds / lower_bound``."""
        return self.seconds / self.lower_bound


@dataclasses.dataclass(frozen=True)
class Report:
    """Algorithms and times of all sparse convolutions of a function; prints as a table.

    Attributes:
      rows: one row for each product (forward, dgrad or wgrad of a layer), in program order.
      seconds: time spent on measuring, in seconds; 0 for ``vx.explain``.
      notes: further remarks, one line each.
    """

    rows: tuple[Explained, ...]
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Explained]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total(self) -> Total | None:
        """Sums over the rows whose ratio is known; None if no ratio is known."""
        known = [row for row in self.rows if row.ratio]
        bounds = [row.lower_bound.seconds or 0.0 for row in known if row.lower_bound]
        times = [row.choice.seconds or 0.0 for row in known]
        return Total(len(known), sum(bounds), sum(times)) if known else None

    def __str__(self) -> str:
        return "\n".join(self._table())

    def details(self) -> str:
        """Return the table, then for each distinct product all measured algorithms and parameters.

        Each time is followed by its ratio to the fastest time for the same product.
        """
        return "\n".join((*self._table(), *self._problems()))

    def _table(self) -> Iterator[str]:
        layers = _layers([row.scope for row in self.rows])
        cells: list[tuple[str, ...]] = [
            (str(number), layer, *row._problem(), str(row.choice), *_times(row), row.choice.source)
            for number, (layer, row) in enumerate(zip(layers, self.rows, strict=True))
        ]
        total = self.total
        if total is not None:
            what = "total" if total.products == len(cells) else f"total of {total.products}"
            known = {
                "layer": what,
                "lower bound": milliseconds(total.lower_bound),
                "time": milliseconds(total.seconds),
                "ratio": f"{total.ratio:.2f}",
            }
            cells.append(tuple(known.get(name, "") for name in _COLUMNS))
        yield from _aligned((_COLUMNS, *cells), [name in _RIGHT for name in _COLUMNS])
        problems = self._by_problem()
        sources = [rows[0][1].choice.source for rows in problems.values()]
        used = [source for source in _WHY if source in sources]
        counts = ", ".join(f"{sources.count(source)} {source}" for source in used)
        yield ""
        yield f"{_counted(len(self.rows), 'product')}, {_counted(len(problems), 'problem')}" + (
            f": {counts}" if counts else ""
        )
        for source in used:
            yield f"  {source}: {_WHY[source]}"
        if self.seconds:
            yield f"{self.seconds:.1f} s of measuring"
        entries = [rows[0][1].choice.entry for rows in problems.values()]
        left = [len(entry.left_out) for entry in entries if entry is not None and entry.left_out]
        if left:
            yield (
                f"time was too short for {_counted(sum(left), 'candidate')} of "
                f"{_counted(len(left), 'problem')}: vx.tune, or voxax tune, measures all"
            )
        moved = collections.defaultdict(list)
        for number, row in enumerate(self.rows):
            if row.rows_moved is not None:
                moved[str(row.rows_moved)].append(number)
        for said, numbers in moved.items():
            yield f"{_numbered(numbers)}: {said}"
        if not all(
            row.counted
            for row in self.rows
            if row.rows_moved or (row.lower_bound and row.lower_bound.seconds)
        ):
            yield _ESTIMATED
        if total is not None:
            yield _TIMES
        yield from self.notes

    def _problems(self) -> Iterator[str]:
        for key, rows in self._by_problem().items():
            first = rows[0][1]
            yield ""
            yield key
            yield f"  {_numbered([number for number, _ in rows])}; {_provenance(first)}"
            for line in _aligned(list(_candidates(first)), (True, True, False, False)):
                yield f"    {line}"

    def _by_problem(self) -> dict[str, list[tuple[int, Explained]]]:
        """Return a dict from tuning cache key to a list of ``(row number, row)`` with this key."""
        found: dict[str, list[tuple[int, Explained]]] = {}
        for number, row in enumerate(self.rows):
            found.setdefault(key_of(row.choice.problem), []).append((number, row))
        return found


def _times(row: Explained) -> tuple[str, str, str, str]:
    """Return the table cells of a row: lower bound, what determines the bound, time, and ratio.

    The ratio is the time over the lower bound. Unknown values are dashes.
    """
    least, bound = "-", "-"
    if row.lower_bound is not None and row.lower_bound.seconds is not None:
        least, bound = milliseconds(row.lower_bound.seconds), str(row.lower_bound.bound)
        least = least if row.counted else f"~{least}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return least, bound, milliseconds(row.choice.seconds), ratio


def _candidates(row: Explained) -> Iterator[tuple[str, str, str, str]]:
    """Yield the table cells ``(time, ratio, candidate, verdict)`` of each candidate of a row.

    The ratio is the time over the time of the fastest candidate. The verdict on the chosen
    candidate begins with "chosen".
    """
    chosen, candidates = str(row.choice), list(row.candidates())
    if chosen not in [name for name, *_ in candidates]:
        candidates.insert(0, (chosen, None, "not measured"))
    best = min((seconds for _, seconds, _ in candidates if seconds is not None), default=None)
    for name, seconds, verdict in candidates:
        ratio = "-" if seconds is None or best is None else f"{seconds / best:.2f}"
        if name == chosen:
            verdict = "chosen" if verdict == "ok" else f"chosen, {verdict}"
        yield milliseconds(seconds), ratio, name, verdict


def _provenance(row: Explained) -> str:
    entry = row.choice.entry
    if entry is None:
        return _WHY[row.choice.source]
    pinned = f"{_WHY['pinned']}; " if row.choice.source == "pinned" else ""
    how = "predicted" if entry.predicted else "measured"
    return (
        f"{pinned}{how} on {entry.sample} in {entry.seconds_spent:.1f} s, {entry.when[:10]}, "
        f"jaxlib {entry.jaxlib}"
    )


def _layers(scopes: Sequence[str]) -> list[str]:
    """Return named scopes of JAX, such as ``jvp(net)/conv1/conv``, as short names of layers.

    Wrappers such as ``jvp(...)`` are removed, and last parts in which all scopes end.
    """
    paths = []
    for scope in scopes:
        wrappers = len(_WRAPPER.findall(scope))
        plain = _WRAPPER.sub("", scope)
        # The closing brackets stand after the innermost name.
        paths.append(plain.replace(")", "", wrappers).split("/"))
    while all(len(path) > 1 for path in paths) and len({path[-1] for path in paths}) == 1:
        paths = [path[:-1] for path in paths]
    return ["/".join(path) or "-" for path in paths]


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    """Yield the rows as text lines with aligned columns; `right` marks right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _numbered(products: Sequence[int]) -> str:
    return f"product{'s' if len(products) > 1 else ''} {', '.join(map(str, products))}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def milliseconds(seconds: float | None) -> str:
    """Return a time as a text in milliseconds; a dash if it is unknown."""
    return "-" if seconds is None else f"{1e3 * seconds:.3g} ms"
