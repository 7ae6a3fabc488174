"""Clients that read tensors with PyTorch, CuPy and JAX. They print the address and the sum of each.

FILE is a checkpoint from checkpoints.write_sums.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import stfs_gpu

from checkpoints import SUM_TYPES
from readers import say


def each(device: str, file: str, see: Callable[[Any], tuple[int, float]]) -> None:
    """Prints the result of the library for each type, or its error if it refuses the type."""
    with stfs_gpu.connect(start_holder=False) as connection:
        for dtype in SUM_TYPES:
            with connection.acquire(f"{file}::{dtype}", device=device) as acquired:
                try:
                    address, found = see(acquired[0])
                except Exception as error:  # libraries raise their own exceptions
                    say(row=dtype, refused=f"{type(error).__name__}: {error}".splitlines()[0][:200])
                    continue
                say(row=dtype, same_address=address == acquired[0].ptr, sum=found)


def with_torch(device: str, file: str) -> None:
    import torch

    def see(tensor: Any) -> tuple[int, float]:
        array = torch.from_dlpack(tensor)
        return array.data_ptr(), array.to(torch.float64).sum().item()
    each(device, file, see)


def with_cupy(device: str, file: str) -> None:
    import cupy

    def see(tensor: Any) -> tuple[int, float]:
        array = cupy.from_dlpack(tensor)
        return array.data.ptr, float(array.astype("float64").sum())
    each(device, file, see)


def with_jax(device: str, file: str) -> None:
    import jax
    import jax.numpy

    def see(tensor: Any) -> tuple[int, float]:
        array = jax.dlpack.from_dlpack(tensor)
        return array.unsafe_buffer_pointer(), float(array.astype(jax.numpy.float32).sum())
    each(device, file, see)


def torch_drop(device: str, file: str) -> None:
    """Drops a tensor while a sum that uses it is queued after a kernel that waits. Prints the sum, and
    whether it was still pending."""
    import torch
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = connection.acquire(f"{file}::F32", device=device)
    array = torch.from_dlpack(acquired[0])
    array.to(torch.float64).sum().item()  # loads the kernels now, because loading would wait for _sleep
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    found = array.to(torch.float64).sum()
    acquired.release()
    pending = not torch.cuda.current_stream().query()
    del array, acquired
    torch.cuda.synchronize()
    say(sum=found.item(), pending=pending)


def torch_store(device: str, file: str) -> None:
    """Prints the error of PyTorch for a kernel that stores into read-only memory."""
    import os
    import torch
    with stfs_gpu.connect(start_holder=False) as connection:
        acquired = connection.acquire(f"{file}::F32", device=device)
    array = torch.from_dlpack(acquired[0])
    try:
        array.zero_()
        torch.cuda.synchronize()
        say(refused="")
    except RuntimeError as error:
        say(refused=str(error).splitlines()[0][:200])
    sys.stdout.flush()
    os._exit(0)  # a context with a fault cannot free anything


VERBS = {"torch": with_torch, "cupy": with_cupy, "jax": with_jax, "torch_drop": torch_drop,
         "torch_store": torch_store}
