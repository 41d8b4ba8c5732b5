# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import tilewright as tw
from conftest import SOURCE

GGUF = SOURCE / "examples" / "models" / "minilm-l6-v2-tiny.gguf"


def safetensors(path, tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, array) in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_gguf():
    with tw.open_model(GGUF) as model:
        assert len(model) == len(list(model)) > 0 and model.metadata["general.architecture"]
        assert set(model.metadata) and len(model.metadata) == len(list(model.metadata))
        assert "nothing" not in model and "nothing" not in model.metadata and model.get("nothing") is None
        name = next(n for n in model if model[n].format == "q4_0")
        w = model[name]
        assert w.type.lower() == "q4_0" and len(w.shape) == 2 and w.nbytes == w.shape[0] * w.shape[1] // 32 * 18
        encoded = w.encoded()
        assert (encoded.rows, encoded.cols) == w.shape and np.array_equal(encoded.data, w.read())
        assert tw.decode(encoded).std() > 0
        assert w.array().shape == (w.shape[0], w.shape[1] // 32 * 18)
        assert np.array_equal(w.read(7, 100), w.read()[7:107])
        to = bytearray(18)
        assert w.read(0, 18, to) is to and bytes(to) == w.read(0, 18).tobytes()
    with pytest.raises(tw.InvalidArgument, match="model must .*got null"):
        model[name]
    with pytest.raises(tw.InvalidArgument, match="model must .*got null"):
        w.read()


LEVELS = "IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_S IQ1_M TQ1_0 TQ2_0".split()


@pytest.mark.parametrize(
    ("kind", "format"), [("MXFP4", "ggml_mxfp4"), ("NVFP4", "ggml_nvfp4"), *((kind, kind.lower()) for kind in LEVELS)]
)
def test_gguf_of_formats(tmp_path, kind, format):
    """Tensors are formats as they lie in a file, with the values that the gguf package reads."""
    gguf = pytest.importorskip("gguf")
    from gguf import quants

    type = gguf.GGMLQuantizationType[kind]
    x = np.random.default_rng(5).standard_normal((6, 256), dtype="f4") * 3
    rows = np.frombuffer(tw.encode(x, format).data, "u1").reshape(6, -1)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("w", rows, raw_dtype=type)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    with tw.open_model(tmp_path / "m.gguf") as model:
        w = model["w"]
        assert (w.format, w.shape) == (format, (6, 256))
        values = np.asarray(tw.decode(w.encoded())).reshape(6, 256)
    assert np.array_equal(values, quants.dequantize(rows, type))
    assert np.abs(values - x).max() < (0.25 if "FP4" in kind or "IQ4" in kind else 0.6) * np.abs(x).max()
    if kind in ("MXFP4", "TQ1_0", "TQ2_0"):  # others have no encoder there
        assert np.array_equal(rows, quants.quantize(x, type))


def test_safetensors(tmp_path):
    a = np.arange(12, dtype="f4").reshape(3, 4)
    path = safetensors(
        tmp_path / "m.safetensors",
        {
            "a": ("F32", a),
            "b": ("BF16", np.arange(4, dtype="u2")),
            "c": ("I64", np.arange(2)),
            "d": ("F16", a[0].astype("f2")),
        },
        {"format": "pt"},
    )
    with tw.open_model(str(path)) as model:
        assert list(model) == ["a", "b", "c", "d"] and dict(model.metadata) == {"format": "pt"}
        assert np.array_equal(model["a"].array(), a) and model["a"].array().dtype == "f4"
        assert model["b"].array().dtype == "u2" and model["d"].array().dtype == "f2"
        assert tw.decode(model["d"].encoded()).tolist() == [[0, 1, 2, 3]]
        assert model["c"].format == "" and model["c"].array().dtype == "u1"
        with pytest.raises(tw.Unsupported) as caught:
            model["c"].encoded()
        assert (caught.value.field, caught.value.value) == ("c", "I64")
        for call in (
            lambda: model["a"].read(-1),
            lambda: model["a"].read(0, 49),
            lambda: model["a"].read(0, 1 << 60),
            lambda: model["a"].read(0, 4, bytearray(5)),
            lambda: model["a"].read(0, 4, bytes(4)),
            lambda: model.tensor("e"),
            lambda: model.tensor("a\0"),
        ):
            with pytest.raises(tw.InvalidArgument):
                call()
        with pytest.raises(KeyError, match="e"):
            model["e"]
        assert "ModelTensor('a', F32, (3, 4))" == repr(model["a"])


def test_refusals(tmp_path):
    with pytest.raises(tw.IoError):
        tw.open_model(tmp_path / "nothing")
    bad = tmp_path / "bad"
    for content in (b"", b"GGUF", b"GGUF" + bytes(20), struct.pack("<Q", 1 << 40) + b"{}", b"\xff" * 64):
        bad.write_bytes(content)
        with pytest.raises(tw.TilewrightError):
            tw.open_model(bad)
    with pytest.raises(tw.InvalidArgument, match="path"):
        tw.open_model(3)
