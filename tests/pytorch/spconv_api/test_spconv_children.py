"""Children of multiprocessing import voxax's spconv where their parent does, and nothing else does.

Each script runs in a process of its own, once where the real spconv is found and once where none
is: a stand-in, first on the path, fails in one way or the other.
"""

import os
import subprocess
import sys

import pytest

from voxax.torch.spconv import children

pytestmark = pytest.mark.torch

THEIRS = {
    "beside": "raise RuntimeError('the real spconv')\n",
    "alone": "raise ModuleNotFoundError('No module named spconv', name='spconv')\n",
}

HELPER = """
import spconv.pytorch as spconv

OURS = spconv.__name__
"""

# A network and a data set in one file, as small projects have them.
SCRIPT = """
import sys
import torch
import torch.multiprocessing as mp
import spconv.pytorch as spconv
from spconv.utils import Point2VoxelCPU3d
from helper import OURS


class Scans(torch.utils.data.Dataset):
    def __init__(self):
        self.net = spconv.SubMConv3d(1, 2, 3)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        cells = torch.tensor([[0, 0, 0, index]], dtype=torch.int32)
        x = spconv.SparseConvTensor(torch.ones(1, 1), cells, [4, 4, 4], 1)
        with torch.no_grad():
            return self.net(x).features.sum(), OURS, __name__


def rank(index, queue):
    loader = torch.utils.data.DataLoader(
        Scans(), batch_size=2, num_workers=1, multiprocessing_context=HOW
    )
    queue.put([batch[1:] for batch in loader])


HOW = sys.argv[1]
if __name__ == "__main__":
    if "preload" in sys.argv:
        mp.set_forkserver_preload(["helper"])
    if "ranks" in sys.argv:  # workers of a child
        queue = mp.get_context(HOW).SimpleQueue()
        mp.start_processes(rank, args=(queue,), nprocs=1, start_method=HOW)
        found = queue.get()
    else:
        loader = torch.utils.data.DataLoader(
            Scans(), batch_size=2, num_workers=1, multiprocessing_context=HOW
        )
        found = [batch[1:] for batch in loader]
    print(*sorted({text for batch in found for texts in batch for text in texts}))
"""


@pytest.fixture(params=["beside", pytest.param("alone", marks=pytest.mark.slow)])
def folder(request, tmp_path):
    (tmp_path / "helper.py").write_text(HELPER)
    stand_in(tmp_path, request.param)
    return tmp_path


def stand_in(folder, how):
    package = folder / "theirs" / "spconv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(THEIRS[how])


def run(folder, *arguments):
    theirs = str(folder / "theirs")
    path = [theirs, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


WAYS = [
    ("spawn",),
    pytest.param(("forkserver", "preload"), marks=pytest.mark.slow),
    pytest.param(("spawn", "ranks"), marks=pytest.mark.slow),
    pytest.param(("forkserver", "ranks"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_workers_import_what_the_script_does(folder, way):
    (folder / "train.py").write_text(SCRIPT)
    found = run(folder, "-m", "voxax.torch.spconv", "train.py", *way)
    assert found == "__mp_main__ voxax.torch.spconv"


@pytest.mark.slow
def test_workers_of_a_module(folder):
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(SCRIPT)
    found = run(folder, "-m", "voxax.torch.spconv", "-m", "package.train", "spawn")
    assert found.endswith("voxax.torch.spconv")


# `install` in a program's own code, and what it must not reach.
LIBRARY = """
import concurrent.futures
import importlib
import multiprocessing
import subprocess
import sys


def name_of(module):
    try:
        return importlib.import_module(module).__name__
    except (ImportError, RuntimeError) as error:
        return type(error).__name__


def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules} & {"voxax", "jax", "torch"})


def in_child(function, *arguments):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    import voxax.torch.spconv

    voxax.torch.spconv.install()
    print(in_child(name_of, "spconv.pytorch"), in_child(name_of, "cumm.tensorview"))
    print(in_child(loaded))
    code = "import lib; print(lib.name_of('spconv.pytorch'))"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    voxax.torch.spconv.uninstall()
    print(in_child(name_of, "spconv.pytorch") != "voxax.torch.spconv")
"""


@pytest.mark.slow
def test_only_children_and_only_while_installed(tmp_path):
    stand_in(tmp_path, "beside")
    (tmp_path / "lib.py").write_text(LIBRARY)
    lines = run(tmp_path, "lib.py").split("\n")
    ours, _, other, plain = [line for line in lines if line]
    assert ours == "voxax.torch.spconv voxax.torch.spconv.tensorview"
    assert lines[1] == "[]"  # a child that does not import spconv loads nothing
    assert other == "RuntimeError"
    assert plain == "True"


def test_this_file_needs_the_standard_library_only():
    file = children.__file__
    code = f"import runpy; runpy.run_path({file!r}); import sys; print('voxax' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
