"""Lengths that PyTorch reads to pack sequences."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence

VERDICT = "not static"


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(2, 3, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)  # expect: VX109
        return self.rnn(packed)[1][0]


torch.manual_seed(0)
model = Model()


def inputs():
    return torch.arange(12.0).reshape(2, 3, 2), torch.tensor([3, 2])
