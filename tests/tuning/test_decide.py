"""The tuner's decision as a table: candidates x cache x policy -> choice.

``decide`` is pure: nothing here has a device, a clock or a file.
"""

import dataclasses

import pytest
from cache_entries import entry, measured
from fake_algorithms import PROBLEM, fake

from voxax.errors import AlgorithmError
from voxax.kernels import lookup
from voxax.tuning.decide import Policy, decide
from voxax.tuning.space import Candidate, Space, reference_of

# Two algorithms, one with two forms; the reference, which needs no check; none is registered.
FIRST, SECOND = fake("first"), fake("second", spaces=((("block", 1),), (("block", 2),)))
HEURISTICS = (Candidate(FIRST, ()), Candidate(SECOND, (("block", 1),)))
OTHER_FORM = Candidate(SECOND, (("block", 2),))
REFERENCE = reference_of(PROBLEM)
REFUSED = (("third", "runs on other hardware"),)


def space(candidates, heuristics):
    return Space(PROBLEM, candidates, heuristics, REFUSED, REFERENCE)


NONE = space((), ())
ONE = space(HEURISTICS[:1], HEURISTICS[:1])
SEVERAL = space((*HEURISTICS, OTHER_FORM), HEURISTICS)
WITH_REFERENCE = space((REFERENCE, *HEURISTICS), (REFERENCE, *HEURISTICS))

ON = Policy("on", has_device=True)
ABSENT = Policy("on", has_device=False)
CACHED = Policy("cached", has_device=True)
OFF = Policy("off", has_device=True)
RULED = dataclasses.replace(CACHED, ruled=True)
MEASURED = dataclasses.replace(ON, measured=True)
EVERY_POLICY = (ON, ABSENT, CACHED, OFF)


def times(*seconds, source="measured", verdict="ok"):
    """An entry with the time of each candidate of SEVERAL; None leaves one out."""
    known = [
        measured(c.kernel.name, s, verdict, 1, **dict(c.parameters))
        for c, s in zip(SEVERAL.candidates, seconds, strict=False)
        if s is not None
    ]
    return dataclasses.replace(entry(*known), source=source)


COMPLETE = times(3e-3, 2e-3, 1e-3)
SHIPPED = times(3e-3, 2e-3, 1e-3, source="shipped")
PREDICTED = times(3e-3, 2e-3, 1e-3, source="predicted")
PARTIAL = times(3e-3, None, 1e-3)
# The heuristic, of other kernels: the rest of such a prediction says nothing.
# What a pin of the second algorithm measured.
WITHOUT_DEFAULT = times(None, 2e-3, 1e-3)
FOREIGN = times(None, 2e-3, 1e-3, source="predicted")
NONE_RAN = entry(
    *(
        measured(c.kernel.name, None, "rejected", 1, **dict(c.parameters))
        for c in SEVERAL.candidates
    )
)
GIVEN_UP = times(3e-3, 2e-3, 1e-3, verdict="slow")

# space, entry, policy -> candidate, source, seconds, pending
DEFAULT, BEST = "first", "second(block=2)"
TABLE = [
    (ONE, COMPLETE, ON, DEFAULT, "pinned", None, "check"),
    (ONE, COMPLETE, CACHED, DEFAULT, "pinned", None, "check"),
    (ONE, None, ABSENT, DEFAULT, "pinned", None, None),
    (ONE, None, OFF, DEFAULT, "pinned", None, None),
    (SEVERAL, None, ON, DEFAULT, "predicted", None, "measure"),
    (SEVERAL, None, CACHED, DEFAULT, "predicted", None, "check"),
    (SEVERAL, None, ABSENT, DEFAULT, "predicted", None, None),
    (SEVERAL, None, OFF, DEFAULT, "predicted", None, None),
    (SEVERAL, COMPLETE, ON, BEST, "cached", 1e-3, None),
    (SEVERAL, COMPLETE, CACHED, BEST, "cached", 1e-3, None),
    (SEVERAL, COMPLETE, ABSENT, BEST, "cached", 1e-3, None),
    (SEVERAL, COMPLETE, OFF, DEFAULT, "predicted", None, None),
    (SEVERAL, PARTIAL, ON, BEST, "predicted", None, "measure"),
    (SEVERAL, PARTIAL, CACHED, BEST, "cached", 1e-3, None),
    (SEVERAL, WITHOUT_DEFAULT, CACHED, BEST, "cached", 1e-3, None),
    (SEVERAL, WITHOUT_DEFAULT, RULED, DEFAULT, "predicted", None, "check"),
    (SEVERAL, PARTIAL, RULED, BEST, "cached", 1e-3, None),
    (SEVERAL, COMPLETE, RULED, BEST, "cached", 1e-3, None),
    (SEVERAL, GIVEN_UP, ON, BEST, "predicted", None, "measure"),
    (SEVERAL, GIVEN_UP, CACHED, BEST, "cached", 1e-3, None),
    (SEVERAL, NONE_RAN, ON, DEFAULT, "predicted", None, "measure"),
    (SEVERAL, NONE_RAN, CACHED, DEFAULT, "predicted", None, "check"),
    (SEVERAL, SHIPPED, ON, BEST, "shipped", 1e-3, "check"),
    (SEVERAL, SHIPPED, CACHED, BEST, "shipped", 1e-3, "check"),
    (SEVERAL, SHIPPED, ABSENT, BEST, "shipped", 1e-3, None),
    (SEVERAL, PREDICTED, ON, BEST, "predicted", None, "measure"),
    (SEVERAL, PREDICTED, CACHED, BEST, "predicted", None, "check"),
    (SEVERAL, PREDICTED, ABSENT, BEST, "predicted", None, None),
    (SEVERAL, FOREIGN, ON, DEFAULT, "predicted", None, "measure"),
    (SEVERAL, FOREIGN, CACHED, DEFAULT, "predicted", None, "check"),
    (SEVERAL, COMPLETE, MEASURED, BEST, "measured", 1e-3, None),
    (SEVERAL, PARTIAL, MEASURED, BEST, "measured", 1e-3, None),
    (SEVERAL, GIVEN_UP, MEASURED, BEST, "measured", 1e-3, None),
    (WITH_REFERENCE, None, CACHED, str(REFERENCE), "predicted", None, None),
]


