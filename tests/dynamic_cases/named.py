"""The named operators on dense grids, strides among them."""

import jax.numpy as jnp
import numpy as np
import scipy.special

from oracle import dynamic_operators as oracle
from recipes import recipe
from voxax.nn.functional import deform_conv, local_conv, selected_stride_conv


def shares(scores, axis):
    return scipy.special.softmax(scores, axis=axis)


def deform_v1(r):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "w": r.standard_normal((3, 2, 3, 4)),
        "offsets": r.uniform(-2.3, 2.3, (2, 3, 4, 6, 2)),
        "bias": r.standard_normal(4),
    }

    def run(v):
        options = {"stride": (2, 1), "dilation": (1, 2), "bias": v["bias"]}
        return deform_conv(v["x"], v["w"], v["offsets"], **options)

    def want(v):
        one = v["offsets"][..., None, :, :]
        mask = np.ones(one.shape[:-1])
        y = oracle.deform_conv(v["x"], v["w"], one, mask, (3, 2), (2, 1), (1, 2))
        return y + v["bias"]

    return v, run, want


def deform_v2(r):
    v = {
        "x": r.standard_normal((2, 4, 3, 4)),
        "w": r.standard_normal((3, 3, 2, 6)),
        "offsets": r.uniform(-1.7, 1.7, (2, 4, 3, 2, 9, 2)),
        "mask": r.standard_normal((2, 4, 3, 2, 9)),
    }

    def run(v):
        options = {"mask": v["mask"], "modulation": "sigmoid", "groups": 2}
        return deform_conv(v["x"], v["w"], v["offsets"], **options)

    def want(v):
        mask = scipy.special.expit(v["mask"])
        return oracle.deform_conv(
            v["x"], v["w"], v["offsets"], mask, (3, 3), (1, 1), (1, 1), groups=2
        )

    return v, run, want


def deform_v3(r):
    v = {
        "x": r.standard_normal((1, 3, 4, 2, 4)),
        "offsets": r.uniform(-1.7, 1.7, (1, 3, 4, 2, 2, 12, 3)),
        "mask": r.standard_normal((1, 3, 4, 2, 2, 12)),
    }

    def run(v):
        options = {"mask": v["mask"], "modulation": "softmax", "kernel_size": (3, 2, 2)}
        return deform_conv(v["x"], None, v["offsets"], **options)

    def want(v):
        mask = shares(v["mask"], -1)
        return oracle.deform_conv(v["x"], None, v["offsets"], mask, (3, 2, 2), (1, 1, 1), (1, 1, 1))

    return v, run, want


def deform_v4(r):
    v = {
        "x": r.standard_normal((2, 9, 4)),
        "offsets": r.uniform(-3.4, 3.4, (2, 5, 4, 3, 1)),
        "mask": r.standard_normal((2, 5, 4, 3)),
    }

    def run(v):
        return deform_conv(v["x"], None, v["offsets"], mask=v["mask"], kernel_size=3, stride=2)

    def want(v):
        return oracle.deform_conv(v["x"], None, v["offsets"], v["mask"], (3,), (2,), (1,))

    return v, run, want


def local(r):
    v = {"x": r.standard_normal((2, 5, 4, 4)), "k": r.standard_normal((2, 3, 4, 6, 2))}
    options = {"kernel_size": (2, 3), "stride": (2, 1), "dilation": (1, 2)}
    return (
        v,
        lambda v: local_conv(v["x"], v["k"], **options),
        lambda v: oracle.local_conv(v["x"], v["k"], (2, 3), (2, 1), (1, 2)),
    )


def involution(r):
    v = {
        "x": r.standard_normal((2, 5, 4, 4)),
        "reduce": r.standard_normal((4, 3)),
        "span": r.standard_normal((3, 12)),
    }

    def run(v):
        options = {"kernel_size": (2, 3), "groups": 2, "stride": (2, 1)}
        return recipe("involution")(v["x"], v["reduce"], v["span"], **options)

    def want(v):
        inner = np.maximum(v["x"][:, ::2] @ v["reduce"], 0)
        kernels = (inner @ v["span"]).reshape(2, 3, 4, 6, 2)
        return oracle.local_conv(v["x"], kernels, (2, 3), (2, 1), (1, 1))

    return v, run, want


def adaptive(r, normalize=False):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "guide": r.standard_normal((2, 5, 4, 2)),
        "w": r.standard_normal((3, 2, 3, 4)),
        "bias": r.standard_normal(4),
    }
    options = {"stride": (1, 2), "dilation": (2, 1), "normalize": normalize}

    def run(v):
        return recipe("pixel_adaptive_conv")(v["x"], v["guide"], v["w"], bias=v["bias"], **options)

    def want(v):
        return oracle.pixel_adaptive_conv(
            v["x"], v["guide"], v["w"], v["bias"], (1, 2), (2, 1), normalize
        )

    return v, run, want


