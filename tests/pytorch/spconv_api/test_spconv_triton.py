"""On a machine with a GPU, spconv-triton is spconv where it is installed: a stand-in for it here.

``VOXAX_TEST_SPCONV_TRITON`` names a folder that ``pip install --target`` has put spconv-triton and
triton into, for a test of its own names.
"""

import importlib
import os
import subprocess
import sys
import warnings

import pytest
import torch

import voxax.torch.spconv as spconv
from own_process import run_python
from voxax.errors import InputError, MissingExtraError, ModuleLoadedError
from voxax.torch.spconv import aliases

pytestmark = pytest.mark.torch

FILES = {
    "__init__.py": "from spconv_triton import constants\n__version__ = '1.0.0'\n",
    "constants.py": "",
    "pytorch/__init__.py": "from spconv_triton.pytorch.conv import SubMConv3d\n",
    "pytorch/conv.py": "class SubMConv3d: pass\n",
    "utils/__init__.py": "",
}


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    for name, text in FILES.items():
        file = tmp_path / "theirs" / "spconv_triton" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "theirs"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("spconv", "cumm")]:
        monkeypatch.delitem(sys.modules, name)
    aliases._say_triton.cache_clear()
    yield tmp_path
    spconv.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "spconv_triton"]:
        del sys.modules[name]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("stand_in", "gpu")
def test_it_is_spconv_where_there_is_a_gpu_and_says_so_once():
    with pytest.warns(UserWarning, match=r"a GPU, and spconv-triton .*device='cpu'"):
        spconv.install()
    import spconv as theirs
    from spconv.pytorch.conv import SubMConv3d

    assert theirs.__name__ == "spconv_triton"
    assert SubMConv3d.__module__ == "spconv_triton.pytorch.conv"
    for name in ("constants", "pytorch", "pytorch.conv", "utils"):
        found = importlib.import_module(f"spconv.{name}")
        assert found is sys.modules[f"spconv_triton.{name}"]
    assert "cumm" not in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spconv.install()
        spconv.uninstall()
        spconv.install()
        spconv.install(device="cuda")
    with pytest.raises(ModuleLoadedError, match=r"'cuda'.*not.*'cpu'.*uninstall"):
        spconv.install(device="cpu")
    spconv.uninstall()
    assert "spconv" not in sys.modules


@pytest.mark.usefixtures("stand_in", "gpu")
def test_the_cpu_can_be_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spconv.install(device="cpu")
        spconv.install()
    assert importlib.import_module("spconv.pytorch") is spconv


@pytest.mark.usefixtures("stand_in")
def test_without_a_gpu_it_is_voxax(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    spconv.install()
    assert importlib.import_module("spconv.pytorch") is spconv


@pytest.mark.usefixtures("gpu")
def test_without_spconv_triton_it_is_voxax(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("spconv", "cumm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(aliases, "_TRITON", "absent_spconv_triton")
    with pytest.raises(MissingExtraError, match="pip install spconv-triton"):
        spconv.install(device="cuda")
    spconv.install()
    assert importlib.import_module("spconv.pytorch") is spconv
    spconv.uninstall()


def test_other_devices():
    with pytest.raises(InputError, match="device='mps': expected 'cpu', 'cuda'"):
        spconv.install(device="mps")


SCRIPT = """
import multiprocessing
import sys
import torch


def name():
    import spconv.pytorch
    return spconv.pytorch.__name__


if __name__ == "__main__":
    torch.cuda.is_available = lambda: True  # a child has no such patch
    import voxax.torch.spconv
    voxax.torch.spconv.install(**dict(word.split("=") for word in sys.argv[1:]))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(name))
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "spconv_triton.pytorch"), (["device=cpu"], "voxax.torch.spconv")],
)
def test_children_import_the_same(stand_in, arguments, expected):
    (stand_in / "script.py").write_text(SCRIPT)
    path = os.pathsep.join([str(stand_in / "theirs"), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "script.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=stand_in,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == expected
    assert ran.stderr.count("a GPU") == (not arguments)


NETWORK = """
import warnings
import torch
import voxax.torch.spconv

torch.cuda.is_available = lambda: True
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    voxax.torch.spconv.install()
assert any("spconv-triton" in str(each.message) for each in said)

import spconv
import spconv.pytorch as theirs
from spconv.core import ConvAlgo
from spconv.pytorch import functional, ops
from spconv.pytorch.conv import SubMConv3d
from spconv.pytorch.modules import SparseModule, is_spconv_module
from spconv.pytorch.utils import PointToVoxel
from spconv.tools import CUDAKernelTimer

assert spconv.constants.__name__ == "spconv_triton.constants"
net = theirs.SparseSequential(SubMConv3d(4, 8, 3, bias=False), torch.nn.ReLU())
ours = voxax.torch.spconv.SparseSequential(
    voxax.torch.spconv.SubMConv3d(4, 8, 3, bias=False), torch.nn.ReLU()
)
ours.load_state_dict(net.state_dict())
print(type(net[0]).__module__)
"""


@pytest.mark.slow
def test_the_real_package_has_these_names():
    folder = os.environ.get("VOXAX_TEST_SPCONV_TRITON")
    if not folder:
        pytest.skip("VOXAX_TEST_SPCONV_TRITON does not name a folder with spconv-triton")
    said = run_python("-c", NETWORK, PYTHONPATH=folder)
    assert said.strip() == "spconv_triton.pytorch.conv"
