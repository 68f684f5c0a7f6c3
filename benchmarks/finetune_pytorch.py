"""Fine-tunes a model directory with PyTorch and transformers, for comparison with bertjax.

    python benchmarks/finetune_pytorch.py --task cola --model DIR --data_dir glue/CoLA [--seed 0]

The script uses no code of bertjax, not even its readers, so that it shares none of its mistakes.
Needs the extra `parity`. The recipe is fixed except for the flags: AdamW at 5e-5 (0.9, 0.999,
1e-6), weight decay 0.01 except for biases and LayerNorms, warm-up over a tenth of the steps and
linear decay to 0, gradients clipped at norm 1, dropout 0.1, at most 128 tokens, batches padded to
their longest sequence, float32, rows shuffled in every epoch by Python's `random`.

Prints a line of JSON after each epoch and one with all results at the end, which `--output` appends
to a file. Seconds are those of training, without tokenization and evaluation.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from scipy import stats
from sklearn import metrics

MAX_LENGTH = 128
IGNORED = -100  # label of tokens without a label, which PyTorch's loss ignores


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a run that are not fixed by the recipe."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    seed: int = 0
    max_steps: int | None = None  # number of steps, also of the learning-rate schedule
    microbatches: int = 1  # parts of a batch, by length; gradients are summed, so only padding goes


class Row(NamedTuple):
    """An encoded example; `label` is a class, a score, or a list with the class of each token."""

    input_ids: list[int]
    token_type_ids: list[int]
    label: Any


class Example(NamedTuple):
    """An example of a file: one or two texts, or the words of a sentence, and the label."""

    texts: tuple[str, ...] | list[str]
    label: Any


def lines_of(path: Path) -> list[str]:
    """Splits a file at line feeds only, unlike `str.splitlines`."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def read_table(path: Path, texts: Sequence[str], label: str) -> list[Example]:
    """Reads tab-separated lines with a header; GLUE's files have no quoting."""
    header, *lines = lines_of(path)
    names = header.split("\t")
    rows = [dict(zip(names, line.split("\t"), strict=True)) for line in lines]
    return [Example(tuple(row[name] for name in texts), row[label]) for row in rows]


def read_cola(path: Path) -> list[Example]:
    """Reads CoLA, which has no header: source, label, original mark, sentence."""
    rows = [line.split("\t") for line in lines_of(path)]
    return [Example((sentence,), label) for _, label, _, sentence in rows]


def read_conll(path: Path) -> list[Example]:
    """Reads sentences separated by blank lines, with one word per line and its label last."""
    examples = []
    for has_words, lines in itertools.groupby(lines_of(path), key=lambda line: bool(line.strip())):
        columns = [line.split() for line in lines]
        if has_words and columns[0][0] != "-DOCSTART-":
            examples.append(Example([c[0] for c in columns], [c[-1] for c in columns]))
    return examples


