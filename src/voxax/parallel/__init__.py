"""Data-parallel training over several devices and hosts, with ``jax.shard_map`` on a mesh.

Scenes are packed into shards by their number of voxels, or one scene is split into shards. Each
device along a mesh axis works on one shard. Loss and gradients are computed over all shards.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
