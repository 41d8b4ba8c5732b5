# SPDX-License-Identifier: Apache-2.0
"""Makes minilm-l6-v2-tiny.gguf: two real weight matrices of all-MiniLM-L6-v2 in every ggml format Tilewright reads.

usage: make_minilm.py MODEL.safetensors GGML_GIT_DIR OUT.gguf      (see README.md beside this file)
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, quants
from safetensors.numpy import load_file

from ggml_reference import Ggml

TENSORS = {
    "blk.0.ffn_down": "encoder.layer.0.output.dense",
    "blk.0.attn_q": "encoder.layer.0.attention.self.query",
}


def main(model: str, git_dir: str, out: str) -> None:
    weights, ggml = load_file(model), Ggml(git_dir)
    writer = GGUFWriter(out, "bert")
    writer.add_name("all-MiniLM-L6-v2, two matrices of layer 0")
    writer.add_license("apache-2.0")
    writer.add_block_count(1)
    writer.add_embedding_length(384)
    writer.add_feed_forward_length(1536)
    for name, source in TENSORS.items():
        w = np.ascontiguousarray(weights[source + ".weight"], dtype=np.float32)
        writer.add_tensor(name + ".weight", w)
        writer.add_tensor(name + ".bias", np.ascontiguousarray(weights[source + ".bias"], dtype=np.float32))
        for kind in (T.Q4_0, T.Q8_0):
            data = quants.quantize(w, kind)
            assert (data == ggml.encode(kind.name.lower(), w)).all(), "the package and ggml disagree"
            writer.add_tensor(f"{name}.weight.{kind.name.lower()}", data, raw_dtype=kind)
        if w.shape[1] % 256 == 0:
            writer.add_tensor(name + ".weight.q4_k", ggml.encode("q4_k", w), raw_dtype=T.Q4_K)
        else:
            writer.add_tensor(name + ".weight.f16", w.astype(np.float16))
            writer.add_tensor(name + ".weight.bf16", quants.quantize(w, T.BF16), raw_dtype=T.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
