"""Count what shards of one scene exchange, and its share of a training step.

    python benchmarks/halo.py --data FOLDER

Three questions about :class:`voxax.parallel.SceneSplit`, for the maps of a MinkUNet:

- check: logits, loss and gradients of ``lone_star`` at 5 cm on 2, 4 and 8 host devices, and on one,
  in float32 and in float64, and how far one device's float32 is off its float64;
- sizes: rows that shards of real scans borrow, 2 to 64 shards, along each order, and the exponent
  of a shard's halo over its voxels;
- paper: what that makes of 256 chips, layer by layer, from published link rates.

``--only`` takes some of them and keeps the rest of results/halo.json. The check takes about 10 GB.
Results go to results/halo.md and .json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from own_process import in_own_process
from tpu import scans

RESULTS = Path(__file__).parent / "results"
SIZES = {
    "lone_star": 0.05,
    "semantickitti": 0.05,
    "os0": 0.05,
    "hdl32e": 0.05,
    "ahn3": 0.5,
    "autzen": 0.5,
    "room_scan1": 0.02,
    "office1": 0.02,
}
ORDERS = ("lexicographic", "morton", "hilbert")
SHARDS = (2, 4, 8, 16, 32, 64)
FITTED = (8, 16, 32, 64)  # with fewer shards most of a piece's surface is the scene's own border
WIDTH = 0.25  # of the network that is checked
CHIPS = 256
PER_CHIP = (25_000, 100_000, 400_000)
# Bytes per second through one port, in one direction. cloud.google.com/tpu/docs, v5e, v5p, v6e:
# bidirectional bandwidth of a chip is 400, 1200 and 800 GB/s over 4, 6 and 4 ports.
LINKS = {"v5e:16x16": 50e9, "v5p:8x8x4": 100e9, "v6e:16x16": 100e9}
ROW_BYTES = 2  # bfloat16


def voxels_of(folder: Path, name: str) -> Any:
    """One scan with its positions as features, in NumPy."""
    from voxax.geometry import host

    size = SIZES[name]
    rows = scans.cells(scans.points(folder, name), size)
    rows = rows - rows.min(0)
    positions = (rows + 0.5).astype(np.float32)
    voxels, _ = host.voxelize_on_host(positions, positions / positions.max(), 1.0)
    return voxels


def network(width: float = 1.0, dtype: str = "float32") -> Any:
    """Its parameters are the same numbers in every dtype."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from voxax.models import MinkUNet18

    def cast(x: Any) -> Any:
        return x.astype(dtype) if x.dtype == jnp.float32 else x

    graph, state = nnx.split(MinkUNet18(3, 4, width=width, rngs=nnx.Rngs(0)))
    return nnx.merge(graph, jax.tree.map(cast, state))


def labels_of(voxels: Any) -> np.ndarray:
    """Four classes by height and side, so that every layer has something to learn."""
    coords = np.asarray(voxels.coords)[: int(voxels.count), 1:]
    return (coords[:, [0, 2]] > np.median(coords[:, [0, 2]], axis=0)) @ np.asarray([1, 2])


def optimizer() -> Any:
    """It keeps the gradient, and hardly moves."""
    import optax

    return optax.chain(optax.trace(decay=0.0), optax.scale(-1e-3))


def single(folder: str, dtype: str, target: str) -> None:
    """Logits, loss and gradients of one device, into the file ``target``."""
    import jax

    import voxax as vx
    from voxax.models.training import Trainer

    voxels = scene(folder, dtype)
    count = int(voxels.count)
    labels = np.full(voxels.capacity, -1, np.int32)
    labels[:count] = labels_of(voxels)
    model = network(WIDTH, dtype)
    planned = vx.plan(model, voxels)
    trainer = Trainer(model, optimizer())
    logits = trainer.logits(planned)[:count]
    loss = trainer.step(planned, labels)[0]
    gradients = jax.tree.leaves(trainer.optimizer_state[0].trace)
    arrays = {f"gradient{i:03d}": np.asarray(g) for i, g in enumerate(gradients)}
    np.savez(target, logits=logits, loss=np.asarray(loss), **arrays)


def split(folder: str, dtype: str, target: str, shards: int, order: str) -> dict[str, Any]:
    """Return the difference of several devices from the result of :func:`single`."""
    import jax

    from voxax.parallel import DataParallelTrainer, SceneSplit, join_shards

    voxels = scene(folder, dtype)
    model = network(WIDTH, dtype)
    cut = SceneSplit.record(model, voxels, shards, order=order)
    parts, labels, rows = cut.split(voxels, labels_of(voxels))
    mesh = jax.make_mesh((shards,), ("space",), devices=jax.devices()[:shards])
    trainer = DataParallelTrainer(model, optimizer(), mesh, "space")
    found = {"logits": join_shards(trainer.logits(parts), rows)}
    found["loss"], _, dropped = trainer.step(parts, labels)
    assert int(dropped) == 0
    gradients = jax.tree.leaves(trainer.optimizer_state[0].trace)
    found |= {f"gradient{i:03d}": np.asarray(g) for i, g in enumerate(gradients)}
    case = {"order": order, "shards": shards, "dtype": dtype, "voxels": int(voxels.count)}
    with np.load(target) as expected:
        return case | differences(found, expected)


