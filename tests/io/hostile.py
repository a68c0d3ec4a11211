"""Files that claim more than they hold, and a process of limited memory that reads them.

``python tests/io/hostile.py [NUMBER [SEED]]`` makes that many (500): scans, configurations,
descriptions of checkpoints and programs. Each is read within 4.5 GB of address space and 5 s of a
processor; it may be refused, and may end neither the process nor with a MemoryError. A program that
was changed keeps the checksum of the whole one: JAX does not read every forged one safely.
"""

import functools
import gzip
import io
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fuzz

ADDRESS_SPACE = 4_500_000 << 10  # `ulimit -v 4500000`
SECONDS = 5
NUMBER = 500

Case = tuple[str, str]  # kind, and name of what is claimed
HUGE = (2**31 - 1, 2**31, 2**32 - 1, 10**9, 10**12, 2**62, 2**63 - 1, 10**25, 10**400, -1, 0)
ODD = (True, None, "x", [], {}, 1.5, float("nan"), float("inf"), -float("inf"), 1e300, [10**9] * 8)


# ---- scans


def _npy(shape, dtype="<f8", body=b""):
    head = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def _zip(members, kind=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


@functools.cache
def _zeros(megabytes):
    """An array of zeros, packed."""
    rows = megabytes * 2**20 // 8
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as member,
    ):
        member.write(_npy((rows,)))
        for _ in range(megabytes):
            member.write(bytes(2**20))
    return stream.getvalue()


def _npz(rng):
    huge = int(rng.choice(HUGE[:6]))
    points = _npy((12, 3), body=fuzz.POINTS.tobytes())
    return (
        {"xyz.npy": _npy((huge, 3)), "label.npy": _npy((12,))},
        {"xyz.npy": points, "label.npy": _npy((huge,))},
        {"xyz.npy": points, "junk.npy": _npy((huge, 10**6))},
        {"xyz.npy": _npy((-huge, -3))},
        {"xyz.npy": _npy((huge, 0))},
        {"xyz.npy": _npy((3,) * 60)},
    )[rng.integers(6)]


def _bombs(rng):
    """Archives of zeros: in a member that is needed, in others, in gzip."""
    zeros = _zeros(256)
    with zipfile.ZipFile(io.BytesIO(zeros)) as archive:
        member = archive.read("a.npy")
    names = ("xyz.npy", "junk.npy", "label.npy")
    wanted = {"xyz.npy": _npy((12, 3), body=fuzz.POINTS.tobytes())}
    return _zip(wanted | {names[rng.integers(3)]: member})


def _las(rng):
    content = bytearray(fuzz.FILES[("legacy.las", "extended.las")[rng.integers(2)]]())
    at, layout = ((94, "<H"), (96, "<I"), (100, "<I"), (105, "<H"), (107, "<I"), (235, "<Q"),
                  (243, "<I"), (247, "<Q"), (375 + 18, "<H"))[rng.integers(9)]  # fmt: skip
    if at + struct.calcsize(layout) <= len(content):
        top = 2 ** (8 * struct.calcsize(layout))
        struct.pack_into(layout, content, at, int(rng.choice(HUGE[:7])) % top)
    return bytes(content)


def _pcd(rng):
    huge = int(rng.choice(HUGE[:7]))
    fields = "x y z n"
    count, points = (
        (f"1 1 1 {huge}", 12),
        ("1 1 1 1", huge),
        (f"{huge} 1 1 1", huge),
        (f"1 1 1 {2**20}", 2),
    )[rng.integers(4)]
    layout = ("ascii", "binary", "binary_compressed")[rng.integers(3)]
    body = b"1 2 3 4\n" * 12 if layout == "ascii" else struct.pack("<II", 2**32 - 1, 2**32 - 1)
    head = f"VERSION 0.7\nFIELDS {fields}\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT {count}\n"
    return (head + f"WIDTH {points}\nHEIGHT 1\nPOINTS {points}\nDATA {layout}\n").encode() + body


def _ply(rng):
    huge = int(rng.choice(HUGE[:8]))
    layout = ("ascii", "binary_little_endian", "binary_big_endian")[rng.integers(3)]
    element = (
        f"element vertex {huge}\nproperty float x\nproperty float y\nproperty float z\n",
        "element vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
        "element face 1\nproperty list uint int vertex_indices\n",
        f"element vertex {huge}\n",
        "element vertex 1\n" + "".join(f"property float a{i}\n" for i in range(20_000)),
    )[rng.integers(4)]
    body = b"0 0 0\n4000000000 1 2 3\n" if layout == "ascii" else bytes(12) + b"\xff" * 40
    return f"ply\nformat {layout} 1.0\n{element}end_header\n".encode() + body


def _text(rng):
    """One word, or one line, of a few megabytes."""
    content = (b"1 2 3\n", b"1" * 4_000_000, b"1 " * 2_000_000, b"1 2 3" + b" 4" * 500_000)
    return content[0] + content[rng.integers(4)] + b"\n1 2 3\n"


