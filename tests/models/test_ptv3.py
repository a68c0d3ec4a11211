"""PTv3: padding, plans, checkpoints by block, one program. Parity: tests/pytorch/spconv_api."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.tpu.ptv3_step import MODES, step
from flax import nnx

import voxax as vx
from samples import make_voxels
from voxax.interop.checkpoint_file import write_checkpoint
from voxax.interop.sources import weights_of
from voxax.models import PTv3, PTv3Block, PTv3Encoder

TINY = {
    "encoder_depths": (1, 2),
    "encoder_channels": (8, 12),
    "encoder_num_heads": (2, 2),
    "strides": (2,),
    "decoder_depths": (1,),
    "decoder_channels": (8,),
    "decoder_num_heads": (2,),
    "patch_size": 16,
}


def run(model, voxels):
    graph, state = nnx.split(model)
    return jax.jit(lambda s, v: nnx.merge(graph, s)(v))(state, voxels)


ROWS = np.random.default_rng(0).permutation(np.indices((2, 6, 6, 6)).reshape(4, -1).T)[:150]


def tiny(**options):
    return PTv3(3, 5, rngs=nnx.Rngs(0), **{**TINY, **options})


def gradients(model, voxels):
    graph, state = nnx.split(model)

    @jax.jit
    def of(state, voxels):
        def loss(state):
            return jnp.sum(jnp.sin(nnx.merge(graph, state)(voxels).features))

        return jax.value_and_grad(loss, allow_int=True)(state)

    value, grads = of(state, voxels)
    return value, [g for g in jax.tree.leaves(grads) if jnp.issubdtype(g.dtype, jnp.floating)]


def test_padding_is_inert():
    voxels = make_voxels(ROWS, 3, capacity=192)
    poisoned = vx.Voxels(
        voxels.geometry, jnp.where(voxels.valid[:, None], voxels.features, jnp.nan)
    )
    model = tiny(drop_path=0.0, shuffle_orders=False)
    clean, dirty = gradients(model, voxels), gradients(model, poisoned)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(a, b)


def test_recomputed_blocks_give_the_same_gradients():
    voxels = make_voxels(ROWS, 3, capacity=192)
    options = {"drop_path": 0.5, "position": "relative"}  # random: streams must agree too
    plain, again = (gradients(tiny(remat=r, **options), voxels) for r in (False, True))
    # Of the largest of all: that of a bias in front of a norm, for one, is zero but for rounding.
    largest = max(float(np.abs(a).max()) for a in plain[1])
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * largest)


@pytest.mark.slow  # 100,000 voxels
def test_memory_of_a_block():
    """Forward and backward, patches of 1024 rows and 8 heads: at most 1.5 GiB on a CPU."""
    rows, channels = 100_000, 128
    x, y = np.indices((330, 330)).reshape(2, -1)[:, :rows]
    z = (20 * np.sin(x / 40) * np.cos(y / 50) + 30).astype(int)  # a surface
    cells = np.column_stack([np.zeros(rows, int), x, y, z]).astype(np.int32)
    features = np.ones((rows, channels), np.float32)
    block = PTv3Block(channels, 8, 1024)
    block.eval()
    voxels = vx.Voxels.from_coords(cells, features, capacity=rows)
    voxels = vx.plan(lambda v: block(v)[0], voxels)
    graph, state = nnx.split(block)

    def loss(state, features, voxels):
        out, _ = nnx.merge(graph, state)(vx.Voxels(voxels.geometry, features))
        return jnp.sum(out.features**2)

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), allow_int=True))
    used = step.lower(state, voxels.features, voxels).compile().memory_analysis()
    total = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
    assert total < 1.5 * 2**30


def test_planned_voxels_give_the_same():
    voxels = make_voxels(ROWS, 3, capacity=192)
    model = tiny()
    model.eval()
    planned = vx.plan(model, voxels)
    out = run(model, planned)
    want = np.asarray(run(model, voxels).features)
    np.testing.assert_allclose(out.features, want, atol=1e-5 * np.abs(want).max())
    assert planned.geometry.attached.levels[-1].capacity < 192


def test_the_encoder_alone_ends_at_the_coarsest_level():
    voxels = make_voxels(ROWS, 9, capacity=192)
    model = PTv3Encoder(size="tiny", patch_size=16)
    model.eval()
    out = run(model, voxels)
    assert out.stride == (16, 16, 16)
    assert out.num_channels == 256


def test_half_precision_and_rotary_positions():
    voxels = make_voxels(ROWS, 3, capacity=192)
    wide = {"encoder_channels": (12, 12), "decoder_channels": (12,), "position": "rotary"}
    model = tiny(dtype=jnp.bfloat16, **wide)
    model.eval()
    out = run(model, voxels)
    assert out.features.dtype == jnp.bfloat16
    exact = tiny(**wide)
    exact.eval()
    want = run(exact, voxels).valid_features()
    assert np.abs(np.float32(out.valid_features()) - want).max() < 0.1 * np.abs(want).max()


def test_names_of_the_published_checkpoints():
    model = tiny(
        position="relative",
        encoder_depths=(1, 1, 2),
        encoder_channels=(8, 12, 12),
        encoder_num_heads=(2, 2, 2),
        strides=(2, 2),
        decoder_depths=(3, 1),
        decoder_channels=(8, 8),
        decoder_num_heads=(2, 2),
        remat=True,
    )
    assert [len(stage.blocks) for stage in model.up] == [3, 1]
    shapes = {name: value.shape for name, value in weights_of(model, "pointcept").items()}
    reach = model.down[0].blocks[0].block.attn.relative.reach
    expected = {
        "backbone.embedding.stem.conv.weight": (8, 5, 5, 5, 3),
        "backbone.embedding.stem.norm.running_var": (8,),
        "backbone.enc.enc2.down.proj.weight": (12, 12),
        "backbone.enc.enc2.down.norm.0.bias": (12,),
        "backbone.enc.enc2.block1.cpe.0.weight": (12, 3, 3, 3, 12),
        "backbone.enc.enc2.block1.cpe.1.bias": (12,),
        "backbone.enc.enc2.block1.cpe.2.weight": (12,),
        "backbone.enc.enc0.block0.norm2.0.weight": (8,),
        "backbone.enc.enc0.block0.attn.rpe.rpe_table": (3 * (2 * reach + 1), 2),
        "backbone.enc.enc0.block0.attn.qkv.weight": (24, 8),
        "backbone.enc.enc0.block0.mlp.0.fc1.weight": (32, 8),
        "backbone.dec.dec1.block2.mlp.0.fc2.bias": (8,),
        "backbone.dec.dec0.up.proj.0.weight": (8, 8),
        "backbone.dec.dec1.up.proj_skip.1.running_mean": (8,),
        "seg_head.weight": (5, 8),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert len(shapes) == len(weights_of(model, "torch-pointcloud"))


def test_an_encoder_takes_files_with_a_mask_token(tmp_path):
    """Sonata's have one, which only its training uses."""
    pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    sizes = {name: TINY[name] for name in TINY if name.startswith(("encoder", "strides"))}
    arrays = weights_of(PTv3Encoder(3, "tiny", **sizes))
    arrays["embedding.mask_token"] = np.zeros((1, 8), np.float32)
    path = write_checkpoint(tmp_path / "sonata.safetensors", arrays)
    model = vx.models.load(PTv3Encoder(3, "tiny", rngs=nnx.Rngs(1), **sizes), path)
    for name, value in weights_of(model).items():
        np.testing.assert_array_equal(value, arrays[name])
    write_checkpoint(path, {**arrays, "embedding.other": np.zeros((1, 8), np.float32)})
    with pytest.raises(vx.InputError, match=r"1 unexpected: 'embedding.other'"):
        vx.models.load(model, path)


