"""Adds up the summaries of the chunks: statistics of each split and of each source of a mixture."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bertjax.data.metadata import LengthSummary, SourceSummary, SplitSummary, unigram_entropy
from bertjax.data.preparation.chunks import EVAL, TRAIN, shard_of
from bertjax.data.preparation.objectives import OBJECTIVES


class TooLittleText(ValueError):
    """Raised if the input or a source contains no text, or too little text for the objective."""


def add_up(
    summaries: Sequence[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, SplitSummary]:
    """Returns the statistics of the splits that have documents, with the shards of the chunks.

    Args:
        summaries: the summaries of chunks, see `ChunkPreparer.prepare`.
        settings: the settings of the preparation.
    """
    splits = {}
    for split in (TRAIN, EVAL):
        contents = [summary["splits"][split] for summary in summaries]
        if not any(content["documents"] for content in contents):
            continue
        entropy = None
        if split == EVAL:
            unigrams: Counter = Counter()
            for summary in summaries:
                unigrams.update(summary["eval_unigrams"])
            entropy = unigram_entropy(unigrams.values())
        splits[split] = _split(contents, settings, entropy)
    return splits


def _split(
    summaries: list[dict[str, Any]], settings: dict[str, Any], entropy: float | None
) -> SplitSummary:
    lengths = {}
    for length in map(str, sorted(settings["max_length"])):
        contents = [summary["lengths"][length] for summary in summaries]
        labels: Counter = Counter()
        length_counts = [0] * (int(length) + 1)
        for content in contents:
            labels.update(content["labels"])
            for n, count in enumerate(content["length_counts"]):
                length_counts[n] += count
        lengths[length] = LengthSummary(
            shards=[shard for content in contents if (shard := shard_of(content))],
            records=sum(content["records"] for content in contents),
            sequences=sum(labels.values()),
            tokens=sum(content["tokens"] for content in contents),
            labels=dict(sorted(labels.items())),
            random_from_same_document=sum(
                content["random_from_same_document"] for content in contents
            ),
            length_counts=length_counts,
        )
    totals = {
        name: sum(summary[name] for summary in summaries)
        for name in ("documents", "sentences", "text_bytes", "text_tokens")
    }
    return SplitSummary(**totals, unigram_entropy_nats=entropy, lengths=lengths)


def check_enough(
    splits: dict[str, SplitSummary], settings: dict[str, Any], inputs: list, counts: Counter
) -> None:
    """Checks that there is text, and enough of it for the objective.

    Args:
        splits: {name of a split: its totals}.
        settings: the settings of the preparation, of which "objective" is read.
        inputs: the identity of each input, for the message.
        counts: how often text was left out, for the message, as {reason: number of times}.

    Raises:
        TooLittleText: there is no text, or a single document where the objective needs two.
    """
    if not splits:
        left_out = f" Left out: {dict(counts)}." if counts else ""
        raise TooLittleText(
            f"The input contains no text: it consists of {len(inputs)} files or data sets, the "
            f"first of which is {inputs[0][0]} (bytes or examples: {inputs[0][1]}).{left_out} "
            "Use files with text."
        )
    documents = sum(summary.documents for summary in splits.values())
    if OBJECTIVES[settings["objective"]].needs_second_document and documents == 1:
        others = [name for name, known in OBJECTIVES.items() if not known.needs_second_document]
        raise TooLittleText(
            f"The input is a single document, but --objective {settings['objective']} needs a "
            "second one to draw random sentences from: add files, separate documents by blank "
            f"lines with --text_format lines, or choose --objective {' or '.join(others)}."
        )


def sources_of(
    plan: dict[str, Any], summaries: Sequence[dict[str, Any]]
) -> list[SourceSummary] | None:
    """Returns the statistics of each source of a mixture; None if the data are no mixture.

    Args:
        plan: the content of prepare.json.
        summaries: the summaries of all chunks.

    Raises:
        TooLittleText: a source has no training rows, or too little text for the objective.
    """
    if "sources" not in plan:
        return None
    settings, inputs = plan["settings"], list(plan["inputs"])
    sources = []
    for number, source in enumerate(plan["sources"]):
        of_source = [summary for summary in summaries if summary["source"] == number]
        counts = sum((Counter(summary["counts"]) for summary in of_source), Counter())
        splits = add_up(of_source, settings)
        try:
            check_enough(splits, settings, inputs[: source["inputs"]], counts)
        except TooLittleText as error:
            raise TooLittleText(
                f"The source {source['name']!r} of the mixture cannot be used. {error} Or leave "
                "the source out of --input."
            ) from error
        for length, content in splits[TRAIN].lengths.items():
            if not content.records:
                raise TooLittleText(
                    f"The source {source['name']!r} of the mixture has no training rows of "
                    f"{length} tokens: add text to it, or leave it out of --input."
                )
        sources.append(SourceSummary(name=source["name"], weight=source["weight"], splits=splits))
        inputs = inputs[source["inputs"] :]
    return sources


def differ_by_weights(old: Any, plan: dict[str, Any]) -> bool:
    """Returns whether the content of prepare.json differs from `plan` only by weights of sources.

    `old` is the parsed content of prepare.json, which may be damaged.
    """
    if not isinstance(old, dict) or old == plan or "sources" not in plan:
        return False
    try:
        weights = {source["name"]: source["weight"] for source in plan["sources"]}
        sources = [{**s, "weight": weights[s["name"]]} for s in old["sources"]]
    except (KeyError, TypeError):
        return False
    return {**old, "sources": sources} == plan
