"""Every advice for PyTorch is followed: `torch.export` takes the program that it makes."""

import copy
import importlib.util

import pytest

import voxax as vx
from check.advice_examples import followed, given_by
from voxax.check import classify
from voxax.check.advice import ADVICE

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of PyTorch itself, when it is imported and when it exports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

NAMES = sorted(key for key in ADVICE if key.startswith("torch "))
# It needs an operator of torchvision.
OF_OTHERS = "torch VX106 nms"


@pytest.mark.parametrize("key", [key for key in NAMES if key != OF_OTHERS])
def test_torch_advice_compiles(key):
    # PyTorch is imported only where its tests run.
    import torch

    from check.torch_examples import EXAMPLES

    examples = [e for e in EXAMPLES if e.key == key]
    assert examples, f"no example follows {key}"
    for example in examples:
        bad = vars(example)["bad"]
        report = vx.check_static(bad, *example.inputs, **example.options)
        assert given_by(report, key), f"{example.__name__}: {report}"
        codes = {f.code for f in given_by(report, key)}
        ways = followed(example)
        assert ways, example.__name__
        for name, function in ways.items():
            given = example.given.get(name, example.inputs)
            again = vx.check_static(function, *given)
            assert not codes & {f.code for f in again.findings}, f"{name}: {again}"
            assert again.verdict in ("static", "static per value"), f"{name}: {again}"
            assert not again.fails("error"), f"{name}: {again}"
            if name not in example.differs and key not in ("torch VX191",):
                made = copy.deepcopy(function)(*given)
                torch.testing.assert_close(
                    made,
                    copy.deepcopy(bad)(*example.inputs),
                    check_dtype=False,
                    rtol=1e-3,
                    atol=1e-3,
                )


def test_advice_about_nms_compiles():
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    import torch
    import torchvision

    def bad(boxes, scores):
        return scores[torchvision.ops.nms(boxes, scores, 0.5)].sum()

    def mask(boxes, scores):
        overlaps = torchvision.ops.box_iou(boxes, boxes)
        better = (scores[None] > scores[:, None]) & (overlaps > 0.5)
        return torch.where(better.any(1), 0, scores).sum()  # of two boxes, which is all of it

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2.1]])
    scores = torch.tensor([0.5, 0.9])
    assert given_by(vx.check_static(bad, boxes, scores), OF_OTHERS)
    assert vx.check_static(mask, boxes, scores).verdict == "static"
    torch.testing.assert_close(mask(boxes, scores), bad(boxes, scores))


def test_every_special_advice_about_sizes_is_followed():
    from check.torch_examples import EXAMPLES

    followed_keys = {e.key for e in EXAMPLES} | {OF_OTHERS}
    assert set(classify._TORCH_SIZES.values()) <= followed_keys
    assert set(NAMES) == followed_keys
