"""Trains a small BERT in minutes, from text to filled masks: `bertjax quickstart`.

The text is the documentation of Python and of the installed packages, so that nothing is
downloaded. Each step is a command of bertjax, which is printed before it runs, so that users can
repeat it with their own text. The last step checks that the model uses context.
"""

import dataclasses
import functools
import importlib
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.base import command_line, signals
from bertjax.base.checked import Checked, Count
from bertjax.base.files import naming_write_errors
from bertjax.devices.activity import Clock

# Texts whose masks the checks fill. A model that ignores context fills all with the same words.
SENTENCES = (
    "if the file does not [MASK], an error is raised.",
    "returns the [MASK] of the array.",
    "this function is the same as [MASK] the method.",
)
# How far the held-out loss must be below the unigram entropy, in nats, and the accuracy of
# next-sentence prediction above the share of the larger class, in standard deviations.
LEAST_GAIN = 0.5
LEAST_SIGMA = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuickstartConfig(Checked):
    """Config of `bertjax.quickstart`.

    Raises:
        ValueError: `steps` is below 1.
    """

    output: str = "runs/quickstart"
    """Folder for the tokenizer, the data and the run; an interrupted quickstart resumes in it."""
    input: str = "pydocs"
    """Text to train on, as --input of bertjax.prepare; pydocs: the documentation of Python and of
    the installed packages. The checks are made for pydocs."""
    steps: Count | None = None
    """Number of training steps; None: as in the config quickstart. Few steps are enough to see
    all commands at work, but not to pass the checks."""


class Step(NamedTuple):
    """A step of the quickstart: a command, without `bertjax`.

    If its `output` exists, it is not repeated; None: the command itself knows what is done.
    """

    title: str
    command: list[str]
    output: Path | None = None


class Check(NamedTuple):
    """A property, with measured values and limits, that the trained model must have."""

    text: str
    passed: bool


def steps(config: QuickstartConfig) -> list[Step]:
    """Returns the steps of the quickstart, in order."""
    out = Path(config.output)
    tokenizer, data, run = (str(out / name) for name in ("tokenizer", "data", "run"))
    number = []
    if config.steps is not None:  # with the same share of warm-up as in the config
        number = [f"--phases.0.num_steps={config.steps}"]
        number.append(f"--optimizer.warmup_steps={config.steps // 10}")
    return [
        Step(
            "train a WordPiece vocabulary of 4,096 entries",
            ["train_tokenizer", "--input", config.input, "--vocab_size", "4096"]
            + ["--output", tokenizer],
            out / "tokenizer" / "tokenizer_config.json",  # the last file that is written
        ),
        Step(
            "prepare sentence pairs, half of them consecutive, as rows of token ids; hold out 3 % "
            "of the documents",
            ["prepare", "--input", config.input, "--tokenizer", tokenizer, "--output", data]
            + ["--max_length", "64", "--eval_fraction", "0.03"],
        ),
        Step(
            "pretrain with masked LM and next-sentence prediction",
            ["pretrain", "--config", "quickstart", *number, "--data", data, "--workdir", run],
        ),
        Step("fill a mask", ["fill_mask", "--model", run, SENTENCES[1]]),
    ]


def next_commands(config: QuickstartConfig) -> list[tuple[str, list[str]]]:
    """Returns (what it does, words of the command) of commands to try with the trained model."""
    run = str(Path(config.output) / "run")
    return [
        ("look at the attention of the model", ["visualize", "--model", run, SENTENCES[0]]),
        ("compare your texts, one in a line, by their embeddings",
         ["embed", "--model", run, "--input", "texts.txt", "--output", "vectors.npy"]),
        ("fine-tune it on your texts with labels, in two columns",
         ["finetune", "--task", "classify", "--init", run, "--train", "labelled.csv"]),
        ("see all commands", ["--help"]),
    ]  # fmt: skip


