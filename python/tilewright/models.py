# SPDX-License-Identifier: Apache-2.0
"""Model files, GGUF and safetensors, told apart by their first bytes. Tensors are read when they are asked for.

    with tilewright.open_model("model.gguf") as model:
        w = model["blk.0.ffn_down.weight"]         # shape, type, format
        w.encoded()                                # an Encoded, as kernels read it

Files are untrusted: everything is checked before use, and a refusal names the field."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _arrays, _c, _errors, codec
from ._c import lib
from ._handles import Handle


class ModelTensor:
    """A tensor of an open file. shape: outermost first, a weight w[n, k] has (n, k). type: as the file names it.
    format: the library's name for the same bytes, "" if it has none. nbytes: in the file."""

    __slots__ = ("_model", "format", "name", "nbytes", "shape", "type")

    def __init__(self, model: Model, info: _c.TensorInfo) -> None:
        self._model = model
        self.name = _c.string(info.name)
        self.shape: tuple[int, ...] = tuple(info.dims[: info.dim_count]) if info.dim_count else ()
        self.type = _c.string(info.type)
        self.format = _c.string(info.format)
        self.nbytes: int = info.bytes

    def read(self, first: int = 0, count: int | None = None, to: Any = None) -> Any:
        """`count` bytes (None: all) from byte `first` on, as uint8; or into `to`, writable host memory of that size.
        Raises IoError; InvalidArgument for bytes outside the tensor."""
        count = self.nbytes - first if count is None else count
        if not 0 <= first <= self.nbytes or not 0 <= count <= self.nbytes - first:
            raise _errors.InvalidArgument(
                "first", str(first), f"must leave {count} bytes from there within {self.nbytes}"
            )
        out = _arrays.allocate(count) if to is None else to
        view = codec.on_host(out, "to", count)
        if view.readonly:
            raise _errors.must_be("to", "memory that is read-only", "writable memory")
        lib.tw_model_read(self._model, _c.text(self.name, "name"), first, view.pointer, count)
        view.close()
        return out

    def array(self) -> Any:
        """The whole tensor as a NumPy array: its elements if the format is plain elements (bf16 and FP8 as bits), else
        the bytes of each row."""
        return _arrays.typed(self.read(), self.format, self.shape or (1,))

    def encoded(self) -> codec.Encoded:
        """A matrix as kernels read it: all dimensions but the last are rows. Raises Unsupported if the library has no
        such format."""
        if not self.format:
            raise _errors.Unsupported(self.name, self.type, "must have a type that a format of the library has")
        cols = self.shape[-1] if self.shape else 1
        format = codec.find(self.format)
        row = format.stream_bytes("data", 1, cols)
        return codec.Encoded(format, self.nbytes // row if row else 0, cols, self.read())

    def __repr__(self) -> str:
        return f"ModelTensor({self.name!r}, {self.type}, {self.shape})"


class Metadata(Mapping[str, str]):
    """The file's metadata as text; numbers in decimal, an array as its type and length."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getitem__(self, key: str) -> str:
        value = lib.tw_model_metadata(self._model._open(), _c.text(key, "key"))
        if value is None:
            raise KeyError(key)
        return _c.string(value)

    def __iter__(self) -> Iterator[str]:
        return (_c.string(lib.tw_model_metadata_key(self._model._open(), i)) for i in range(len(self)))

    def __len__(self) -> int:
        return int(lib.tw_model_metadata_count(self._model._open()))


class Model(Handle, Mapping[str, ModelTensor]):
    """An open model file: a mapping of names to tensors, in the file's order. Usable from any thread."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        handle = ctypes.c_void_p()
        lib.tw_model_open(_c.path(path, "path"), ctypes.byref(handle))
        self._own("model", handle)
        self.path = os.fspath(path)
        self.metadata = Metadata(self)

    def tensor(self, name: str) -> ModelTensor:
        """Raises InvalidArgument, naming tensors that exist."""
        info = _c.TensorInfo()
        lib.tw_model_find(self, _c.text(name, "name"), ctypes.byref(info))
        return ModelTensor(self, info)

    def __getitem__(self, name: str) -> ModelTensor:
        try:
            return self.tensor(name)
        except _errors.InvalidArgument as error:
            if self.closed or not isinstance(name, str):
                raise
            raise KeyError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        for i in range(len(self)):
            info = _c.TensorInfo()
            lib.tw_model_tensor(self, i, ctypes.byref(info))
            yield _c.string(info.name)

    def __len__(self) -> int:
        return int(lib.tw_model_tensor_count(self._open()))

    def __repr__(self) -> str:
        return f"Model({self.path!r})"


def open_model(path: str | os.PathLike[str]) -> Model:
    """Opens a GGUF or safetensors file. Raises IoError if it cannot be read, InvalidArgument or Unsupported naming what
    is wrong in it."""
    return Model(path)
