"""A call of every public function that takes arrays: for tests of what holds for all of them."""

import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np

import voxax as vx
import voxax.detection as D
import voxax.nn.functional as F
from voxax.models.training import masked_cross_entropy

MODULES = {"vx": vx, "F": F, "D": D}
# These take no arrays, or arrays of the host alone.
ON_HOST = {
    "vx": "algorithms bucket_capacity check_static explain fits keep_programs plan "
    "reload_environment tune voxelize_on_host",
    "F": "kernel_point_positions",
    "D": "anchor_boxes augment average_precision center_distance_ap flip kitti_aos kitti_ap "
    "nuscenes_score rotate scale translate",
}


def functions(module):
    """Names of the public functions of a module."""
    public = {name: getattr(module, name) for name in module.__all__}
    return {
        name
        for name, value in public.items()
        if callable(value)
        and not inspect.isclass(value)
        and str(getattr(value, "__module__", "")).startswith("voxax")
    }


def arrays():
    """What calls are made with: a tree of arrays whose rows two devices can divide."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    positions = rng.uniform(-2, 2, (60, 3)).astype(np.float32)
    scenes = np.arange(60, dtype=np.int32) % 2
    features = normal(60, 4)
    voxels = vx.voxelize(positions, features, 0.5, scenes, capacity=64, batch_size=2)
    other = vx.voxelize(positions[:40] + 0.5, features[:40], 0.5, scenes[:40], capacity=64)
    points = vx.Points.make(positions, features, scenes, capacity=64)
    boxes = np.concatenate(
        [rng.uniform(-8, 8, (8, 3)), rng.uniform(1, 4, (8, 3)), rng.uniform(-3, 3, (8, 1))], 1
    )
    return {
        "positions": jnp.asarray(positions),
        "scenes": jnp.asarray(scenes),
        "features": features,
        "v": voxels,
        "w": other,
        "p": points,
        "weight": normal(27, 4, 8),
        "weight8": normal(8, 4, 8),
        "depth": normal(27, 4),
        "channel": normal(4),
        "positive": jnp.abs(normal(4)) + 0.1,
        "scores": normal(64),
        "box_scores": normal(8),
        "qkv": voxels.replace_features(normal(64, 24)),
        "q": voxels.replace_features(normal(64, 8)),
        "kv": voxels.replace_features(normal(64, 16)),
        "importance": jax.nn.sigmoid(normal(64, 27)),
        "labels": jnp.asarray(rng.integers(0, 4, 64), jnp.int32),
        "grid": normal(2, 6, 6, 4),
        "kernel": normal(3, 3, 4, 4),
        "size": jnp.asarray(rng.integers(1, 4, (2, 6, 6)), jnp.int32),
        "offsets": normal(2, 6, 6, 9, 2) * 0.1,
        "kernels": normal(2, 6, 6, 9, 4),
        "strides": jnp.asarray([1, 2], jnp.int32),
        "stride_scores": normal(2, 2),
        "lattice": jnp.asarray(F.kernel_point_positions(15)),
        "points_weight": normal(15, 4, 8),
        "ball": normal(4, 4, 4, 4, 8),
        "boxes": jnp.asarray(boxes, jnp.float32),
        "moved": jnp.asarray(boxes + 0.25, jnp.float32),
        "classes": jnp.asarray(np.arange(8) % 2, jnp.int32),
        "logits": normal(8, 8, 2),
        "codes": normal(8, 8, 8),
        "cells": jnp.asarray(np.stack([np.arange(8), np.arange(8)[::-1]], 1), jnp.int32),
        "cell_logits": normal(8, 2),
        "cell_codes": normal(8, 8),
        "residuals": normal(8, 7),
        "mask": jnp.asarray(np.arange(8) % 2 == 0),
        "heat": jax.nn.sigmoid(normal(8, 8, 2)),
    }


def _grid():
    return D.BevGrid((-8.0, -8.0), (2.0, 2.0), (8, 8))


def _assigned(a):
    places = np.tile(np.asarray([0, 0, 0, 4, 2, 1.5, 0], np.float32), (8, 8, 1, 1))
    return D.anchor_targets(a.boxes, a.classes - 1, places, [D.Anchor((4, 2, 1.5), 0, [0.0])])


def _near(a):
    return vx.radius_search(a.p, radius=1.0, capacity=32)


CALLS = {
    "vx.batch": lambda a: vx.batch([a.v, a.w]),
    "vx.cat": lambda a: vx.cat([a.v, a.w], "union", capacity=128),
    "vx.coarsen": lambda a: vx.coarsen(a.v, 2),
    "vx.crop": lambda a: vx.crop(a.v, -2, 2, capacity=64),
    "vx.cubic_windows": lambda a: vx.cubic_windows(a.v, 4),
    "vx.curve_order": lambda a: vx.curve_order(a.v),
    "vx.cut_patches": lambda a: vx.cut_patches(a.v, 16),
    "vx.cylindrical_windows": lambda a: vx.cylindrical_windows(a.v, (1.0, 8, 1.0)),
    "vx.devoxelize": lambda a: vx.devoxelize(a.v, a.positions, a.scenes),
    "vx.dilate": lambda a: vx.dilate(a.v, 3, capacity=2048),
    "vx.inject": lambda a: vx.inject(a.v, a.w),
    "vx.intersection": lambda a: vx.intersection(a.v, a.w, capacity=64),
    "vx.kernel_map": lambda a: vx.kernel_map(a.v, 3).neighbors,
    "vx.knn_search": lambda a: vx.knn_search(a.p, k=3),
    "vx.prune": lambda a: vx.prune(a.v, a.scores > 0, capacity=64),
    "vx.radius_search": _near,
    "vx.refine": lambda a: vx.refine(a.v, 2, capacity=512),
    "vx.splat": lambda a: vx.splat(a.positions, a.features, a.v, a.scenes),
    "vx.to_bev": lambda a: vx.to_bev(a.v, capacity=64),
    "vx.top_k": lambda a: vx.top_k(a.v, a.scores, 8, capacity=64),
    "vx.unbatch": lambda a: vx.unbatch(a.v, capacity=64),
    "vx.union": lambda a: vx.union(a.v, a.w, capacity=128),
    "vx.voxelize": lambda a: vx.voxelize(
        a.positions, a.features, 0.5, a.scenes, capacity=64, batch_size=2
    ),
    "F.spatially_sparse_conv": lambda a: F.spatially_sparse_conv(a.v, a.weight),
    "F.depthwise_conv": lambda a: F.depthwise_conv(a.v, a.depth),
    "F.spatially_sparse_depthwise_conv": lambda a: F.spatially_sparse_depthwise_conv(
        a.v.features, a.depth, vx.kernel_map(a.v, 3)
    ),
    "F.max_pool": lambda a: F.max_pool(a.v, 2),
    "F.mean_pool": lambda a: F.mean_pool(a.v, 2),
    "F.min_pool": lambda a: F.min_pool(a.v, 2),
    "F.sum_pool": lambda a: F.sum_pool(a.v, 2),
    "F.unpool": lambda a: F.unpool(vx.coarsen(a.v, 2), a.v),
    "F.global_pool": lambda a: F.global_pool(a.v),
    "F.space_to_channel": lambda a: F.space_to_channel(a.v, 2),
    "F.channel_to_space": lambda a: F.channel_to_space(F.space_to_channel(a.v, 2), 2, a.v),
    "F.dropout": lambda a: F.dropout(a.v, 0.5, jax.random.key(0)),
    "F.group_norm": lambda a: F.group_norm(a.v, 2),
    "F.instance_norm": lambda a: F.instance_norm(a.v),
    "F.layer_norm": lambda a: F.layer_norm(a.v, a.channel, a.channel),
    "F.rms_norm": lambda a: F.rms_norm(a.v, a.channel),
    "F.masked_moments": lambda a: F.masked_moments(a.v.features, a.v.valid),
    "F.normalize": lambda a: F.normalize(a.v, a.channel, a.positive),
    "F.scene_attention": lambda a: F.scene_attention(a.qkv, 2),
    "F.cross_attention": lambda a: F.cross_attention(a.q, a.kv, 2),
    "F.window_attention": lambda a: F.window_attention(a.qkv, 2, vx.cubic_windows(a.v, 4)),
    "F.serialized_attention": lambda a: F.serialized_attention(a.qkv, 2, 16),
    "F.serial_order": lambda a: F.serial_order(a.v, "hilbert"),
    "F.rotary_embedding": lambda a: F.rotary_embedding(
        a.qkv.features.reshape(64, 2, 12), a.v.coords[:, 1:].astype(jnp.float32)
    ),
    "F.poly6": lambda a: F.poly6(a.positive),
    "F.focal_conv": lambda a: F.focal_conv(a.v, a.weight, a.importance, capacity=1024),
    "F.sparse_dynamic_conv": lambda a: F.sparse_dynamic_conv(a.v, a.weight, size=2),
    "F.dynamic_conv": lambda a: F.dynamic_conv(a.grid, a.kernel, size=a.size),
    "F.deform_conv": lambda a: F.deform_conv(a.grid, a.kernel, a.offsets),
    "F.local_conv": lambda a: F.local_conv(a.grid, a.kernels, kernel_size=3),
    "F.bank_error": lambda a: F.bank_error(a.grid, a.kernel, size=a.size, bank=1),
    "F.choose_size": lambda a: F.choose_size(a.stride_scores, (1, 2), fallback=1),
    "F.selected_stride_conv": lambda a: F.selected_stride_conv(
        a.grid, a.kernel, a.strides, strides=(1, 2)
    ),
    "F.continuous_conv": lambda a: F.continuous_conv(a.p, a.ball, _near(a), radius=1.0),
    "F.kernel_point_conv": lambda a: F.kernel_point_conv(
        a.p, a.points_weight, _near(a), a.lattice, extent=1.0
    ),
    "F.kernel_point_penalty": lambda a: F.kernel_point_penalty(
        a.p, _near(a), a.lattice, jnp.zeros((64, 15, 3)), extent=1.0
    ),
    "D.bev_corners": lambda a: D.bev_corners(a.boxes),
    "D.corners": lambda a: D.corners(a.boxes),
    "D.bev_iou": lambda a: D.bev_iou(a.boxes, a.moved),
    "D.bev_overlap": lambda a: D.bev_overlap(a.boxes, a.moved),
    "D.iou_3d": lambda a: D.iou_3d(a.boxes, a.moved),
    "D.iou_loss": lambda a: D.iou_loss(a.boxes, a.moved, a.mask),
    "D.wrap_angle": lambda a: D.wrap_angle(a.boxes[:, 6]),
    "D.points_in_boxes": lambda a: D.points_in_boxes(a.positions, a.boxes),
    "D.center_targets": lambda a: D.center_targets(a.boxes, a.classes, _grid(), 2),
    "D.sparse_center_targets": lambda a: D.sparse_center_targets(
        a.boxes, a.classes, a.cells, _grid(), 2
    ),
    "D.circle_nms": lambda a: D.circle_nms(
        a.boxes[:, :2], a.box_scores, radius=2.0, max_selected=4
    ),
    "D.nms": lambda a: D.nms(a.boxes, a.box_scores, iou_threshold=0.3, max_selected=4),
    "D.code_loss": lambda a: D.code_loss(a.residuals, a.boxes, a.mask),
    "D.gaussian_focal_loss": lambda a: D.gaussian_focal_loss(a.logits, a.heat),
    "D.gaussian_radius": lambda a: D.gaussian_radius(a.boxes[:, 3], a.boxes[:, 4]),
    "D.decode_centers": lambda a: D.decode_centers(a.logits, a.codes, _grid(), max_boxes=4),
    "D.decode_cells": lambda a: D.decode_cells(
        a.cell_logits, a.cell_codes, a.cells, _grid(), max_boxes=4
    ),
    "D.decode_boxes": lambda a: D.decode_boxes(a.cell_codes, a.cells, _grid()),
    "D.encode_boxes": lambda a: D.encode_boxes(a.boxes, a.cells, _grid()),
    "D.decode_residuals": lambda a: D.decode_residuals(a.residuals, a.boxes),
    "D.encode_residuals": lambda a: D.encode_residuals(a.boxes, a.moved),
    "D.anchor_targets": lambda a: _assigned(a),
    "D.anchor_losses": lambda a: D.anchor_losses(
        a.logits, a.codes[..., :7], a.logits, _assigned(a)
    ),
    "D.sigmoid_focal_loss": lambda a: D.sigmoid_focal_loss(a.cell_logits, a.classes),
    "D.residual_loss": lambda a: D.residual_loss(a.residuals, a.boxes, a.mask),
    "D.direction_loss": lambda a: D.direction_loss(a.cell_logits, a.classes, a.mask),
    "D.decode_anchors": lambda a: D.decode_anchors(
        a.logits,
        a.codes[..., :7],
        a.logits,
        np.tile(np.asarray([0, 0, 0, 4, 2, 1.5, 0], np.float32), (8, 8, 1, 1)),
        max_boxes=4,
    ),
    "masked_cross_entropy": lambda a: masked_cross_entropy(a.v.features, a.labels),
}
# Methods and constructors.
CALLS |= {
    "Points.make": lambda a: vx.Points.make(a.positions, a.features, a.scenes, batch_size=2),
    "from_coords": lambda a: vx.Voxels.from_coords(
        jnp.concatenate([a.scenes[:, None], jnp.floor(a.positions).astype(jnp.int32)], 1),
        a.features,
        2,
        capacity=64,
    ),
    "from_dense": lambda a: vx.Voxels.from_dense(a.grid, capacity=128),
    "to_dense": lambda a: a.v.to_dense((8, 8, 8), (-4, -4, -4)),
    "scene": lambda a: a.v.scene(1),
    "arithmetic": lambda a: -(a.v * 2 + a.v - a.channel),
    "map": lambda a: a.v.map(jax.nn.relu),
    "positions": lambda a: (a.v.positions(), a.v.local_positions(), a.v.valid, a.p.valid),
    "on the host": lambda a: (a.v.raise_if_overflowed(), a.v.valid_features(), repr(a.v))[1],
}


def namespace(tree):
    return types.SimpleNamespace(**tree)
