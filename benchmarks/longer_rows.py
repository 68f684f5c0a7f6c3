"""Measures how the held-out loss changes at the switch to rows of twice as many tokens.

    python benchmarks/longer_rows.py --data D [--init MODEL] [--lengths 64 128] [--steps 3000]

D holds rows of both lengths. A BERT of two layers, or the model of `--init`, is trained for
`--steps` steps on the shorter rows. From there, each value of `untrained_positions` goes on with
the longer rows. With `--steps 0`, `--init` goes on with the longer rows at once; it may have fewer
positions than these rows. Prints one line of JSON: the held-out masked LM losses before the switch,
and of each value directly after the switch and after `--steps_after` more steps, in nats.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from reporting import report

from bertjax.config import BertConfig, OptimizerConfig, Phase, PretrainConfig
from bertjax.tokenization import load_tokenizer
from bertjax.train.loop import fit
from bertjax.train.pretraining_run import PretrainingRun


def make_run(args: argparse.Namespace, value: Literal["keep", "fit"]) -> PretrainingRun:
    """Returns the run with the shorter rows, if it trains on them, and then the longer ones."""
    short, long = args.lengths
    phases = (Phase(num_steps=max(args.steps // 9, 400), max_length=long, batch_size=32),)
    if args.steps:
        phases = (Phase(num_steps=args.steps, max_length=short, batch_size=32), *phases)
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
            max_position_embeddings=long,
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        phases=phases,
        untrained_positions=value,
        optimizer=OptimizerConfig(
            recipe="adamw",
            learning_rate=args.learning_rate,
            warmup_steps=max(args.steps // 10, 10),
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
    parser.add_argument("--lengths", type=int, nargs=2, default=(64, 128))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--steps_after", type=int, default=200)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--eval_rows", type=int, default=500)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    run = make_run(args, "keep")
    long = run.phases[-1]
    short = dataclasses.replace(long, max_length=args.lengths[0])

    def loss(state, phase) -> float:
        return round(run.evaluate(state.params, phase)["eval/mlm_loss"], 4)

    state = run.new_state()
    if args.steps:
        batches, step = run.batches(0, 0), run.train_step(short)
        state, _ = fit(state, step, batches, step=0, num_steps=args.steps)
    losses: dict = {f"{short.max_length} tokens": loss(state, short)}
    print(losses, flush=True)
    train_step, index = run.train_step(long), len(run.phases) - 1
    values: tuple[Literal["keep", "fit"], ...] = ("keep", "fit")
    for value in values:
        after = jax.tree.map(jnp.copy, state)  # a train step donates its state
        after = make_run(args, value).begin_phase(index, after)
        found = [loss(after, long)]
        end = args.steps + args.steps_after
        after, _ = fit(after, train_step, run.batches(index, 0), step=args.steps, num_steps=end)
        found.append(loss(after, long))
        losses[f"{long.max_length} tokens, {value}"] = found
        print(losses, flush=True)
    figures = {"steps": args.steps, "steps_after": args.steps_after, "init": args.init}
    report(figures | {"losses": losses}, args.output)


if __name__ == "__main__":
    main()
