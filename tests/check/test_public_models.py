"""Verdicts on public models are those of `torch.export` and `jax.jit`.

Run with `pytest -m "slow and torch"`. Models whose library is missing are skipped.
`benchmarks/check_public_models.py` has the oracle.
"""

import importlib.metadata
import importlib.util
import warnings
from pathlib import Path

import pytest

import voxax as vx

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "public_models.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of the libraries, when they are imported and when they make their models.
    pytest.mark.filterwarnings("ignore"),
]


def models():
    spec = importlib.util.spec_from_file_location("public_models", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS


MODELS = models()


@pytest.mark.parametrize("name", MODELS)
def test_verdict(name):
    import torch

    library, verdict, build = MODELS[name]
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module, inputs = build()
        except ImportError as error:
            pytest.skip(f"{library} cannot be imported: {error}")
        report = vx.check_static(module, *inputs, seconds=300)  # also on a busy machine
    assert report.verdict == verdict, str(report)
    if verdict in ("static", "static per value"):
        assert not report.fails("error"), str(report)


def test_enough_models():
    assert len(MODELS) >= 20
    assert len({library for library, _, _ in MODELS.values()}) >= 8
