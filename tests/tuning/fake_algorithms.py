"""Problems, algorithms that are broken on purpose, and times made up by a test."""

import contextlib
import dataclasses

import jax.numpy as jnp
from cache_entries import entry, measured

from voxax.algorithms import Algorithm, Problem, lookup, names, registry
from voxax.algorithms.explicit_gemm import formulations
from voxax.algorithms.rows import EVERY_PRODUCT
from voxax.geometry import KernelSpec
from voxax.tuning import hardware_of, measure, tuner
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
    return Problem(**{**fields, **changes})


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
        problem, admitted or names(problem.kind), hardware_of(problem.platform)[0]
    ).candidates


def remember(problem=PROBLEM, source="measured", more=(), **seconds):
    """An entry in which an algorithm's candidates take ``seconds``; others are not in it."""
    known = [
        measured(name, s, "ok", lookup(name, problem.kind).revision, **dict(c.parameters))
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
        return change(formulations.apply(problem, formulations.IM2COL, a, b, views))

    return Algorithm(
        name=name,
        kinds=frozenset({"dense", "grouped", "depthwise"}),
        products=EVERY_PRODUCT,
        platforms=frozenset({"any"}),
        revision=revision,
        supports=lambda problem, hardware: None,
        space=lambda problem, hardware: tuple(spaces),
        heuristic=lambda problem, hardware: spaces[0],
        views=lambda parameters, *rest: formulations.views(formulations.IM2COL, *rest),
        forms=(tuple(spaces[0]),),
        apply=apply,
    )


@contextlib.contextmanager
def registered(*algorithms):
    """Inside, these come before all others."""
    before = registry.ALGORITHMS
    registry.ALGORITHMS = (*algorithms, *before)
    try:
        yield
    finally:
        registry.ALGORITHMS = before


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
        monkeypatch.setattr(tuner, "_sample", lambda *_: nothing)

    def __call__(self, problem, candidates, reference, sample, budget):
        self.asked.append([c.identity for c in candidates])
        return tuple(self.figure(c.identity) for c in candidates)

    def figure(self, identity):
        found = self.seconds.get(identity[0], 1e-3)
        if isinstance(found, str):
            return Measured(*identity, None, "rejected", found)
        return Measured(*identity, found, "ok")
