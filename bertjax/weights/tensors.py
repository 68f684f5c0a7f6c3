"""Tensors that are read when they are accessed, and tensors that hold several of our parameters.

ModernBERT's files have one matrix for query, key and value (`Wqkv`), and one for both halves of the
gated linear unit (`Wi`); our parameter tree has each apart, so that meshes and rematerialisation
treat them as in BERT. `Family.fused` names them: {"attn.Wqkv": ("query", "key", "value")} says that
`attn.Wqkv.weight` is the concatenation, on axis 0, of tensors that are called
`attn.Wqkv.query.weight` and so on here.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

Fused = Mapping[str, tuple[str, ...]]


class LazyTensors(Mapping[str, np.ndarray]):
    """Tensors by name; `readers` maps each name to the function that reads the tensor."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:  # The inherited method would read the tensor.
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def split_fused(tensors: Mapping[str, np.ndarray], fused: Fused) -> Mapping[str, np.ndarray]:
    """Returns the tensors of a model's files, with fused tensors split into their parts."""
    if not fused:
        return tensors
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for name in tensors:
        match = _pattern(fused).fullmatch(name)
        if match is None or match["part"]:
            readers[name] = functools.partial(tensors.__getitem__, name)
            continue
        parts = fused[match["module"]]
        for index, part in enumerate(parts):
            split = f"{match['before']}{match['module']}.{part}.{match['kind']}"
            readers[split] = functools.partial(_read_part, tensors, name, index, len(parts))
    return LazyTensors(readers)


def _read_part(tensors: Mapping[str, np.ndarray], name: str, index: int, count: int) -> np.ndarray:
    tensor = tensors[name]
    # A tensor that does not split is returned whole, and refused by its shape.
    if not tensor.ndim or len(tensor) % count:
        return tensor
    return np.split(tensor, count)[index]


def join_fused(
    tensors: Iterable[tuple[str, np.ndarray]], fused: Fused
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (PyTorch name, tensor) of `tensors`, with the parts of fused tensors joined.

    Parts [out, in] become [sum of out, in], in the place of the last part.
    """
    waiting: dict[str, dict[str, np.ndarray]] = {}
    for name, value in tensors:
        match = _pattern(fused).fullmatch(name) if fused else None
        if match is None or not match["part"]:
            yield name, value
            continue
        whole = f"{match['before']}{match['module']}.{match['kind']}"
        parts = waiting.setdefault(whole, {})
        parts[match["part"]] = value
        order = fused[match["module"]]
        if len(parts) == len(order):
            yield whole, np.concatenate([parts[part] for part in order])
            del waiting[whole]


def _pattern(fused: Fused) -> re.Pattern[str]:
    modules = "|".join(map(re.escape, fused))
    return re.compile(
        rf"(?P<before>(?:.*\.)?)(?P<module>{modules})\.((?P<part>\w+)\.)?(?P<kind>weight|bias)"
    )
