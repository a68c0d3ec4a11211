"""The counter against what is known: a plain product on the real TPU compiler."""

import pytest

from voxax import _compat
from voxax.errors import InputError, MissingExtraError, VoxaxError
from voxax.predict import chip_named, count

needs_libtpu = pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")


@pytest.mark.tpu_compile
@needs_libtpu
def test_a_plain_product_takes_what_the_matrix_units_take():
    """Within 5 % of the roofline."""
    program = count("v5e", "voxax.predict.cycles:matrix_product")
    chip = program.chip
    lower_bound = 2 * 4096**3 / chip.peak
    (cost,) = [c for c in program.costs() if c.cycles > 1000]
    assert lower_bound <= program.seconds() <= 1.05 * lower_bound
    assert cost.bound == "MXU"
    assert cost.bytes == 2 * 2 * 4096**2  # the third matrix is copied to VMEM beforehand
    assert program.copied == 2 * 4096**2
    # The inferred clock: each unit is busy for its part of the product.
    assert cost.busy["MXU"] / chip.clock == pytest.approx(lower_bound, rel=0.005)


@pytest.mark.tpu_compile
@needs_libtpu
def test_what_does_not_compile_says_why():
    with pytest.raises(VoxaxError, match="TypeError"):
        count("v5e", "voxax.predict.cycles:matrix_product", no_such=1)


def test_chips_from_the_table():
    for name, clock in {"v4": 1.05, "v5e": 1.50, "v5p": 1.75, "v6e": 1.75, "7x": 2.2}.items():
        chip = chip_named(name)
        # Published clocks, where there are any: v4 1.05, v5p 1.75 GHz.
        assert chip.clock == pytest.approx(clock * 1e9, rel=0.01)
        assert chip.hbm > chip.vmem > 0
    with pytest.raises(InputError, match="v4, v5e"):
        chip_named("v3")


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(_compat, "has_libtpu", lambda: False)
    with pytest.raises(MissingExtraError, match=r"voxax\[tpu\]"):
        count("v5e", "voxax.predict.cycles:matrix_product")
