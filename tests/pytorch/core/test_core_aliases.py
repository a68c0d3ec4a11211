"""The packages under other libraries' names: registered, passed on to children, and taken back.

Scripts run in a process of their own, once where the real library is found and once where none
is: a stand-in, first on the path, fails in one way or the other.
"""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing import util
from types import ModuleType

import pytest

from own_process import run_python
from voxax.errors import ModuleLoadedError
from voxax.torch.core import children
from voxax.torch.core.script import run_script

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@dataclass(frozen=True)
class Door:
    """A library, what of it networks import, a layer, a tensor, and the features of one."""

    package: str
    library: str
    imported: str
    roots: tuple[str, ...]
    layer: str
    tensor: str
    features: str

    def module(self):
        return importlib.import_module(self.package)

    def names(self):
        return [name for name in sys.modules if name.partition(".")[0] in self.roots]


DOORS = {
    "spconv": Door(
        "voxax.torch.spconv",
        "spconv",
        "spconv.pytorch",
        ("spconv", "cumm"),
        "library.SubMConv3d(1, 2, 3)",
        "library.SparseConvTensor(torch.ones(1, 1), cells, [4, 4, 4], 1)",
        "features",
    ),
    "minkowski": Door(
        "voxax.torch.minkowski",
        "MinkowskiEngine",
        "MinkowskiEngine",
        ("MinkowskiEngine", "MinkowskiEngineBackend", "MinkowskiOps"),
        "library.MinkowskiConvolution(1, 2, kernel_size=3, dimension=3)",
        "library.SparseTensor(torch.ones(1, 1), coordinates=cells)",
        "F",
    ),
    "torchsparse": Door(
        "voxax.torch.torchsparse",
        "torchsparse",
        "torchsparse",
        ("torchsparse",),
        "library.nn.Conv3d(1, 2, 3)",
        "library.SparseTensor(torch.ones(1, 1), cells)",
        "feats",
    ),
    "torchsparse 1.4": Door(
        "voxax.torch.torchsparse.version_1_4",
        "torchsparse",
        "torchsparse",
        ("torchsparse",),
        "library.nn.Conv3d(1, 2, 3)",
        "library.SparseTensor(torch.ones(1, 1), cells.flip(1))",
        "feats",
    ),
}


@pytest.fixture(params=DOORS)
def door(request):
    return DOORS[request.param]


@pytest.fixture
def absent(monkeypatch):
    """No library is loaded, whatever tests before have imported."""
    roots = {root for door in DOORS.values() for root in door.roots}
    for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for door in DOORS.values():
        door.module().uninstall()


@pytest.mark.usefixtures("absent")
def test_names_are_registered_and_taken_back(door):
    modules = {name: module for name, module in sys.modules.items() if door.package in name}
    before = {name: dict(vars(module)) for name, module in modules.items()}
    path, start = [*sys.meta_path], util.spawnv_passfds
    for _ in range(2):
        door.module().install()
        assert importlib.import_module(door.imported) is door.module()
        names = door.names()
        assert {name.partition(".")[0] for name in names} == set(door.roots)
        for name in names:
            found = sys.modules[name]
            assert importlib.import_module(name) is found
            # `import a.b` and then `a.b`: the module, or where the library has one, what hides it.
            parent, _, last = name.rpartition(".")
            if parent:
                assert hasattr(sys.modules[parent], last), name
            if found.__spec__.loader is not None:
                assert found.__spec__.name == found.__name__
    for _ in range(2):
        door.module().uninstall()
        assert door.names() == []
    assert sys.meta_path == path
    assert util.spawnv_passfds is start
    for name, module in modules.items():
        left = vars(module).keys() - before[name].keys()
        assert not {last for last in left if not isinstance(vars(module)[last], ModuleType)}
        assert not {last for last in left if vars(module)[last].__name__ != f"{name}.{last}"}


@pytest.mark.usefixtures("absent")
def test_another_library_is_not_replaced(door, monkeypatch):
    other = ModuleType(door.library)
    other.__file__ = f"site-packages/{door.library}/__init__.py"
    monkeypatch.setitem(sys.modules, door.library, other)
    said = rf"already imported, from {other.__file__}.*before.*`python -m {door.package}`"
    with pytest.raises(ModuleLoadedError, match=said):
        door.module().install()
    door.module().uninstall()
    assert sys.modules[door.library] is other


@pytest.mark.usefixtures("absent")
def test_one_is_taken_back_and_the_others_stay(door):
    # One of two versions of a library at a time.
    doors = [each for each in DOORS.values() if each is door or each.library != door.library]
    doors = [*{each.library: each for each in doors}.values()]
    for each in doors:
        each.module().install()
    door.module().uninstall()
    passed_on = util.spawnv_passfds.of_voxax
    for each in doors:
        here = each is not door
        assert (each.library in sys.modules) is here
        assert (each.package in passed_on) is here


