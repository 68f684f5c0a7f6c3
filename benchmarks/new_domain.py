"""Continues pretraining on a new domain with and without new words in the vocabulary.

    python benchmarks/new_domain.py --init MODEL --domain 'text/*' --general 'wiki/*' \\
        --add 2000 --num_steps 600 --workdir W

MODEL has a masked LM head. A tenth of the files of each glob is held out. Both runs see the same
files for the same number of steps, from a mixture of the domain and, for a fifth of the rows, of
general text.

Losses per token of different vocabularies cannot be compared. Therefore the same words of the
held-out files are masked for both, 15 % of them, and nats per masked word are reported: a word of
several pieces is predicted piece by piece, each one given those before it and none of those behind
it (Kauf and Ivanova 2023), which is the probability of the word. Before the first step, the new
words are also predicted with embeddings drawn at random instead of means.
"""

import glob
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from reporting import parser_of, report

import bertjax
from bertjax.config import OptimizerConfig, Phase, PretrainConfig
from bertjax.tokenization import Tokenizer, load_tokenizer
from bertjax.weights import LoadedModel, load_model
from bertjax.weights.load import resize_vocabulary, with_new_words

LENGTH, BATCH, MASKED = 128, 32, 0.15
# Characters of held-out text of each kind that are scored.
SCORED = 150_000


class Passage(NamedTuple):
    """Words of at most `LENGTH` tokens with [CLS] and [SEP], and which of them are masked."""

    words: list[str]
    masked: list[int]


def split_files(pattern: str) -> tuple[list[str], list[str]]:
    """Returns the files to train on, and a tenth of the files that a glob matches."""
    files = sorted(glob.glob(pattern))
    held_out = files[5::10] or files[-1:]
    return [file for file in files if file not in held_out], held_out


def passages(files: Sequence[str], tokenizer: Tokenizer) -> list[Passage]:
    """Cuts the paragraphs of files into passages; `tokenizer` has the longer sequences."""
    text = "".join(Path(file).read_text(encoding="utf-8") for file in files)[:SCORED]
    draw, result = random.Random(0), []
    for paragraph in text.split("\n"):
        if paragraph.startswith(("<doc", "</doc")):
            continue
        words, size = [], 2
        for word in [*tokenizer.words(paragraph), ""]:
            more = len(tokenizer.split(word)) if word else LENGTH
            if size + more > LENGTH and len(words) > 8:
                count = max(round(MASKED * len(words)), 1)
                result.append(Passage(words, sorted(draw.sample(range(len(words)), count))))
            if size + more > LENGTH:
                words, size = [], 2
            words, size = [*words, word], size + more
    return result


def nats_of_words(
    model: Any, params: Any, tokenizer: Tokenizer, texts: Sequence[Passage]
) -> list[tuple[str, float]]:
    """Returns (word, its negative log probability) of every masked word."""

    @jax.jit
    def log_probabilities(params: Any, ids: Any, positions: Any, labels: Any) -> Any:
        mask = (ids != tokenizer.pad_token_id).astype(int)
        outputs = model.apply(
            {"params": params}, ids, attention_mask=mask, masked_positions=positions
        )
        chosen = jax.nn.log_softmax(outputs["logits"])
        return jax.numpy.take_along_axis(chosen, labels[:, :, None], axis=2)[:, :, 0]

    room = int(LENGTH * MASKED) + 4
    rows = []  # (ids, positions, labels, which words)
    nats: list[float] = []
    names: list[str] = []
    for passage in texts:
        pieces = [tokenizer.split(word) for word in passage.words]
        starts = np.cumsum([1, *map(len, pieces)])
        ids = np.full(LENGTH, tokenizer.pad_token_id, np.int32)
        body = [tokenizer.cls_token_id, *(i for ids in pieces for i in ids), tokenizer.sep_token_id]
        ids[: len(body)] = body
        masked = ids.copy()
        for word in passage.masked:
            masked[starts[word] : starts[word + 1]] = tokenizer.mask_token_id
        first = len(nats)
        names += [passage.words[word] for word in passage.masked]
        nats += [0.0] * len(passage.masked)
        for depth in range(max(len(pieces[word]) for word in passage.masked)):
            seen, targets = masked.copy(), []
            for number, word in enumerate(passage.masked):
                shown = min(depth, len(pieces[word]))
                seen[starts[word] : starts[word] + shown] = pieces[word][:shown]
                if depth < len(pieces[word]):
                    targets.append((starts[word] + depth, pieces[word][depth], first + number))
            rows += [(seen, targets[i : i + room]) for i in range(0, len(targets), room)]
    for start in range(0, len(rows), BATCH):
        block = rows[start : start + BATCH]
        ids = np.full((BATCH, LENGTH), tokenizer.pad_token_id, np.int32)
        ids[:, 0] = tokenizer.cls_token_id
        positions, labels = np.zeros((2, BATCH, room), np.int32)
        for row, (seen, targets) in enumerate(block):
            ids[row] = seen
            for column, (place, label, _) in enumerate(targets):
                positions[row, column], labels[row, column] = place, label
        found = jax.device_get(log_probabilities(params, ids, positions, labels))
        for row, (_, targets) in enumerate(block):
            for column, (_, _, word) in enumerate(targets):
                nats[word] -= float(found[row, column])
    return list(zip(names, nats, strict=True))


