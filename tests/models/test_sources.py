"""What files of weights do not hold, layouts of earlier versions, and names of mmdetection3d."""

import numpy as np
import pytest
from flax import nnx

import voxax as vx
from models.test_weights import BEV, SIZES, drawn, network, same, saved
from voxax.interop.checkpoint_file import read_checkpoint, write_checkpoint
from voxax.interop.sources import weights_of

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

PTV3 = {"encoder_depths": (1, 2), "encoder_channels": (8, 8), "encoder_num_heads": (1, 1)}
PTV3 |= {"decoder_depths": (1,), "decoder_channels": (8,), "decoder_num_heads": (1,)}
PTV3 |= {"strides": (2,), "in_channels": 3, "num_classes": 2}


@pytest.mark.parametrize(
    ("source", "epsilon", "momentum"),
    [
        ("pointcept", 1e-3, 0.99),
        ("torch-pointcloud", 1e-5, 0.9),
        ("torch-pointcloud-released", 1e-3, 0.99),
    ],
)
def test_batch_norms_are_those_of_the_source(source, epsilon, momentum, tmp_path):
    path = saved(network(), tmp_path / "w.safetensors", source)
    own = network(norm={"epsilon": 0.25, "momentum": 0.5})
    kept = vx.models.load(own, path, source=source, settings="model")
    assert (kept.stem.norm.epsilon, kept.stem.norm.momentum) == (0.25, 0.5)
    model = vx.models.load(own, path, source=source)
    for norm in (model.stem.norm, model.up[3].norm, model.down_blocks[0][0].norm):
        assert (norm.epsilon, norm.momentum) == (epsilon, momentum)


def test_a_file_that_may_be_of_two_sources(tmp_path):
    path = saved(network(), tmp_path / "w.safetensors", "torch-pointcloud")
    with pytest.warns(
        UserWarning,
        match=r"w\.safetensors is taken for 'torch-pointcloud'\. Another codebase or version has "
        r"the same names: epsilon is 1e-05, and 0\.001 in 'torch-pointcloud-released'\. Pass so",
    ):
        model = vx.models.load("spunet-34c", path, **SIZES)
    assert model.stem.norm.epsilon == 1e-5
    assert not model.drops_last_plane
    path = saved(model, tmp_path / "p.safetensors", "pointcept-v1m2")
    with pytest.warns(UserWarning, match="drops_last_plane is False, and True in 'pointcept-v1m2'"):
        assert not vx.models.load(model, path).drops_last_plane
    assert vx.models.load(model, path, source="pointcept-v1m2").drops_last_plane
    with pytest.warns(UserWarning, match="is 1e-05 in this SpUNet, and 0.001 in 'pointcept'"):
        vx.models.save(model, tmp_path / "again.safetensors")
    model = vx.models.load(model, tmp_path / "w.safetensors", source="torch-pointcloud")
    match = r"norm\.epsilon is 1e-05 in this SpUNet, and 0\.001 in 'pointcept', as are \d+ other"
    with pytest.warns(UserWarning, match=match):
        vx.models.save(model, tmp_path / "again.safetensors")


def test_the_first_version_of_ptv3(tmp_path, rng):
    """Its weights fit the second version by name and shape, which computes other numbers."""
    first = vx.models.create("ptv3-base-v1", rngs=nnx.Rngs(0), **PTV3)
    path = vx.models.save(first, tmp_path / "w.safetensors")
    assert vx.models.load("ptv3-base-v1", path, **PTV3).legacy
    with pytest.warns(UserWarning, match=r"taken for 'pointcept'.*'pointcept-v1\.5\.1' has the po"):
        second = vx.models.load("ptv3-base", path, **PTV3)
    same(weights_of(first), weights_of(second))
    rows = np.pad(np.indices((4, 4, 2)).reshape(3, -1).T, ((0, 0), (1, 0))).astype(np.int32)
    features = rng.normal(size=(32, 3)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, batch_size=1)
    numbers = []
    for model in (first, second):
        model.eval()
        numbers.append(np.asarray(model(voxels).features))
    assert np.abs(numbers[0] - numbers[1]).max() > 1e-3 * np.abs(numbers[0]).max()
    for source in ("pointcept-v1.5.1", "torch-pointcloud-released"):
        with pytest.raises(vx.InputError, match=rf"'{source}' has the position.*ptv3-base-v1"):
            vx.models.load(second, path, source=source)


