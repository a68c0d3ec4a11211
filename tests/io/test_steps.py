"""Check the scenes of each step, for any number of processes, and pipelines over them."""

import pickle

import numpy as np
import pytest

from voxax.errors import InputError, MissingExtraError
from voxax.io.pipeline import GrainPipeline, Pipeline
from voxax.io.steps import Steps


def noted(scenes, seeds):
    return tuple(zip(scenes, seeds, strict=True))


def doubled(item):
    return [(name, 2 * seed) for name, seed in item]


def refused(item):
    raise InputError(f"no {item[0][0]} here")


def taken(steps):
    return [item for step in steps for item in step]


NAMES = [f"scan {i}" for i in range(7)]


def test_every_scene_once_in_each_round():
    steps = Steps(NAMES, noted, 3, 14, seed=5)
    names, seeds = zip(*taken(steps), strict=True)
    rounds = [names[i : i + 7] for i in range(0, 42, 7)]
    assert all(sorted(r) == NAMES for r in rounds)
    assert len(set(rounds)) > 1
    assert len(set(seeds)) == 42
    other = Steps(NAMES, noted, 3, 14, seed=6)
    assert not set(seeds) & {seed for _, seed in taken(other)}


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_each_step(processes):
    whole = Steps(NAMES, noted, 4, 9, seed=2)
    parts = [Steps(NAMES, noted, 4, 9, 2, 0, p, processes) for p in range(processes)]
    for step, items in enumerate(whole):
        shares = [part[step] for part in parts]
        assert all(shares)
        assert sorted(item for share in shares for item in share) == sorted(items)


def test_going_on_takes_what_would_have_been_taken():
    whole = Steps(NAMES, noted, 2, 12, seed=1)
    rest = Steps(NAMES, noted, 2, 12, seed=1, begin=5)
    assert list(rest) == list(whole)[5:]
    assert rest[-1] == whole[-1]
    assert rest[1:3] == list(whole)[6:8]
    assert list(pickle.loads(pickle.dumps(rest))) == list(rest)
    assert len(Steps(NAMES, noted, 2, 12, begin=13)) == 0
    with pytest.raises(IndexError):
        rest[7]


def test_mistakes():
    with pytest.raises(InputError, match="at least one scene"):
        Steps([], noted, 1, 1)
    with pytest.raises(InputError, match="process 2 of 2: they are counted from 0, to 1"):
        Steps(NAMES, noted, 2, 1, process=2, processes=2)
    with pytest.raises(InputError, match="batch size of 2 leaves some of 3 processes"):
        Steps(NAMES, noted, 2, 1, processes=3)


def test_a_pipeline_over_steps():
    steps = Steps(NAMES, noted, 2, 5)
    with Pipeline(doubled, workers=0) as pipeline:
        assert list(pipeline(steps)) == [doubled(item) for item in steps]


def test_without_grain_an_error_says_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "grain", None)
    with pytest.raises(MissingExtraError, match=r'pip install "voxax\[grain\]", or use voxax'):
        GrainPipeline(doubled)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of grain's own
@pytest.mark.parametrize("workers", [2, 0])
def test_grain_gives_what_the_plain_pipeline_gives(workers):
    pytest.importorskip("grain", reason="grain is optional")
    steps = Steps(NAMES, noted, 2, 9, begin=2)
    with GrainPipeline(doubled, workers=workers) as pipeline:
        assert [list(x) for x in pipeline(steps)] == [doubled(item) for item in steps]
    if workers:  # each pass starts them anew, which takes seconds
        return
    assert list(pipeline(iter([]))) == []
    # Left before its end.
    np.testing.assert_array_equal(next(iter(pipeline(steps, prefetch=2))), doubled(steps[0]))
    with pytest.raises(InputError, match=r"no scan . here"):
        list(GrainPipeline(refused, workers=0)(steps))
