"""Gradient checkpointing (rematerialization) of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax import _compat
from voxax.geometry import KernelMap, VoxelGeometry
from voxax.nn.modules.constructor import CheckedModule


class Remat(CheckedModule):
    """A block whose intermediate results are not stored, but computed again in the backward pass.

    Values, gradients and state (running averages, random streams) are the same as without the
    wrapper. Only the features and parameters that enter the block are kept for the backward pass.
    Coordinates and kernel maps are not computed again: existing maps are used, and a map that the
    block requests is built once, kept, and available to later layers.

    Args:
      block: the module to wrap, called with the wrapper's arguments. A call may change the values
        of the module's variables, but not its structure.
      policy: a policy from ``jax.checkpoint_policies``, which selects intermediate results to keep;
        None keeps none.
      prevent_cse: as in ``jax.checkpoint``; False is enough, and faster, inside ``jax.lax.scan``.

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

    Examples:
      >>> block = modules.Remat(modules.SubMConv3d(4, 8, rngs=nnx.Rngs(0)))
      >>> block(voxels).num_channels
      8
    """

    def __init__(
        self,
        block: Callable[..., Any],
        *,
        policy: Callable[..., bool] | None = None,
        prevent_cse: bool = True,
    ) -> None:
        self.block = block
        self.policy, self.prevent_cse = policy, prevent_cse

    def __call__(self, *args: Any, **options: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, options), is_leaf=_is_geometry)
        # Voxels made in worker processes have NumPy leaves.
        leaves = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in leaves]
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        graph, state = nnx.split(self.block)
        result, paths = _Result(), []

        def run(state: Any, arrays: list[jax.Array]) -> tuple[list[jax.Array], list[Any]]:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            inner_args, inner_options = jax.tree.unflatten(structure, filled)
            block = nnx.merge(graph, state, copy=True)
            out = result.split(block(*inner_args, **inner_options), arrays[0])
            changed = _changed(state, nnx.state(block))
            paths[:] = changed
            return out, list(changed.values())

        remat = jax.checkpoint(run, policy=self.policy, prevent_cse=self.prevent_cse)
        arrays, changed = remat(state, [leaves[place] for place in places])
        # Set only changed variables: a module that is only read may belong to an outer trace.
        if changed:
            nnx.update(self.block, nnx.from_flat_state(zip(paths, changed, strict=True)))
        return result.join(arrays)


def _changed(before: nnx.State, after: nnx.State) -> dict[Any, Any]:
    """Return a dict, by path, of the variables that a call replaced.

    These are the variables of ``after`` that hold other array objects than those of ``before``.
    """
    known = dict(nnx.to_flat_state(before))

    def same(path: Any, variable: Any) -> bool:
        old, new = jax.tree.leaves(known[path]), jax.tree.leaves(variable)
        return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))

    return {path: v for path, v in nnx.to_flat_state(after) if not same(path, v)}


@dataclasses.dataclass
class _Result:
    """The output of a block, split into arrays that ``jax.checkpoint`` returns and other values.

    ``jax.checkpoint`` would return a copy of a geometry. The copy would not count as the same
    coordinates, and would lack the kernel maps. ``structure`` and ``leaves`` are the tree of the
    output. ``places`` are the indices in ``leaves`` of the arrays that the checkpoint returns.
    """

    structure: Any = None
    leaves: list[Any] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)

    def split(self, out: Any, mark: jax.Array) -> list[jax.Array]:
        """Store ``out`` without the arrays that belong to the trace of ``mark``; return those."""

        def inside(leaf: Any) -> bool:
            return isinstance(leaf, jax.Array) and _compat.may_live_with(leaf, mark)

        def whole(node: Any) -> bool:
            return _is_geometry(node) and not any(map(inside, jax.tree.leaves(node)))

        self.leaves, self.structure = jax.tree.flatten(out, is_leaf=whole)
        self.places = [i for i, leaf in enumerate(self.leaves) if inside(leaf)]
        arrays = [self.leaves[place] for place in self.places]
        for place in self.places:
            self.leaves[place] = None
        return arrays

    def join(self, arrays: list[jax.Array]) -> Any:
        """Return the block's output, with ``arrays`` in place of those that ``split`` returned."""
        for place, array in zip(self.places, arrays, strict=True):
            self.leaves[place] = array
        return jax.tree.unflatten(self.structure, self.leaves)


def _is_geometry(node: Any) -> bool:
    return isinstance(node, VoxelGeometry | KernelMap)