def entities(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """Returns the entities of a sentence as (type, first, end), like conlleval.

    An entity begins at B, and at an I that does not continue the type before it.
    """
    result, start, kind = set(), 0, "O"
    for position, label in enumerate([*labels, "O"]):
        prefix, _, label_type = label.partition("-")
        if kind != "O" and (prefix != "I" or label_type != kind):
            result.add((kind, start, position))
            kind = "O"
        if prefix != "O" and kind == "O":
            start, kind = position, label_type
    return result


def entity_scores(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """Precision, recall and F1 of entities with equal boundaries and type."""
    pairs = [(entities(a), entities(b)) for a, b in zip(gold, predicted, strict=True)]
    right = sum(len(a & b) for a, b in pairs)
    precision = right / max(1, sum(len(b) for _, b in pairs))
    recall = right / max(1, sum(len(a) for a, _ in pairs))
    f1 = 2 * precision * recall / max(1e-12, precision + recall)
    return {"f1": f1, "precision": precision, "recall": recall}


def correlations(gold: list[float], predicted: list[float]) -> dict[str, float]:
    """Correlations of Pearson and Spearman."""
    functions = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}
    return {name: float(function(gold, predicted)[0]) for name, function in functions.items()}


@dataclasses.dataclass(frozen=True)
class Task:
    """How a task is read and scored; without `labels` it is a regression."""

    read: Callable[[Path], list[Example]]
    labels: tuple[str, ...]
    score: Callable[[Any, Any], dict[str, float]]
    train_file: str = "train.tsv"
    dev_file: str = "dev.tsv"
    is_tagging: bool = False


def accuracy(gold: list[str], predicted: list[str]) -> dict[str, float]:
    """Share of equal labels."""
    return {"accuracy": float(metrics.accuracy_score(gold, predicted))}


TASKS = {
    "cola": Task(
        read_cola,
        ("0", "1"),
        lambda a, b: {"matthews_correlation": float(metrics.matthews_corrcoef(a, b))},
    ),
    "sst2": Task(lambda p: read_table(p, ["sentence"], "label"), ("0", "1"), accuracy),
    "stsb": Task(lambda p: read_table(p, ["sentence1", "sentence2"], "score"), (), correlations),
    "rte": Task(
        lambda p: read_table(p, ["sentence1", "sentence2"], "label"),
        ("entailment", "not_entailment"),
        accuracy,
    ),
    "mnli": Task(
        lambda p: read_table(p, ["sentence1", "sentence2"], "gold_label"),
        ("entailment", "neutral", "contradiction"),
        accuracy,
        dev_file="dev_matched.tsv",
    ),
    "conll": Task(
        read_conll,
        ("O", *(f"{prefix}-{kind}" for kind in ("PER", "ORG", "LOC", "MISC") for prefix in "BI")),
        entity_scores,
        train_file="train.txt",
        dev_file="valid.txt",
        is_tagging=True,
    ),
}


def encode(examples: list[Example], tokenizer: Any, task: Task) -> list[Row]:
    """Encodes all examples; in tagging the first piece of each word has its label."""
    classes = {label: i for i, label in enumerate(task.labels)}
    rows = []
    for texts, label in examples:
        if task.is_tagging:
            encoded = tokenizer(
                texts, is_split_into_words=True, truncation=True, max_length=MAX_LENGTH
            )
            words = encoded.word_ids()  # word of each token, None for special tokens
            begins = [w != before for before, w in itertools.pairwise([None, *words])]
            pairs = [(w, w is not None and b) for w, b in zip(words, begins, strict=True)]
            numbers = [w for w, begin in pairs if begin]
            if numbers != list(range(len(numbers))):
                raise ValueError(f"The tokenizer returns no token for a word in {texts}.")
            label = [classes[label[w]] if begin else IGNORED for w, begin in pairs]
        else:
            encoded = tokenizer(*texts, truncation=True, max_length=MAX_LENGTH)
            label = classes[label] if classes else float(label)
        types = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
        rows.append(Row(encoded["input_ids"], types, label))
    return rows


def collate(rows: Sequence[Row], pad_token_id: int) -> dict[str, torch.Tensor]:
    """Pads rows to the longest row."""

    def pad(lists: Iterable[list[int]], value: int) -> torch.Tensor:
        tensors = [torch.tensor(each) for each in lists]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    labels = [row.label for row in rows]
    token_labels = isinstance(labels[0], list)
    return {
        "input_ids": pad((row.input_ids for row in rows), pad_token_id),
        "token_type_ids": pad((row.token_type_ids for row in rows), 0),
        "attention_mask": pad(([1] * len(row.input_ids) for row in rows), 0),
        "labels": pad(labels, IGNORED) if token_labels else torch.tensor(labels),
    }


def load_model(directory: str, task: Task, attention: str = "sdpa") -> Any:
    """Loads the encoder of a model directory with a new head for the task and dropout 0.1."""
    auto = transformers.AutoModelForSequenceClassification
    if task.is_tagging:
        auto = transformers.AutoModelForTokenClassification
    kind = "regression" if not task.labels else "single_label_classification"
    return auto.from_pretrained(
        directory,
        num_labels=len(task.labels) or 1,
        problem_type=None if task.is_tagging else kind,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        classifier_dropout=0.1,
        attn_implementation=attention,
        dtype=torch.float32,
    )


def make_optimizer(model: Any, learning_rate: float) -> torch.optim.AdamW:
    """Returns AdamW with weight decay except for biases and LayerNorms."""
    named = list(model.named_parameters())
    plain = [p for name, p in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in named if not (name.endswith("bias") or "LayerNorm" in name)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.999), eps=1e-6)


def count_steps(num_rows: int, settings: Settings) -> int:
    """Returns the steps of a run; the last batch of an epoch may be smaller."""
    steps = settings.epochs * math.ceil(num_rows / settings.batch_size)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def steps(
    model: Any, rows: Sequence[Row], settings: Settings, pad_token_id: int = 0
) -> Iterator[tuple[int, torch.Tensor]]:
    """Trains the model in place, on its own device; yields (epoch, loss) after each step.

    It does not wait for the device; the caller must do so to measure time.
    """
    num_steps = count_steps(len(rows), settings)
    optimizer = make_optimizer(model, settings.learning_rate)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=int(0.1 * num_steps), num_training_steps=num_steps
    )
    shuffler = random.Random(settings.seed)
    order = list(range(len(rows)))
    done = 0
    for epoch in range(settings.epochs):
        shuffler.shuffle(order)
        for start in range(0, len(order), settings.batch_size):
            if done == num_steps:
                return
            model.train()
            batch = [rows[i] for i in order[start:][: settings.batch_size]]
            optimizer.zero_grad()
            loss = backward(model, batch, settings.microbatches, pad_token_id)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            yield epoch, loss


