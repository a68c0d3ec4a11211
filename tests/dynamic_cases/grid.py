"""``dynamic_conv``: every strategy, and everything that a position may choose."""

import functools

import jax.numpy as jnp
import numpy as np

from oracle.dynamic import dynamic_conv as oracle
from voxax.nn.functional import dynamic_conv

SPATIAL, SHAPE, STRIDE = (6, 5), (3, 3), (2, 1)
OUTPUTS, TAPS = (2, 3, 5), 9

# What a position chooses, drawn; floats have gradients.
CHOICES = {
    "size": lambda r: {"size": r.integers(0, 5, OUTPUTS).astype(np.int32)},
    "soft": lambda r: {"size": r.uniform(0.3, 3.8, OUTPUTS)},
    "scenes": lambda r: {"size": r.integers(0, 5, OUTPUTS[:1]).astype(np.int32)},
    "bank": lambda r: {"size": r.choice([1, 3], OUTPUTS).astype(np.int32)},
    "offsets": lambda r: {"offsets": r.uniform(-2.4, 2.4, (*OUTPUTS, TAPS, 2))},
    "mask": lambda r: {"mask": r.standard_normal((*OUTPUTS, TAPS))},
    "dilation": lambda r: {"dilation": r.uniform(0.6, 2.7, OUTPUTS)},
    "fetched": lambda r: {
        "dilation": r.integers(0, 4, OUTPUTS).astype(np.int32),
        "offsets": r.integers(-2, 3, (*OUTPUTS, TAPS, 2)).astype(np.int32),
    },
    "mixture": lambda r: {"mixture": r.standard_normal((*OUTPUTS, 2))},
    "scene_mixture": lambda r: {"mixture": r.standard_normal((OUTPUTS[0], 2))},
    "everything": lambda r: {
        "size": r.uniform(0.3, 3.8, OUTPUTS),
        "offsets": r.uniform(-1.3, 1.3, (*OUTPUTS, TAPS, 2)),
        "mask": r.standard_normal((*OUTPUTS, TAPS)),
        "dilation": r.uniform(0.6, 2.7, (*OUTPUTS, 2)),
        "mixture": r.standard_normal((*OUTPUTS, 2)),
    },
}


def case(r, choice, fixed=None, **options):
    """``fixed``: sizes that the program knows, where the strategy wants that."""
    chosen = {} if choice is None else CHOICES[choice](r)
    bank = (2,) if "mixture" in chosen else ()
    v = {
        "x": r.standard_normal((2, *SPATIAL, 3)),
        "w": r.standard_normal((*bank, *SHAPE, 3, 2)),
        "bias": r.standard_normal(2),
        **chosen,
    }
    known = {} if fixed is None else {"size": fixed}

    def run(v):
        given = {name: jnp.asarray(v[name]) for name in chosen}
        return dynamic_conv(
            v["x"], v["w"], stride=STRIDE, bias=v["bias"], **known, **given, **options
        )

    def want(v):
        given = {name: np.asarray(v[name]) for name in chosen} | known
        if "size" in given:
            size = given["size"].reshape(*given["size"].shape, *(1,) * (3 - given["size"].ndim))
            given["size"] = np.broadcast_to(size, OUTPUTS)
        if "dilation" in given and given["dilation"].ndim == 3:
            given["dilation"] = given["dilation"][..., None]
        tau = {"tau": options["tau"]} if "tau" in options else {}
        return oracle(v["x"], v["w"], stride=STRIDE, **given, **tau) + v["bias"]

    return v, run, want


_KNOWN = np.random.default_rng(9).integers(0, 5, OUTPUTS).astype(np.int32)

CASES = {
    **{
        f"dynamic_{algorithm}": functools.partial(case, choice="size", algorithm=algorithm)
        for algorithm in ("masked", "grouped", "tiled")
    },
    "dynamic_selected": functools.partial(case, choice="scenes", algorithm="selected"),
    "dynamic_specialized": functools.partial(
        case, choice=None, fixed=_KNOWN, algorithm="specialized"
    ),
    "dynamic_bank": functools.partial(case, choice="bank", algorithm="bank", bank=2),
    **{
        f"dynamic_{algorithm}_soft": functools.partial(case, choice="soft", algorithm=algorithm)
        for algorithm in ("masked", "grouped", "tiled", "selected")
    },
    "dynamic_wide_ramp": functools.partial(case, choice="soft", tau=2.5),
    **{
        f"dynamic_{choice}": functools.partial(case, choice=choice)
        for choice in ("offsets", "mask", "dilation", "fetched", "mixture", "scene_mixture")
    },
    "dynamic_everything": functools.partial(case, choice="everything", tau=1.5),
}
