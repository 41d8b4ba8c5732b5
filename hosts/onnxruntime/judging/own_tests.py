# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's own tests in Python, with Tilewright's provider before its CPU provider in every session, and without.

A plugin of pytest: its variable TILEWRIGHT_ORT names the library, or is empty."""

import os
import sys

import onnxruntime

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import session  # noqa: E402

taken = []


class Session(onnxruntime.InferenceSession):
    def __init__(self, model, sess_options=None, providers=None, **more):
        names = [each if isinstance(each, str) else each[0] for each in providers or []]
        if set(names) - {"CPUExecutionProvider"}:
            super().__init__(model, sess_options, providers=providers, **more)
            return
        options = sess_options or onnxruntime.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == session.NAME]
        if not options.has_providers():  # else a test uses its options again
            # ONNX Runtime saves no optimized model that has compiled nodes, of whatever provider.
            saves = options.optimized_model_filepath
            options.add_provider_for_devices(devices, {"operations": "MatMulNBits,MatMulInteger,QLinearMatMul" if saves else "all"})
        super().__init__(model, options, **more)
        taken.extend(session.taken(self))


def pytest_configure(config):
    if os.environ["TILEWRIGHT_ORT"]:
        session.register(os.environ["TILEWRIGHT_ORT"])
        onnxruntime.InferenceSession = Session


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"nodes of ours: {len(taken)}: {', '.join(sorted(set(taken)))}")
