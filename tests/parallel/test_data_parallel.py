"""Eight devices in one process train as one device does."""

import os
import subprocess
import sys

import pytest


def on_eight_devices(script):
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    result = subprocess.run(
        [sys.executable, "-c", f"from parallel import jobs\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "JAX_PLATFORMS": "cpu",
            "VOXAX_AUTOTUNE": "off",
            "XLA_FLAGS": flags.strip(),
        },
    )
    assert result.returncode == 0, result.stderr


def test_uneven_and_empty_shards():
    on_eight_devices("jobs.check_against_one_device(jobs.small)")


@pytest.mark.slow
def test_more_devices_than_scenes():
    on_eight_devices("jobs.check_against_one_device(jobs.small, (90, 200, 40), attach=False)")


@pytest.mark.slow
def test_minkunet():
    """Rounding in another order passes through thirty layers, and grows from step to step.

    Wide scenes: with a handful of voxels at the coarsest level, batch norms would amplify it more.
    """
    on_eight_devices("jobs.check_against_one_device(jobs.mink, reach=16, steps=5, gradient=5e-6)")
