"""Predictions against measurements that others published, each within its band."""

import pytest
from benchmarks.tpu.published import CASES, predicted, table_of

from voxax import _compat


def test_bands_hold_a_measurement_of_every_kind():
    assert len(CASES) >= 8
    assert {case.chip for case in CASES} >= {"v4", "v5e"}
    for case in CASES:
        assert case.source.startswith("https://")
        assert 0.8 < case.band[0] < 1 < case.band[1] <= 1.35


@pytest.mark.tpu_compile
@pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")
def test_published_measurements():
    ratios = [
        case.measured / seconds for case, seconds in zip(CASES, predicted(CASES), strict=True)
    ]
    off = [
        f"{case.what}: {ratio:.2f}"
        for case, ratio in zip(CASES, ratios, strict=True)
        if not case.band[0] <= ratio <= case.band[1]
    ]
    assert not off


def test_the_table_names_sources():
    row = vars(CASES[0]) | {"predicted": 2 * CASES[0].measured}
    assert "| 0.50 |" in table_of([row])
    assert CASES[0].source in table_of([row])
