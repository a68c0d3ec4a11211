"""Checkpoints of published networks: both kinds of files, names of each codebase, bad ones."""

import builtins
import importlib
import os
import sys

import numpy as np
import pytest

import voxax as vx
from voxax.interop.checkpoint_file import read_checkpoint, write_checkpoint
from voxax.interop.peer import find_layers
from voxax.interop.sources import weights_of
from voxax.nn.modules import SubMConv3d

SMALL = {"channels": (4,) * 8, "stem": 4, "stem_kernel_size": 3, "blocks": (1,) * 8}
SIZES = {"in_channels": 3, "num_classes": 5, **SMALL}


def network(seed=0, **options):
    """A small SpUNet."""
    return drawn(vx.models.create("spunet-34c", **{**SIZES, **options}), seed)


def drawn(model, seed):
    """Make all arrays distinct, statistics too."""
    rng = np.random.default_rng(seed)
    for layer in find_layers(model):
        for variable in layer.arrays.values():
            shape = variable[...].shape
            variable.set_value(rng.uniform(0.5, 2, shape).astype(np.float32))
    return model


def saved(model, path, source):
    """Write a model that has the settings of a source."""
    model.sources()[source].set_up(model)
    return vx.models.save(model, path, source=source)


@pytest.fixture
def safetensors():
    return pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def same(a, b):
    assert set(a) == set(b)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name])


@pytest.mark.parametrize("source", ["pointcept", "torch-pointcloud"])
def test_safetensors_by_name(safetensors, tmp_path, source):
    first = network()
    path = saved(first, tmp_path / "w.safetensors", source)
    with pytest.warns(UserWarning, match=rf"taken for '{source}'.*Pass source="):
        second = vx.models.load("spunet-34c", path, **SIZES)
    same(weights_of(first), weights_of(second))
    vx.models.save(second, tmp_path / "again.safetensors", source=source)
    same(read_checkpoint(path), read_checkpoint(tmp_path / "again.safetensors"))


def test_layouts_are_the_codebase_s(safetensors, tmp_path):
    vx.models.save(network(), tmp_path / "w.safetensors")
    shapes = {k: v.shape for k, v in read_checkpoint(tmp_path / "w.safetensors").items()}
    assert shapes["conv_input.0.weight"] == (4, 3, 3, 3, 3)
    assert shapes["dec.0.block0.proj.0.weight"] == (4, 1, 1, 1, 8)
    assert shapes["final.weight"] == (5, 1, 1, 1, 4)
    assert shapes["enc.3.block0.bn2.running_var"] == (4,)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("minkunet-18", {"stem.0.kernel": (27, 3, 4), "stem.4.weight": (4,),
                         "stage2.0.net.0.kernel": (8, 4, 4), "stage2.2.net.4.running_mean": (4,),
                         "up4.1.0.downsample.0.kernel": (8, 4), "up4.0.net.1.bias": (4,),
                         "classifier.0.weight": (5, 4)}),
        ("minkunet-34c", {"conv0p1s1.kernel": (125, 3, 4), "bn0.bn.weight": (4,),
                          "conv4p8s2.kernel": (8, 4, 4), "convtr7p2s2.kernel": (8, 4, 4),
                          "bntr7.bn.bias": (4,), "block3.3.norm2.bn.running_var": (4,),
                          "block8.0.downsample.0.kernel": (8, 4), "final.kernel": (4, 5),
                          "final.bias": (1, 5)}),
    ],
)  # fmt: skip
def test_names_and_layouts_of_minkunets(safetensors, tmp_path, name, known):
    sizes = {"in_channels": 3, "num_classes": 5, "planes": (4,) * 8, "stem": 4}
    first = drawn(vx.models.create(name, **sizes), 0)
    path = vx.models.save(first, tmp_path / "w.safetensors")
    shapes = {k: v.shape for k, v in read_checkpoint(path).items()}
    assert shapes | known == shapes
    second = vx.models.load(name, path, **sizes)
    same(weights_of(first), weights_of(second))
    lost = next(iter(known))
    del shapes[lost]
    write_checkpoint(path, {k: np.zeros(v, np.float32) for k, v in shapes.items()})
    with pytest.raises(vx.InputError, match=f"1 missing: '{lost}'"):
        vx.models.load(second, path)


DETECTORS = {
    "second": {
        "backbone_3d.conv2.0.0.weight": (32, 3, 3, 3, 16),
        "backbone_3d.conv_out.0.weight": (128, 3, 1, 1, 64),
        "backbone_2d.blocks.0.1.weight": (4, 256, 3, 3),
        "backbone_2d.blocks.1.5.running_var": (6,),
        "backbone_2d.deblocks.1.0.weight": (6, 8, 2, 2),
        "dense_head.conv_dir_cls.bias": (12,),
    },
    "centerpoint": {
        "backbone_3d.conv1.0.conv1.bias": (16,),
        "backbone_3d.conv4.2.bn2.weight": (128,),
        "dense_head.shared_conv.0.weight": (64, 16, 3, 3),
        "dense_head.heads_list.0.hm.1.weight": (3, 64, 3, 3),
        "dense_head.heads_list.0.center_z.0.1.running_mean": (64,),
    },
    "voxelnext": {
        "backbone_3d.conv6.2.conv2.weight": (128, 3, 3, 3, 128),
        "backbone_3d.conv_out.0.weight": (128, 3, 3, 128),
        "backbone_3d.shared_conv.0.bias": (128,),
        "dense_head.heads_list.0.vel.0.0.weight": (128, 1, 1, 128),
        "dense_head.heads_list.0.hm.1.bias": (3,),
    },
}
BEV = {"layers": (1, 1), "channels": (4, 6), "up_channels": (8, 8)}


