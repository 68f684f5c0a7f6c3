"""Measures how the held-out loss changes at the switch to rows of twice as many tokens.

    python benchmarks/longer_rows.py --data D [--init MODEL] [--steps 3000] [--steps_after 200]

D holds rows of 64 and 128 tokens. A BERT of two layers, or the model of `--init`, is trained for
`--steps` steps on rows of 64 tokens. From there, each value of `untrained_positions` goes on with
rows of 128. Prints one line of JSON: the held-out masked LM losses before the switch, and of each
value directly after the switch and after `--steps_after` more steps, in nats.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from reporting import report

from bertjax.config import BertConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.tokenization import load_tokenizer
from bertjax.training.loop import fit
from bertjax.training.pretraining_run import PretrainingRun


def make_run(args: argparse.Namespace, value: Literal["keep", "fit"]) -> PretrainingRun:
    """Returns the run with rows of 64 and then of 128 tokens."""
    config = PretrainConfig(
        data=args.data,
        workdir=tempfile.mkdtemp(),
        init=args.init,
        model=BertConfig(
            vocab_size=load_tokenizer(args.data).vocab_size,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        phases=(
            Phase(num_steps=args.steps, max_length=64, batch_size=32),
            Phase(num_steps=max(args.steps // 9, 400), max_length=128, batch_size=32),
        ),
        untrained_positions=value,
        optimizer=OptimizerConfig(
            recipe="adamw",
            learning_rate=args.learning_rate,
            warmup_steps=args.steps // 10,
            schedule="hf",
            b2=0.98,
        ),
        eval_rows=args.eval_rows,
    )
    return PretrainingRun(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--init")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--steps_after", type=int, default=200)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--eval_rows", type=int, default=500)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    run = make_run(args, "keep")
    short, long = run.phases

    def loss(state, phase) -> float:
        return round(run.evaluate(state.params, phase)["eval/mlm_loss"], 4)

    state, step = fit(
        *(run.new_state(), run.train_step(short), run.batches(0, 0)), step=0, num_steps=args.steps
    )
    losses: dict = {"64 tokens": loss(state, short)}
    print(losses, flush=True)
    train_step = run.train_step(long)
    values: tuple[Literal["keep", "fit"], ...] = ("keep", "fit")
    for value in values:
        after = jax.tree.map(jnp.copy, state)  # a train step donates its state
        after = make_run(args, value).begin_phase(1, after)
        found = [loss(after, long)]
        after, _ = fit(
            *(after, train_step, run.batches(1, 0)),
            step=step,
            num_steps=step + args.steps_after,
        )
        found.append(loss(after, long))
        losses[f"128 tokens, {value}"] = found
        print(losses, flush=True)
    figures = {"steps": args.steps, "steps_after": args.steps_after, "init": args.init}
    report(figures | {"losses": losses}, args.output)


if __name__ == "__main__":
    main()