def test_attention_fills_its_last_patch_as_the_source_does(tmp_path):
    model = drawn(vx.models.create("ptv3-base", **PTV3), 0)
    for source, fill, epsilon in (
        ("pointcept", "overlap", 1e-3),
        ("torch-pointcloud", "cycle", 1e-5),
    ):
        path = saved(model, tmp_path / f"{source}.safetensors", source)
        found = vx.models.load("ptv3-base", path, source=source, **PTV3)
        assert found.down[0].blocks[0].attn.fill == fill
        assert found.down[1].enter.after.layers[0].epsilon == epsilon
        assert found.down[0].blocks[0].norm1.epsilon == 1e-5


def test_a_part_of_a_file(tmp_path):
    path = saved(network(), tmp_path / "w.safetensors", "pointcept")
    other = network(1, num_classes=7, in_channels=4)
    before = weights_of(other)
    report = vx.models.load_part(other, path, source="pointcept")
    new = {"conv_input.0.weight", "final.weight", "final.bias"}
    theirs, ours = read_checkpoint(path), weights_of(other)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, (before if name in new else theirs)[name])
    assert set(report.left) == new
    assert [line.split("'")[1] for line in report.kept] == ["stem.conv", "head"]
    assert "final has bias [5], weight [5, 1, 1, 1, 4]" in report.kept[1]
    write_checkpoint(path, {"final.weight": np.zeros((9, 1, 1, 1, 9), np.float32)})
    with pytest.raises(vx.InputError, match="no layer fits"):
        vx.models.load_part(other, path, source="pointcept")


@pytest.mark.parametrize("layout", ["1.x", "2.0"])
def test_layouts_of_earlier_versions_of_spconv(layout, tmp_path):
    """As OpenPCDet converts them: ``[k, k, k, in, out]`` of 1.x, ``[k, k, k, out, in]`` of 2.0."""
    sizes = {"in_channels": 4, "num_classes": 3, "grid": (32, 16, 40), "bev": BEV}
    first = drawn(vx.models.create("second", **sizes), 0)
    state = weights_of(first)
    convs = {name for name, value in state.items() if value.ndim == 5}
    assert len(convs) == 12
    order = {"1.x": (1, 2, 3, 4, 0), "2.0": (1, 2, 3, 0, 4)}[layout]
    earlier = {n: v.transpose(order) if n in convs else v for n, v in state.items()}
    assert earlier["backbone_3d.conv_input.0.weight"].shape[:3] == (3, 3, 3)
    path = write_checkpoint(tmp_path / "w.safetensors", earlier)
    for name in convs:  # the rule of its Detector3DTemplate for weights of other shapes
        value = earlier[name]
        if layout == "1.x":
            np.testing.assert_array_equal(value.transpose(4, 0, 1, 2, 3), state[name])
    second = vx.models.load("second", path, source="openpcdet", **sizes)
    same(weights_of(first), weights_of(second))
    report = vx.models.load_part(drawn(second, 1), path, source="openpcdet")
    assert (report.kept, report.left) == ((), ())
    same(weights_of(first), weights_of(second))


