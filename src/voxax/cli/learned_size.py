"""``voxax demo --task learned-size``: kernel sizes that are learned against every fixed one."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from voxax.errors import InputError

# Pairs of one voxel and layer cost so much of the loss: what the curve of learned sizes is drawn
# through.
PRICES = (0.0, 0.01, 0.04)
SIZES = (1, 2, 3, 4, 5)
CHANNELS, DEPTH = 16, 2
# Metres around the sensor, and training scenes for each validation scene: minutes on two cores.
RADIUS, VALIDATION = 20.0, 4
LEARNING_RATE = 1e-2


@dataclasses.dataclass(frozen=True)
class Variant:
    """One network: a fixed size, or sizes learned at a price for each pair."""

    size: int
    price: float | None = None

    @property
    def name(self) -> str:
        return f"fixed {self.size}" if self.price is None else f"learned, price {self.price:g}"


def learned_size(
    out: Path, steps: int, voxel_size: float, sensor: str, scenes: int, seeds: int
) -> int:
    """Train every variant ``seeds`` times, and write learned_size.{json,md,svg,png}."""
    from voxax.cli.scenes import Prepare, simulated
    from voxax.io.examples import Preparation

    if seeds < 1:
        raise InputError(f"--seeds {seeds} must be at least 1")
    begin = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    streets = simulated(scenes, VALIDATION, sensor, 0)
    preparation = Preparation(voxel_size)
    clouds = [task() for task in (*streets.validation, *streets.train)]
    near = [c.select(np.hypot(*c.positions[:, :2].T) < RADIUS) for c in clouds]
    drafts = [preparation(c) for c in near]
    rows = max(int(d.voxels.count) for d in drafts)
    preparation = dataclasses.replace(preparation, min_capacity=int(1.1 * rows))
    held_out = [preparation(c) for c in near[:VALIDATION]]
    augmented = [
        Prepare(cloud, preparation, seed)()
        for seed in range(2)
        for cloud in near[VALIDATION:]
    ]  # fmt: skip
    capacity = max(e.voxels.capacity for e in augmented + held_out)
    preparation = dataclasses.replace(preparation, min_capacity=capacity)
    names = streets.class_names
    variants = [*map(Variant, SIZES), *(Variant(max(SIZES), price) for price in PRICES)]
    results: list[dict[str, Any]] = []
    pictured: Any = None
    for variant in variants:
        program = _Program(variant, preparation.num_channels, len(names), steps)
        for seed in range(seeds):
            start = time.perf_counter()
            program.train(augmented, seed)
            row, sizes = program.validate(held_out)
            seconds = round(time.perf_counter() - start, 1)
            about = {"name": variant.name, **dataclasses.asdict(variant), "seed": seed}
            row = {**about, **row, "seconds": seconds}
            results.append(row)
            print(
                f"{row['name']:22s} seed {seed}: mIoU {row['miou']:.3f}, "
                f"{row['mflop']:.1f} MFLOP a scene, mean size {row['mean_size']:.2f}, "
                f"{row['seconds']} s",
                flush=True,
            )
            if variant.price == PRICES[1] and seed == 0:
                pictured = sizes
    report = _summary(results, steps, voxel_size, capacity, seeds, time.perf_counter() - begin)
    (out / "learned_size.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "learned_size.md").write_text(to_markdown(report))
    _pictures(out, report, near[0], held_out[0], pictured)
    print(to_markdown(report))
    return 0


class _Program:
    """The compiled steps of one variant, shared by its seeds."""

    def __init__(self, variant: Variant, in_channels: int, classes: int, steps: int) -> None:
        import jax
        import jax.numpy as jnp
        import optax
        from flax import nnx

        from voxax.models.sized import SizedNetwork
        from voxax.models.training import masked_cross_entropy

        self.classes, self.steps = classes, steps

        def network(seed: int) -> Any:
            return SizedNetwork(
                in_channels, classes, variant.size, learn_size=variant.price is not None,
                channels=CHANNELS, depth=DEPTH, rngs=nnx.Rngs(seed),
            )  # fmt: skip

        self.network = network
        model = network(0)
        model.train()
        training = nnx.split(model, nnx.Param, ...)[0]
        model.eval()
        evaluating = nnx.split(model, nnx.Param, ...)[0]
        schedule = optax.cosine_onecycle_schedule(max(steps, 2), LEARNING_RATE, pct_start=0.2)
        self.optimizer = optax.adamw(schedule, weight_decay=0.01)
        price = variant.price or 0.0

        def step(params: Any, state: Any, opt: Any, voxels: Any, labels: Any) -> Any:
            def loss_of(params: Any) -> Any:
                module = nnx.merge(training, params, state, copy=True)
                result = module(voxels)
                per_voxel = jnp.mean(result.pairs) / jnp.maximum(voxels.count, 1)
                loss = masked_cross_entropy(result.logits.features, labels)
                return loss + price * per_voxel, nnx.split(module, nnx.Param, ...)[2]

            grads, new_state = jax.grad(loss_of, has_aux=True)(params)
            updates, opt = self.optimizer.update(grads, opt, params)
            return optax.apply_updates(params, updates), new_state, opt

        def evaluate(params: Any, state: Any, voxels: Any) -> Any:
            result = nnx.merge(evaluating, params, state, copy=True)(voxels)
            return jnp.argmax(result.logits.features, axis=-1), result.sizes, result.pairs

        self._step, self._evaluate = jax.jit(step), jax.jit(evaluate)

    def train(self, examples: list[Any], seed: int) -> None:
        from flax import nnx

        model = self.network(seed)
        model.train()
        _, self.params, self.state = nnx.split(model, nnx.Param, ...)
        opt = self.optimizer.init(self.params)
        rng = np.random.default_rng(seed)
        order: list[int] = []
        for _ in range(self.steps):
            order = order or rng.permutation(len(examples)).tolist()
            example = examples[order.pop()]
            self.params, self.state, opt = self._step(
                self.params, self.state, opt, example.voxels, example.labels
            )

    def validate(self, examples: list[Any]) -> tuple[dict[str, float], np.ndarray]:
        """Figures, and the sizes ``[depth, capacity]`` of the first example."""
        from voxax.models.metrics import confusion, mean_iou

        matrix = np.zeros((self.classes, self.classes), np.int64)
        pairs, sizes = [], []
        for example in examples:
            prediction, size, number = self._evaluate(self.params, self.state, example.voxels)
            matrix += confusion(
                example.point_labels, np.asarray(prediction)[example.inverse], self.classes
            )
            pairs.append(float(np.sum(number)))
            sizes.append(np.asarray(size)[:, : int(example.voxels.count)])
        figures = {
            "miou": float(mean_iou(matrix)),
            "mflop": 2e-6 * CHANNELS**2 * float(np.mean(pairs)),
            "mean_size": float(np.concatenate(sizes, axis=1).mean()),
        }
        return figures, sizes[0]


def _summary(
    results: list[dict[str, Any]], steps: int, voxel_size: float, capacity: int, seeds: int,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    import jax

    from voxax.hardware import describe

    info = describe()
    names = list(dict.fromkeys(r["name"] for r in results))
    rows = []
    for name in names:
        own = [r for r in results if r["name"] == name]
        figures = {}
        for key in ("miou", "mflop", "mean_size"):
            values = [r[key] for r in own]
            figures[key] = [float(np.mean(values)), float(np.std(values))]
        rows.append({"name": name, "price": own[0]["price"], "size": own[0]["size"], **figures})
    return {
        "device": f"{info.model or info.device_kind}, {info.cpu_cores} cores",
        "jax": jax.__version__,
        "steps": steps,
        "voxel_size": voxel_size,
        "capacity": capacity,
        "seeds": seeds,
        "seconds": round(seconds),
        "rows": rows,
        "runs": results,
    }


def to_markdown(report: dict[str, Any]) -> str:
    """The table of a report."""
    lines = [
        f"{report['seeds']} seeds, {report['steps']} steps each, {report['capacity']} rows of "
        f"{report['voxel_size']} m, {DEPTH} layers of {CHANNELS} channels; mean and standard "
        "deviation over seeds. MFLOP: of the convolutions, one validation scene.",
        "",
        "| kernel size | mIoU | MFLOP | mean size |",
        "|---|---:|---:|---:|",
    ]
    for row in report["rows"]:
        cells = [
            f"{row['miou'][0]:.3f} ± {row['miou'][1]:.3f}",
            f"{row['mflop'][0]:.1f} ± {row['mflop'][1]:.1f}",
            f"{row['mean_size'][0]:.2f}",
        ]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _pictures(out: Path, report: dict[str, Any], cloud: Any, example: Any, sizes: Any) -> None:
    from voxax.plot import segmentation_png, tradeoff_svg

    def points(price_is_given: bool) -> list[tuple[float, float, float, str]]:
        return [
            (r["mflop"][0], r["miou"][0], r["miou"][1],
             str(r["size"]) if r["price"] is None else f"{r['price']:g}")
            for r in report["rows"] if (r["price"] is not None) == price_is_given
        ]  # fmt: skip

    tradeoff_svg(
        out / "learned_size.svg",
        {"one size for all voxels": points(False), "learned at each voxel, by price": points(True)},
        title="Learned kernel sizes against fixed ones",
        subtitle=f"simulated streets, {report['seeds']} seeds, {report['steps']} steps",
        x="MFLOP of the convolutions, one scene",
        y="validation mIoU",
    )
    if sizes is None:
        return
    by_point = np.rint(sizes[0][example.inverse]).astype(np.int32) - 1
    np.savez(
        out / "learned_size.npz",
        xyz=cloud.positions,
        label=cloud.labels,
        kernel_size=(by_point + 1).astype(np.uint8),
    )
    segmentation_png(
        out / "learned_size.png",
        cloud.positions,
        by_point,
        None,
        [f"size {s}" for s in SIZES],
        title="Learned kernel size of the first layer",
        subtitle=f"price {PRICES[1]:g} for each pair, seed 0, a scene the network never saw",
    )
