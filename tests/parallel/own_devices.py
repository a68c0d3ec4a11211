"""Scripts in a process that has several devices."""

import os
import sys

from own_process import run_python


def on_devices(script, devices=8):
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    run_python(
        "-c",
        f"from parallel import jobs\n{script}",
        PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
        JAX_PLATFORMS="cpu",
        VOXAX_AUTOTUNE="off",
        XLA_FLAGS=flags.strip(),
    )
