"""One case: every contestant prepared, checked, and timed in turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from cases import OPERATIONS, Case
from contestant import SGEMM_SHAPE
from crew import Member, WorkerFailed

TOLERANCE = 1e-4
# Those that take so many times the fastest run in a few rounds only...
SLOW, FEW_ROUNDS = 3, 3
# ... and in one if a call takes so many seconds.
LONG = 1.0
# Those that take so many times the fastest are spared the cases with more channels, if another form
# of their library was faster.
_HOPELESS = 5
# Never spared: spconv's other form has wrong results.
_ALWAYS = ("spconv single",)


class Match:
    """The contestants of all libraries, case after case.

    Args:
      crew: worker processes by library, voxax first.
      rounds: at most.
      folder: for the files that the processes share.
      everyone: leave out no library.
    """

    def __init__(
        self, crew: dict[str, Member], rounds: int, folder: Path, everyone: bool = False
    ) -> None:
        self._crew, self._rounds, self._everyone = crew, rounds, everyone
        self._problem, self._reference = folder / "problem.npz", folder / "reference.npz"
        self._behind: dict[tuple[str, str, str, str], str] = {}

    def play(self, case: Case, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Prepare everybody, check against voxax, take turns.

        Returns:
          The case with its times in seconds, ready for JSON.
        """
        begin = time.perf_counter()
        np.savez(self._problem, **arrays)
        self._reference.unlink(missing_ok=True)
        players: dict[str, tuple[Member, str]] = {}
        absent: dict[str, str] = {}
        checks: dict[str, dict[str, Any]] = {}
        for library, member in self._crew.items():
            spared = self._spared(library, case)
            try:
                made = member.ask(
                    "prepare",
                    slot="case",
                    case=list(case),
                    problem=str(self._problem),
                    without=list(spared),
                )["absent"]
            except WorkerFailed as failure:
                absent[library] = str(failure)
                continue
            for name, reason in (spared | made).items():
                full = _full(library, name)
                try:
                    if reason is not None:
                        absent[full] = reason
                    elif not self._reference.exists():
                        member.ask("save", slot="case", name=name, path=str(self._reference))
                        players[full] = member, name
                    else:
                        checks[full] = self._checked(member, name)
                        players[full] = member, name
                except WorkerFailed as failure:
                    absent[full] = str(failure)
        layered = OPERATIONS[case.operation].layered
        seconds, rates = self._take_turns(players, absent, layered)
        unmeasured: dict[str, int] = {}
        for library, member in self._crew.items():
            with contextlib.suppress(WorkerFailed):  # it says so in every case
                notes = member.ask("drop", slot="case")
                if "unmeasured" in notes:
                    unmeasured[library] = notes["unmeasured"]
        medians = {name: statistics.median(own) for name, own in seconds.items()}
        self._note_hopeless(case, medians)
        result: dict[str, Any] = {
            "case": list(case),
            "voxels": len(arrays["coords"]),
            "seconds": medians,
            "rounds": {name: len(own) for name, own in seconds.items()},
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
            result["sgemm"] = {name: statistics.median(own) for name, own in rates.items()}
            result["rate"] = 2 * m * k * n / min(result["sgemm"].values())
            flops = 2 * result["pairs"] * case.channels**2 * case.work_factor
            result["lower_bound"] = flops / result["rate"]
        return result

    def _take_turns(
        self, players: dict[str, tuple[Member, str]], absent: dict[str, str], layered: bool
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Seconds of all rounds, of the contestants and of the dense products.

        Those that fail on the way come to ``absent``.
        """
        seconds: dict[str, list[float]] = {name: [] for name in players}
        rates: dict[str, list[float]] = {}
        for number in range(self._rounds):
            # Backwards in every other round, so that no library always follows the same one.
            for name in list(players)[:: 1 if number % 2 else -1]:
                if name in seconds and number < self._turns(name, seconds):
                    member, own = players[name]
                    try:
                        answer = member.ask("time", slot="case", name=own)
                        seconds[name].append(answer["seconds"])
                    except WorkerFailed as failure:
                        absent[name] = str(failure)
                        del seconds[name]
            if layered:
                for library, name in _SGEMM.items():
                    if library in self._crew:
                        with contextlib.suppress(WorkerFailed):
                            answer = self._crew[library].ask("time", slot="sgemm", name="sgemm")
                            rates.setdefault(name, []).append(answer["seconds"])
        return seconds, rates

    def _turns(self, name: str, seconds: dict[str, list[float]]) -> int:
        """In how many rounds a contestant runs, judged by its first."""
        if not all(seconds.values()):
            return 1
        mine, fastest = seconds[name][0], min(own[0] for own in seconds.values())
        if mine < SLOW * fastest:
            return self._rounds
        return 1 if mine > LONG else FEW_ROUNDS

    def _checked(self, member: Member, name: str) -> dict[str, Any]:
        """The errors of a contestant against voxax.

        Raises:
          WorkerFailed: it computes something else.
        """
        path = str(self._reference)
        errors = member.ask("check", slot="case", name=name, path=path, tolerance=TOLERANCE)
        last = errors["error"] if errors["exact_error"] is None else errors["exact_error"]
        if not last <= TOLERANCE:
            raise WorkerFailed(f"its result differs from voxax's by {last:.1e} of the largest")
        return errors

    def _spared(self, library: str, case: Case) -> dict[str, str]:
        """Contestants of a library that are left out, and why."""
        key = (case.workload, case.operation, case.mode)
        found = {known[3]: why for known, why in self._behind.items() if known[:3] == key}
        own = {name: why for name, why in found.items() if name.split()[0] == library}
        return {} if self._everyone else {name.split()[-1]: why for name, why in own.items()}

    def _note_hopeless(self, case: Case, medians: dict[str, float]) -> None:
        fastest = min(medians.values(), default=0.0)
        for name, own in medians.items():
            library = [s for other, s in medians.items() if other.split()[0] == name.split()[0]]
            if name not in _ALWAYS and own > _HOPELESS * fastest and own > min(library):
                reason = f"{own / fastest:.0f} times the fastest with {case.channels} channels"
                self._behind[case.workload, case.operation, case.mode, name] = reason


_SGEMM = {"voxax": "XLA", "torch": "PyTorch", "numpy": "NumPy"}


def _full(library: str, name: str) -> str:
    return library if name == library or library.startswith("voxax") else f"{library} {name}"
