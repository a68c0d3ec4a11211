"""Check the printed reports of `vx.tune` and `vx.explain`."""

import dataclasses

import pytest

import problems
from voxax.explanation.lower_bound import LowerBound
from voxax.explanation.report import Explained, Report
from voxax.kernels.explicit_gemm.xla import EXPLICIT_GEMM
from voxax.tuning.decide import Choice
from voxax.tuning.entry import NO_TIME, Entry, Measured

IM2COL = (("formulation", "im2col"),)
PREDICTED = "not measured: the fastest by what was predicted for this device, or the default"
ENTRY = Entry(
    (
        Measured("implicit_gemm", (("fwd_block_size", 4096),), 1, 9e-3, "slow"),
        Measured("explicit_gemm", IM2COL, 1, 3e-3, "ok"),
        Measured("another", (), 1, None, "rejected", "differs"),
        Measured("explicit_gemm", (("block", 256),), 1, 4.5e-3, "ok"),
    ),
    "caller's map",
    "measured",
    "2026-01-01T12:00:00+00:00",
    1.25,
    "0.10.2",
)


def problem(product="forward", channels=32, kind="dense"):
    return problems.make_problem(
        product, kind, 4096, 1024, 27, 16, channels, 1, "float32", "highest", False, "cpu"
    )


def row(scope="net/conv", product="forward", source="cached", seconds=3e-3, entry=ENTRY, **more):
    refused = (("cutlass_implicit_gemm", "runs on NVIDIA GPUs only, not on cpu"),)
    return Explained(
        scope,
        Choice(problem(product, **more), EXPLICIT_GEMM, IM2COL, source, seconds, entry, refused),
    )


def unknown(**more):
    return row(source="predicted", seconds=None, entry=None, **more)


REPORT = Report((row(), row(), unknown(product="wgrad")))


def test_table():
    table, summary = str(REPORT).split("\n\n")
    lines = table.splitlines()
    assert lines[0].split()[:3] == ["layer", "product", "rows"]
    assert " ".join(lines[1].split()) == (
        "0 net forward 4096 -> 1024 27 16 -> 32 float32 explicit_gemm(formulation=im2col) "
        "- - 3 ms - cached"
    )
    assert lines[3].endswith("-      -  predicted")
    assert len(lines) == 4
    for name, cell in (("rows", "4096"), ("choice", "explicit_gemm"), ("source", "cached")):
        assert lines[0].index(name) == lines[1].index(cell)
    assert summary.splitlines() == [
        "3 products, 2 problems: 1 cached, 1 predicted",
        "  cached: the fastest measured before on this device",
        f"  predicted: {PREDICTED}",
    ]


BOUND = LowerBound(10**6, 10**5, 2e-3, "compute")


def with_bound(bound=BOUND, counted=True, **more):
    return dataclasses.replace(row(**more), pairs=100, counted=counted, lower_bound=bound)


def test_lower_bound_ratio_and_total():
    fast = with_bound(dataclasses.replace(BOUND, seconds=1e-3, bound="memory"), seconds=4e-3)
    report = Report((with_bound(), fast))
    assert [r.ratio for r in report] == pytest.approx([1.5, 4.0])
    assert report.total.products == 2
    assert (report.total.lower_bound, report.total.seconds) == pytest.approx((3e-3, 7e-3))
    assert report.total.ratio == pytest.approx(7 / 3)
    lines = str(report).splitlines()
    ends = [" ".join(line.split()).partition("im2col) ")[2] for line in lines[1:3]]
    assert ends == ["2 ms compute 3 ms 1.50 cached", "1 ms memory 4 ms 4.00 cached"]
    assert lines[3].split() == ["total", "3", "ms", "7", "ms", "2.33"]
    for name in ("lower bound", "ratio"):
        end = lines[0].index(name) + len(name)
        assert all(line[:end].rstrip() == line[:end] for line in lines[1:4])
    assert "one map of the problem's bucket" in str(report)
    assert "~" not in str(report)


