"""Model checkpoints as mappings of tensors: safetensors and GGUF, local, on the web, in S3, on the Hub.

>>> m = stfs.open(path)
>>> list(m)
['bias', 'weight']
>>> m["weight"]
<stfs.Tensor 'weight' BF16 [2,3]>
>>> m["weight"].numpy(as_="f32")
array([[0., 1., 2.],
       [3., 4., 5.]], dtype=float32)
>>> m["weight"][0, ::2].numpy(as_="f32")
array([0., 2.], dtype=float32)

Nothing is read before it is asked for, and of remote sources only what is asked for is fetched, once, into a
cache on the disk. `stfs.open("hf://org/model-FP8", dequantize="bf16")` shows quantised weights as if they
had been released unquantised.

Importing the module starts no thread, reads no credentials and needs neither NumPy nor torch.
"""

from ._errors import (Cancelled, Error, InvalidCheckpoint, NoSuchTensor, NotFound, NotPermitted,
                      SafetensorError, Unreadable, UsageError)
from ._checkpoint import Checkpoint, open
from ._follow import follow
from ._library import version
from ._tensor import Tensor
from ._stand_in import safe_open



def __getattr__(name: str) -> object:
    """stfs.numpy, stfs.torch and stfs.gpu are imported when they are used."""
    if name in ("gpu", "numpy", "torch"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__version__ = version()
__all__ = [
    "Cancelled", "Checkpoint", "Error", "InvalidCheckpoint", "NoSuchTensor", "NotFound", "NotPermitted",
    "SafetensorError", "Tensor", "Unreadable", "UsageError", "follow", "open", "safe_open",
    "version",
]
