"""Child processes end when only their parent is killed, and leave Ctrl-C to it."""

import os
import signal
import subprocess
import sys
import time

import pytest

WORKERS = """
import os, time
from voxax.io.pipeline import Pipeline

def pid(_):
    time.sleep(0.2)
    return os.getpid()

if __name__ == "__main__":
    with Pipeline(pid, workers=2) as pipeline:
        print(*set(pipeline(range(8))))
        print("ready", flush=True)
        {wait}
"""
CHILD = """
import os, subprocess, sys, time
code = "import os, sys, time; from voxax._parent import end_with; end_with(int(sys.argv[1]));"
code += "print(os.getpid(), flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
print("ready", flush=True)
time.sleep(60)
"""
SCRIPTS = {
    "idle workers": WORKERS.format(wait="time.sleep(60)"),
    "busy workers": WORKERS.format(wait="list(pipeline(range(10_000)))"),
    "a child": CHILD,
}


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("name", SCRIPTS)
def test_children_of_a_killed_process_end(tmp_path, name):
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[name])
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    children, lines = [], []
    while "ready" not in lines or not children:
        line = parent.stdout.readline().strip()
        assert line, "the script ended"
        lines.append(line)
        children += [int(word) for word in line.split() if word.isdigit()]
    assert all(map(is_alive, children))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 20  # it takes one or two seconds on a machine with time
    while any(map(is_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, children))


# A terminal sends Ctrl-C to every process of a command, here while a worker imports the script.
INTERRUPTED = """
import os, signal
from voxax.io.pipeline import GrainPipeline, Pipeline

if __name__ == "__mp_main__":
    os.kill(os.getpid(), signal.SIGINT)

def square(value):
    return value * value

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored behind it
    with {kind}(square, workers={workers}) as pipeline:
        print(list(pipeline(range(4))))
"""


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("Pipeline", 2), *(pytest.param("GrainPipeline", n, marks=pytest.mark.slow) for n in (1, 2))],
)
def test_workers_that_import_leave_an_interrupt_to_their_parent(tmp_path, kind, workers):
    if kind == "GrainPipeline":
        pytest.importorskip("grain", reason="grain is optional")
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(kind=kind, workers=workers))
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in found.stderr, found.stderr
    assert found.stdout == "[0, 1, 4, 9]\n", found.stderr


# Ctrl-C between the start of a worker and the moment when it is told what to run.
STARTING = """
import multiprocessing.popen_spawn_posix as starts
import os, signal, threading, time
from voxax.io.pipeline import Pipeline

def interrupted(*given, start=starts.util.spawnv_passfds):
    child = start(*given)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    return child

def square(value):
    return value * value

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=time.sleep, args=[1]).start()  # one that takes the signal
    try:
        with Pipeline(square) as pipeline:
            starts.util.spawnv_passfds = interrupted
            print(list(pipeline(range(4))))
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_worker_that_starts_is_told_what_to_run_before_an_interrupt(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(STARTING)
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert found.stdout == "interrupted\n", found.stderr
    assert found.stderr == ""
