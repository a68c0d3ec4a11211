"""Run a script in which ``import torchsparse`` is voxax: ``python -m voxax.torch.torchsparse``.

The arguments are ``SCRIPT ARGS``, or ``-m MODULE ARGS`` to run a module. Processes that the script
spawns with ``multiprocessing`` import voxax as torchsparse too.
"""

from voxax.torch.core.script import run_script
from voxax.torch.torchsparse.aliases import install

if __name__ == "__main__":
    run_script("voxax.torch.torchsparse", install, __doc__)
