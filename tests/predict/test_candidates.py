"""Candidates ranked by schedules: which are priced, with which steps, and what is kept of it."""

import importlib
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import problems
from problems import needs_libtpu
from voxax import _compat
from voxax.cli import main
from voxax.errors import VoxaxError
from voxax.geometry import KernelSpec
from voxax.hardware import HardwareInfo, describe
from voxax.kernels import names
from voxax.kernels.depthwise import tpu as depthwise
from voxax.kernels.implicit_gemm import tpu
from voxax.kernels.implicit_gemm.windows import VIEWS, columns_of
from voxax.predict import (
    TOPOLOGIES,
    Chip,
    CompiledKernel,
    CompiledProgram,
    Listing,
    Loop,
    candidates,
)
from voxax.tuning.cache import cache_for, device_name, read_file
from voxax.tuning.sample import sample_of

TPU = HardwareInfo(
    platform="tpu", device_kind="TPU v0", vmem_bytes=2**27, smem_bytes=2**20, cores=2
)
CLOCK = 1e9
CHIP = Chip("v0", CLOCK, 1e12, 1e12, 512, 0.0, 0.0, 2**27, 2**34, 2)


def make_problem(product="forward", kind="dense", stride=1, rows=3000):
    spec = KernelSpec.make(3, 3 if stride == 1 else 2, stride)
    channels, precision = (16, 16), "default"
    return problems.make_problem(
        product, kind, rows, rows // stride, spec.num_offsets, *channels, 1, "bfloat16", precision,
        stride == 1, "tpu", spec, (1, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_steps_are_those_of_the_kernels_grid(kind, stride, product):
    """Compare with the number of steps that the window kernels compute."""
    problem = make_problem(product, kind, stride)
    body = tpu if kind == "dense" else depthwise
    columns = columns_of(problem.layer.spec, problem.layer.num_offsets)
    gathered = problem.layer.out_capacity if product == "dgrad" else problem.layer.in_capacity
    view = "transposed_windows" if product == "dgrad" and stride > 1 else "windows"
    windows = sample_of(problem, None, {view: VIEWS[view]}).views[view]
    for parameters in body.space(problem, TPU):
        found = candidates.steps(problem, parameters, np.asarray(windows))
        values = dict(parameters)
        blocks = SimpleNamespace(
            window=values["window_rows"], stripes=values["stripes"], tiles=values["tiles"]
        )
        bounds = tpu.visits_of(problem, blocks, columns, windows, gathered).scalars.bounds
        # Stripes end where groups of tiles do, and so one is longer than a half by some visits.
        assert int(bounds[-1]) // 2 <= found <= int(np.diff(bounds).max())


def program(cycles, pallas=True, in_open_loop=False):
    """One kernel: of a loop whose passes are known at run time only, or without any."""
    trips = None if pallas else 1
    inner = Loop(1, 0, trips, cycles, cycles, {}, (), ())
    listing = Listing(Loop(0, 0, 1, 0, 0, {}, (), (inner,)), {})
    kind = "tpu_custom_call" if pallas else "fusion"
    kernel = CompiledKernel("k", kind, "", 1, in_open_loop, 8, (), listing)
    return CompiledProgram(CHIP, (kernel,), (), 0, 0, 0, 0.0, 0)


def predicted(monkeypatch, answer, problem=None):
    problem = problem or make_problem()
    asked = []

    def outcomes(requests):
        asked.extend(requests)
        return [answer(arguments) for _, _, arguments in requests]

    monkeypatch.setattr(candidates, "outcomes", outcomes)
    found = candidates.predict("v5e", TPU, problem, names(problem.layer.kind))
    return found, asked


def sizes_of(parameters):
    return [dict(parameters).get(name) for name in ("window_rows", "tiles")]


def test_window_kernels_count_with_their_steps(monkeypatch):
    def answer(arguments):
        windows = dict(arguments["parameters"]).get("body") == "windows"
        return program(1000) if windows else program(50_000, pallas=False)

    entry, asked = predicted(monkeypatch, answer)
    problem, times = make_problem(), {}
    assert entry.predicted
    assert {target for _, target, _ in asked} == {"voxax.predict.candidates:product"}
    for m in entry.measured:
        if m.seconds is not None:
            times[m.algorithm, *sizes_of(m.parameters)] = m.seconds
    windows = np.asarray(sample_of(problem, None, VIEWS).views["windows"])
    for parameters in tpu.space(problem, TPU):
        steps = candidates.steps(problem, parameters, windows)
        found = times.pop(("implicit_gemm", *sizes_of(parameters)))
        assert found == pytest.approx(1000 * steps / CLOCK)
    # A schedule of XLA's is that of one core too.
    assert times == {("explicit_gemm", None, None): pytest.approx(50_000 / CLOCK)}


def test_what_cannot_be_priced_is_said(monkeypatch):
    def answer(arguments):
        if arguments["algorithm"] == "explicit_gemm":
            return program(10, pallas=False, in_open_loop=True)
        return VoxaxError("it does not compile") if failing else program(10)

    failing = False
    entry, _ = predicted(monkeypatch, answer)
    (open_loop,) = (m for m in entry.measured if "loops whose length" in m.reason)
    assert (open_loop.algorithm, open_loop.seconds) == ("explicit_gemm", None)
    failing = True
    assert predicted(monkeypatch, answer)[0] is None


def test_where_the_default_has_no_price_nothing_is_chosen(monkeypatch):
    """Whatever has a price would win."""

    def answer(arguments):
        windows = dict(arguments["parameters"]).get("body") == "windows"
        return program(10, pallas=False, in_open_loop=windows)

    assert predicted(monkeypatch, answer)[0] is None


def test_where_the_compiler_ends_its_process_another_goes_on(monkeypatch):
    monkeypatch.setattr(_compat, "has_libtpu", lambda: True)
    started = []

    def compiled(requests):
        started.append([target for _, target, _ in requests])
        fatal = next((i for i, (_, t, _) in enumerate(requests) if t in deadly), len(requests))
        return [program(1)] * fatal, subprocess.CompletedProcess([], -6, "", "Check failed")

    count = importlib.import_module("voxax.predict.cycles")
    monkeypatch.setattr(count, "_compiled", compiled)
    deadly = {"b"}
    one, two, three = count.outcomes([("v5e", name, {}) for name in "abc"])
    assert (one, three) == (program(1), program(1))
    assert "compiling b for v5e, or before it, ended with -6:\nCheck failed" in str(two)
    assert started == [["a", "b", "c"], ["c"]]
    # The fault is not theirs.
    started.clear()
    deadly = set("abcd")
    assert all(isinstance(x, VoxaxError) for x in count.outcomes([("v5e", n, {}) for n in "abcd"]))
    assert started == [list("abcd"), list("bcd")]


@pytest.mark.parametrize("cut", [0, 1])
def test_results_of_the_process_that_compiles(cut, tmp_path, monkeypatch):
    child = importlib.import_module("voxax.predict.child")
    cycles = importlib.import_module("voxax.predict.cycles")

    def compiled(chip, target, arguments, folder):
        if target == "b":
            raise ValueError("no such operation")
        return program(1)

    def run(command, **options):
        *_, requests, results, folder, parent = command
        assert int(parent) == os.getpid()
        child.main(requests, results, folder)
        written = Path(results).read_bytes()
        Path(results).write_bytes(written[: len(written) - cut])
        return subprocess.CompletedProcess(command, -cut, "", "")

    monkeypatch.setattr(_compat, "has_libtpu", lambda: True)
    monkeypatch.setattr(child, "_compiled", compiled)
    monkeypatch.setattr(subprocess, "run", run)
    found, _ = cycles._compiled([("v5e", name, {}) for name in "abc"])
    assert found[0] == program(1)
    assert str(found[1]) == "b does not compile for v5e: ValueError: no such operation"
    assert found[2:] == [program(1)] * (1 - cut)


@pytest.mark.parametrize(
    ("options", "message"),
    [("v9", "TPU 'v9' is unknown"), (" ,", "names no generation"), ("v5e", "voxax[tpu]")],
)
def test_refusals_of_the_command(options, message, monkeypatch, capsys):
    pytest.importorskip("tyro")
    monkeypatch.setattr(_compat, "has_libtpu", lambda: False)
    assert main(["tune", "--tpu", options]) == 2
    assert message in capsys.readouterr().err


MODEL = """\
import jax.numpy as jnp
from voxax.nn.functional import spatially_sparse_conv

def small(voxels):
    return spatially_sparse_conv(voxels, jnp.ones((27, 4, 8), jnp.float32), 3)
"""


@pytest.mark.tpu_compile
@needs_libtpu
def test_a_model_is_predicted_once(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tyro")
    pytest.importorskip("flax")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_small_model.py").write_text(MODEL)
    asked = ["tune", "--tpu", "v5e", "--model", "a_small_model:small", "--workload", "surface"]
    assert main(asked) == 0
    assert "products: 1, known before: 0" in capsys.readouterr().out
    cache = cache_for(device_name(describe(TOPOLOGIES["v5e"])))
    (entry,) = read_file(cache.path, cache.device).store.values()
    assert entry.predicted
    assert entry.ranked()[0].algorithm == "implicit_gemm"
    assert all(0 < m.seconds < 1 for m in entry.ranked())
    assert main(asked) == 0
    assert "products: 1, known before: 1" in capsys.readouterr().out
