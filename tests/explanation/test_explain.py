"""``vx.explain``: which algorithm, and why; nothing is measured."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_find_products import conv, loss, voxels, weight

import voxax as vx
from voxax import _compat
from voxax.errors import AlgorithmError, InputError
from voxax.explanation import inspect
from voxax.hardware import Fact, HardwareInfo, hardware_of
from voxax.kernels import lookup
from voxax.tuning import measure, record_choices, tuner
from voxax.tuning.cache import cache_for, device_name
from voxax.tuning.entry import Entry, Measured, key_of, utc_now

pytestmark = pytest.mark.usefixtures("portable")


@pytest.fixture(autouse=True)
def _on(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_spent", 0.0)
    for name in ("measure", "check"):
        monkeypatch.setattr(tuner, name, lambda *_: pytest.fail("this measures"))


def remember(problem, *measured):
    entry = Entry(measured, "some street", "measured", utc_now(), 1.0)
    cache_for(device_name(hardware_of("cpu")[0])).put(key_of(problem), entry)
    return entry


def test_what_nobody_measured_is_the_default():
    report = vx.explain(jax.grad(loss), weight())
    assert [row.choice.source for row in report] == ["predicted", "predicted"]
    assert [row.choice.problem.product for row in report] == ["forward", "wgrad"]
    for row in report:
        first = lookup("explicit_gemm")[0].heuristic(row.choice.problem, hardware_of("cpu")[0])
        assert row.choice.parameters == first
        assert "not measured" in row.why
    assert report.seconds == 0
    assert len(report) == 2
    text = str(report)
    assert report.rows[0].problem == "forward, 48 -> 48 rows, 27 taps, 3 -> 3, float32"
    assert "2 products, 2 problems: 2 predicted" in text


def test_what_the_cache_knows_with_all_times():
    (row,) = vx.explain(loss, weight())
    entry = remember(
        row.choice.problem,
        Measured("explicit_gemm", (("formulation", "im2col"),), 1, 2e-3, "ok"),
        Measured("explicit_gemm", (("block", 256), ("formulation", "pair_lists")), 1, 9e-3, "slow"),
        Measured("implicit_gemm", (("fwd_block_size", 32),), 1, None, "rejected", "zeros only"),
    )
    report = vx.explain(loss, weight())
    (row,) = report
    assert (str(row.choice), row.choice.source) == ("explicit_gemm(formulation=im2col)", "cached")
    assert "some street" in row.why
    assert row.choice.entry.measured == entry.measured
    assert [(name, seconds) for name, seconds, _ in row.candidates()] == [
        ("explicit_gemm(formulation=im2col)", 2e-3),
        ("explicit_gemm(block=256, formulation=pair_lists)", 9e-3),
        ("implicit_gemm(fwd_block_size=32)", None),
        ("cutlass_implicit_gemm", None),
    ]
    details = report.details()
    assert "2 ms" in str(report)
    for words in (
        ("9 ms", "explicit_gemm(block=256, formulation=pair_lists)", "slow"),
        ("implicit_gemm(fwd_block_size=32)", "rejected: zeros only"),
        ("cutlass_implicit_gemm", "refused: runs on NVIDIA GPUs only"),
    ):
        assert any(all(word in line for word in words) for line in details.splitlines())
    assert key_of(row.choice.problem) in details


def test_requests_are_followed():
    report = vx.explain(functools.partial(loss, fwd_algo="implicit_gemm"), weight())
    (row,) = report
    assert (row.choice.algorithm, row.choice.source) == ("implicit_gemm", "pinned")
    assert "only candidate" in row.why
    with vx.algorithms(forward="implicit_gemm"):
        assert str(vx.explain(loss, weight())) == str(report)
    with pytest.raises(AlgorithmError, match="runs on NVIDIA GPUs only"):
        vx.explain(functools.partial(loss, fwd_algo="cutlass_implicit_gemm"), weight())


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_for_another_platform(platform):
    (row,) = vx.explain(loss, weight(), platform=platform)
    assert row.choice.problem.platform == platform
    assert str(row.choice) == "explicit_gemm(formulation=im2col)"


def test_equal_problems_are_counted_once():
    report = vx.explain(lambda w: conv(w) + conv(2 * w), weight())
    assert "2 products, 1 problem: 1 predicted" in str(report)


def test_it_says_what_is_then_done(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    said = [str(row.choice) for row in vx.explain(jax.grad(loss), weight())]
    with _compat.fresh_trace(), record_choices() as heard:
        jax.jit(jax.grad(loss)).lower(weight())
    assert said == [str(c) for c in heard]


def test_nothing_is_computed():
    """Arguments without values, and a function that may not run."""

    def fn(w, v):
        jax.debug.callback(lambda: pytest.fail("this ran"))
        return conv(w, v)

    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weight(), voxels()))
    assert len(vx.explain(fn, *abstract)) == 1
    assert measure.spent() == 0


def rates(monkeypatch, **values):
    """The machine has these rates, by a probe."""
    facts = {name: Fact(value, "probe") for name, value in values.items()}
    base = {"platform": Fact("cpu", "jax"), "device_kind": Fact("cpu", "jax")}
    info = HardwareInfo.from_facts({**base, **facts})
    monkeypatch.setattr(inspect, "describe", lambda device: info)


KNOWN = {"peak_rates": (("float32", 1e9),), "memory_bandwidth": 1e9}


def test_pairs_are_those_of_the_map(monkeypatch):
    rates(monkeypatch, **KNOWN)
    pairs = int((np.asarray(vx.kernel_map(voxels(), 3).neighbors) >= 0).sum())
    report = vx.explain(jax.grad(loss), weight(), voxels())
    assert [(r.pairs, r.counted) for r in report] == [(pairs, True)] * 2
    for row in report:
        assert row.lower_bound.operations == 2 * pairs * 3 * 3
        assert (
            row.lower_bound.seconds == max(row.lower_bound.operations, row.lower_bound.bytes) / 1e9
        )
        assert row.ratio is None
    assert report.total is None
    assert report.notes[0] == (
        "lower bounds at float32 1 Gop/s (source: probe) and 1 GB/s (source: probe)"
    )


def test_rates_of_reduced_precision_are_named(monkeypatch):
    known = {"peak_rates": (("float32", 1e9), ("bfloat16", 4e9)), "memory_bandwidth": 1e15}
    rates(monkeypatch, **known)
    with jax.default_matmul_precision("default"):
        report = vx.explain(loss, weight(), voxels())
    (row,) = report
    assert row.lower_bound.seconds == row.lower_bound.operations / 4e9
    assert report.notes[0].startswith(
        "lower bounds at float32 at precision default 4 Gop/s (source"
    )


@pytest.mark.parametrize("closed_over", [True, False])
def test_without_values_pairs_are_estimated(monkeypatch, closed_over):
    """On the map that is closed over, else on a recorded scene."""
    rates(monkeypatch, **KNOWN)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (weight(), voxels()))
    (row,) = vx.explain(loss, *(shapes[:1] if closed_over else shapes))
    assert not row.counted
    (real,) = vx.explain(loss, weight(), voxels())
    if closed_over:
        assert row.pairs == real.pairs
    else:
        assert 48 * 0.8 < row.pairs < 48 * 27
    assert "~" in str(vx.explain(loss, *shapes))


def test_time_and_ratio_of_what_the_cache_knows(monkeypatch):
    rates(monkeypatch, **KNOWN)
    (row,) = vx.explain(loss, weight())
    remember(
        row.choice.problem,
        Measured("explicit_gemm", (("formulation", "im2col"),), 1, 2e-3, "ok"),
        Measured("explicit_gemm", (("block", 256), ("formulation", "pair_lists")), 1, 9e-3, "slow"),
        Measured("implicit_gemm", (("fwd_block_size", 32),), 1, 5e-3, "ok"),
    )
    report = vx.explain(loss, weight())
    (row,) = report
    assert row.ratio == pytest.approx(2e-3 / row.lower_bound.seconds)
    assert report.total.seconds == 2e-3


def test_a_pinned_choice_has_the_time_that_the_cache_knows():
    pinned = functools.partial(loss, fwd_algo="implicit_gemm")
    (row,) = vx.explain(pinned, weight())
    assert (row.choice.source, row.choice.seconds) == ("pinned", None)
    revision = row.choice.kernel.revision
    measured = Measured("implicit_gemm", row.choice.parameters, revision, 5e-3, "ok")
    remember(row.choice.problem, measured)
    report = vx.explain(pinned, weight())
    (row,) = report
    assert (row.choice.source, row.choice.seconds) == ("pinned", 5e-3)
    assert "only candidate" in report.details()


def test_unknown_rates_say_how_to_measure_them(monkeypatch):
    rates(monkeypatch)
    report = vx.explain(loss, weight())
    assert [row.lower_bound.seconds for row in report] == [None]
    assert report.notes[0] == (
        "no lower bound: unknown is the matrix rate of float32, the memory bandwidth; "
        "`voxax hardware --probe` measures"
    )
    (note, *_) = vx.explain(loss, weight(), platform="tpu").notes
    assert note == "no lower bound: there is no tpu here, its rates are unknown"


def test_a_function_without_convolutions_is_an_error():
    with pytest.raises(InputError, match="no sparse convolution"):
        vx.explain(lambda x: jnp.sin(x), weight())


def test_a_platform_that_is_none():
    with pytest.raises(InputError, match="unknown platform 'xpu'; known: cpu, gpu, tpu"):
        vx.explain(loss, weight(), platform="xpu")
