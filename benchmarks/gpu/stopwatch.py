"""Time a call: in a row with others, and alone."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.turns import seconds_of

# Calls that follow each other hide what a launch costs; they take about so long together.
_BATCH_SECONDS = 0.05
REHEARSAL = "VOXAX_GPU_REHEARSAL" in os.environ
"""On a CPU: no time counts."""
_ROUNDS = 1 if REHEARSAL else 7
_MOST_CALLS = 200


def timed(run: Callable[[], Any], wait: Callable[[Any], Any]) -> dict[str, float]:
    """``seconds`` of a call among many (the best round) and ``latency`` of one alone (the median).

    Args:
      run: starts a call; it need not wait for the result.
      wait: returns when the result, and all before it, is there.
    """
    for _ in range(1 if REHEARSAL else 3):
        wait(run())
    alone = [seconds_of(lambda: wait(run())) for _ in range(_ROUNDS)]
    latency = statistics.median(alone)
    calls = max(1, min(_MOST_CALLS, round(_BATCH_SECONDS / max(latency, 1e-6))))

    def batch() -> None:
        for _ in range(calls):
            result = run()
        wait(result)

    best = min(seconds_of(batch) for _ in range(_ROUNDS)) / calls
    return {"seconds": best, "latency": latency}
