"""Tensors of torch that share memory: a file holds their bytes once, under one of the names."""

from typing import Any, Container, Dict, Iterator, List, Mapping, Tuple


def storage_ptr(tensor: Any) -> int:
    """The address of the memory that a tensor is a view of; 0 for one without memory (meta)."""
    return 0 if tensor.device.type == "meta" else int(_storage(tensor).data_ptr())


def storage_size(tensor: Any) -> int:
    """The bytes of that memory; of a tensor without memory those that it would have."""
    return nbytes(tensor) if tensor.device.type == "meta" else int(_storage(tensor).nbytes())


def _storage(tensor: Any) -> Any:
    # Before torch 2.0 there is only storage(), which later warns.
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def nbytes(tensor: Any) -> int:
    return int(tensor.nelement()) * int(tensor.element_size())


def _place(tensor: Any) -> Tuple[int, int]:
    """The addresses of its first byte and behind its last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _places(tensors: Mapping[str, Any]) -> Dict[str, Tuple[str, int, int]]:
    return {name: (str(tensor.device), *_place(tensor)) for name, tensor in tensors.items()
            if tensor.nelement() and tensor.device.type != "meta"}


def overlapping(tensors: Mapping[str, Any]) -> Iterator[List[str]]:
    """The names of tensors whose memory overlaps, together; each in a list of at least two."""
    places = _places(tensors)
    group: List[str] = []
    device, end = "", 0
    for name in sorted(places, key=lambda each: places[each]):
        if group and places[name][0] == device and places[name][1] < end:
            group.append(name)
            end = max(end, places[name][2])
            continue
        if len(group) > 1:
            yield group
        group, device, end = [name], places[name][0], places[name][2]
    if len(group) > 1:
        yield group


def names_left_out(tensors: Mapping[str, Any], preferred: Container[str] = ()) -> Dict[str, str]:
    """Of tensors that share memory all names but one -> that one, which has all bytes of the others.

    Of several such names it is a preferred one, else the first in the alphabet.
    """
    left_out: Dict[str, str] = {}
    for group in overlapping(tensors):
        places = [_place(tensors[name]) for name in group]
        length = max(end for _, end in places) - min(begin for begin, _ in places)
        whole = [name for name in group if nbytes(tensors[name]) == length]
        if not whole:
            raise RuntimeError(f"{sorted(group)} share memory, and none of them has all of it: clone() them")
        kept = min(whole, key=lambda name: (name not in preferred, name))
        left_out.update((name, kept) for name in sorted(group) if name != kept)
    return left_out
