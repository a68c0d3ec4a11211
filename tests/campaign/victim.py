"""Processes that run one command of voxax each, and end at a moment of it.

``python victim.py`` imports voxax once, and then forks a process for each plan, a line of JSON;
see ``kills.py``. JAX is imported and not started before the fork. A victim reports, to the file
``plan["reports"]``, that it begins, every step, program and cache entry that was saved, and its
end.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link")


class Plan:
    """When to send which signal: at a time, at a change of files, or within a save."""

    def __init__(self, told):
        self.told = told
        self.reports = os.open(told["reports"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.folder = told["folder"]
        self.changes, self.saves = 0, []
        self.begin = time.monotonic()

    def report(self, *words):
        os.write(self.reports, (" ".join(map(str, words)) + "\n").encode())

    def fire(self):
        number = signal.Signals[self.told["signal"]]
        if number == signal.SIGKILL:
            self.report("fired")
        try:
            if self.told["group"] and number != signal.SIGKILL:
                os.killpg(0, number)  # as a terminal does, or a cluster
            else:
                os.kill(os.getpid(), number)  # the parent alone: its children notice
        finally:  # in the main thread, the signal interrupts this method
            # Not before the signal: the command may end while another thread writes the report.
            self.report("fired")

    def fire_after(self, seconds):
        timer = threading.Timer(seconds, self.fire)
        timer.daemon = True
        timer.start()

    def arm(self):
        self.report("begins")
        sys.addaudithook(self.on_event)
        if self.told["kind"] == "time":
            self.fire_after(self.told["at"])

    def on_event(self, event, arguments):
        if event == "open":
            path, mode, flags = arguments
            writes = (
                flags & (os.O_WRONLY | os.O_RDWR) if isinstance(flags, int) else "w" in str(mode)
            )
        else:
            path, writes = (arguments or ("",))[0], event in CHANGES
        if not writes or isinstance(path, int) or not str(path).startswith(self.folder):
            return
        self.changes += 1
        if self.told["kind"] == "change" and self.changes == self.told["at"]:
            self.fire()

    def saving(self, save, report):
        """``save``, fired at inside, and reported once it returned."""

        def wrapped(*arguments, **options):
            begin = time.monotonic()
            if self.told["kind"] == "save" and len(self.saves) == self.told["save"]:
                self.fire_after(self.told["at"])
            result = save(*arguments, **options)
            self.saves.append(time.monotonic() - begin)
            for words in report(result, *arguments, **options):
                self.report("saved", *words)
            return result

        return wrapped


def patch():
    """A network that compiles in a second, without pictures; saves every other step."""
    from cli.small_network import small

    importlib.import_module("voxax.cli.segmentation_task").Segmentation.model = small
    demo = importlib.import_module("voxax.cli.demo")
    demo._Run._pictures = lambda self: None
    demo.SAVE_EVERY = 2


def observe(plan):
    """Report what the library says is saved."""
    learning = importlib.import_module("voxax.cli.learning")
    learning.save_checkpoint = plan.saving(
        learning.save_checkpoint, lambda result, folder, tree, description, step: [(step,)]
    )
    cache = importlib.import_module("voxax.tuning.cache")
    cache.save_file = plan.saving(
        cache.save_file,
        lambda result, path, device, added, *_: [(len(added), *_keys(added))],
    )
    program = importlib.import_module("voxax.export")
    program.export_program = plan.saving(program.export_program, lambda *_, **__: [("program",)])


def _keys(added):
    return [json.dumps(key).replace(" ", "_") for key, _ in added]


def fill_cache(folder):
    """Put entries into a tuning cache, and save each."""
    from tuning.cache_entries import DEVICE, entry, measured
    from voxax.tuning.cache import TuningCache

    cache = TuningCache(Path(folder), DEVICE)
    for number in range(1, 61):
        cache.put(f"key {number % 40}", entry(measured(seconds=float(number))))
        cache.flush()


def run(told):
    """The victim: in a session of its own, with its output in files."""
    from voxax import cli

    os.setsid()
    # What a shell starts in the background ignores Ctrl-C, and nohup SIGHUP.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for number, name in ((1, "output"), (2, "error")):
        file = os.open(told[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.environ |= told["environment"]
    plan = Plan(told)
    observe(plan)
    plan.arm()
    command = told["command"]
    sys.argv[1:] = command
    status = fill_cache(command[1]) if command[0] == "fill-cache" else cli.main()
    plan.report("ends", time.monotonic() - plan.begin, plan.changes, *plan.saves)
    sys.exit(status)


def main():
    sys.path[:0] = [str(TESTS), str(TESTS / "tuning")]
    patch()
    for name in ("voxax.cli.train_run", "voxax.cli.tune", "voxax.cli.export", "voxax.cli.tasks",
                 "orbax.checkpoint", "optax", "tyro", "rich"):  # fmt: skip
        importlib.import_module(name)
    from campaign.run import plant_fault

    plant_fault()
    for line in iter(sys.stdin.readline, ""):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
