# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pretrain a BERT from scratch in ten minutes
#
# This notebook does everything that the authors of BERT did, from raw text to a model that fills
# masks, only smaller: a vocabulary of 4,096 entries and not 30,522, two layers and not twelve, a
# million parameters and not 110 million, and the documentation of Python in place of Wikipedia and
# books. On a laptop with two cores it takes five to twelve minutes. No file is downloaded.
#
# ```bash
# pip install 'bertjax[viz]'       # viz: matplotlib, for the figures
# ```
#
# The file is a Python script: `python docs/notebooks/pretrain_from_scratch.py` executes it, VS Code
# shows its cells, and `jupytext --to ipynb` converts it to a notebook.

# %%
import json
import math
import os
from pathlib import Path

import matplotlib.pyplot as plt

import bertjax
from bertjax.config import BertConfig, OptimizerConfig, Phase

# 3,000 steps take most of the ten minutes. Tests set the environment variables to a few steps on a
# small text, which takes seconds and teaches the model nothing.
STEPS = int(os.environ.get("BERTJAX_NOTEBOOK_STEPS", "3000"))
# "pydocs" is the documentation of Python and of the installed packages. Your own files work, too:
# "my_texts/*.txt", with one document per file or a blank line between documents.
TEXT = os.environ.get("BERTJAX_NOTEBOOK_TEXT", "pydocs")
# What is made is kept here. Executed again, the notebook continues where it was stopped.
WORK = Path(os.environ.get("BERTJAX_NOTEBOOK_DIR", "runs/notebooks")) / "pretrain_from_scratch"

# %% [markdown]
# ## 1. A vocabulary
#
# BERT does not read words, it reads *pieces* from a fixed list, the vocabulary. Frequent words are
# pieces of their own; other words are split into several. The list is learnt from text: it begins
# with all characters, and the pair of neighbouring pieces that occurs most often is merged into a
# new piece, again and again, until the list is full. (Paper: section 3, "Input/Output
# Representations". Code: `bertjax/tokenization/wordpiece.py`.)

# %%
VOCAB_SIZE = 4096
tokenizer_dir = WORK / "tokenizer"
if not (tokenizer_dir / "vocab.txt").is_file():
    bertjax.train_tokenizer(input=TEXT, vocab_size=VOCAB_SIZE, output=str(tokenizer_dir))

# %% [markdown]
# ## 2. From text to rows of token ids
#
# The text is split into documents and sentences, and each *row* gets two segments, `[CLS] A [SEP] B
# [SEP]`. In half of the rows, B is the text that follows A in its document; in the other half it is
# a random text from elsewhere. (Which is which is the label of *next-sentence prediction*.)
# Documents that are *held out* are never trained on: they measure what the model has learnt rather
# than memorised. (Paper: 3.1 and A.2. Code: `bertjax/data/preparation/`.)
#
# Rows have at most 64 tokens here. The paper uses 128 for the first 90 % of the steps and 512 for
# the rest, because the time that attention takes grows with the square of the length.

# %%
MAX_LENGTH = 64
metadata = bertjax.prepare(
    input=TEXT,
    tokenizer=str(tokenizer_dir),
    output=str(WORK / "data"),
    max_length=MAX_LENGTH,
    eval_fraction=0.03,
    num_processes=1,  # worker processes would import this file as a script
)
for name, split in metadata.splits.items():
    print(f"{name}: {split.text_tokens:,} tokens of text")

# %% [markdown]
# No row is masked yet. Masks are drawn when a row is read, so that each epoch has different ones.
#
# ## 3. The model and the recipe
#
# Five numbers are the whole architecture. The recipe differs from the paper's in ways that let a
# small model learn in thousands of steps what BERT learns in hundreds of thousands:
#
# - `initializer_range=0.05`: larger initial weights than BERT's 0.02, which suits a width of 768;
# - a learning rate of 2e-3 and not 1e-4: small models bear (and need) more;
# - a quarter of the tokens is masked, not 15 %: more predictions per row;
# - no dropout: in ten minutes, a model does not see the text often enough to memorise it.

# %%
model = BertConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=128,
    initializer_range=0.05,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
optimizer = OptimizerConfig(
    recipe="adamw", learning_rate=2e-3, warmup_steps=STEPS // 10, schedule="hf", b2=0.98
)

