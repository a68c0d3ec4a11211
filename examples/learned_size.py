"""Compare kernel sizes that are learned for every voxel with every fixed one.

    python examples/learned_size.py --steps 80 --voxel-size 0.5 --scenes 8

A small network segments simulated streets: once with each kernel size from 1 to 5, and with sizes
that it learns at a price for each pair of voxels. The folder --out receives `learned_size.md` and
`.json` (the table), `.svg` (mIoU over FLOPs), `.png` and `.npz` (a street with its sizes, as a
picture and for `voxax view`).
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from voxax import KernelMap, Voxels, kernel_map
from voxax.geometry.nested_sizes import reaching_size, soft_mask
from voxax.hardware import describe
from voxax.io.augment import compose, flip, rotate_z, scale
from voxax.io.examples import Preparation
from voxax.io.simulator import CLASS_NAMES, simulate_sweep
from voxax.models.metrics import confusion, mean_iou
from voxax.models.training import masked_cross_entropy
from voxax.nn.modules import BatchNorm, Linear, SparseDynamicConv3d, SubMConv3d
from voxax.plot import segmentation_png

SIZES = (1, 2, 3, 4, 5)
# The cost in the loss of each pair of one voxel and layer: points of the curve of learned sizes.
PRICES = (0.0, 0.01, 0.04)
CHANNELS, DEPTH = 16, 2
# Meters around the sensor, and scenes to validate with: minutes on two cores.
RADIUS, VALIDATION = 20.0, 4
LEARNING_RATE = 1e-2
AUGMENT = compose([rotate_z, functools.partial(scale, low=0.95, high=1.05), flip])


@dataclasses.dataclass(frozen=True)
class Variant:
    """One network: a fixed size, or sizes learned at a price for each pair."""

    size: int
    price: float | None = None

    @property
    def name(self):
        return f"fixed {self.size}" if self.price is None else f"learned, price {self.price:g}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sized:
    """The results of :class:`SizedNetwork`.

    Attributes:
      logits: voxels with a channel for each class.
      sizes: ``float[depth, capacity]``, the kernel size of each layer at each voxel.
      pairs: ``float[depth]``, pairs of input and output that each layer multiplies; with learned
        sizes it has their gradient.
    """

    logits: Voxels
    sizes: jax.Array
    pairs: jax.Array


class SizedNetwork(nnx.Module):
    """Stem, ``depth`` residual 3-D convolutions on one level, head.

    Args:
      in_channels, out_channels: input features and classes.
      kernel_size: of every layer; with ``learn_size`` the largest.
      learn_size: each layer reads the size at each voxel from its features.
      channels, depth: of the residual layers.
      rngs: None means ``nnx.Rngs(0)``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        learn_size: bool = False,
        channels: int = 16,
        depth: int = 2,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.stem = Linear(in_channels, channels, rngs=rngs)
        self.stem_norm = BatchNorm(channels, rngs=rngs)

        def convolution() -> nnx.Module:
            if learn_size:
                return SparseDynamicConv3d(
                    channels, channels, kernel_size, learn_size=True, use_bias=False, rngs=rngs
                )
            return SubMConv3d(channels, channels, kernel_size, use_bias=False, rngs=rngs)

        self.convs = nnx.List([convolution() for _ in range(depth)])
        self.norms = nnx.List([BatchNorm(channels, rngs=rngs) for _ in range(depth)])
        self.head = Linear(channels, out_channels, rngs=rngs)
        self.kernel_size = kernel_size

    def __call__(self, voxels: Voxels) -> Sized:
        x = self.stem_norm(self.stem(voxels)).map(jax.nn.relu)
        kmap = kernel_map(voxels, self.kernel_size)
        sizes, pairs = [], []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if isinstance(conv, SparseDynamicConv3d):
                size = conv.sizes(x)
                y = conv(x, size)
            else:
                size = jnp.full(x.capacity, float(self.kernel_size))
                y = conv(x)
            sizes.append(size)
            pairs.append(pairs_within(kmap, size))
            x = (norm(y) + x).map(jax.nn.relu)
        return Sized(self.head(x), jnp.stack(sizes), jnp.stack(pairs))


