"""Random scenes around SECOND's anchors, and OpenPCDet's head on them where a clone is there."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from voxax import detection as vd

NAMES = ("Car", "Pedestrian", "Cyclist")
REGION = (0.0, -8.0, -3.0, 17.6, 8.0, 1.0)
SHAPE = 44, 40  # cells of the map, along x and y
BINS = 2


def scene(seed, most=12):
    """``(boxes [M, 7], classes [M])``, rows without a box last; objects of sizes around KITTI's.

    Every fifth scene is empty or has boxes of one class; some boxes are longer than the anchors,
    so that several anchors overlap them equally, and some overlap each other.
    """
    rng = np.random.default_rng(seed)
    number = 0 if seed % 10 == 3 else int(rng.integers(1, most))
    classes = rng.integers(0, 1 if seed % 5 == 4 else 3, number)
    sizes = np.array([anchor.size for anchor in vd.KITTI_ANCHORS])[classes]
    sizes = sizes * rng.uniform(0.7, 1.6, (number, 3))
    low, high = np.array(REGION[:2]), np.array(REGION[3:5])
    centers = rng.uniform(low, high, (number, 2))
    if number > 4:
        centers[1] = centers[0] + rng.normal(0, 0.5, 2)
    heights = rng.uniform(-1.5, 0, (number, 1))
    yaws = rng.uniform(-np.pi, np.pi, (number, 1))
    boxes = np.zeros((most, 7), np.float32)
    boxes[:number] = np.concatenate([centers, heights, sizes, yaws], axis=1)
    return boxes, np.concatenate([classes, np.full(most - number, -1)]).astype(np.int32)


def predictions(seed, anchors=6):
    """Logits, codes and directions of a scene, ``[X, Y, channels]``."""
    rng = np.random.default_rng([7, seed])
    widths = anchors * len(NAMES), anchors * 7, anchors * BINS
    logits, codes, directions = (
        rng.normal(0, 1, (*SHAPE, width)).astype(np.float32) for width in widths
    )
    return 2 * logits - 4, codes * 0.6, directions


class Settings(dict):
    """A dictionary whose entries are attributes too, as OpenPCDet's configurations are."""

    def __getattr__(self, name):
        return self[name]


def openpcdet_generators(names, anchors):
    """Our anchors of these classes, as OpenPCDet configures them."""
    return [
        Settings(
            class_name=name,
            anchor_sizes=[list(anchor.size)],
            anchor_rotations=list(anchor.yaws),
            anchor_bottom_heights=[anchor.bottom],
            align_center=False,
            feature_map_stride=8,
            matched_threshold=anchor.matched,
            unmatched_threshold=anchor.unmatched,
        )
        for name, anchor in zip(names, anchors, strict=True)
    ]


def openpcdet_assigner(**more):
    """Settings of its assignment of targets."""
    return Settings(
        NAME="AxisAlignedTargetAssigner",
        POS_FRACTION=-1.0,
        SAMPLE_SIZE=512,
        NORM_BY_NUM_EXAMPLES=False,
        MATCH_HEIGHT=False,
        BOX_CODER="ResidualCoder",
        **more,
    )


def openpcdet_config():
    """SECOND's head for KITTI, as OpenPCDet configures it, with our anchors."""
    weights = {"cls_weight": 1.0, "loc_weight": 2.0, "dir_weight": 0.2, "code_weights": [1.0] * 7}
    return Settings(
        USE_DIRECTION_CLASSIFIER=True,
        DIR_OFFSET=0.78539,
        DIR_LIMIT_OFFSET=0.0,
        NUM_DIR_BINS=BINS,
        ANCHOR_GENERATOR_CONFIG=openpcdet_generators(NAMES, vd.KITTI_ANCHORS),
        TARGET_ASSIGNER_CONFIG=openpcdet_assigner(),
        LOSS_CONFIG=Settings(LOSS_WEIGHTS=weights),
    )


@pytest.fixture(scope="session")
def openpcdet():
    """OpenPCDet's modules by name, from the clone that ``VOXAX_TEST_OPENPCDET`` names.

    What needs CUDA to be built or is used by none of them is a stub, and `.cuda()` does nothing.
    """
    root = os.environ.get("VOXAX_TEST_OPENPCDET")
    if not root:
        pytest.skip("set VOXAX_TEST_OPENPCDET to a clone of OpenPCDet")
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    before = dict(sys.modules)
    folders = ("pcdet", "pcdet.utils", "pcdet.models", "pcdet.models.dense_heads")
    evaluation = "pcdet.datasets.kitti.kitti_object_eval_python"
    stubs = {
        "SharedArray": {},
        "numba": {"jit": _unchanged},
        "pcdet.ops": {},
        "pcdet.ops.iou3d_nms": {"iou3d_nms_utils": SimpleNamespace()},
        "pcdet.ops.roiaware_pool3d": {"roiaware_pool3d_utils": SimpleNamespace()},
        f"{evaluation}.rotate_iou": {"rotate_iou_gpu_eval": None},
        "spconv": {},
        "spconv.pytorch": {},
    }
    for name in (*folders, "pcdet.datasets", "pcdet.datasets.kitti", evaluation):
        module = ModuleType(name)
        module.__path__ = [str(Path(root) / name.replace(".", "/"))]
        sys.modules[name] = module
    for name, contents in stubs.items():
        sys.modules[name] = module = ModuleType(name)
        vars(module).update(contents)
    cuda, torch.Tensor.cuda = torch.Tensor.cuda, lambda self, *_, **__: self
    try:
        yield SimpleNamespace(
            heads=importlib.import_module("pcdet.models.dense_heads.anchor_head_template"),
            evaluation=importlib.import_module(f"{evaluation}.eval"),
        )
    finally:
        torch.Tensor.cuda = cuda
        for name in set(sys.modules) - set(before):
            if name.startswith(("pcdet", "spconv", "SharedArray", "numba")):
                del sys.modules[name]
        sys.modules.update(before)


def _unchanged(*functions, **options):
    """In place of ``numba.jit``, with arguments or without."""
    return functions[0] if functions else lambda function: function
