"""Predictions against measurements that others published, each within its band, and own ones."""

import dataclasses
import os
from pathlib import Path

import pytest
from benchmarks.report import RESULTS
from benchmarks.tpu.device_results import BAND, measurements
from benchmarks.tpu.published import CASES, lines_of, predicted

from problems import needs_libtpu

VARIABLE = "VOXAX_TEST_MEASURED"


def test_bands_hold_a_measurement_of_every_kind():
    assert len(CASES) >= 8
    assert {case.chip for case in CASES} >= {"v4", "v5e"}
    for case in CASES:
        assert case.source.startswith("https://")
        assert 0.8 < case.band[0] < 1 < case.band[1] <= 1.35
    bands = [case.band for case in CASES]
    assert (min(low for low, _ in bands), max(high for _, high in bands)) == BAND


def outside(cases):
    """Cases whose measured time is outside of the band around the predicted one."""
    ratios = [
        case.measured / seconds for case, seconds in zip(cases, predicted(cases), strict=True)
    ]
    return [
        f"{case.what}: {ratio:.2f}"
        for case, ratio in zip(cases, ratios, strict=True)
        if not case.band[0] <= ratio <= case.band[1]
    ]


@pytest.mark.tpu_compile
@needs_libtpu
def test_published_measurements():
    assert not outside(CASES)


@pytest.mark.tpu_compile
@needs_libtpu
def test_a_measurement_outside_of_its_band_is_found():
    case = CASES[0]
    assert len(outside([dataclasses.replace(case, measured=2 * case.measured)])) == 1


@pytest.fixture
def measured():
    """Measurements of benchmarks/tpu/device_suite.py: the file named, else the committed one."""
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else RESULTS / "tpu_device.json"
    if not given and not path.exists():
        pytest.skip(f"nothing was measured: there is no {path}, and {VARIABLE} names no file")
    found, others = measurements(path)
    if not found:
        pytest.skip(f"none of the {len(others)} rows of {path} is a measurement of this code")
    return found


@pytest.mark.tpu_compile
@needs_libtpu
def test_own_measurements(measured):
    assert not outside(measured)


def test_the_table_names_sources():
    row = vars(CASES[0]) | {"predicted": 2 * CASES[0].measured}
    assert "| 0.50 |" in lines_of([row])[-1]
    assert CASES[0].source in lines_of([row])[-1]
