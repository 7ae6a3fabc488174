"""safe_open of safetensors, over any source that stfs reads."""

import operator
from typing import Any, Dict, List, Optional, Tuple

from ._checkpoint import Checkpoint, open as _open
from ._errors import NotFound, NotPermitted, SafetensorError, Unreadable
from ._errors import Error
from ._tensor import Tensor
from ._types import PACKED, type_of

_FRAMEWORKS = {"pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy",
               "tf": "tensorflow", "tensorflow": "tensorflow", "flax": "jax", "jax": "jax", "mlx": "mlx",
               "paddle": "paddle"}


def check_backend(backend: str) -> None:
    if backend not in ("mmap", "pread"):  # stfs chooses how to read, whatever the backend
        raise SafetensorError(f"backend {backend} is invalid", 2)


def opened(filename: Any) -> Checkpoint:
    """Opens a checkpoint, and raises the exceptions of safetensors."""
    try:
        return _open(filename)
    except (NotFound, NotPermitted) as error:
        is_url = "://" in str(filename)  # the query of a URL may be a secret
        raise FileNotFoundError(str(error) if is_url else f"No such file or directory: {filename}") from None
    except Unreadable as error:
        if "://" in str(filename):
            raise
        raise FileNotFoundError(f"No such file or directory: {filename} ({error})") from None
    except Error as error:
        raise SafetensorError(f"Error while deserializing header: {error}", error.status) from None


def as_framework(tensor: Tensor, framework: str, device: Any = "cpu") -> Any:
    """Returns the values as an array of a framework: for torch on the CPU private writable memory, otherwise a copy.
    Types whose elements share bytes, such as GGUF's block types, become float32."""
    as_ = "f32" if type_of(tensor.dtype) is PACKED else None
    if framework == "torch":
        return tensor.torch(as_, device)
    array = tensor.numpy(as_, copy=True)
    if framework == "numpy":
        return array
    if framework == "jax":
        import jax.numpy

        return jax.numpy.asarray(array)
    if framework == "tensorflow":
        import tensorflow

        return tensorflow.convert_to_tensor(array)
    if framework == "mlx":
        import mlx.core

        return mlx.core.array(array)
    import paddle

    return paddle.to_tensor(array)


def all_of(checkpoint: Checkpoint, framework: str, device: Any = "cpu") -> Dict[str, Any]:
    """Returns all tensors as arrays of a framework, in the order of their bytes."""
    if framework == "torch":
        files: Dict[int, Any] = {}
        return {name: as_framework(tensor, framework, device) if type_of(tensor.dtype) is PACKED
                else tensor._torch(device, files) for name, tensor in checkpoint.items()}
    return {name: as_framework(tensor, framework) for name, tensor in checkpoint.items()}


class _Slice:
    """The result of get_slice(). Reads a part when it is indexed."""

    def __init__(self, tensor: Tensor, framework: str, device: Any):
        self._tensor, self._framework, self._device = tensor, framework, device

    def get_shape(self) -> List[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._tensor.dtype

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list) and not key:
            key = slice(0, 0)
        if self._framework == "torch":
            try:
                part = self._tensor[key]
            except TypeError:  # torch handles a list, a mask or None
                return self._tensor.torch()[key].to(self._device)
            return as_framework(part, "torch", self._device)
        _check_key(key, self._tensor.shape)
        try:
            part = self._tensor[key]
        except (IndexError, TypeError) as error:
            raise SafetensorError(f"Error during slicing: {error}", 2) from None
        return as_framework(part, self._framework)


def _check_key(key: Any, shape: Tuple[int, ...]) -> None:
    """Raises the exceptions of safetensors for frameworks other than torch, for which it does not clamp bounds."""
    items = key if isinstance(key, tuple) else (key,)
    if any(isinstance(item, list) and item for item in items):
        raise SafetensorError("Non empty lists are not implemented", 2)
    if any(item is ... for item in items):
        return

    def shown(item: Any) -> str:
        if not isinstance(item, slice):
            return str(item)
        return f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}"

    def out_of_bounds(index: int, dimension: int, size: int) -> SafetensorError:
        return SafetensorError(f"Error during slicing [{', '.join(map(shown, items))}] with shape {list(shape)}: index "
                               f"{index} out of bounds for tensor dimension #{dimension} of size {size}", 2)

    for dimension, (item, size) in enumerate(zip(items, shape)):
        if isinstance(item, slice):
            for bound in (item.start, item.stop):
                if bound is not None and bound < 0:
                    raise OverflowError("can't convert negative int to unsigned")
            last = size if item.stop is None else item.stop
            if last > size:
                raise out_of_bounds(last - 1, dimension, size)
        elif hasattr(item, "__index__") and operator.index(item) < -size:
            raise SafetensorError(f"Invalid index {item} for dimension {dimension} of size {size}", 2)
        elif hasattr(item, "__index__") and operator.index(item) >= size:
            raise out_of_bounds(item, dimension, size)


class safe_open:
    """safetensors.safe_open, argument by argument; `filename` may be any source of stfs.open().

    >>> with stfs.safe_open(path, framework="np") as f:
    ...     f.get_tensor("weight").shape
    (2, 3)

    Steps of slices, which safetensors ignores for all frameworks but torch, are respected.
    """

    def __init__(self, filename: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap"):
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid", 2)
        self._framework = _FRAMEWORKS[framework]
        self._device = device_of(device)
        if self._framework == "numpy" and self._device != "cpu":
            raise SafetensorError(f"Device {self._device} is not supported for framework numpy", 2)
        check_backend(backend)
        self._checkpoint: Optional[Checkpoint] = opened(filename)

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            raise SafetensorError("File is closed", 2)
        return self._checkpoint

    def __enter__(self) -> "safe_open":
        self._open()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._checkpoint = None

    def keys(self) -> List[str]:
        return sorted(self._open())

    def offset_keys(self) -> List[str]:
        return list(self._open())

    def metadata(self) -> Optional[Dict[str, str]]:
        return self._open().metadata or None

    def _tensor(self, name: str) -> Tensor:
        checkpoint = self._open()
        if name not in checkpoint:
            raise SafetensorError(f"File does not contain tensor {name}", 2)
        return checkpoint[name]

    def get_tensor(self, name: str) -> Any:
        return as_framework(self._tensor(name), self._framework, self._device)

    def get_tensors(self) -> Dict[str, Any]:
        return all_of(self._open(), self._framework, self._device)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensor(name), self._framework, self._device)

    def __len__(self) -> int:
        return len(self._open())

    def __contains__(self, name: object) -> bool:
        return name in self._open()

    def __iter__(self) -> Any:
        return iter(self.keys())


def device_of(device: Any) -> Any:
    """Returns a device as safetensors names it. Raises the exceptions of safetensors."""
    if device is None:
        return "cpu"
    if isinstance(device, bool) or not isinstance(device, (str, int)) or (isinstance(device, int) and device < 0):
        raise SafetensorError(f"device {device} is invalid", 2)
    if isinstance(device, int):
        return f"cuda:{device}"
    kind, colon, number = device.partition(":")
    if kind not in ("cpu", "cuda", "mps", "npu", "xpu", "xla", "mlu", "musa", "hpu"):
        raise SafetensorError(f"device {device} is invalid", 2)
    if colon and not (number.isdecimal() and number.isascii()):
        raise ValueError(f"device {device}: expected a number after the colon")
    return device
