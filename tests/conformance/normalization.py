"""Normalization, dropout and functions of each voxel's features."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from conformance.definition import Operator
from oracle import normalization as loops
from voxax.nn import functional as F
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import GELU, Dropout, Linear

EPSILON = 1e-3
GROUPS = 2


def batch_norm(voxels, scale=None, bias=None):
    mean, variance, _ = F.masked_moments(voxels.features, voxels.valid)
    return F.normalize(voxels, mean, variance, scale, bias, EPSILON)


def group_norm(voxels, scale=None, bias=None):
    return F.group_norm(voxels, GROUPS, scale, bias, EPSILON)


def layer_norm(voxels, scale=None, bias=None):
    return F.layer_norm(voxels, scale, bias, EPSILON)


def rms_norm(voxels, scale=None):
    return F.rms_norm(voxels, scale, EPSILON)


def instance_norm(voxels, scale=None, bias=None):
    return F.instance_norm(voxels, scale, bias, EPSILON)


def scale_params(rng, ndim, channels):
    del ndim
    return {"scale": rng.uniform(0.5, 2, channels)}


def affine_params(rng, ndim, channels):
    return {**scale_params(rng, ndim, channels), "bias": rng.normal(size=channels)}


def norm(name, function, loop, params=affine_params):
    """Return variants with and without affine parameters."""

    def run(voxels, params):
        return function(voxels, **params)

    def reference(sites, params, batch_size):
        del batch_size
        return loops.affine(loop(sites), **params)

    return (Operator(name, run, reference, params), Operator(f"{name}_plain", run, reference))


def unchanged(sites, params, batch_size):
    del params, batch_size
    return sites


def run_dropout_zero(voxels, params):
    del params
    return F.dropout(voxels, 0.0, jax.random.key(0))


def run_dropout_evaluation(voxels, params):
    del params
    return Dropout(0.7, deterministic=True)(voxels)


def run_batch_norm_evaluation(voxels, params):
    """The module, with running averages."""
    module = BatchNorm(
        voxels.num_channels,
        epsilon=EPSILON,
        param_dtype=params["scale"].dtype,
        use_running_average=True,
    )
    for name, value in params.items():
        variable = getattr(module, name)
        assert isinstance(variable, nnx.Variable)
        variable[...] = value.astype(variable.dtype)  # running averages are float32 at least
    return module(voxels)


def average_params(rng, ndim, channels):
    average = {"mean": rng.normal(size=channels), "var": rng.uniform(0.5, 2, channels)}
    return {**affine_params(rng, ndim, channels), **average}


def batch_norm_evaluation(sites, params, batch_size):
    del batch_size
    factor = params["scale"] / np.sqrt(params["var"] + EPSILON)
    return loops.affine(sites, factor, params["bias"] - params["mean"] * factor)


def training_module(voxels, params):
    module = BatchNorm(voxels.num_channels, epsilon=EPSILON, param_dtype=params["scale"].dtype)
    module.scale.set_value(params["scale"])
    module.bias.set_value(params["bias"])
    return module


def run_batch_norm_training(voxels, params):
    """The module, with the statistics of these voxels."""
    return training_module(voxels, params)(voxels)


def run_batch_norm_relu(voxels, params):
    """The module with a residual and ReLU, as networks call it."""
    residual = voxels.features * jnp.asarray(0.5, voxels.features.dtype)
    return training_module(voxels, params)(voxels, residual=residual, relu=True)


def batch_norm_relu(sites, params, batch_size):
    del batch_size
    normed = loops.affine(loops.batch_norm(sites, EPSILON), **params)
    return {site: np.maximum(normed[site] + sites[site] / 2, 0) for site in sites}


def run_elementwise(voxels, params):
    return voxels.map(lambda x: jnp.sin(x) * params["scale"].astype(x.dtype)[None, :] + 1)


def elementwise(sites, params, batch_size):
    del batch_size
    return {site: np.sin(value) * params["scale"] + 1 for site, value in sites.items()}


def run_gelu(voxels, params):
    del params
    return GELU()(voxels)


def gelu(sites, params, batch_size):
    del params, batch_size
    inner = {site: 0.7978845608028654 * (x + 0.044715 * x**3) for site, x in sites.items()}
    return {site: x * (1 + np.tanh(inner[site])) / 2 for site, x in sites.items()}


def linear_params(rng, ndim, channels):
    del ndim
    return {"kernel": rng.normal(size=(channels, 5)), "bias": rng.normal(size=5)}


def run_linear(voxels, params):
    module = Linear(voxels.num_channels, 5, param_dtype=params["kernel"].dtype)
    module.linear.kernel.set_value(params["kernel"])
    module.linear.bias.set_value(params["bias"])
    return module(voxels)


def linear(sites, params, batch_size):
    del batch_size
    return {site: value @ params["kernel"] + params["bias"] for site, value in sites.items()}


OPERATORS = (
    *norm("batch_norm", batch_norm, lambda s: loops.batch_norm(s, EPSILON)),
    *norm("layer_norm", layer_norm, lambda s: loops.layer_norm(s, EPSILON)),
    *norm("rms_norm", rms_norm, lambda s: loops.rms_norm(s, EPSILON), scale_params),
    *norm("instance_norm", instance_norm, lambda s: loops.instance_norm(s, EPSILON)),
    *norm("group_norm", group_norm, lambda s: loops.group_norm(s, GROUPS, EPSILON)),
    Operator(
        "batch_norm_evaluation", run_batch_norm_evaluation, batch_norm_evaluation, average_params
    ),
    Operator(
        "batch_norm_training",
        run_batch_norm_training,
        lambda s, params, batch_size: loops.affine(loops.batch_norm(s, EPSILON), **params),
        affine_params,
    ),
    Operator("batch_norm_relu", run_batch_norm_relu, batch_norm_relu, affine_params),
    Operator("dropout_rate_zero", run_dropout_zero, unchanged),
    Operator("dropout_evaluation", run_dropout_evaluation, unchanged),
    Operator("gelu", run_gelu, gelu),
    Operator("linear", run_linear, linear, linear_params),
    Operator("elementwise", run_elementwise, elementwise, scale_params),
)
