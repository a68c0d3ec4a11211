"""Run the campaign, or a part of it, and print a table.

    python tests/campaign/run.py                            the whole of it, from where it stopped
    python tests/campaign/run.py --part kills --count 20 --seed 3
    python tests/campaign/run.py --replay build/campaign/failures/kills-3-17.json

Each trial depends on the seed and its number alone. It stands in a file before it is tried, so
that one that ends or hangs the process is known too. ``ledger.jsonl`` has a line for each that was
tried, and ``failures/`` a file for each that failed. Exits with 1 if any failed.
"""

import argparse
import dataclasses
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
PARTS = ("kills", "files", "problems", "poison")
FOLDER = TESTS.parent / "build" / "campaign"
LOAD_SECONDS = 300  # a child that is not ready by then hangs


def child(part, seed, numbers, folder, replay=None):
    """Try trials in this process, one after the other."""
    from campaign.trials import Outcome

    faulthandler.enable()
    plant_fault()
    module = importlib.import_module(f"campaign.{part}")
    attempt = module.start(folder / part)
    ledger, now = folder / "ledger.jsonl", folder / f"now-{part}.json"
    for number in numbers:
        trial = json.loads(json.dumps(module.draw(seed, number))) if replay is None else replay
        now.write_text(json.dumps(_told(part, seed, number, trial)))
        faulthandler.dump_traceback_later(module.SECONDS, exit=True)
        begin, failure, counted = time.monotonic(), None, {}
        try:
            counted = attempt(trial)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            _save_failure(folder, part, seed, number, trial, failure, traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
        seconds = round(time.monotonic() - begin, 2)
        outcome = Outcome(part, seed, number, seconds, failure, counted)
        with ledger.open("a") as lines:
            lines.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
    now.unlink(missing_ok=True)


def plant_fault():
    """Plant what ``tests/mutation`` asked for, as its plugin does in the process of the tests."""
    if name := os.environ.get("VOXAX_TEST_FAULT"):
        from mutation.faults import FAULTS

        FAULTS[name].plant()


def _told(part, seed, number, trial):
    return {"part": part, "seed": seed, "number": number, "trial": trial}


def _save_failure(folder, part, seed, number, trial, failure, details):
    path = folder / "failures" / f"{part}-{seed}-{number}.json"
    path.parent.mkdir(exist_ok=True)
    told = _told(part, seed, number, trial) | {"failure": failure, "details": details}
    path.write_text(json.dumps(told, indent=1))
    print(f"{part} {number}: {failure[-400:]}\n  replay: {path}", flush=True)


def outcomes(folder):
    """Every line of the ledger."""
    path = folder / "ledger.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_part(part, seed, numbers, seconds, folder):
    """Try the trials that the ledger lacks, in child processes; each is replaced when it ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        known = {o["number"] for o in outcomes(folder) if (o["part"], o["seed"]) == (part, seed)}
        left = [number for number in numbers if number not in known]
        if not left:
            return
        now = folder / f"now-{part}.json"
        now.unlink(missing_ok=True)
        command = [sys.executable, __file__, "child", part, str(seed), str(folder)]
        try:
            ended = subprocess.run(
                [*command, *map(str, left)],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",  # such as the bytes of a broken file
                timeout=max(deadline - time.monotonic(), 1),
            )
            how = f"the process ended with {ended.returncode}: {ended.stderr.strip()[-2000:]}"
        except subprocess.TimeoutExpired:
            return  # out of time, not out of order
        if not now.exists():
            if ended.returncode:
                raise RuntimeError(f"{part}: {how}")
            return
        tried = json.loads(now.read_text())
        _save_failure(folder, **tried, failure=how, details="")
        line = {"seconds": None, "failure": how, "counted": {}}
        with (folder / "ledger.jsonl").open("a") as lines:
            lines.write(json.dumps(_told(part, seed, tried["number"], None) | line) + "\n")


def table(folder, parts, seed):
    """Print what the ledger has of these parts; return the number of failures."""
    failures = 0
    for part in parts:
        found = [o for o in outcomes(folder) if (o["part"], o["seed"]) == (part, seed)]
        failed = [o for o in found if o["failure"]]
        failures += len(failed)
        seconds = sum(o["seconds"] or 0 for o in found)
        print(f"{part:9} {len(found):6} trials {len(failed):4} failed {seconds:7.0f} s")
        total, longest = Counter(), {}
        for name, value in ((n, v) for o in found for n, v in o["counted"].items()):
            if name.startswith("longest "):
                longest[name] = max(value, longest.get(name, value))
            else:
                total[name] += value
        for name, value in sorted((total | longest).items()):
            print(f"    {name}: {value if isinstance(value, int) else round(value, 2)}")
    return failures


def main():
    if sys.argv[1:2] == ["child"]:
        part, seed, folder, *numbers = sys.argv[2:]
        child(part, int(seed), [int(number) for number in numbers], Path(folder))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="a part; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="trials of each part, instead of the whole")
    parser.add_argument("--seconds", type=float, default=1e6, help="of each part, at most")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the ledger and failures")
    parser.add_argument("--replay", type=Path, help="a file of a failure: try that alone")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if options.replay is not None:
        told = json.loads(options.replay.read_text())
        folder = folder / "replay"
        folder.mkdir(exist_ok=True)
        (folder / "ledger.jsonl").unlink(missing_ok=True)
        child(told["part"], told["seed"], [told["number"]], folder, told["trial"])
        return table(folder, [told["part"]], told["seed"]) and 1
    parts = options.part or PARTS
    for part in parts:
        whole = importlib.import_module(f"campaign.{part}").WHOLE
        numbers = range(whole if options.count is None else options.count)
        run_part(part, options.seed, numbers, options.seconds, folder)
    return table(folder, parts, options.seed) and 1


if __name__ == "__main__":
    sys.exit(main())
