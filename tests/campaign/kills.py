"""Kills and signals to commands at random moments; then, does everything go on?

The moment of a kill is a time, a change of files (just before it), or within a save. Afterwards:

- every step, program and entry that was reported as saved is there, and whole;
- the run resumes and ends with the parameters, bit for bit, of one that was never interrupted;
- a fresh start works, or is refused by name because a whole step is there;
- Ctrl-C gives exit status 130, SIGTERM 143 and SIGHUP 129, without a traceback;
- no process of the command is left.
"""

import contextlib
import functools
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from campaign.trials import TrialError, generator, require

WHOLE = 200
SECONDS = 300
COMMANDS = {"train": 0.35, "demo": 0.25, "tune": 0.12, "export": 0.13, "cache": 0.15}
STARTS = {"train": ("fresh", "resume", "overwrite"), "export": ("fresh", "overwrite")}
STARTS["demo"] = STARTS["train"]
SIGNALS = {"SIGKILL": 0.4, "SIGINT": 0.2, "SIGTERM": 0.2, "SIGHUP": 0.2}
STEPS = 6
ORPHAN_SECONDS = 15  # workers look for their parent every second
HERE = Path(__file__).parent

MODEL = """
from voxax.nn.modules import SpatiallySparseConv

def layer():
    return SpatiallySparseConv(3, 2, 1)
"""


def draw(seed, number):
    """The command, how it starts, and the moment and signal that end it."""
    rng = generator("kills", seed, number)
    command = str(rng.choice(list(COMMANDS), p=list(COMMANDS.values())))
    learns = command in ("train", "demo")
    sent = str(rng.choice(list(SIGNALS), p=list(SIGNALS.values())))
    return {
        "command": command,
        "start": str(rng.choice(STARTS.get(command, ("fresh",)))),
        "workers": int(learns and rng.random() < 0.25),
        "signal": sent if command != "cache" else "SIGKILL",
        "group": bool(sent in ("SIGINT", "SIGHUP") or rng.random() < 0.5),
        "kind": str(rng.choice(["time", "change", "save"], p=[0.5, 0.25, 0.25])),
        "moment": float(rng.random()),
        "overwrites": bool(rng.random() < 0.3),
    }


def start(folder):
    """Measure every command once, and keep what a run without interruption leaves."""
    return Kills(folder)


