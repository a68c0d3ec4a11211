"""Training over several devices and hosts, on JAX's own distribution.

Scenes are packed into shards by their number of voxels, or one scene is split into shards; each
device of a mesh's axis works on one shard with a capacity of its own, and statistics, loss and
gradients are those of all scenes.
"""

from voxax.parallel.packing import Packing as Packing
from voxax.parallel.packing import pack_scenes as pack_scenes
from voxax.parallel.packing import shard_scenes as shard_scenes
from voxax.parallel.scene_split import MapRows as MapRows
from voxax.parallel.scene_split import SceneSplit as SceneSplit
from voxax.parallel.scene_split import SplitRows as SplitRows
from voxax.parallel.scene_split import join_shards as join_shards
from voxax.parallel.trainer import DataParallelTrainer as DataParallelTrainer
from voxax.parallel.trainer import on_mesh as on_mesh
from voxax.parallel.trainer import places_of as places_of
from voxax.parallel.trainer import synchronize as synchronize
