"""How many devices a command works on."""

from __future__ import annotations

from voxax.errors import InputError


def use_devices(number: int, asked: str) -> None:
    """Have at least ``number`` devices; on a CPU as many as that are made of its cores.

    Comes before whatever starts JAX's backend: host devices are counted once, at its start.

    Args:
      number: of devices.
      asked: how they were asked for, as errors name it.

    Raises:
      InputError: less than one, or more than there are.
    """
    if number < 1:
        raise InputError(f"{asked} {number} must be at least 1")
    if number == 1:
        return
    import jax

    begun = False
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        begun = True
    found = jax.devices()
    if len(found) >= number:
        return
    platform = found[0].platform
    fix = f"give at most {len(found)}"
    if platform == "cpu" and begun:
        fix += (
            ", or start Python with XLA_FLAGS=--xla_force_host_platform_device_count="
            f"{number}: JAX has begun, and no longer changes the number of host devices"
        )
    elif platform != "cpu":
        fix += ", or set JAX_PLATFORMS=cpu to try it on host devices"
    raise InputError(
        f"{asked} {number}: there are {len(found)} devices of platform {platform}; {fix}"
    )