class Kills:
    def __init__(self, folder):
        self.folder = folder
        self.measured = {}
        sys.path.insert(0, str(HERE.parents[0] / "tuning"))
        self._environment(folder)
        import jax

        import voxax.cli
        from campaign import victim

        victim.patch()
        self.main = voxax.cli.main
        for name, value in (
            ("jax_compilation_cache_dir", str(folder / "programs")),
            ("jax_persistent_cache_min_compile_time_secs", 0.0),
            ("jax_persistent_cache_min_entry_size_bytes", -1),
        ):
            jax.config.update(name, value)
        self._make_inputs(folder / "inputs")
        self.victims = subprocess.Popen(
            [sys.executable, HERE / "victim.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _environment(self, folder):
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "VOXAX_CACHE_DIR": str(folder / "cache"),
            "VOXAX_AUTOTUNE": "off",
            "COLUMNS": "120",
        }

    def _make_inputs(self, inputs):
        import folders
        from cli.test_train_command import kitti

        shutil.rmtree(inputs, ignore_errors=True)
        inputs.mkdir(parents=True)
        for workers in (0, 1):
            own = inputs / f"train{workers}"
            own.mkdir()
            path = kitti(own, np.random.default_rng(0), steps=STEPS)
            path.write_text(path.read_text().replace("workers = 0", f"workers = {workers}"))
        rng = np.random.default_rng(1)
        positions, house = folders.street(rng, 3000, reach=20)
        np.savez(inputs / "scan.npz", xyz=positions, label=np.where(house, 6, 2))
        np.savez(inputs / "cloud.npz", xyz=rng.uniform(0, 2, (150, 3)))
        (inputs / "campaign_model.py").write_text(MODEL)
        os.environ["PYTHONPATH"] += os.pathsep + str(inputs)
        sys.path.append(str(inputs))
        self.inputs = inputs

    def command(self, trial, out, *, start):
        """The command line that writes to ``out``."""
        kind, inputs = trial["command"], self.inputs
        if kind == "train":
            words = ["train", str(inputs / f"train{trial['workers']}" / "run.toml")]
        elif kind == "demo":
            words = ["demo", "--input", str(inputs / "scan.npz"), "--voxel-size", "1.0"]
            words += ["--steps", str(STEPS), "--workers", str(trial["workers"])]
        elif kind == "tune":
            words = ["tune", "--model", "campaign_model:layer", "--file", str(inputs / "cloud.npz")]
            return [*words, "--voxel-size", "0.5", "--channels", "3", "--anew"]
        elif kind == "export":
            words = ["export", "campaign_model:layer", "--capacity", "8", "--channels", "3"]
            return [*words, "--cpu", "--output", str(out / "model.voxax")]
        else:
            return ["fill-cache", str(out)]
        more = {"fresh": [], "resume": ["--resume"], "overwrite": ["--overwrite"]}[start]
        return [*words, "--out", str(out), *more]

    def __call__(self, trial):
        moment = trial["moment"]
        for _ in range(5):
            out = self._prepare(trial, "run")
            plan = {"signal": trial["signal"], "folder": str(self._place(trial, out))}
            plan["group"] = trial.get("group", trial["signal"] != "SIGKILL")
            # A trial may say itself when.
            plan |= trial.get("plan") or _moment(trial["kind"], moment, self._measured(trial))
            said = self._run(trial, plan, out)
            if said.fired:
                break
            moment /= 2  # it was faster than measured, and ended before
        told = {f"{trial['command']}, {trial['signal']}": 1, **said.counted}
        told[f"in {plan['kind']}"] = 1
        if trial["command"] in ("train", "demo"):
            told |= self._check_run(trial, out, said)
        elif trial["command"] == "export":
            told |= self._check_program(trial, out, said)
        else:
            told |= self._check_cache(trial, self._place(trial, out), said)
        return told

    def _prepare(self, trial, name):
        """A folder for the command, with what an earlier one left there."""
        out = self.folder / name
        for old in (out, self.folder / "cache"):
            shutil.rmtree(old, ignore_errors=True)
        if trial["start"] == "fresh":
            out.mkdir()
        else:
            shutil.copytree(self._kept(trial, self._before(trial)), out)
        return out

    def _place(self, trial, out):
        return self.folder / "cache" / "tuning" if trial["command"] == "tune" else out

    def _before(self, trial):
        """What the folder holds at the start: steps up to 2, or a whole run."""
        return "half" if trial["start"] == "resume" else "whole"

    def _measured(self, trial):
        """``(seconds, changes of files, seconds of each save)`` of the command left alone."""
        name = f"{trial['command']}-{trial['start']}-{trial['workers']}"
        if name not in self.measured:
            path = self.folder / f"measured-{name}.json"
            if not path.exists():
                path.write_text(json.dumps(self._measure(trial)))
            self.measured[name] = json.loads(path.read_text())
        return self.measured[name]

    def _measure(self, trial):
        found = []
        for _ in range(2):  # the first compiles
            out = self._prepare(trial, "measure")
            plan = {"signal": None, "kind": None, "folder": str(self._place(trial, out))}
            said = self._run(trial, plan, out)
            require(said.status == 0, f"left alone, exit status {said.status}: {said.error}")
            found = said.measured
        return found

    @functools.cache  # noqa: B019 - as long as the process
    def _kept_of(self, command, until):
        """A folder as a command leaves it that is left alone, or interrupted behind step 2."""
        trial = {"command": command, "workers": 0}
        kept = self.folder / f"kept-{command}-{until}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        status, said = self._main(self.command(trial, kept, start="fresh"))
        require(status == 0, f"left alone, {command} ended with {status}: {said}")
        if until == "half":
            from voxax.models.checkpoint import steps_of

            checkpoint = kept / "checkpoint"
            shutil.rmtree(kept)  # the run left alone only compiled
            kept.mkdir()
            status, said = self._interrupted(self.command(trial, kept, start="fresh"))
            require(status == 130, f"interrupted, {command} ended with {status}: {said}")
            require(steps_of(checkpoint) == [2], f"steps {steps_of(checkpoint)} behind step 2")
        return kept

    def _kept(self, trial, until):
        return self._kept_of(trial["command"], until)

    def _interrupted(self, command):
        from voxax.models.training import Trainer

        step = Trainer.step

        def stop(trainer, *arguments):
            if trainer.steps == 2:
                raise KeyboardInterrupt
            return step(trainer, *arguments)

        Trainer.step = stop
        try:
            return self._main(command)
        finally:
            Trainer.step = step

    def _main(self, command):
        """``(exit status, what it printed)`` of a command in this process."""
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            status = self.main(command)
        return status, told.getvalue()

    def _run(self, trial, plan, out):
        names = ("reports", "output", "error")
        paths = {name: self.folder / f"{name}.txt" for name in names}
        for path in paths.values():
            path.unlink(missing_ok=True)
        tuning = "cached" if trial["command"] == "tune" else "off"
        plan |= {name: str(path) for name, path in paths.items()}
        plan |= {"command": self.command(trial, out, start=trial["start"])}
        plan |= {"environment": {"VOXAX_AUTOTUNE": tuning}}
        self.victims.stdin.write(json.dumps(plan) + "\n")
        self.victims.stdin.flush()
        session = int(self.victims.stdout.readline())
        if not select.select([self.victims.stdout], [], [], SECONDS / 2)[0]:
            error = paths["error"].read_text()
            os.killpg(session, signal.SIGKILL)
            raise TrialError(f"hangs {SECONDS / 2} s behind its beginning: {error}")
        status = int(self.victims.stdout.readline())
        orphaned = _wait_for_others(session)
        return Said(status, paths["error"].read_text(), paths["reports"].read_text(), orphaned)

    def _check_signal(self, trial, said):
        if not said.fired:
            return {"ended before": 1}
        if trial["signal"] == "SIGKILL":
            require(said.status == -signal.SIGKILL, f"exit status {said.status}: {said.error}")
        else:
            expected = 128 + signal.Signals[trial["signal"]]
            require(said.status == expected, f"exit status {said.status}: {said.error}")
            require("Traceback" not in said.error, f"a traceback: {said.error}")
        return {}

    def _check_run(self, trial, out, said):
        from voxax.models.checkpoint import load_description, newest_step

        told = self._check_signal(trial, said)
        checkpoint = out / "checkpoint"
        newest, saved = newest_step(checkpoint) or 0, said.steps
        before = 2 if trial["start"] == "resume" else 0
        require(newest >= max(saved, default=before), f"step {saved} was saved, {newest} is there")
        told["steps saved"] = len(saved)
        for path in out.glob("*.json"):
            json.loads(path.read_text())  # whole or absent
        if newest:
            require(load_description(checkpoint)["step"] == newest, "the description is another's")
        again = self.folder / "again"
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(out, again)
        status, printed = self._main(self.command(trial, again, start="fresh"))
        if newest:
            refused = status == 2 and "holds a run already" in printed
            require(refused, f"a second run, exit status {status}: {printed}")
        if newest and trial["overwrites"]:
            status, printed = self._main(self.command(trial, again, start="overwrite"))
        if not newest or trial["overwrites"]:
            require(status == 0, f"a fresh start, exit status {status}: {printed}")
            self._check_equal(trial, again, "a fresh start")
            told["started anew"] = 1
        status, printed = self._main(self.command(trial, out, start="resume"))
        if not newest and not checkpoint.is_dir():
            require(status == 2, f"nothing to resume, exit status {status}: {printed}")
            return {**told, "nothing saved yet": 1}
        require(status == 0, f"--resume, exit status {status}: {printed}")
        self._check_equal(trial, out, "--resume")
        return {**told, "resumed": 1}

    def _check_equal(self, trial, out, what):
        """The parameters are those of a run that was left alone."""
        kept = self._kept(trial, "whole")
        for found, expected in zip(_arrays(out), _arrays(kept), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=what)
        losses = [(folder / "losses.csv").read_text() for folder in (out, kept)]
        require(losses[0] == losses[1], f"{what}: losses\n{losses[0]}\n, left alone\n{losses[1]}")

    def _check_program(self, trial, out, said):
        from voxax.export import load_program

        told = self._check_signal(trial, said)
        path = out / "model.voxax"
        if trial["start"] == "overwrite" or said.reports.count("saved program"):
            require(path.exists(), "the program is gone")
        if path.exists():
            found = load_program(path)([[0, 4, 1, -2]], np.ones((1, 3), np.float32))
            require(np.isfinite(found.features).all(), "another program")
            told["programs loaded"] = 1
        status, printed = self._main(self.command(trial, out, start="fresh"))
        require(status == 0, f"a fresh export, exit status {status}: {printed}")
        return told

    def _check_cache(self, trial, place, said):
        from voxax._file_lock import locked
        from voxax.tuning.cache import read_file

        told = self._check_signal(trial, said)
        kept = set(said.keys)
        require(place.is_dir() or not kept, "the cache is gone")
        files = list(place.glob("*.json")) if place.is_dir() else []
        require(files or not kept, "the cache's file is gone")
        for path in files:
            found = read_file(path, path.stem)
            require(found.problem is None and not found.reason, f"the cache: {found}")
            have = {json.dumps(key).replace(" ", "_") for key, _ in found.store}
            require(kept <= have, f"entries lost: {kept - have}")
            with locked(path.parent / f".{path.stem}.lock", 1.0):
                pass
            told["entries kept"] = len(kept)
        if trial["command"] == "tune":
            status, printed = self._main(self.command(trial, place, start="fresh"))
            require(status == 0, f"tuning again, exit status {status}: {printed}")
        return told


class Said:
    """What a victim reported before its end."""

    def __init__(self, status, error, reports, orphaned):
        self.status, self.error, self.reports = status, error, reports
        lines = [line.split() for line in reports.splitlines()]
        ends = [number for number, words in enumerate(lines) if words[0] == "ends"]
        self.fired = ["fired"] in (lines[: ends[0]] if ends else lines)
        self.measured = [float(word) for word in lines[ends[0]][1:]] if ends else None
        saved = [words[1:] for words in lines if words[0] == "saved"]
        self.steps = [int(words[0]) for words in saved if len(words) == 1 and words[0].isdigit()]
        self.keys = [key for words in saved for key in words[1:]]
        self.counted = {"longest end of children, s": round(orphaned, 1)}


def _moment(kind, moment, measured):
    """The kind of moment, and when exactly, of a command that was measured."""
    seconds, changes, *saves = measured
    if kind == "change" and changes:
        return {"kind": kind, "at": 1 + int(moment * changes)}
    if kind == "save" and saves:
        place = moment * len(saves)
        return {"kind": kind, "save": int(place), "at": place % 1 * saves[int(place)]}
    return {"kind": "time", "at": moment * seconds}


def _wait_for_others(session):
    """Wait until no process of the session lives; return for how long, or raise."""
    begin = time.monotonic()
    while True:
        others = _living(session)
        waited = time.monotonic() - begin
        if not others:
            return waited
        if waited > ORPHAN_SECONDS:
            os.killpg(session, signal.SIGKILL)
            raise TrialError(f"orphans after {ORPHAN_SECONDS} s: {others}")
        time.sleep(0.05)


def _living(session):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, fields = path.read_text().rsplit(")", 1)
            state, _, _, own, *_ = fields.split()
            if int(own) == session and state not in "ZX":
                found.append(name)
    return found


def _arrays(out):
    """The arrays of the newest step, in the order of their names."""
    import orbax.checkpoint as ocp

    from voxax.models.checkpoint import newest_step

    checkpoint = out / "checkpoint"
    step = newest_step(checkpoint)
    require(step == STEPS, f"the newest step is {step}")
    import jax

    with ocp.StandardCheckpointer() as reader:
        return jax.tree.leaves(reader.restore(checkpoint / str(step) / "default"))
