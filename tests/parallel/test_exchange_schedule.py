"""Every message of a halo exchange travels in one round, and rounds are permutations."""

from hypothesis import given, settings
from hypothesis import strategies as st

from voxax.parallel.scene_split import matched, ring

SHARDS = 9
MESSAGES = st.dictionaries(
    st.tuples(st.integers(0, SHARDS - 1), st.integers(0, SHARDS - 1)).filter(
        lambda p: p[0] != p[1]
    ),
    st.integers(1, 1000),
    max_size=30,
)


@settings(deadline=None)
@given(MESSAGES)
def test_schedules_carry_all_messages(messages):
    for schedule in (matched(messages), ring(messages, SHARDS)):
        rows_of = [(pair, exchange.rows) for exchange in schedule for pair in exchange.pairs]
        assert len(dict(rows_of)) == len(rows_of)
        assert all(dict(rows_of)[pair] >= rows for pair, rows in messages.items())
        for exchange in schedule:
            for ends in zip(*exchange.pairs, strict=True):
                assert len(set(ends)) == len(ends)


@settings(deadline=None)
@given(MESSAGES)
def test_matched_rounds_are_few_and_sent_in_order_of_size(messages):
    schedule = matched(messages)
    busiest = max(
        (sum(pair[end] == shard for pair in messages) for end in (0, 1) for shard in range(SHARDS)),
        default=0,
    )
    assert len(schedule) <= max(2 * busiest - 1, 0)
    assert [exchange.rows for exchange in schedule] == sorted(
        (exchange.rows for exchange in schedule), reverse=True
    )
    assert {pair for exchange in schedule for pair in exchange.pairs} == set(messages)


def test_neighbors_along_the_ring_always_have_a_round():
    assert [exchange.pairs for exchange in ring({}, 3)] == [
        ((0, 1), (1, 2), (2, 0)),
        ((0, 2), (1, 0), (2, 1)),
    ]
    assert ring({}, 1) == ()
    assert ring({(0, 1): 5, (1, 0): 7}, 2)[0].rows == 7
