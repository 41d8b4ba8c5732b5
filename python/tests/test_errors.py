# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle
import threading

import pytest
import tilewright as tw
from tilewright import _errors

BASES = {
    tw.InvalidArgument: ValueError,
    tw.Unsupported: NotImplementedError,
    tw.TooLarge: ValueError,
    tw.LibraryMissing: OSError,
    tw.IoError: OSError,
    tw.OutOfMemory: MemoryError,
}


@pytest.mark.parametrize("kind", _errors.BY_STATUS.values())
def test_kinds(kind):
    error = kind("m", "-1", "must be 0 or more")
    assert isinstance(error, (tw.TilewrightError, RuntimeError)) and isinstance(error, BASES.get(kind, RuntimeError))
    assert str(error) == "m must be 0 or more (got -1)"
    for other in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(other) is kind and str(other) == str(error)
        assert (other.code, other.field, other.value, other.allowed) == (kind.code, "m", "-1", "must be 0 or more")


def test_codes_are_the_librarys():
    import ctypes

    name = tw._c.lib.cdll["tw_status_name"]
    name.restype = ctypes.c_char_p
    for status, kind in _errors.BY_STATUS.items():
        assert name(status).decode() == kind.code


def test_parts_come_from_the_library():
    with pytest.raises(tw.InvalidArgument) as caught:
        tw.Problem("gemm x=q8_1 w=q4_0 y=f32 m=2 n=64 k=33")
    assert (caught.value.field, caught.value.value) == ("k", "33") and "32" in caught.value.allowed
    with pytest.raises(tw.TooLarge):
        tw.Problem("gemm x=f16 w=f16 y=f16 m=2147483647 n=2147483648 k=64")


def test_each_thread_has_its_own_error():
    """What is raised is about this thread's call, whatever others do meanwhile."""
    wrong = []

    def fail(name):
        for _ in range(300):
            try:
                tw.Problem(f"{name} x=f32")
            except tw.InvalidArgument as error:
                if name not in str(error):
                    wrong.append((name, str(error)))

    threads = [threading.Thread(target=fail, args=(f"nonsense{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
