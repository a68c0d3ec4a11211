"""The demo's width follows from the machine, and its trace has a few steps."""

import dataclasses

import pytest

from voxax.cli import main
from voxax.cli.demo_kinds import width_for
from voxax.cli.learning import Trace
from voxax.hardware import describe

GIB = 1 << 30


def machine(cores, memory, platform="cpu"):
    return dataclasses.replace(describe(), platform=platform, cpu_cores=cores, memory_bytes=memory)


@pytest.mark.parametrize(
    ("cores", "memory", "platform", "width"),
    [
        (2, 20 * GIB, "cpu", 1.0),
        (1, 20 * GIB, "cpu", 0.5),
        (4, 20 * GIB, "cpu", 1.25),
        (8, 20 * GIB, "cpu", 2.0),
        (128, 500 * GIB, "cpu", 4.0),
        (8, 6 * GIB, "cpu", 1.5),
        (2, GIB // 2, "cpu", 0.5),
        (2, None, "cpu", 1.0),
        (2, 60 * GIB, "gpu", 2.0),
        (96, 4 * GIB, "tpu", 1.0),
    ],
)
def test_width(cores, memory, platform, width):
    assert width_for(machine(cores, memory, platform)) == width


def test_trace_covers_a_few_steps(tmp_path, monkeypatch):
    import jax

    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append(folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    for steps in (1, 3, 20):
        calls.clear()
        with Trace(tmp_path / "trace") as trace:
            for _ in range(steps):
                trace.step()
        assert calls == ([] if steps == 1 else [str(tmp_path / "trace"), "stop"])
    with Trace(None) as trace:
        trace.step()
        trace.step()


@pytest.mark.slow
def test_explain_roofline(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    assert main(["explain", "--roofline", "--width", "0.25", "--voxel-size", "1.0"]) == 0
    out = capsys.readouterr().out
    for word in ("0 stem", "down1", "up1", "(memory)", "source: probe"):
        assert word in out
