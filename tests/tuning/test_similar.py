"""Candidates that lost clearly in similar problems need not be tried."""

import pytest
from cache_entries import DEVICE, entry, measured
from fake_algorithms import fake, make_problem, registered

from voxax.hardware import HardwareInfo
from voxax.tuning.cache import TuningCache
from voxax.tuning.decide import hopeless
from voxax.tuning.entry import key_of
from voxax.tuning.space import space_of

PROBLEM = make_problem()
SIMILAR = [make_problem(rows=rows) for rows in (100, 1000, 10_000)]
NAMES = ("swift", "slow", "other")
CPU = HardwareInfo(platform="cpu", device_kind="cpu")


@pytest.fixture
def cache(tmp_path):
    return TuningCache(tmp_path, DEVICE)


def skipped(cache, problem=PROBLEM):
    """Names of the hopeless."""
    with registered(*map(fake, NAMES)):
        return {name for name, *_ in hopeless(space_of(problem, NAMES, CPU), cache.items())}


def remember(cache, problems, verdict="ok", **seconds):
    for problem in problems:
        known = [measured(n, s, "ok" if n == "swift" else verdict) for n, s in seconds.items()]
        cache.put(key_of(problem), entry(*known))


def test_three_clear_losses_are_enough(cache):
    remember(cache, SIMILAR[:2], swift=1e-3, slow=3e-3, other=1.9e-3)
    assert skipped(cache) == set()
    remember(cache, SIMILAR[2:], swift=1e-3, slow=2.1e-3, other=1.9e-3)
    assert skipped(cache) == {"slow"}
    with registered(*map(fake, NAMES)):
        reasons = hopeless(space_of(PROBLEM, NAMES, CPU), cache.items())
    assert reasons == {("slow", (), 1): "at least 2 times the best in 3 similar problems"}


def test_what_was_given_up_early_lost(cache):
    remember(cache, SIMILAR, "slow", swift=1e-3, slow=2.1e-3)
    assert skipped(cache) == {"slow"}


@pytest.mark.parametrize("verdict", ["failed", "rejected", "skipped"])
def test_what_has_no_time_did_not_lose(cache, verdict):
    for problem in SIMILAR:
        unknown = measured("slow", None, verdict)
        cache.put(key_of(problem), entry(measured("swift", 1e-3), unknown))
    assert skipped(cache) == set()


def test_what_was_predicted_is_no_loss(cache):
    for problem in SIMILAR:
        known = measured("swift", 1e-3), measured("slow", 9e-3)
        cache.put(key_of(problem), entry(*known, source="predicted"))
    assert skipped(cache) == set()


def test_one_good_result_is_hope(cache):
    remember(cache, SIMILAR, swift=1e-3, slow=9e-3)
    remember(cache, [make_problem(rows=10**6)], swift=1e-3, slow=1.5e-3)
    assert skipped(cache) == set()


def test_only_similar_problems_count(cache):
    remember(cache, SIMILAR, swift=1e-3, slow=9e-3)
    for change in (
        {"product": "wgrad"},
        {"kind": "depthwise"},
        {"dtype": "bfloat16"},
        {"precision": "default"},
        {"num_offsets": 2},
    ):
        assert skipped(cache, make_problem(**change)) == set()
    assert skipped(cache, make_problem(in_channels=64, level=(8, 8, 8))) == {"slow"}


def test_a_problem_is_not_similar_to_itself(cache):
    remember(cache, SIMILAR, swift=1e-3, slow=9e-3)
    remember(cache, [PROBLEM], swift=9e-3, slow=1e-3)
    assert skipped(cache) == {"slow"}
    assert skipped(cache, SIMILAR[0]) == set(), "it won in one of the others"


def test_another_revision_has_not_lost_yet(cache):
    remember(cache, SIMILAR, swift=1e-3, slow=9e-3)
    with registered(fake("swift"), fake("slow", revision=2)):
        space = space_of(PROBLEM, ("swift", "slow"), CPU)
        assert hopeless(space, cache.items()) == {}


def test_something_is_always_left(cache):
    remember(cache, SIMILAR, swift=1e-3, slow=9e-3, other=9e-3)
    assert skipped(cache) == {"slow", "other"}
    with registered(*map(fake, NAMES)):
        space = space_of(PROBLEM, ("slow", "other"), CPU)
        assert hopeless(space, cache.items()) == {}


def test_an_empty_cache_says_nothing(cache):
    assert skipped(cache) == set()
