"""Broken files of every kind that voxax reads; each is read, or refused with an error of voxax.

The process may have 4.5 GB of address space, a file 5 s of a processor, and a reader as much memory
as ``io/fuzz.py`` allows.
"""

import functools
import io
import resource
import shutil
import signal
import sys
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from campaign.trials import generator, require

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "io"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tuning"))
import fuzz

WHOLE = 10_000
SECONDS = 60  # of the clock: a library's own loop takes no signal
ADDRESS_SPACE = 4_500 << 20
KINDS = {"reader": 0.7, "checkpoint": 0.1, "program": 0.08, "configuration": 0.06, "cache": 0.06}
READERS = [name for name in fuzz.FILES if name != "points.e57" or find_spec("pye57")]

CONFIGURATION = """\
task = "segment"
out = "runs"
seed = 3
[data]
format = "files"
folder = "scans"
train = ["a*.npz"]
validation = ["b.npz"]
classes = { "1" = "ground", "2" = "house" }
attributes = ["intensity"]
radius = 50
workers = 0
[augment]
scale = [0.9, 1.1]
jitter = 0.01
drop = 0.1
[model]
name = "small"
voxel_size = 0.5
width = 0.25
[training]
steps = 100
batch_size = 2
checkpoint_every = 10
learning_rate = 1e-3
"""


def draw(seed, number):
    """The kind of file, and the number that its changes follow from."""
    rng = generator("files", seed, number)
    kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
    name = str(rng.choice(READERS)) if kind == "reader" else ""
    return {"kind": kind, "name": name, "changes": int(rng.integers(2**31))}


def start(folder):
    """Write and read whole files, and lower the process's limits.

    One of each kind and for each reader: what its packages take when they load is not a file's.
    """
    return Files(folder)


class _TooLongError(BaseException):
    pass


def _stop(*_):
    raise _TooLongError


def _rank(path):
    return str(path.parent), path.name if len(path.name) < 32 else "", path.stat().st_size


