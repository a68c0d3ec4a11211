"""Run a script for TorchSparse 1.4: ``python -m voxax.torch.torchsparse.version_1_4``.

The arguments are ``SCRIPT ARGS``, or ``-m MODULE ARGS`` to run a module.
"""

from voxax.torch.core.script import run_script
from voxax.torch.torchsparse.aliases import install_1_4

if __name__ == "__main__":
    run_script("voxax.torch.torchsparse.version_1_4", install_1_4, __doc__)
