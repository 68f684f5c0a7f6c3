"""Compares embeddings on a CPU with PyTorch, ONNX Runtime and OpenVINO, in the same precision.

    python benchmarks/cpu_inference.py --model DIR [--dtype bfloat16] [--texts 2000] [--words 200]

All contenders compute mean-pooled embeddings of the same texts, sorted by length: sentences of
mixed lengths, or, with `--words N`, passages of N words. The others pad batches of 32 texts to the
longest text of the batch. They use the same tokenizer (that of transformers, in Rust) and the same
number of threads, and take turns after a warm-up. Without `--model`, it is BERT-base with random
weights. ONNX Runtime has no bfloat16 on CPUs. Needs the extra `parity`, and onnx, onnxruntime and
openvino.
"""

import importlib
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from reporting import parser_of, ratios, report, take_turns

from bertjax import load_pretrained
from bertjax.data.text.corpus import Corpus
from bertjax.data.text.sentences import sentences_of

BATCH = 32
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]


class LastHiddenState(torch.nn.Module):
    """A model of transformers that returns its last hidden state alone, for conversion."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the last hidden state [B, L, D]."""
        return self.model(input_ids, attention_mask).last_hidden_state


def some_texts(count: int, words: int | None) -> list[str]:
    """Returns evenly spaced sentences of Python's documentation, or passages of `words` words."""
    documents = Corpus(["pydocs"]).documents()
    if words is None:
        texts = [sentence for document in documents for sentence in sentences_of(document)]
    else:
        split = " ".join(" ".join(sentences_of(document)) for document in documents).split()
        texts = [" ".join(split[i : i + words]) for i in range(0, len(split) - words, words)]
    if len(texts) < count:
        raise SystemExit(f"Only {len(texts):,} texts of that length: --texts must be smaller.")
    return texts[:: len(texts) // count][:count]


def sorted_by_length(
    tokenizer: Any, run: Callable[[Any], np.ndarray]
) -> Callable[[list[str]], np.ndarray]:
    """Returns a function of texts that calls `run` with padded batches, sorted by length."""

    def of_texts(texts: list[str]) -> np.ndarray:
        rows = tokenizer(texts, truncation=True)["input_ids"]
        order = np.argsort([len(row) for row in rows], kind="stable")
        results = []
        for start in range(0, len(order), BATCH):
            chosen = [{"input_ids": rows[i]} for i in order[start : start + BATCH]]
            results.append(run(tokenizer.pad(chosen, return_tensors="np")))
        return np.concatenate(results)[np.argsort(order, kind="stable")]

    return of_texts


def in_pytorch(model: torch.nn.Module, dtype: str) -> Forward:
    """Returns a forward pass in PyTorch with scaled dot-product attention."""
    model = model.to(getattr(torch, dtype))

    def forward(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()

    return forward


def in_openvino(model: torch.nn.Module, dtype: str) -> Forward:
    """Returns a forward pass in OpenVINO."""
    openvino: Any = importlib.import_module("openvino")
    example = torch.ones(2, 16, dtype=torch.long)
    hints = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "INFERENCE_NUM_THREADS": os.cpu_count(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    converted = openvino.convert_model(model, example_input=(example, example))
    compiled = openvino.Core().compile_model(converted, "CPU", hints)
    return lambda ids, mask: compiled([ids, mask])[0]


def in_onnxruntime(model: torch.nn.Module, dtype: str) -> Forward:
    """Returns a forward pass in ONNX Runtime, which supports float32 only."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    if dtype != "float32":
        raise ValueError("ONNX Runtime has no bfloat16 on CPUs.")
    example = torch.ones(2, 16, dtype=torch.long)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        names = ["input_ids", "attention_mask"]
        torch.onnx.export(
            model,
            (example, example),
            path,
            input_names=names,
            dynamic_axes={name: {0: "rows", 1: "tokens"} for name in names},
            dynamo=False,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def forward(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0])

    return forward


RUNTIMES = {
    "PyTorch": in_pytorch,
    "OpenVINO": in_openvino,
    "ONNX Runtime": in_onnxruntime,
}


def sorted_embedder(tokenizer: Any, forward: Forward) -> Callable[[list[str]], np.ndarray]:
    """Returns a function from texts to mean-pooled vectors that sorts the texts by length."""

    def embed(batch: Any) -> np.ndarray:
        hidden = forward(batch["input_ids"], batch["attention_mask"])
        weights = batch["attention_mask"][:, :, None].astype(np.float32)
        return (hidden * weights).sum(1) / weights.sum(1)

    return sorted_by_length(tokenizer, embed)


def random_base(folder: str) -> str:
    """Writes BERT-base with random weights and a vocabulary of Python's documentation."""
    from bertjax.data.text.corpus import Corpus
    from bertjax.data.text.sentences import sentences_of

    words = dict.fromkeys(
        word.lower()
        for document in Corpus(["pydocs"]).documents()
        for sentence in sentences_of(document)
        for word in sentence.split()
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *list(words)[:20_000]]
    Path(folder, "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    transformers.BertTokenizer(f"{folder}/vocab.txt", model_max_length=512).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary))
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def main() -> None:
    """Reports texts per second, and the times of the others as ratios of ours."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="a directory; BERT-base with random weights if not given")
    parser.add_argument("--dtype", choices=tuple(PRECISIONS), default="float32")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--words", type=int, help="words per text; sentences if not given")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    texts = some_texts(args.texts, args.words)
    folder = tempfile.TemporaryDirectory()
    directory = args.model or random_base(folder.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    ours = load_pretrained(directory, "encoder", dtype=args.dtype)
    sides: dict[str, Callable[[list[str]], np.ndarray]] = {
        "bertjax": lambda texts: ours.embed(texts, pooling="mean", normalize=False)
    }
    for name, runtime in RUNTIMES.items():
        if name != "ONNX Runtime" or args.dtype == "float32":
            model = transformers.AutoModel.from_pretrained(directory).eval()
            forward = runtime(LastHiddenState(model), args.dtype)
            sides[name] = sorted_embedder(tokenizer, forward)
    first, seconds = take_turns(sides, texts, args.rounds)
    mine = seconds.pop("bertjax")
    report(
        {
            "model": Path(args.model).name if args.model else "bert-base, random weights",
            "dtype": args.dtype,
            "texts": len(texts),
            "words": args.words,
            "texts_per_second": round(len(texts) / statistics.median(mine), 1),
            "time_as_ratio_of_ours": ratios(mine, seconds),
            "largest_difference": {
                name: float(np.abs(first["bertjax"] - first[name]).max()) for name in seconds
            },
        },
        args.output,
        ("torch", "openvino", "onnxruntime"),
    )
    folder.cleanup()


if __name__ == "__main__":
    main()
