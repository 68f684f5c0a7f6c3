"""Creates the model card (README.md) of a model directory: a description of model and training."""

from collections.abc import Mapping, Sequence
from typing import Any

import bertjax
from bertjax.model import HEADS, BertConfig, TaggerConfig
from bertjax.weights.families import architecture

_HEAD = """---
library_name: {library}
tags:
- {family}
---
# {title}

An encoder of the {family} family: {layers} layers, hidden size {hidden}, {heads} attention heads,
a vocabulary of {vocab:,} tokens ({casing}), and inputs of at most {positions} tokens. Written by
bertjax {version}; transformers loads it as `{architecture}`.
"""

_TAGGER = """`tagger.safetensors` holds {network} for the tags of `config.json`,
trained on the hidden states {layers} (0 = embeddings, -1 = the last), {join},
of this encoder, which was frozen (Devlin et al. 2018, 5.3). `python -m bertjax.predict --model DIR`
applies the encoder and `tagger.safetensors`; transformers loads only the encoder.
"""


_EMBEDDINGS = """It computes embeddings of texts, as `bertjax.load_pretrained(DIR).embed(texts)`
and, in sentence-transformers, `SentenceTransformer(DIR).encode(texts)`.
"""


def model_card(
    title: str,
    head: str,
    config: BertConfig,
    do_lower_case: bool | None,
    facts: Sequence[tuple[str, Any]] = (),
    tagger: TaggerConfig | None = None,
) -> str:
    """Returns the text of a model card in Markdown.

    Args:
        title: the title of the page.
        head: the name of the head in `bertjax.model.HEADS`.
        config: the architecture of the model.
        do_lower_case: whether the tokenizer lower-cases texts; None: the model has no tokenizer.
        facts: (name, value) pairs that describe the training; the card shows them as a table.
        tagger: the config of a tagger (classifier of words) on the frozen encoder; None: no tagger.
    """
    embeds = head == "sentence_embedding"
    text = _HEAD.format(
        library="sentence-transformers" if embeds else "transformers",
        title=title,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        vocab=config.vocab_size,
        casing={True: "uncased", False: "cased", None: "without a tokenizer"}[do_lower_case],
        positions=config.max_length,
        family=config.model_type,
        version=bertjax.__version__,
        architecture=architecture(config, head),
    )
    text += "\n" + _EMBEDDINGS if embeds else ""
    if tagger is not None:
        text += "\n" + _TAGGER.format(
            network="a two-layer BiLSTM and a classifier"
            if tagger.kind == "bilstm"
            else "a linear classifier",
            layers=", ".join(map(str, tagger.layers)),
            join={"concat": "concatenated", "sum": "summed"}[tagger.join],
        )
    if not facts:
        return text
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts)
    return f"{text}\n## Training\n\n| | |\n|---|---|\n{rows}"


def _planned(phase: Mapping[str, Any]) -> str:
    """Describes the updates of a phase, such as "9,000 steps of 32 rows of 128 tokens"."""
    rows = f"{phase['num_steps']:,} steps of {phase['batch_size']} rows"
    if sizes := phase.get("warmup_batch_sizes"):
        first = f"{phase['batch_size_warmup_steps']:,}"
        rows += f" ({', '.join(map(str, sizes))} in the first {first} steps)"
    return f"{rows} of {phase['max_length']} tokens"


def training_facts(
    config: Mapping[str, Any], step: int, evaluation: Mapping[str, float] | None
) -> list[tuple[str, Any]]:
    """Returns the (name, value) pairs that describe a pretraining run in its model card.

    Args:
        config: the config of the run, as stored in run.json.
        step: the number of training steps done so far.
        evaluation: {metric: value} of the last evaluation; None: the run has not been evaluated.
    """
    optimizer, distillation = config["optimizer"], config.get("distillation")
    objective = HEADS[config.get("head") or "pretraining"].objectives["pretraining"]
    masked = config.get("predict", "masked") == "masked"
    phases = "; ".join(map(_planned, config["phases"]))
    facts: list[tuple[str, Any]] = [
        ("objective", objective.description if masked else "causal language modelling"),
        ("steps done", f"{step:,}"),
        ("planned", phases),
        *([("masked", f"{config['mlm_probability']:.0%} of the tokens")] if masked else []),
        ("optimizer", f"{optimizer['recipe']}, peak {optimizer['learning_rate']:g}, "
         f"warm-up {optimizer['warmup_steps']:,} steps, decay {optimizer['weight_decay']:g}"),
        ("started from", config["init"] or "random weights"),
        *([("taught by", distillation["teacher"])] if distillation else []),
        ("computed in", config["dtype"]),
        ("seed", config["seed"]),
    ]  # fmt: skip
    names = {
        **{f"eval/{metric}": name for metric, name in objective.metric_names.items()},
        "eval/soft_loss": "held-out KL divergence from the teacher (nats, times temperature^2)",
        "eval/cosine_loss": "held-out 1 - cosine similarity to the teacher's last hidden states",
    }
    measured = evaluation or {}
    return facts + [
        (names[key], f"{measured[key]:.3f}") for key in names if measured.get(key) is not None
    ]
