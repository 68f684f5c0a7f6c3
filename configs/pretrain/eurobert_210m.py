"""EuroBERT-210m in two phases, after its paper (Boizard et al. 2025) and its training library.

    python -m bertjax.prepare --input 'text/*' --tokenizer EuroBERT/EuroBERT-210m --output D \\
        --max_length 2048 8192 --objective mlm --pack
    python -m bertjax.pretrain --config configs/pretrain/eurobert_210m.py --data D --workdir W

4.8 trillion tokens in rows of 2,048 with a constant learning rate, then 200 billion in rows of
8,192 with a larger rotary base, in which it falls to 0. Learning rate, betas, epsilon, weight
decay, clipping and a warm-up over 1 % of the steps are the defaults of the authors' library
(Optimus), and 50 % masking and the base 10,000 are its settings for this model.

Unknown or different here: the batch, for which this file has 4.2 million tokens; in the second
phase, the paper masks 10 % and lets the rate fall as a cosine, where a run here masks as many
tokens as before and the rate falls linearly; the library replaces every chosen token by the mask
token, a run here 80 % of them. This file has not been run to its end.
"""

from bertjax.config import OptimizerConfig, Phase, PretrainConfig, named_config

config = PretrainConfig(
    model=named_config("eurobert-210m"),
    phases=(
        Phase(
            num_steps=1_144_400,
            max_length=2048,
            batch_size=2048,
            accumulation_steps=8,
            global_rope_theta=10_000.0,
        ),
        Phase(num_steps=47_700, max_length=8192, batch_size=512, accumulation_steps=8),
    ),
    optimizer=OptimizerConfig(
        recipe="adamw",
        schedule="trapezoidal",
        learning_rate=1e-4,
        warmup_steps=0,
        warmup_proportion=0.01,
        decay_steps=47_700,
        b2=0.95,
        eps=1e-5,
        weight_decay=0.1,
    ),
    mlm_probability=0.5,
    dtype="bfloat16",
    eval_every=5_000,
    save_every=1_000,
)
