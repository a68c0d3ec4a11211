"""Entries for tests of the tuning cache."""

from voxax.tuning.entry import Entry, Measured

DEVICE = "cpu-test-2-cores"
NOON = "2026-01-01T12:00:00+00:00"


def measured(algorithm="explicit_gemm", seconds=1e-3, verdict="ok", revision=1, **parameters):
    pairs = tuple(sorted(parameters.items()))
    return Measured(algorithm, pairs, revision, seconds, verdict, "" if verdict == "ok" else "why")


def entry(*candidates, when=NOON, source="measured", **more):
    candidates = candidates or (measured(),)
    return Entry(tuple(candidates), "caller's map", source, when, 1.5, **more)
