"""Signatures of what this user wrote, for files that can run code when they are read.

They are HMACs by a secret of the user, 32 random bytes in a file of voxax's cache directory that
nobody else can read. A checksum would not do: who changes the file writes a new one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from voxax._atomic_file import write_atomically
from voxax._file_lock import PATIENCE, locked
from voxax.errors import InputError
from voxax.hardware import blocked, cache_dir

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


def refusal(signature: bytes | None, *parts: bytes) -> str | None:
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
