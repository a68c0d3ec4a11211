"""Counting in a compiler's listing: loops, passes, waits, copies."""

import dataclasses

import pytest

from voxax.predict import CompiledKernel, read_listing
from voxax.predict.child import share_listings
from voxax.predict.hlo import operations, runs_beside

# The form of libtpu 0.0.42.1, made up: a loop of 12 passes of which 2 fill the pipeline, and in it
# a loop whose passes are known at run time only.
LISTING = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %3 = vsyncpa [#allocation4], 0 }
   0x1 LB: > { %s1 = sadd.s32 1, %s9 /* iteration index, stage = 1 */ }
   0x2   : > { %p1 = scmp.lt.s32.totalorder %s1, 97  ;;  %s2 = smov 0 /* stage = 2 */ }
   0x3   : > { %9 = sbr.rel (%p1) target bundleno = 8 (0x8), region = 25 }
   0x4   :  {}
   0x5 LB: >> { %33 = vmatmul.bf16.gmra.mxu0 %v4  ;;  %93 = dma.hbm_to_vmem [thread:$0]  (!%p9), \
/*hbm=*/%s114, /*size_in_granules=*/256, /*vmem=*/%s116, /*dst_syncflagno=*/%s102 }
   0x6   : >> { %12 = sbr.rel (!%p7) target bundleno = 5 (0x5), region = 30 }
   0x7   :  {}
   0x8   :  {}
   0x9   :  {}
   0xa   :  {} /* End region 30 */
   0xb PF: > { %s3 = smov %s1 /* iteration index, stage = 2 */ }
   0xc   : > { %p11 = scmp.ge.s32.totalorder %s14, 12 /* loop exit test */ }
   0xd   : > { %13 = sbr.rel (!%p11) target bundleno = 1 (0x1), region = 259 } /* End region 4 */
   0xe   :  {}
   0xf   :  {}
  0x10   :  {}
  0x11   :  {}
  0x12   :  { %72 = vsyncpa [#allocation4], 1 }
"""
UTILIZATION = "== CAPACTIY:\nMXU, VALU\n    4     2\n== UTILIZATION:\n" + "".join(
    f"{4 if row == 5 else 0} {row % 2}\n" for row in range(19)
)


def test_loops_and_passes():
    listing = read_listing(LISTING, UTILIZATION)
    outer, inner = listing.whole.walk()[1:]
    assert (listing.whole.cycles, listing.whole.bundles, listing.whole.trips) == (2, 2, 1)
    assert (outer.first, outer.trips, outer.cycles) == (1, 10, 11)
    assert (inner.first, inner.trips, inner.cycles, inner.bundles) == (5, None, 6, 2)
    assert listing.unknown == (inner,)
    assert listing.whole.total().cycles == 2 + 10 * (11 + 6)
    assert listing.whole.total(unknown=3).cycles == 2 + 10 * (11 + 3 * 6)


NESTED = """\
   0x0 LB: > { %s1 = smov 0 }
   0x1 LB: >> { %p5_p2 = scmp.ge.s32.totalorder %s2, 8 /* loop exit test */ }
   0x2   : >> { %p3_p1 = scmp.ge.s32.totalorder (%p5_p2), %s4, BOUND }
   0x3   : >> { %12 = sbr.rel (!%p5_p2) target bundleno = 1 (0x1), region = 30 }
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8   : > { %13 = sbr.rel (!%p3_p1) target bundleno = 0 (0x0), region = 31 }
   0x9   :  {}
   0xa   :  {}
   0xb   :  {}
   0xc   :  {}
"""


@pytest.mark.parametrize(
    ("bound", "trips"), [("%s9", None), ("100 /* loop exit test */", 100)], ids=["traced", "known"]
)
def test_a_loop_has_the_passes_of_its_own_exit(bound, trips):
    """Both tests may lie in the inner loop, the outer one's under the inner one's predicate."""
    listing = read_listing(NESTED.replace("BOUND", bound))
    assert [loop.trips for loop in listing.whole.walk()[1:]] == [trips, 8]


def test_a_loop_that_begins_while_a_branch_takes_effect_follows_it():
    first = NESTED.replace("BOUND", "5 /* loop exit test */").splitlines()[:12]
    second = [
        "   0xc LB: > { %p9 = scmp.ge.s32.totalorder %s2, 3 /* loop exit test */ }",
        "   0xd   : > { %14 = sbr.rel (!%p9) target bundleno = 11 (0xb), region = 32 }",
        *(f"  {at:#x}   :  {{}}" for at in range(14, 18)),
    ]
    loops = read_listing("\n".join([*first, *second]) + "\n").whole.walk()[1:]
    assert [(loop.depth, loop.trips) for loop in loops] == [(1, 5), (2, 8), (1, 3)]
    # The slot that both hold counts once.
    assert sum(loop.cycles for loop in loops) == 18


def test_units_and_copies():
    listing = read_listing(LISTING, UTILIZATION)
    total = listing.whole.total(unknown=3)
    assert listing.units == {"MXU": 4, "VALU": 2}
    assert total.busy["MXU"] == 10 * 3 * 4
    assert total.granules == 10 * 3 * 256
    outer, _ = listing.whole.walk()[1:]
    assert outer.first == 1


def test_without_utilization():
    assert read_listing(LISTING).units == {}


@pytest.mark.parametrize("text", ["", "vmatmul\n", "0x1 something else"])
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match="no bundle"):
        read_listing(text)


def test_utilization_of_another_kernel_is_refused():
    with pytest.raises(ValueError, match="lines of utilization"):
        read_listing(LISTING, UTILIZATION + "0 0\n")


HLO = """\
HloModule jit_f, is_scheduled=true

%fused (p: f32[100,64]) -> f32[100,64] {
  %p = f32[100,64]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[100,64]{1,0:T(8,128)} negate(%p)
}

%cond (t: (s32[], f32[100,64])) -> pred[] {
  %t = (s32[]{:T(128)}, f32[100,64]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %c = s32[]{:T(128)} constant(7)
  ROOT %lt = pred[]{:T(512)} compare(%i, %c), direction=LT
}

%body (t: (s32[], f32[100,64])) -> (s32[], f32[100,64]) {
  %t.1 = (s32[]{:T(128)}, f32[100,64]{1,0:T(8,128)}) parameter(0)
  %x = f32[100,64]{1,0:T(8,128)} get-tuple-element(%t.1), index=1
  %fusion.1 = f32[100,64]{1,0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="f"}
  ROOT %r = (s32[]{:T(128)}, f32[100,64]{1,0:T(8,128)}) tuple(%x, %fusion.1)
}

ENTRY %main (a: bf16[100,64]) -> f32[100,64] {
  %a = bf16[100,64]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-start = (bf16[100,64]{1,0:T(8,128)(2,1)S(1)}, bf16[100,64]{1,0}, u32[]) copy-start(%a)
  %copy-done = bf16[100,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %k = f32[100,64]{0,1:T(8,128)} custom-call(%copy-done), custom_call_target="tpu_custom_call"
  %init = (s32[]{:T(128)}, f32[100,64]{1,0:T(8,128)}) tuple(%k, %k)
  ROOT %w = (s32[], f32[100,64]) while(%init), condition=%cond, body=%body
}
"""


def test_operations_of_a_program():
    found = {item.name: item for item in operations(HLO)}
    assert list(found) == ["copy-start", "copy-done", "k", "fusion.1"]
    assert runs_beside(found["copy-start"])
    assert found["copy-start"].bytes == 104 * 128 * 2
    # Padded to tiles, and the operand is not in HBM.
    assert found["k"].kind == "tpu_custom_call"
    assert found["k"].bytes == 64 * 128 * 4
    assert (found["fusion.1"].times, found["fusion.1"].label) == (7, "f")
    assert found["fusion.1"].bytes == 2 * 104 * 128 * 4


def test_metadata_with_line_breaks_ends_no_computation():
    """That of splash attention has some."""
    broken = HLO.replace(
        'custom_call_target="tpu_custom_call"',
        'custom_call_target="tpu_custom_call"'
        ', frontend_attributes={kernel_metadata={\n"a":"b"\n}}, metadata={op_name="k"}',
    )
    assert broken != HLO
    assert [i.name for i in operations(broken)] == [i.name for i in operations(HLO)]
    assert {i.name: i.label for i in operations(broken)}["k"] == "k"


def test_equal_kernels_share_a_listing():
    (first,) = (item for item in operations(HLO) if item.name == "k")
    listing = object()
    names = ("k.1", listing), ("k.2", None), ("other", None)
    kernels = [CompiledKernel(**{**vars(first), "name": n}, listing=at) for n, at in names]
    assert [k.listing for k in share_listings(kernels)] == [listing, listing, None]
    wider = dataclasses.replace(kernels[1], bytes=first.bytes + 1)
    assert share_listings([kernels[0], wider])[1].listing is None


CONDITIONAL = """HloModule m
%first (p: f32[8]) -> f32[8] {
  ROOT %a = f32[8]{0} fusion(%p), kind=kLoop
}
%second (p: f32[8]) -> f32[8] {
  ROOT %b = f32[8]{0} fusion(%p), kind=kLoop
}
%again (p: (f32[8])) -> (f32[8]) {
  %x = f32[8]{0} get-tuple-element(%p), index=0
  ROOT %c = f32[8]{0} fusion(%x), kind=kLoop
}
%ends (p: (f32[8])) -> pred[] {
  ROOT %less = pred[] compare(%p, %p), direction=LT
}
ENTRY %main (q: f32[8], i: s32[], f: pred[]) -> f32[8] {
  %by_number = f32[8]{0} conditional(%i, %q, %q), branch_computations={%first, %second}
  %by_flag = f32[8]{0} conditional(%f, %q, %q), true_computation=%first, false_computation=%second
  ROOT %w = (f32[8]) while(%q), condition=%ends, body=%again
}
"""


def test_every_branch_and_open_loops_are_walked():
    found = operations(CONDITIONAL)
    assert [item.name for item in found] == ["a", "b", "a", "b", "c"]
    assert [item.in_open_loop for item in found] == [False] * 4 + [True]
    assert {item.times for item in found} == {1}
