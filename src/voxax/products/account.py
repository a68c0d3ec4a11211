"""What is known about products now: their choices, their pairs, their floors."""

from __future__ import annotations

from collections.abc import Sequence

from voxax import _native
from voxax.algorithms import Problem
from voxax.hardware import HardwareInfo, describe, shown
from voxax.products.floor import floor_of, matrix_rate
from voxax.products.pairs import PairCounter
from voxax.products.report import Explained, Report
from voxax.products.survey import Call
from voxax.tuning import foresee, hardware_of, with_known_time


def report_of(calls: Sequence[Call], platform: str, seconds: float = 0.0) -> Report:
    """What is known about ``calls`` now, after ``seconds`` of measuring."""
    _, device = hardware_of(platform)
    hardware = None if device is None else describe(device)
    counter = PairCounter()
    rows = tuple(_explained(call, hardware, counter) for call in calls)
    notes = list(_rates(rows, platform, hardware))
    reason = _native.unavailable()
    if reason and any(c.problem.platform == "cpu" for c in calls):
        notes.append(f"on XLA alone: {reason}")
    return Report(rows, seconds, tuple(notes))


def _explained(call: Call, hardware: HardwareInfo | None, counter: PairCounter) -> Explained:
    counted = call.views is not None
    pairs = (
        counter.estimate(call.problem)
        if call.views is None
        else counter.count(call.views, call.problem)
    )
    floor = floor_of(call.problem, pairs, hardware)
    choice = with_known_time(foresee(call.problem, call.admitted))
    return Explained(call.scope, choice, pairs, counted, floor)


def _rates(rows: Sequence[Explained], platform: str, hardware: HardwareInfo | None) -> list[str]:
    """What the floors stand on, a line each; how to measure what is unknown."""
    if hardware is None:
        return [f"no floor: there is no {platform} here, its rates are unknown"]
    bandwidth, rates = hardware.fact("memory_bandwidth"), hardware.fact("peak_rates")
    kinds = {_kind(p): (p.dtype, p.precision) for p in (row.choice.problem for row in rows)}
    known = {kind: rate for kind, key in kinds.items() if (rate := matrix_rate(*key, hardware))}
    notes = []
    if known and bandwidth.known:
        notes.append(
            f"floors at {shown('peak_rates', tuple(known.items()))} (source: {rates.source}) and "
            f"{shown('memory_bandwidth', bandwidth.value)} (source: {bandwidth.source})"
        )
    missing = [f"the matrix rate of {kind}" for kind in kinds if kind not in known]
    if not bandwidth.known:
        missing.append("the memory bandwidth")
    if missing:
        notes.append(
            f"no floor: unknown is {', '.join(missing)}; `voxax hardware --probe` measures"
        )
    return notes


def _kind(problem: Problem) -> str:
    """What the matrix rate depends on, for people."""
    p = problem
    reduced = p.dtype == "float32" and p.precision != "highest"
    return f"{p.dtype} at precision {p.precision}" if reduced else p.dtype
