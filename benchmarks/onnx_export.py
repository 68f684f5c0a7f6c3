"""Compares the exported file of an embedder, in ONNX Runtime, with bertjax and PyTorch's export.

    python benchmarks/onnx_export.py --model DIR [--batches 1 32] [--lengths 16 128]

All contenders embed the same batches of texts of as many tokens, tokenization included, with all
cores, and take turns after a warm-up. PyTorch's export is that of `torch.onnx.export` with dynamo,
of the model in sentence-transformers. Needs the extra `parity`, and onnx, onnxruntime and
onnxscript.
"""

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from reporting import parser_of, ratios, report, take_turns
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from bertjax import load_pretrained
from bertjax.inference.onnx_export import exported, write_onnx
from bertjax.weights import load_model

Embed = Callable[[list[str]], np.ndarray]


class SentenceEmbedding(torch.nn.Module):
    """A model of sentence-transformers with arrays as arguments, for conversion."""

    def __init__(self, model: SentenceTransformer):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the vectors [B, D]."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return self.model(inputs)["sentence_embedding"]


def export_by_pytorch(directory: str, file: Path) -> None:
    """Writes an embedder as an ONNX file by PyTorch's exporter."""
    model = SentenceTransformer(directory, device="cpu").eval()
    example = dict(model.tokenizer(["a text", "a longer text"], padding=True, return_tensors="pt"))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        SentenceEmbedding(model),
        kwargs=example,
        f=file,
        input_names=[*example],
        output_names=["sentence_embedding"],
        dynamic_shapes=dict.fromkeys(example, sizes),
        dynamo=True,
    )


def in_onnxruntime(file: Path, tokenizer: Tokenizer) -> Embed:
    """Returns what embeds texts by a file, whose last output is the vectors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]

    def embed(texts: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch(texts)
        columns: dict[str, Any] = {
            "input_ids": [x.ids for x in encodings],
            "attention_mask": [x.attention_mask for x in encodings],
            "token_type_ids": [x.type_ids for x in encodings],
        }
        arrays = {name: np.array(columns[name], np.int64) for name in names}
        return np.asarray(session.run(["sentence_embedding"], arrays)[0])

    return embed


def main() -> None:
    """Reports the times of the others as ratios of those of our file in ONNX Runtime."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="the directory of an embedder")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    ours = load_pretrained(args.model)
    tokenizer = Tokenizer.from_file(f"{args.model}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    with tempfile.TemporaryDirectory() as folder:
        our_file = Path(folder, "ours.onnx")
        write_onnx(exported(load_model(args.model, "auto")), our_file)
        their_file = Path(folder, "pytorch.onnx")
        export_by_pytorch(args.model, their_file)
        sides: dict[str, Embed] = {
            "our file": in_onnxruntime(our_file, tokenizer),
            "PyTorch's file": in_onnxruntime(their_file, tokenizer),
            "bertjax": lambda texts: np.asarray(ours.embed(texts)),
        }
    for batch in args.batches:
        for length in args.lengths:
            texts = [" ".join(["word"] * (length - 2))] * batch
            first, seconds = take_turns(sides, texts, args.rounds)
            times = seconds.pop("our file")
            differences = {}
            for name in seconds:
                differences[name] = float(np.abs(first["our file"] - first[name]).max())
            figures = {
                "model": Path(args.model).resolve().name,
                "batch": batch,
                "length": length,
                "milliseconds_of_our_file": round(1000 * statistics.median(times), 2),
                "time_as_ratio_of_our_file": ratios(times, seconds),
                "largest_difference": differences,
            }
            report(figures, args.output, ("onnxruntime", "torch"))


if __name__ == "__main__":
    main()