def test_voxelnext_of_waymo():
    """Names and shapes of OpenPCDet's ``voxelnext_ioubranch_large.yaml``, from its files."""
    model = nnx.eval_shape(
        lambda: vx.models.create("voxelnext-waymo-large", in_channels=5, num_classes=3)
    )
    assert [round(len(s[0].conv.relation["kernel_shape"]) ** (1 / 3))
            for s in model.backbone_3d.stages[1:]] == [5, 5, 3, 3, 3]  # fmt: skip
    sizes = {"in_channels": 5, "num_classes": 3, "grid": (64, 64, 40)}
    sizes |= {"channels": (4, 4, 8, 8, 8), "out_channels": 8}
    made = vx.models.create("voxelnext-waymo-large", **sizes)
    shapes = {name: value.shape for name, value in weights_of(made).items()}
    known = {
        "backbone_3d.conv2.0.0.weight": (4, 5, 5, 5, 4),
        "backbone_3d.conv3.0.0.weight": (8, 5, 5, 5, 4),
        "backbone_3d.conv4.0.0.weight": (8, 3, 3, 3, 8),
        "backbone_3d.conv6.0.0.weight": (8, 3, 3, 3, 8),
        "dense_head.heads_list.0.iou.0.0.weight": (8, 3, 3, 8),
        "dense_head.heads_list.0.iou.1.weight": (1, 1, 1, 8),
        "dense_head.heads_list.0.hm.1.bias": (3,),
    }
    assert shapes | known == shapes
    assert not any(".vel." in name for name in shapes)
    with pytest.raises(vx.InputError, match=r"kernel_sizes=\(4, 3, 3, 3\) must be four odd sizes"):
        vx.models.create("voxelnext", **sizes, kernel_sizes=(4, 3, 3, 3))


MMDETECTION3D = {
    "second": {
        "middle_encoder.conv_input.0.weight": (16, 3, 3, 3, 4),
        "middle_encoder.encoder_layers.encoder_layer1.0.0.weight": (16, 3, 3, 3, 16),
        "middle_encoder.encoder_layers.encoder_layer4.0.0.weight": (64, 3, 3, 3, 64),
        "middle_encoder.encoder_layers.encoder_layer4.2.1.running_mean": (64,),
        "middle_encoder.conv_out.0.weight": (128, 3, 1, 1, 64),
        "backbone.blocks.0.0.weight": (4, 256, 3, 3),
        "backbone.blocks.1.4.running_var": (6,),
        "neck.deblocks.1.0.weight": (6, 8, 2, 2),
        "neck.deblocks.0.1.bias": (8,),
        "bbox_head.conv_cls.weight": (18, 16, 1, 1),
        "bbox_head.conv_reg.bias": (42,),
        "bbox_head.conv_dir_cls.bias": (12,),
    },
    "minkunet-34": {
        "backbone.conv_input.0.net.0.kernel": (27, 4, 4),
        "backbone.conv_input.1.net.1.weight": (4,),
        "backbone.encoder.1.0.net.0.kernel": (8, 4, 4),
        "backbone.encoder.3.6.net.4.running_var": (4,),
        "backbone.decoder.0.0.net.0.kernel": (8, 4, 4),
        "backbone.decoder.3.1.0.downsample.0.kernel": (8, 4),
        "backbone.decoder.3.1.1.net.3.kernel": (27, 4, 4),
        "decode_head.conv_seg.weight": (3, 4),
    },
}