class Files:
    def __init__(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.rng, self.size = None, 0  # without a generator: whole files
        self.kinds = {
            "reader": self._reader,
            "checkpoint": self._checkpoint,
            "program": self._program,
            "configuration": self._configuration,
            "cache": self._cache,
        }
        self._make_checkpoint()
        self._make_program()
        self._make_cache()
        for kind in self.kinds:
            for name in READERS if kind == "reader" else ("",):
                self.kinds[kind](name, lambda content: content)
        signal.signal(signal.SIGPROF, _stop)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

    def __call__(self, trial):
        from voxax.errors import VoxaxError

        rng = np.random.default_rng(trial["changes"])
        change = functools.partial(fuzz.broken, rng=rng)
        self.rng, self.size = rng, 0
        before = fuzz._memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        used = resource.getrusage(resource.RUSAGE_SELF)
        signal.setitimer(signal.ITIMER_PROF, fuzz.SECONDS)
        came = "read"
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # what our own arithmetic warns of
            warnings.filterwarnings("ignore", category=UserWarning)  # a step is passed over
            try:
                self.kinds[trial["kind"]](trial["name"], change)
            except VoxaxError:
                came = "refused"
            except _TooLongError:
                raise TimeoutError(f"longer than {fuzz.SECONDS} s of a processor") from None
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        taken = max(0, fuzz._memory("VmHWM") - before)
        room = fuzz.BYTES_PER_BYTE * self.size + fuzz.BYTES
        require(taken <= room, f"{taken >> 20} MiB for {self.size} bytes")
        seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        kind = trial["kind"]
        return {
            f"{kind}, {came}": 1,
            f"longest of a {kind}, s": round(seconds, 3),
            f"longest of a {kind}, MiB": taken >> 20,
        }

    def _put(self, path, content, change):
        changed = change(content)
        self.size = len(changed)
        path.write_bytes(changed)

    def _reader(self, name, change):
        from voxax.io import read

        path = self.folder / name
        self._put(path, fuzz.FILES[name](), change)
        read(path, points=200)

    def _make_checkpoint(self):
        from voxax.cli.segmentation_task import Segmentation
        from voxax.models.checkpoint import save_checkpoint

        settings = {"class_names": ("a", "b"), "voxel_size": 0.5, "width": 0.25}
        task = Segmentation(**settings, learning_rate=1e-3, steps=9)
        description = {"task": task.task, "network": task.to_json(), "order": {"seed": 0}}
        rng = np.random.default_rng(0)
        self.trees = {}
        for step in (4, 8):
            tree = {"steps": np.asarray(step), "w": rng.normal(size=(27, 4, 8)).astype("f4")}
            tree |= {f"b{i}": rng.normal(size=8) for i in range(4)}
            self.trees[step] = tree
            save_checkpoint(self.folder / "whole", tree, {**description, "step": step}, step)
        whole = self.folder / "whole"
        # Names of data files are drawn anew with each save.
        paths = sorted((p for p in whole.rglob("*") if p.is_file()), key=_rank)
        self.members = [path.relative_to(whole) for path in paths]

    def _checkpoint(self, name, change):
        from voxax.cli.tasks import task_of
        from voxax.models.checkpoint import load_arrays

        del name
        folder = self.folder / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "whole", folder)
        member = None
        if self.rng is not None:
            member = self.members[self.rng.integers(len(self.members))]
            self._put(folder / member, (folder / member).read_bytes(), change)
        task_of(folder)
        found = load_arrays(folder, self.trees[8])
        tree = self.trees.get(int(found["steps"]))
        require(tree is not None, f"step {found['steps']}, which nobody saved")
        for key, value in tree.items():
            require(np.array_equal(found[key], value), f"{member}: {key} has other values")

    def _make_program(self):
        from voxax.export import export_program
        from voxax.nn.modules import SpatiallySparseConv

        path = self.folder / "model.voxax"
        export_program(SpatiallySparseConv(3, 2, 3), path, capacity=8, channels=3)
        self.program = path.read_bytes()

    def _program(self, name, change):
        """Change the file, or a member of it with the archive's sums as they should be."""
        from voxax.export import load_program

        del name
        path = self.folder / "broken.voxax"
        if self.rng is not None and self.rng.random() < 0.5:
            with zipfile.ZipFile(io.BytesIO(self.program)) as archive:
                members = {info.filename: archive.read(info) for info in archive.infolist()}
            chosen = sorted(members)[self.rng.integers(len(members))]
            members[chosen] = change(members[chosen])
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w") as archive:
                for member, content in members.items():
                    archive.writestr(member, content)
            self._put(path, stream.getvalue(), lambda content: content)
        else:
            self._put(path, self.program, change)
        load_program(path)

    def _configuration(self, name, change):
        from voxax.cli.train_config import read_config

        del name
        path = self.folder / "run.toml"
        self._put(path, CONFIGURATION.encode(), change)
        read_config(path).augment.transform()

    def _make_cache(self):
        from cache_entries import DEVICE, entry, measured

        from voxax.tuning.cache import save_file

        added = {
            (f"key {i}", "0.10.2"): entry(measured(rows=i), measured("other")) for i in range(5)
        }
        path = self.folder / "tuning" / f"{DEVICE}.json"
        save_file(path, DEVICE, added)
        self.cache = path.read_bytes()

    def _cache(self, name, change):
        """Reading raises nothing at all, and what is put then is kept."""
        from cache_entries import DEVICE, entry

        from voxax.tuning.cache import TuningCache

        del name
        place = self.folder / "tuning"
        for old in place.iterdir():
            old.unlink()
        cache = TuningCache(place, DEVICE)
        self._put(cache.path, self.cache, change)
        for key in range(5):
            cache.get(f"key {key}")
        cache.put("a new key", entry())
        require(cache.flush(), "nothing can be saved beside the broken file")
        require(TuningCache(place, DEVICE).get("a new key") is not None, "what was put is lost")
