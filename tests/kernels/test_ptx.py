"""The interpreter of PTX itself: what it computes, and that it finds what a GPU would hide."""

import numpy as np
import pytest

import ptx

HEAD = """
.version 8.8
.target sm_90a
.visible .entry kernel(
    .param .align 8 .b8 kernel_param_0[8],
    .param .align 8 .b8 kernel_param_1[8]
)
.reqntid 64, 1, 1
{
    .reg .b32 %r<9>;
    ld.param.b64 %rd1, [kernel_param_0];
    ld.param.b64 %rd2, [kernel_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    shl.b32 %r2, %r1, 2;
    xor.b32 %r3, %r2, 128; // the place of a thread in another warp
"""


def run(body, eager=False, size=64):
    given = np.arange(size, dtype=np.int32) * 3 - 50
    result = np.full(64, -7, np.int32)
    program = ptx.parse(f"{HEAD}{body}\n    ret;\n}}")
    memory = ptx.Memory([given, result])
    ptx.run(program, memory, 1, 256, eager)
    return given, memory.array(1, result)


def test_branches_part_threads_and_join_them():
    given, result = run("""
        ld.global.s32 %rd6, [%rd4];
        cvt.u32.u64 %r4, %rd6;
        setp.lt.s32 %p1, %r4, 0;
        @%p1 bra $L1;
        mad.lo.s32 %r4, %r4,
            2, 1;
        bra $L2;
    $L1:
        neg.s32 %r4, %r4;
    $L2:
        st.global.b32 [%rd5], %r4;
    """)
    np.testing.assert_array_equal(result, np.where(given < 0, -given, 2 * given + 1))


EXCHANGE = """
    cp.async.cg.shared.global [%r2], [%rd4], 4, 4;
    cp.async.commit_group;
    {wait}
    {barrier}
    ld.shared.b32 %r4, [%r3];
    st.global.b32 [%rd5], %r4;
"""
WAIT, BARRIER = "cp.async.wait_group 0;", "bar.sync 0;"


@pytest.mark.parametrize("eager", [False, True])
def test_warps_exchange_numbers(eager):
    given, result = run(EXCHANGE.format(wait=WAIT, barrier=BARRIER), eager)
    np.testing.assert_array_equal(result, given[np.arange(64) ^ 32])


@pytest.mark.parametrize(("wait", "barrier"), [("", BARRIER), (WAIT, "")])
def test_a_wait_or_a_barrier_that_is_missing_shows(wait, barrier):
    given, result = run(EXCHANGE.format(wait=wait, barrier=barrier))
    assert (result != given[np.arange(64) ^ 32]).any()


def test_what_is_outside_raises():
    with pytest.raises(IndexError, match="address 240 of operand 0"):
        run("ld.global.b32 %r4, [%rd4];", size=60)
    with pytest.raises(IndexError, match="shared memory at 256"):
        run("add.s32 %r5, %r2, 256; st.shared.b32 [%r5], %r1;")


def test_a_copy_of_no_bytes_reads_nothing_and_gives_zeros():
    _, result = run("""
        cp.async.cg.shared.global [%r2], [%rd4], 4, 0;
        cp.async.commit_group;
        cp.async.wait_group 0;
        ld.shared.b32 %r4, [%r2];
        st.global.b32 [%rd5], %r4;
    """, size=1)  # fmt: skip
    assert not result.any()


def test_what_it_does_not_know_raises():
    with pytest.raises(NotImplementedError, match=r"atom\.global"):
        run("atom.global.add.u32 %r4, [%rd4], 1;")
    with pytest.raises(NotImplementedError, match=r"mma\.sync"):
        run("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r1}, {%r1}, {%r1}, {%r1};")


@pytest.mark.parametrize("word", ["u32", "s32"])
def test_integers_are_those_of_32_bits(word):
    given, result = run(f"""
        ld.global.b32 %r4, [%rd4];
        mul.hi.{word} %r5, %r4, 715827883;
        shr.{word} %r6, %r4, 3;
        max.{word} %r7, %r5, %r6;
        sub.{word} %r8, %r7, %r4;
        st.global.b32 [%rd5], %r8;
    """)
    wide = given.astype(np.int64) if word == "s32" else given.view(np.uint32).astype(np.int64)
    expected = np.maximum((wide * 715827883) >> 32, wide >> 3) - wide
    np.testing.assert_array_equal(result, expected.astype(np.uint32).view(np.int32))
