"""Runs pytest on the native library of another folder: ``with_library.py FOLDER ARGUMENTS...``."""

import sys
from pathlib import Path

import pytest


class OtherLibrary:
    def __init__(self, folder):
        self.folder = Path(folder).resolve()

    def pytest_configure(self, config):
        # Not before conftest.py has set JAX's platform.
        from voxax import _native
        from voxax._native import _path

        _native.__path__.insert(0, str(self.folder))
        found = _path()
        if found is None or found.parent != self.folder or _native.unavailable() is not None:
            raise pytest.UsageError(
                f"{self.folder} has no library to test: {_native.unavailable()}"
            )


if __name__ == "__main__":
    raise SystemExit(pytest.main(sys.argv[2:], plugins=[OtherLibrary(sys.argv[1])]))