def _off(rng):
    huge = int(rng.choice(HUGE))
    counts = (f"{huge} 1 0", f"3 {huge} 0", f"{huge} {huge} {huge}")[rng.integers(3)]
    return f"OFF\n{counts}\n0 0 0\n1 0 0\n0 1 0\n{huge} 0 1 2\n".encode()


def _obj(rng):
    huge = int(rng.choice(HUGE))
    return b"v 0 0 0\nv 1 0 0\nv 0 1 0\n" + f"f 1 2 {huge}\nf -{huge} 1 2\n".encode()


def _hdf5(rng):
    huge = int(rng.choice([2**22, 2**31, 2**40]))
    how = int(rng.integers(3))

    def fill(file):
        if how == 0:  # not stored at all
            file.create_dataset("data", (huge, 64, 3), "f8", chunks=(64, 64, 3))
        elif how == 1:
            for number in range(200):
                file.create_dataset(f"a{number}", (2**21,), "f8", chunks=(2**12,))
            file["data"] = fuzz.POINTS
        else:
            file["data"] = fuzz.POINTS
            file.create_dataset("label", (12, huge), "i8", chunks=(1, 2**10))

    return fuzz._hdf5(fill)


def _gzipped(rng):
    return gzip.compress(b"1 2 3\n" + b"4 5 6\n" * 30_000_000, 1, mtime=0)


SCANS = {
    "a.npz": lambda rng: _zip(_npz(rng), (0, zipfile.ZIP_DEFLATED)[rng.integers(2)]),
    "bomb.npz": _bombs,
    "a.npy": lambda rng: _npy(
        ((int(rng.choice(HUGE[:7])), 3), (3,) * 40, (-5, -3), (2**31, 2**31))[rng.integers(4)],
        ("<f8", "|V0", "<f4", "<U1000000")[rng.integers(4)],
        bytes(96),
    ),
    "a.las": _las,
    "a.pcd": _pcd,
    "a.ply": _ply,
    "a.txt": _text,
    "a.xyz": _text,
    "a.off": _off,
    "a.obj": _obj,
    "a.h5": _hdf5,
    "a.txt.gz": _gzipped,
}  # fmt: skip


# ---- settings, checkpoints and programs

CONFIG = {
    "out": '"o"', "seed": "0", "devices": "1", "data.workers": "0", "data.radius": "0",
    "data.columns": "4", "augment.jitter": "0", "augment.crop": "0", "augment.scale": "[1, 1]",
    "model.width": "1", "model.voxel_size": "1", "model.region": "[]", "training.steps": "2",
    "training.batch_size": "1", "training.samples": "1", "training.checkpoint_every": "1",
    "training.learning_rate": "0.1",
}  # fmt: skip


def _toml(rng):
    value = (
        *(str(number) for number in HUGE), "inf", "nan", "1e300", '"x"', "true",
        "[" * 5000 + "]" * 5000, f"[{'9, ' * 100_000}]", '"' + "x" * 5_000_000 + '"', "9" * 5000,
    )  # fmt: skip
    changed = {list(CONFIG)[rng.integers(len(CONFIG))]: value[rng.integers(len(value))]}
    lines = {"": [], "data": [], "augment": [], "model": [], "training": []}
    for name, text in (CONFIG | changed).items():
        table, _, key = name.rpartition(".")
        lines[table].append(f"{key} = {text}")
    lines["data"] += ['format = "files"', 'folder = "."', 'train = ["*.npz"]']
    text = "\n".join(lines.pop("")) + "\n"
    return text + "".join(f"[{table}]\n" + "\n".join(own) + "\n" for table, own in lines.items())


DESCRIPTION = {
    "task": "segment",
    "network": {
        "class_names": ["a", "b"], "voxel_size": 0.5, "width": 0.25, "learning_rate": 0.1,
        "steps": 2, "network": "small", "attributes": [], "weight_decay": 0.01,
        "dtype": "float32", "class_weights": None, "options": {},
    },
}  # fmt: skip
OPTIONS = ("blocks", "planes", "stem", "width", "ndim", "dtype", "none")


def _description(rng):
    values = json.loads(json.dumps(DESCRIPTION))
    value = (*HUGE, *ODD, ["x"] * 200_000, [1] * 100_000)[rng.integers(len(HUGE) + len(ODD) + 2)]
    if rng.integers(3) == 0:
        values["network"]["options"] = {OPTIONS[rng.integers(len(OPTIONS))]: value}
    else:
        names = list(values["network"])
        values["network"][names[rng.integers(len(names))]] = value
    return json.dumps(values)


def _about(rng, about):
    names = [name for name in about if name != "algorithms"]
    value = (*HUGE, *ODD, [0] * 100_000)[rng.integers(len(HUGE) + len(ODD) + 1)]
    return {**about, names[rng.integers(len(names))]: value}


