"""Run a script in which ``import spconv`` is voxax: ``python -m voxax.torch.spconv SCRIPT ARGS``.

``-m MODULE ARGS`` runs a module. Processes that the script spawns with ``multiprocessing`` import
voxax as spconv too.
"""

from voxax.torch.core.script import run_script
from voxax.torch.spconv.aliases import install

if __name__ == "__main__":
    run_script("voxax.torch.spconv", install, __doc__)
