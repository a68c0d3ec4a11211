"""Whole networks of several libraries on scans: the command line, the turns and the files.

Each contestant has a process of its own for each network, which is stopped (SIGSTOP) when it is not
its turn; they take turns, forwards and backwards. In a turn a network runs once to warm up and once
that counts; the median of the rounds is the result. Kernel maps are made in every call. Where a
script returns logits, they are compared before anything is timed. A contestant that fails, or whose
logits differ, is named with the reason.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.turns import Worker, WorkerFailed, in_turns, seconds_of, serve

# Sizes at which outdoor networks are trained, and a dense scan.
SCANS = ("lidar_os0_128.npz:0.05", "tls_lone_star.npz:0.1")
TOLERANCE = 1e-4  # of the largest logit
Times = dict  # of seconds by contestant, by run
Runs = dict  # of calls by way


def read_scan(folder: Path, name: str, size: float) -> Any:
    """Return distinct cells from 0 on, shuffled, as an ``int32[N, 3]`` array."""
    import numpy as np
    from benchmarks.workloads import positions_of

    positions = positions_of(folder / name, np.float64)
    cells = np.unique(np.floor(positions / size).astype(np.int64), axis=0)
    cells -= cells.min(0) // 16 * 16
    return np.random.default_rng(0).permutation(cells).astype(np.int32)


def grid_of(cells: Any) -> tuple[int, ...]:
    """Return the cells along x, y and z of the grid around a scan, in multiples of 16."""
    return tuple(int(-(-(high + 1) // 16) * 16) for high in cells.max(0))


def voxels_of(cells: Any, channels: int) -> Any:
    """Return the scan as Voxels of one scene, with random features."""
    import numpy as np

    import voxax as vx

    rows = np.column_stack([np.zeros(len(cells), np.int32), cells])
    features = np.random.default_rng(0).normal(size=(len(cells), channels)).astype(np.float32)
    return vx.Voxels.from_coords(rows, features, batch_size=1)


def training_of(model: Any, call: Callable[[], Any]) -> Runs:
    """Return inference and training of a module of PyTorch, whose ``call`` returns features."""
    import torch

    def inference() -> Any:
        model.eval()
        allow_bias(model)
        with torch.no_grad():
            return call()

    def training() -> None:
        model.train()
        model.zero_grad()
        call().square().mean().backward()

    return {"inference": inference, "training": training}


def allow_bias(model: Any) -> None:
    """Leave layers of spconv in training mode, where they have a bias: they refuse it otherwise."""
    for module in model.modules():
        own = type(module).__module__.partition(".")[0] in ("spconv", "spconv_triton")
        if own and getattr(module, "bias", None) is not None:
            module.training = True


def _work(load: Callable[..., tuple[Runs, Any]], given: Sequence[str]) -> None:
    by, threads, network, folder = given[0], int(given[1]), given[2], Path(given[3])

    def loaded() -> tuple[Any, Any]:
        import numpy as np

        runs, logits = load(by, threads, network, np.load(folder / "cells.npy"))

        def save(path: str) -> None:
            import torch

            with torch.no_grad():
                np.save(path, logits().numpy())

        def timed(way: str) -> float:
            runs[way]()
            return seconds_of(runs[way])

        return [list(runs), logits is not None], {"time": timed, "save": save}

    serve(loaded)


def _measured(
    crew: Mapping[str, Worker], ways: Sequence[str], rounds: int, folder: Path, failed: dict
) -> tuple[Times, dict[str, float]]:
    import numpy as np

    apart: dict[str, float] = {}
    able, ours = dict(crew), None
    for who, worker in crew.items():
        if worker.hello[1]:
            try:
                worker.ask("save", path=str(folder / "logits.npy"))
            except WorkerFailed as failure:
                failed[who] = str(failure)
                del able[who]
                continue
            found = np.load(folder / "logits.npy")
            if ours is None:
                ours = found
                continue
            apart[who] = float(np.abs(found - ours).max() / np.abs(ours).max())
            if not apart[who] <= TOLERANCE:
                failed[who] = f"its logits differ by {apart[who]:.1e} of the largest"
                del able[who]
    times: Times = {}
    for way in ways:
        players = {
            who: lambda worker=worker, way=way: worker.ask("time", way=way)
            for who, worker in able.items()
            if way in worker.hello[0]
        }
        if len(players) > 1:
            seconds, lost = in_turns(players, rounds)
            failed.update(lost)
            times[way] = {who: statistics.median(own) for who, own in seconds.items()}
    return times, apart


def compare(
    script: str,
    about: str,
    load: Callable[..., tuple[Runs, Any]],
    table: Callable[[Times], Sequence[str]],
    contestants: Mapping[str, tuple[str, int]],
    networks: Sequence[str],
    *,
    out: str,
    title: str,
    words: str = "2 threads, float32; kernel maps are made in every call.",
    ways: Sequence[str] = ("inference", "training"),
    scans: Sequence[str] = SCANS,
    rounds: int = 7,
    peer: tuple[str, str] = ("", ""),
    most_trained: int = 0,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the script: the command line, or a worker.

    Args:
      script, about: its file and docstring.
      load: from library, threads, network and cells: runs by way, which may be none, and a
        function that returns logits, or None.
      table: lines, from seconds by contestant and run.
      contestants: library and threads by name; the first is the reference.
      networks: their names.
      out: name of the results.
      title, words: above the table.
      ways: names of runs; with the network's name before them, where there are several.
      scans, rounds: by default.
      peer: the library that needs another Python, and the option for it.
      most_trained: voxels, beyond which only inference is measured; 0 is no limit.
      environment: of the contestants.
    """
    if sys.argv[1:2] == ["--worker"]:
        _work(load, sys.argv[2:])
        return
    from benchmarks import report

    parser = report.options(about, data=True, rounds=rounds)
    parser.add_argument("--scans", nargs="+", default=scans, metavar="NAME:SIZE")
    parser.add_argument("--only", default="", help="networks and ways with these words")
    parser.add_argument("--keep-heap", action="store_true", help="as docs/cpu.md advises")
    if peer[0]:
        parser.add_argument(peer[1], dest="python", metavar="PYTHON", help=f"which has {peer[0]}")
    options = parser.parse_args()

    import numpy as np
    from benchmarks.own_process import KEEP_HEAP

    given = {**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})}
    if options.keep_heap:
        given.update(KEEP_HEAP)
        words += " glibc keeps its heap."
    words = f"`benchmarks/{Path(script).name}`: medians of {options.rounds} rounds, {words}"
    lines = [f"# {title}", "", words]
    results = []
    for scan in options.scans:
        name, size = scan.rsplit(":", 1)
        cells = read_scan(Path(options.data), name, float(size))
        times: Times = {}
        apart: dict[str, float] = {}
        failed: dict[str, str] = {}
        for network in networks:
            chosen = [w for w in ways if all(x in f"{network}, {w}" for x in options.only.split())]
            if most_trained and len(cells) > most_trained:
                chosen = [way for way in chosen if "training" not in way]
            if not chosen:
                continue
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder, "cells.npy"), cells)
                crew: dict[str, Worker] = {}
                try:
                    for who, (by, threads) in contestants.items():
                        python = options.python if by == peer[0] else sys.executable
                        if python is None:
                            continue
                        own = {**given, "OMP_NUM_THREADS": str(threads)}
                        asked = [python, script, "--worker", by, threads, network, folder]
                        try:
                            crew[who] = Worker(who, asked, own)
                        except WorkerFailed as failure:
                            failed[who] = str(failure)
                    found, far = _measured(crew, chosen, options.rounds, Path(folder), failed)
                finally:
                    for worker in crew.values():
                        worker.close()
            apart.update(far)
            prefix = f"{network}, " if len(networks) > 1 and len(ways) > 1 else ""
            for way, by_contestant in found.items():
                run = f"{prefix}{way}" if len(ways) > 1 else network
                times[run] = by_contestant
                print(run, by_contestant, flush=True)
        facts = {"scan": name, "voxel_size": float(size), "voxels": len(cells)}
        facts.update(rounds=options.rounds, seconds=times, apart=apart, failed=failed)
        results.append(facts)
        lines += ["", f"## {name}: {len(cells)} voxels of {size}", "", *table(times)]
        if apart:
            lines += ["", f"Logits differ by at most {max(apart.values()):.0e} of the largest."]
        lines += [f"\n{who} failed: {reason}." for who, reason in failed.items()]
        name = f"{out}_kept_heap" if options.keep_heap else out
        report.write(options.out, name, results, lines)  # after each scan, so that nothing is lost


def milliseconds(
    times: Times, contestants: Any, head: str = "network", ours: str = ""
) -> list[str]:
    """Return a table of all runs and contestants.

    Args:
      times: seconds by contestant, by run.
      contestants: names, or titles by name.
      head: of the first column.
      ours: the contestant with which the others are compared, beside each; runs that it or the
        first of them lacks are left out.
    """
    from benchmarks import report

    names = [who for who in contestants if any(who in took for took in times.values())]
    titles = [contestants[who] for who in names] if isinstance(contestants, Mapping) else names
    rows = []
    for run, took in times.items():
        if ours and not {ours, *names[:1]} <= set(took):
            continue
        cells = [f"{1e3 * took[ours]:.0f} ms"] if ours else []
        for who in names:
            cells.append(f"{1e3 * took[who]:.0f} ms" if who in took else "")
            if ours:
                cells.append(f"{took[who] / took[ours]:.1f}x" if who in took else "")
        rows.append([run, *cells])
    columns = [part for title in titles for part in ([title, "faster"] if ours else [title])]
    return report.table([head, *([ours] if ours else []), *columns], rows)