def test_what_is_unknown_has_no_ratio():
    blank = LowerBound(10**6, 10**5, None, None)
    for unknown_ratio in (
        row(),
        with_bound(blank),
        with_bound(source="predicted", seconds=None),
        with_bound(source="shipped"),
    ):
        assert unknown_ratio.ratio is None
        assert Report((unknown_ratio,)).total is None
        assert "total" not in str(Report((unknown_ratio,)))
    report = Report((with_bound(), with_bound(blank)))
    assert report.total.products == 1
    assert "total of 1" in str(report)


def test_estimated_pairs_are_marked():
    text = str(Report((with_bound(counted=False),)))
    assert "~2 ms" in text
    assert "~ pairs were not counted" in text


def test_seconds_of_measuring():
    assert str(Report((row(),), 12.34)).endswith("12.3 s of measuring")
    assert "of measuring" not in str(Report((row(),)))


def test_what_time_was_too_short_for():
    cut = Measured("explicit_gemm", (("block", 512),), 1, None, "skipped", NO_TIME)
    slow = Measured("another", (("a", 1),), 1, None, "skipped", "at least 2 times the best")
    entry = dataclasses.replace(ENTRY, measured=(*ENTRY.measured, cut, slow))
    line = "time was too short for 1 candidate of 1 problem: vx.tune, or voxax tune, measures all"
    assert line in str(Report((row(entry=entry), row(entry=entry)))).splitlines()
    assert "time was too short" not in str(REPORT)


def test_details():
    details = REPORT.details()
    assert details.startswith(str(REPORT))
    known, other = details.removeprefix(str(REPORT)).strip().split("\n\n")
    key, provenance, *candidates = known.splitlines()
    assert key.startswith("forward dense float32 highest K27 C16-32")
    assert provenance == (
        "  products 0, 1; measured on caller's map in 1.2 s, 2026-01-01, jaxlib 0.10.2"
    )
    assert [line.split() for line in candidates] == [
        ["3", "ms", "1.00", "explicit_gemm(formulation=im2col)", "chosen"],
        ["4.5", "ms", "1.50", "explicit_gemm(block=256)", "ok"],
        ["9", "ms", "3.00", "implicit_gemm(fwd_block_size=4096)", "slow"],
        ["-", "-", "another", "rejected:", "differs"],
        *[line.split() for line in candidates[4:]],
    ]
    assert candidates[4].endswith("refused: runs on NVIDIA GPUs only, not on cpu")
    _, provenance, first, *_ = other.splitlines()
    assert provenance == f"  product 2; {PREDICTED}"
    assert first.split() == [
        "-",
        "-",
        "explicit_gemm(formulation=im2col)",
        "chosen,",
        "not",
        "measured",
    ]


@pytest.mark.parametrize(
    ("scopes", "shown"),
    [
        (["stem/Conv/conv", "up/Conv/conv"], ["stem", "up"]),
        (["jvp(stem)/Conv/conv", "transpose(jvp(stem))/Conv/conv"], ["stem", "stem"]),
        (["stem/a", "up/b"], ["stem/a", "up/b"]),
        (["a/f", "b"], ["a/f", "b"]),
        (["conv", "conv"], ["conv", "conv"]),
        (["vmap(jvp(a/b))/c"], ["a"]),
        (["f(x)/c", "g/d"], ["f(x)/c", "g/d"]),
        (["", "a"], ["-", "a"]),
    ],
)
def test_layers(scopes, shown):
    lines = str(Report(tuple(row(scope) for scope in scopes))).splitlines()
    assert [line.split()[1] for line in lines[1 : 1 + len(scopes)]] == shown


def test_why():
    assert row().why == ("the fastest measured before on this device, on caller's map, 2026-01-01")
    assert unknown().why == PREDICTED
    assert row(source="predicted", seconds=None).why == PREDICTED
    assert row(source="pinned", seconds=None, entry=None).why.startswith("the only candidate")


def test_problem():
    assert row().problem == "forward, 4096 -> 1024 rows, 27 taps, 16 -> 32, float32"
    assert row(kind="grouped").problem.startswith("forward grouped, ")
    assert list(REPORT) == list(REPORT.rows)
    assert len(REPORT) == 3
