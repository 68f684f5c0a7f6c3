"""An ELECTRA of the size of BERT-tiny, for a corpus of about 100 MB, on a laptop.

    python -m bertjax.prepare --input 'text/*' --tokenizer DIR --max_length 64 128 --output D
    python -m bertjax.pretrain --config configs/pretrain/electra_tiny.py --data D --workdir W

Phases, learning rate and initializer_range are those of bert_tiny.py. The generator is as wide as
the discriminator: one of 64 dimensions, half as wide, predicted only word frequencies for thousands
of steps. Embeddings are shared as in DeBERTa-v3, where the discriminator does not slow the
generator down, as it does with "es" of ELECTRA's paper. 10,000 steps are still too few for a useful
discriminator (docs/results.md); set more with --phases.0.num_steps.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, RtdConfig, named_config

config = PretrainConfig(
    head="rtd",
    model=named_config(
        "electra-small",
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        embedding_size=None,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ),
    rtd=RtdConfig(hidden_size=128, sharing="gdes"),
    phases=(
        Phase(num_steps=9_000, max_length=64, batch_size=32),
        Phase(num_steps=1_000, max_length=128, batch_size=32),
    ),
    optimizer=OptimizerConfig(
        recipe="adamw", learning_rate=2e-3, warmup_steps=1_000, schedule="hf", b2=0.98
    ),
    log_every=100,
    eval_every=1_000,
    eval_rows=2_000,
    save_every=1_000,
)