def means(scored: list[tuple[str, float]], new: set[str]) -> dict[str, float]:
    """Returns nats per masked word and per character, and nats per word among the new words."""
    of_new = [nats for word, nats in scored if word in new]
    return {
        "nats_per_word": round(float(np.mean([nats for _, nats in scored])), 3),
        "nats_per_character": round(
            sum(nats for _, nats in scored) / sum(len(word) for word, _ in scored), 4
        ),
        "nats_per_new_word": round(float(np.mean(of_new)), 3) if of_new else float("nan"),
        "words": len(scored),
        "new_words": len(of_new),
    }


def run_config(
    workdir: Path, data: Path, init: str, num_steps: int, learning_rate: float
) -> PretrainConfig:
    """Returns the config of both runs."""
    return PretrainConfig(
        data=str(data),
        workdir=str(workdir),
        init=init,
        head="masked_lm",
        whole_word_masking=True,
        phases=(Phase(num_steps=num_steps, max_length=LENGTH, batch_size=BATCH),),
        optimizer=OptimizerConfig(
            learning_rate=learning_rate, warmup_steps=num_steps // 10, schedule="hf"
        ),
        eval_at_start=True,
        eval_every=max(num_steps // 4, 1),
        eval_rows=256,
        save_every=num_steps,
        log_every=10,
    )


def prepared(folder: Path, tokenizer: str, domain: list[str], general: list[str]) -> Path:
    """Prepares the mixture with a tokenizer; returns the directory."""
    sources = folder.parent / "sources"
    for name, files in (("domain", domain), ("general", general)):
        (sources / name).mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(files):
            link = sources / name / f"{number:04}-{Path(file).name}"
            if not link.exists():
                link.symlink_to(Path(file).resolve())
    bertjax.prepare(
        input=(f"{sources}/domain/*=0.8", f"{sources}/general/*=0.2"),
        tokenizer=tokenizer,
        output=str(folder),
        max_length=(LENGTH,),
        objective="mlm",
    )
    return folder


def step_0(
    loaded: LoadedModel, tokenizer: Tokenizer, texts: Sequence[Passage], new: set[str]
) -> dict[str, Any]:
    """Returns the figures of the old model, and of new rows that are means or random."""
    extended = with_new_words(loaded, tokenizer, seed=0)
    drawn = resize_vocabulary(loaded, extended.config.vocab_size).params
    contenders = {
        "old": (loaded.model, loaded.params, loaded.tokenizer),
        "mean": (extended.model, extended.params, tokenizer),
        "random": (extended.model, drawn, tokenizer),
    }
    return {name: means(nats_of_words(*side, texts), new) for name, side in contenders.items()}


def main() -> None:
    """Extends the vocabulary, trains both, and reports the figures of each."""
    parser = parser_of(__doc__)
    for flag in ("--init", "--domain", "--general"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--add", type=int, default=2000)
    parser.add_argument("--num_steps", type=int, default=600)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--only", choices=["step_0", "old", "extended", "score"])
    args = parser.parse_args()
    (domain, domain_held), (general, general_held) = map(split_files, (args.domain, args.general))
    loaded, work = load_model(args.init, "masked_lm"), args.workdir
    if not (work / "tokenizer").exists():
        loaded.tokenizer.save(work / "old-tokenizer")
        bertjax.train_tokenizer(
            input=tuple(domain),
            extend=str(work / "old-tokenizer"),
            add=args.add,
            output=str(work / "tokenizer"),
        )
    tokenizer = load_tokenizer(work / "tokenizer")
    new = set(tokenizer.tokens[loaded.tokenizer.vocab_size :])
    texts = {
        "domain": passages(domain_held, loaded.tokenizer),
        "general": passages(general_held, loaded.tokenizer),
    }
    if args.only in (None, "step_0"):
        for name, found in texts.items():
            figures = step_0(loaded, tokenizer, found, new)
            report({"text": name, "step": 0, **figures}, args.output)
    for name, place in (("old", "old-tokenizer"), ("extended", "tokenizer")):
        if args.only in (None, name):
            data = prepared(work / f"data-{name}", str(work / place), domain, general)
            run = (work / name, data, args.init, args.num_steps, args.learning_rate)
            bertjax.pretrain(run_config(*run))
        if args.only in (None, "score"):
            trained = load_model(work / name / "model", "masked_lm")
            for text, found in texts.items():
                scored = nats_of_words(trained.model, trained.params, trained.tokenizer, found)
                figures = {"text": text, "step": args.num_steps, "vocabulary": name}
                report(figures | means(scored, new), args.output)


if __name__ == "__main__":
    main()
