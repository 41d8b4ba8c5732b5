# SPDX-License-Identifier: Apache-2.0
"""Sessions of ONNX Runtime with Tilewright's execution provider, and what can be wrong with them."""

import concurrent.futures
import ctypes
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

import models

NAME = "TilewrightExecutionProvider"


def register(plugin):
    onnxruntime.register_execution_provider_library("tilewright", os.path.abspath(plugin))


def options(tilewright=True, threads=0, provider=None, **entries):
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = threads
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in entries.items():
        made.add_session_config_entry(key.replace("__", "."), value)
    if tilewright:
        made.add_provider_for_devices([d for d in onnxruntime.get_ep_devices() if d.ep_name == NAME], {"operations": "all"} | (provider or {}))
    return made


def open_model(model, tilewright=True, threads=0, provider=None, **entries):
    """A session that may use Tilewright and ONNX Runtime's CPU provider."""
    return onnxruntime.InferenceSession(model, sess_options=options(tilewright, threads, provider, **entries))


def taken(session):
    """The types of the nodes that Tilewright computes."""
    parts = session.get_provider_graph_assignment_info()
    return [node.op_type for part in parts if part.ep_name == NAME for node in part.get_nodes()]


def right(session, case, index):
    """Whether a result is within its bound."""
    return bool(np.all(np.abs(session.run(None, case.feeds[index])[0] - case.wanted[index]) <= case.bounds[index]))


# ---- what can be wrong: each gives its name, and True, why it failed, or why it was skipped


def small_case(**more):
    arguments = dict(bits=4, block=32, zeros="none", level=4, floats="f32", n=64, k=128) | more
    return models.matmul_nbits(np.random.default_rng(3), **arguments)


def fails(action, pattern):
    """True if it raises an error whose text matches, and a good model still runs."""
    try:
        action()
    except Exception as error:
        if not re.search(pattern, str(error)):
            return f"failed: it says {error}"
    else:
        return "failed: there is no error"
    case = small_case()
    return True if right(open_model(case.model), case, 0) else "failed: the next model's result is wrong"


def with_tensor(model, name, change):
    """The model with another value of a constant."""
    proto = onnx.load_from_string(model)
    for tensor in proto.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(tensor)), name))
    return proto.SerializeToString()


def wrong_sizes():
    case = small_case()
    feeds = case.feeds[0]
    for name, change in (("w", lambda t: t[:-1]), ("s", lambda t: t[:-1]), ("w", lambda t: t[:, :-1])):
        outcome = fails(lambda: open_model(with_tensor(case.model, name, change)).run(None, feeds), "(?i)(shape|dim|element|size)")
        if outcome is not True:
            return outcome
    return True


def wrong_x():
    case = small_case()
    proto = onnx.load_from_string(case.model)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "k"
    session = open_model(proto.SerializeToString())
    return fails(lambda: session.run(None, {"x": np.zeros((2, 100), np.float32)}), r"A \[2, 100\] does not fit: its last dimension must be K, 128")


def cut_short():
    case = small_case(n=256, k=512)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        proto = onnx.load_from_string(case.model)
        onnx.save(proto, path, save_as_external_data=True, location="weights", size_threshold=0)
        whole = open_model(path)
        if not taken(whole):
            return "failed: the whole file is not taken"
        if not right(whole, case, 0):
            return "failed: the whole file's result is wrong"
        weights = os.path.join(folder, "weights")
        os.truncate(weights, os.path.getsize(weights) // 2)
        return fails(lambda: open_model(path).run(None, case.feeds[0]), "(?i)(external|out of bounds|size|length|read)")


def many_threads():
    cases = [small_case(level=level, zeros=zeros, n=n) for level in (0, 4) for zeros in ("none", "codes") for n in (64, 70)]
    sessions = [open_model(case.model) for case in cases]
    wanted = [session.run(None, case.feeds[2])[0] for session, case in zip(sessions, cases)]

    def work(i):
        at = i % len(cases)
        session = sessions[at] if i % 3 else open_model(cases[at].model)
        return np.array_equal(session.run(None, cases[at].feeds[2])[0], wanted[at])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        same = list(pool.map(work, range(200)))
    return True if all(same) else f"failed: {same.count(False)} of {len(same)} results differ"


def any_threads():
    """Results do not depend on threads, and no tokens give no results."""
    cases = [small_case(level=level, n=n, k=256) for level in (0, 4) for n in (512, 70)]
    for case in cases:
        wanted = [open_model(case.model).run(None, feeds)[0] for feeds in case.feeds]
        for threads, parallel in ((1, "0"), (2, "0"), (7, "0"), (2, "1")):
            made = options(threads=threads)
            made.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL if parallel == "1" else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
            opened = onnxruntime.InferenceSession(case.model, made)
            if not all(np.array_equal(opened.run(None, feeds)[0], want) for feeds, want in zip(case.feeds, wanted)):
                return f"failed: with {threads} threads results differ"
            if opened.run(None, {"x": np.zeros((0, 256), np.float32)})[0].shape != (0, case.wanted[0].shape[1]):
                return "failed: no tokens"
    return True


def without_prepacking():
    case = small_case()
    one, other = open_model(case.model), open_model(case.model, session__disable_prepacking="1")
    if not taken(other):
        return "failed: the model is not taken"
    same = all(np.array_equal(one.run(None, feeds)[0], other.run(None, feeds)[0]) for feeds in case.feeds)
    return True if same else "failed: results differ"


def another_version(plugin):
    """As an ONNX Runtime does that has no version 24 of the interface."""
    said = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(_code, text):
        said.append(text.decode())
        return 1

    table = (ctypes.c_void_p * 8)(ctypes.cast(create_status, ctypes.c_void_p))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(lambda wanted: ctypes.addressof(table) if wanted < 24 else None)
    name = ctypes.create_string_buffer(b"1.23.2")
    version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(name))
    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), ctypes.cast(version, ctypes.c_void_p))
    factories, number = (ctypes.c_void_p * 1)(), ctypes.c_size_t(7)
    create = ctypes.CDLL(os.path.abspath(plugin)).CreateEpFactories
    create.restype = ctypes.c_void_p
    status = create(b"tilewright", base, None, factories, ctypes.c_size_t(1), ctypes.byref(number))
    good = status and not number.value and "needs ONNX Runtime 1.24 or a later one, and this is 1.23.2" in "".join(said)
    return True if good else f"failed: it says {said}"


