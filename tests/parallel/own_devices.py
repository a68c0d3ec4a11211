"""Scripts in a process that has several devices."""

import os
import subprocess
import sys


def on_devices(script, devices=8):
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
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
