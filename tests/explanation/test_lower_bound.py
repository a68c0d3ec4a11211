"""Compare the work and the lower bound of a product with counts by hand."""

import dataclasses

import pytest

import problems
from voxax.explanation.lower_bound import lower_bound_of, matrix_rate
from voxax.hardware import HardwareInfo

INFO = HardwareInfo("cpu", "cpu", peak_rates=(("float32", 1e9),), memory_bandwidth=1e8)


def problem(product="forward", kind="dense", groups=1, dtype="float32", symmetric=False):
    sizes = 100, 40, 8, 6, 12, groups
    return problems.make_problem(product, kind, *sizes, dtype, "highest", symmetric, "cpu")


@pytest.mark.parametrize(
    ("product", "symmetric", "table"),
    [("forward", False, 40), ("dgrad", False, 100), ("dgrad", True, 40), ("wgrad", False, 40)],
)
def test_work(product, symmetric, table):
    bound = lower_bound_of(problem(product, symmetric=symmetric), 70, INFO)
    assert bound.operations == 2 * 70 * 6 * 12
    assert bound.bytes == 4 * (100 * 6 + 40 * 12 + 8 * 6 * 12 + 8 * table)


def test_work_of_groups_channels_and_narrow_dtypes():
    assert (
        lower_bound_of(problem(kind="grouped", groups=3), 70, INFO).operations == 2 * 70 * 3 * 2 * 4
    )
    grouped = lower_bound_of(problem(kind="grouped", groups=3), 70, INFO)
    assert grouped.bytes == 4 * (100 * 6 + 40 * 12 + 8 * 3 * 2 * 4 + 8 * 40)
    depthwise = problems.changed(problem(kind="depthwise"), out_channels=6)
    assert lower_bound_of(depthwise, 70, INFO).operations == 2 * 70 * 6
    assert lower_bound_of(depthwise, 70, INFO).bytes == 4 * (100 * 6 + 40 * 6 + 8 * 6 + 8 * 40)
    half = lower_bound_of(problem(dtype="bfloat16"), 70, INFO)
    assert half.bytes == 2 * (100 * 6 + 40 * 12 + 8 * 6 * 12) + 4 * 8 * 40
    # Products of int8 are int32.
    small = lower_bound_of(problem(dtype="int8"), 70, INFO)
    assert small.bytes == 100 * 6 + 8 * 6 * 12 + 4 * (40 * 12 + 8 * 40)


def test_the_slower_of_arithmetic_and_memory():
    few, many = lower_bound_of(problem(), 1, INFO), lower_bound_of(problem(), 10**4, INFO)
    assert (few.seconds, few.bound) == (pytest.approx(few.bytes / 1e8), "memory")
    assert (many.seconds, many.bound) == (pytest.approx(many.operations / 1e9), "compute")


@pytest.mark.parametrize("missing", [{"peak_rates": None}, {"memory_bandwidth": None}])
def test_unknown_rates(missing):
    bound = lower_bound_of(problem(), 70, dataclasses.replace(INFO, **missing))
    assert (bound.seconds, bound.bound) == (None, None)
    assert bound.operations > 0
    assert lower_bound_of(problem(), 70, None) == bound
    assert lower_bound_of(problem(dtype="float64"), 70, INFO).seconds is None


def with_rates(platform="cpu", **rates):
    return dataclasses.replace(INFO, platform=platform, peak_rates=tuple(rates.items()))


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_half_precision_is_float32_too(platform):
    slow = with_rates(platform, float32=1e9, bfloat16=5e8)
    fast = with_rates(platform, float32=1e9, bfloat16=4e9)
    assert matrix_rate("bfloat16", "highest", slow) == 1e9
    assert matrix_rate("bfloat16", "highest", fast) == 4e9
    assert matrix_rate("bfloat16", "highest", with_rates(platform, bfloat16=4e9)) == 4e9
    assert matrix_rate("int8", "highest", fast) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32s_rate_bounds_half_precision_on_cpus_alone(dtype):
    rates = {"float32": 1e9}
    assert matrix_rate(dtype, "highest", with_rates("cpu", **rates)) == 1e9
    for platform in ("gpu", "tpu"):
        info = with_rates(platform, **rates)
        assert matrix_rate(dtype, "highest", info) is None
        assert lower_bound_of(problem(dtype=dtype), 70, info).seconds is None
        assert lower_bound_of(problem(), 70, info).seconds is not None


@pytest.mark.parametrize("precision", ["default", "high", "tensorfloat32"])
def test_float32_at_less_than_the_highest_precision(precision):
    """It may be rounded: to TF32 on GPUs, to bfloat16 on TPUs."""
    rates = {"float32": 1e9, "bfloat16": 6e9, "float16": 4e9, "int8": 9e9}
    for platform in ("cpu", "gpu", "tpu"):
        info = with_rates(platform, **rates)
        assert matrix_rate("float32", precision, info) == 6e9
        assert matrix_rate("float32", "highest", info) == 1e9
        assert matrix_rate("float32", "float32", info) == 1e9
        reduced = problems.changed(problem(), precision=precision)
        assert lower_bound_of(reduced, 10**5, info).seconds == pytest.approx(
            lower_bound_of(problem(), 10**5, info).seconds / 6
        )
    assert matrix_rate("float32", precision, with_rates("cpu", float32=1e9)) == 1e9
    assert matrix_rate("float32", precision, with_rates("gpu", float32=1e9)) is None
    assert matrix_rate("float32", precision, with_rates("gpu", float16=4e9)) == 4e9
    assert matrix_rate("float32", "highest", with_rates("tpu", bfloat16=6e9)) is None
    assert matrix_rate("float64", precision, with_rates("gpu", float64=2e9, float16=4e9)) == 2e9
