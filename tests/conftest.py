"""Settings and fixtures that every test shares."""

import atexit
import collections
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

# Before JAX is imported anywhere: tests run on CPU unless a platform is asked for, and draw
# pictures without a screen.
os.environ["JAX_PLATFORMS"] = os.environ.get("VOXAX_TEST_PLATFORM", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

# Nothing is measured unless a test asks for it, and nothing that tests measure is kept: so results
# depend neither on this machine's speed nor on what was cached before. Subprocesses inherit both.
os.environ["VOXAX_AUTOTUNE"] = "off"
# Tests own the folders that programs take unless told: their home, with its caches, and the one
# that they run in.
os.environ["HOME"] = tempfile.mkdtemp(prefix="voxax-tests-")
os.environ["VOXAX_CACHE_DIR"] = os.path.join(os.environ["HOME"], "voxax")
os.environ["XDG_CACHE_HOME"] = os.path.join(os.environ["HOME"], ".cache")
os.environ["XDG_CONFIG_HOME"] = os.path.join(os.environ["HOME"], ".config")
os.environ["XDG_DATA_HOME"] = os.path.join(os.environ["HOME"], ".local", "share")
os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

pytest.register_assert_rewrite("conformance", "oracle", "samples")

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(ROOT / ".hypothesis"))
DATA_VARIABLE = "VOXAX_TEST_DATA"

_OWNER = os.getpid()
_WORK = Path(os.environ["HOME"], "work")
_WORK.mkdir()


@atexit.register
def _remove_home(folder=os.environ["HOME"]):
    """Registered before voxax is imported, so it runs after voxax has saved what it knows."""
    if os.getpid() == _OWNER:  # a forked child shares the folder
        shutil.rmtree(folder, ignore_errors=True)


if _cache := os.environ.get("VOXAX_TEST_COMPILE_CACHE"):
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture(autouse=True, scope="session")
def _work_folder():
    """Run tests in an empty folder: a clone holds what its user's own commands wrote."""
    before = Path.cwd()
    os.chdir(_WORK)
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def _empty_work_folder():
    """Fail a test that leaves a file where it was run: another could find it."""
    yield
    left = os.listdir(_WORK)
    for name in left:
        path = _WORK / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert left == [], f"left in the working folder: {left}; write to tmp_path"


@pytest.fixture(autouse=True)
def _strict_jax(request):
    """Implicit dtype or rank promotion in the library is an error, unless a test relaxes it."""
    if request.node.get_closest_marker("lax_promotion"):
        yield
        return
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture(autouse=True)
def _own_weights(monkeypatch):
    """Layers built without ``rngs`` have the same weights whatever tests ran before."""
    if (constructor := sys.modules.get("voxax.nn.modules.constructor")) is not None:
        monkeypatch.setattr(constructor, "_made", itertools.count(1))


_KEPT_PROGRAMS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
)
_USUAL = {name: jax.config.values[name] for name in _KEPT_PROGRAMS}


@pytest.fixture(autouse=True)
def _usual_folder():
    """Trainers and commands say where JAX keeps compiled programs, for a process of their own."""
    _keep_programs_as_usual()  # a fixture of a module may have made a trainer
    yield
    _keep_programs_as_usual()


def _keep_programs_as_usual() -> None:
    if {name: jax.config.values[name] for name in _KEPT_PROGRAMS} != _USUAL:
        for name, value in _USUAL.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # it would keep to its folder


@pytest.fixture
def takes_ctrl_c():
    """Take Ctrl-C as a terminal's process does: a shell has it ignored in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_configure(config):
    """A bare ``pytest`` takes a twelfth of the cases; one that names files, or marks, takes all."""
    bare = config.args_source is not pytest.Config.ArgsSource.ARGS
    if bare and config.option.markexpr.startswith("not slow"):
        os.environ.setdefault("VOXAX_TEST_EVERY", "12")  # workers inherit it


@pytest.hookimpl(trylast=True)  # of those that the marks leave
def pytest_collection_modifyitems(config, items):
    """Keep every n-th of each test's cases, with ``VOXAX_TEST_EVERY=n``; one of fewer than n.

    ``VOXAX_TEST_TURN=k`` says which: n values of k in a row take every case. Of those that are kept
    ``VOXAX_TEST_PARTS=m`` takes one in m, so that some tests are left out.
    """
    every = int(os.environ.get("VOXAX_TEST_EVERY", "1"))
    parts = int(os.environ.get("VOXAX_TEST_PARTS", "1"))
    turn = int(os.environ.get("VOXAX_TEST_TURN", "0"))
    if every == parts == 1:
        return
    tests = [item.nodeid.split("[")[0] for item in items]
    cases = collections.Counter(tests)
    number = collections.Counter()
    kept, left = [], []
    for item, test in zip(items, tests, strict=True):
        period = min(every, cases[test])
        (left if (number[test] - turn) % period else kept).append(item)
        number[test] += 1
    part = turn // every  # another count than that of the cases, so that each case meets each part
    left += [item for place, item in enumerate(kept) if (place - part) % parts]
    kept = [item for place, item in enumerate(kept) if (place - part) % parts == 0]
    config.hook.pytest_deselected(items=left)
    items[:] = kept


_finished = itertools.count(1)


@pytest.fixture(autouse=True)
def _few_programs():
    """Forget compiled programs before they are too many for the process.

    Each takes about ten memory mappings. Linux allows a process 65,530 of them by default, and XLA
    crashes where it gets no more: after about 5000 tests.
    """
    yield
    if next(_finished) % 50 == 0 and _mappings() > 20_000:
        jax.clear_caches()
        gc.collect()


def _mappings() -> int:
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.fixture(scope="module")
def forms():
    """Every form of every algorithm is one that can be pinned; see ``conformance.forms``."""
    from conformance.forms import registered

    with registered():
        yield


@pytest.fixture
def programs():
    """A list that grows by one name for each program that is compiled."""
    compiled, listening = [], True

    def listen(event, duration, fun_name=None, **more):
        if listening and event.endswith("/backend_compile_duration"):
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield compiled
    listening = False


@pytest.fixture
def portable(monkeypatch):
    """Only algorithms that every machine has, as where voxax came without native kernels."""
    from voxax.kernels.implicit_gemm import cpu

    monkeypatch.setattr(cpu, "refusal", lambda problem: "not in this test")


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, fresh for each test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def scans() -> Path:
    """The folder of real scans; skips where there is none."""
    given = os.environ.get(DATA_VARIABLE)
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real scans at {folder}; set {DATA_VARIABLE} to a folder that has them")
    return folder
