"""A process that was forked from one that had used JAX refuses to use it, and does not hang."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks by default")

BEGIN = """
import multiprocessing, sys, warnings
import jax, numpy as np
import voxax as vx
warnings.simplefilter("ignore")
points = np.random.default_rng(0).uniform(0, 4, (200, 3)).astype(np.float32)

def child(queue):
    try:
        queue.put({call})
    except Exception as error:
        queue.put(f"{type(error).__mro__[:2]} {error}")

if __name__ == "__main__":
    {before}
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    process = fork.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
"""
VOXELIZE = "int(vx.voxelize(points, points, voxel_size=0.5).count)"
VOXAX = "vx.voxelize(points, points, voxel_size=0.5)"
JAX = "jax.numpy.zeros(3).block_until_ready()"


def said(call, before, begin=BEGIN):
    script = begin.replace("{call}", call).replace("{before}", before)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return ran.stdout


@pytest.mark.parametrize("before", [VOXAX, JAX])
@pytest.mark.parametrize(
    "call",
    [
        VOXELIZE,
        "vx.Voxels.from_coords(np.zeros((1, 4), int), points[:1]).count",
        "vx.Points.make(points).count",
    ],
)
def test_a_fork_of_a_process_that_used_jax_is_refused(call, before):
    found = said(call, before)
    assert "VoxaxError" in found
    assert 'multiprocessing.get_context("spawn")' in found


def test_a_fork_is_refused_whichever_was_imported_first():
    """Its first use of voxax loads modules, in a process that is not the one that imported it."""
    jax, voxax = "import jax, numpy as np\n", "import voxax as vx\n"
    found = said("vx.Points.make(points).count", JAX, BEGIN.replace(jax + voxax, voxax + jax))
    assert "VoxaxError" in found


@pytest.mark.parametrize(
    "call",
    ["vx.batch([voxels] * 2)", "voxels + voxels", "voxels.map(abs)", "vx.nn.modules.BatchNorm(3)"],
)
def test_operators_and_layers_are_refused_too(call):
    found = said(call, f"import voxax.nn.modules; voxels = {VOXAX}")
    assert "VoxaxError" in found


def test_the_host_path_works_in_a_fork():
    call = "int(vx.voxelize_on_host(points, points, 0.5)[0].count)"
    assert int(said(call, VOXAX)) == int(said(VOXELIZE, "pass")) > 100


def test_a_fork_may_begin_to_use_jax():
    begins = f"({JAX}, {VOXELIZE})[1]"
    assert int(said(begins, "pass")) > 100
    # Also where voxax was asked before, and JAX had not begun.
    assert int(said(VOXELIZE, "from voxax._fork import check_process; check_process()")) > 100
