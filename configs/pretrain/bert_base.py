"""BERT-base, uncased, by the paper's recipe (Devlin et al. 2018, A.2).

    python -m bertjax.prepare --input 'text/*' --tokenizer bert-base-uncased --output D \\
        --max_length 128 512
    python -m bertjax.pretrain --config configs/pretrain/bert_base.py --data D --workdir W

The run has 1M steps of 256 sequences, nine tenths of them at 128 tokens, which took 4 days on 16
TPU chips in the paper. The cased model needs --model.vocab_size=28996 and the cased vocabulary.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("bert-base-uncased"),
    phases=(
        Phase(num_steps=900_000, max_length=128, batch_size=256, max_predictions=20),
        Phase(num_steps=100_000, max_length=512, batch_size=256, max_predictions=77),
    ),
    optimizer=OptimizerConfig(recipe="google", learning_rate=1e-4, warmup_steps=10_000),
    dtype="bfloat16",
    eval_every=10_000,
    save_every=5_000,
)
