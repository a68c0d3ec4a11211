"""Selective kernels, and mixtures of kernels for each scene: CondConv, dynamic convolution, ODConv.

Source: Li et al., "Selective Kernel Networks", CVPR 2019; Yang et al., "CondConv: Conditionally
Parameterized Convolutions for Efficient Inference", NeurIPS 2019; Chen et al., "Dynamic
Convolution: Attention over Convolution Kernels", CVPR 2020; Li et al., "Omni-Dimensional Dynamic
Convolution", ICLR 2022.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from voxax.nn import functional as F


def conv(x, weight, stride, dilation, groups=1):
    """[B, *outputs, C_out]: an ordinary convolution, centered as `dynamic_conv` is."""
    ndim = x.ndim - 2
    stride, dilation = (tuple(np.broadcast_to(a, ndim).tolist()) for a in (stride, dilation))
    padding = [
        ((k - 1) // 2 * d, k // 2 * d) for k, d in zip(weight.shape[:ndim], dilation, strict=True)
    ]
    axes = "DHW"[-ndim:]
    return jax.lax.conv_general_dilated(
        x,
        weight,
        stride,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        feature_group_count=groups,
        precision="highest",
    )


def selective_conv(x, weights, select, *, biases=None, stride=1, dilations=None):
    """[B, *outputs, C_out]; M weights [*T, C, C_out]; select: [B, C_out] to [B, M, C_out]."""
    dilations = dilations or (1,) * len(weights)
    branches = [conv(x, w, stride, d) for w, d in zip(weights, dilations, strict=True)]
    if biases is not None:
        lead = (1,) * (x.ndim - 1)
        branches = [y + b.reshape(*lead, -1) for y, b in zip(branches, biases, strict=True)]
    spatial = tuple(range(1, x.ndim - 1))
    shares = jax.nn.softmax(select(jnp.mean(sum(branches), axis=spatial)), axis=1)
    shares = jnp.expand_dims(shares, tuple(a + 1 for a in spatial))
    return sum(shares[:, m] * y for m, y in enumerate(branches))


def mixture_conv(
    x,
    weight,
    mixture,
    *,
    tap_gate=None,
    in_gate=None,
    out_gate=None,
    stride=1,
    dilation=1,
    groups=1,
):
    """[B, *outputs, C_out]; weight [M, *T, C / groups, C_out], mixture [B, M].

    Gates of K taps, C and C_out are [B, extent], or [B, M, extent] with one for each kernel.
    """
    count, taps, (c_in, c_out) = weight.shape[0], weight.shape[1:-2], weight.shape[-2:]
    number = math.prod(taps)
    shapes = ((number, 1, 1, 1), (1, groups, c_in, 1), (1, groups, 1, c_out // groups))
    gates = [
        gate.reshape(len(x), -1, *shape)
        for gate, shape in zip((tap_gate, in_gate, out_gate), shapes, strict=True)
        if gate is not None
    ]
    # [M, K, groups, C / groups, C_out / groups]
    kernels = weight.reshape(count, number, c_in, groups, c_out // groups).swapaxes(2, 3)
    mixed = 0
    for m in range(count):
        part = mixture[:, m].reshape(-1, 1, 1, 1, 1) * kernels[m][None]
        for gate in gates:
            part = part * gate[:, m % gate.shape[1]]
        mixed = mixed + part
    mixed = mixed.swapaxes(2, 3).reshape(len(x), *taps, c_in, c_out)
    return jax.vmap(lambda x, w: conv(x[None], w, stride, dilation, groups)[0])(x, mixed)


if __name__ == "__main__":
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    x = normal(2, 16, 16, 8)
    branches = [normal(3, 3, 8, 16), normal(5, 5, 8, 16)]
    head = normal(16, 2 * 16)

    @jax.jit
    def select(x):
        return selective_conv(x, branches, lambda pooled: (pooled @ head).reshape(-1, 2, 16))

    assert select(x).shape == (2, 16, 16, 16)

    weights, scores = normal(4, 3, 3, 8, 16), normal(2, 4)
    gates = {"tap_gate": normal(2, 9), "in_gate": normal(2, 8), "out_gate": normal(2, 16)}

    @jax.jit
    def mixtures(x, scores, gates):
        cond = mixture_conv(x, weights, jax.nn.sigmoid(scores))
        gates = {name: jax.nn.sigmoid(gate) for name, gate in gates.items()}
        return cond, mixture_conv(x, weights, jax.nn.softmax(scores), **gates)

    cond, omni = mixtures(x, scores, gates)
    assert cond.shape == omni.shape == (2, 16, 16, 16)
    same = F.dynamic_conv(x, weights, mixture=jax.nn.sigmoid(scores))
    assert jnp.allclose(cond, same, atol=1e-3)
