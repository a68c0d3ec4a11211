"""Executables of exported programs: what JAX compiled for this process's kind of CPU.

Machine code runs where its instructions exist. So the file says which these are, and which
version of jaxlib compiled it; another processor or version is refused before any of it is read.

JAX stores it as a pickle, which can run code when it is read, so this user's are signed: an HMAC by
a secret of the user, 32 random bytes in a file of voxax's cache directory that nobody else can
read. A checksum would not do: who changes the file writes a new one.
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
    """Refuse an executable by what it needs, as of :func:`compiled_here`, before it is read."""
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
    """Load an executable that :func:`compiled_here` returned: a pickle, which may run any code."""
    arguments = jax.tree.structure((([0] * num_weights, 0, 0), {}))
    results = jax.tree.structure(dict.fromkeys(RESULT, 0))
    try:
        return serialize_executable.deserialize_and_load(
            data, arguments, results, backend="cpu", execution_devices=[cpu_device()]
        )
    except Exception as error:
        raise InputError(_INSTEAD.format(f"JAX does not load it: {error}")) from error


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


_BYTES = 32


def signed(*parts: bytes) -> bytes:
    """Return the signature of some bytes by this user; the first time the secret is made."""
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
    """Return why bytes are not trusted, or None where this user signed them."""
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
        code.update(len(part).to_bytes(8, "little"))  # no part can lend bytes to the next
        code.update(part)
    return code.digest()


def _secret(path: Path) -> bytes:
    """Return the secret, of a file that this user alone can read and write."""
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