def pairs_within(kernel_map: KernelMap, size: jax.Array) -> jax.Array:
    """Return ``float[]``, float32 or wider: the pairs that whole sizes leave of a map.

    Between whole sizes it is a ramp, so that it has a gradient.
    Exact at whole sizes up to what the dtype counts, 2**24 in float32.

    Args:
      kernel_map: the relation.
      size: ``float[out_capacity]``; read only where an output has pairs.
    """
    offsets = np.asarray(kernel_map.spec.offsets)
    reach = reaching_size(offsets)
    found = kernel_map.neighbors >= 0
    size = jnp.where(jnp.any(found, axis=1), size, jnp.zeros((), size.dtype))
    if jnp.finfo(size.dtype).bits < 32:  # bfloat16 counts to 256 only
        size = size.astype(jnp.float32)
    total = jnp.zeros((), size.dtype)
    for number in np.unique(reach).tolist():
        taps = np.flatnonzero(reach == number)
        shell = jnp.sum(found[:, taps], axis=1).astype(size.dtype)
        total = total + jnp.sum(shell * soft_mask(size, offsets[taps[:1]])[:, 0])
    return total


class Program:
    """The compiled steps of one variant, shared by its seeds."""

    def __init__(self, variant, in_channels, steps):
        self.steps = steps
        price = variant.price or 0.0

        def network(seed):
            return SizedNetwork(
                in_channels, len(CLASS_NAMES), variant.size, learn_size=variant.price is not None,
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

        @jax.jit
        def step(params, state, opt, voxels, labels):
            def loss_of(params):
                module = nnx.merge(training, params, state, copy=True)
                result = module(voxels)
                per_voxel = jnp.mean(result.pairs) / jnp.maximum(voxels.count, 1)
                loss = masked_cross_entropy(result.logits.features, labels)
                return loss + price * per_voxel, nnx.split(module, nnx.Param, ...)[2]

            grads, new_state = jax.grad(loss_of, has_aux=True)(params)
            updates, opt = self.optimizer.update(grads, opt, params)
            return optax.apply_updates(params, updates), new_state, opt

        @jax.jit
        def evaluate(params, state, voxels):
            result = nnx.merge(evaluating, params, state, copy=True)(voxels)
            return jnp.argmax(result.logits.features, axis=-1), result.sizes, result.pairs

        self.step, self.evaluate = step, evaluate

    def train(self, examples, seed):
        model = self.network(seed)
        model.train()
        _, self.params, self.state = nnx.split(model, nnx.Param, ...)
        opt = self.optimizer.init(self.params)
        rng = np.random.default_rng(seed)
        order = []
        for _ in range(self.steps):
            order = order or rng.permutation(len(examples)).tolist()
            example = examples[order.pop()]
            self.params, self.state, opt = self.step(
                self.params, self.state, opt, example.voxels, example.labels
            )

    def validate(self, examples):
        """Figures, and the sizes ``[depth, count]`` of the first example."""
        classes = len(CLASS_NAMES)
        matrix = np.zeros((classes, classes), np.int64)
        pairs, sizes = [], []
        for example in examples:
            prediction, size, number = self.evaluate(self.params, self.state, example.voxels)
            at_points = np.asarray(prediction)[example.inverse]
            matrix += confusion(example.point_labels, at_points, classes)
            pairs.append(float(np.sum(number)))
            sizes.append(np.asarray(size)[:, : int(example.voxels.count)])
        figures = {
            "miou": float(mean_iou(matrix)),
            "mflop": 2e-6 * CHANNELS**2 * float(np.mean(pairs)),
            "mean_size": float(np.concatenate(sizes, axis=1).mean()),
        }
        return figures, sizes[0]


def streets(options):
    """``(the first cloud to validate with, examples to validate with, to train on)``."""
    seeds = [500 + i for i in range(VALIDATION)] + [10_000 + i for i in range(options.scenes)]
    clouds = [simulate_sweep(seed, sensor=options.sensor) for seed in seeds]
    near = [c.select(np.hypot(*c.positions[:, :2].T) < RADIUS) for c in clouds]
    preparation = Preparation(options.voxel_size)
    rows = max(int(preparation(cloud).voxels.count) for cloud in near)
    preparation = dataclasses.replace(preparation, min_capacity=int(1.1 * rows))
    held_out = [preparation(cloud) for cloud in near[:VALIDATION]]
    augmented = [
        preparation(AUGMENT(cloud, np.random.default_rng(seed)))
        for seed in range(2)
        for cloud in near[VALIDATION:]
    ]
    return near[0], held_out, augmented


def table(report):
    """The figures of a report in Markdown."""
    lines = [
        f"{report['seeds']} seeds, {report['steps']} steps each, {report['capacity']} rows of "
        f"{report['voxel_size']} m, {DEPTH} layers of {CHANNELS} channels; mean and standard "
        "deviation over seeds. MFLOP: of the convolutions, one validation scene.",
        "",
        "| kernel size | mIoU | MFLOP | mean size |",
        "|---|---:|---:|---:|",
    ]
    for row in report["rows"]:
        (miou, miou_std), (mflop, mflop_std) = row["miou"], row["mflop"]
        lines.append(
            f"| {row['name']} | {miou:.3f} ± {miou_std:.3f} | {mflop:.1f} ± {mflop_std:.1f} | "
            f"{row['mean_size'][0]:.2f} |"
        )
    return "\n".join([*lines, ""])


def draw_curve(path, report):
    """Draw mIoU over MFLOP, a line for the fixed sizes and one for the learned ones."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(
        xscale="log", xlabel="MFLOP of the convolutions, one scene", ylabel="validation mIoU",
        title=f"simulated streets, {report['seeds']} seeds, {report['steps']} steps",
    )  # fmt: skip
    kinds = ("one size for all voxels", "learned at each voxel, by price")
    for learned, (name, color) in enumerate(zip(kinds, ("#64748b", "#0f766e"), strict=True)):
        rows = [r for r in report["rows"] if (r["price"] is not None) == bool(learned)]
        rows.sort(key=lambda row: row["mflop"][0])
        x = [row["mflop"][0] for row in rows]
        y, deviation = zip(*(row["miou"] for row in rows), strict=True)
        axes.errorbar(x, y, deviation, color=color, marker="s", label=name)
        for row, *place in zip(rows, x, y, strict=True):
            label = f"{row['price']:g}" if learned else str(row["size"])
            axes.annotate(label, place, (6, -12 if learned else 6), textcoords="offset points")
    axes.legend(frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "voxax"}):
        figure.savefig(path, metadata={"Date": None})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("voxax-out"))
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--voxel-size", type=float, default=0.3)
    parser.add_argument("--sensor", default="lidar32", choices=("lidar32", "lidar64", "lidar128"))
    parser.add_argument("--scenes", type=int, default=48, help="to train on")
    parser.add_argument("--seeds", type=int, default=3, help="how often each network is trained")
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    cloud, held_out, augmented = streets(options)
    in_channels = Preparation(options.voxel_size).num_channels

    runs, rows, pictured = [], [], None
    for variant in [*map(Variant, SIZES), *(Variant(max(SIZES), price) for price in PRICES)]:
        program = Program(variant, in_channels, options.steps)
        own = []
        for seed in range(options.seeds):
            start = time.perf_counter()
            program.train(augmented, seed)
            figures, sizes = program.validate(held_out)
            seconds = round(time.perf_counter() - start, 1)
            own.append(figures)
            about = {"name": variant.name, **dataclasses.asdict(variant)}
            runs.append({**about, "seed": seed, **figures, "seconds": seconds})
            print(
                f"{variant.name:22s} seed {seed}: mIoU {figures['miou']:.3f}, "
                f"{figures['mflop']:.1f} MFLOP a scene, mean size {figures['mean_size']:.2f}, "
                f"{seconds} s",
                flush=True,
            )
            if variant.price == PRICES[1] and seed == 0:
                pictured = sizes
        values = {key: [figures[key] for figures in own] for key in own[0]}
        means = {key: [float(np.mean(v)), float(np.std(v))] for key, v in values.items()}
        rows.append({**about, **means})
    info = describe()
    report = {
        "device": f"{info.model or info.device_kind}, {info.cpu_cores} cores",
        "jax": jax.__version__,
        "steps": options.steps,
        "voxel_size": options.voxel_size,
        "capacity": max(e.voxels.capacity for e in augmented + held_out),
        "seeds": options.seeds,
        "seconds": round(time.perf_counter() - begin),
        "rows": rows,
        "runs": runs,
    }
    (options.out / "learned_size.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "learned_size.md").write_text(table(report))
    draw_curve(options.out / "learned_size.svg", report)

    by_point = np.rint(pictured[0][held_out[0].inverse]).astype(np.int32)
    np.savez(
        options.out / "learned_size.npz",
        xyz=cloud.positions,
        label=cloud.labels,
        kernel_size=by_point.astype(np.uint8),
    )
    segmentation_png(
        options.out / "learned_size.png",
        cloud.positions,
        by_point - 1,
        None,
        [f"size {size}" for size in SIZES],
        title="Learned kernel size of the first layer",
        subtitle=f"price {PRICES[1]:g} for each pair, seed 0, a scene the network never saw",
    )
    print(table(report))
    return report


if __name__ == "__main__":
    main()
