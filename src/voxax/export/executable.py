"""Executables of exported programs: what JAX compiled for this process's kind of CPU.

Machine code runs where its instructions exist. So the file says which these are, and which
version of jaxlib compiled it; another processor or version is refused before any of it is read. JAX
stores it as a pickle: :mod:`voxax.export.signature` tells who wrote it.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
from jax.experimental import serialize_executable

from voxax.errors import InputError
from voxax.hardware.cpu import host_facts

_INSTEAD = (
    "the executable does not run here: {}; load_program(path) compiles the program of the same "
    "file for this process"
)
# What a program returns, by name.
RESULT = ("coords", "count", "features", "num_dropped", "rows")


def compiled_here(exported: Any, shapes: tuple[Any, ...]) -> tuple[bytes, dict[str, Any]]:
    """Return the executable of an exported program for CPUs, and what it needs.

    `shapes` are those of ``(weights, coords, features)``.
    """
    device = cpu_device()
    if device is None:
        raise InputError("executables are for CPUs, which this process does not have")

    def run(*arguments: Any) -> Any:
        return exported.call(*arguments)

    # An executable that came from JAX's compilation cache cannot be stored again: it has lost its
    # functions (JAX 0.10.2). So the program gets a name that no cache knows.
    run.__name__ = f"run_{uuid.uuid4().hex}"
    with jax.default_device(device):
        compiled = jax.jit(run).lower(*shapes).compile()
    data, _, _ = serialize_executable.serialize(compiled)
    return data, {
        "jaxlib": version("jaxlib"),
        "machine": platform.machine(),
        "instructions": _instructions(),
    }


def check_runs_here(needs: dict[str, Any]) -> None:
    """Refuse what an executable needs, as :func:`compiled_here` returned it, without reading it.

    Another version of jaxlib compiled it, or it is for another kind of CPU.
    """
    if (reason := _refusal(needs)) is not None:
        raise InputError(_INSTEAD.format(reason))


def loaded(data: bytes, num_weights: int) -> Callable[..., Any]:
    """Load an executable that :func:`compiled_here` returned: a pickle, which may run any code."""
    arguments = jax.tree.structure((([0] * num_weights, 0, 0), {}))
    results = jax.tree.structure(dict.fromkeys(RESULT, 0))
    try:
        return serialize_executable.deserialize_and_load(
            data, arguments, results, backend="cpu", execution_devices=[cpu_device()]
        )
    except Exception as error:
        raise InputError(_INSTEAD.format(f"JAX does not load it: {error}")) from error


def _refusal(needs: dict[str, Any]) -> str | None:
    """The reason why an executable with these needs cannot run here, or None."""
    if needs["machine"] != platform.machine():
        return f"it is for CPUs of {needs['machine']}, and this is one of {platform.machine()}"
    missing = sorted(set(needs["instructions"]) - set(_instructions()))
    if missing:
        return f"it was compiled for a CPU with {', '.join(missing)}, which this one does not have"
    if needs["jaxlib"] != version("jaxlib"):
        return f"jaxlib {needs['jaxlib']} compiled it, and this is {version('jaxlib')}"
    return None


def _instructions() -> list[str]:
    """Names of the vector extensions of this CPU; empty where the system does not list them."""
    named = host_facts().get("vector_extensions")
    return list(named.value or ()) if named is not None else []


def cpu_device() -> Any | None:
    """The first local CPU device; None where JAX was told to use others alone."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
