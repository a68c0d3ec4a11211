"""The wait: seconds from a process's start to its first results, and to those of other sizes.

    python benchmarks/first_call.py --data FOLDER [--rounds 3] [--only WORDS]

Each measurement is a process of its own, and contestants take turns: voxax with an empty cache
folder ("cold"), voxax that finds the programs of an earlier process in it ("kept"), the same
kernels without a compiler (``voxax.torch.spconv``), and spconv with one thread, where alone it is
right. Networks, optimizer (AdamW), voxels and labels are the same. First calls count from the start
of the process, imports included; only the two contestants of PyTorch are not charged for importing
torch-pointcloud, of which SpUNet34C needs little. Passes count from the first scan. "From the start
of the process" is one pass over the scans. voxax runs it as ``voxax train``, which also reads
files, augments and chooses sizes; its validation at the end does not count.

Kernel maps are made inside first calls and passes. Later calls are measured twice, and their memory
too: with maps made in each call, which is all that spconv does, and with maps kept from one call to
the next, where a contestant can keep them.

Medians of the rounds, and the ratio to spconv's. Results go to results/first_call.md and .json,
after each task. About an hour on 2 cores. Needs

    pip install torch spconv==2.3.8 torch-pointcloud==0.0.18
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.own_process import in_own_process, peak_added_by
from benchmarks.turns import seconds_of
from benchmarks.whole_networks import allow_bias, grid_of

SCAN, VOXEL_SIZE = "lidar_os0_128.npz", 0.15
CLASSES = 20
SCANS, SMALLEST, LARGEST = 30, 1_800, 58_000  # of the epochs, in voxels of 0.1 m
SIZES = 20  # of the eager calls
STEADY = 5  # calls
CONTESTANTS = ("voxax, cold", "voxax, kept", "voxax.torch.spconv", "spconv, 1 thread")
JAX = CONTESTANTS[:2]
MADE, KEPT = "maps made", "maps kept"
Runs = dict[str, Callable[[], Any]]
"""Later calls by what they do about kernel maps; the first one is the first call too."""
TASKS = {
    "first forward": "MinkUNet18",
    "first training step": "MinkUNet18",
    "SpUNet34C": "SpUNet34C",
    "epochs": "MinkUNet18",
    "voxax train": "MinkUNet18",
    "eager": "five layers",
    "eager gradients": "five layers",
}
LAYERS = ("eager", "eager gradients")
START = float(os.environ.get("FIRST_CALL_START", "0"))


def cells_of(folder: Path, size: float) -> Any:
    """Distinct cells of the sweep from 0 on, as an ``int32[N, 3]`` array, nearest first."""
    import numpy as np
    from benchmarks.workloads import positions_of

    positions = positions_of(folder / SCAN, np.float64)
    positions = positions[np.argsort(np.linalg.norm(positions, axis=1), kind="stable")]
    cells = np.floor(positions / size).astype(np.int64)
    _, first = np.unique(cells, axis=0, return_index=True)
    cells = cells[np.sort(first)]
    return (cells - cells.min(0) // 16 * 16).astype(np.int32)


def inputs(folder: Path, path: Path) -> dict[str, int]:
    """Write every task's voxels to a file, and return what there is."""
    import numpy as np

    rng = np.random.default_rng(0)
    whole, fine = cells_of(folder, VOXEL_SIZE), cells_of(folder, 0.1)
    sizes = rng.permutation(np.geomspace(SMALLEST, min(LARGEST, len(fine)), SCANS).astype(int))
    arrays = {"whole": rng.permutation(whole)}
    arrays |= {f"scan{i}": rng.permutation(fine[:n]) for i, n in enumerate(sizes)}
    np.savez(path, **arrays)
    return {"voxels": len(whole), "smallest": int(sizes.min()), "largest": int(sizes.max())}


