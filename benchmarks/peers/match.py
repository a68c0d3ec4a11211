"""One case: every contestant prepared, checked, and timed in turns."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from cases import OPERATIONS, Case
from contestant import SGEMM_SHAPE
from crew import Member, WorkerFailed

TOLERANCE = 1e-4
# Those that take so many times the fastest run in a few rounds only.
_SLOW, _FEW_ROUNDS = 3, 3
# Those with so many seconds a call run in one round: on top of the calls of the check.
_VERY_SLOW = 3.0


def play(
    case: Case,
    arrays: dict[str, np.ndarray],
    crew: dict[str, Member],
    rounds: int,
    folder: Path,
) -> dict[str, Any]:
    """Prepare, check against voxax, and time.

    Args:
      case, arrays: what to run.
      crew: worker processes by library, voxax first.
      rounds: at most.
      folder: for the files that the processes share.

    Returns:
      The case with its times in seconds, ready for JSON.
    """
    problem, reference = folder / "problem.npz", folder / "reference.npz"
    np.savez(problem, **arrays)
    players: dict[str, tuple[Member, str]] = {}
    absent: dict[str, str] = {}
    checks: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float]] = {}
    for library, member in crew.items():
        try:
            made = member.ask("prepare", slot="case", case=list(case), problem=str(problem))
        except WorkerFailed as failure:
            absent[library] = str(failure)
            continue
        for name, reason in made["absent"].items():
            full = (
                library if name == library or library.startswith("voxax") else f"{library} {name}"
            )
            if reason is not None:
                absent[full] = reason
                continue
            try:
                if not reference.exists():
                    member.ask("save", slot="case", name=name, path=str(reference))
                else:
                    checks[full] = _checked(member, name, reference)
                seconds[full] = [member.ask("time", slot="case", name=name)["seconds"]]
            except WorkerFailed as failure:
                absent[full] = str(failure)
                continue
            players[full] = (member, name)
    reference.unlink(missing_ok=True)
    rates: dict[str, list[float]] = {}
    first = {name: own[0] for name, own in seconds.items()}
    fastest = min(first.values(), default=0.0)
    with_floor = OPERATIONS[case.operation].layered
    for number in range(rounds):
        # Backwards in every other round: nobody always follows the same other one.
        for name in list(players)[:: 1 if number % 2 else -1]:
            slow = first[name] > _SLOW * fastest
            few = 1 if first[name] > _VERY_SLOW and slow else _FEW_ROUNDS if slow else rounds
            if number < few:
                member, own = players[name]
                seconds[name].append(member.ask("time", slot="case", name=own)["seconds"])
        if with_floor:
            _time_sgemm(crew, rates)
    for member in crew.values():
        member.ask("drop", slot="case")
    result: dict[str, Any] = {
        "case": list(case),
        "voxels": len(arrays["coords"]),
        # The first call came right after compiling.
        "seconds": {name: statistics.median(own[1:]) for name, own in seconds.items()},
        "rounds": {name: len(own) - 1 for name, own in seconds.items()},
        "checks": checks,
        "absent": absent,
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    if "pairs" in arrays:
        result["pairs"] = int(arrays["pairs"])
    if with_floor:
        m, k, n = SGEMM_SHAPE
        sgemm = {name: statistics.median(own) for name, own in rates.items()}
        result["rate"] = 2 * m * k * n / min(sgemm.values())
        result["sgemm"] = sgemm
        flops = 2 * result["pairs"] * case.channels**2 * case.work_factor
        result["floor"] = flops / result["rate"]
    return result


def _checked(member: Member, name: str, reference: Path) -> dict[str, Any]:
    """The errors of a contestant against voxax.

    Raises:
      WorkerFailed: it computes something else.
    """
    errors = member.ask("check", slot="case", name=name, path=str(reference), tolerance=TOLERANCE)
    last = errors["error"] if errors["exact_error"] is None else errors["exact_error"]
    if not last <= TOLERANCE:
        raise WorkerFailed(f"its result differs from voxax's by {last:.1e} of the largest entry")
    return errors


def _time_sgemm(crew: dict[str, Member], rates: dict[str, list[float]]) -> None:
    names = {"voxax": "XLA", "torch": "PyTorch", "numpy": "NumPy"}
    for library, name in names.items():
        if library in crew:
            answer = crew[library].ask("time", slot="sgemm", name="sgemm")
            rates.setdefault(name, []).append(answer["seconds"])
