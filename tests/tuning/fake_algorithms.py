"""Problems, algorithms that are broken on purpose, and times made up by a test."""

import contextlib
import dataclasses

import jax.numpy as jnp
from cache_entries import entry, measured

import problems
from voxax.geometry import KernelSpec
from voxax.hardware import hardware_of
from voxax.kernels import Kernel, lookup, names, registry
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.kernel import EVERY_PRODUCT
from voxax.kernels.rows import table_read
from voxax.tuning import measure, tuner
from voxax.tuning import sample as tuning_sample
from voxax.tuning.cache import cache_for, device_name
from voxax.tuning.entry import Measured, key_of
from voxax.tuning.space import space_of


def make_problem(product="forward", kind="dense", rows=48, **changes):
    """3x3x3 taps over 48 rows, 3 channels to 4."""
    fields = {
        "product": product,
        "kind": kind,
        "in_capacity": rows,
        "out_capacity": rows,
        "num_offsets": 27,
        "in_channels": 4,
        "out_channels": 4,
        "groups": 2 if kind == "grouped" else 1,
        "dtype": "float32",
        "precision": "highest",
        "symmetric": True,
        "platform": "cpu",
        "spec": KernelSpec.make(3, 3),
        "level": (1, 1, 1),
    }
    return problems.make_problem(**{**fields, **changes})


PROBLEM = make_problem()


def start_anew(monkeypatch, folder):
    """Tuning is on, nothing is known, and no time was spent."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(folder))
    monkeypatch.setattr(measure, "_spent", 0.0)
    monkeypatch.setattr(tuner, "_objections", {})


def cache():
    """Return the cache of this device in the current folder."""
    return cache_for(device_name(hardware_of("cpu")[0]))


def candidates(problem=PROBLEM, admitted=None):
    return space_of(
        problem, admitted or names(problem.layer.kind), hardware_of(problem.platform)[0]
    ).candidates


def remember(problem=PROBLEM, source="measured", more=(), **seconds):
    """An entry in which an algorithm's candidates take ``seconds``; others are not in it."""
    known = [
        measured(name, s, "ok", lookup(name, problem.layer.kind)[0].revision, **dict(c.parameters))
        for name, s in seconds.items()
        for c in candidates(problem, (name,))
    ]
    made = dataclasses.replace(entry(*known, *more), source=source)
    if source != "shipped":
        cache().put(key_of(problem), made)
    return made


def right(y):
    return y


def raising(y):
    raise ValueError("not on this machine")


def zeros(y):
    return jnp.zeros_like(y)


def nans(y):
    return y.at[0, 0].set(jnp.nan)


def wrong(y):
    return y.at[-1, -1].add(jnp.asarray(1, y.dtype))


def fake(name, change=right, spaces=((),), revision=1):
    """im2col under another name, whose result ``change`` spoils."""

    def apply(problem, parameters, a, b, views):
        return change(xla.apply(problem, xla.IM2COL, a, b, views))

    return Kernel(
        name=name,
        kind="dense",
        products=EVERY_PRODUCT,
        platform="any",
        supports=lambda problem, hardware: None,
        space=lambda problem, hardware: tuple(spaces),
        heuristic=lambda problem, hardware: spaces[0],
        reads=table_read,
        apply=apply,
        revision=revision,
    )


@contextlib.contextmanager
def registered(*kernels):
    """Inside, these come before all others, for depthwise weights too."""
    before = registry.kernels
    both = (*kernels, *(dataclasses.replace(kernel, kind="depthwise") for kernel in kernels))
    registry.kernels = lambda: (*both, *before())
    try:
        yield
    finally:
        registry.kernels = before


class Timer:
    """Stands in for measuring: a candidate takes what ``seconds`` says of its algorithm.

    Attributes:
      seconds: by algorithm; a text is a reason for rejecting it. Others take a millisecond.
      asked: the candidates of each call.
    """

    def __init__(self, monkeypatch, **seconds):
        self.seconds = seconds
        self.asked = []
        nothing = tuning_sample.Sample(jnp.zeros(()), jnp.zeros(()), {}, "nothing")
        monkeypatch.setattr(tuner, "measure", self)
        monkeypatch.setattr(tuner, "check", lambda *_: None)
        monkeypatch.setattr(measure, "sample_of", lambda *_: nothing)

    def __call__(self, problem, candidates, reference, sample, budget):
        self.asked.append([c.identity for c in candidates])
        return tuple(self.figure(c.identity) for c in candidates)

    def figure(self, identity):
        found = self.seconds.get(identity[0], 1e-3)
        if isinstance(found, str):
            return Measured(*identity, None, "rejected", found)
        return Measured(*identity, found, "ok")
