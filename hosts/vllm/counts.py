# SPDX-License-Identifier: Apache-2.0
"""What judge.py asks vLLM's workers: vLLM mixes this class into them (worker_extension_cls)."""


class Counts:
    def tilewright_counts(self):
        """Layers that our kernels compute, and what the engine has compiled and prepared so far."""
        try:
            import tilewright.torch as twt
            from tilewright.vllm.experts import Experts
            from tilewright.vllm.prepared import Prepared
        except (ImportError, OSError):  # without libtilewright_c
            return {}
        modules = list(self.model_runner.model.modules())
        out = {"layers": sum(isinstance(m, Prepared) for m in modules), "experts": sum(isinstance(m, Experts) for m in modules)}
        if not any(out.values()):
            return out
        stats = twt.engine().stats
        return out | {"compiled": stats.compiled, "prepared": stats.prepared, "built_in": stats.built_in}
