"""One name for a function and a module, such as `plan` and `voxax.geometry.plan`."""

import copy
import functools
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys

import jax
import pytest

import voxax as vx
import voxax.nn.functional
from voxax._shared_names import FunctionAndModule

OPTIONAL_MODULES = ("_kernel", "__main__", "libvoxax_native")


def submodules():
    """Every module of voxax that is importable here."""
    for module in pkgutil.walk_packages(vx.__path__, "voxax."):
        if module.name.endswith(OPTIONAL_MODULES):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError:  # of an optional package
            continue
        yield module.name


def test_every_module_is_reached_through_its_package():
    for name in submodules():
        found = functools.reduce(getattr, name.split(".")[1:], vx)
        module = importlib.import_module(name)
        if found is not module:
            assert isinstance(found, FunctionAndModule), name
            own = [n for n in vars(module) if not n.startswith("__")]
            assert [n for n in own if getattr(found, n) is not vars(module)[n]] == [], name


@pytest.mark.parametrize(
    "statements",
    [
        "import voxax.kernels.registry; assert voxax.kernels.registry.names()",
        "import voxax.kernels.implicit_gemm.cpu as cpu; assert cpu.NATIVE",
        "with voxax.algorithms('explicit_gemm'): pass",
        "import voxax.geometry.kernel_map as maps; assert maps.KernelMap is voxax.KernelMap",
        "from voxax.kernels import registry; assert registry.names()",
    ],
)
def test_statements_of_a_new_process(statements):
    command = [sys.executable, "-c", f"import voxax\n{statements}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("function", [vx.plan, vx.hardware.describe])
def test_they_are_like_functions(function):
    assert callable(function)
    assert function.__doc__ == function.__wrapped__.__doc__
    assert inspect.signature(function) == inspect.signature(function.__wrapped__)
    assert inspect.isroutine(function)  # help() prints the function
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert repr(function).startswith("<function ")
    assert "Plan" not in vars(functools.wraps(function)(lambda: None))
    with pytest.raises(AttributeError, match="abacus"):
        _ = function.abacus


def test_they_are_traced_and_bound():
    compiled = jax.jit(vx.nn.functional.dropout, static_argnames="rate")
    voxels = vx.Voxels.from_coords([[0, 1, 2, 3]], [[1.0]])
    assert compiled.__name__ == "dropout"
    key = jax.random.key(0)
    assert compiled(voxels, rate=0.0, key=key).features.shape == (voxels.capacity, 1)

    class Holder:
        method = vx.plan

    holder = Holder()
    assert holder.method.__self__ is holder
