"""Run a script in which ``import MinkowskiEngine`` is voxax: ``python -m voxax.torch.minkowski``.

The arguments are ``SCRIPT ARGS``, or ``-m MODULE ARGS`` to run a module. Processes that the script
spawns with ``multiprocessing`` import voxax as MinkowskiEngine too.
"""

from voxax.torch.core.script import run_script
from voxax.torch.minkowski.aliases import install

if __name__ == "__main__":
    run_script("voxax.torch.minkowski", install, __doc__)
