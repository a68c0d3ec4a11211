"""Check that the next process reads the measurements, and that a removed cache is rebuilt."""

import json
import os
import subprocess
import sys
from pathlib import Path

# One training step's products over a map that is an argument.
SCRIPT = """
import collections, json, logging, sys
import jax

folder = sys.argv[1]
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("voxax.tuning").addHandler(handler)
logging.getLogger("voxax.tuning").setLevel(logging.INFO)

import jax.numpy as jnp
import numpy as np
from lowered import dense_weight, small_voxels
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import measure, record_choices

def step(weight, voxels):
    return (spatially_sparse_conv(voxels, weight).features ** 2).sum()

with record_choices() as heard:
    loss, slope = jax.jit(jax.value_and_grad(step))(dense_weight(), small_voxels())
print(json.dumps({
    "spent": measure.spent(),
    "lines": lines,
    "choices": [[str(c), c.source, c.seconds, c.problem.product] for c in heard],
    "hits": events["/jax/compilation_cache/cache_hits"],
    "misses": events["/jax/compilation_cache/cache_misses"],
    "loss": float(loss),
    "slope": np.asarray(slope).tolist(),
}))
"""


def run(folder):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder / "programs")],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            "VOXAX_AUTOTUNE": "on",
            "VOXAX_CACHE_DIR": str(folder),
        },
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def programs(folder):
    return sorted(path.name for path in (folder / "programs").iterdir() if "-cache" in path.name)


def test_a_second_process_measures_and_compiles_nothing(tmp_path):
    first = run(tmp_path)
    assert first["spent"] > 0
    assert len(first["lines"]) == 2
    assert all(line.startswith("tuned ") for line in first["lines"])
    assert [c[1] for c in first["choices"]] == ["measured", "measured"]
    assert {c[3] for c in first["choices"]} == {"forward", "wgrad"}
    assert first["misses"] > 0
    known = programs(tmp_path)

    second = run(tmp_path)
    assert second["spent"] == 0
    assert second["lines"] == []
    assert [c[1] for c in second["choices"]] == ["cached", "cached"]
    assert [[c[0], *c[2:]] for c in second["choices"]] == [[c[0], *c[2:]] for c in first["choices"]]
    assert second["misses"] == 0
    assert second["hits"] > 0
    assert programs(tmp_path) == known
    # The same programs: the same bits.
    assert (second["loss"], second["slope"]) == (first["loss"], first["slope"])
