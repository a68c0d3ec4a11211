"""The Lovász softmax loss for segmentation, a differentiable surrogate of the IoU of each class.

Source: Berman, Rannen Triki and Blaschko, "The Lovász-Softmax Loss: A Tractable Surrogate for the
Optimization of the Intersection-Over-Union Measure in Neural Networks", CVPR 2018.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax._array_types import Array, Float, Int
from voxax.errors import InputError, check_known
from voxax.geometry.call_checks import checked_operator
from voxax.models.training import check_labels, check_rows

LovaszClasses = Literal["present", "all"]


@checked_operator
def lovasz_softmax(
    logits: Float[Array | np.ndarray, "N classes"],
    labels: Int[Array | np.ndarray, " N"],
    classes: LovaszClasses = "present",
    axis_name: str | tuple[str, ...] | None = None,
    *,
    ignore_label: int | None = None,
) -> Float[Array, ""]:
    """Return the Lovász softmax loss ``float32[]``, which approximates ``1 - IoU`` of the classes.

    The loss is usually added to the cross entropy. The IoU of a class is taken over the rows of all
    scenes together.

    Args:
      logits: ``[N, classes]``, before the softmax; the values in padding rows have no effect.
      labels: ``int[N]``, 0 to ``classes - 1``; rows with other labels do not count.
      classes: the classes to average over: those with labels (``"present"``), or ``"all"``.
      axis_name: name of a mapped axis whose devices' rows count together. None is for one device.
      ignore_label: label of unlabeled rows, besides negative numbers; 255 in many data sets.

    Raises:
      InputError: the shapes do not match, ``classes`` is unknown, labels are not integers, or (in
        eager calls) labels lie outside the classes.
    """
    check_known("classes", classes, get_args(LovaszClasses))
    check_rows(logits, labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise InputError(f"labels of {labels.dtype}: expected integers, one class for each row")
    if not _compat.is_traced(logits, labels):
        check_labels(labels, logits.shape[1], ignore_label)
    ignored = -1 if ignore_label is None else ignore_label
    rows = jnp.asarray(logits), jnp.asarray(labels)
    if axis_name is not None:
        rows = _rows_of_all(*rows, axis_name)
    return _lovasz(*rows, ignored, only_present=classes != "all")


def _rows_of_all(
    logits: jax.Array, labels: jax.Array, axis_name: str | tuple[str, ...]
) -> tuple[jax.Array, jax.Array]:
    """Return the logits and labels of all devices of a mapped axis, concatenated by rows.

    Rows with a negative label get logits 0. The rows are collected by ``psum``, so that JAX treats
    the result as the same on each device, which is not so for a gathered array.
    """

    def whole(own: jax.Array) -> jax.Array:
        empty = jnp.zeros((jax.lax.axis_size(axis_name), *own.shape), own.dtype)
        placed = jax.lax.psum(empty.at[jax.lax.axis_index(axis_name)].set(own), axis_name)
        return placed.reshape(-1, *own.shape[1:])

    known = labels >= 0  # padding may hold NaN
    return whole(jnp.where(known[:, None], logits, 0)), whole(labels)


@functools.partial(jax.jit, static_argnames=("only_present",))
def _lovasz(logits: jax.Array, labels: jax.Array, ignored: Any, *, only_present: bool) -> jax.Array:
    number, width = logits.shape
    known = ((labels >= 0) & (labels < width) & (labels != ignored))[:, None]
    chances = jax.nn.softmax(jnp.where(known, logits.astype(jnp.float32), 0.0), axis=1)
    own = (jnp.arange(width, dtype=labels.dtype)[None] == labels[:, None]) & known
    errors = jnp.where(known, jnp.abs(own.astype(jnp.float32) - chances), 0.0)
    # Rows that do not count come last, where their error of 0 has no effect.
    key = jax.lax.stop_gradient(jnp.where(known, -errors, 1.0))
    row = jax.lax.broadcasted_iota(jnp.int32, (number, width), 0)
    _, right, place = jax.lax.sort((key, own.astype(jnp.int32), row), dimension=0, num_keys=1)
    total = jnp.sum(right, axis=0, keepdims=True)
    shared = (total - jnp.cumsum(right, axis=0)).astype(jnp.float32)
    union = (total + jnp.cumsum(1 - right, axis=0)).astype(jnp.float32)
    jaccard = 1.0 - shared / union
    steps = jnp.diff(jaccard, axis=0, prepend=jnp.zeros((1, width), jnp.float32))
    # Sort back instead of gathering, because a TPU gathers one number after the other.
    _, weights = jax.lax.sort((place, steps), dimension=0, num_keys=1)
    losses = jnp.sum(errors * weights, axis=0)
    counted = total[0] > 0 if only_present else jnp.ones(width, bool)
    chosen = jnp.sum(jnp.where(counted, losses, 0.0))
    return chosen / jnp.maximum(jnp.sum(counted, dtype=jnp.int32), 1).astype(jnp.float32)