def examples(path: str | Path, names: list[str]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield ``(int32[N, 4] rows, float32[N, 4] features, int64[N] labels)`` of each name."""
    import numpy as np

    with np.load(path) as file:
        for name in names:
            cells = file[name]
            rng = np.random.default_rng(len(cells))
            rows = np.column_stack([np.zeros(len(cells), np.int32), cells])
            yield (
                rows,
                rng.normal(size=(len(cells), 4)).astype(np.float32),
                rng.integers(0, CLASSES, len(cells)),
            )


CONFIG = f"""
[data]
format = "files"
folder = "."
train = ["scan*.npz"]
validation = ["held-out.npz"]

[data.classes]
{"".join(f'{i} = "class {i}"' + chr(10) for i in range(CLASSES))}
[model]
name = "MinkUNet18"
voxel_size = 0.1

[training]
steps = {SCANS}
"""


def write_scans(folder: Path, scans: Any) -> None:
    """A file for each scan, with a point in the middle of each voxel; one for the validation."""
    import numpy as np

    for i, (rows, _, labels) in enumerate(scans):
        positions = (rows[:, 1:] + 0.5).astype(np.float32) * np.float32(0.1)
        np.savez(folder / f"scan{i:02}.npz", xyz=positions, label=labels)
    np.savez(folder / "held-out.npz", xyz=positions, label=labels)


class WithJax:
    """voxax of JAX, as its quickstart and its trainers use it."""

    uncounted = 0.0

    def __init__(self, task: str) -> None:
        import voxax as vx
        from voxax.models import MinkUNet18, SpUNet

        vx.keep_programs()  # a trainer calls it by itself
        if task not in LAYERS and task != "voxax train":
            self.model = (SpUNet if TASKS[task] == "SpUNet34C" else MinkUNet18)(4, CLASSES)

    def bare(self, rows: Any, features: Any) -> Any:
        import voxax as vx

        return vx.Voxels.from_coords(rows, features, batch_size=1)

    def fresh(self, rows: Any, features: Any) -> Any:
        import voxax as vx

        return vx.plan(self.model, self.bare(rows, features))

    def later(self, rows: Any, features: Any) -> Runs:
        """Voxels with all maps, or with the capacities of the levels alone, when first asked."""
        import voxax as vx

        voxels = self.bare(rows, features)
        plan = vx.Plan.record(self.model, voxels)
        attach = functools.cache(lambda how: plan.attach(voxels, maps=how == KEPT))
        return {how: functools.partial(attach, how) for how in (KEPT, MADE)}

    def wait(self, result: Any) -> None:
        import jax

        jax.block_until_ready(result)

    def ready(self, trains: bool) -> Callable[[Any, Any], Any]:
        import numpy as np
        import optax
        from flax import nnx

        from voxax.models.training import Trainer

        if not trains:
            self.model.eval()
            run = nnx.jit(lambda model, voxels: model(voxels).features)
            return lambda voxels, labels: run(self.model, voxels)
        trainer = Trainer(self.model, optax.adamw(1e-3))

        def step(voxels: Any, labels: Any) -> Any:
            padded = np.full(voxels.capacity, -1, np.int32)
            padded[: len(labels)] = labels
            return trainer.step(voxels, padded)[0]

        return step

    def command(self, scans: Any) -> None:
        """``voxax train``: a step for each scan, with its default augmentation."""
        from voxax.cli import main as voxax_command

        with tempfile.TemporaryDirectory() as folder:
            write_scans(Path(folder), scans)
            config = Path(folder, "train.toml")
            config.write_text(CONFIG)
            if voxax_command(["train", str(config)]):
                raise RuntimeError("voxax train failed")
            found = json.loads(Path(folder, "voxax-train", "metrics.json").read_text())
        self.uncounted = found["seconds"]["validate"]

    def layers(self, gradients: bool) -> Callable[[Any], Any]:
        import jax
        import jax.numpy as jnp
        from flax import nnx

        from voxax.nn.modules import (
            BatchNorm,
            ReLU,
            Sequential,
            SparseConv3d,
            SparseConvTranspose3d,
            SubMConv3d,
        )

        class Layers(nnx.Module):
            def __init__(self) -> None:
                options: Any = {"use_bias": False, "rngs": nnx.Rngs(0)}
                self.fine = Sequential(
                    SubMConv3d(4, 32, 3, **options), BatchNorm(32), ReLU(),
                    SubMConv3d(32, 32, 3, **options), BatchNorm(32), ReLU(),
                )  # fmt: skip
                self.coarse = Sequential(
                    SparseConv3d(32, 64, 2, 2, **options), BatchNorm(64), ReLU(),
                    SubMConv3d(64, 64, 3, **options), BatchNorm(64), ReLU(),
                )  # fmt: skip
                self.up = SparseConvTranspose3d(64, 32, 2, 2, **options)
                self.end = Sequential(BatchNorm(32), ReLU())

            def __call__(self, voxels: Any) -> Any:
                fine = self.fine(voxels)
                return self.end(self.up(self.coarse(fine), fine)).features

        layers = Layers()
        graph, params, rest = nnx.split(layers, nnx.Param, ...)

        def loss_of(params: Any, voxels: Any) -> Any:
            return jnp.square(nnx.merge(graph, params, rest, copy=True)(voxels)).sum()

        return functools.partial(jax.grad(loss_of), params) if gradients else layers


class WithTorch:
    """The layers that are called spconv: spconv's, or voxax's under its name."""

    uncounted = 0.0

    def __init__(self, task: str, ours: bool) -> None:
        import torch

        self.network, self.ours = TASKS[task], ours
        torch.set_num_threads(2 if ours else 1)
        torch.manual_seed(0)
        if ours:
            from voxax.torch import spconv

            spconv.install()
        from benchmarks.peers import spconv_minkunet

        spconv_minkunet.let_backward_run_on_cpu()
        if self.network == "SpUNet34C":
            begin = time.perf_counter()
            from torch_pointcloud.models import SparseUNetSegmentation

            self.uncounted = time.perf_counter() - begin
            self.model = SparseUNetSegmentation(4, CLASSES)
        elif task not in LAYERS:
            self.model = spconv_minkunet.build(None, 4, CLASSES)

    def bare(self, rows: Any, features: Any) -> Any:
        import spconv.pytorch as spconv
        import torch

        shape = list(grid_of(rows[:, 1:]))
        return spconv.SparseConvTensor(torch.from_numpy(features), torch.from_numpy(rows), shape, 1)

    fresh = bare

    def later(self, rows: Any, features: Any) -> Runs:
        """Tensors of voxax keep their maps; torch-pointcloud makes its own in each call."""
        found: Runs = {MADE: lambda: self.bare(rows, features)}
        if self.ours and self.network != "SpUNet34C":
            x = self.bare(rows, features)
            found[KEPT] = lambda: x
        return found

    def wait(self, result: Any) -> None:
        del result

    def ready(self, trains: bool) -> Callable[[Any, Any], Any]:
        import torch

        def call(x: Any) -> Any:
            if self.network != "SpUNet34C":
                return self.model(x)
            return self.model(x.features, x.indices[:, 1:].long(), x.indices[:, 0].long())

        self.model.train(trains)
        if not trains:
            allow_bias(self.model)
            return lambda x, labels: torch.no_grad()(call)(x)
        optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

        def step(x: Any, labels: Any) -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(call(x), torch.from_numpy(labels)).backward()
            optimizer.step()

        return step

    def layers(self, gradients: bool) -> Callable[[Any], Any]:
        import spconv.pytorch as spconv
        import torch
        from torch import nn

        def norm(channels: int) -> list[Any]:
            return [nn.BatchNorm1d(channels), nn.ReLU()]

        options = {"bias": False}
        layers = spconv.SparseSequential(
            spconv.SubMConv3d(4, 32, 3, indice_key="fine", **options), *norm(32),
            spconv.SubMConv3d(32, 32, 3, indice_key="fine", **options), *norm(32),
            spconv.SparseConv3d(32, 64, 2, 2, indice_key="down", **options), *norm(64),
            spconv.SubMConv3d(64, 64, 3, indice_key="coarse", **options), *norm(64),
            spconv.SparseInverseConv3d(64, 32, 2, indice_key="down", **options), *norm(32),
        )  # fmt: skip

        def call(x: Any) -> None:
            with torch.set_grad_enabled(gradients):
                out = layers(x).features
                if gradients:
                    layers.zero_grad()
                    out.square().sum().backward()

        return call


def one(task: str, who: str, path: str) -> dict[str, float]:
    """In a process of its own: what a contestant takes for a task."""
    contestant = WithJax(task) if who in JAX else WithTorch(task, who == "voxax.torch.spconv")
    names = {"epochs": SCANS, "voxax train": SCANS, **dict.fromkeys(LAYERS, SIZES)}
    if task in names:
        # Loading the numbers is nobody's work.
        scans = list(examples(path, [f"scan{i}" for i in range(names[task])]))
        if task == "voxax train" and isinstance(contestant, WithJax):
            run = functools.partial(contestant.command, scans)
        elif task in LAYERS:
            layers = contestant.layers("gradients" in task)

            def run() -> None:
                for rows, features, _ in scans:
                    contestant.wait(layers(contestant.bare(rows, features)))
        else:
            step = contestant.ready(trains=True)

            def run() -> None:
                for rows, features, labels in scans:
                    last = step(contestant.fresh(rows, features), labels)
                contestant.wait(last)

        if task == "voxax train":
            run()
            seconds = time.time() - START - contestant.uncounted
            return {f"{SCANS} scans, from the start of the process": seconds}
        word = task.replace("eager", "without jit, five layers").replace(" g", ", g")
        word = f"{SCANS} scans, training" if task == "epochs" else word
        return {f"{word}, {turn} pass": seconds_of(run) for turn in ("first", "second")}
    ((rows, features, labels),) = examples(path, ["whole"])
    network, training = TASKS[task], task != "first forward"
    name = "training step" if training else "forward"
    call, later = contestant.ready(training), contestant.later(rows, features)
    runs = {how: lambda x=x: contestant.wait(call(x(), labels)) for how, x in later.items()}
    next(iter(runs.values()))()
    seconds = time.time() - START - contestant.uncounted
    found = {f"{network}, first {name}": seconds}
    for how in (MADE, KEPT):
        if how in runs:
            runs[how]()  # may be a program of its own
            taken = [seconds_of(runs[how]) for _ in range(STEADY)]
            found[f"{network}, {name}, {how}"] = statistics.median(taken)
            if training:
                peak = peak_added_by(runs[how]) / 1e6
                found[f"{network}, memory of a {name}, {how}, MB"] = peak
    return found


def alone(task: str, who: str, path: Path, cache: Path) -> dict[str, float]:
    """:func:`one` in a process of its own, or nothing if that failed."""
    settings = {
        "OMP_NUM_THREADS": "1" if who == CONTESTANTS[-1] else "2",
        "VOXAX_CACHE_DIR": str(cache),
        "FIRST_CALL_START": repr(time.time()),
    }
    try:
        return in_own_process("first_call", "one", task, who, str(path), **settings)
    except RuntimeError as failure:
        print(f"{task}, {who} failed: {str(failure)[-600:]}", flush=True)
        return {}


def measured(task: str, rounds: int, path: Path, caches: Path) -> dict[str, dict[str, list[float]]]:
    """The figures of each contestant, by name; they take turns, back and forth."""
    found: dict[str, dict[str, list[float]]] = {}
    kept, cold = caches / "kept", caches / "cold"
    alone(task, "voxax, kept", path, kept)
    for number in range(rounds):
        for who in CONTESTANTS[:: -1 if number % 2 else 1]:
            shutil.rmtree(cold, ignore_errors=True)
            cache = kept if who == "voxax, kept" else cold
            for name, value in alone(task, who, path, cache).items():
                found.setdefault(name, {}).setdefault(who, []).append(value)
    print(json.dumps(found), flush=True)
    return found


def table(results: dict[str, dict[str, list[float]]]) -> list[str]:
    rows = []
    for name, by in results.items():
        middle = {who: statistics.median(values) for who, values in by.items()}
        absent = "" if KEPT in name else "failed"
        cells = [f"{middle[who]:.3g}" if who in middle else absent for who in CONTESTANTS]
        peer = middle.get(CONTESTANTS[-1])
        cells += [f"{middle[who] / peer:.2f}" if peer and who in middle else "" for who in JAX]
        rows.append([name, *cells])
    return report.table(["", *CONTESTANTS, "cold / spconv", "kept / spconv"], rows)


def main() -> None:
    parser = report.options(__doc__, data=True, rounds=3)
    parser.add_argument("--only", default="", help="tasks with these words")
    options = parser.parse_args()
    for name in ("JAX_COMPILATION_CACHE_DIR", "VOXAX_AUTOTUNE"):
        os.environ.pop(name, None)
    versions = ", ".join(f"{n} {version(n)}" for n in ("jax", "torch", "spconv"))
    results: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "voxels.npz")
        facts = inputs(Path(options.data), path)
        text = [
            "# The wait",
            "",
            f"`benchmarks/first_call.py`: medians of {options.rounds} processes each, which took "
            f"turns. {report.device()}; {versions}. "
            f"{SCAN}: {facts['voxels']:,} voxels of {VOXEL_SIZE} m; {SCANS} "
            f"parts of it with {facts['smallest']:,} to {facts['largest']:,} voxels of 0.1 m, of "
            f"which the calls without `jit` take {SIZES}. Seconds, where nothing else is said. "
            "The first calls count from the start of the process, but for the import of "
            "torch-pointcloud by both contestants of PyTorch; passes count from the first scan. "
            '"From the start of the process" is one pass; voxax runs it as `voxax train`, which '
            "also reads files, augments and chooses sizes. "
            f"Both make kernel maps. Later calls are there twice: with {MADE} in each, as spconv "
            f"does, and with {KEPT}, where a contestant can keep them.",
            "",
        ]
        for task in TASKS:
            if all(word in task for word in options.only.split()):
                results |= measured(task, options.rounds, path, Path(folder))
                report.write(options.out, "first_call", results, [*text, *table(results)])


if __name__ == "__main__":
    main()
