"""A file that is replaced in one step."""

import os
import resource
import stat

import pytest

from voxax._atomic_file import replacing, write_atomically


def test_writes_bytes_and_text(tmp_path):
    path = tmp_path / "file"
    assert write_atomically(path, b"\xff\n") == path
    assert path.read_bytes() == b"\xff\n"
    write_atomically(str(path), "ü\n")
    assert path.read_bytes() == "ü\n".encode()
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(("private", "mode"), [(False, 0o640), (True, 0o600)])
def test_mode_follows_the_umask_unless_private(tmp_path, private, mode):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", b"", private=private)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_failure_leaves_the_older_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def interrupted():
        with replacing(path) as file:
            file.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_of_a_write_names_the_file(tmp_path):
    """The system's own names none."""
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            write_atomically(path, bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(path)
    assert os.listdir(tmp_path) == []


def test_an_error_of_opening_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"directory: '.*/none/file'$"):
        write_atomically(tmp_path / "none" / "file", b"")
    with pytest.raises(IsADirectoryError, match=f"directory: '{tmp_path}'$"):
        write_atomically(tmp_path, b"")
    assert os.listdir(tmp_path) == []
