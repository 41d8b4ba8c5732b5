# SPDX-License-Identifier: Apache-2.0
"""Loss scaling: unscales gradients of many tensors in one launch, and updates the scale, on the tensors' device. The
formulas are torch._amp_foreach_non_finite_check_and_unscale_'s and torch._amp_update_scale_'s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._errors import InvalidArgument, must_be
from . import _cuda
from ._spec import FLOATS, FORMATS

_READY, _UNSCALED, _STEPPED = range(3)


def unscale_(tensors: Sequence[Tensor], scale: Tensor, found_inf: Tensor | None = None) -> Tensor:
    """Multiplies every tensor by 1 / scale, in place: one launch for each dtype among them. scale: one positive finite
    float32 on their device. Returns found_inf, one float32: 1 if an element was infinite or NaN, or the given found_inf
    was not 0; else 0. Does not synchronize. Raises InvalidArgument naming the argument."""
    tensors = list(tensors)
    if not tensors:
        raise InvalidArgument("tensors", "none", "must have at least one")
    place = tensors[0].device
    for i, t in enumerate(tensors):
        if t.dtype not in FORMATS:
            raise must_be(f"tensors[{i}]", f"dtype {t.dtype}", FLOATS)
        if t.layout is not torch.strided:
            raise must_be(f"tensors[{i}]", f"layout {t.layout}", "a strided tensor")
        if t.device != place:
            raise must_be(f"tensors[{i}]", f"a tensor on {t.device}", f"one on {place}, as the first")
    _check_word("scale", scale, torch.float32, place)
    if found_inf is not None:
        _check_word("found_inf", found_inf, torch.float32, place)
    with torch.no_grad():
        if place.type == "cuda":
            return _cuda.unscale(tensors, scale, found_inf)
        if place.type != "cpu":
            raise must_be("tensors[0]", f"a tensor on {place}", "one on a CUDA device or the CPU")
        _check_scale("scale", float(scale))
        found = found_inf is not None and float(found_inf) != 0
        factor = scale.reciprocal()
        for t in tensors:
            found = found or not bool(torch.isfinite(t).all())
            t.copy_(t.float() * factor)
        return torch.full_like(scale, float(found))


def update_scale_(
    scale: Tensor,
    good_steps: Tensor,
    found_inf: Tensor,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> None:
    """Updates the scale, and the good steps since it changed, in place. scale and found_inf: one float32 each,
    good_steps: one int32, on one device. Raises InvalidArgument naming the argument."""
    _check_factors(growth_factor, backoff_factor, growth_interval)
    for name, word, dtype in (
        ("scale", scale, torch.float32),
        ("good_steps", good_steps, torch.int32),
        ("found_inf", found_inf, torch.float32),
    ):
        _check_word(name, word, dtype, scale.device)
    if scale.device.type == "cuda":
        _cuda.update_scale(scale, good_steps, found_inf, growth_factor, backoff_factor, growth_interval)
        return
    now, good = float(scale), int(good_steps)
    if float(found_inf) != 0:
        now, good = now * backoff_factor, 0
    elif good + 1 < growth_interval:
        good += 1
    else:
        grown = float(torch.tensor(now * growth_factor, dtype=torch.float32))
        now, good = grown if math.isfinite(grown) else now, 0
    scale.fill_(now)
    good_steps.fill_(good)


def _check_word(name: str, word: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    if word.numel() != 1 or word.dtype != dtype or word.device != device:
        value = f"{word.numel()} elements of {word.dtype} on {word.device}"
        raise must_be(name, value, f"one element of {dtype} on {device}")


def _check_scale(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise must_be(name, f"{value}", "a positive finite number")


def _check_factors(growth: float, backoff: float, interval: int) -> None:
    if not (growth > 1 and math.isfinite(growth)):
        raise must_be("growth_factor", f"{growth}", "a finite number greater than 1")
    if not 0 < backoff < 1:
        raise must_be("backoff_factor", f"{backoff}", "greater than 0 and less than 1")
    if isinstance(interval, bool) or not isinstance(interval, int) or not 1 <= interval < 1 << 31:
        raise must_be("growth_interval", f"{interval}", "1 to 2147483647")


class GradScaler:
    """torch.amp.GradScaler, with the same arguments, methods and state_dict(), for gradients on one device (device: its
    type, as "cuda"; None: the first loss's). It unscales by one launch for each dtype. The host waits only in step(),
    if an optimizer cannot skip by itself. One thread at a time."""

    def __init__(
        self,
        device: str | torch.device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        try:
            self._device = None if device is None else torch.device(device).type
        except (RuntimeError, TypeError):
            raise must_be("device", repr(device), "cuda, cpu or None; init_scale is the second argument") from None
        _check_scale("init_scale", init_scale)
        _check_scale("init_scale", float(torch.tensor(init_scale, dtype=torch.float32)))
        _check_factors(growth_factor, backoff_factor, growth_interval)
        self._factors = (growth_factor, backoff_factor, growth_interval)
        self._init = (init_scale, 0)
        self._enabled = enabled
        self._scale: Tensor | None = None
        self._good_steps: Tensor | None = None
        # By optimizer: its state in the step, and its found_inf.
        self._optimizers: dict[int, tuple[int, Tensor | None]] = {}

    def is_enabled(self) -> bool:
        return self._enabled

    def scale(self, outputs: Any) -> Any:
        """A loss, or losses in lists and tuples, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._on(outputs.device).reshape(())  # a loss of half precision becomes float32
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self.scale(each) for each in outputs)
        raise must_be("outputs", type(outputs).__name__, "a tensor, or a list or tuple of tensors")

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscales the gradients of an optimizer's parameters, once before each update(): to clip them, say."""
        if not self._enabled:
            return
        state, _ = self._optimizers.get(id(optimizer), (_READY, None))
        if state != _READY:
            raise must_be("optimizer", "one that was unscaled or stepped", "unscaled once before each update()")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(grad.dtype == torch.float16 for grad in grads):
            allowed = "must have float32 or bfloat16 gradients: float16 would lose what scaling saved"
            raise InvalidArgument("optimizer", "one with float16 gradients", f"{allowed}; keep parameters in float32")
        if not grads:
            raise InvalidArgument("optimizer", "one without gradients", "must have gradients: call backward() first")
        self._optimizers[id(optimizer)] = (_UNSCALED, unscale_(grads, self._on(grads[0].device)))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(), unless a gradient is infinite or NaN: then None. Unscales first if needed."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise must_be("closure", "one", "None: gradients of a closure would not be unscaled")
        state, _ = self._optimizers.get(id(optimizer), (_READY, None))
        if state == _STEPPED:
            raise must_be("optimizer", "one that was stepped", "stepped once before each update()")
        if state == _READY:
            self.unscale_(optimizer)
        found = self._optimizers[id(optimizer)][1]
        assert found is not None
        self._optimizers[id(optimizer)] = (_STEPPED, found)
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # fused ones, which skip on the device
            optimizer.grad_scale, optimizer.found_inf = None, found.reshape(())  # type: ignore[attr-defined]
            try:
                return optimizer.step(**kwargs)
            finally:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        return None if float(found) else optimizer.step(**kwargs)

    def update(self, new_scale: float | None = None) -> None:
        """After all optimizers' steps: the scale of the next one, or new_scale."""
        if not self._enabled:
            return
        if new_scale is not None:
            _check_scale("new_scale", float(new_scale))
            self._words()[0].fill_(float(new_scale))
        else:
            found = [f for _, f in self._optimizers.values() if f is not None]
            if not found:
                raise InvalidArgument("update", "no gradients", "must follow a step() or unscale_()")
            both = found[0] if len(found) == 1 else torch.stack(found).amax(0)
            update_scale_(*self._words(), both, *self._factors)
        self._optimizers.clear()

    def get_growth_factor(self) -> float:
        return self._factors[0]

    def set_growth_factor(self, new_factor: float) -> None:
        self._set_factors(growth=new_factor)

    def get_backoff_factor(self) -> float:
        return self._factors[1]

    def set_backoff_factor(self, new_factor: float) -> None:
        self._set_factors(backoff=new_factor)

    def get_growth_interval(self) -> int:
        return self._factors[2]

    def set_growth_interval(self, new_interval: int) -> None:
        self._set_factors(interval=new_interval)

    def _set_factors(
        self, growth: float | None = None, backoff: float | None = None, interval: int | None = None
    ) -> None:
        now = self._factors
        growth = now[0] if growth is None else growth
        backoff = now[1] if backoff is None else backoff
        interval = now[2] if interval is None else interval
        _check_factors(growth, backoff, interval)
        self._factors = (growth, backoff, interval)

    def get_scale(self) -> float:
        """Waits for the device."""
        return 1.0 if not self._enabled else self._init[0] if self._scale is None else float(self._scale)

    def state_dict(self) -> dict[str, Any]:
        if not self._enabled:
            return {}
        growth, backoff, interval = self._factors
        good = self._init[1] if self._good_steps is None else int(self._good_steps)
        return {
            "scale": self.get_scale(),
            "growth_factor": growth,
            "backoff_factor": backoff,
            "growth_interval": interval,
            "_growth_tracker": good,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._enabled:
            return
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        missing = [name for name in names if name not in state]
        if missing:
            raise must_be("state", f"no {missing[0]}", "a state_dict() of an enabled scaler")
        scale, growth, backoff, interval, good = (state[name] for name in names)
        _check_scale("scale", scale)
        _check_factors(growth, backoff, interval)
        self._factors, self._init = (growth, backoff, interval), (scale, good)
        if self._scale is not None:
            for word, value in zip(self._words(), self._init):
                word.fill_(value)

    def _on(self, device: torch.device) -> Tensor:
        if self._device not in (None, device.type):
            raise must_be("outputs", f"a tensor on {device}", f"one on {self._device}, the scaler's device")
        if self._scale is None:
            self._scale = torch.full((1,), self._init[0], dtype=torch.float32, device=device)
            self._good_steps = torch.full((1,), self._init[1], dtype=torch.int32, device=device)
        if self._scale.device != device:
            raise must_be("outputs", f"a tensor on {device}", f"one on {self._scale.device}, as the first loss")
        return self._scale

    def _words(self) -> tuple[Tensor, Tensor]:
        if self._scale is None or self._good_steps is None:
            raise InvalidArgument("update", "no loss", "must follow scale()")
        return self._scale, self._good_steps
