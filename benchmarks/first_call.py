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

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from own_process import peak_added_by
from turns import write_results

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results" / "first_call"
sys.path[:0] = [str(ROOT.parent), str(ROOT / "peers")]

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
START = float(os.environ.get("FIRST_CALL_START", "0"))


def since_start() -> float:
    return time.time() - START


def cells_of(folder: Path, size: float) -> Any:
    """Distinct cells of the sweep from 0 on, as an ``int32[N, 3]`` array, nearest first."""
    import numpy as np

    import voxax.io

    positions = np.asarray(voxax.io.read(folder / SCAN).positions, np.float64)
    positions = positions[np.isfinite(positions).all(1)]
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


def examples(path: Path, names: list[str]) -> Iterator[tuple[Any, Any, Any]]:
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

    def __init__(self, task: str) -> None:
        self.task, self.uncounted = task, 0.0

    def voxels(self, rows: Any, features: Any) -> Any:
        import voxax as vx

        return vx.Voxels.from_coords(rows, features, batch_size=1)

    def network(self) -> Any:
        from voxax.models import MinkUNet18, SpUNet

        return (SpUNet if TASKS[self.task] == "SpUNet34C" else MinkUNet18)(4, CLASSES)

    def planned(self, model: Any, rows: Any, features: Any) -> Callable[[str], Any]:
        """Voxels with all maps, or with the capacities of the levels alone, when first asked."""
        import voxax as vx

        voxels = self.voxels(rows, features)
        plan = vx.Plan.record(model, voxels)
        return functools.cache(lambda how: plan.attach(voxels, maps=how == KEPT))

    def forward(self, rows: Any, features: Any) -> Runs:
        import jax
        from flax import nnx

        import voxax as vx

        vx.keep_programs()  # a trainer calls it by itself
        model = self.network()
        model.eval()
        run = nnx.jit(lambda model, voxels: model(voxels).features)
        planned = self.planned(model, rows, features)
        return {
            how: lambda how=how: jax.block_until_ready(run(model, planned(how)))
            for how in (KEPT, MADE)
        }

    def step(self, rows: Any, features: Any, labels: Any) -> Runs:
        import jax
        import optax

        from voxax.models.training import Trainer

        model = self.network()
        trainer = Trainer(model, optax.adamw(1e-3))
        planned = self.planned(model, rows, features)
        padded = self.padded(planned(KEPT), labels)
        return {
            how: lambda how=how: jax.block_until_ready(trainer.step(planned(how), padded)[0])
            for how in (KEPT, MADE)
        }

    @staticmethod
    def padded(voxels: Any, labels: Any) -> Any:
        import numpy as np

        out = np.full(voxels.capacity, -1, np.int32)
        out[: len(labels)] = labels
        return out

    def epoch(self, scans: Any) -> Callable[[], Any]:
        import jax
        import optax

        import voxax as vx
        from voxax.models.training import Trainer

        model = self.network()
        trainer = Trainer(model, optax.adamw(1e-3))

        def run() -> None:
            for rows, features, labels in scans:
                planned = vx.plan(model, self.voxels(rows, features))
                loss, *_ = trainer.step(planned, self.padded(planned, labels))
            jax.block_until_ready(loss)

        return run

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

    def eager(self, scans: Any, gradients: bool) -> Callable[[], Any]:
        import jax
        import jax.numpy as jnp
        from flax import nnx

        import voxax as vx
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
                return self.end(self.up(self.coarse(fine), fine))

        vx.keep_programs()
        layers = Layers()
        graph, params, rest = nnx.split(layers, nnx.Param, ...)

        def loss_of(params: Any, voxels: Any) -> Any:
            out = nnx.merge(graph, params, rest, copy=True)(voxels)
            return jnp.square(out.features).sum()

        def run() -> None:
            for rows, features, _ in scans:
                voxels = self.voxels(rows, features)
                if gradients:
                    out = jax.grad(loss_of)(params, voxels)
                else:
                    out = layers(voxels).features
                jax.block_until_ready(out)

        return run


