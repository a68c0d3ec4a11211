"""A TPU that nobody tuned for: choices at once, checks and measurements within a budget of time."""

import dataclasses
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import problems
from hardware.recorded import tpu
from voxax.cli.workload import Workload
from voxax.geometry import KernelSpec
from voxax.hardware import describe, targeting
from voxax.kernels import names
from voxax.predict.candidates import products_of
from voxax.tuning import cache as cache_module
from voxax.tuning import choose, measure, tuner
from voxax.tuning.cache import cache_for, device_name, shipped
from voxax.tuning.entry import Entry, Measured, jaxlib_version, key_of
from voxax.tuning.measure import objection
from voxax.tuning.sample import Sample
from voxax.tuning.space import Candidate, reference_of, space_of

# As the runtime names the devices, with the cores that each joins: those that choices come with.
KINDS = [("TPU v5 lite", 1), ("TPU v6 lite", 1)]


def problem_of(channels=128, rows=2**13, level=8, product="forward", dtype="bfloat16", **changes):
    """A layer of MinkUNet18's, whose choice is shipped."""
    spec = KernelSpec.make(3, 3)
    sizes = rows, rows, spec.num_offsets, channels, channels, 1
    made = problems.make_problem(
        product, "dense", *sizes, dtype, "highest", True, "tpu", spec, (level,) * 3
    )
    return problems.changed(made, **changes)


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A TPU v5e in a process that has measured nothing."""
    for name in ("VOXAX_AUTOTUNE", "VOXAX_AUTOTUNE_BUDGET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_spent", 0.0)
    monkeypatch.setattr(tuner, "_objections", {})
    nothing = Sample(jnp.zeros(()), jnp.zeros(()), {}, "nothing")
    monkeypatch.setattr(measure, "sample_of", lambda *_: nothing)
    found = tpu()
    with targeting(describe(found), found):
        yield found


@pytest.mark.parametrize("jaxlib", [jaxlib_version(), "0.12.0.1", "99.0"])
@pytest.mark.parametrize(("kind", "cores"), KINDS)
def test_shipped_choices_are_found_with_every_jaxlib(kind, cores, jaxlib, monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache_module, "jaxlib_version", lambda: jaxlib)
    cache = cache_for(device_name(describe(tpu(kind, cores))))
    keys = {key for key, _ in shipped(cache.device)}
    assert len(keys) >= 70
    assert all(cache.get(key) is not None for key in keys)


@pytest.mark.lax_promotion  # flax relies on it
def test_what_ships_is_what_the_command_predicts():
    """Levels have a TPU's capacities, not the coarse ones of the CPU that predicts."""
    workload = Workload(model="benchmarks.tpu.defaults:make", training=True)
    built = workload.build(for_accelerator=True)
    found = products_of(describe(tpu()), built.call, built.arguments)
    assert {key_of(problem) for problem, _ in found} == {key for key, _ in shipped("tpu-v5e")}


def test_of_two_predictions_the_newer_one_holds(monkeypatch, tmp_path):
    """The user's own may be of kernels that a newer voxax has revised."""
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    cache = cache_for("tpu-v5e")
    key = next(key for key, _ in shipped("tpu-v5e"))
    candidate = Measured("explicit_gemm", (("formulation", "im2col"),), 1, 1.0, "ok")
    for when, newer in (("2020-01-01", False), ("2999-01-01", True)):
        cache_module.remove_file(cache.path)
        cache.put(key, Entry((candidate,), "lidar", "predicted", when, 1.0, "0.0.1"))
        assert (cache.get(key).when == when) is newer


def test_an_unmeasured_tpu_takes_predicted_choices_at_once(device, monkeypatch):
    monkeypatch.setattr(tuner, "measure", lambda *_: pytest.fail("nothing is measured"))
    monkeypatch.setattr(tuner, "check", lambda *_: None)
    problem = problem_of()
    choice = choose(problem, names("dense"))
    assert choice.source == "predicted"
    assert choice.entry == cache_for("tpu-v5e").get(key_of(problem))
    assert choice.algorithm == choice.entry.ranked()[0].algorithm == "implicit_gemm"


def test_elsewhere_and_on_demand_candidates_are_measured(monkeypatch):
    from voxax.tuning import autotune_mode

    monkeypatch.delenv("VOXAX_AUTOTUNE", raising=False)
    assert [autotune_mode(p) for p in ("tpu", "cpu", "gpu", "any")] == ["cached", *["on"] * 3]
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    assert autotune_mode("tpu") == "on"


def test_checks_take_of_the_time_for_measuring(device, monkeypatch):
    """Two programs are compiled for each, and a network has dozens of problems."""
    seconds, checked = 15.0, []

    def check(problem, candidate, reference, sample):
        checked.append(dict(candidate.parameters)["in_block"])
        clock.now += seconds

    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(tuner, "check", check)
    space = [space_of(problem_of(c), names("dense"), describe(device)) for c in (64, 96, 128, 256)]
    blocks = {dict(s.heuristics[0].parameters)["in_block"] for s in space}
    assert len(blocks) >= 3, "the kernel has other parameters for these"
    for channels in (64, 96, 128, 256, 512):
        choose(problem_of(channels, level=1), names("dense"))
    assert measure.allowance() == 0
    assert sum(seconds for _ in checked) < measure._PER_PROCESS + seconds
    # Each product of a kernel is checked, whatever time is left.
    choose(problem_of(64, level=1, product="wgrad"), names("dense"))
    assert len(checked) == 4


