"""A window kernel counted a second time, by code that shares nothing with the first."""

import pytest
from benchmarks.tpu import second_count

from problems import needs_libtpu
from voxax.predict import count


@pytest.mark.tpu_compile
@needs_libtpu
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_both_counts_agree(chip):
    """One executes the bundles with a map's scalars, the other reads loops off the listing."""
    visits = second_count.VISITS
    program = count(chip, "benchmarks.tpu.program:product", rows=second_count.ROWS)
    read = program.kernel().cost(program.chip, visits + 1).cycles
    assert second_count.count(chip, visits) == pytest.approx(read, rel=0.02)
