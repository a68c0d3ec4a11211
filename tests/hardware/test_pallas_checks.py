"""The switch for bounds checks of the TPU's window kernels."""

import jax
import pytest
from benchmarks.tpu.program import make_problem, operands

import voxax as vx
from voxax.errors import InputError
from voxax.hardware import HardwareInfo
from voxax.hardware.pallas_checks import VARIABLE, bounds_checks
from voxax.kernels.implicit_gemm import tpu

CHIP = HardwareInfo(platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1)


@pytest.mark.parametrize(("text", "on"), [("", False), ("off", False), (" On ", True)])
def test_values(text, on, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    assert bounds_checks() is on


def test_unset_and_mistaken(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not bounds_checks()
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(InputError, match=r"VOXAX_TPU_BOUNDS_CHECKS=1: expected on or off"):
        bounds_checks()


def test_kernels_are_traced_anew_with_checks(monkeypatch):
    """Lowering for a TPU needs none; a program keeps what it was traced with until told."""
    problem = make_problem("forward", "bfloat16", rows=512, channels=16, ndim=1)
    run, *shapes = operands(problem, tpu.space(problem, CHIP)[0])

    def unchecked():
        traced = jax.jit(lambda *given: run(*given)).trace(*shapes)
        return "disable_bounds_checks" in traced.lower(lowering_platforms=("tpu",)).as_text()

    monkeypatch.setenv(VARIABLE, "off")
    vx.reload_environment()
    assert unchecked()
    monkeypatch.setenv(VARIABLE, "on")
    assert unchecked()
    vx.reload_environment()
    assert not unchecked()
    monkeypatch.undo()
    vx.reload_environment()
