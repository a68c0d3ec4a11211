"""Attention by the kernels of JAX: lowered for GPUs and TPUs, compiled for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from samples import make_voxels
from voxax import _compat
from voxax.nn import functional as F
from voxax.nn.functional import flash_attention
from voxax.predict import TOPOLOGIES, compile_for

ROWS = np.random.default_rng(0).permutation(np.indices((2, 6, 6, 6)).reshape(4, -1).T)[:200]
HEADS, WIDTH = 2, 8


def loss(features, geometry, algorithm):
    packed = vx.Voxels(geometry, features)
    patches = F.serialized_attention(packed, HEADS, 128, algorithm=algorithm)
    whole = F.scene_attention(packed, HEADS, algorithm=algorithm)
    return jnp.sum(jnp.sin((patches.features + whole.features).astype(jnp.float32)))


def packed(dtype, capacity=256):
    voxels = make_voxels(ROWS, 3 * HEADS * WIDTH, capacity=capacity)
    return voxels.map(lambda f: f.astype(dtype))


def test_cudnn_lowers_for_cuda(monkeypatch):
    """Forward and backward, in a process without a GPU, whose version is made up."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91100)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(cudnn, "is_cuda_compute_capability_equal", lambda capability: False)
    voxels = packed(jnp.bfloat16)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    traced = step.trace(voxels.features, voxels.geometry, "cudnn")
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__cudnn$fmhaSoftmaxBackward") >= 2
    assert text.count("__cudnn$fmhaSoftmax") >= 4


def test_where_each_is_taken(monkeypatch):
    how = flash_attention.Logits(1.0, "highest")
    half, full = (jax.ShapeDtypeStruct((2, 16), t) for t in (jnp.bfloat16, jnp.float32))
    odd = jax.ShapeDtypeStruct((2, 12), jnp.bfloat16)
    table = flash_attention.Logits(1.0, "highest", jnp.zeros((3, 5, 2)))
    for device, kernel in (("cpu", "tiles"), ("gpu", "cudnn"), ("tpu", "splash")):
        monkeypatch.setattr(jax, "default_backend", lambda device=device: device)
        assert flash_attention.choose(None, half, how, 128) == kernel
        assert flash_attention.choose(None, full, how, 128) == "tiles"
        assert flash_attention.choose(None, half, table, 128) == "tiles"
        assert flash_attention.choose("tiles", half, how, 128) == "tiles"
    assert flash_attention.choose(None, half, how, 100) == "tiles"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert flash_attention.choose(None, odd, how, 128) == "tiles"


def test_splash_attention_lowers_for_tpus():
    """Forward and backward, to the language that the compiler of a TPU reads."""
    voxels = packed(jnp.bfloat16)
    step = jax.jit(jax.value_and_grad(loss), static_argnums=2)
    traced = step.trace(voxels.features, voxels.geometry, "splash")
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") >= 6, "three for patches, three for scenes"


@pytest.mark.tpu_compile
@pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")
@pytest.mark.parametrize("chip", TOPOLOGIES)
def test_splash_attention_compiles(chip):
    """Forward and backward, by the compiler of a TPU that is not here."""
    voxels = packed(jnp.bfloat16, capacity=512)
    step = jax.value_and_grad(loss)
    given = voxels.features, voxels.geometry
    program = compile_for(TOPOLOGIES[chip], lambda f, g: step(f, g, "splash"), *given)
    assert program.as_text().count("tpu_custom_call") >= 6
