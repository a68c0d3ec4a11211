"""The registry: which kernels it finds, and in which order."""

import sys

import pytest

from voxax.errors import AlgorithmError
from voxax.kernels import Kernel, lookup, names, registry
from voxax.kernels.dynamic import cpu as dynamic_cpu
from voxax.kernels.implicit_gemm import cpu, gpu, tpu, xla

FILE = """
import dataclasses

from voxax.kernels.explicit_gemm.xla import EXPLICIT_GEMM

SECOND = dataclasses.replace(EXPLICIT_GEMM, name="from_a_file", platform="cpu", rank=5000)
FIRST = dataclasses.replace(EXPLICIT_GEMM, name="from_a_file", rank=4000)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose modules belong to ``voxax.kernels``."""
    package = sys.modules["voxax.kernels"]
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    registry.kernels.cache_clear()
    yield tmp_path
    registry.kernels.cache_clear()


def test_an_algorithm_in_a_file_of_its_own_is_found(folder):
    (folder / "from_a_file.py").write_text(FILE)
    (folder / "needs_much_kernel.py").write_text("raise ImportError('it must not be loaded')")
    assert names() == (
        "explicit_gemm", "implicit_gemm", "cutlass_implicit_gemm", "from_a_file",
    )  # fmt: skip
    assert "from_a_file" not in names("depthwise")
    assert [kernel.platform for kernel in lookup("from_a_file", "grouped")] == ["any", "cpu"]


def test_the_order_is_that_of_preference():
    assert names("dense") == ("explicit_gemm", "implicit_gemm", "cutlass_implicit_gemm")
    assert names("depthwise") == ("explicit", "implicit")
    assert names("dynamic") == ("grouped", "masked", "tiled", "selected", "specialized")
    assert lookup("implicit_gemm") == (cpu.NATIVE, gpu.TRITON, tpu.WINDOWED, xla.IMPLICIT_GEMM)
    assert lookup("grouped", "dynamic")[0] is dynamic_cpu.NATIVE


def test_each_record_is_found_once():
    found = registry.kernels()
    assert all(isinstance(kernel, Kernel) for kernel in found)
    keys = [(kernel.name, kernel.kind, kernel.platform) for kernel in found]
    assert len(set(keys)) == len(keys)


def test_unknown_names_are_errors_that_list_the_known():
    with pytest.raises(AlgorithmError, match="'missing'; known: explicit, implicit"):
        lookup("missing", "depthwise")
