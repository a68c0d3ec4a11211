"""``vx.explain``: which algorithm, and why; nothing is measured."""

import functools

import jax
import jax.numpy as jnp
import pytest
from test_survey import conv, loss, voxels, weight

import voxax as vx
from voxax import _compat
from voxax.algorithms import lookup
from voxax.errors import AlgorithmError, InputError
from voxax.tuning import budget, hardware_of, record_choices, tuner
from voxax.tuning.cache import cache_for, device_name
from voxax.tuning.entry import Entry, Measured, utc_now
from voxax.tuning.key import key_of

pytestmark = pytest.mark.usefixtures("portable")


@pytest.fixture(autouse=True)
def _on(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(budget, "_spent", 0.0)
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
        first = lookup("explicit_gemm").heuristic(row.choice.problem, hardware_of("cpu")[0])
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
    assert budget.spent() == 0


def test_a_function_without_convolutions_is_an_error():
    with pytest.raises(InputError, match="no sparse convolution"):
        vx.explain(lambda x: jnp.sin(x), weight())
