"""Memory of eager results: used again when nothing refers to it, and never before."""

from __future__ import annotations

import gc
import multiprocessing
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from voxax import _compat
from voxax._native import host
from voxax._native.host import empty_array

ROWS = 20_000


@pytest.fixture(autouse=True)
def _no_memory_kept() -> None:
    host._kept.clear()


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def test_memory_is_used_again_when_the_array_is_gone() -> None:
    first = empty_array((ROWS, 4), np.float32)
    place = address(first)
    del first
    second = empty_array((ROWS, 2), np.float64)
    assert address(second) == place
    assert address(empty_array((ROWS, 2), np.float64)) != place


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1, 3), (37, 3), (ROWS, 3)])
def test_memory_that_jax_takes_as_it_is(shape: tuple[int, ...], dtype: str) -> None:
    array = empty_array(shape, jnp.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == jnp.dtype(dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.size == 0 or address(array) % 64 == 0


def test_a_view_keeps_the_memory() -> None:
    array = empty_array((ROWS, 4), np.float32)
    array[:] = 1
    part = array[5:].T
    del array
    empty_array((ROWS, 4), np.float32)[:] = 2
    assert (part == 1).all()


def test_an_array_of_jax_keeps_the_memory_and_so_does_what_numpy_sees_of_it() -> None:
    (device,) = jax.devices("cpu")[:1]
    given = empty_array((ROWS, 4), np.float32)
    given[:] = 1
    held = _compat.put_on(device, given, committed=False)
    total = jnp.sum(held)  # may not have run yet
    del given
    empty_array((ROWS, 4), np.float32)[:] = 2
    seen = np.asarray(held)
    del held
    gc.collect()
    empty_array((ROWS, 4), np.float32)[:] = 3
    assert (seen == 1).all()
    assert float(total) == 4 * ROWS


def test_a_donated_array_is_not_written_to_by_others() -> None:
    (device,) = jax.devices("cpu")[:1]
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = empty_array((ROWS, 4), np.float32)
    given[:] = 1
    held = _compat.put_on(device, given, committed=False)
    del given
    for _ in range(5):
        held = step(held)
        empty_array((ROWS, 4), np.float32)[:] = -1
    assert (np.asarray(held) == 6).all()


def test_what_is_kept_has_a_limit() -> None:
    size = host._LARGEST // 8
    arrays = [empty_array((size,), np.uint8) for _ in range(20)]
    assert sum(map(len, host._kept)) <= host._LARGEST
    del arrays
    for size in range(2**18, 2**22, 2**15):
        empty_array((size,), np.uint8)
    assert sum(map(len, host._kept)) <= host._LARGEST
    empty_array((host._LARGEST,), np.uint8)
    assert max(map(len, host._kept)) < host._LARGEST


def test_threads_do_not_share_memory() -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(300):
            array = empty_array((ROWS, 4), np.int32)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_fork(connection: object) -> None:
    array = empty_array((ROWS, 4), np.int32)
    array[:] = 7
    connection.send(int(array.sum()))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_fork_while_the_lock_is_held() -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    with host._lock:
        child = context.Process(target=_in_fork, args=(there,))
        child.start()
    assert here.poll(60)
    assert here.recv() == 7 * 4 * ROWS
    child.join()
