"""Networks by name."""

import subprocess
import sys

import pytest

import voxax as vx
from voxax.interop.peer import find_layers


def test_every_variant_can_be_made():
    names = vx.models.list()
    assert names == sorted(names)
    assert {"minkunet-34", "spunet-34c"} <= set(names)
    for name in names:
        if name.startswith(("minkunet-14", "spunet-14")):
            model = vx.models.create(name, in_channels=3, num_classes=5)
            assert find_layers(model)


def test_options_go_to_the_class():
    model = vx.models.create("spunet-34c", in_channels=3, num_classes=5, channels=(4,) * 8, stem=4)
    shapes = {layer.path: layer.shape("weight") for layer in find_layers(model)}
    assert shapes["stem.conv"] == (125, 3, 4)
    assert shapes["head"] == (4, 5)


def test_bad_names_and_sizes():
    with pytest.raises(vx.InputError, match=r"unknown network 'spunet'; known: .*spunet-34c"):
        vx.models.create("spunet", in_channels=3, num_classes=5)
    with pytest.raises(vx.InputError, match="in_channels='3' must be an integer"):
        vx.models.create("spunet-34c", in_channels="3", num_classes=5)
    with pytest.raises(vx.InputError, match="in_channels=0 must be at least 1"):
        vx.models.create("spunet-34c", in_channels=0, num_classes=5)
    with pytest.raises(
        vx.InputError, match="num_classes 5000 must be at most 4,096, since a score"
    ):
        vx.models.create("spunet-34c", in_channels=3, num_classes=5000)
    with pytest.raises(vx.InputError, match="num_classes=-1 must be at least 1"):
        vx.models.create("spunet-34c", in_channels=1, num_classes=-1)
    with pytest.raises(vx.InputError, match=r"7 blocks and 8 channels: give both for each stage"):
        vx.models.create("spunet-34c", in_channels=1, num_classes=2, blocks=(1,) * 7)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("ptv3-base", {"patchsize": 5}, r"unknown option of ptv3-base 'patchsize'; known: .*orders"
         r".*Did you mean 'patch_size'\?"),
        ("spunet-14", {"width": 0.5}, r"unknown option of spunet-14 'width'; known: .*blocks, .*"
         "stem, .*dtype"),
        ("centerpoint", {"bev": {"layer_nums": (1, 1)}}, r"unknown option of BEVBackbone "
         r"'layer_nums'; known: .*layers, .*Did you mean 'layers'\?"),
        ("voxelnext-nuscenes", {"group": ()}, "Did you mean 'groups'"),
        ("centerpoint", {"grid": 64}, "centerpoint cannot be built with grid=64: "),
        ("second", {"norm": {"eps": 1e-3}}, "BatchNorm has no argument eps=0.001: give epsilon="),
    ],
)  # fmt: skip
def test_bad_options(name, options, match):
    sizes = {"in_channels": 4, "num_classes": 10}
    sizes |= {} if name in ("ptv3-base", "spunet-14") else {"grid": (16, 16, 40)}
    with pytest.raises(vx.InputError, match=match):
        vx.models.create(name, **sizes | options)


def test_the_networks_are_imported_when_they_are_asked_for():
    check = "import sys, voxax; assert 'voxax.models' not in sys.modules; voxax.models.list()"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)