class WithTorch:
    """The layers that are called spconv: spconv's, or voxax's under its name."""

    def __init__(self, task: str, ours: bool) -> None:
        import torch

        self.task, self.ours, self.uncounted = task, ours, 0.0
        torch.set_num_threads(2 if ours else 1)
        torch.manual_seed(0)
        if ours:
            from voxax.torch import spconv

            spconv.install()
        else:
            from spconv.pytorch import ops

            ops.get_current_stream = lambda: 0  # its backward asks for it on CPUs too

    def tensor(self, rows: Any, features: Any) -> Any:
        import spconv.pytorch as spconv
        import torch

        shape = [int(-(-(high + 1) // 16) * 16) for high in rows[:, 1:].max(0)]
        return spconv.SparseConvTensor(torch.from_numpy(features), torch.from_numpy(rows), shape, 1)

    def network(self) -> tuple[Any, Callable[[Any], Any]]:
        import torch

        if TASKS[self.task] == "SpUNet34C":
            begin = time.perf_counter()
            from torch_pointcloud.models import SparseUNetSegmentation

            self.uncounted = time.perf_counter() - begin
            model = SparseUNetSegmentation(4, CLASSES)

            def call(x: Any) -> Any:
                rows = x.indices
                return model(x.features, rows[:, 1:].long(), rows[:, 0].to(torch.int64))

            return model, call
        import spconv_minkunet

        model = spconv_minkunet.MinkUNet(4, CLASSES)
        return model, model

    def forward(self, rows: Any, features: Any) -> Runs:
        import torch
        from spconv.pytorch.conv import SparseConvolution

        model, call = self.network()
        model.eval()
        for module in model.modules():
            if not self.ours and isinstance(module, SparseConvolution):
                module.training = True  # it refuses a bias in evaluation mode

        def run(x: Any) -> None:
            with torch.no_grad():
                call(x)

        return self.runs(run, rows, features)

    def step(self, rows: Any, features: Any, labels: Any) -> Runs:
        train = self.trained()
        return self.runs(lambda x: train(x, labels), rows, features)

    def runs(self, run: Callable[[Any], Any], rows: Any, features: Any) -> Runs:
        """Tensors of voxax keep their maps; torch-pointcloud makes its own in each call."""
        found: Runs = {MADE: lambda: run(self.tensor(rows, features))}
        if self.ours and TASKS[self.task] != "SpUNet34C":
            x = self.tensor(rows, features)
            found[KEPT] = lambda: run(x)
        return found

    def trained(self) -> Callable[[Any, Any], None]:
        import torch
        from torch.nn import functional

        model, call = self.network()
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def train(x: Any, labels: Any) -> None:
            optimizer.zero_grad()
            functional.cross_entropy(call(x), torch.from_numpy(labels)).backward()
            optimizer.step()

        return train

    def epoch(self, scans: Any) -> Callable[[], Any]:
        train = self.trained()

        def run() -> None:
            for rows, features, labels in scans:
                train(self.tensor(rows, features), labels)

        return run

    def eager(self, scans: Any, gradients: bool) -> Callable[[], Any]:
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

        def run() -> None:
            for rows, features, _ in scans:
                with torch.set_grad_enabled(gradients):
                    out = layers(self.tensor(rows, features)).features
                    if gradients:
                        layers.zero_grad()
                        out.square().sum().backward()

        return run


def steady(run: Callable[[], Any]) -> float:
    """Median seconds of later calls."""
    times = []
    for _ in range(STEADY):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def passes(run: Callable[[], Any], name: str) -> dict[str, float]:
    """Seconds of the first and of the second pass over the scans."""
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return {f"{name}, first pass": times[0], f"{name}, second pass": times[1]}


def one(task: str, who: str, path: Path) -> dict[str, float]:
    """In a process of its own: what a contestant takes for a task."""
    contestant = WithJax(task) if who in JAX else WithTorch(task, who == "voxax.torch.spconv")
    names = {"epochs": SCANS, "voxax train": SCANS, "eager": SIZES, "eager gradients": SIZES}
    if task in names:
        # Loading the numbers is nobody's work.
        scans = list(examples(path, [f"scan{i}" for i in range(names[task])]))
        if task == "voxax train":
            if who in JAX:
                contestant.command(scans)
            else:
                contestant.epoch(scans)()
            seconds = since_start() - contestant.uncounted
            return {f"{SCANS} scans, from the start of the process": seconds}
        if task == "epochs":
            return passes(contestant.epoch(scans), f"{SCANS} scans, training")
        word = task.replace("eager", "without jit, five layers").replace(" g", ", g")
        return passes(contestant.eager(scans, "gradients" in task), word)
    ((rows, features, labels),) = examples(path, ["whole"])
    network, training = TASKS[task], task != "first forward"
    step = "training step" if training else "forward"
    given = (rows, features, labels) if training else (rows, features)
    runs: Runs = (contestant.step if training else contestant.forward)(*given)
    next(iter(runs.values()))()
    seconds = since_start() - contestant.uncounted
    found = {f"{network}, first {step}": seconds}
    for how in (MADE, KEPT):
        if how in runs:
            runs[how]()  # may be a program of its own
            found[f"{network}, {step}, {how}"] = steady(runs[how])
            if training:
                peak = peak_added_by(runs[how]) / 1e6
                found[f"{network}, memory of a {step}, {how}, MB"] = peak
    return found


def in_own_process(task: str, who: str, path: Path, cache: Path) -> dict[str, float]:
    """:func:`one`, or nothing if its process failed."""
    ours = who != "spconv, 1 thread"
    settings = {
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "2" if ours else "1",
        "VOXAX_CACHE_DIR": str(cache),
        "FIRST_CALL_START": repr(time.time()),
    }
    left = ("JAX_COMPILATION_CACHE_DIR", "VOXAX_AUTOTUNE")
    result = subprocess.run(
        [sys.executable, __file__, "--one", task, who, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={k: v for k, v in os.environ.items() if k not in left} | settings,
    )
    if result.returncode:
        print(f"{task}, {who} ended with {result.returncode}: {result.stderr[-600:]}", flush=True)
        return {}
    return json.loads(result.stdout.strip().splitlines()[-1])


def measured(task: str, rounds: int, path: Path, caches: Path) -> dict[str, dict[str, list[float]]]:
    """The figures of each contestant, by name; they take turns, back and forth."""
    found: dict[str, dict[str, list[float]]] = {}
    kept = caches / "kept"
    if not kept.exists() or not (kept / task).exists():
        in_own_process(task, "voxax, kept", path, kept)
        kept.mkdir(exist_ok=True)
        (kept / task).touch()
    for number in range(rounds):
        for who in CONTESTANTS[:: -1 if number % 2 else 1]:
            cold = caches / "cold"
            shutil.rmtree(cold, ignore_errors=True)
            cache = kept if who == "voxax, kept" else cold
            for name, value in in_own_process(task, who, path, cache).items():
                found.setdefault(name, {}).setdefault(who, []).append(value)
        for name, by in found.items():
            print(name, {who: [round(v, 3) for v in values] for who, values in by.items()})
    return found


def table(results: dict[str, dict[str, list[float]]]) -> list[str]:
    lines = [
        f"| | {' | '.join(CONTESTANTS)} | cold / spconv | kept / spconv |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, by in results.items():
        middle = {who: statistics.median(values) for who, values in by.items()}
        absent = "" if KEPT in name else "failed"
        cells = [f"{middle[who]:.3g}" if who in middle else absent for who in CONTESTANTS]
        peer = middle.get(CONTESTANTS[-1])
        cells += [f"{middle[who] / peer:.2f}" if peer and who in middle else "" for who in JAX]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:4], Path(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("VOXAX_TEST_DATA"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="tasks with these words")
    parser.add_argument("--beside", default="nothing", help="what ran beside, for the table")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()

    from importlib.metadata import version

    from voxax.hardware import describe

    info = describe()
    versions = ", ".join(f"{n} {version(n)}" for n in ("jax", "torch", "spconv"))
    results: dict[str, dict[str, list[float]]] = {}
    stored = options.out.with_suffix(".json")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "voxels.npz")
        facts = inputs(Path(options.data), path)
        text = [
            "# The wait",
            "",
            f"`benchmarks/first_call.py`: medians of {options.rounds} processes each, which took "
            f"turns. {info.model}, {info.cpu_cores} cores; {versions}; beside it ran "
            f"{options.beside}. {SCAN}: {facts['voxels']:,} voxels of {VOXEL_SIZE} m; {SCANS} "
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
                write_results(options.out, [*text, *table(results), ""], results)
    print(stored.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
