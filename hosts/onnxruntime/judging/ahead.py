# SPDX-License-Identifier: Apache-2.0
"""Models that are compiled or packed ahead of time, and what can be wrong with them."""

import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

import session

CHILD = """
import sys
sys.path.insert(0, {here!r})
import session
session.register({plugin!r})
case, path = session.small_case(**{case!r}), {path!r}
opened = session.open_model(path, provider={{"trust_context": {trust!r}}})
assert session.taken(opened) == ["EPContext"], session.taken(opened)
assert all(session.right(opened, case, i) for i in range(len(case.feeds)))
"""


CASES = {"bias": True, "n": 70}, {"bits": 8, "zeros": "codes"}


def write_context(folder, arguments=CASES[0]):
    """An EPContext model of a small case; the session that writes it computes, too."""
    case, path = session.small_case(**arguments), os.path.join(folder, "context.onnx")
    writing = session.open_model(case.model, ep__context_enable="1", ep__context_file_path=path)
    if session.taken(writing) != ["MatMulNBits"] or not session.right(writing, case, 1):
        raise AssertionError("the session that writes the model is wrong")
    return path


def compiled_by(plugin, arguments, path, trust, cache):
    """How many kernels a process compiles that opens the model with an empty cache."""
    code = CHILD.format(here=os.path.dirname(os.path.abspath(__file__)), plugin=os.path.abspath(plugin), case=arguments, path=path, trust=trust)
    env = os.environ | {"TILEWRIGHT_CACHE": cache, "TILEWRIGHT_LOG": "info"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr[-800:])
    return done.stderr.count(": compiled in ")


def context(plugin):
    for arguments in CASES:
        with tempfile.TemporaryDirectory() as folder:
            path = write_context(folder, arguments)
            without, trusted = (compiled_by(plugin, arguments, path, trust, os.path.join(folder, trust, "cache.db")) for trust in "01")
        if not without:
            return "skipped: nothing is compiled here without the model's kernels either; install libLLVM"
        if trusted:
            return f"failed: {arguments}: {trusted} kernels are compiled, {without} without trust_context"
    return True


def damaged_context():
    """Kernels that are cut short are compiled again; a node that says something else is an error with a sentence."""
    case = session.small_case(**CASES[0])
    with tempfile.TemporaryDirectory() as folder:
        path = write_context(folder)

        def changed(name, change):
            model = onnx.load(path)
            for attribute in model.graph.node[0].attribute:
                if attribute.name == name:
                    attribute.s = change(attribute.s)
            return model.SerializeToString()

        for change in (lambda s: s[: len(s) // 2], lambda s: bytes(len(s)), lambda s: b"x" * 3 + s[3:]):
            opened = session.open_model(changed("ep_cache_context", change), provider={"trust_context": "1"})
            if not session.right(opened, case, 0):
                return "failed: with damaged kernels the result is wrong"
        for old, new in ((b"K=128", b"K=256"), (b"/1 ", b"/2 "), (b"inputs=0,1,2", b"inputs=0,1,9"), (b"inputs=0,1,2,-1,-1,3", b"")):
            try:
                session.open_model(changed("notes", lambda s: s.replace(old, new)))
            except Exception as error:
                if not re.search(r"notes .*compile the model again|has the wrong number of elements", str(error)):
                    return f"failed: it says {error}"
            else:
                return f"failed: {new} is taken"
    return True


def saved_packed():
    """Weights that ONNX Runtime shares between sessions, and saves as they are packed."""
    case = session.small_case(n=256, k=512)
    with tempfile.TemporaryDirectory() as folder:
        path, saved = os.path.join(folder, "model.onnx"), os.path.join(folder, "saved.onnx")
        onnx.save(onnx.load_from_string(case.model), path, save_as_external_data=True, location="weights", size_threshold=0)
        options = session.options(
            session__save_external_prepacked_constant_initializers="1",
            session__optimized_model_external_initializers_file_name="saved.weights",
            session__optimized_model_external_initializers_min_size_in_bytes="16",
        )
        options.optimized_model_filepath = saved
        for opened in (onnxruntime.InferenceSession(path, options), session.open_model(saved)):
            if session.taken(opened) != ["MatMulNBits"] or not all(session.right(opened, case, i) for i in range(3)):
                return "failed: the result is wrong"
    return True


def checks(args):
    yield "an EPContext model: a session compiles nothing", context(args.plugin)
    yield "EPContext models that are damaged", damaged_context()
    yield "packed weights, shared and saved", saved_packed()
