"""Compares the training of search models with sentence-transformers: scores and time.

    python benchmarks/search.py --model MINILM --squad SQUAD --data DATA --output search.jsonl
    python benchmarks/search.py --model MINILM --masked_lm MLM --squad SQUAD --data DATA \\
        --kinds late_interaction sparse --batch_size 32 --output search.jsonl

Both sides start from the same weights and train on the same questions of SQuAD, each with its
paragraph, with the same losses, batch size, optimizer and number of epochs:

1. `embed`: in-batch negatives;
2. `mine`: one hard negative per question, of all paragraphs of the training questions, by the
   embedder of 1; `embed` continues with it;
3. `rerank`: a cross-encoder from the weights of the start, with binary cross entropy on the pairs
   of 2; it reorders the first 20 paragraphs that the embedder of 2 finds.

With `--kinds late_interaction`, the start is MINILM with one linear layer of 128 outputs, the same
in both; with `--kinds sparse`, it is the masked LM of --masked_lm. Both learn from in-batch
negatives, and the sparse one with the FLOPS of both sides.

After each, the questions of the dev set search all paragraphs of the dev set. Each side trains,
mines and evaluates with its own code. SQUAD has SQuAD's files, train*.json and dev-v1.1.json. The
sides take turns in each stage, and each stage runs in a process of its own, as commands do; seconds
include imports and compilation, which bertjax finds in its cache from the second seed on. Huge
pages make both faster (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`); with tcmalloc, which keeps memory
for each shape of a batch, the stages with negatives need more than 24 GB. The models stay in DATA,
and the same command again goes on after the last line of --output. Needs the extra `parity`,
sentence-transformers, datasets and accelerate.
"""

import argparse
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from reporting import parser_of, report

WARMUP = 0.1
RATE, RERANKER_RATE = 2e-5, 5e-5
LATE = "start_of_late_interaction"
QUERY_FLOPS, DOCUMENT_FLOPS = 5e-5, 3e-5
BEST = 20
QRELS = "qrels/test.tsv"
RATIO = 0.95  # a negative has at most this fraction of the similarity of the positive
RANKS = 50
SETTINGS = ("model", "masked_lm", "data", "batch_size", "max_length", "dtype", "rate")
# What each line of --output says of the run.
SIZES = ("dtype", "batch_size", "questions", "dev_questions")


def elapsed(start: tuple[float, float]) -> dict[str, float]:
    """Returns the wall time and the processor time since `start`."""
    return {
        "seconds": round(time.perf_counter() - start[0], 1),
        "processor_seconds": round(time.process_time() - start[1], 1),
    }


def adamw(rate: float) -> Any:
    """Returns the config of the optimizer and the learning rates of transformers' trainer."""
    from bertjax.config import OptimizerConfig

    return OptimizerConfig(
        recipe="adamw",
        learning_rate=rate,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=WARMUP,
        weight_decay=0.0,
        eps=1e-8,
    )


