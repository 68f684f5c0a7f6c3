"""Compares the first steps of ModernBERT's recipe with those of BERT's, at the same size.

    python benchmarks/modernbert_recipe.py --data D [--steps 300]

Both are the tiny configs in configs/pretrain on the same rows of 64 tokens, with the same number
of rows per step, warm-up and peak learning rate, for `--steps` steps. They take turns of 50 steps.
Prints one line of JSON for each: the held-out loss after each turn, in nats, over the same rows
with 15 % of the tokens masked (ModernBERT trains with 30 %), the mean of those losses, and the
median seconds per step.
"""

import dataclasses
import statistics
import tempfile

import jax
from reporting import parser_of, report

from bertjax.config import Phase, PretrainConfig, load_config_file
from bertjax.tokenization import load_tokenizer
from bertjax.train.pretraining import make_job
from bertjax.train.throughput import Subject

CONTENDERS = {"modernbert_tiny": "masked_lm", "bert_tiny": "pretraining"}
LENGTH, ROWS, TURN = 64, 32, 50


class Contender:
    """A run of a config whose phases are replaced by one; it trains in parts."""

    def __init__(self, name: str, data: str, steps: int, eval_rows: int):
        config = load_config_file(name, PretrainConfig)
        optimizer = dataclasses.replace(config.optimizer, warmup_steps=steps // 10)
        if optimizer.schedule == "trapezoidal":
            optimizer = dataclasses.replace(optimizer, decay_steps=steps // 5)
        vocab_size = load_tokenizer(data).vocab_size
        self.config = dataclasses.replace(
            config,
            data=data,
            workdir=tempfile.mkdtemp(),
            head=CONTENDERS[name],
            model=dataclasses.replace(config.model, vocab_size=vocab_size),
            phases=(Phase(num_steps=steps, max_length=LENGTH, batch_size=ROWS),),
            optimizer=optimizer,
            eval_rows=eval_rows,
        )
        self.subject, self.step = Subject(self.config, 0), 0
        self.evaluation = make_job(dataclasses.replace(self.config, mlm_probability=0.15))
        self.losses: dict[int, float] = {}
        self.seconds: list[float] = []

    def turn(self) -> None:
        """Trains for some steps, of which the first is not timed, and evaluates."""
        self.subject.block(1)
        self.seconds.append(self.subject.block(TURN - 1)["seconds"])
        self.step += TURN
        (phase,) = self.config.phases
        evaluation = self.evaluation.evaluate(self.subject.state.params, phase)
        self.losses[self.step] = round(evaluation["eval/mlm_loss"], 4)
        self.entropy = evaluation["eval/unigram_entropy"]

    def figures(self) -> dict:
        """Returns the results."""
        sizes = [leaf.size for leaf in jax.tree.leaves(self.subject.state.params)]
        return {
            "parameters": sum(sizes),
            "tokens_per_step": ROWS * LENGTH,
            "masked": self.config.mlm_probability,
            "held_out_loss": self.losses,
            "mean_of_losses": round(statistics.mean(self.losses.values()), 4),
            "unigram_entropy": round(self.entropy, 4),
            "seconds_per_step": round(statistics.median(self.seconds), 4),
        }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--eval_rows", type=int, default=500)
    args = parser.parse_args()
    contenders = {
        name: Contender(name, args.data, args.steps, args.eval_rows) for name in CONTENDERS
    }
    for _ in range(args.steps // TURN):
        for contender in contenders.values():
            contender.turn()
    for name, contender in contenders.items():
        report({"config": name} | contender.figures(), args.output)


if __name__ == "__main__":
    main()