@pytest.mark.parametrize("name", DETECTORS)
def test_names_and_layouts_of_detectors(safetensors, tmp_path, name):
    sizes = {"in_channels": 4, "num_classes": 3, "grid": (32, 16, 40)}
    sizes |= {} if name == "voxelnext" else {"bev": BEV}
    first = drawn(vx.models.create(name, **sizes), 0)
    path = vx.models.save(first, tmp_path / "w.safetensors")
    shapes = {k: v.shape for k, v in read_checkpoint(path).items()}
    assert shapes | DETECTORS[name] == shapes
    second = vx.models.load(name, path, **sizes)
    same(weights_of(first), weights_of(second))
    for source in second.sources():
        path = saved(first, tmp_path / f"{source}.safetensors", source)
        third = vx.models.load(drawn(second, 1), path, source=source)
        same(weights_of(first), weights_of(third))


@pytest.mark.parametrize("source", ["pointcept", "torch-pointcloud"])
def test_pytorch_files_with_wrappers(torch, tmp_path, source):
    """As training programs leave them: nested, prefixed, with counters and NumPy numbers."""
    first = network()
    state = {
        f"module.backbone.{name}": torch.from_numpy(value)
        for name, value in weights_of(first, source).items()
    }
    counters = {
        name.replace("running_mean", "num_batches_tracked"): torch.tensor(7)
        for name in state
        if name.endswith("running_mean")
    }
    whole = {"epoch": 3, "state_dict": state | counters, "best": np.float64(0.5)}
    torch.save(whole, tmp_path / "model.pth")
    with pytest.warns(UserWarning, match=rf"taken for '{source}'"):
        second = vx.models.load(network(1), tmp_path / "model.pth")
    same(weights_of(first), weights_of(second))
    assert vx.models.load(second, tmp_path / "model.pth", source=source) is second
    other = {"pointcept": "torch-pointcloud", "torch-pointcloud": "pointcept"}[source]
    with pytest.raises(vx.InputError, match=r"has no name of a SpUNet of|\d+ missing: '"):
        vx.models.load(second, tmp_path / "model.pth", source=other)
    vx.models.save(second, tmp_path / "back.pth", source=source)
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert {f"module.backbone.{name}" for name in back} == set(state)
    assert all(torch.equal(value, state[f"module.backbone.{name}"]) for name, value in back.items())


def test_what_training_counts_is_left_out(torch, tmp_path):
    """A detector as OpenPCDet saves it, and the average of PyTorch's ``AveragedModel``."""
    sizes = {"in_channels": 4, "num_classes": 3, "grid": (16, 16, 40), "residual": False}
    sizes |= {"channels": (4,) * 4, "shared": 4, "bev": BEV}
    first = drawn(vx.models.create("centerpoint", **sizes), 0)
    state = {name: torch.from_numpy(value) for name, value in weights_of(first).items()}
    step = {"global_step": torch.zeros(1, dtype=torch.long)}
    files = {
        "openpcdet.pth": {"epoch": 80, "it": 9, "model_state": state | step, "version": "0.6"},
        "averaged.pth": {f"module.{k}": v for k, v in (state | step).items()}
        | {"n_averaged": torch.tensor(3)},
    }
    for name, content in files.items():
        torch.save(content, tmp_path / name)
        second = vx.models.load(drawn(vx.models.create("centerpoint", **sizes), 1), tmp_path / name)
        same(weights_of(first), weights_of(second))


def test_a_prefix_is_that_of_all_names(safetensors, tmp_path):
    arrays = weights_of(network())
    name = "conv_input.0.weight"
    wrapped = {f"module.{k}": v for k, v in arrays.items()}
    path = write_checkpoint(tmp_path / "w.safetensors", {**wrapped, name: arrays[name] + 1})
    with pytest.raises(vx.InputError, match=rf"dict is not .*\. 1 unexpected: '{name}'"):
        vx.models.load(network(), path)
    write_checkpoint(path, {**wrapped, **{f"ema.{k}": v for k, v in arrays.items()}})
    with pytest.raises(vx.InputError, match=rf"{len(arrays)} unexpected: '(ema|module)\.conv_"):
        vx.models.load(network(), path)


