"""Counting in a compiler's listing: loops, passes, waits, copies."""

import jax
import pytest

from voxax.predict import read_listing
from voxax.predict.child import value_bytes
from voxax.predict.hlo import operations, runs_beside
from voxax.predict.listing import read_equal

# The form of libtpu 0.0.42.1, made up: a pipeline's loop of 12 passes, in the last two of which its
# body is skipped; in the body a loop whose passes are known at run time only, and in its first
# pass a region of its own.
LISTING = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %3 = vsyncpa [#allocation4], 0  ;;  %s5 = smov 0 }
   0x1 LB: > { %s9 = sphi %s5, %s14 /* iteration index, stage = 0 */ }
   0x2   : > { %p1 = scmp.ge.s32.totalorder %s9, 10  ;;  %p4 = scmp.ne.s32.totalorder %s9, 0 }
   0x3   : > { %9 = sbr.rel (%p1) target bundleno = 18 (0x12), region = 25 }
   0x4   :  {}
   0x5   :  {}
   0x6   :  {}
   0x7   :  {}
   0x8 LB: >> { %33 = vmatmul.bf16.gmra.mxu0 %v4  ;;  %93 = dma.hbm_to_vmem [thread:$0]  (!%p1), \
/*hbm=*/%s114, /*size_in_granules=*/256, /*vmem=*/%s116, /*dst_syncflagno=*/%s102 }
   0x9   : >> { %12 = sbr.rel (!%p7) target bundleno = 8 (0x8), region = 30 }
   0xa   :  {}
   0xb   :  {}
   0xc   :  {}
   0xd   :  {} /* End region 30 */
   0xe   :  { %33 = vadd %v4 }
   0xf   :  {}
  0x10   :  {}
  0x11   :  {}
  0x12 PF: > { %s14 = sadd.s32 1, %s9  ;;  %15 = sbr.rel (%p4) target bundleno = 25 (0x19) }
  0x13   :  {}
  0x14   :  {}
  0x15   :  {}
  0x16   :  {}
  0x17   :  { %9 = shalt.err (%p1) /* BoundsCheck 90 for %94 = dma.vmem_to_hbm [thread:$0]  (%p1), \
/*vmem=*/%s1, /*size_in_granules=*/7, /*hbm=*/%s2, /*dst_syncflagno=*/%s102 }
  0x18   :  { %3 = vadd %v3 }
  0x19   : > { %p11 = scmp.ge.s32.totalorder %s14, 12 /* loop exit test */ }
  0x1a   : > { %13 = sbr.rel (!%p11) target bundleno = 1 (0x1), region = 259 } /* End region 4 */
  0x1b   :  {}
  0x1c   :  {}
  0x1d   :  {}
  0x1e   :  {}
  0x1f   :  { %72 = vsyncpa [#allocation4], 1 }
"""
UTILIZATION = "== CAPACTIY:\nMXU, VALU\n    4     2\n== UTILIZATION:\n" + "".join(
    f"{4 if row == 8 else 0} {row % 2}\n" for row in range(32)
)


def test_loops_regions_and_passes():
    listing = read_listing(LISTING, UTILIZATION)
    outer, body, inner, first = listing.whole.walk()[1:]
    assert (listing.whole.cycles, listing.whole.bundles, listing.whole.trips) == (2, 2, 1)
    assert (outer.first, outer.trips, outer.cycles) == (1, 12, 7 + 5 + 6)
    assert (body.first, body.runs, body.cycles) == (8, 10, 4)
    assert (inner.first, inner.trips, inner.cycles, inner.bundles) == (8, None, 6, 2)
    assert (first.first, first.runs, first.cycles) == (23, 1, 2)
    assert listing.unknown == (inner,)
    total = listing.whole.total(3)
    assert total.complete
    assert total.cycles == 2 + 12 * outer.cycles + 10 * (4 + 3 * 6) + 2
    assert total.busy["MXU"] == 10 * 3 * 4
    once = listing.whole.total()
    assert not once.complete
    assert once.cycles == 2 + 12 * outer.cycles + 10 * (4 + 6) + 2


def test_copies_are_started_where_their_predicate_holds():
    """Those in the text of a check are none."""
    listing = read_listing(LISTING, UTILIZATION)
    (inner,) = listing.unknown
    assert [(c.source, c.target, c.granules, c.runs) for c in inner.copies] == [
        ("hbm", "vmem", 256, None)
    ]
    assert not any(loop.copies for loop in listing.whole.walk() if loop is not inner)


# A row of vector memory is copied by loads and stores: the exit test has no note.
NESTED = """\
   0x0 LB: > { %s1 = smov 0  ;;  %s7 = smov 2 }
   0x1 LB: >> { %s3 = sphi %s7, %s2  ;;  %s2 = sadd.s32 3, %s3  ;;  %p5_p2 = \
scmp.ge.s32.totalorder %s2, 8 }
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
    assert [loop.trips for loop in listing.whole.walk()[1:]] == [trips, 2]


def test_a_loop_that_begins_while_a_branch_takes_effect_follows_it():
    first = NESTED.replace("BOUND", "5 /* loop exit test */").splitlines()[:12]
    second = [
        "   0xc LB: > { %p9 = scmp.ge.s32.totalorder %s2, 3 /* loop exit test */ }",
        "   0xd   : > { %14 = sbr.rel (!%p9) target bundleno = 11 (0xb), region = 32 }",
        *(f"  {at:#x}   :  {{}}" for at in range(14, 18)),
    ]
    loops = read_listing("\n".join([*first, *second]) + "\n").whole.walk()[1:]
    assert [loop.depth for loop in loops] == [1, 2, 1]
    assert [loop.trips for loop in loops[:2]] == [5, 2]
    # The slot that both hold counts once.
    assert sum(loop.cycles for loop in loops) == 18


INNER_BOUND = """\
     0   :  { %s5 = smov 0 }
   0x1 LB: > { %s9 = sphi %s5, %s14 }
   0x2   : > { %s6 = ssub.s32 20, %s9  ;;  %p2 = scmp.lt.s32.totalorder %s6, 19 }
   0x3   : > { %s7 = smov (!%p2, %s6), 19  ;;  %s8 = sshrl.u32 %s7, 1 }
   0x4 LB: >> { %s3 = sphi %s5, %s2  ;;  %s2 = sadd.s32 1, %s3 }
   0x5   : >> { %p5 = scmp.ge.s32.totalorder %s2, %s8 }
   0x6   : >> { %12 = sbr.rel (!%p5) target bundleno = 4 (0x4) }
   0x7   :  {}
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   : > { %s14 = sadd.s32 1, %s9  ;;  %p11 = scmp.ge.s32.totalorder %s14, 4 }
   0xc   : > { %13 = sbr.rel (!%p11) target bundleno = 1 (0x1) }
   0xd   :  {}
   0xe   :  {}
   0xf   :  {}
  0x10   :  {}
"""


def test_passes_that_depend_on_the_loop_around():
    """Half of the least of 19 and what is left of 20: 9, 9, 9, 8 passes."""
    outer, inner = read_listing(INNER_BOUND).whole.walk()[1:]
    assert (outer.trips, inner.trips) == (4, (9 + 9 + 9 + 8) / 4)


RING = """\
     0   :  { %s5 = smov 0 }
   0x1 LB: > { %s9 = sphi %s5, %s14  ;;  %s1 = sand.u32 1, %s9  ;;  %s2 = ssub.s32 1, %s1 }
   0x2   : > { %s3 = scalar_lea.sflag [#allocation4], %s1 }
   0x3   : > { %s4 = scalar_lea.sflag [#allocation4], %s2 }
   0x4   : > { %8 = dma.hbm_to_vmem /*hbm=*/%s7, /*size_in_granules=*/32, /*vmem=*/%s6, \
/*dst_syncflagno=*/STARTED }
   0x5   : > { %9 = dma.done.wait %s3, 32 }
   0x6   : > { %s14 = sadd.s32 1, %s9  ;;  %p11 = scmp.ge.s32.totalorder %s14, 8 }
   0x7   : > { %13 = sbr.rel (!%p11) target bundleno = 1 (0x1) }
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   :  {}
"""


@pytest.mark.parametrize(("flag", "ahead", "waits"), [("%s4", 1, 0), ("%s3", 0, 1)])
def test_which_pass_waits_for_a_copy(flag, ahead, waits):
    (loop,) = read_listing(RING.replace("STARTED", flag)).whole.inner
    assert [(copy.ahead, copy.runs) for copy in loop.copies] == [(ahead, None)]
    assert loop.waits == waits


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
    assert found["copy-done"].completes == "copy-start"
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


def test_equal_kernels_are_named_by_the_compiler():
    text = (
        "key:<top>\nordinal:0\nequivalent_hlos[size=0]:\n"
        "key:k.2\nordinal:1\nequivalent_hlos[size=2]:\n  k.2\n  other\n"
    )
    assert read_equal(text) == {"k.2": "k.2", "other": "k.2"}


def test_the_lower_bound_moves_features_and_weights_alone():
    shape = jax.ShapeDtypeStruct
    tree = shape((10, 4), "bfloat16"), {"table": shape((27, 10), "int32")}, shape((3,), "bool")
    assert value_bytes((tree, shape((8,), "float32"), shape((5,), "int8"))) == 80 + 32 + 5


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
