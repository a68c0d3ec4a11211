"""Every public function on arrays of an explicit mesh; run in a process that has the devices."""

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import voxax as vx
from public_calls import CALLS, arrays, namespace


def check(devices, jitted=False):
    """Results on arrays that are split are those of whole arrays, or the error is voxax's."""
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(AxisType.Explicit,))

    def put(leaf):
        spec = PartitionSpec() if not leaf.ndim or leaf.shape[0] % devices else PartitionSpec("d")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    whole = arrays()
    split = jax.tree.map(put, whole)
    wrong = {}
    for name, call in CALLS.items():
        if jitted and name == "on the host":
            continue

        def run(tree, call=call):
            return call(namespace(tree))

        if jitted:
            run = jax.jit(run)
        want = run(whole)
        try:
            compare(run(split), want)
        except vx.VoxaxError as error:
            wrong[name] = f"refused: {error}"
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:400]}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())


def compare(found, want):
    assert jax.tree.structure(found) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        if isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)