def test_bfloat16(safetensors, torch, tmp_path):
    arrays = {"a": np.ones((2, 3)).astype("bfloat16"), "b": np.float16([1, 2]), "c": np.int64(3)}
    for name in ("w.safetensors", "w.pth"):
        write_checkpoint(tmp_path / name, arrays)
        read = read_checkpoint(tmp_path / name)
        assert {k: v.dtype for k, v in read.items()} == {k: v.dtype for k, v in arrays.items()}
        same(arrays, read)


def test_another_class_count_and_other_sizes(safetensors, tmp_path):
    path = vx.models.save(network(), tmp_path / "w.safetensors")
    model = network(1, num_classes=7)
    before = weights_of(model)
    match = (
        r"w\.safetensors: the spconv state dict is not that of this SpUNet\. 2 of another shape: "
        r"'final\.weight is \[5, 1, 1, 1, 4\] and not \[7, 1, 1, 1, 4\].*', 'final\.bias is \[5\].*"
        r"num_classes="
    )
    with pytest.raises(vx.InputError, match=match):
        vx.models.load(model, path)
    same(before, weights_of(model))  # nothing was changed
    with pytest.raises(vx.InputError, match=r"1 of another shape: 'conv_input\.0\.weight is"):
        vx.models.load(network(in_channels=4), path)


def test_missing_and_unexpected_names_are_listed(safetensors, tmp_path):
    arrays = weights_of(network())
    del arrays["enc.1.block0.bn1.weight"]
    arrays["seg_head.weight"] = np.zeros((3, 4), np.float32)
    write_checkpoint(tmp_path / "w.safetensors", arrays)
    match = r"1 missing: 'enc\.1\.block0\.bn1\.weight'\. 1 unexpected: 'seg_head\.weight'"
    with pytest.raises(vx.InputError, match=match):
        vx.models.load(network(), tmp_path / "w.safetensors")


def test_another_network(safetensors, tmp_path):
    write_checkpoint(tmp_path / "w.safetensors", {"blocks.0.attn.qkv.weight": np.zeros((3, 3))})
    match = r"no name of a SpUNet of pointcept or torch-pointcloud, but 1 others: 'blocks\.0\.attn"
    with pytest.raises(vx.InputError, match=match):
        vx.models.load(network(), tmp_path / "w.safetensors")


def test_truncated_files(safetensors, torch, tmp_path):
    for name in ("w.safetensors", "w.pth"):
        path = vx.models.save(network(), tmp_path / name)
        data = path.read_bytes()
        for size in (0, 7, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:size])
            with pytest.raises(vx.FileFormatError, match=name):
                vx.models.load(network(), path)


class Runs:
    """Execute code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("made-by-the-file",)


def test_a_pickle_that_would_run_code(torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"conv_input.0.weight": Runs()}}, tmp_path / "w.pth")
    with pytest.raises(vx.FileFormatError, match="no PyTorch file of tensors alone"):
        vx.models.load(network(), tmp_path / "w.pth")
    assert not (tmp_path / "made-by-the-file").exists()


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(
        vx.InputError, match=r"load\('spunet-34c', \.\.\.\).*in_channels and num_cl"
    ):
        vx.models.load("spunet-34c", tmp_path / "w.pth")
    with pytest.raises(vx.InputError, match="stem make a network: give its name"):
        vx.models.load(network(), tmp_path / "w.pth", stem=4)
    with pytest.raises(vx.InputError, match="unknown source 'mmdet3d'; known: pointcept"):
        vx.models.save(network(), tmp_path / "w.pth", source="mmdet3d")
    with pytest.raises(vx.InputError, match="SubMConv3d has no released weights"):
        vx.models.save(SubMConv3d(1, 1), tmp_path / "w.pth")
    with pytest.raises(vx.InputError, match="must be hf://owner/name/file"):
        read_checkpoint("hf://owner")


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_no_such_file(name, tmp_path):
    pytest.importorskip("safetensors" if "safe" in name else "torch")
    with pytest.raises(builtins.FileNotFoundError, match=name):
        vx.models.load(network(), tmp_path / name)


def test_absent_packages(tmp_path, monkeypatch):
    for module in ("safetensors", "safetensors.numpy", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(vx.MissingExtraError, match=r'pip install "voxax\[weights\]"'):
        read_checkpoint(tmp_path / "w.safetensors")
    with pytest.raises(vx.MissingExtraError, match=r'pip install "voxax\[hub\]"'):
        read_checkpoint("hf://owner/name/w.safetensors")


def test_a_hub_repository_from_its_cache(safetensors, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    constants = importlib.import_module("huggingface_hub.constants")
    first, revision = network(), "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--owner--name"
    (folder / "snapshots" / revision / "sub").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    vx.models.save(first, folder / "snapshots" / revision / "sub" / "w.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for middle in ("", "resolve/main/", f"resolve/{revision}/"):
        path = f"hf://owner/name/{middle}sub/w.safetensors"
        second = vx.models.load(network(1), path, source="pointcept")
        same(weights_of(first), weights_of(second))
    with pytest.raises(vx.FileFormatError, match=r"cannot get hf://owner/name/other\.pth: .*"):
        read_checkpoint("hf://owner/name/other.pth")