def test_the_network_by_name():
    model = vx.models.create("ptv3-base", in_channels=3, num_classes=5, **TINY)
    assert isinstance(model, PTv3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strides": (2, 2)}, r"strides=\(2, 2\) has 2 entries: expected 1"),
        ({"decoder_channels": ()}, r"decoder_channels=\(\) has 0 entries: expected 1"),
        ({"encoder_num_heads": (2, 5)}, "num_heads=5 must divide channels=12"),
        ({"position": "learned"}, "unknown position 'learned'; known: none, relative, rotary"),
        ({"stem": "mlp"}, "unknown stem"),
        ({"norm": "group"}, "unknown norm"),
        ({"patch_size": 0}, "SerializedAttention of patch_size=0: give an integer of at least 1"),
        ({"position": "rotary"}, "a head of 4 channels cannot be turned along 3 axes"),
        ({"orders": ("foo",)}, "unknown order 'foo'; known: z, "),
        ({"algorithm": "flash"}, "unknown algorithm 'flash'; known: tiles, "),
        ({"fill": "zero"}, "unknown fill 'zero'; known: "),
        ({"strides": (0,)}, r"strides=\(0, 0, 0\) must be at least 1"),
        ({"mlp_ratio": 0}, "mlp_ratio=0 leaves 0 of 8 channels"),
        ({"mlp_ratio": -1.0}, "mlp_ratio=-1.0 leaves -8 of 8 channels"),
        ({"encoder_depths": (1, -2)}, r"encoder_depths=\(1, -2\) must be integers of at least 0"),
        ({"encoder_channels": (8, 0)}, r"encoder_channels=\(8, 0\) must be integers of at least 1"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(vx.InputError, match=message):
        tiny(**options)


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
