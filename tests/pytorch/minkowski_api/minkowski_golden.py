"""What MinkowskiEngine gave for each case, read from ``golden`` (``record.py`` tells the format).

Two builds are called 0.5.4: the package index's and the repository's last commit. Where they
differ, ``load`` returns the repository's results, unless the release's are asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
Arrays = Mapping[str, np.ndarray]

KILLED = "the process was killed"
# Results of MinkowskiEngine's CPU build that contradict its documentation, or depend on luck.
# Patterns of ``MODULE/CASE``, each with what is wrong.
DEFECTS = {
    "convolution/onto_rows*": "coordinates given as a tensor get the tensor stride 0",
    "convolution/conv1_k1_s2": "in one dimension a kernel of 1 ignores its stride",
    "pooling/global[SA]*_many_scenes": "row i holds another scene than its coordinate tells",
    "pooling/mode_GLOBAL_[SA]*_INDEX_many_scenes": "as above",
    "layers/MinkowskiBroadcast[AM]*_many_scenes": "the pooled rows before it are those above",
    "pooling/global[SA]*_empty_scene": "an index error: a scene has no rows",
    "pooling/mode_GLOBAL_[SA]*_INDEX_empty_scene": "as above",
    "layers/MinkowskiBroadcast*_empty_scene": "as above",
    "pooling/global*_one_voxel_each": "refused: as many scenes as rows",
    "layers/after_nothing_*": "refused or killed: no rows",
    "layers/MinkowskiStableInstanceNorm*": "reads an attribute of an older release",
    "layers/SE*Block_s*": "the blocks pass an argument that their base lacks",
    "convolution/channelwise*_cross": "a list modulo a number",
    "convolution/custom*": "regions of given offsets are not implemented",
    "tensors/cat_slice": "calls a tensor",
    "tensors/arithmetic_power": "`__power__` is no method of Python",
    "tensors/torch_sparse_bounds": "calls a method that the manager lacks",
    "fields/arithmetic_a[dr]*": "reads an attribute that a field lacks",
    "fields/global[SA]*": "as above",
    "fields/at_key_RANDOM_SUBSAMPLE": "indexes by int32",
}


def defect(module: str, case: str) -> str | None:
    """Return what is wrong with a result, or None."""
    if str(result(module, case).get("error")) == KILLED:
        return "the process was killed, as by maxima of an empty window"
    name = f"{module}/{case}"
    return next((why for pattern, why in DEFECTS.items() if fnmatch(name, pattern)), None)


@functools.cache
def load(module: str, *, release: bool = False) -> Mapping[str, Mapping[str, Arrays]]:
    """Return the arrays of a module's cases: by case, by dtype, by name."""
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    names = [module] if release else [module, f"{module}.repository"]
    for name in names:
        path = GOLDEN / f"{name}.npz"
        if name != module and not path.exists():
            continue
        own: dict[str, dict[str, dict[str, np.ndarray]]] = {}
        with np.load(path) as arrays:
            for key in arrays.files:
                if key != "about":
                    case, dtype, array = key.split("/", 2)
                    own.setdefault(case, {}).setdefault(dtype, {})[array] = arrays[key]
        found.update(own)
    return found


def result(module: str, case: str, dtype: str = "float64", *, release: bool = False) -> Arrays:
    """Return one case's arrays; in float32, the float64 ones stand for those near to them.

    A case that MinkowskiEngine refused has the one array ``error``.
    """
    dtypes = load(module, release=release)[case]
    full = dtypes.get("float64", {})
    if dtype == "float64":
        return full
    own = dtypes.get(dtype, {})
    if "error" in own or "error" in full:
        return own or full
    return {**full, **own}