def scene(folder: str, dtype: str) -> Any:
    voxels = voxels_of(Path(folder), "lone_star")
    return dataclasses.replace(voxels, features=np.asarray(voxels.features, dtype))


def differences(found: Any, expected: Any) -> dict[str, float]:
    """Largest difference over largest entry; of the gradient, over all parameters."""

    def apart(names: list[str]) -> float:
        most = max(np.abs(found[name] - expected[name]).max() for name in names)
        return float(most / max(np.abs(expected[name]).max() for name in names))

    gradients = [name for name in expected if name.startswith("gradient")]
    names = {"logits": ["logits"], "loss": ["loss"], "gradient": gradients}
    return {what: apart(arrays) for what, arrays in names.items()}


def check(folder: Path) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        targets = {t: str(Path(scratch) / f"{t}.npz") for t in ("float64", "float32")}
        for dtype, target in targets.items():
            options = {"VOXAX_AUTOTUNE": "off", "JAX_ENABLE_X64": str(int(dtype == "float64"))}
            in_own_process("halo", "single", str(folder), dtype, target, **options)
            for shards in (2, 4, 8):
                for order in ("lexicographic", "hilbert") if dtype == "float64" else ("hilbert",):
                    options["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={shards}"
                    given = (str(folder), dtype, target, shards, order)
                    found.append(in_own_process("halo", "split", *given, **options))
                    print(found[-1], flush=True)
        with np.load(targets["float32"]) as rough, np.load(targets["float64"]) as exact:
            own = {"order": "float32 over float64", "shards": 1, "dtype": "float32"}
            found.append(own | {"voxels": found[0]["voxels"]} | differences(rough, exact))
    return found


def sizes(folder: Path, scan: str) -> list[dict[str, Any]]:
    """For each scan, order, number of shards and map: voxels and borrowed rows by shard.

    Maps between levels only of ``scan``, which the table on paper needs.
    """
    from voxax.coords import PAD
    from voxax.geometry.host import neighbor_table
    from voxax.parallel import SceneSplit
    from voxax.parallel.scene_split import matched, partition_levels, partition_map

    found, recorded = [], None
    for name in SIZES:
        voxels = voxels_of(folder, name)
        recorded = recorded or SceneSplit.record(network(WIDTH), voxels, 1)
        plan, records = recorded.plan, recorded.records
        coords = np.asarray(voxels.coords)
        levels = plan.level_rows(coords[coords[:, 0] != PAD])
        maps = []
        for record in records:
            source, out = levels[record.in_level], levels[record.out_level]
            table = neighbor_table(source, out, record.spec, len(out))
            maps.append((record, table, int((table >= 0).sum())))
        for order in ORDERS:
            for shards in SHARDS:
                own = partition_levels(plan, levels, shards, order)
                for record, table, pairs in maps:
                    if name != scan and record.in_level != record.out_level:
                        continue
                    inputs, outputs = own[record.in_level], own[record.out_level]
                    parts = partition_map(table, inputs, outputs)
                    halos = [
                        len(p.extended) - len(o) for p, o in zip(parts, inputs.rows, strict=True)
                    ]
                    messages = {
                        (sender, receiver): len(rows)
                        for receiver, part in enumerate(parts)
                        for sender, rows in part.borrowed.items()
                    }
                    schedule = matched(messages)
                    found.append(
                        {
                            "scan": name,
                            "order": order,
                            "shards": shards,
                            "map": str(record.spec),
                            "in_level": plan.strides[record.in_level][0],
                            "out_level": plan.strides[record.out_level][0],
                            "in_rows": len(inputs.owner),
                            "out_rows": len(outputs.owner),
                            "pairs": pairs,
                            "largest": max(map(len, outputs.rows)),
                            "halo": sum(halos) / shards,
                            "largest_halo": max(halos),
                            "rounds": len(schedule),
                            "exchanged": sum(r.rows for r in schedule),
                        }
                    )
        print(name, len(levels[0]), "voxels", flush=True)
    return found


def law(rows: list[dict[str, Any]], what: str) -> tuple[float, float]:
    """``(factor, exponent)``: rows of ``what`` over a shard's own input rows, least squares."""
    known = [r for r in rows if r["shards"] in FITTED and r[what] > 0]
    if len(known) < 2:
        return 0.0, 0.0
    own = np.log([r["in_rows"] / r["shards"] for r in known])
    slope, intercept = np.polyfit(own, np.log([r[what] for r in known]), 1)
    return float(np.exp(intercept)), float(slope)


def of_map(found: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    return [r for r in found if all(r[key] == value for key, value in wanted.items())]


FIRST = {"map": "3x3x3", "in_level": 1, "out_level": 1}
"""The map that the widest layers at full resolution use."""


def exponents(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "scan": scan,
            "order": order,
            "voxels": rows[0]["in_rows"],
            "exponent": law(rows, "halo")[1],
            "share": {r["shards"]: r["halo"] * r["shards"] / r["in_rows"] for r in rows},
            "exchanged": {r["shards"]: r["exchanged"] * r["shards"] / r["in_rows"] for r in rows},
            "rounds": {r["shards"]: r["rounds"] for r in rows},
        }
        for scan in SIZES
        for order in ORDERS
        if (rows := of_map(found, scan=scan, order=order, **FIRST))
    ]


def paper(found: list[dict[str, Any]], folder: Path, scan: str, order: str) -> list[dict[str, Any]]:
    """Each layer of MinkUNet18 on one of 256 chips: best time of its products, and of its halo."""
    from voxax.hardware import describe
    from voxax.products.inspect import find_products
    from voxax.products.lower_bound import lower_bound_of

    voxels = voxels_of(folder, "office1")  # only which layers there are matters
    calls = [
        c for c in find_products(network(), (voxels,), "tpu") if c.problem.product == "forward"
    ]
    chosen = of_map(found, scan=scan, order=order)
    finest = of_map(chosen, **FIRST)[0]["in_rows"]
    table = []
    for topology, rate in LINKS.items():
        info = describe(topology)
        for per_chip in PER_CHIP:
            for number, call in enumerate(calls):
                p = call.problem
                rows = of_map(chosen, map=str(p.layer.spec), in_level=p.layer.level[0])
                share = per_chip / finest
                n_in, n_out = (round(rows[0][k] * share) for k in ("in_rows", "out_rows"))
                factor, exponent = law(rows, "exchanged")
                exchanged = factor * n_in**exponent
                pairs = round(rows[0]["pairs"] * share)
                sized = dataclasses.replace(
                    p, in_capacity=n_in, out_capacity=n_out, dtype="bfloat16"
                )
                lower_bounds = [
                    lower_bound_of(dataclasses.replace(sized, product=product), pairs, info)
                    for product in ("forward", "dgrad", "wgrad")
                ]
                if any(f.seconds is None for f in lower_bounds):
                    raise RuntimeError(f"{topology}: matrix rate or bandwidth unknown")
                sent = exchanged * p.in_channels * ROW_BYTES
                table.append(
                    {
                        "chip": topology,
                        "per_chip": per_chip,
                        "layer": f"{number} {call.scope}",
                        "map": str(p.layer.spec),
                        "stride": p.layer.level[0],
                        "channels": [p.in_channels, p.out_channels],
                        "rows": n_in,
                        "exchanged": round(exchanged),
                        "forward_seconds": lower_bounds[0].seconds,
                        "step_seconds": sum(f.seconds or 0.0 for f in lower_bounds),
                        "forward_bytes": sent,
                        # The gradient of the halo goes back the way that it came.
                        "step_bytes": 2 * sent,
                        "forward_exchange": sent / rate,
                        "step_exchange": 2 * sent / rate,
                    }
                )
    return table


def summary(table: list[dict[str, Any]]) -> list[tuple[str, int, float, float, float]]:
    """``(chip, voxels, milliseconds of products, of exchange, efficiency)`` of a training step."""
    lines = []
    for chip in LINKS:
        for per_chip in PER_CHIP:
            rows = of_map(table, chip=chip, per_chip=per_chip)
            work, exchange = (
                1e3 * sum(r[k] for r in rows) for k in ("step_seconds", "step_exchange")
            )
            lines.append((chip, per_chip, work, exchange, work / (work + exchange)))
    return lines


def to_markdown(report: dict[str, Any]) -> str:
    lines = ["# One scene over several devices", ""]
    if known := report.get("check"):
        lines += [
            f"## Against one device: `lone_star` at 5 cm, {known[0]['voxels']:,} voxels",
            "",
            f"MinkUNet18 of width {WIDTH}, host devices of one process (`--only check`). Largest "
            "difference over largest entry: logits in evaluation, and the gradient of the first "
            "training step, over all parameters; the loss, which is float32, relative to itself. "
            "The last line is one device in float32 against itself in float64: what rounding "
            "alone does to these numbers.",
            "",
            "| dtype | order | shards | logits | loss | gradient |",
            "|---|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {r['dtype']} | {r['order']} | {r['shards']} | {r['logits']:.1e} | {r['loss']:.1e} "
            f"| {r['gradient']:.1e} |"
            for r in known
        ]
        lines.append("")
    if found := report.get("sizes"):
        lines += [
            "## Halos of real scans",
            "",
            "3x3x3 submanifold map at full resolution (`--only sizes`). Borrowed rows of all "
            "shards as a share of the scene's voxels; in brackets what is sent with padding (every "
            "round has one static size), and in how many rounds. Exponent: of a shard's halo over "
            f"its own voxels, {FITTED[0]} to {FITTED[-1]} shards; a volume has 1.",
            "",
            "| scan | voxels | order | " + " | ".join(map(str, SHARDS)) + " | exponent |",
            "|---|---:|---|" + "---:|" * (len(SHARDS) + 1),
        ]
        for r in exponents(found):
            cells = [
                f"{r['share'][n]:.1%} ({r['exchanged'][n]:.1%}, {r['rounds'][n]})" for n in SHARDS
            ]
            lines.append(
                f"| {r['scan']} | {r['voxels']:,} | {r['order']} | {' | '.join(cells)} "
                f"| {r['exponent']:.2f} |"
            )
        lines += [
            "",
            "Most voxels that one shard owns over the mean, at each level (the finest is cut "
            "evenly, coarser ones follow it), 64 shards:",
            "",
            "| scan | order | 1 | 2 | 4 | 8 | 16 |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for scan in SIZES:
            for order in ORDERS:
                rows = of_map(found, scan=scan, order=order, shards=64, map="3x3x3")
                by_level = {r["out_level"]: 64 * r["largest"] / r["out_rows"] for r in rows}
                cells = " | ".join(f"{by_level[level]:.2f}" for level in sorted(by_level))
                lines.append(f"| {scan} | {order} | {cells} |")
        lines.append("")
    if table := report.get("paper"):
        lines += [
            f"## {CHIPS} chips, on paper",
            "",
            f"MinkUNet18, bfloat16, one training step. A scene as dense as {report['scan']}, along "
            f"the {report['order']} curve. Work: the lower bound of all three products of every "
            "convolution (the greater of arithmetic at the matrix rate and bytes at the memory's "
            "bandwidth, from `voxax.hardware`). Exchange: rows by the law that 8 to 64 shards of "
            "the scan fit, with padding, forward and back, one port in one direction at a time, "
            "at published rates; nothing overlaps. Efficiency: work over both. Real products take "
            "longer than their lower bounds, which lowers the share of the exchange. Left out: "
            "latency (each round and each batch norm's sums have one), the unevenness of coarse "
            "levels, the sum of all gradients.",
            "",
            "| chip | voxels a chip | work, ms | exchange, ms | efficiency |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {chip} | {n:,} | {work:.3f} | {exchange:.3f} | {share:.0%} |"
            for chip, n, work, exchange, share in summary(table)
        ]
        chip, per_chip = next(iter(LINKS)), PER_CHIP[1]
        lines += [
            "",
            f"Layer by layer on {chip}, {per_chip:,} voxels a chip, forward:",
            "",
            "| layer | map | stride | channels | rows | exchanged | work, us | sent, kB "
            "| exchange, us | efficiency |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for r in of_map(table, chip=chip, per_chip=per_chip):
            work, exchange = 1e6 * r["forward_seconds"], 1e6 * r["forward_exchange"]
            lines.append(
                f"| {r['layer']} | {r['map']} | {r['stride']} | {r['channels'][0]} -> "
                f"{r['channels'][1]} | {r['rows']:,} | {r['exchanged']:,} | {work:.1f} "
                f"| {r['forward_bytes'] / 1e3:.0f} | {exchange:.1f} "
                f"| {work / (work + exchange):.0%} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of scans")
    parser.add_argument("--only", nargs="+", choices=("check", "sizes", "paper"))
    parser.add_argument("--scan", choices=SIZES, default="lone_star", help="of the table on paper")
    parser.add_argument("--order", choices=ORDERS, default="hilbert", help="of the same")
    given = parser.parse_args()
    parts = given.only or ("check", "sizes", "paper")
    target = RESULTS / "halo.json"
    report = json.loads(target.read_text()) if given.only and target.exists() else {}
    folder = given.data.resolve()
    if "sizes" in parts:
        report["sizes"] = sizes(folder, given.scan)
    if "paper" in parts:
        report |= {"scan": given.scan, "order": given.order}
        report["paper"] = paper(report["sizes"], folder, given.scan, given.order)
    if "check" in parts:
        report["check"] = check(folder)
    RESULTS.mkdir(exist_ok=True)
    target.write_text(json.dumps(report) + "\n")
    (RESULTS / "halo.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
