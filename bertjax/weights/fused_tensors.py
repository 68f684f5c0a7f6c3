"""Tensors of PyTorch files that hold several of our parameters, one after the other.

ModernBERT's files have one matrix for query, key and value (`Wqkv`), and one for both halves of the
gated linear unit (`Wi`); our parameter tree has each apart, so that meshes and rematerialisation
treat them as in BERT. `Family.fused` names them: {"attn.Wqkv": ("query", "key", "value")} says that
`attn.Wqkv.weight` is the concatenation, on axis 0, of tensors that are called
`attn.Wqkv.query.weight` and so on here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

Fused = Mapping[str, tuple[str, ...]]


class SplitTensors(Mapping[str, np.ndarray]):
    """The tensors of a model's files, with fused tensors split into their parts.

    Args:
        tensors: {PyTorch name: tensor}, read when accessed.
        fused: the fused modules and their parts, as in `Family.fused`.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], fused: Fused):
        self._tensors = tensors
        self._parts: dict[str, tuple[str, int, int]] = {}  # name: stored name, index, count
        for name in tensors:
            match = _pattern(fused).fullmatch(name) if fused else None
            parts = fused[match["module"]] if match else ()
            for index, part in enumerate(parts):
                split = f"{match['before']}{match['module']}.{part}.{match['kind']}"  # type: ignore[index]
                self._parts[split] = name, index, len(parts)
            if not parts:
                self._parts[name] = name, 0, 1

    def __getitem__(self, name: str) -> np.ndarray:
        stored, index, count = self._parts[name]
        tensor = self._tensors[stored]
        # A tensor that does not split is returned whole, and refused by its shape.
        if count == 1 or not tensor.ndim or len(tensor) % count:
            return tensor
        return np.split(tensor, count)[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def join_fused(
    tensors: Iterable[tuple[str, np.ndarray]], fused: Fused
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (PyTorch name, tensor) of `tensors`, with the parts of fused tensors joined.

    Tensors have the shapes of PyTorch: parts [out, in] become [sum of out, in]. `fused` are the
    fused modules and their parts, as in `Family.fused`. A fused tensor takes the place of the last
    of its parts.
    """
    waiting: dict[str, dict[str, np.ndarray]] = {}
    for name, value in tensors:
        match = _split_pattern(fused).fullmatch(name) if fused else None
        if match is None:
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
    return re.compile(rf"(?P<before>(?:.*\.)?)(?P<module>{modules})\.(?P<kind>weight|bias)")


def _split_pattern(fused: Fused) -> re.Pattern[str]:
    modules = "|".join(map(re.escape, fused))
    return re.compile(
        rf"(?P<before>(?:.*\.)?)(?P<module>{modules})\.(?P<part>\w+)\.(?P<kind>weight|bias)"
    )