def test_what_no_device_has_run_comes_last_where_nothing_is_compared():
    unproven = Candidate(dataclasses.replace(FIRST, unproven=True), ())
    both, one = (unproven, HEURISTICS[1]), (unproven,)
    for policy in (OFF, ABSENT):
        assert str(decide(space(both, both), None, policy)) == "second(block=1)"
        assert str(decide(space(one, one), None, policy)) == "first"
    choice = decide(space(both, both), None, CACHED)
    assert (str(choice), choice.pending) == ("first", "check")


@pytest.mark.parametrize(
    ("space", "known", "policy", "candidate", "source", "seconds", "pending"), TABLE
)
def test_table(space, known, policy, candidate, source, seconds, pending):
    choice = decide(space, known, policy)
    assert (str(choice), choice.source) == (candidate, source)
    assert (choice.seconds, choice.pending) == (seconds, pending)
    assert (choice.problem, choice.refused) == (PROBLEM, REFUSED)
    assert decide(space, known, policy) == choice


@pytest.mark.parametrize("policy", EVERY_POLICY)
def test_without_a_candidate_it_is_an_error(policy):
    with pytest.raises(AlgorithmError, match="third: runs on other hardware"):
        decide(NONE, COMPLETE, policy)


def rejecting(policy, *candidates):
    rejected = {candidate.identity: "returned zeros only" for candidate in candidates}
    return dataclasses.replace(policy, rejected=rejected)


def test_a_rejected_pin_is_an_error():
    with pytest.raises(AlgorithmError, match=r"third: .*; first: returned zeros only"):
        decide(ONE, None, rejecting(ON, HEURISTICS[0]))


@pytest.mark.parametrize("known", [SHIPPED, PREDICTED])
def test_rejected_times_count_as_none(known):
    assert decide(SEVERAL, known, rejecting(ON, OTHER_FORM)).pending == "measure"
    choice = decide(SEVERAL, known, rejecting(CACHED, OTHER_FORM))
    assert (str(choice), choice.source, choice.entry) == (DEFAULT, "predicted", None)
    assert choice.refused == REFUSED, "the default was not rejected"


def test_times_of_this_device_need_no_check():
    choice = decide(SEVERAL, COMPLETE, rejecting(CACHED, OTHER_FORM))
    assert (str(choice), choice.source) == (BEST, "cached")


def test_after_a_rejected_default_come_the_others():
    order = [HEURISTICS[0], HEURISTICS[1], OTHER_FORM]
    for number, candidate in enumerate(order):
        choice = decide(SEVERAL, None, rejecting(CACHED, *order[:number]))
        assert str(choice) == str(candidate)
        reasons = [(str(c), "returned zeros only") for c in order[:number]]
        assert choice.refused == (*REFUSED, *reasons)
    with pytest.raises(AlgorithmError, match=r"first: returned.*block=1.*block=2.*zeros only"):
        decide(SEVERAL, None, rejecting(CACHED, *order))


def test_the_reference_comes_before_other_forms():
    space = dataclasses.replace(SEVERAL, candidates=(*SEVERAL.candidates, REFERENCE))
    choice = decide(space, None, rejecting(CACHED, *HEURISTICS))
    assert (str(choice), choice.pending) == (str(REFERENCE), None)
    assert REFERENCE.kernel in lookup("explicit_gemm")


def test_a_measurement_in_which_none_ran_is_an_error():
    with pytest.raises(AlgorithmError, match=r"third: .*; first: rejected, why; second\(block=1\)"):
        decide(SEVERAL, NONE_RAN, MEASURED)