def test_a_pin_is_checked_whatever_time_is_left(device, monkeypatch):
    checked = []
    monkeypatch.setattr(tuner, "check", lambda p, candidate, *_: checked.append(candidate))
    measure.spend(measure._PER_PROCESS)
    monkeypatch.setattr(tuner, "space_of", lambda *arguments: only(space_of(*arguments)))
    for channels in (64, 128):
        assert choose(problem_of(channels), ("implicit_gemm",)).source == "pinned"
    assert len(checked) == 2


def only(space):
    return dataclasses.replace(space, candidates=space.candidates[:1])


class Remote:
    """A device that is handed a call at once, and waited for in milliseconds."""

    LATENCY = 3e-3

    def __init__(self, monkeypatch, **seconds):
        self.seconds, self.now, self.free = seconds, 0.0, 0.0
        clock = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(measure, "time", clock)
        monkeypatch.setattr(measure, "compiled", self.compiled)
        monkeypatch.setattr(measure.jax, "block_until_ready", self.wait)

    def compiled(self, problem, candidate, sample):
        def run():
            self.now += 1e-6
            self.free = max(self.free, self.now) + self.seconds.get(candidate.kernel.name, 1e-3)
            return np.ones((3, 2), np.float32)

        return run

    def wait(self, result):
        self.now = max(self.now, self.free) + self.LATENCY
        return result


def test_a_sample_is_many_calls_with_one_wait(monkeypatch):
    """Kernels of tenths of a millisecond compare, whatever it takes to wait for one."""
    kernel = reference_of(problem_of()).kernel
    quick, slow = (Candidate(dataclasses.replace(kernel, name=n), ()) for n in ("quick", "slow"))
    Remote(monkeypatch, quick=1e-4, slow=2.5e-4)
    problem = problem_of(dtype="float32")
    sample = Sample(np.ones(3), np.ones(3), {}, "nothing")
    found = measure.measure(problem, [slow, quick], reference_of(problem), sample, 60.0)
    seconds = {m.algorithm: m.seconds for m in found}
    assert seconds["quick"] == pytest.approx(1e-4, rel=0.4)
    assert seconds["slow"] == pytest.approx(2.5e-4, rel=0.4)


def test_tuning_ends_with_its_budget(monkeypatch, tmp_path):
    import voxax as vx
    from samples import make_voxels, make_weight
    from voxax.nn.functional import spatially_sparse_conv

    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    budgets = []

    def slowly(problem, candidates, reference, sample, budget):
        budgets.append(budget)
        time.sleep(0.3)
        return tuple(Measured(*c.identity, 1.0, "ok") for c in candidates)

    monkeypatch.setattr(tuner, "measure", slowly)
    voxels = make_voxels(random_cube(40), capacity=48)

    def network(*weights):
        return [spatially_sparse_conv(voxels, w, kernel_size=3).features for w in weights]

    vx.tune(network, *(make_weight(3, 3, 3, c) for c in (4, 5, 6, 7)), budget=0.5)
    assert 1 <= len(budgets) <= 3
    assert all(0 < budget <= 0.5 for budget in budgets)


def parts(x, number, cut):
    """The bfloat16 numbers whose sum is ``x``: cut as the kernel does, or rounded."""
    found = []
    for _ in range(number):
        bits = x.view(np.uint32)
        if not cut:
            bits = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
        head = (bits & np.uint32(0xFFFF0000)).view(np.float32)
        found.append(head)
        x = x - head
    return found


def product(x, w, passes, cut=True):
    """``x @ w`` in float32 from bfloat16 numbers: six passes, or three."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    xs, ws = parts(x, 3, cut), parts(w, 3, False)
    for i, j in [(2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)][-passes:]:
        for begin in range(0, x.shape[1], 128):  # as deep as a matrix unit
            total += xs[i][:, begin : begin + 128] @ ws[j][begin : begin + 128]
    return total


@pytest.mark.parametrize("terms", [8, 27 * 16, 27 * 64, 27 * 256])
def test_the_guard_of_split_float32_follows_from_its_arithmetic(terms):
    """Six passes agree in any order; three, which float32 must not be rounded to, do not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, terms)).astype(np.float32)
    w = rng.normal(size=(terms, 32)).astype(np.float32)
    reference = product(x, w, 6, cut=False)
    order = rng.permutation(terms)
    admitted = product(x[:, order], w[order], 6)
    rounded = product(x, w, 3)
    options = {"dtype": "float32", "precision": "highest", "split_terms": terms}
    assert objection(admitted, reference, **options) is None
    assert "differs from explicit_gemm" in objection(rounded, reference, **options)
    # The tolerance of processors that add float32 numbers would admit them.
    assert objection(rounded, reference, "float32", "highest") is None


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_the_guard_knows_how_long_sums_are(product):
    problem = problem_of(64, product=product, dtype="float32")
    terms = 2**13 if product == "wgrad" else 27 * 64
    assert measure.split_terms_of(problem) == terms
    assert measure.split_terms_of(problems.changed(problem, platform="cpu")) == 0
    if product != "wgrad":
        assert measure.split_terms_of(problems.changed(problem, kind="depthwise")) == 27
        grouped = problems.changed(problem, kind="grouped", groups=4)
        assert measure.split_terms_of(grouped) == 27 * 16