SPCONV = {
    "backbone.conv_input.1.0.weight": (4, 3, 3, 3, 4),
    "backbone.encoder.1.0.0.weight": (4, 2, 2, 2, 4),
    "backbone.encoder.3.6.bn2.running_var": (4,),
    "backbone.decoder.3.1.0.downsample.0.weight": (4, 1, 1, 1, 8),
    "backbone.decoder.3.1.1.conv2.weight": (4, 3, 3, 3, 4),
    "decode_head.conv_seg.weight": (3, 4),
}
CENTERPOINTS = {
    "mmdetection3d": {
        "pts_middle_encoder.encoder_layers.encoder_layer1.2.0.weight": (32, 3, 3, 3, 16),
        "pts_middle_encoder.encoder_layers.encoder_layer4.1.bn2.bias": (128,),
        "pts_backbone.blocks.1.3.weight": (6, 6, 3, 3),
        "pts_neck.deblocks.0.0.weight": (8, 4, 1, 1),
        "pts_bbox_head.shared_conv.conv.weight": (64, 16, 3, 3),
        "pts_bbox_head.task_heads.1.heatmap.1.bias": (2,),
        "pts_bbox_head.task_heads.5.reg.0.bn.weight": (64,),
    },
    "centerpoint": {
        "backbone.conv1.1.conv2.bias": (16,),
        "backbone.conv4.4.bn2.weight": (128,),
        "backbone.extra_conv.0.weight": (128, 3, 1, 1, 128),
        "neck.blocks.0.1.weight": (4, 256, 3, 3),
        "neck.deblocks.0.0.weight": (8, 4, 1, 1),
        "bbox_head.tasks.1.hm.3.bias": (2,),
        "bbox_head.tasks.5.rot.0.weight": (64, 64, 3, 3),
    },
}


@pytest.mark.parametrize("source", CENTERPOINTS)
def test_centerpoints_of_other_codebases(source, tmp_path):
    """Names and shapes; the heads' channels in their order and sign come back as they were."""
    name = (
        "centerpoint-mmdetection3d-nuscenes" if source != "centerpoint" else "centerpoint-nuscenes"
    )
    sizes = {"in_channels": 5, "num_classes": 10, "grid": (32, 16, 40), "bev": BEV}
    first = drawn(vx.models.create(name, **sizes), 0)
    path = saved(first, tmp_path / "w.safetensors", source)
    state = read_checkpoint(path)
    assert {k: v.shape for k, v in state.items()} | CENTERPOINTS[source] == {
        k: v.shape for k, v in state.items()
    }
    second = vx.models.load(name, path, **sizes)  # found by its names
    rot = [np.asarray(second.head.branches.groups[0]["rot"][1].bias[...])]
    rot.append(np.asarray(first.head.branches.groups[0]["rot"][1].bias[...]))
    np.testing.assert_array_equal(*rot)
    last = {"centerpoint": "bbox_head.tasks.0.rot.3.bias"}.get(
        source, "pts_bbox_head.task_heads.0.rot.1.bias"
    )
    theirs = state[last]
    np.testing.assert_array_equal(theirs, -rot[0] if source == "centerpoint" else rot[0][::-1])
    same(weights_of(first, source), weights_of(second, source))


def test_minkunet_of_mmdetection3d_on_spconv(tmp_path):
    sizes = {"in_channels": 4, "num_classes": 3, "planes": (4,) * 8, "stem": 4}
    first = drawn(vx.models.create("minkunet-34", **sizes), 0)
    path = saved(first, tmp_path / "w.safetensors", "mmdetection3d-spconv")
    shapes = {k: v.shape for k, v in read_checkpoint(path).items()}
    assert shapes | SPCONV == shapes
    second = vx.models.load("minkunet-34", path, **sizes)
    assert second.drops_last_plane
    same(weights_of(first), weights_of(second))


@pytest.mark.parametrize("name", MMDETECTION3D)
def test_names_of_mmdetection3d(name, tmp_path):
    """Written from the constructors of its classes; see below for the classes themselves."""
    sizes = {"in_channels": 4, "num_classes": 3}
    small = {"planes": (4,) * 8, "stem": 4} if name != "second" else {}
    sizes |= small or {"grid": (32, 16, 40), "bev": BEV}
    first = drawn(vx.models.create(name, **sizes), 0)
    path = saved(first, tmp_path / "w.safetensors", "mmdetection3d")
    shapes = {k: v.shape for k, v in read_checkpoint(path).items()}
    assert shapes | MMDETECTION3D[name] == shapes
    second = vx.models.load(name, path, **sizes)  # found by its names
    same(weights_of(first), weights_of(second))
