"""A random number of Python is frozen into the program."""

import random

import torch

VERDICT = "static"


def model(x):
    return x * random.random()  # expect: VX205


def inputs():
    return (torch.arange(12.0).reshape(3, 4) - 5,)
