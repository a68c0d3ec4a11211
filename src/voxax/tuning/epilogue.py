"""Compare a kernel's fused epilogue (norm, bias, residual, ReLU) with a computation in NumPy."""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np

from voxax.hardware import hardware_of
from voxax.kernels import Epilogue, Problem
from voxax.tuning.decide import Choice
from voxax.tuning.measure import objection, on_sample
from voxax.tuning.request import autotune_mode
from voxax.tuning.sample import Sample
from voxax.tuning.share import agree

_LOG = logging.getLogger("voxax.tuning")
_objections: dict[Hashable, str] = {}


def applies_epilogue(choice: Choice) -> bool:
    """Return whether the kernel in `choice` has an epilogue with right results on this device.

    An epilogue is the norm, bias, residual and ReLU after a convolution. The kernel's epilogue is
    compared with NumPy at the first use for each kind of weight, dtype and precision. Without a
    device, or with ``VOXAX_AUTOTUNE=off``, it is not compared and counts as right.
    """
    p, kernel = choice.problem, choice.kernel
    if kernel.with_epilogue is None:
        return False
    _, device = hardware_of(p.platform)
    if device is None or autotune_mode(p.platform) == "off":
        return True
    key = (kernel.name, kernel.platform, kernel.revision, p.layer.kind, p.dtype, p.layer.precision)
    if (key, device) not in _objections:

        def compared() -> str:
            try:
                chosen, run = (choice.candidate,), functools.partial(_objection, choice)
                return on_sample(p, chosen, None, device, run) or ""
            except Exception as error:
                return f"could not be checked: {type(error).__name__}: {error}"[:500]

        reason = _objections[key, device] = agree(f"epilogue {key}", compared)
        if reason:
            _LOG.warning("the epilogue of %s is not used: it %s", choice, reason)
    return not _objections[key, device]


def _objection(choice: Choice, sample: Sample) -> str | None:
    problem, kernel = choice.problem, choice.kernel
    epilogue = _drawn(problem)
    arguments = problem, choice.parameters

    def both(a: jax.Array, b: jax.Array, views: dict[str, jax.Array], epilogue: Epilogue):
        assert kernel.with_epilogue is not None
        made = kernel.with_epilogue(*arguments, a, b, views, epilogue)
        return kernel.apply(*arguments, a, b, views), made

    product, made = jax.jit(both)(sample.a, sample.b, sample.views, epilogue)
    if made is None:  # the kernel leaves this epilogue to XLA
        return None
    expected = _applied(np.asarray(product).astype(np.float64), epilogue)
    result, dtype = np.asarray(made), np.asarray(product).dtype
    return objection(
        result, expected.astype(dtype), problem.dtype, problem.layer.precision, "NumPy"
    )


def _drawn(problem: Problem) -> Epilogue:
    rng = np.random.default_rng(0)
    rows, channels = problem.result_shape

    def values(dtype: str, least: float = -1) -> jax.Array:
        return jnp.asarray(rng.uniform(least, 1, channels), dtype)

    return Epilogue(
        valid=jnp.asarray(np.arange(rows) % 5 != 4),
        mean=values("float32"),
        variance=values("float32", 0.1),
        scale=values(problem.dtype),
        shift=values(problem.dtype),
        bias=values(problem.dtype),
        residual=jnp.asarray(rng.standard_normal((rows, channels)), problem.dtype),
        epsilon=1e-3,
        relu=True,
    )


def _applied(y: np.ndarray, e: Epilogue) -> np.ndarray:
    arrays = (e.mean, e.variance, e.scale, e.shift, e.bias, e.residual)
    mean, variance, scale, shift, bias, residual = (np.asarray(a).astype(float) for a in arrays)
    y = (y + bias - mean) / np.sqrt(variance + e.epsilon) * scale + shift + residual
    return np.where(np.asarray(e.valid)[:, None], np.maximum(y, 0), 0)
