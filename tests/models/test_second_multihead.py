"""SECOND with a head of anchors for each group of classes, against OpenPCDet's own head."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from detection.anchor_scenes import (
    Settings,
    openpcdet,  # noqa: F401
    openpcdet_assigner,
    openpcdet_generators,
)
from models.test_weights import BEV, drawn, same
from voxax import detection as vd
from voxax.interop.sources import weights_of
from voxax.models import AnchorOutput, found_boxes
from voxax.models.anchor_training import AnchorTrainer
from voxax.models.registry import NUSCENES

REGION = vd.Region((-6.4, -3.2, -5.0), (6.4, 3.2, 3.0), (0.1, 0.1, 0.2))
CLASSES = ("car", "truck", "construction_vehicle", "bus", "trailer", "barrier", "motorcycle",
           "bicycle", "pedestrian", "traffic_cone")  # fmt: skip
SIZES = {"in_channels": 5, "num_classes": 10, "grid": REGION.grid, "bev": BEV, "shared": 8}
SIZES |= {"channels": (4, 4, 8, 8), "out_channels": 8}


def network(seed=0):
    return drawn(vx.models.create("second-nuscenes", **SIZES), seed)


def head_of_openpcdet(channels):
    """Its ``AnchorHeadMulti`` with the settings of ``cbgs_second_multihead.yaml``."""
    parts = ["reg:2", "height:1", "size:3", "angle:2", "velo:2"]
    config = Settings(
        CLASS_AGNOSTIC=False,
        DIR_OFFSET=0.78539,
        DIR_LIMIT_OFFSET=0.0,
        NUM_DIR_BINS=2,
        USE_MULTIHEAD=True,
        SEPARATE_MULTIHEAD=True,
        ANCHOR_GENERATOR_CONFIG=openpcdet_generators(CLASSES, vd.NUSCENES_ANCHORS),
        SHARED_CONV_NUM_FILTER=8,
        RPN_HEAD_CFGS=[Settings(HEAD_CLS_NAME=[CLASSES[c] for c in g]) for g in NUSCENES],
        SEPARATE_REG_CONFIG=Settings(NUM_MIDDLE_CONV=1, NUM_MIDDLE_FILTER=8, REG_LIST=parts),
        TARGET_ASSIGNER_CONFIG=openpcdet_assigner(
            BOX_CODER_CONFIG={"code_size": 9, "encode_angle_by_sincos": True}
        ),
        LOSS_CONFIG=Settings(
            REG_LOSS_TYPE="WeightedL1Loss", LOSS_WEIGHTS={"code_weights": [1.0] * 10}
        ),
    )
    file = importlib.import_module("pcdet.models.dense_heads.anchor_head_multi")
    return file.AnchorHeadMulti(
        config,
        *(channels, len(CLASSES), list(CLASSES)),
        grid_size=np.array(REGION.grid),
        point_cloud_range=np.array([*REGION.low, *REGION.high]),
    )


def test_names_and_numbers_of_openpcdet(openpcdet, tmp_path, rng):  # noqa: F811
    """Its head on random weights: each prediction, each box, and what its suppression leaves."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    ours = network()
    theirs = head_of_openpcdet(ours.backbone_2d.out_channels).eval()
    for name, value in theirs.state_dict().items():
        if value.is_floating_point():  # variances too
            value.uniform_(0.5, 1.5) if name.endswith("var") else value.normal_(0, 0.2)
    own = {f"dense_head.{name}": value for name, value in theirs.state_dict().items()}
    state = {name: torch.from_numpy(v) for name, v in weights_of(ours).items()}
    counters = ("num_batches_tracked", "head_label_indices")
    expected = {n: tuple(v.shape) for n, v in own.items() if not n.endswith(counters)}
    assert {n: tuple(v.shape) for n, v in state.items() if n.startswith("dense")} == expected
    torch.save({"model_state": state | own}, tmp_path / "w.pth")
    loaded = vx.models.load("second-nuscenes", tmp_path / "w.pth", source="openpcdet", **SIZES)
    loaded.eval()

    shape = [-(-n // 8) for n in REGION.grid[:2]]
    grid = rng.normal(size=(2, *shape, loaded.backbone_2d.out_channels)).astype(np.float32)
    with torch.no_grad():
        features = torch.from_numpy(grid.transpose(0, 3, 2, 1).copy())
        found = theirs({"spatial_features_2d": features, "batch_size": 2})
    output = loaded.head(grid)
    places = vd.anchor_boxes(vd.NUSCENES_ANCHORS, REGION.low[:2], REGION.high[:2], shape)
    places = places.astype(np.float32)
    start = 0
    for group, head, logits in zip(NUSCENES, output, found["batch_cls_preds"], strict=True):
        count = 2 * len(group)
        rows = [2 * c + turn for c in group for turn in (0, 1)]
        codes = np.asarray(head.boxes).reshape(2, *shape, count, 10)
        anchors = np.broadcast_to(places[None][:, :, :, rows], (*codes.shape[:4], 7))
        boxes = vd.decode_residuals(codes, anchors)
        # Theirs are by anchor, y and x.
        boxes = boxes.transpose(0, 3, 2, 1, 4).reshape(2, -1, 9)
        stop = start + boxes.shape[1]
        their_boxes = found["batch_box_preds"][:, start:stop].numpy()
        turned = np.abs(boxes - their_boxes)
        turned[..., 6] = np.abs(np.sin(turned[..., 6] / 2))
        assert turned.max() < 1e-4 * np.abs(their_boxes).max()
        scores = np.asarray(head.classes).reshape(2, *shape, count, len(group))
        scores = scores.transpose(0, 3, 2, 1, 4).reshape(2, -1, len(group))
        np.testing.assert_allclose(scores, logits.numpy(), atol=1e-4)
        start = stop

    config = Settings(NMS_TYPE="plain", NMS_THRESH=0.2, NMS_PRE_MAXSIZE=1000, NMS_POST_MAXSIZE=83)
    scenes = found_boxes(
        output,
        REGION,
        num_classes=10,
        batch_size=2,
        groups=NUSCENES,
        max_boxes=1000,
        max_selected=83,
    )
    for scene, ours_found in enumerate(scenes):
        kept = suppressed(torch, found, scene, config)
        classes, scores, boxes = (np.array(column) for column in zip(*kept, strict=True))
        rows = np.flatnonzero(ours_found.valid)
        assert len(rows) == len(kept) > 20
        # By class: scores of two classes may be one rounding apart.
        rows = rows[np.argsort(np.asarray(ours_found.classes)[rows], kind="stable")]
        order = np.argsort(classes, kind="stable")
        np.testing.assert_array_equal(np.asarray(ours_found.classes)[rows], classes[order])
        np.testing.assert_allclose(np.asarray(ours_found.scores)[rows], scores[order], atol=1e-5)
        apart = np.abs(np.asarray(ours_found.boxes)[rows] - boxes[order])
        apart[:, 6] = np.abs(np.sin(apart[:, 6] / 2))
        assert apart.max() < 1e-4 * np.abs(boxes).max()


def suppressed(torch, found, scene, config):
    """``(class, score, box)`` of a scene, as its ``post_processing`` calls its suppression.

    Its overlaps need CUDA: `bev_iou` of ours, which other tests compare.
    """

    def plain(boxes, scores, threshold, **_):
        rows = boxes.numpy()[:, :7]
        pairs = [np.broadcast_to(one, (len(rows), *rows.shape)) for one in (rows[:, None], rows)]
        overlaps = np.asarray(vd.bev_iou(*pairs))
        kept = []
        for row in range(len(boxes)):  # by falling score
            if not any(overlaps[row, other] > threshold for other in kept):
                kept.append(row)
        return torch.tensor(kept, dtype=torch.long), None

    file = importlib.import_module("pcdet.models.model_utils.model_nms_utils")
    file.iou3d_nms_utils.plain = plain
    start, rows = 0, []
    for group, logits in zip(NUSCENES, found["batch_cls_preds"], strict=True):
        logits = logits[scene]
        boxes = found["batch_box_preds"][scene, start : start + len(logits)]
        start += len(logits)
        scores, labels, kept = file.multi_classes_nms(
            cls_scores=logits.sigmoid(), box_preds=boxes, nms_config=config, score_thresh=0.1
        )
        rows += [
            (group[int(c)], float(s), box.numpy())
            for c, s, box in zip(labels, scores, kept, strict=True)
        ]
    return sorted(rows, key=lambda row: -row[1])


def test_prediction_from_voxels_to_boxes(rng):
    """The whole network, planned and in one program; scenes do not see each other."""
    model = network()
    model.eval()
    points = rng.uniform((0, 0, 0), (12.8, 6.4, 8), (400, 3)).astype(np.float32)
    features = rng.normal(size=(400, 5)).astype(np.float32)
    voxels = vx.voxelize(points, features, REGION.voxel_size, np.repeat([0, 1], 200), batch_size=2)
    output = model(vx.plan(model, voxels))
    assert [out.classes.shape for out in output] == [
        (2, 16, 8, 2 * len(group) * len(group)) for group in NUSCENES
    ]
    assert all(
        out.boxes.shape == (2, 16, 8, 20 * len(g)) for out, g in zip(output, NUSCENES, strict=True)
    )
    common = {"num_classes": 10, "groups": NUSCENES, "max_boxes": 50, "max_selected": 5}
    both = found_boxes(output, REGION, batch_size=2, min_score=0.0, **common)
    assert all(scene.boxes.shape == (50, 9) for scene in both)
    (second,) = found_boxes(
        [AnchorOutput(out.classes[1:], out.boxes[1:], None) for out in output],
        REGION,
        min_score=0.0,
        **common,
    )
    same(second._asdict(), both[1]._asdict())
    circles = found_boxes(output, REGION, batch_size=2, radii=(1.0,) * 10, **common)
    assert len(circles) == 2


def test_codes_with_cosine_and_sine(rng):
    """Against the formulas, and a code of zeros is the anchor."""
    anchors = np.array([[1.0, 2, 3, 4, 2, 1.5, 0.3], [0, 0, 0, 1, 1, 2, -2.5]])
    boxes = vd.decode_residuals(np.zeros((2, 10)), anchors)
    np.testing.assert_allclose(boxes, np.pad(anchors, ((0, 0), (0, 2))), atol=1e-12)
    codes = rng.normal(size=(2, 10))
    turned = vd.decode_residuals(codes, anchors)
    np.testing.assert_allclose(turned[:, :6], vd.decode_residuals(codes[:, :7], anchors)[:, :6])
    direction = np.stack([np.cos(anchors[:, 6]), np.sin(anchors[:, 6])], 1) + codes[:, 6:8]
    np.testing.assert_allclose(turned[:, 6], np.arctan2(direction[:, 1], direction[:, 0]))
    np.testing.assert_array_equal(turned[:, 7:], codes[:, 8:])
    with pytest.raises(vx.InputError, match=r"codes of shape \[2, 9\]: give \[\.\.\., 7\] or"):
        vd.decode_residuals(codes[:, :9], anchors)


def test_what_is_refused(tmp_path):
    optax = pytest.importorskip("optax")
    model = network()
    with pytest.raises(vx.InputError, match="one head of anchors, and no MultiHeadSECOND"):
        AnchorTrainer(model, optax.sgd(0.1), REGION, 10, anchors=vd.NUSCENES_ANCHORS)
    with pytest.raises(vx.InputError, match="anchors=0 must be at least 1"):
        vx.models.create("second-nuscenes", **SIZES, anchors=0)
    with pytest.raises(vx.InputError, match="must have each of the 9 classes"):
        vx.models.create("second-nuscenes", **{**SIZES, "num_classes": 9})
    zeros = [
        AnchorOutput(jnp.zeros((1, 4, 2, 2 * len(g) ** 2)), jnp.zeros((1, 4, 2, 20 * len(g))), None)
        for g in NUSCENES
    ]
    common = {"num_classes": 10, "groups": NUSCENES}
    with pytest.raises(vx.InputError, match="2 anchors for 10 classes"):
        found_boxes(zeros, REGION, anchors=vd.NUSCENES_ANCHORS[:2], **common)
    with pytest.raises(vx.InputError, match="the network has 6: give groups="):
        found_boxes(zeros, REGION, num_classes=10)