# %%
run = WORK / f"run_{STEPS}_steps"
bertjax.pretrain(
    data=str(WORK / "data"),
    workdir=str(run),
    model=model,
    optimizer=optimizer,
    phases=[Phase(num_steps=STEPS, max_length=MAX_LENGTH, batch_size=32)],
    mlm_probability=0.25,
    log_every=max(STEPS // 30, 1),
    eval_every=max(STEPS // 6, 1),
    save_every=max(STEPS // 3, 1),
)

# %% [markdown]
# ## 4. Has it learnt anything?
#
# A loss of "4.2" says nothing by itself. Two numbers give it a scale. All are in *nats*: a loss of
# x nats means that the model gives the right piece a probability of exp(-x) in the (geometric)
# mean.
#
# - **ln V**, here ln 4096 = 8.32: the loss of a model that knows nothing and gives each piece of
#   the vocabulary the same probability. An untrained model begins there.
# - **The unigram entropy** of the held-out text: the lowest loss of any model that knows how
#   frequent each piece is, and *ignores the context*. As long as the loss is above this line, the
#   model may have learnt nothing but that "the" is frequent. What is below the line is knowledge of
#   language.
#
# Small models stay at the line for a while before they fall below it: look for the plateau.

# %%
records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
train = [(r["step"], r["train/mlm_loss"]) for r in records if "train/mlm_loss" in r]
held_out = [(r["step"], r["eval/mlm_loss"]) for r in records if "eval/mlm_loss" in r]
last = next(r for r in reversed(records) if "eval/mlm_loss" in r)
entropy = last["eval/unigram_entropy"]

figure, axes = plt.subplots(figsize=(7, 4))
axes.plot(*zip(*train, strict=True), color="0.7", label="training rows")
axes.plot(*zip(*held_out, strict=True), "o-", label="held-out rows")
axes.axhline(math.log(VOCAB_SIZE), color="C3", linestyle=":", label="ln V: knows nothing")
axes.axhline(entropy, color="C1", linestyle="--", label="unigram entropy: ignores context")
axes.set(xlabel="step", ylabel="masked LM loss (nats)", title="Masked language modelling")
axes.legend()
plt.show()

# %%
loss = last["eval/mlm_loss"]
print(f"held-out loss                {loss:.3f} nats, perplexity {math.exp(loss):,.1f}")
print(f"unigram entropy              {entropy:.3f} nats, perplexity {math.exp(entropy):,.1f}")
print(f"masked tokens guessed right  {last['eval/mlm_accuracy']:.1%}")
labels = metadata.splits["eval"].lengths[str(MAX_LENGTH)].labels  # how often each answer is right
constant = max(labels.values()) / sum(labels.values())
print(f"next sentence, right         {last['eval/nsp_accuracy']:.1%}")
print(f"  always the same answer     {constant:.1%}")
if loss < entropy:
    print(f"The model uses context: it is {entropy - loss:.2f} nats below the unigram entropy.")
else:
    print("The model does not use context yet: train it for more steps.")

# %% [markdown]
# (More than half of the pairs have a random second text: a document's last sentence has no text
# that follows it. So compare next-sentence prediction with the more frequent answer, not with a
# coin.)
#
# *Perplexity* is the exponential of the loss: a perplexity of 60 means that the model is as unsure
# as if it chose among 60 equally likely pieces.
#
# ## 5. Fill masks
#
# The model has read nothing but documentation of software, so ask it about that.

# %%
bert = bertjax.load_pretrained(str(run), "masked_lm")
print(bert)
for text in (
    "Returns the [MASK] of the array.",
    "If the file does not [MASK], an error is raised.",
    "The function takes two [MASK] and returns a list.",
    "Raises an error [MASK] the value is negative.",
):
    (words,) = bert.fill_mask(text, top_k=5)
    print(text, "->", ", ".join(f"{word} {probability:.0%}" for word, probability in words))

# %% [markdown]
# The directory `run_.../model` is a model of Hugging Face's format, and `transformers` loads it
# without bertjax:
#
# ```python
# from transformers import pipeline
#
# pipeline("fill-mask", "runs/notebooks/pretrain_from_scratch/run_3000_steps/model")
# ```
#
# ## What to change for a real model
#
# - **Text.** Set `TEXT` to your files. A vocabulary of 30,522 entries is for a hundred megabytes of
#   text or more; with less, keep it smaller.
# - **Size and recipe.** `configs/pretrain/bert_base.py` has the values of the paper:
#   `bertjax.pretrain(load_config_file("configs/pretrain/bert_base.py", PretrainConfig), data=...,
#   workdir=...)`. BERT-base takes days on several accelerators. `configs/pretrain/bert_tiny.py`
#   learns from Wikipedia in 40 minutes on two cores.
# - **Not from scratch.** For a new *domain* you rarely want to start anew:
#   `init="bert-base-uncased"` continues the pretraining of an existing model on your text, with its
#   vocabulary. It needs a hundredth of the text.
# - **Interruptions.** Stop a run whenever you like. The same call resumes it, bit for bit.
#
# "How BERT works" computes by hand what the model has done here.