def in_process(
    file: str, args: argparse.Namespace, names: Sequence[str], **flags: Any
) -> dict[str, Any]:
    """Runs a benchmark in a process of its own; returns the last line of JSON that it prints.

    Its flags are `flags` and those of `args` with these names.
    """
    words = [sys.executable, file]
    for name, value in ({name: getattr(args, name) for name in names} | flags).items():
        words += [] if value is None else [f"--{name}", str(value)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def write_data(squad: Path, data: Path, questions: int, dev_questions: int) -> None:
    """Writes train.jsonl with pairs, and the dev set in the files of BEIR."""

    def read(files: Iterable[Path]) -> tuple[list[str], list[tuple[str, int]]]:
        paragraphs, asked = [], []
        for file in files:
            for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
                for paragraph in article["paragraphs"]:
                    questions = [x["question"].strip() for x in paragraph["qas"]]
                    asked += [(question, len(paragraphs)) for question in questions]
                    paragraphs.append(paragraph["context"].strip())
        random.Random(0).shuffle(asked)
        return paragraphs, asked

    paragraphs, asked = read(sorted(squad.glob("train*.json")))
    pairs = [{"query": text, "positive": paragraphs[of]} for text, of in asked[:questions]]
    write_rows(data / "train.jsonl", pairs)
    write_rows(data / "train_corpus.jsonl", [{"text": text} for text in dict.fromkeys(paragraphs)])
    paragraphs, asked = read([squad / "dev-v1.1.json"])
    write_rows(
        data / "corpus.jsonl", [{"_id": f"p{i}", "text": text} for i, text in enumerate(paragraphs)]
    )
    asked = asked[:dev_questions]
    write_rows(
        data / "queries.jsonl",
        [{"_id": f"q{i}", "text": text} for i, (text, _) in enumerate(asked)],
    )
    lines = [f"q{i}\tp{of}\t1\n" for i, (_, of) in enumerate(asked)]
    (data / QRELS).parent.mkdir(exist_ok=True)
    (data / QRELS).write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes a file of JSON lines."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text("".join(lines), encoding="utf-8")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Reads a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


class SentenceTransformers:
    """The way of sentence-transformers."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder
        self.corpus = {x["_id"]: x["text"] for x in read_rows(args.data / "corpus.jsonl")}
        self.queries = {x["_id"]: x["text"] for x in read_rows(args.data / "queries.jsonl")}
        lines = (args.data / QRELS).read_text().splitlines()[1:]
        self.right = {query: {text} for query, text, _ in (line.split("\t") for line in lines)}

    def load(self, model: str) -> Any:
        from sentence_transformers import SentenceTransformer

        loaded: Any = SentenceTransformer(model, device="cpu")
        loaded.max_seq_length = self.args.max_length
        return loaded

    def evaluate(self, model: str) -> dict[str, float]:
        """Searches all paragraphs for each question."""
        from sentence_transformers.sentence_transformer.evaluation import (
            InformationRetrievalEvaluator,
        )

        return self.found(InformationRetrievalEvaluator, self.load(model), "cosine")

    def evaluate_sparse(self, model: str) -> dict[str, float]:
        from sentence_transformers.sparse_encoder.evaluation import (
            SparseInformationRetrievalEvaluator,
        )

        return self.found(SparseInformationRetrievalEvaluator, self.load_sparse(model), "dot")

    def evaluate_late_interaction(self, model: str) -> dict[str, float]:
        from sentence_transformers.multi_vector_encoder.evaluation import (
            MultiVectorInformationRetrievalEvaluator,
        )

        kind = MultiVectorInformationRetrievalEvaluator
        return self.found(kind, self.load_late_interaction(model), "maxsim")

    def found(self, kind: Any, model: Any, similarity: str) -> dict[str, float]:
        """Returns what an evaluator of the library finds."""
        options = {"precision_recall_at_k": [10, 100], "batch_size": 64}
        judge = kind(self.queries, self.corpus, self.right, **options)
        scores = judge(model)
        names = {"ndcg@10": "ndcg_at_10", "mrr@10": "mrr_at_10"}
        names |= {"recall@10": "recall_at_10", "recall@100": "recall_at_100"}
        return {names[key]: scores[f"{similarity}_{key}"] for key in names}

    def settings(self, kind: Any, rate: float, steps: int, **others: Any) -> Any:
        return kind(
            output_dir=str(self.folder / "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=self.args.batch_size,
            learning_rate=rate,
            warmup_steps=round(WARMUP * steps),
            seed=self.args.seed,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=self.args.dtype == "bfloat16",
            disable_tqdm=True,
            **others,
        )

    def embed(self, start: str, train: Path, output: str) -> None:
        """Trains an embedder on pairs or triplets."""
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        model = self.load(start)
        loss = MultipleNegativesRankingLoss(model)
        self.train("SentenceTransformer", model, loss, RATE, train, output)

    def load_sparse(self, model: str) -> Any:
        from sentence_transformers import SparseEncoder

        loaded: Any = SparseEncoder(model, device="cpu")
        loaded.max_seq_length = self.args.max_length
        return loaded

    def sparse(self, train: Path, output: str) -> None:
        """Trains sparse embeddings on pairs."""
        from sentence_transformers.sparse_encoder import losses

        model = self.load_sparse(self.args.masked_lm)
        ranking = losses.SparseMultipleNegativesRankingLoss(model)
        loss = losses.SpladeLoss(
            model,
            ranking,
            query_regularizer_weight=QUERY_FLOPS,
            document_regularizer_weight=DOCUMENT_FLOPS,
        )
        self.train("SparseEncoder", model, loss, self.args.rate, train, output)

    def load_late_interaction(self, model: str) -> Any:
        from sentence_transformers import MultiVectorEncoder

        loaded: Any = MultiVectorEncoder(model, device="cpu")
        loaded.max_seq_length = self.args.max_length
        return loaded

    def late_interaction(self, start: str, train: Path, output: str) -> None:
        """Trains late interaction on pairs."""
        from sentence_transformers.multi_vector_encoder import losses

        model = self.load_late_interaction(start)
        loss = losses.MultiVectorMultipleNegativesRankingLoss(model)
        self.train("MultiVectorEncoder", model, loss, self.args.rate, train, output)

    def train(
        self, kind: str, model: Any, loss: Any, rate: float, train: Path, output: str
    ) -> None:
        """Trains a model of a kind with the library's trainer of this kind."""
        import datasets  # type: ignore[import-not-found]
        import sentence_transformers as library

        rows = read_rows(train)
        settings = self.settings(
            getattr(library, f"{kind}TrainingArguments"),
            rate,
            -(-len(rows) // self.args.batch_size),
            batch_sampler="no_duplicates",  # bertjax masks equal texts in the loss
        )
        getattr(library, f"{kind}Trainer")(
            model=model, args=settings, train_dataset=datasets.Dataset.from_list(rows), loss=loss
        ).train()
        model.save(output)

    def mine(self, model: str, output: Path) -> None:
        """Writes triplets."""
        import datasets  # type: ignore[import-not-found]
        from sentence_transformers.util import mine_hard_negatives

        found: Any = mine_hard_negatives(
            datasets.Dataset.from_list(read_rows(self.args.data / "train.jsonl")),
            self.load(model),
            corpus=[x["text"] for x in read_rows(self.args.data / "train_corpus.jsonl")],
            range_max=RANKS,
            relative_margin=1 - RATIO,
            num_negatives=1,
            verbose=False,
        )
        rows: Iterator[dict[str, Any]] = (
            dict(zip(("query", "positive", "negative"), row.values(), strict=True)) for row in found
        )
        write_rows(output, rows)

    def rerank(self, triplets: Path, output: str) -> None:
        """Trains a reranker."""
        import datasets  # type: ignore[import-not-found]
        from sentence_transformers.cross_encoder import (
            CrossEncoder,
            CrossEncoderTrainer,
            CrossEncoderTrainingArguments,
        )
        from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

        pairs = [
            {"query": row["query"], "passage": row[name], "label": label}
            for row in read_rows(triplets)
            for name, label in (("positive", 1.0), ("negative", 0.0))
        ]
        model = CrossEncoder(
            self.args.model, num_labels=1, max_length=self.args.max_length, device="cpu"
        )
        steps = -(-len(pairs) // self.args.batch_size)
        CrossEncoderTrainer(
            model=model,
            args=self.settings(CrossEncoderTrainingArguments, RERANKER_RATE, steps),
            train_dataset=datasets.Dataset.from_list(pairs),
            loss=BinaryCrossEntropyLoss(model),
        ).train()
        model.save_pretrained(output)

    def evaluate_reranker(self, embedder: str, reranker: str) -> dict[str, float]:
        """Reorders the first paragraphs that the embedder finds for each question."""
        from sentence_transformers import util
        from sentence_transformers.cross_encoder import CrossEncoder

        model, judge = self.load(embedder), CrossEncoder(reranker, device="cpu")
        judge.max_length = self.args.max_length
        corpus, queries = list(self.corpus), list(self.queries)
        vectors = [
            model.encode([texts[key] for key in keys], convert_to_tensor=True)
            for keys, texts in ((queries, self.queries), (corpus, self.corpus))
        ]
        hits: list[Any] = util.semantic_search(*vectors, top_k=BEST)
        pairs = [
            (self.queries[query], self.corpus[corpus[hit["corpus_id"]]])
            for query, row in zip(queries, hits, strict=True)
            for hit in row
        ]
        scores = judge.predict(pairs, batch_size=64, show_progress_bar=False).reshape(-1, BEST)
        ranks = []
        for query, row, values in zip(queries, hits, scores, strict=True):
            order = sorted(range(BEST), key=lambda i: -values[i])
            names = [corpus[row[i]["corpus_id"]] for i in order]
            ranks.append(next((i for i, x in enumerate(names) if x in self.right[query]), None))
        return scores_of_ranks(ranks)


def scores_of_ranks(ranks: list[int | None]) -> dict[str, float]:
    """Computes the metrics of questions with one right paragraph from its ranks, from 0."""
    import numpy as np

    places = np.array([np.inf if rank is None else rank + 1 for rank in ranks])
    first = places <= 10
    return {
        "ndcg_at_10": float(np.mean(np.where(first, 1 / np.log2(places + 1), 0))),
        "mrr_at_10": float(np.mean(np.where(first, 1 / places, 0))),
        f"recall_at_{BEST}": float(np.mean(places <= BEST)),
    }


class Bertjax:
    """The way of bertjax."""

    def __init__(self, args: argparse.Namespace, folder: Path):
        self.args, self.folder = args, folder

    def finetune(self, rate: float, output: str, **settings: Any) -> None:
        """Trains for an epoch and moves the model to `output`."""
        import bertjax

        workdir = self.folder / "run"
        shutil.rmtree(workdir, ignore_errors=True)
        bertjax.finetune(
            dev_fraction=0.0,
            workdir=str(workdir),
            num_epochs=1.0,
            max_length=self.args.max_length,
            dtype=self.args.dtype,
            seed=self.args.seed,
            optimizer=adamw(rate),
            **{"batch_size": self.args.batch_size} | settings,
        )
        (workdir / "model").rename(output)

    def rank(self, model: str) -> tuple[Any, Any]:
        """Ranks all paragraphs for each question; returns the collection and the ranking."""
        from bertjax.inference.indexes import index_of
        from bertjax.inference.retrieval import beir_collection
        from bertjax.weights import load_model

        collection = beir_collection(self.args.data, "test")
        loaded = load_model(model, "auto")
        if loaded.head not in ("sparse", "late_interaction"):
            loaded = load_model(model, "encoder")
        kind = index_of(loaded, max_length=self.args.max_length)
        return collection, collection.rank(kind)

    def evaluate(self, model: str) -> dict[str, float]:
        collection, ranking = self.rank(model)
        return collection.score(ranking)

    evaluate_sparse = evaluate_late_interaction = evaluate

    def embed(self, start: str, train: Path, output: str) -> None:
        self.finetune(RATE, output, task="embed", train=str(train), init=start)

    def sparse(self, train: Path, output: str) -> None:
        start = {"task": "sparse", "init": self.args.masked_lm, "train": str(train)}
        weights = {
            "query_regularizer_weight": QUERY_FLOPS,
            "document_regularizer_weight": DOCUMENT_FLOPS,
        }
        self.finetune(self.args.rate, output, **start, **weights)

    def late_interaction(self, start: str, train: Path, output: str) -> None:
        settings = {"task": "colbert", "init": start, "train": str(train)}
        self.finetune(self.args.rate, output, **settings)

    def mine(self, model: str, output: Path) -> None:
        from bertjax.mine import MineConfig, run

        run(
            MineConfig(
                model=model,
                queries=str(self.args.data / "train.jsonl"),
                corpus=str(self.args.data / "train_corpus.jsonl"),
                output=str(output),
                max_length=self.args.max_length,
                rank_max=RANKS,
                ratio=RATIO,
                num_negatives=1,
            )
        )

    def rerank(self, triplets: Path, output: str) -> None:
        # A row of triplets has two pairs.
        size = self.args.batch_size // 2
        task = {"task": "rerank", "loss": "binary", "train": str(triplets), "batch_size": size}
        self.finetune(RERANKER_RATE, output, init=self.args.model, **task)

    def evaluate_reranker(self, embedder: str, reranker: str) -> dict[str, float]:
        import bertjax

        collection, ranking = self.rank(embedder)
        texts, questions = (
            {row["_id"]: row["text"] for row in read_rows(self.args.data / f"{name}.jsonl")}
            for name in ("corpus", "queries")
        )
        found = {query: list(scores)[:BEST] for query, scores in ranking.items()}
        pairs = [(questions[query], texts[x]) for query, names in found.items() for x in names]
        predictions = iter(bertjax.load_pretrained(reranker).predict(pairs))
        ordered = {}
        for query, names in found.items():
            scores = {name: next(predictions)["score"] for name in names}
            ordered[query] = sorted(names, key=lambda name: -scores[name])
        return collection.score(ordered)


SIDES = {"bertjax": Bertjax, "sentence-transformers": SentenceTransformers}


STAGES = {
    "embed": ("as it is", "training the embedder", "embed"),
    "rerank": (
        "mining",
        "training with negatives",
        "mine, embed",
        "training the reranker",
        "rerank",
    ),
    "late_interaction": ("training late interaction", "late interaction"),
    "sparse": ("training sparse embeddings", "sparse"),
}


def run_stage(args: argparse.Namespace) -> None:
    """Runs one stage of one side with one seed; prints a line of JSON."""
    start = time.perf_counter(), time.process_time()
    side: Any = SIDES[args.side](args, args.folder)
    first, second, judge = (str(args.folder / name) for name in ("first", "second", "reranker"))
    triplets = args.folder / "triplets.jsonl"
    train = args.data / "train.jsonl"
    tokens, start_of_tokens = str(args.folder / "late_interaction"), str(args.data / LATE)
    sparse = str(args.folder / "sparse")
    work: dict[str, Any] = {
        "as it is": lambda: side.evaluate(args.model),
        "training the embedder": lambda: side.embed(args.model, train, first),
        "embed": lambda: side.evaluate(first),
        "mining": lambda: side.mine(first, triplets),
        "training with negatives": lambda: side.embed(first, triplets, second),
        "mine, embed": lambda: side.evaluate(second),
        "training the reranker": lambda: side.rerank(triplets, judge),
        "rerank": lambda: side.evaluate_reranker(second, judge),
        "training late interaction": lambda: side.late_interaction(start_of_tokens, train, tokens),
        "late interaction": lambda: side.evaluate_late_interaction(tokens),
        "training sparse embeddings": lambda: side.sparse(train, sparse),
        "sparse": lambda: side.evaluate_sparse(sparse),
    }
    found = work[args.stage]() or {}
    print(json.dumps({"stage": args.stage, **elapsed(start), **found}), flush=True)


def write_start(model: str, directory: Path) -> None:
    """Writes MINILM with a new linear layer, from which both sides train late interaction."""
    import torch
    from sentence_transformers import MultiVectorEncoder

    torch.manual_seed(0)
    MultiVectorEncoder(model, device="cpu").save(str(directory))


def finished(args: argparse.Namespace) -> set[tuple[Any, ...]]:
    """Returns the side, seed and stage of each line of --output that has the sizes of `args`."""
    if args.output is None or not args.output.exists():
        return set()
    lines = read_rows(args.output)
    return {
        (line["side"], line["seed"], line["stage"])
        for line in lines
        if all(line.get(name) == getattr(args, name) for name in SIZES)
    }


def main() -> None:
    """Prints one line of JSON per side, seed and stage, and appends it to --output."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--masked_lm", help="the directory from which sparse embeddings start")
    parser.add_argument("--squad", type=Path, help="the folder of SQuAD's files")
    parser.add_argument("--data", type=Path, required=True, help="a folder for what is made of it")
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--dev_questions", type=int, default=1_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument(
        "--rate", type=float, default=1e-4, help="learning rate of late interaction and sparse"
    )
    parser.add_argument("--side", choices=SIDES, help="run one stage of this side, with one seed")
    parser.add_argument("--kinds", nargs="+", choices=STAGES, default=["embed", "rerank"])
    parser.add_argument("--stage", help="a stage of --kinds")
    parser.add_argument("--folder", type=Path, help="where the models of --side are")
    args = parser.parse_args()
    if args.side:
        args.seed = args.seeds[0]
        run_stage(args)
        return
    if args.squad:
        args.data.mkdir(parents=True, exist_ok=True)
        write_data(args.squad, args.data, args.questions, args.dev_questions)
    if "late_interaction" in args.kinds and not (args.data / LATE).exists():
        write_start(args.model, args.data / LATE)
    sizes = {name: getattr(args, name) for name in SIZES}
    done = finished(args)
    stages = [stage for kind in args.kinds for stage in STAGES[kind]]
    for seed, (turn, stage) in itertools.product(args.seeds, enumerate(stages)):
        for side in list(SIDES)[:: 1 if (seed + turn) % 2 == 0 else -1]:
            if (side, seed, stage) in done:
                continue
            folder = args.data / f"{side}_{seed}"
            folder.mkdir(exist_ok=True)
            flags = {"side": side, "stage": stage, "folder": folder, "seeds": seed}
            found = in_process(__file__, args, SETTINGS, **flags)
            figures = {"side": side, "seed": seed, **sizes, **found}
            report(figures, args.output, ["torch", "transformers", "sentence-transformers"])


if __name__ == "__main__":
    main()
