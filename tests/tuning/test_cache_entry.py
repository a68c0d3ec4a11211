"""Check what an entry refuses, and how entries merge."""

import dataclasses
import json

import pytest
from cache_entries import entry, measured
from hypothesis import given, settings
from hypothesis import strategies as st

from voxax.tuning import cache
from voxax.tuning.entry import Entry, Measured, jaxlib_version, utc_now

GOOD = entry(measured(fwd_block_size=16, layout="rows"), measured("x", None, "failed")).to_json()

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars | st.just(10**400) | st.just("\ud800\x1b[31m"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(raw=anything)
def test_anything_is_refused_with_a_value_error(raw):
    for read in (Entry.from_json, Measured.from_json):
        with pytest.raises(ValueError, match=r"."):
            read(raw)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), raw=anything)
def test_a_good_entry_with_anything_inside(data, raw):
    changed = json.loads(json.dumps(GOOD))
    target = data.draw(st.sampled_from([changed, *changed["measured"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = raw
    try:
        made = Entry.from_json(changed)
    except ValueError:
        return
    # What was taken is well-formed: it survives the way through a file.
    assert Entry.from_json(json.loads(json.dumps(made.to_json(), allow_nan=False))) == made
    cache.entries_of({"key": [changed]})


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": -1e-3},
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"seconds": 10**400},
        {"seconds": True},
        {"seconds": "1"},
        {"seconds": None},
        {"verdict": "best"},
        {"verdict": ["ok"]},
        {"revision": -1},
        {"revision": 1.0},
        {"revision": 10**5000},
        {"algorithm": ""},
        {"algorithm": "a" * 65},
        {"algorithm": "\x1b[2J"},
        {"parameters": {"a": 1.5}},
        {"parameters": {"a": True}},
        {"parameters": {"a": 1 << 54}},
        {"parameters": {"a": "\n"}},
        {"parameters": {str(i): i for i in range(33)}},
        {"parameters": []},
        {"reason": 3},
        {"extra": 1},
    ],
)
def test_ill_formed_measurements(changes):
    with pytest.raises(ValueError, match=r".") as raised:
        Measured.from_json({**measured().to_json(), **changes})
    assert len(str(raised.value)) < 300
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"measured": {}},
        {"measured": [1]},
        {"measured": [measured().to_json()] * 1001},
        {"sample": None},
        {"source": "hearsay"},
        {"when": "yesterday"},
        {"seconds_spent": -1},
        {"seconds_spent": float("nan")},
        {"jaxlib": ""},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_ill_formed_entries(changes):
    with pytest.raises(ValueError, match=r"."):
        Entry.from_json({**entry().to_json(), **changes})


def test_unsorted_parameters_are_a_mistake():
    with pytest.raises(ValueError, match="not sorted"):
        Measured("a", (("b", 1), ("a", 2)), 1, 1.0, "ok")


def test_to_and_from_json():
    assert Entry.from_json(json.loads(json.dumps(GOOD))).to_json() == GOOD
    assert entry(when=utc_now()).jaxlib == jaxlib_version()


def test_reason_becomes_one_printable_line():
    reason = Measured(
        "a", (), 1, None, "failed", "Error:\n\x1b[31m  two\tlines " + "x" * 9999
    ).reason
    assert reason.startswith("Error: [31m two lines xxx")
    assert len(reason) == 500


def test_merged_takes_the_newer():
    old = entry(measured("a", 1.0), measured("b", 2.0))
    new = entry(measured("b", 3.0), measured("a", 5.0, revision=2), when="2026-02-01T00:00:00Z")
    both = old.merged(new)
    assert {(c.algorithm, c.revision): c.seconds for c in both.measured} == {
        ("a", 1): 1.0,
        ("b", 1): 3.0,
        ("a", 2): 5.0,
    }
    assert both.when == new.when
    assert both.seconds_spent == 3.0
    # Once more changes nothing.
    assert both.merged(new) == both
    assert both.merged(both) == both
    assert [c.seconds for c in both.ranked()] == [3.0, 5.0]


def test_merged_keeps_what_the_newer_did_not_reach():
    old = entry(measured("a", 1.0), measured("b", 2.0))
    new = entry(measured("a", 1.5), measured("b", None, "skipped"), measured("c", None, "skipped"))
    times = {c.algorithm: (c.seconds, c.verdict) for c in old.merged(new).measured}
    assert times == {"a": (1.5, "ok"), "b": (2.0, "ok"), "c": (None, "skipped")}


def test_merged_never_mixes_jaxlibs():
    old = entry(measured("a"), jaxlib="0.0.1")
    new = entry(measured("b"))
    assert old.merged(new) == new


def test_merged_never_mixes_predicted_and_measured():
    guess = entry(measured("a"), measured("b"), source="predicted")
    real = entry(measured("a", 3.0))
    assert guess.merged(real) == real.merged(guess) == real
    better = entry(measured("b", 2.0), source="predicted")
    assert {c.algorithm: c.seconds for c in guess.merged(better).measured}["b"] == 2.0


def test_merged_is_bounded():
    many = entry(*(measured(f"a{i}") for i in range(1000)))
    more = many.merged(entry(measured("b")))
    assert len(more.measured) == 1000
    assert more.measured[-1].algorithm == "b"


def test_ranked_leaves_out_what_may_not_be_chosen():
    mixed = entry(
        measured("a", 3.0),
        measured("b", 1.0, "rejected"),
        measured("c", 2.0, "slow"),
        measured("a", 2.5, size=4),
    )
    assert [c.seconds for c in mixed.ranked()] == [2.5, 3.0]
    assert dataclasses.replace(mixed, measured=()).ranked() == ()
