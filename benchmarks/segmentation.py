"""Shared by the segmentation benchmarks: two networks, one scan, equal seconds of training.

A scan is cut into a training and a test part. Every contender gets the same augmented
crops of the training part, the same features, class weights and optimizer, and the same
wall-clock seconds of optimization; compilation and preparation of examples are outside
that clock. The learning rate follows the clock too, so that a slow network finishes its
schedule just as a fast one does.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

from voxax.cli.process import keep_heap
from voxax.geometry import Plan, Voxels
from voxax.io import PointCloud
from voxax.io.augment import compose, flip, rotate_z
from voxax.io.examples import GEOMETRIC_FEATURES, Example, Preparation
from voxax.io.pipeline import Pipeline
from voxax.models import MinkUNet14, VoxelMLP
from voxax.models.metrics import confusion, iou_by_class
from voxax.models.training import Trainer

# Two-sided 95 % quantile of Student's t by degrees of freedom.
STUDENT_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306}

_turn = compose([rotate_z, flip])


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A scan in two parts. Both clouds carry the attribute ``height`` (above ground).

    Attributes:
      name: of the result files.
      title: of the tables.
      notes: lines for the tables: the split, the features.
      train, test: labeled parts; labels are indices into ``class_names``, or -1.
      class_names: all classes of the scan.
      scored: indices of the classes that count for the mean.
      preparation: voxel size and features.
      crop_points: points of one training example.
    """

    name: str
    title: str
    notes: tuple[str, ...]
    train: PointCloud
    test: PointCloud
    class_names: tuple[str, ...]
    scored: tuple[int, ...]
    preparation: Preparation
    crop_points: int


@dataclasses.dataclass(frozen=True)
class Contender:
    """A network and its peak learning rate."""

    name: str
    build: Callable[[int, int, nnx.Rngs], nnx.Module]
    learning_rate: float
    needs_maps: bool


def minkunet(
    learning_rate: float, planes: Sequence[int] = (24, 32, 48, 64, 48, 48, 32, 32), stem: int = 16
) -> Contender:
    def build(channels: int, classes: int, rngs: nnx.Rngs) -> nnx.Module:
        return MinkUNet14(channels, classes, planes=planes, stem=stem, rngs=rngs)

    return Contender("MinkUNet", build, learning_rate, needs_maps=True)


def voxel_mlp(learning_rate: float, width: int = 128, depth: int = 4) -> Contender:
    def build(channels: int, classes: int, rngs: nnx.Rngs) -> nnx.Module:
        return VoxelMLP(channels, classes, width=width, depth=depth, rngs=rngs)

    return Contender("VoxelMLP", build, learning_rate, needs_maps=False)


@dataclasses.dataclass(frozen=True, eq=False)
class MakeExample:
    """Worker task: seed to an augmented crop of the cloud, ready for a network."""

    cloud: PointCloud
    preparation: Preparation
    crop_points: int

    def __call__(self, seed: int) -> Example:
        rng = np.random.default_rng(seed)
        cloud = self.cloud
        if len(cloud) > self.crop_points:
            plan = cloud.positions[:, :2]
            away = ((plan - plan[rng.integers(len(cloud))]) ** 2).sum(1)
            # A fixed number of points, so that all crops fill one capacity alike.
            cloud = cloud.select(np.argpartition(away, self.crop_points)[: self.crop_points])
        cloud = _turn(cloud, rng)
        return self.preparation(cloud, cloud.attributes["height"])