def run(config: QuickstartConfig) -> int:
    """Runs all steps and the checks; returns 0, or the exit status of what failed."""
    from bertjax.base.outputs import check_paths

    started = time.monotonic()
    check_paths(config)
    with naming_write_errors(config.output):
        Path(config.output).mkdir(parents=True, exist_ok=True)
    todo = steps(config)
    for number, step in enumerate(todo, 1):
        print(f"\n{number}. {step.title[0].upper()}{step.title[1:]}:\n")
        print(f"   {shown(step.command)}\n", flush=True)
        if step.output is not None and step.output.is_file():
            print(f"{step.output.parent} exists already: nothing to do.")
            continue
        name, *flags = step.command
        # Commands do not import each other: this one starts others as `bertjax COMMAND` does.
        main = importlib.import_module(f"bertjax.{name}").main
        if name == "pretrain":  # whose time begins here, not with the process
            main = functools.partial(main, clock=Clock())
        status = main(flags)
        if status:
            print(f"`bertjax quickstart` ended in step {number} ({name}).", file=sys.stderr)
            return status
    print(f"\n{len(todo) + 1}. Check that the model uses context:\n", flush=True)
    results = list(checks(Path(config.output)))
    for check in results:
        print(f"{'ok  ' if check.passed else 'FAIL'} {check.text}")
    print(f"\nFinished in {(time.monotonic() - started) / 60:.1f} minutes. Next, for example:\n")
    for what, command in next_commands(config):
        print(f"   # {what}\n   {shown(command)}")
    if all(check.passed for check in results):
        return 0
    return 1


def shown(command: Sequence[str]) -> str:
    """Returns a command as a user can copy it into a shell."""
    program = ["bertjax"] if shutil.which("bertjax") else ["python", "-m", "bertjax"]
    return shlex.join([*program, *command])


def checks(out: Path) -> Iterator[Check]:
    """Yields whether the model in the folder `out` predicts held-out text by its context.

    The masked LM loss must be well below the unigram entropy, the least loss of a model that
    ignores context; the accuracy of next-sentence prediction must be significantly above a
    constant answer's; and the words that fill a mask must depend on the sentence.
    """
    from bertjax.data.metadata import open_prepared
    from bertjax.inference.masks import fill_mask
    from bertjax.weights import load_model

    with (out / "run" / "metrics.jsonl").open(encoding="utf-8") as file:
        last = [line for line in map(json.loads, file) if "eval/mlm_loss" in line][-1]
    entropy = last["eval/unigram_entropy"]
    loss = last["eval/mlm_loss"]
    yield Check(
        f"held-out MLM loss {loss:.3f} nats, unigram entropy {entropy:.3f}: "
        f"{entropy - loss:.3f} below (at least {LEAST_GAIN})",
        entropy - loss >= LEAST_GAIN,
    )
    (held_out,) = open_prepared(out / "data").splits["eval"].lengths.values()
    majority = max(held_out.labels.values()) / held_out.sequences
    sigma = (majority * (1 - majority) / held_out.sequences) ** 0.5
    above = 0.0
    if sigma:
        above = (last["eval/nsp_accuracy"] - majority) / sigma
    yield Check(
        f"NSP accuracy {last['eval/nsp_accuracy']:.3f}, majority class {majority:.3f} of "
        f"{held_out.sequences} pairs: {above:.1f} sigma above (at least {LEAST_SIGMA:g})",
        above >= LEAST_SIGMA,
    )
    model = load_model(out / "run")
    best = [[word for word, _ in fill_mask(model, text, top_k=5)[0]] for text in SENTENCES]
    for text, words in zip(SENTENCES, best, strict=True):
        print(f"  {text}  ->  {', '.join(words)}")
    common = max(len(set(a) & set(b)) for i, a in enumerate(best) for b in best[:i])
    yield Check(
        f"any two sentences have at most {common} of their best five words in common (fewer than "
        f"5), and the best words are {', '.join(words[0] for words in best)}",
        common < 5 and len({words[0] for words in best}) == len(best),
    )


def parse(argv: Sequence[str] | None = None) -> QuickstartConfig:
    """Parses the command-line flags."""
    return command_line.parse(
        QuickstartConfig,
        argv,
        command="quickstart",
        description="Trains a small BERT in minutes, from text to filled masks, and shows each "
        "command. Repeating the command resumes an interrupted quickstart.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the flags, runs the quickstart and returns the exit status."""
    status = 0

    def start() -> None:
        nonlocal status
        status = run(parse(argv))

    return signals.run_reporting_errors(start, trains=True) or status


if __name__ == "__main__":
    signals.leave(main())