def _program(rng, path):
    """A program with another description, or a part of it broken, cut, packed or claimed to be."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    names, how = list(parts), rng.integers(5)
    name = names[rng.integers(len(names))]
    if how < 2:
        parts["about.json"] = json.dumps(_about(rng, json.loads(parts["about.json"]))).encode()
    elif how == 2:
        parts[name] = fuzz._flip(parts[name], rng)
    elif how == 3:
        parts[name] = parts[name][: rng.integers(len(parts[name]))]
    else:
        parts[name] = bytes(300 << 20)
        return _zip(parts)
    return _zip(parts, zipfile.ZIP_STORED)


KINDS = ("scan", "scan", "toml", "checkpoint", "program")


class Reader:
    """Reads hostile files of each kind, after a whole one."""

    def __init__(self, folder: Path) -> None:
        from flax import nnx

        from voxax.cli.segmentation_task import Segmentation
        from voxax.export import export_program, load_program
        from voxax.models.checkpoint import save_checkpoint
        from voxax.nn.modules import SubMConv3d

        self.folder, self.program = folder, folder / "whole.voxax"
        self.checkpoint = folder / "checkpoint"
        network = Segmentation.from_json(DESCRIPTION["network"])
        save_checkpoint(self.checkpoint, network.trainer().tree(), DESCRIPTION, 1)
        export_program(SubMConv3d(3, 4, 3, rngs=nnx.Rngs(0)), self.program, capacity=64, channels=3)
        load_program(self.program)
        self.read_checkpoint()
        np.savez(folder / "a.npz", xyz=fuzz.POINTS)
        for name in fuzz.FILES:
            if name.endswith((".las", ".ply", ".h5", ".npz")):
                self.read_scan(folder / name, fuzz.FILES[name]())

    def read_scan(self, path, content):
        from voxax.io import read

        path.write_bytes(content)
        try:
            read(path, points=200)
        finally:
            path.unlink()

    def read_checkpoint(self):
        from voxax.cli.tasks import check_weights, restore, task_of

        task = task_of(self.checkpoint)
        check_weights(self.checkpoint, task)
        restore(self.checkpoint, task.trainer())

    def case(self, rng):
        """Make one, and return its name, how it is read, and its size."""
        from voxax.cli.train_config import read_config
        from voxax.export import load_program

        kind = KINDS[rng.integers(len(KINDS))]
        if kind == "scan":
            name = list(SCANS)[rng.integers(len(SCANS))]
            content = SCANS[name](rng)
            return name, functools.partial(self.read_scan, self.folder / name, content)
        if kind == "toml":
            path = self.folder / "a.toml"
            path.write_text(_toml(rng))
            return kind, functools.partial(read_config, path)
        if kind == "checkpoint":
            (self.checkpoint / "1" / "description" / "metadata").write_text(_description(rng))
            return kind, self.read_checkpoint
        path = self.folder / "a.voxax"
        path.write_bytes(_program(rng, self.program))
        return kind, functools.partial(load_program, path)


def _child(seed, start, stop):
    """Read cases `start` to `stop`; a line of JSON before and after each."""
    from voxax.errors import VoxaxError

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder))
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        for number in range(start, stop):
            name, read = reader.case(np.random.default_rng([seed, number]))
            fuzz._say(number=number, name=name)
            began, problem = time.process_time(), ""
            try:
                read()
                how = "read"
            except VoxaxError:
                how = "refused"
            except BaseException as error:
                how, problem = "raised", f"{type(error).__name__}: {str(error)[:300]}"
            seconds = time.process_time() - began
            if seconds > SECONDS:
                problem += f" {seconds:.1f} s"
            fuzz._say(number=number, name=name, how=how, seconds=seconds, problem=problem)


def read_all(number, seed=0):
    """Read that many in processes of limited memory, and return a line of JSON for each."""
    found, start = [], 0
    while start < number:
        command = [sys.executable, __file__, "child", str(seed), str(start), str(number)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120 + 10 * number)
        lines = [json.loads(line) for line in told.stdout.splitlines()]
        if not lines:
            raise RuntimeError(told.stderr[-2000:])
        found += [line for line in lines if "how" in line]
        if "how" not in lines[-1]:
            problem = f"the process ended with {told.returncode}: {told.stderr[-300:]}"
            found.append({**lines[-1], "how": "ended", "problem": problem, "seconds": 0.0})
        start = lines[-1]["number"] + 1
    return found


def main():
    if sys.argv[1:2] == ["child"]:
        _child(*map(int, sys.argv[2:]))
        return
    number, seed = ([*map(int, sys.argv[1:]), *(NUMBER, 0)[len(sys.argv) - 1 :]])[:2]
    found = read_all(number, seed)
    hows = {how: sum(line["how"] == how for line in found) for how in ("read", "refused")}
    wrong = [line for line in found if line["problem"]]
    longest = max(line["seconds"] for line in found)
    sys.stdout.write(f"{len(found)}: {hows}, wrong {len(wrong)}, longest {longest:.2f} s\n")
    sys.stdout.writelines(
        f"    {line['number']} {line['name']}: {line['problem']}\n" for line in wrong
    )


if __name__ == "__main__":
    main()
