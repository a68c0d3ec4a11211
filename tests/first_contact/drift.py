"""The network that ``test_drift.py`` exports; ``voxax export`` takes it from this file too."""

from flax import nnx

from voxax.nn.modules import Linear, ReLU, Sequential, SparseConv3d, SubMConv3d


def network():
    """Return the network with random weights."""
    rngs = nnx.Rngs(0)
    return Sequential(
        SubMConv3d(4, 64, 3, rngs=rngs),
        ReLU(),
        SparseConv3d(64, 64, 2, 2, rngs=rngs),
        Linear(64, 3, rngs=rngs),
    )
