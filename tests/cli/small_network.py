"""A network that compiles in seconds, in place of MinkUNet, for tests of the loop around it."""

from flax import nnx

from voxax.geometry import cat
from voxax.nn.modules import BatchNorm, Linear, SparseConv3d, SpatiallySparseConv, SubMConv3d


class Small(nnx.Module):
    """One level down and up again."""

    def __init__(self, channels, classes):
        rngs = nnx.Rngs(0)
        self.stem = SubMConv3d(channels, 8, 3, rngs=rngs)
        self.norm = BatchNorm(8)
        self.down = SparseConv3d(8, 8, 2, 2, rngs=rngs)
        self.up = SpatiallySparseConv(8, 8, 2, 2, transposed=True, rngs=rngs)
        self.head = Linear(16, classes, rngs=rngs)

    def __call__(self, voxels):
        fine = self.norm(self.stem(voxels)).map(nnx.relu)
        return self.head(cat([self.up(self.down(fine), fine), fine]))


def small(task):
    """In place of ``Segmentation.model``."""
    return Small(task.preparation().num_channels, len(task.class_names))


def run(*commands):
    """Each command line, one after the other, with the small network; for another process."""
    from voxax.cli import main
    from voxax.cli.demo import _Run
    from voxax.cli.segmentation_task import Segmentation

    Segmentation.model = small
    _Run._pictures = lambda self: None
    for arguments in commands:
        assert main(arguments) == 0, arguments
