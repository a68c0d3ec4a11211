"""PTv3 as one program: the base network for other devices, and clouds that share a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.tpu.ptv3_step import MODES, step
from flax import nnx

import voxax as vx
from voxax.models import PTv3

TINY = {
    "encoder_depths": (1, 1),
    "encoder_channels": (8, 12),
    "encoder_num_heads": (2, 2),
    "strides": (2,),
    "decoder_depths": (1,),
    "decoder_channels": (8,),
    "decoder_num_heads": (2,),
    "patch_size": 16,
}
# Of the 22 blocks, those of the same rows and heads are calls of one function.
ATTENTIONS = 6


def scene(number):
    """A surface of so many voxels, seen twice."""
    x, y = np.indices((40, 40)).reshape(2, -1)[:, :number]
    z = (4 * np.sin(x / 5) * np.cos(y / 7) + 5).astype(int)
    rows = np.stack([np.repeat((0, 1), number), *np.tile([x, y, z], 2)], axis=1)
    features = np.random.default_rng(number).normal(size=(len(rows), 3)).astype(np.float32)
    return rows.astype(np.int32), features


def test_clouds_of_one_bucket_compile_nothing():
    """Levels too have the capacities of the plan, whatever they hold."""
    model = PTv3(3, 5, **TINY)
    model.eval()
    graph, state = nnx.split(model)
    run = jax.jit(lambda state, voxels: nnx.merge(graph, state)(voxels))
    clouds = [vx.Voxels.from_coords(*scene(n), batch_size=2, capacity=1280) for n in (600, 430, 9)]
    plan = vx.Plan.record(model, clouds[0]).fitted(clouds)
    for cloud in clouds:
        out = run(state, plan.attach(cloud))
        assert int(out.count) == int(cloud.count)
        assert int(out.num_dropped) == 0
        assert np.isfinite(out.valid_features()).all()
    assert run._cache_size() == 1


@pytest.mark.slow  # tracing 22 blocks
@pytest.mark.lax_promotion  # optax relies on it
@pytest.mark.parametrize("mode", MODES)
def test_the_base_network_lowers_for_cuda(mode, monkeypatch):
    """65,536 rows with cuDNN's attention, in a process without a GPU, whose version is made up."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    run, *given = step(mode == "training", "cudnn")
    text = jax.jit(run).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__cudnn$fmhaSoftmaxBackward") >= (ATTENTIONS if mode == "training" else 0)
    assert text.count("__cudnn$fmhaSoftmax") >= ATTENTIONS


@pytest.mark.slow  # a minute of the compiler
def test_the_base_network_compiles_for_a_cpu():
    """65,536 rows in float32, as one program."""
    run, *given = step(attention="tiles", dtype=jnp.float32)
    used = jax.jit(run).lower(*given).compile().memory_analysis()
    assert 0 < used.temp_size_in_bytes < 4 * 2**30
