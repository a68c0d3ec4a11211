"""Ctrl-C, SIGTERM and SIGHUP in a command wait for the end of a step, and are never lost."""

import contextlib
import copy
import gc
import signal
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace

import pytest

from voxax import _interrupts, cli
from voxax.cli import learning, main, run_folder, tasks
from voxax.errors import InputError
from voxax.models.checkpoint import steps_of

pytestmark = [
    pytest.mark.lax_promotion,  # optax promotes step counts
    pytest.mark.usefixtures("takes_ctrl_c"),
]

ENDING = (signal.SIGTERM, signal.SIGHUP)


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def test_an_interruption_waits_for_the_end_of_a_step():
    """Halfway through, the old parameters are gone and the new ones are not there."""
    done = []

    def step():
        with _interrupts.uninterrupted():
            interrupt()
            done.append("the rest of the step")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_waits_for_the_end_of_a_removal(tmp_path, monkeypatch):
    """Of the run before, which --overwrite deletes."""
    for name in ("checkpoint/3/default/_METADATA", "losses.csv"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    remove = run_folder.shutil.rmtree

    def interrupted(*arguments):
        interrupt()
        interrupt()
        remove(*arguments)

    monkeypatch.setattr(run_folder.shutil, "rmtree", interrupted)
    run = SimpleNamespace(_overwrites=True, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        learning.Learning.train(run, None, [], 1, save_every=1)
    assert not list(tmp_path.iterdir())


def in_garbage_collection():
    gc.callbacks.append(interrupt)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(interrupt)


class Ended:
    def __del__(self):
        interrupt()


def in_a_finalizer():
    Ended()


def in_a_weak_reference():
    value = {1}
    kept = weakref.ref(value, interrupt)
    del value
    return kept


def in_a_bare_except():
    with contextlib.suppress(BaseException):  # as JAX asks whether a dimension is an integer
        interrupt()


PLACES = [in_garbage_collection, in_a_finalizer, in_a_weak_reference, in_a_bare_except]


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_that_python_drops_is_raised_again(place):
    def wait(seconds):
        with _interrupts.never_dropped():
            place()
            time.sleep(seconds)

    begin = time.monotonic()
    for seconds in (30, 0):  # it ends the block, or the block ends first
        with pytest.raises(KeyboardInterrupt):
            wait(seconds)
    assert time.monotonic() < begin + 20
    time.sleep(3 * _interrupts._MOMENT)  # once alone


def test_other_errors_that_python_drops_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(found.exc_type))
    hook = sys.unraisablehook

    class Broken:
        def __del__(self):
            raise ValueError

    with _interrupts.never_dropped():
        Broken()
    assert told == [ValueError]
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("place", PLACES)
def test_a_run_ends_although_python_drops_it(demo, tmp_path, capsys, monkeypatch, place):
    taken = []

    def step(self):
        taken.append(self)
        if len(taken) == 3:
            place()

    monkeypatch.setattr(learning.Trace, "step", step)
    assert demo("--steps", "2000") == 130
    told = capsys.readouterr()
    assert told.err == ""
    assert "continue with" in told.out
    newest, *_ = steps_of(tmp_path / "run" / "checkpoint")
    assert 2 <= newest < 2000
    assert demo("--steps", str(newest + 1), "--resume") == 0


def test_a_command_that_ends_first_says_that_it_was_interrupted(capsys, monkeypatch):
    def run(words):
        in_garbage_collection()
        return 0

    monkeypatch.setattr("voxax.cli._run", run)
    assert main(["hardware"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def swallowed():
    in_a_bare_except()
    raise AttributeError("of what the answer led to")


def replaced():
    try:
        interrupt()
    except BaseException:
        raise AttributeError("of another library") from None


def kept_alive():
    """What stores an error keeps the interrupt that it came of, such as the checker's report."""
    try:
        replaced()
    except AttributeError as error:
        kept.append(error)


def leaves():
    in_a_bare_except()
    raise SystemExit(2)


kept = []


@pytest.mark.parametrize("run", [swallowed, replaced, kept_alive, leaves])
def test_an_error_that_a_lost_interrupt_leads_to_is_not_told(run, capsys, monkeypatch):
    monkeypatch.setattr("voxax.cli._run", lambda words: run())
    assert main(["hardware"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    time.sleep(3 * _interrupts._MOMENT)  # once alone
    monkeypatch.setattr("voxax.cli._run", lambda words: kept.clear() or 0)
    assert main(["hardware"]) == 0  # it is of the command before


def test_an_interrupt_that_is_handled_comes_once():
    with _interrupts.never_dropped():
        try:
            try:
                interrupt()
            finally:  # pressed again
                interrupt()
        except KeyboardInterrupt as error:
            _interrupts.mark_handled()
            copy.copy(error)
        time.sleep(3 * _interrupts._MOMENT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_waits_for_the_end_of_a_restore(monkeypatch):
    """A read that Orbax gives up leaves coroutines, whose end Python prints."""
    done = []

    def load(folder, like):
        interrupt()
        return "the arrays"

    monkeypatch.setattr(tasks, "load_arrays", load)
    trainer = SimpleNamespace(tree=lambda: None, load_tree=done.append)
    with pytest.raises(KeyboardInterrupt):
        tasks.restore("checkpoint", trainer)
    assert done == ["the arrays"]


def test_an_interruption_waits_for_the_end_of_a_check_of_weights(demo, tmp_path, monkeypatch):
    assert demo("--steps", "1") == 0
    folder = tmp_path / "run" / "checkpoint"
    done = []

    def check(folder, like):
        interrupt()
        done.append(sorted(like))

    monkeypatch.setattr(tasks, "check_arrays", check)
    with pytest.raises(KeyboardInterrupt):
        tasks.check_weights(folder, tasks.task_of(folder))
    assert done == [["params", "state"]]


@pytest.fixture
def takes_signals():
    """Have SIGTERM and SIGHUP as a process has them that nobody protects."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ENDING}
    yield
    for number, handler in before.items():
        assert signal.getsignal(number) is signal.SIG_DFL  # a command leaves no handler
        signal.signal(number, handler)


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("number", ENDING)
def test_a_run_is_saved_and_ends_with_the_status_of_its_signal(
    number, demo, tmp_path, capsys, monkeypatch
):
    taken = []

    def step(self):
        taken.append(self)
        if len(taken) == 3:
            signal.raise_signal(number)

    monkeypatch.setattr(learning.Trace, "step", step)
    assert demo("--steps", "2000") == 128 + number
    told = capsys.readouterr()
    assert told.err == ""
    assert "interrupted at step 2" in told.out
    assert steps_of(tmp_path / "run" / "checkpoint")[0] == 2
    assert demo("--steps", "3", "--resume") == 0


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize(
    "command",
    [
        "bench",
        "cache",
        "check",
        "detect",
        "explain",
        "export",
        "hardware",
        "segment",
        "tune",
        "view",
    ],
)
def test_every_command_takes_them(command, number, capsys, monkeypatch):
    monkeypatch.setattr("voxax.cli._run", lambda words: signal.raise_signal(number))
    assert main([command]) == 128 + number
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("number", ENDING)
def test_such_a_signal_waits_as_ctrl_c_does(number):
    done = []

    def step():
        with _interrupts.uninterrupted():
            signal.raise_signal(number)
            signal.raise_signal(number)  # of a terminal that closes, or of `timeout`
            done.append("the rest of the step")

    with _interrupts.ended_by_signals() as ending, pytest.raises(KeyboardInterrupt):
        step()
    assert done
    assert ending.number == number
    assert [ending.status(status) for status in (0, 130, 2)] == [128 + number] * 2 + [2]


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("place", PLACES)
def test_such_a_signal_is_not_lost_either(place, monkeypatch):
    monkeypatch.setattr(f"{__name__}.interrupt", lambda *_: signal.raise_signal(signal.SIGTERM))

    def wait():
        with _interrupts.never_dropped():
            place()
            time.sleep(30)

    with _interrupts.ended_by_signals() as ending, pytest.raises(KeyboardInterrupt):
        wait()
    assert ending.number == signal.SIGTERM


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", ENDING)
def test_such_a_signal_comes_again_where_ctrl_c_is_ignored(number, place, monkeypatch):
    """As for what a script starts with ``&``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(f"{__name__}.interrupt", lambda *_: signal.raise_signal(number))

    def wait():
        with _interrupts.never_dropped():
            place()
            time.sleep(30)

    begin = time.monotonic()
    with _interrupts.ended_by_signals() as ending, pytest.raises(KeyboardInterrupt):
        wait()
    assert time.monotonic() < begin + 20
    assert ending.number == number
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("takes_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_a_signal_during_a_step_that_fails_is_not_lost(number):
    """The caller may handle the error and go on, as one that takes an older checkpoint."""
    went_on = []

    def restore():
        for step in (2, 1):
            try:
                with _interrupts.uninterrupted():
                    signal.raise_signal(number)
                    raise InputError(f"step {step} is broken")
            except InputError:
                went_on.append(step)

    def run():
        with _interrupts.ended_by_signals(), _interrupts.never_dropped():
            restore()

    with pytest.raises(KeyboardInterrupt) as caught:
        run()
    assert not went_on
    assert str(_interrupts.failure_before(caught.value)) == "step 2 is broken"


def test_a_save_that_fails_while_ctrl_c_waits_is_told(capsys, monkeypatch):
    def save(words):
        with _interrupts.uninterrupted():
            interrupt()
            raise InputError("the disk is full")

    monkeypatch.setattr("voxax.cli._run", save)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "voxax: the disk is full\ninterrupted\n"


@pytest.mark.usefixtures("takes_signals")
def test_a_lost_signal_that_comes_again_in_a_step_is_no_second_one():
    def step():
        with _interrupts.never_dropped():
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGTERM)
            with _interrupts.uninterrupted():
                time.sleep(2 * _interrupts._ONE_SIGNAL)

    with _interrupts.ended_by_signals() as ending, pytest.raises(KeyboardInterrupt):
        step()
    assert ending.number == signal.SIGTERM


@pytest.mark.usefixtures("takes_signals")
def test_a_signal_interrupts_although_what_precedes_it_fails(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)  # as of a process that is started with it closed
    with _interrupts.ended_by_signals(lambda: 1 // 0), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert not cli._drop_closed_outputs()


@pytest.mark.usefixtures("takes_signals")
def test_handlers_stand_once_the_thread_runs_that_a_second_signal_needs(monkeypatch):
    """Before, nothing would catch the exception, and a traceback would be printed."""
    start, seen = _interrupts.threading.Thread.start, []

    def started(thread):
        seen.append([signal.getsignal(number) for number in ENDING])
        start(thread)

    monkeypatch.setattr(_interrupts.threading.Thread, "start", started)
    with _interrupts.ended_by_signals() as ending:
        assert [signal.getsignal(number) for number in ENDING] == [ending.take] * 2
    assert seen == [[signal.SIG_DFL] * 2]


def test_what_the_caller_decided_stays(monkeypatch):
    """`nohup` ignores SIGHUP, and a program may have a handler of its own."""
    came = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    own = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        monkeypatch.setattr("voxax.cli._run", lambda words: [*map(signal.raise_signal, ENDING)][2:])
        assert main(["hardware"]) == []
        assert came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.signal(signal.SIGTERM, own)


IMPORTS = """
import signal
before = [signal.getsignal(number) for number in (signal.SIGINT, *{numbers})]
import voxax, voxax.cli, voxax.io.pipeline
assert before == [signal.getsignal(number) for number in (signal.SIGINT, *{numbers})]
signal.raise_signal({last})
"""


def test_a_script_that_imports_voxax_ends_as_any_other():
    script = IMPORTS.format(numbers=tuple(map(int, ENDING)), last=int(signal.SIGTERM))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, b"")


# A command whose end takes as long as ``held`` is there; it runs no Python meanwhile with ``deaf``.
HELD = """
import ctypes, os, pathlib, signal, sys, threading, time
import voxax.cli

held, deaf, late = pathlib.Path(sys.argv.pop()), "deaf" in sys.argv, "late" in sys.argv

def wait(words=None):
    try:
        print("ready", flush=True)
        while held.exists():
            ctypes.CDLL(None).sleep(600) if deaf else time.sleep(0.02)
    except KeyboardInterrupt:
        print("told", flush=True)
        time.sleep(600)
    return 0

def last(words):
    threading.Thread(target=wait).start()  # Python waits for it at its end
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # behind `nohup` it is ignored
voxax.cli._run = last if late else wait
sys.exit(voxax.cli.main())
"""


@contextlib.contextmanager
def held(tmp_path, *how):
    """A process that ends once the file ``held`` is gone."""
    path = tmp_path / "held"
    path.touch()
    command = [sys.executable, "-c", HELD, *how, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield process, path
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        ("deaf", (signal.SIGTERM, signal.SIGTERM)),  # such as XLA, which compiles
        ("", (signal.SIGHUP, signal.SIGTERM)),
        ("", (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_second_signal_ends_at_once(how, numbers, tmp_path):
    with held(tmp_path, *how.split()) as (process, _):
        process.send_signal(numbers[0])
        if not how:
            assert process.stdout.readline() == "told\n"
        time.sleep(2 * _interrupts._ONE_SIGNAL)
        assert process.poll() is None
        process.send_signal(numbers[1])
        assert process.wait(20) == 128 + numbers[1]
        assert process.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_the_last_moments_of_a_command_print_nothing(number, tmp_path):
    """Python joins threads there, and would print an exception."""
    with held(tmp_path, "late") as (process, path):
        time.sleep(0.2)  # the command returns meanwhile
        process.send_signal(number)
        time.sleep(0.1)
        assert process.poll() is None
        path.unlink()
        assert process.wait(20) == 128 + number
        assert process.stderr.read() == ""