def run(folder, *arguments, code=0):
    theirs = str(folder / "theirs")
    path = [theirs, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert ran.returncode == code, ran.stderr
    return (ran.stdout + ran.stderr if code == 1 else ran.stdout).strip()


THEIRS = {
    "beside": "raise RuntimeError('the real library')\n",
    "alone": "raise ModuleNotFoundError('No module named {0}', name='{0}')\n",
}


def stand_in(folder, library, how):
    package = folder / "theirs" / library
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(THEIRS[how].format(library))


SCRIPT = """
import sys
import {imported} as library
import helper
assert not {{"jax", "jaxlib", "flax", "torch._dynamo"}} & set(sys.modules)
print(library.__name__, __name__, sys.argv[1:], helper.__name__)
raise SystemExit(3)
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_running_a_script(door, how, tmp_path):
    (tmp_path / "network.py").write_text(SCRIPT.format(imported=door.imported))
    (tmp_path / "helper.py").write_text("")
    stand_in(tmp_path, door.library, "beside")
    named = ["network.py"] if how == "script" else ["-m", "network"]
    said = run(tmp_path, "-m", door.package, *named, "--lr", "1", code=3)
    assert said == f"{door.package} __main__ ['--lr', '1'] helper"


def test_nothing_to_run(door, tmp_path):
    assert "usage" in run(tmp_path, "-m", door.package, code=1)
    assert door.library in run(tmp_path, "-m", door.package, "--help")


@pytest.mark.parametrize("arguments", [["-m"], ["absent.py"]])
def test_nothing_that_can_run(arguments, tmp_path):
    said = run(tmp_path, "-m", "voxax.torch.spconv", *arguments, code=1)
    assert ("absent.py" if arguments == ["absent.py"] else "usage") in said


# Children.

HELPER = """
import {imported} as library

OURS = library.__name__
"""

# A network and a data set in one file, as small projects have them.
TRAIN = """
import sys
import torch
import torch.multiprocessing as mp
import {imported} as library
from helper import OURS


class Scans(torch.utils.data.Dataset):
    def __init__(self):
        self.net = {layer}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        cells = torch.tensor([[0, 0, 0, index]], dtype=torch.int32)
        x = {tensor}
        with torch.no_grad():
            return self.net(x).{features}.sum(), OURS, __name__


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
    print(*sorted({{text for batch in found for texts in batch for text in texts}}))
"""


def write(folder, door, how="beside"):
    (folder / "helper.py").write_text(HELPER.format(imported=door.imported))
    (folder / "train.py").write_text(TRAIN.format(**vars(door)))
    stand_in(folder, door.library, how)


def test_workers_import_what_the_script_does(door, tmp_path):
    write(tmp_path, door)
    found = run(tmp_path, "-m", door.package, "train.py", "spawn")
    assert found == f"__mp_main__ {door.package}"


WAYS = [("forkserver", "preload"), ("spawn", "ranks"), ("forkserver", "ranks")]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("how", THEIRS)
def test_other_workers_and_their_children(door, how, way, tmp_path):
    write(tmp_path, door, how)
    found = run(tmp_path, "-m", door.package, "train.py", *way)
    assert found == f"__mp_main__ {door.package}"


@pytest.mark.slow
def test_workers_of_a_module(door, tmp_path):
    write(tmp_path, door)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "train.py").rename(package / "train.py")
    found = run(tmp_path, "-m", door.package, "-m", "package.train", "spawn")
    assert found.endswith(door.package)


# `install` in a program's own code, and what it must not reach.
LIBRARY = """
import concurrent.futures
import importlib
import multiprocessing
import subprocess
import sys

ROOTS, PACKAGE = {roots!r}, {package!r}


def name_of(module):
    try:
        found = importlib.import_module(module)
        return found.__name__, found.__spec__.name
    except (ImportError, RuntimeError) as error:
        return type(error).__name__


def loaded():
    return sorted({{name.partition(".")[0] for name in sys.modules}} & {{"voxax", "jax", "torch"}})


def in_child(function, *arguments):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


if __name__ == "__main__":
    door = importlib.import_module(PACKAGE)
    door.install()
    for root in ROOTS:
        assert in_child(name_of, root) == name_of(root), root
    assert name_of({imported!r}) == (PACKAGE, PACKAGE) == in_child(name_of, {imported!r})
    assert in_child(loaded) == []  # a child that imports no such name loads nothing
    code = "import lib; print(lib.name_of({imported!r}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said.strip() == "RuntimeError", said
    door.uninstall()
    assert in_child(name_of, {imported!r}) == "RuntimeError"
    print("done")
"""


@pytest.mark.slow
def test_only_children_and_only_while_installed(door, tmp_path):
    stand_in(tmp_path, door.library, "beside")
    (tmp_path / "lib.py").write_text(LIBRARY.format(**vars(door)))
    assert run(tmp_path, "lib.py") == "done"


def test_what_children_run_first_needs_the_standard_library_only():
    file = children.__file__
    code = f"import runpy; runpy.run_path({file!r}); import sys; print('voxax' in sys.modules)"
    assert run_python("-I", "-c", code).strip() == "False"


def test_a_folder_is_no_script(door, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path)])
    with pytest.raises(SystemExit, match="is a folder without __main__"):
        run_script(door.package, lambda: None, None)
