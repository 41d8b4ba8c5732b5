# SPDX-License-Identifier: Apache-2.0
"""The tests of `onnx.backend.test`, by ONNX Runtime with Tilewright's provider and without it."""

import warnings

import numpy as np
import onnx

import session

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
# Those whose weights are inputs of the graph run once more with these inputs as constants, as models have them.
WEIGHTS = {
    "MatMulInteger": (1, 2, 3),
    "QLinearMatMul": (1, 2, 3, 4, 5, 6, 7),
    "DequantizeLinear": (0, 1, 2),
    "Conv": (1, 2),
    "MatMul": (1,),
    "Gemm": (1, 2),
}


def cases(kinds=KINDS):
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds:
            yield from load_model_tests(kind=kind)


def values_of(case):
    """The model and its sets of inputs and results; what is no tensor is left to ONNX Runtime alone."""
    if case.model is not None:
        return case.model, [(list(inputs), list(outputs)) for inputs, outputs in case.data_sets]
    import glob
    import os

    model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
    sets = []
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set_*"))):
        read = []
        for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
            files = sorted(glob.glob(os.path.join(folder, f"{kind}_*.pb")), key=lambda path: int(path.rpartition("_")[2][:-3]))
            read.append([])
            for path, info in zip(files, infos):
                if info.type.WhichOneof("value") != "tensor_type":
                    return model, None
                tensor = onnx.TensorProto()
                with open(path, "rb") as file:
                    tensor.ParseFromString(file.read())
                read[-1].append(onnx.numpy_helper.to_array(tensor))
        sets.append(tuple(read))
    return model, sets


def with_constants(model, sets):
    """The same with weights as constants; None: it has none, or they differ from set to set."""
    names = set()
    for node in model.graph.node:
        for index in WEIGHTS.get(node.op_type, ()):
            if index < len(node.input):
                names.add(node.input[index])
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [info.name for info in model.graph.input if info.name not in stored]
    constant = [i for i, name in enumerate(inputs) if name in names]
    if not constant or len(constant) == len(inputs) or len(sets) != 1 or len(sets[0][0]) != len(inputs):
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for i in constant:
        changed.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(sets[0][0][i]), inputs[i]))
        changed.graph.input.remove(next(info for info in changed.graph.input if info.name == inputs[i]))
    return changed, [([value for i, value in enumerate(sets[0][0]) if i not in constant], sets[0][1])]


def outcome(model, sets, case, tilewright):
    """'' or why it fails, and the types of the nodes that Tilewright took."""
    try:
        opened = session.open_model(model.SerializeToString(), tilewright)
        taken = session.taken(opened)
        for inputs, wanted in sets:
            feeds = {info.name: value for info, value in zip(opened.get_inputs(), inputs)}
            for got, value in zip(opened.run(None, feeds), wanted):
                got, value = np.asarray(got), np.asarray(value)
                if got.shape != value.shape or got.dtype != value.dtype:
                    return f"{got.dtype}{got.shape}, not {value.dtype}{value.shape}", taken
                if value.dtype.kind in "OUS":
                    if not np.array_equal(got.astype(str), value.astype(str)):
                        return "other strings", taken
                else:
                    np.testing.assert_allclose(got.astype("f8"), value.astype("f8"), rtol=case.rtol, atol=case.atol)
        return "", taken
    except Exception as error:
        return str(error).strip() or type(error).__name__, []