def compare(
    task: Task,
    contenders: Sequence[Contender],
    *,
    seeds: Sequence[int],
    seconds: float,
    pool: int = 64,
    workers: int = 2,
) -> dict[str, Any]:
    """Train and test every contender with every seed. Returns the results as plain data."""
    classes, channels = len(task.class_names), task.preparation.num_channels
    print(f"{task.title}: {len(task.train)} training and {len(task.test)} test points")
    weights = class_weights(task.train.labels, classes)

    test, prepared, timing = _examples(task, contenders, seeds, pool, workers)
    trainers = {
        c.name: Trainer(c.build(channels, classes, nnx.Rngs(0)), optimizer(), weights)
        for c in contenders
    }
    runs: list[dict[str, Any]] = []
    predictions: dict[str, np.ndarray] = {}
    for seed in seeds:
        for contender in contenders:
            trainer = trainers[contender.name]
            fresh = Trainer(contender.build(channels, classes, nnx.Rngs(seed)), optimizer())
            trainer.load_tree(fresh.tree())
            examples = [_inputs(e, contender) for e in prepared[seed]]
            spent, busy, losses = train(trainer, examples, contender.learning_rate, seconds, seed)
            logits = trainer.logits(_inputs(test, contender)[0])
            predicted = logits[test.inverse].argmax(-1)
            predictions.setdefault(contender.name, predicted)
            iou = iou_by_class(confusion(test.point_labels, predicted, classes))
            runs.append(
                {
                    "model": contender.name,
                    "seed": seed,
                    "seconds": round(spent, 2),
                    "processor_seconds": round(busy, 2),
                    "steps": trainer.steps,
                    "loss": float(np.mean(losses[-10:])),
                    "miou": float(iou[list(task.scored)].mean()),
                    "iou": {
                        n: None if np.isnan(v) else float(v)
                        for n, v in zip(task.class_names, iou, strict=True)
                    },
                }
            )
            print(
                f"seed {seed} {contender.name}: {trainer.steps} steps in {spent:.1f} s (processor "
                f"{busy:.0f} s), loss {runs[-1]['loss']:.3f}, mIoU {runs[-1]['miou']:.4f}:",
                ", ".join(f"{n} {v:.3f}" for n, v in zip(task.class_names, iou, strict=True)),
                flush=True,
            )
    return {
        "task": task.name,
        "title": task.title,
        "notes": list(task.notes),
        "device": report.device(),
        "scored": [task.class_names[i] for i in task.scored],
        "voxel_size": task.preparation.voxel_size,
        "features": [*GEOMETRIC_FEATURES, *task.preparation.attributes],
        "class_weights": weights.round(4).tolist(),
        "seconds_of_training": seconds,
        "programs": {name: trainer.programs for name, trainer in trainers.items()},
        "parameters": {
            name: int(sum(p.size for p in jax.tree.leaves(trainer.params)))
            for name, trainer in trainers.items()
        },
        "learning_rates": {c.name: c.learning_rate for c in contenders},
        **timing,
        "runs": runs,
        "difference": paired_difference(runs) if len(contenders) > 1 else None,
        "predictions": predictions,
    }


def train(
    trainer: Trainer, examples: Sequence[tuple[Voxels, Any]], peak: float, seconds: float, seed: int
) -> tuple[float, float, list[float]]:
    """Steps over shuffled ``examples`` for ``seconds``.

    Returns:
      Seconds taken, processor seconds used (all cores; they tell whether another program had
      a share of the machine), and the losses.
    """
    trainer.compile(*examples[0])
    rng = np.random.default_rng(seed)
    order: list[int] = []
    losses: list[float] = []
    begin, busy = time.perf_counter(), time.process_time()
    while (spent := time.perf_counter() - begin) < seconds:
        if not order:
            order = rng.permutation(len(examples)).tolist()
        rate = one_cycle(spent / seconds, peak)
        trainer.optimizer_state.hyperparams["learning_rate"] = jnp.asarray(rate, jnp.float32)
        loss, _, dropped = trainer.step(*examples[order.pop()])
        losses.append(float(loss))
        if int(dropped):
            raise RuntimeError(f"{int(dropped)} voxels were dropped: the plan does not fit")
    return spent, time.process_time() - busy, losses


def one_cycle(progress: float, peak: float, rise: float = 0.2) -> float:
    """Cosine up from ``peak / 25`` until ``rise``, then cosine down to nearly 0."""
    if progress < rise:
        return peak / 25 + (peak - peak / 25) * (1 - math.cos(math.pi * progress / rise)) / 2
    rest = (progress - rise) / (1 - rise)
    return peak * (1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * min(rest, 1.0))) / 2)


def optimizer() -> optax.GradientTransformation:
    """AdamW whose learning rate is set from outside, in its state."""

    def make(learning_rate: Any) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.flatten(optax.adamw(learning_rate, weight_decay=0.01)),
        )

    return optax.inject_hyperparams(make)(learning_rate=0.0)


