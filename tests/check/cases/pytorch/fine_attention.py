"""Attention with a causal mask."""

import torch

VERDICT = "static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        length = x.shape[1]
        mask = torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1)
        y, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.norm(x + y)


torch.manual_seed(0)
model = Model()


def inputs():
    return (torch.randn(2, 5, 8),)
