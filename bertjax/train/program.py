"""`PretrainingProgram`, and the shapes, the masking and random rows of its batches."""

import copy
import dataclasses
import itertools
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.config import Phase, PretrainConfig
from bertjax.data.batches.batch import Batch
from bertjax.data.batches.masking import Masking, random_bits, unspaced_tokens
from bertjax.data.batches.pretraining_batches import RowFormat, make_batch
from bertjax.data.records import Row
from bertjax.devices import sharding
from bertjax.devices.flops import train_flops_per_row
from bertjax.model import HEADS, BertWithHead
from bertjax.tokenization import Tokenizer
from bertjax.train.distillation import distilled_pretraining
from bertjax.train.step import Program, make_loss_fn

# The ids of special tokens in random rows; their values do not affect the time of a step.
CLS, SEP, MASK = 1, 2, 3


class PretrainingProgram(Program):
    """The model, optimizer and compiled steps of a pretraining config whose `head` is not None.

    Raises:
        ValueError: a batch or a parameter cannot be split equally over the devices and
            microbatches; or the config's attention kernel, warm-up or `unroll` cannot be used.
    """

    def __init__(
        self,
        config: PretrainConfig,
        mesh: Mesh,
        teacher: BertWithHead | None = None,
        teacher_params: Any = None,
    ):
        for stage in itertools.chain(*(phase.stages for phase in config.phases)):
            sharding.check_batch_size(mesh, stage.batch_size, stage.accumulation_steps)
        model = HEADS[str(config.head)].for_pretraining(config)
        objective = model.objective("pretraining")
        if teacher is not None:
            objective = distilled_pretraining(config.distillation)
        super().__init__(config, model, objective, config.phases, mesh, teacher, teacher_params)
        self.config: PretrainConfig = config

    def for_phase(self, phase: Phase) -> "PretrainingProgram":
        """Returns the program of a phase, whose model has the rotary base of the phase."""
        if phase.global_rope_theta is None:
            return self
        program = copy.copy(self)
        model = dataclasses.replace(self.model.config, global_rope_theta=phase.global_rope_theta)
        program.model = self.model.clone(config=model)
        program.loss_fn = make_loss_fn(program.model, self.objective, self.teacher)
        return program

    def flops_per_row(self, phase: Phase, attended: float | None = None) -> float:
        """Returns the FLOP per row of an update, including the teacher's forward pass, if any.

        The rows belong to `phase`. `attended` is the mean number of tokens that a token attends
        to; None: all tokens of a row.
        """
        predictions = max_predictions(self.config, phase)
        if not self.objective.inputs:  # without masked positions, all tokens have logits
            predictions = phase.max_length

        def flops(model: BertWithHead) -> float:
            return sum(
                train_flops_per_row(
                    encoder, phase.max_length, predictions if predicts_words else 0, attended
                )
                for encoder, predicts_words in model.trained_encoders
            )

        return flops(self.model) + (flops(self.teacher) / 3 if self.teacher else 0.0)


def max_predictions(config: PretrainConfig, phase: Phase, max_sequences: int = 1) -> int:
    """Returns P, the maximum number of predicted tokens per row of up to `max_sequences` sequences.

    P is `phase.max_predictions`, or follows from `config.mlm_probability`. A model that predicts
    the next token predicts at all positions.
    """
    if config.predict == "next_token":
        return phase.max_length
    wanted = phase.max_predictions or phase.max_length * config.mlm_probability
    # The number of predictions is rounded for each sequence of a row, which adds at most 1/2 each.
    return int(np.ceil(wanted) if max_sequences == 1 else wanted + max_sequences / 2)


def _masking(config: PretrainConfig, phase: Phase, max_sequences: int, **settings: Any) -> Masking:
    if config.head == "rtd":
        settings |= {"mask_share": config.rtd.masked, "random_share": 0.0}
    settings["max_predictions"] = max_predictions(config, phase, max_sequences)
    return Masking(probability=config.mlm_probability, predict=config.predict, **settings)


