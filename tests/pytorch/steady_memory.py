"""The memory of training on clouds of many sizes, in a process of its own."""

import subprocess
import sys

_STEPS = """
import gc, os
import torch
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(0)
{network}
optimizer = torch.optim.AdamW(net.parameters())
sizes = [1000 + 150 * number for number in range(40)]

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        # Without files, of which the system drops pages when other programs need memory.
        pages, of_files = map(int, file.read().split()[1:3])
    return (pages - of_files) * os.sysconf("SC_PAGE_SIZE")

early = late = 0
for step in range(500):
    size = sizes[step * 17 % 40]
    cells = torch.randperm(64**3)[:size]
    rows = torch.stack([0 * cells, cells // 4096, cells // 64 % 64, cells % 64], 1).int()
    loss = run(rows, torch.randn(size, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # Largest of 40 steps, which have all sizes.
    if 50 <= step < 90:
        early = max(early, resident())
    if step >= 460:
        late = max(late, resident())
print(late / early)
"""


def growth(network: str) -> float:
    """Return the resident memory of the last of 500 steps with 40 sizes, by that of early ones.

    Args:
      network: code that sets ``net``, and ``run``, which takes ``int32[N, 4]`` and ``[N, 4]``.
    """
    script = _STEPS.format(network=network)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return float(ran.stdout)