def wrong_ggml():
    """A node of ours that no other provider has: what is wrong with it ends the session with a sentence."""
    case = models.ggml_matmul(np.random.default_rng(3), "q4_k", 4, False, 64, 256)
    for name, value, pattern in (("format", "q4_z", "q4_z"), ("K", 100, "K must be a multiple of 256 .*got 100"), ("N", 63, "wrong number of bytes")):
        proto = onnx.load_from_string(case.model)
        for attribute in proto.graph.node[0].attribute:
            if attribute.name == name:
                attribute.CopyFrom(onnx.helper.make_attribute(name, value))
        outcome = fails(lambda: open_model(proto.SerializeToString()), pattern)
        if outcome is not True:
            return outcome
    return True


CHILD = """
import sys
sys.path.insert(0, {here!r})
import session
session.register({plugin!r})
case = session.small_case()
opened = session.open_model(case.model)
assert session.taken(opened) == ["MatMulNBits"] and session.right(opened, case, 0)
"""

AGAIN = """
del opened
for _ in range(3):
    session.onnxruntime.unregister_execution_provider_library("tilewright")
    session.register({plugin!r})
    assert session.right(session.open_model(case.model), case, 1)
"""


def again(plugin):
    """Registered, unregistered and registered again in one process."""
    code = (CHILD + AGAIN).format(here=os.path.dirname(os.path.abspath(__file__)), plugin=os.path.abspath(plugin))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return True if done.returncode == 0 else f"failed: it ended with {done.returncode}: {done.stderr[-600:]}"


PACKAGE = """
import onnxruntime, tilewright.onnxruntime, session
case = session.small_case()
options = tilewright.onnxruntime.session_options(operations="MatMulNBits")
assert tilewright.onnxruntime.register() and session.right(onnxruntime.InferenceSession(case.model, options), case, 1)
try:
    onnxruntime.InferenceSession(case.model, tilewright.onnxruntime.session_options(operations="MatMulBits"))
except Exception as error:
    assert "operations=MatMulBits is not an operation of this provider" in str(error), error
else:
    raise AssertionError("a wrong name is taken")
"""


def package(plugin):
    """tilewright.onnxruntime of this source tree."""
    here = os.path.dirname(os.path.abspath(__file__))
    library = os.path.join(os.path.dirname(os.path.abspath(plugin)), "libtilewright_c.so")
    if not os.path.exists(library):
        return "skipped: there is no libtilewright_c.so beside the plugin"
    paths = os.pathsep.join((here, os.path.join(here, "..", "..", "..", "python")))
    env = os.environ | {"PYTHONPATH": paths, "TILEWRIGHT_LIBRARY": library}
    done = subprocess.run([sys.executable, "-c", PACKAGE], env=env, capture_output=True, text=True)
    return True if done.returncode == 0 else f"failed: {done.stderr[-600:]}"


def in_process(plugin, variables, pattern):
    """A session in a process with these environment variables serves, and one line says what is wrong."""
    code = CHILD.format(here=os.path.dirname(os.path.abspath(__file__)), plugin=os.path.abspath(plugin))
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if re.search(pattern, line)]
    if done.returncode:
        return f"failed: {done.stderr[-600:]}"
    return True if len(said) == 1 else f"failed: {len(said)} lines match {pattern}: {done.stderr[-600:]}"


def troubles(args):
    with tempfile.TemporaryDirectory() as folder:
        none, cache = os.path.join(folder, "none"), os.path.join(folder, "cache.db")
        yield "a version of ONNX Runtime without kernels", another_version(args.plugin)
        yield "weights of wrong sizes", wrong_sizes()
        yield "activations of a wrong size", wrong_x()
        yield "external data, whole and cut short", cut_short()
        yield "8 threads, 200 runs", many_threads()
        yield "1, 2 and 7 threads, and no tokens", any_threads()
        yield "attributes of tilewright.MatMul", wrong_ggml()
        yield "registered three times", again(args.plugin)
        yield "tilewright.onnxruntime", package(args.plugin)
        yield "a session that does not prepack", without_prepacking()
        yield "no libLLVM", in_process(args.plugin, {"TILEWRIGHT_LLVM": none, "TILEWRIGHT_CACHE": cache}, r"libLLVM .*none was not found")
        yield "a cache that cannot be written", in_process(args.plugin, {"TILEWRIGHT_CACHE": "/proc/cache.db"}, r"/proc/cache\.db cannot be created")
        yield "an option with a value that it cannot have", in_process(args.plugin, {"TILEWRIGHT_JOBS": "many"}, "TILEWRIGHT_JOBS")