def class_weights(labels: np.ndarray | None, classes: int) -> np.ndarray:
    """Inverse square root of each class's share, mean 1; absent classes weigh nothing.

    Shares below 1 % count as 1 %: a handful of points must not outweigh the scene.
    """
    assert labels is not None
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    share = np.maximum(counts / counts.sum(), 1e-2)
    weights = np.where(counts > 0, 1 / np.sqrt(share), 0.0)
    return weights / weights[counts > 0].mean()


def paired_difference(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds of what the first model's mIoU has on the second's, with a 95 %
    interval (Student's t)."""
    first, second = list(dict.fromkeys(r["model"] for r in runs))[:2]
    by_seed: dict[int, dict[str, float]] = {}
    for run in runs:
        by_seed.setdefault(run["seed"], {})[run["model"]] = run["miou"]
    values = np.array([100 * (v[first] - v[second]) for v in by_seed.values()])
    half = float("nan")
    if len(values) - 1 in STUDENT_T:
        half = STUDENT_T[len(values) - 1] * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return {
        "of": f"{first} - {second}",
        "points_by_seed": values.tolist(),
        "mean_points": mean,
        "interval95": [mean - half, mean + half],
    }


def lines_of(result: dict[str, Any]) -> list[str]:
    """The tables of a result."""
    runs, scored, difference = result["runs"], result["scored"], result["difference"]
    other = [name for name in runs[0]["iou"] if name not in scored]
    models = list(result["learning_rates"])
    low, high = difference["interval95"]
    of_model = [[r for r in runs if r["model"] == m] for m in models]
    rows = [
        [name, *(f"{100 * np.mean([r['iou'][name] for r in own]):.1f}" for own in of_model)]
        for name in scored
    ]
    means = [np.mean([r["miou"] for r in own]) for own in of_model]
    rows.append(["**mean**", *(f"**{100 * mean:.1f}**" for mean in means)])
    by_seed = [
        [own[0]["seed"], *(cell for r in own for cell in (f"{100 * r['miou']:.1f}", r["steps"]))]
        for own in zip(*of_model, strict=True)
    ]
    heads = [cell for model in models for cell in (model, "steps")]
    busy = [np.sum([r["processor_seconds"] for r in own]) for own in of_model]
    spent = ", ".join(f"{m} {b:.0f}" for m, b in zip(models, busy, strict=True))
    return [
        f"# {result['title']}",
        "",
        f"Device: {result['device']}.",
        "",
        *(f"- {note}" for note in result["notes"]),
        f"- Voxels of {result['voxel_size']} m. Inputs of both models: "
        f"{', '.join(result['features'])}.",
        f"- {result['seconds_of_training']:g} s of optimization for each model and seed.",
        "",
        "Test IoU by class, mean over seeds, in %:",
        "",
        *report.table(["class", *models], rows),
        *(["", f"Not in the mean, absent from one part: {', '.join(other)}."] if other else []),
        "",
        "Test mIoU by seed, in %, and optimization steps done in the equal time:",
        "",
        *report.table(["seed", *heads], by_seed),
        "",
        f"Processor seconds used, all seeds: {spent}.",
        "",
        f"{difference['of']}: **{difference['mean_points']:+.1f} points** of mIoU "
        f"(95 % interval of the paired difference, n = {len(difference['points_by_seed'])}: "
        f"{low:+.1f} to {high:+.1f}).",
    ]


def hold_out(task: Task, groups: np.ndarray) -> Task:
    """For tuning: the same task with a third of the training groups as its test part."""
    held = groups % 3 == 0
    return dataclasses.replace(
        task,
        name=task.name + "_validation",
        title=task.title + " (validation)",
        train=task.train.select(~held),
        test=task.train.select(held),
        scored=tuple(
            i
            for i in task.scored
            if (task.train.labels[held] == i).any() and (task.train.labels[~held] == i).any()
        ),
    )


def run(
    about: str | None,
    load: Callable[..., tuple[Task, np.ndarray]],
    seconds: float,
    crop: int,
    voxel_size: float,
    picture: Callable[[Path, Task, dict[str, Any]], None] | None = None,
) -> None:
    """Run a script.

    Args:
      about: its docstring.
      load: from folder, voxel size and points of a crop, the task and groups of training points.
      seconds, crop, voxel_size: by default.
      picture: writes one to a path.
    """
    keep_heap()
    parser = report.options(about, data=True)
    parser.add_argument("--seconds", type=float, default=seconds, help="of training a model")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--validate",
        action="store_true",
        help="score a third of the training part instead of the test part; for tuning",
    )
    parser.add_argument("--only", help="one model by name, for tuning")
    parser.add_argument("--mink-rate", type=float, default=6e-3)
    parser.add_argument("--mlp-rate", type=float, default=6e-3)
    parser.add_argument("--mlp-width", type=int, default=128)
    parser.add_argument("--voxel-size", type=float, default=voxel_size)
    parser.add_argument("--crop-points", type=int, default=crop)
    if picture:
        parser.add_argument("--picture", type=Path, help="PNG of the first seed's test prediction")
    options = parser.parse_args()
    task, groups = load(options.data, options.voxel_size, options.crop_points)
    if options.validate:
        task = hold_out(task, groups)
    contenders = [minkunet(options.mink_rate), voxel_mlp(options.mlp_rate, options.mlp_width)]
    contenders = [c for c in contenders if options.only in (None, c.name)]
    result = compare(task, contenders, seeds=range(options.seeds), seconds=options.seconds)
    if options.only:
        return
    predictions = result.pop("predictions")
    report.write(options.out, task.name, result, lines_of(result))
    if picture and options.picture:
        picture(options.picture, task, {**result["runs"][0], "labels": predictions["MinkUNet"]})


def _examples(
    task: Task, contenders: Sequence[Contender], seeds: Sequence[int], pool: int, workers: int
) -> tuple[Example, dict[int, list[Example]], dict[str, Any]]:
    """The test example and each seed's augmented ones, all with maps of one fitted plan."""
    planner = next((c for c in contenders if c.needs_maps), contenders[0])
    preparation = task.preparation
    draft = MakeExample(task.train, preparation, task.crop_points)
    drafts = [draft(i) for i in range(12)]
    model = planner.build(preparation.num_channels, len(task.class_names), nnx.Rngs(0))
    recorded = Plan.record(model, drafts[0].voxels)
    fitted = recorded.fitted([d.voxels for d in drafts], margin=1.1)
    largest = max(int(d.voxels.count) for d in drafts)
    ready = dataclasses.replace(preparation, plan=fitted, min_capacity=int(1.03 * largest))
    make = MakeExample(task.train, ready, task.crop_points)
    begin = time.perf_counter()
    make(0)
    alone = time.perf_counter() - begin
    prepared: dict[int, list[Example]] = {}
    with Pipeline(make, workers=workers, prefetch=2 * workers) as pipeline:
        for seed in seeds:
            first = 1_000_003 * (seed + 1)
            prepared[seed] = list(pipeline(range(first, first + pool)))
    capacities = sorted({e.voxels.capacity for made in prepared.values() for e in made})
    test = dataclasses.replace(preparation, plan=recorded)(
        task.test, task.test.attributes["height"]
    )
    print(
        f"{pool} examples a seed, {alone:.2f} s each, capacities {capacities}; "
        f"test {int(test.voxels.count)} voxels",
        flush=True,
    )
    return (
        test,
        prepared,
        {
            "examples_by_seed": pool,
            "seconds_to_prepare_an_example": round(alone, 3),
            "voxels_by_example": capacities,
            "test_voxels": int(test.voxels.count),
        },
    )


def _inputs(example: Example, contender: Contender) -> tuple[Voxels, Any]:
    """On the device; without the maps where they are of no use, so that they cost nothing."""
    voxels = example.voxels
    if not contender.needs_maps:
        voxels = dataclasses.replace(
            voxels,
            geometry=dataclasses.replace(voxels.geometry, attached=None, level_capacities=()),
        )
    return jax.tree.map(jnp.asarray, voxels), jnp.asarray(example.labels)
