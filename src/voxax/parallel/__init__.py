"""Training over several devices and hosts, on JAX's own distribution.

Scenes are packed into shards by their number of voxels, or one scene is split into shards. Each
device along a mesh axis works on one shard. Statistics, loss and gradients are those of all scenes.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
