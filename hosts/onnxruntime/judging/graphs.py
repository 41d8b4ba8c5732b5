# SPDX-License-Identifier: Apache-2.0
"""The same nodes in other graphs: in a branch of If, with weights from outside or its own; twice with the same weights;
with weights that the caller may replace."""

import numpy as np
import onnx
import onnx.helper

import models
import session


def cases():
    rng = np.random.default_rng(8)
    yield models.matmul_nbits(rng, 4, 32, "none", 4, "f32", 64, 128)
    yield models.dequantized(rng, "int4", 32, "none", "f32", 0, False, 64, 128)
    yield models.matmul_integer(rng, np.uint8, np.int8, "tensor", 64, 128)


def in_branch(case, outside):
    """A model whose If computes the case's graph; `outside`: with weights of the outer graph."""
    proto = onnx.load_from_string(case.model)
    kind, weights = proto.graph.output[0].type.tensor_type.elem_type, list(proto.graph.initializer)

    def output(name):
        return [onnx.helper.make_tensor_value_info(name, kind, None)]

    branch = onnx.helper.make_graph(list(proto.graph.node), "taken", [], output("y"), [] if outside else weights)
    other = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["zero"], ["z"])], "other", [], output("z"))
    node = onnx.helper.make_node("If", ["condition"], ["result"], then_branch=branch, else_branch=other)
    inputs = [onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []), proto.graph.input[0]]
    zero = onnx.helper.make_tensor("zero", kind, [1, 1], [0])
    graph = onnx.helper.make_graph([node], "g", inputs, output("result"), [zero] + (weights if outside else []))
    made = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    made.ir_version = 10
    return made.SerializeToString()


def twice(case):
    proto = onnx.load_from_string(case.model)
    node = onnx.NodeProto()
    node.CopyFrom(proto.graph.node[-1])
    node.output[0] = "second"
    proto.graph.node.append(node)
    output = proto.graph.output.add()
    output.CopyFrom(proto.graph.output[0])
    output.name = "second"
    return proto.SerializeToString()


def replaceable(case):
    proto = onnx.load_from_string(case.model)
    weights = next(tensor for tensor in proto.graph.initializer if tensor.name == "w")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", weights.data_type, list(weights.dims)))
    return proto.SerializeToString()


def checks():
    for name, build, ours, more in (
        ("a branch, with its own weights", lambda case: in_branch(case, False), True, {"condition": np.array(True)}),
        ("a branch, with weights from outside", lambda case: in_branch(case, True), True, {"condition": np.array(True)}),
        ("two nodes with the same weights", twice, True, {}),
        ("weights that the caller may replace", replaceable, False, {}),
    ):
        outcome = True
        for case in cases():
            opened = session.open_model(build(case))
            results = opened.run(None, case.feeds[1] | more)
            if bool(session.taken(opened)) != ours:
                outcome = f"failed: {case.operation} is{'' if session.taken(opened) else ' not'} taken"
            elif not all(np.all(np.abs(result - case.wanted[1]) <= case.bounds[1]) for result in results):
                outcome = f"failed: {case.operation} is wrong"
        yield name, outcome