def backward(model: Any, rows: Sequence[Row], microbatches: int, pad_token_id: int) -> torch.Tensor:
    """Adds the gradients of a batch's mean loss; returns the loss."""
    rows = sorted(rows, key=lambda row: len(row.input_ids)) if microbatches > 1 else rows
    size = math.ceil(len(rows) / microbatches)
    parts = [collate(rows[i : i + size], pad_token_id) for i in range(0, len(rows), size)]
    counts = [int((part["labels"] != IGNORED).sum()) for part in parts]
    total = torch.zeros((), device=model.device)
    for part, count in zip(parts, counts, strict=True):
        # The loss of a part is the mean over its labels.
        loss = model(**{k: v.to(model.device) for k, v in part.items()}).loss
        loss = loss * (count / sum(counts)) if microbatches > 1 else loss
        loss.backward()
        total += loss.detach()
    return total


@torch.inference_mode()
def evaluate(
    model: Any, task: Task, examples: list[Example], rows: list[Row], pad_token_id: int = 0
) -> dict[str, float]:
    """Returns the scores of the model; words beyond the maximum length are predicted as O."""
    model.eval()
    # By length, for less padding.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].input_ids))
    rows, examples = [rows[i] for i in order], [examples[i] for i in order]
    predicted: list[Any] = []
    for start in range(0, len(rows), 32):
        batch = collate(rows[start : start + 32], pad_token_id)
        labels = batch.pop("labels")
        logits = model(**{k: v.to(model.device) for k, v in batch.items()}).logits.float().cpu()
        if not task.labels:
            predicted += logits[:, 0].tolist()
        elif not task.is_tagging:
            predicted += [task.labels[i] for i in logits.argmax(-1).tolist()]
        else:
            for guesses, real in zip(logits.argmax(-1), labels != IGNORED, strict=True):
                predicted.append([task.labels[i] for i in guesses[real].tolist()])
    gold = [example.label for example in examples]
    if task.is_tagging:
        pairs = zip(predicted, gold, strict=True)
        predicted = [p + ["O"] * (len(g) - len(p)) for p, g in pairs]
    elif not task.labels:
        gold = [float(score) for score in gold]
    return task.score(gold, predicted)


class Epoch(NamedTuple):
    """Time and results of an epoch; `loss` is the mean over its steps."""

    seconds: float
    cpu_seconds: float  # sum over threads; less than seconds x threads on a shared machine
    steps: int
    loss: float
    dev: dict[str, float]


def train(
    model: Any, task: Task, data_dir: Path, tokenizer: Any, settings: Settings
) -> Iterator[Epoch]:
    """Trains and evaluates after every epoch."""
    rows = encode(task.read(data_dir / task.train_file), tokenizer, task)
    dev = task.read(data_dir / task.dev_file)
    dev_rows = encode(dev, tokenizer, task)
    pad = tokenizer.pad_token_id
    in_epoch = math.ceil(len(rows) / settings.batch_size)
    left = count_steps(len(rows), settings)
    running = steps(model, rows, settings, pad)
    while left:
        now = min(left, in_epoch)
        left -= now
        start, cpu_start = time.perf_counter(), time.process_time()
        losses = [next(running)[1] for _ in range(now)]
        loss = float(torch.stack(losses).mean())  # waits for the device
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        scores = evaluate(model, task, dev, dev_rows, pad)
        yield Epoch(seconds, cpu_seconds, now, loss, scores)


def describe(device: torch.device) -> dict[str, Any]:
    """Returns device, date and versions."""
    cores = f"{torch.get_num_threads()} cores CPU"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cores,
        "threads": torch.get_num_threads(),
        "date": datetime.date.today().isoformat(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }


def parse_args() -> argparse.Namespace:
    """Reads the flags."""
    parser = argparse.ArgumentParser(description="Fine-tuning with PyTorch, for comparison.")
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--model", required=True, help="a Hugging Face model directory")
    parser.add_argument("--data_dir", required=True, type=Path, help="folder of the task")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--microbatches", type=int, default=1, help="parts of a batch, by length")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of PyTorch")
    parser.add_argument("--output", type=Path, default=None, help="file to append the result to")
    return parser.parse_args()


def main() -> None:
    """Runs one task with one seed; prints a line after each epoch and the result at the end."""
    args = parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    fields = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(args, name) for name in fields})
    torch.manual_seed(settings.seed)  # the head's weights, and dropout
    task = TASKS[args.task]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = load_model(args.model, task, args.attention).to(args.device)
    epochs = []
    for epoch in train(model, task, args.data_dir, tokenizer, settings):
        epochs.append(epoch)
        print(json.dumps({"epoch": len(epochs), **epoch._asdict()}), flush=True)
    result = {
        "task": args.task,
        **dataclasses.asdict(settings),
        "dev": epochs[-1].dev,
        "dev_per_epoch": [epoch.dev for epoch in epochs],
        "loss_per_epoch": [round(epoch.loss, 5) for epoch in epochs],
        "seconds_per_epoch": [round(epoch.seconds, 1) for epoch in epochs],
        "cpu_seconds_per_epoch": [round(epoch.cpu_seconds, 1) for epoch in epochs],
        "steps": sum(epoch.steps for epoch in epochs),
        "attention": args.attention,
        **describe(torch.device(args.device)),
    }
    line = json.dumps(result)
    print(line)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        with args.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
