"""Executables of exported programs: machine code that JAX compiled for one kind of CPU.

Machine code needs a CPU that has its instructions. The file therefore names these instructions, and
the version of jaxlib that compiled the code. With another processor or version, voxax refuses the
code before it reads it.

JAX stores an executable as a pickle, which can run any code when it is read. voxax therefore signs
executables by an HMAC with a secret of the user: 32 random bytes in a file of voxax's cache
directory that nobody else can read. A checksum does not protect, because an attacker who changes
the file can write a new checksum.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
import stat
import uuid
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from voxax._atomic_file import write_atomically
from voxax._file_lock import PATIENCE, locked
from voxax.errors import InputError
from voxax.hardware import blocked, cache_dir
from voxax.hardware.cpu import host_facts

_INSTEAD = (
    "the executable does not run here: {}; load_program(path) compiles the program of the same "
    "file for this process"
)
# The names of a program's results.
RESULT = ("coords", "count", "features", "num_dropped", "rows")


def compiled_here(exported: Any, shapes: tuple[Any, ...]) -> tuple[bytes, dict[str, Any]]:
    """Compile an exported program for this CPU; return the executable and its requirements.

    `shapes` are the shapes and dtypes of the arguments ``(weights, coords, features)``. The
    requirements are the version of jaxlib, the machine type and the CPU's vector extensions.
    """
    device = cpu_device()
    if device is None:
        raise InputError("executables are for CPUs, which this process does not have")

    def run(*arguments: Any) -> Any:
        return exported.call(*arguments)

    # An executable from JAX's compilation cache cannot be stored again, because it has lost its
    # functions (JAX 0.10.2). A name that is in no cache forces a new compilation.
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
    """Raise InputError unless this process meets the requirements from :func:`compiled_here`.

    Call this before you read the executable.
    """
    missing = ", ".join(sorted(set(needs["instructions"]) - set(_instructions())))
    if needs["machine"] != platform.machine():
        reason = f"it is for CPUs of {needs['machine']}, and this is one of {platform.machine()}"
    elif missing:
        reason = f"it was compiled for a CPU with {missing}, which this one does not have"
    elif needs["jaxlib"] != version("jaxlib"):
        reason = f"jaxlib {needs['jaxlib']} compiled it, and this is {version('jaxlib')}"
    else:
        return
    raise InputError(_INSTEAD.format(reason))


def loaded(data: bytes, num_weights: int) -> Callable[..., Any]:
    """Load the executable that :func:`compiled_here` returned; return it as a function.

    The function takes ``(weights, coords, features)`` and returns a dict of arrays. `num_weights`
    is the number of arrays in ``weights``. `data` is a pickle, so loading may run any code.
    """
    arguments = jax.tree.structure((([0] * num_weights, 0, 0), {}))
    results = jax.tree.structure(dict.fromkeys(RESULT, 0))
    try:
        return serialize_executable.deserialize_and_load(
            data, arguments, results, backend="cpu", execution_devices=[cpu_device()]
        )
    except Exception as error:
        raise InputError(_INSTEAD.format(f"JAX does not load it: {error}")) from error


def _instructions() -> list[str]:
    """Return the names of this CPU's vector extensions; empty if the system does not list them."""
    named = host_facts().get("vector_extensions")
    return list(named.value or ()) if named is not None else []


def cpu_device() -> Any | None:
    """Return the first local CPU device; None if JAX is configured without the CPU backend."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


_BYTES = 32


def signed(*parts: bytes) -> bytes:
    """Return this user's signature (HMAC) of ``parts``; the first call creates the secret."""
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), PATIENCE):
            if not os.path.lexists(path):
                write_atomically(path, secrets.token_bytes(_BYTES), private=True)
    except OSError as error:
        reason = blocked(path.parent) or error.strerror or str(error)
        raise InputError(f"no secret to sign with can be kept in {path}: {reason}") from error
    return _signature(_secret(path), parts)


def distrust(signature: bytes | None, *parts: bytes) -> str | None:
    """Return a reason not to trust ``parts``; None if `signature` is this user's signature."""
    if signature is None:
        return "nobody signed it"
    path = _path()
    if not os.path.lexists(path):
        return f"this user has no secret, {path}, and so has signed nothing"
    if not hmac.compare_digest(_signature(_secret(path), parts), signature):
        return f"it was not signed with this user's secret, {path}"
    return None


def _path() -> Path:
    try:
        return cache_dir() / "secret"
    except RuntimeError as error:
        raise InputError(f"no folder for a secret: {error}. Set VOXAX_CACHE_DIR to one") from error


def _signature(secret: bytes, parts: tuple[bytes, ...]) -> bytes:
    code = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        code.update(len(part).to_bytes(8, "little"))  # no bytes can move between parts
        code.update(part)
    return code.digest()


def _secret(path: Path) -> bytes:
    """Return the user's secret key for signatures, the content of the file `path`.

    Raises:
      InputError: the file cannot be read, does not have the size of a key, belongs to another user,
        or may be read by others.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise InputError(f"the secret {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            problem = "is no plain file"
        elif hasattr(os, "geteuid") and state.st_uid != os.geteuid():
            problem = f"belongs to the user {state.st_uid}"
        elif hasattr(os, "geteuid") and stat.S_IMODE(state.st_mode) & 0o077:
            problem = f"may be read by others (mode {stat.S_IMODE(state.st_mode):04o}, not 0600)"
        else:
            secret = file.read(_BYTES + 1)
            if len(secret) == _BYTES:
                return secret
            problem = f"does not have {_BYTES} bytes"
    raise InputError(
        f"the secret {path} {problem}: delete it, and export executables again, which makes another"
    )
