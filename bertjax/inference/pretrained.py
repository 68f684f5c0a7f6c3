"""`bertjax.load_pretrained`: a model in one line, used on texts or on arrays."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bertjax.model import BertConfig, BertWithHead
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.card import model_card
from bertjax.weights.families import family_of

Text = str | tuple[str, str]


class Pretrained:
    """A model with its parameters, config, tokenizer and labels; call it on texts or arrays.

    Attributes:
        model: the linen module.
        params: its parameters.
        config: the architecture.
        tokenizer: the tokenizer that came with the weights.
        labels: names of the classes, None without a classifier.
        head: which of `bertjax.model.HEADS`.
        absent: parts that the source lacked, which are freshly initialised.
    """

    def __init__(self, loaded: LoadedModel):
        self.model: BertWithHead = loaded.model
        self.params: Any = loaded.params
        self.config: BertConfig = loaded.config
        self.tokenizer: Tokenizer = loaded.tokenizer
        self.labels = loaded.labels
        self.absent = loaded.absent
        self.head = loaded.head
        self._source_config = loaded.source.config
        self._apply = jax.jit(partial(_apply, loaded.model), static_argnums=(2, 3))

    def __call__(
        self,
        texts: Sequence[Text] | None = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> dict[str, np.ndarray]:
        """Runs the model without dropout.

        Args:
            texts: texts or pairs; cut to the longest input of the model, padded to the longest.
            input_ids, attention_mask, token_type_ids: instead of texts, int [B, L] as transformers
                takes them (multiple choice: [B, C, L]).
            output_hidden_states: also "hidden_states" [layers + 1, B, L, D].
            output_attentions: also "attentions" [layers, B, N, L, L].

        Returns:
            Arrays under the names that transformers gives them: last_hidden_state, pooler_output,
            logits (prediction_logits and seq_relationship_logits, start_logits and end_logits).

        Raises:
            ValueError: neither or both of texts and ids, ids beyond the vocabulary, or rows longer
                than the model reads.
        """
        if (texts is None) == (input_ids is None):
            raise ValueError("Give either texts or input_ids.")
        if texts is not None:
            input_ids, attention_mask, token_type_ids = self.encode(texts)
        ids = np.asarray(input_ids, np.int32)
        choices = ids.shape[1] if ids.ndim == 3 else None
        ids = ids.reshape(-1, ids.shape[-1])
        self._check(ids)
        mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask)
        types = np.zeros_like(ids) if token_type_ids is None else np.asarray(token_type_ids)
        outputs = self._apply(
            self.params,
            (ids, types.reshape(ids.shape), (mask.reshape(ids.shape) > 0).astype(np.int32)),
            output_hidden_states,
            output_attentions,
        )
        found = {key: np.asarray(value) for key, value in outputs.items()}
        # A row holds one sequence: outputs [B, 1, ...] become [B, ...].
        for key in found.keys() & {"pooler_output", *self.model.sequence_outputs}:
            found[key] = found[key][:, 0]
        if choices is not None and self.head == "multiple_choice":
            found["logits"] = found["logits"].reshape(-1, choices)
        theirs = family_of(self.config).outputs
        return {theirs.get(key, key): value for key, value in found.items()}

    def encode(self, texts: Sequence[Text]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """input_ids, attention_mask and token_type_ids [B, L] of texts or pairs."""
        if isinstance(texts, str):
            raise ValueError("texts is one string: put it in a list.")
        limit = self.config.max_length
        rows = [
            self.tokenizer.encode_prompt(*((t,) if isinstance(t, str) else t), max_length=limit)
            for t in texts
        ]
        length = max((len(ids) for ids, _ in rows), default=1)
        ids = np.full((len(rows), length), self.tokenizer.pad_token_id, np.int32)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for i, (row, of_row) in enumerate(rows):
            ids[i, : len(row)], types[i, : len(row)], mask[i, : len(row)] = row, of_row, 1
        return ids, mask, types

    def _check(self, ids: np.ndarray) -> None:
        if ids.size and (ids.max() >= self.config.vocab_size or ids.min() < 0):
            raise ValueError(
                f"input_ids lie in {ids.min()}..{ids.max()}, the model has vocab_size="
                f"{self.config.vocab_size}: use its own tokenizer."
            )
        if ids.shape[1] > self.config.max_length:
            raise ValueError(
                f"Rows have {ids.shape[1]} tokens, the model reads at most "
                f"{self.config.max_length}: cut them."
            )

    def save(self, directory: str | Path) -> None:
        """Writes a Hugging Face directory: config, weights, tokenizer and labels."""
        kept = ("id2label", "label2id", "problem_type")
        extra = {key: self._source_config[key] for key in kept if key in self._source_config}
        objectives = self.model.objectives.values()
        if self.labels is None and any(objective.named_classes for objective in objectives):
            extra["id2label"] = {i: f"LABEL_{i}" for i in range(self.model.num_labels)}
            extra["label2id"] = {f"LABEL_{i}": i for i in range(self.model.num_labels)}
        save_hf(
            directory,
            self.params,
            self.config,
            self.tokenizer,
            head=self.head,
            extra=extra,
            card=model_card(
                Path(directory).name,
                self.head,
                self.config,
                self.tokenizer.do_lower_case,
            ),
        )


def load_pretrained(
    path_or_name: str | Path,
    head: str | None = "encoder",
    *,
    num_labels: int | None = None,
    vocab_size: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Pretrained:
    """Loads a model; the arguments and errors are those of `bertjax.weights.load_model`.

    A head that the source lacks is initialised, and said so.
    """
    loaded = load_model(
        path_or_name, head, num_labels=num_labels, vocab_size=vocab_size, dtype=dtype
    )
    for part in loaded.absent:
        print(f"{path_or_name} has no {part}: it is freshly initialised; train it before use")
    return Pretrained(loaded)


def _apply(model: BertWithHead, params: Any, inputs: Any, hidden: bool, attentions: bool) -> Any:
    ids, types, mask = inputs
    rows, length = ids.shape
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    if model.config.position_offset:
        # RoBERTa's count what is not padding, which may stand in front.
        positions = jnp.maximum(jnp.cumsum(ids != model.config.pad_token_id, axis=1) - 1, 0)
    outputs, state = model.apply(
        {"params": params},
        ids,
        types,
        positions,
        mask,
        jnp.zeros((rows, 1), jnp.int32),
        output_hidden_states=hidden,
        mutable=["intermediates"] if attentions else [],
    )
    if attentions:
        layers = state["intermediates"]["bert"]["encoder"]["layers"]
        probs: Any = layers["attention"]["attention_probs"][
            0
        ]  # [groups, layers of each, B, N, L, L]
        outputs["attentions"] = probs.reshape(-1, *probs.shape[-4:])
    return outputs
