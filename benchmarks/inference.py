"""Compares the throughput of embeddings and of classification with PyTorch on the same device.

    python benchmarks/inference.py --model DIR [--task embed|classify] [--texts 2000] [--words 200]

The texts are sentences of mixed lengths, or, with `--words N`, passages of N words. The contenders
take turns after a warm-up. "PyTorch, sorted" does what this library does: it sorts the texts by
length and pads each batch to its longest text. For classification, `transformers.pipeline` with
the same batch size, which keeps the order of the texts, is the third contender; the classifier is
initialised at random if the model has none. Needs the extra `parity`.
"""

import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from reporting import parser_of, ratios, report, take_turns

from bertjax import load_pretrained
from bertjax.data.text.corpus import Corpus
from bertjax.data.text.sentences import sentences_of

BATCH = 32


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


def in_pytorch(tokenizer: Any, model: torch.nn.Module) -> Callable[[list[str]], np.ndarray]:
    """Returns the function of texts to probabilities or mean-pooled vectors of a float32 model."""
    model = model.eval()

    @torch.inference_mode()
    def run(batch: Any) -> np.ndarray:
        tensors = {name: torch.from_numpy(x) for name, x in batch.items()}
        outputs = model(**tensors)
        if "logits" in outputs:
            return outputs.logits.softmax(-1).numpy()
        weights = tensors["attention_mask"][:, :, None].float()
        return ((outputs.last_hidden_state * weights).sum(1) / weights.sum(1)).numpy()

    return sorted_by_length(tokenizer, run)


def embedders(directory: str) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Returns {contender: function from texts to mean-pooled vectors}."""
    ours = load_pretrained(directory, None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return {
        "bertjax": lambda texts: ours.embed(texts, pooling="mean", normalize=False),
        "PyTorch, sorted": in_pytorch(tokenizer, transformers.AutoModel.from_pretrained(directory)),
    }


def classifiers(directory: str) -> dict[str, Callable[[list[str]], np.ndarray]]:
    """Returns {contender: function from texts to the probabilities of the classes}."""
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        ours = load_pretrained(folder)
    pipeline = transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, batch_size=BATCH, top_k=None
    )
    names = [model.config.id2label[i] for i in range(model.config.num_labels)]

    def probabilities(answers: list[dict[str, float]]) -> np.ndarray:
        return np.array([[answer[name] for name in names] for answer in answers])

    def piped(texts: list[str]) -> np.ndarray:
        answers: Any = pipeline(texts, truncation=True, function_to_apply="softmax")
        return probabilities([{x["label"]: x["score"] for x in answer} for answer in answers])

    return {
        "bertjax": lambda texts: probabilities([x["probabilities"] for x in ours.predict(texts)]),
        "PyTorch, sorted": in_pytorch(tokenizer, model),
        "transformers.pipeline": piped,
    }


def main() -> None:
    """Reports texts per second of each contender, and their times as ratios of ours."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--task", choices=("embed", "classify"), default="embed")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--words", type=int, help="words per text; sentences if not given")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    texts = some_texts(args.texts, args.words)
    sides = (classifiers if args.task == "classify" else embedders)(args.model)
    first, seconds = take_turns(sides, texts, args.rounds)
    ours = seconds.pop("bertjax")
    report(
        {
            "task": args.task,
            "texts": len(texts),
            "words": args.words,
            "texts_per_second": round(len(texts) / statistics.median(ours), 1),
            "time_as_ratio_of_ours": ratios(ours, seconds),
            "largest_difference": float(
                max(np.abs(first["bertjax"] - first[name]).max() for name in seconds)
            ),
        },
        args.output,
        ("torch", "transformers"),
    )


if __name__ == "__main__":
    main()