def make_masking(
    config: PretrainConfig, phase: Phase, tokenizer: Tokenizer, max_sequences: int = 1
) -> Masking:
    """Returns the masking settings of a phase whose rows hold at most `max_sequences` sequences.

    The settings come from `config`, for the vocabulary of `tokenizer`.
    """
    starts = segment = None
    if config.whole_word_masking or config.max_ngram > 1:
        starts, unspaced = tokenizer.word_starts, unspaced_tokens(tokenizer)
        if find_spec("icu4py"):
            segment = unspaced.segment
        else:
            starts |= unspaced.starts
    return _masking(
        config,
        phase,
        max_sequences,
        vocab_size=tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        never_masked=(tokenizer.cls_token_id, tokenizer.sep_token_id),
        word_starts=starts,
        segment=segment,
        max_ngram=config.max_ngram,
        never_drawn=tokenizer.special_ids if config.random_words == "ordinary" else (),
    )


def row_format(
    config: PretrainConfig, phase: Phase, tokenizer: Tokenizer, max_sequences: int
) -> tuple[Masking, RowFormat]:
    """Returns the masking settings and the row format (length, padding) of a phase of `config`.

    Rows hold at most `max_sequences` sequences, and `tokenizer` made them.
    """
    masking = make_masking(config, phase, tokenizer, max_sequences)
    return masking, RowFormat(phase.max_length, tokenizer.pad_token_id, max_sequences)


def random_rows(config: PretrainConfig, phase: Phase, count: int) -> Batch:
    """Creates a batch of `count` masked rows, each one sequence of random token ids, no padding.

    The batch has the arrays and the shapes that `config` gives the batches of `phase`.
    """
    rng, length, vocab_size = np.random.default_rng(0), phase.max_length, config.model.vocab_size
    tokens = {"vocab_size": vocab_size, "mask_token_id": MASK, "never_masked": (CLS, SEP)}
    masking = _masking(config, phase, 1, **tokens)
    rows = []
    for _ in range(count):
        ids = rng.integers(min(MASK + 1, vocab_size - 1), vocab_size, length)
        ids[0], ids[length // 2], ids[-1] = CLS, SEP, SEP
        rows.append(Row(ids, (length,), (length // 2 + 1,), (int(rng.integers(2)),)))
    bits = random_bits((0,), range(count), length)
    return make_batch(rows, masking, RowFormat(length, 0), bits)


def batch_shapes(config: PretrainConfig, phase: Phase, rows: Any) -> dict[str, Any]:
    """Returns the arrays of a phase's global batch as `jax.ShapeDtypeStruct`s.

    `rows` is the sharding of each array. They are the shapes of batches with one sequence per row,
    for the model and the masking in `config`.
    """
    return {
        key: jax.ShapeDtypeStruct((phase.batch_size, *value.shape[1:]), value.dtype, sharding=rows)
        for key, value in random_rows(config, phase, 1).items()
    }


def with_head(config: PretrainConfig, has_pairs: bool) -> PretrainConfig:
    """Returns the config with `head` "pretraining" (MLM and sentence pairs) or "masked_lm".

    Args:
        config: the config of the run. Without a teacher, the head is `config.head`; if it is None,
            the head is "pretraining" if `has_pairs` is True, else "masked_lm". With a teacher, the
            head is "pretraining" if `config.distillation.nsp`, the weight of the sentence-pair
            loss, is above 0, else "masked_lm".
        has_pairs: whether the data has sentence pairs.

    Raises:
        ValueError: with a teacher, `config.head` is the head that distillation does not train; or
            a next-sentence head would neither be trained nor come from `config.init`.
    """
    distillation = config.distillation
    if distillation.teacher is None:
        head = config.head or ("pretraining" if has_pairs else "masked_lm")
        if head == "pretraining" and not has_pairs and config.init is None:
            raise ValueError(
                "--head pretraining needs rows with sentence pairs, and these have none, so that "
                "its next-sentence head would stay random: leave --head out, or prepare the text "
                "with --objective nsp or sop."
            )
        return dataclasses.replace(config, head=head)
    trained = "pretraining" if distillation.nsp else "masked_lm"
    if config.head not in (None, trained):
        raise ValueError(
            f"head={config.head!r} with distillation.nsp={distillation.nsp:g}: distillation trains "
            "the head 'pretraining' if distillation.nsp is positive, else 'masked_lm'. Leave "
            f"--head out to train {trained!r}, or change --distillation.nsp to train "
            f"{config.head!r}."
        )
    return dataclasses.replace(config, head=trained)
