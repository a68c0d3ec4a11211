"""One case: every contestant prepared, checked, and timed in turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.cases import OPERATIONS, SGEMM_SHAPE, Case
from benchmarks.turns import Worker, WorkerFailed, in_turns

TOLERANCE = 1e-4
# Those that take so many times the fastest run in a few rounds only...
SLOW, FEW_ROUNDS = 3, 3
# ... and in one if a call takes so many seconds.
LONG = 1.0
SGEMM = {"voxax": "XLA", "torch": "PyTorch", "numpy": "NumPy"}


class Match:
    """The contestants of all libraries, case after case.

    Args:
      crew: worker processes by library, voxax first.
      rounds: at most.
      folder: for the files that the processes share.
    """

    def __init__(self, crew: dict[str, Worker], rounds: int, folder: Path) -> None:
        self._crew, self._rounds = crew, rounds
        self._problem, self._reference = folder / "problem.npz", folder / "reference.npz"

    def play(self, case: Case, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Prepare everybody, check against voxax, take turns.

        Returns:
          The case with its times in seconds, ready for JSON.
        """
        begin = time.perf_counter()
        np.savez(self._problem, **arrays)
        self._reference.unlink(missing_ok=True)
        players: dict[str, Any] = {}
        absent: dict[str, str] = {}
        checks: dict[str, dict[str, Any]] = {}
        for library, worker in self._crew.items():
            try:
                made = worker.ask("prepare", case=list(case), problem=str(self._problem))
            except WorkerFailed as failure:
                absent[library] = str(failure)
                continue
            for name, reason in made.items():
                full = _full(library, name)
                if reason is not None:
                    absent[full] = reason
                    continue
                try:
                    if not self._reference.exists():
                        worker.ask("save", name=name, path=str(self._reference))
                    else:
                        checks[full] = self._checked(worker, name)
                    players[full] = _timer(worker, "case", name)
                except WorkerFailed as failure:
                    absent[full] = str(failure)
        contestants = list(players)
        layered = OPERATIONS[case.operation].layered
        if layered:
            own = {name: self._crew.get(library) for library, name in SGEMM.items()}
            players |= {f"sgemm {n}": _timer(w, "sgemm", "sgemm") for n, w in own.items() if w}
        seconds, failed = in_turns(players, self._rounds, self._turns)
        absent |= {name: reason for name, reason in failed.items() if name in contestants}
        medians = {name: statistics.median(own) for name, own in seconds.items()}
        rates = {n: medians.pop(f"sgemm {n}") for n in SGEMM.values() if f"sgemm {n}" in medians}
        unmeasured: dict[str, int] = {}
        for library, worker in self._crew.items():
            with contextlib.suppress(WorkerFailed):  # it says so in every case
                notes = worker.ask("drop")
                if "unmeasured" in notes:
                    unmeasured[library] = notes["unmeasured"]
        result: dict[str, Any] = {
            "case": list(case),
            "voxels": len(arrays["coords"]),
            "seconds": medians,
            "rounds": {name: len(seconds[name]) for name in medians},
            "checks": checks,
            "absent": absent,
            # Products that ran with a choice that was not measured.
            "unmeasured": unmeasured,
            "taken": time.strftime("%Y-%m-%d", time.gmtime()),
            "wall": time.perf_counter() - begin,
        }
        if "pairs" in arrays:
            result["pairs"] = int(arrays["pairs"])
        if layered:
            m, k, n = SGEMM_SHAPE
            result["sgemm"] = rates
            result["rate"] = 2 * m * k * n / min(rates.values())
            flops = 2 * result["pairs"] * case.channels**2 * case.work_factor
            result["lower_bound"] = flops / result["rate"]
        return result

    def _turns(self, name: str, seconds: dict[str, list[float]]) -> int:
        """In how many rounds a contestant runs, judged by its first."""
        own = {n: s for n, s in seconds.items() if not n.startswith("sgemm ")}
        if name not in own:
            return self._rounds
        if not all(own.values()):
            return 1
        mine, fastest = own[name][0], min(s[0] for s in own.values())
        if mine < SLOW * fastest:
            return self._rounds
        return 1 if mine > LONG else FEW_ROUNDS

    def _checked(self, worker: Worker, name: str) -> dict[str, Any]:
        """The errors of a contestant against voxax.

        Raises:
          WorkerFailed: it computes something else.
        """
        errors = worker.ask("check", name=name, path=str(self._reference), tolerance=TOLERANCE)
        last = errors["error"] if errors["exact_error"] is None else errors["exact_error"]
        if not last <= TOLERANCE:
            raise WorkerFailed(f"its result differs from voxax's by {last:.1e} of the largest")
        return errors


def _timer(worker: Worker, slot: str, name: str) -> Any:
    return lambda: worker.ask("time", slot=slot, name=name)


def _full(library: str, name: str) -> str:
    return library if name == library or library.startswith("voxax") else f"{library} {name}"
