"""Check errors of requests: each states the place, the fault and the known names."""

import enum

import pytest

import voxax as vx
from voxax.tuning.request import frozen, parse

KNOWN = "known: explicit_gemm, implicit_gemm, cutlass_implicit_gemm, auto, all"


class Numbers(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("typo", f"unknown algorithm 'typo'; {KNOWN}"),
        ("Typo", f"unknown algorithm 'Typo'; {KNOWN}"),
        (["implicit_gemm", "typo"], f"unknown algorithm 'typo'; {KNOWN}"),
        ("[implicit_gemm,typo]", f"unknown algorithm 'typo'; {KNOWN}"),
        (["auto", "typo"], f"unknown algorithm 'typo'; {KNOWN}"),
        ("implicit-gemm", f"unknown algorithm 'implicit-gemm'; {KNOWN}"),
        ("", f"unknown algorithm ''; {KNOWN}"),
        ("[a,,b]", f"unknown algorithm 'a'; {KNOWN}"),
        ("[implicit_gemm,]", f"unknown algorithm ''; {KNOWN}"),
        ("none", f"unknown algorithm 'none'; {KNOWN}"),
        ([], f"an empty list admits no algorithm; {KNOWN}"),
        ((), f"an empty list admits no algorithm; {KNOWN}"),
        ("[]", f"an empty list admits no algorithm; {KNOWN}"),
        (" [ ] ", f"an empty list admits no algorithm; {KNOWN}"),
        ("[implicit_gemm", "unbalanced brackets in '[implicit_gemm': write [a,b]"),
        ("implicit_gemm]", "unbalanced brackets"),
        ("a,b", "'a,b' names several algorithms: put them in brackets, [a,b]"),
        ([["implicit_gemm"]], "the list ['implicit_gemm'] inside a list"),
        (["[implicit_gemm]"], f"unknown algorithm '[implicit_gemm]'; {KNOWN}"),
        (["implicit_gemm", None], "None of type NoneType names no algorithm"),
        (3, f"3 of type int names no algorithm: give a name, an enum member or a flat list of "
         f"them; {KNOWN}"),
        (True, "True of type bool"),
        ({"implicit_gemm"}, "of type set"),
        ({"implicit_gemm": 1}, "of type dict"),
        (Numbers.ONE, "of type Numbers"),
        (Numbers, "of type EnumType"),
        (b"implicit_gemm", "of type bytes"),
    ],
)  # fmt: skip
def test_refused(request_, message):
    for read in (parse, frozen):
        with pytest.raises(vx.AlgorithmError) as caught:
            read(request_, "dense", "fwd_algo")
        assert str(caught.value).startswith("fwd_algo: ")
        assert message in str(caught.value)


def test_depthwise_names_are_its_own():
    with pytest.raises(vx.AlgorithmError, match=r"'cutlass_implicit_gemm'; known: explicit, imp"):
        parse("cutlass_implicit_gemm", "depthwise", "fwd_algo")
    assert parse("[implicit_gemm,explicit]", "depthwise", "") == ("implicit", "explicit")
    assert parse("[implicit,explicit_gemm]", "dense", "") == ("implicit_gemm", "explicit_gemm")


def test_order_is_the_users_and_duplicates_are_dropped():
    everything = parse("auto", "dense", "")
    assert parse(["IMPLICIT_GEMM", "implicit", "explicit_gemm"], "dense", "") == (
        "implicit_gemm",
        "explicit_gemm",
    )
    listed = parse(["cutlass_implicit_gemm", "all"], "dense", "")
    assert listed[0] == "cutlass_implicit_gemm"
    assert set(listed) == set(everything)


def test_frozen_is_a_request_of_one_spelling():
    assert frozen(None, "dense", "") is None
    assert frozen("Implicit", "dense", "") == frozen(["implicit_gemm"], "dense", "")
    assert frozen(["implicit", "ALL", "auto"], "dense", "") == ("implicit_gemm", "auto")
    for request in ("auto", "[implicit,explicit]", ("explicit_gemm", "all")):
        words = frozen(request, "dense", "")
        assert parse(words, "dense", "") == parse(request, "dense", "")