def blur(r, normalize_edges=False):
    v = {"x": r.standard_normal((2, 6, 5, 2)), "sigma": r.uniform(0.3, 2.5, (2, 6, 5, 2))}
    options = {"radius": (3, 2), "normalize_edges": normalize_edges}
    return (
        v,
        lambda v: recipe("gaussian_blur")(v["x"], v["sigma"], **options),
        lambda v: oracle.gaussian_blur(v["x"], v["sigma"], (3, 2), normalize_edges),
    )


def selective(r):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "w3": r.standard_normal((3, 3, 3, 4)),
        "w2": r.standard_normal((2, 2, 3, 4)),
        "b3": r.standard_normal(4),
        "b2": r.standard_normal(4),
        "select": r.standard_normal((4, 8)),
    }

    def run(v):
        def select(pooled):
            return jnp.tanh(pooled @ v["select"]).reshape(-1, 2, 4)

        weights, biases = [v["w3"], v["w2"]], [v["b3"], v["b2"]]
        options = {"biases": biases, "stride": 2, "dilations": (2, 1)}
        return recipe("selective_conv")(v["x"], weights, select, **options)

    def want(v):
        first = oracle.conv(v["x"], v["w3"], (2, 2), (2, 2), bias=v["b3"])
        second = oracle.conv(v["x"], v["w2"], (2, 2), (1, 1), bias=v["b2"])
        pooled = (first + second).mean((1, 2))
        part = shares(np.tanh(pooled @ v["select"]).reshape(-1, 2, 4), 1)[:, :, None, None]
        return part[:, 0] * first + part[:, 1] * second

    return v, run, want


def mixture(r, by_kernel=False):
    each = (2, 3) if by_kernel else (2,)
    v = {
        "x": r.standard_normal((2, 5, 4, 4)),
        "w": r.standard_normal((3, 3, 2, 2, 6)),
        "mixture": r.standard_normal((2, 3)),
        "tap": r.standard_normal((*each, 6)),
        "in": r.standard_normal((*each, 4)),
        "out": r.standard_normal((2, 6)),
        "bias": r.standard_normal((3, 6)),
    }

    def run(v):
        gates = {"tap_gate": v["tap"], "in_gate": v["in"], "out_gate": v["out"]}
        options = {"groups": 2, "stride": (2, 1)}
        y = recipe("mixture_conv")(v["x"], v["w"], v["mixture"], **gates, **options)
        return y + (v["mixture"] @ v["bias"])[:, None, None]

    def want(v):
        kernels = oracle.scene_kernels(v["w"], v["mixture"], v["tap"], v["in"], v["out"], groups=2)
        bias = v["mixture"] @ v["bias"]
        scenes = [
            oracle.conv(v["x"][b : b + 1], kernels[b], (2, 1), (1, 1), groups=2, bias=bias[b])
            for b in range(2)
        ]
        return np.concatenate(scenes)

    return v, run, want


def selected_stride(r):
    v = {
        "x": r.standard_normal((3, 7, 6, 2)),
        "w": r.standard_normal((3, 3, 2, 4)),
        "bias": r.standard_normal(4),
        "stride": r.permutation([1, 2, 4]).astype(np.int32),
    }

    def run(v):
        stride = jnp.asarray(v["stride"])
        return selected_stride_conv(v["x"], v["w"], stride, strides=(1, 2, 4), bias=v["bias"])[0]

    def want(v):
        y = np.zeros((3, 7, 6, 4))
        for b, s in enumerate(np.asarray(v["stride"]).tolist()):
            part = oracle.conv(v["x"][b : b + 1], v["w"], (s, s), (1, 1), bias=v["bias"])[0]
            y[b, : part.shape[0], : part.shape[1]] = part
        return y

    return v, run, want


def spectral(r):
    v = {"x": r.standard_normal((2, 12, 9, 3)), "stride": r.uniform(1.3, 2.9, 2)}

    def want(v):
        y = np.zeros((2, 12, 9, 3))
        part = oracle.spectral_stride(v["x"], v["stride"], 2.5)
        y[:, : part.shape[1], : part.shape[2]] = part
        return y

    return v, lambda v: recipe("spectral_stride")(v["x"], v["stride"], smoothness=2.5)[0], want


CASES = {
    "deform_v1": deform_v1,
    "deform_v2": deform_v2,
    "deform_v3": deform_v3,
    "deform_v4": deform_v4,
    "local": local,
    "involution": involution,
    "pixel_adaptive": adaptive,
    "pixel_adaptive_normalized": lambda r: adaptive(r, normalize=True),
    "blur": blur,
    "blur_normalized": lambda r: blur(r, normalize_edges=True),
    "selective": selective,
    "mixture": mixture,
    "mixture_of_gated": lambda r: mixture(r, by_kernel=True),
    "selected_stride": selected_stride,
    "spectral_stride": spectral,
}
