"""Public functions are plain functions, and no module has the name of one."""

import copy
import functools
import importlib
import pickle
import pkgutil
import subprocess
import sys
import types

import jax
import pytest

import voxax as vx
import voxax.nn.functional

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
        assert found is importlib.import_module(name), name


@pytest.mark.parametrize(
    "statements",
    [
        "import voxax.kernels.registry; assert voxax.kernels.registry.names()",
        "import voxax.kernels.implicit_gemm.cpu as cpu; assert cpu.NATIVE",
        "with voxax.algorithms('explicit_gemm'): pass",
        "import voxax.geometry.kernel_maps as maps; assert maps.KernelMap is voxax.KernelMap",
        "import voxax.geometry.planning as planning; assert planning.plan is voxax.plan",
        "from voxax.kernels import registry; assert registry.names()",
    ],
)
def test_statements_of_a_new_process(statements):
    command = [sys.executable, "-c", f"import voxax\n{statements}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "function", [vx.plan, vx.kernel_map, vx.algorithms, vx.explain, vx.hardware.describe]
)
def test_they_are_functions(function):
    assert type(function) is types.FunctionType
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


def test_they_are_traced():
    compiled = jax.jit(vx.nn.functional.dropout, static_argnames="rate")
    voxels = vx.Voxels.from_coords([[0, 1, 2, 3]], [[1.0]])
    assert compiled.__name__ == "dropout"
    key = jax.random.key(0)
    assert compiled(voxels, rate=0.0, key=key).features.shape == (voxels.capacity, 1)


def test_what_an_extra_brings_is_listed_where_it_is_installed():
    script = (
        "import sys, voxax as vx\n"
        "assert {'plan', 'models', 'Voxels'} <= set(dir(vx))\n"
        "assert 'models' not in vx.__all__\n"
        "sys.modules['flax'] = None\n"
        "assert 'models' not in dir(vx)\n"
        "try:\n    vx.models\n"
        "except vx.MissingExtraError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'voxax.models needs flax: pip install "voxax[nn]"' in ran.stdout
