"""Continued pretraining of an existing model on text of one field, with masked LM alone.

    python -m bertjax.prepare --input 'text/*' --tokenizer MODEL --max_length 128 \\
        --objective mlm --output D
    python -m bertjax.pretrain --config configs/pretrain/continue_pretraining.py --init MODEL \\
        --data D --workdir W

The architecture is that of --init. To add words of the field to its vocabulary, prepare the data
with the tokenizer of

    python -m bertjax.train_tokenizer --extend MODEL --add 5000 --input 'text/*' --output T

The peak of the learning rate is half of BERT's, because large steps undo what the model knows.
Change num_steps so that the text is read a few times; if a batch does not fit into memory, lower
batch_size or set accumulation_steps in the phase.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig

config = PretrainConfig(
    phases=(Phase(num_steps=10_000, max_length=128, batch_size=64),),
    optimizer=OptimizerConfig(recipe="adamw", learning_rate=5e-5, warmup_steps=500, schedule="hf"),
    log_every=50,
    eval_every=500,
    eval_rows=2_000,
    eval_at_start=True,
    save_every=500,
)
