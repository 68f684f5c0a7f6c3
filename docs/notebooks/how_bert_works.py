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
# # How BERT works
#
# This page computes everything that BERT does with two sentences, from the text to the loss and to
# one step of the optimizer. Each step is a few lines of plain numpy. Beside it runs bertjax, and
# after each step the page compares the two: **every array is equal to the library's within one
# millionth** (of its largest number, if that is above 1), or the page would not have been built. So
# what you read is not *like* BERT, it *is* BERT. The model is `bertjax:tiny`, which comes with
# bertjax. It is very small, with three layers and not twelve, but nothing else about it is
# simplified: with `bert-base-uncased` in its place, the code is the same. (Only the millionth would
# have to be a little larger, because the rounding errors of the library, which computes in 32 bits,
# grow with the number of layers.)
#
# You need to know what a matrix product is, and some Python. No knowledge of transformers is
# assumed. Sections of two papers are named where they belong, so that you can read them alongside:
#
# - **BERT**: Devlin, Chang, Lee and Toutanova 2018, *BERT: Pre-training of Deep Bidirectional
#   Transformers for Language Understanding* (arXiv:1810.04805).
# - **Attention**: Vaswani et al. 2017, *Attention Is All You Need* (arXiv:1706.03762).
#
# The page is an executable script, `docs/notebooks/how_bert_works.py` in the repository. Change a
# sentence and run it again; it takes less than a minute. It needs `pip install 'bertjax[viz]'`.

# %%
import dataclasses
import math
import os

import jax
import matplotlib.pyplot as plt
import numpy as np
from flax.traverse_util import flatten_dict

import bertjax
from bertjax.config import OptimizerConfig, Phase
from bertjax.data.batches.masking import Masking, random_bits, replacements
from bertjax.data.batches.pretraining_batches import RowFormat, make_batch
from bertjax.data.records import Row
from bertjax.model import BertForPreTraining
from bertjax.model.losses import PRETRAINING
from bertjax.tasks.dataset import Example
from bertjax.tasks.question_answering import windows as library_windows
from bertjax.tasks.tagging import TagTask
from bertjax.tokenization import extend
from bertjax.train.optimizer import make_optimizer, make_schedule
from bertjax.train.step import make_loss_fn
from bertjax.weights import init_params

MODEL = os.environ.get("BERTJAX_NOTEBOOK_MODEL", "bertjax:tiny")
bert = bertjax.load_pretrained(MODEL, "pretraining")
config, tokenizer = bert.config, bert.tokenizer
print(bert)

# %% [markdown]
# The parameters of the model are a tree of arrays. The first function takes one of them by its
# path, in 64 bits, so that the numbers computed here are exact for our purposes. The second one
# compares an array of ours with the library's.


# %%
def parameter(path):
    value = bert.params
    for key in path.split("/"):
        value = value[key]
    return np.asarray(value, np.float64)


def same(name, ours, theirs):
    """Prints the shape, and fails unless both arrays are equal within a millionth."""
    ours, theirs = np.asarray(ours), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, f"{name}: {ours.shape} and {theirs.shape}"
    # Rounding errors are proportional to the numbers: 1e-6 is meant for numbers up to 1.
    difference = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1)
    assert difference <= 1e-6, f"{name}: the largest difference is {difference}"
    print(f"{name:28} {ours.shape!s:18} equal within {difference:.1e}")


# %% [markdown]
# ## From text to numbers
#
# ### 1. Pieces
#
# *BERT, section 3, "Input/Output Representations"; in bertjax:
# `bertjax/tokenization/wordpiece.py`.*
#
# A model computes with numbers, so the text must be cut into units from a fixed list, the
# *vocabulary*. With words as units the list could never be complete; with letters, sequences would
# be long and meaning far away. BERT takes the middle: **pieces**. Frequent words are one piece; a
# rare word is several. A piece that continues a word is written with `##` in front.
#
# First, the text is cleaned and cut into words: an *uncased* model writes everything in lower case
# and strips accents, and every punctuation mark is a word of its own. Then each word is split
# **greedily**: take the longest piece of the vocabulary that the word begins with, then the longest
# with which the rest continues, and so on. That is the whole algorithm:


# %%
def wordpiece(word):
    """Splits a word into the longest pieces of the vocabulary, from left to right."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):  # the longest first
            piece = ("##" if start else "") + word[start:end]
            if piece in tokenizer.vocab:
                break
        else:
            return ["[UNK]"]  # no piece fits: the whole word is unknown
        pieces.append(piece)
        start = end
    return pieces


for word in ("array", "arrays", "tokenizer", "unreadable", "hippopotamus", "日本"):
    print(f"{word:14}", wordpiece(word))
    (by_library,) = tokenizer.encode([word])
    if word.isascii():  # each Chinese character is a word of its own for the library
        assert wordpiece(word) == [tokenizer.tokens[i] for i in by_library]

# %% [markdown]
# Note what this is *not*: it knows nothing of prefixes and syllables. "Longest first" can cut a
# word at places where no linguist would. The model has to learn what the sequence of pieces means,
# and it does.
#
# A word becomes `[UNK]` only if one of its *characters* is missing from the vocabulary, which is
# rare.
#
# ### 2. A pair of texts becomes one sequence
#
# *BERT, section 3 and figure 2; `bertjax/tokenization/base.py`.*
#
# BERT reads one text or two. Both go into a single sequence with marks around them: `[CLS] first
# text [SEP] second text [SEP]`. Three rows of integers describe it:
#
# - **token ids**: the number of each piece in the vocabulary;
# - **token types** (or *segments*): 0 for the first text and its marks, 1 for the second;
# - **positions**: 0, 1, 2, ..., because attention by itself would not know the order of its inputs.

# %%
TEXT_A = "The function returns a new array."
TEXT_B = "It raises an error if the shape is wrong."

words_a = TEXT_A.lower().replace(".", " .").split()
words_b = TEXT_B.lower().replace(".", " .").split()
pieces_a = [piece for word in words_a for piece in wordpiece(word)]
pieces_b = [piece for word in words_b for piece in wordpiece(word)]
tokens = ["[CLS]", *pieces_a, "[SEP]", *pieces_b, "[SEP]"]

ids = np.array([tokenizer.vocab[token] for token in tokens])
types = np.array([0] * (len(pieces_a) + 2) + [1] * (len(pieces_b) + 1))
positions = np.arange(len(tokens))
for row in zip(positions, tokens, ids, types, strict=True):
    print("{:3}  {:12} id {:5}  type {}".format(*row))

library_ids, library_mask, library_types = bert.encode([(TEXT_A, TEXT_B)])
same("token ids", ids[None], library_ids)
same("token types", types[None], library_types)

# %% [markdown]
# The `None` adds an axis in front: the library computes many sequences at once, the *batch*. We
# have a batch of one. (Sequences of different lengths are filled up with `[PAD]`, and a mask of
# ones and zeros tells what is real. Section 16 shows a better way.)
#
# From here on, L is the number of tokens, D the size of the vectors (`hidden_size`), N the number
# of attention heads and V the size of the vocabulary.
#
# We let the library compute everything once and keep all the arrays that it makes on the way, to
# compare with ours.


# %%
@jax.jit
def run_library(params, ids, types):
    return bert.model.apply(
        {"params": params},
        ids,
        types,
        output_hidden_states=True,
        capture_intermediates=True,
        mutable=["intermediates"],
    )


outputs, captured = run_library(bert.params, library_ids, library_types)


def library(path):
    """An array that a module of the library returned, without the axis of the batch."""
    value = captured["intermediates"]["bert"]
    for key in path.split("/"):
        value = value[key]
    value = value if path.endswith("attention_probs") else value["__call__"]
    # The arrays of the layers are stacked: [layers, batch, ...].
    return value[0][:, 0] if "/layers/" in path else value[0][0]


L, D, N, V = len(ids), config.hidden_size, config.num_attention_heads, config.vocab_size
print(
    f"L = {L} tokens, D = {D}, N = {N} heads, V = {V:,} pieces, {config.num_hidden_layers} layers"
)

# %% [markdown]
# ## The encoder
#
# ### 3. Embeddings: three look-ups and a sum
#
# *BERT, section 3, figure 2; `bertjax/model/embeddings.py`.*
#
# Each token gets a vector of D numbers. It is the sum of three rows from three tables, all of them
# learnt: the row of its piece (a table of V rows), the row of its position, and the row of its
# token type (a table of two rows). After this sum, the order of the sequence is *in the vectors*.

# %%
word_table = parameter("bert/embeddings/word_embeddings/embedding")  # [V, D]
position_table = parameter("bert/embeddings/position_embeddings/embedding")  # [positions, D]
type_table = parameter("bert/embeddings/token_type_embeddings/embedding")  # [2, D]

summed = word_table[ids] + position_table[positions] + type_table[types]  # [L, D]
same("words", word_table[ids], library("embeddings/word_embeddings"))
same("positions", position_table[positions], library("embeddings/position_embeddings"))
same("token types", type_table[types], library("embeddings/token_type_embeddings"))

# %% [markdown]
# #### LayerNorm
#
# *Ba et al. 2016; Attention, section 3.1.*
#
# After the sum, and after every later step, each vector is *normalised*: subtract its mean, divide
# by its standard deviation, then scale and shift each of the D coordinates by learnt numbers. Each
# token is normalised by itself; no token sees another here. It keeps the numbers in a range in
# which the next layer learns well, however deep the network is.


# %%
def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + config.layer_norm_eps) * scale + bias


def norm_parameters(path):
    return parameter(f"{path}/scale"), parameter(f"{path}/bias")


embedded = layer_norm(summed, *norm_parameters("bert/embeddings/layer_norm"))
same("embeddings", embedded, library("embeddings"))

# %% [markdown]
# (During training, a tenth of the numbers is then set to zero at random, and the others are
# enlarged to make up for it: *dropout*. It keeps the network from relying on single numbers. It is
# off whenever a model is used, and on this page.)
#
# The transformer of the *Attention* paper did not learn its positions; it computed them as sines
# and cosines of many wavelengths (section 3.5). BERT starts with random rows and learns them. Are
# the learnt rows related to each other? Each picture shows the cosine between the rows of two
# positions.


# %%
def cosines(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit @ unit.T


rates = 10_000.0 ** (-2 * (np.arange(D) // 2) / D)
angles = np.arange(len(position_table))[:, None] * rates
sinusoids = np.where(np.arange(D) % 2 == 0, np.sin(angles), np.cos(angles))

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for axis, title, table in (
    (axes[0], "learnt (BERT)", position_table),
    (axes[1], "sinusoids (Attention, 3.5)", sinusoids),
):
    image = axis.imshow(cosines(table), cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set(title=title, xlabel="position", ylabel="position")
figure.colorbar(image, ax=axes, label="cosine")
plt.show()

# %% [markdown]
# For sinusoids, only the distance of two positions counts: the stripes are parallel to the
# diagonal. Nothing made the learnt positions so. The model has found out by itself that neighbours
# should be similar (the band along the diagonal), and something like waves has appeared. Positions
# that were rarely trained, the last ones, stay close to their random start, and similar to none.
#
# ### 4. Attention: tokens look at each other
#
# *Attention, section 3.2; `bertjax/model/attention.py`.*
#
# So far, each vector knows only its own piece and place. In "The function returns a new array",
# what *new* is about is in another vector. Attention is the step, and the *only* step in the whole
# network, in which information moves between tokens.
#
# Each token makes three vectors from its own vector, by three learnt matrices:
#
# - a **query**: what the token looks for,
# - a **key**: what it offers to be found by,
# - a **value**: what it hands over when it is found.
#
# All this happens in N **heads** side by side, each with its own, smaller matrices (D/N numbers),
# so that a token can look for several things at once.

# %%
LAYER = 0
layers = "bert/encoder/layers"  # the parameters of all layers, stacked on the first axis


def layer_parameter(path, layer):
    return parameter(f"{layers}/{path}")[layer]


def heads(x, name, layer):
    """Multiplies x [L, D] by one of the three matrices: [N, L, D/N], one matrix per head."""
    kernel = layer_parameter(f"attention/{name}/kernel", layer)  # [D, N, D/N]
    bias = layer_parameter(f"attention/{name}/bias", layer)  # [N, D/N]
    return np.stack([x @ kernel[:, head] + bias[head] for head in range(N)])


query = heads(embedded, "query", LAYER)
key = heads(embedded, "key", LAYER)
value = heads(embedded, "value", LAYER)
for name, ours in (("query", query), ("key", key), ("value", value)):
    # The library's axes are [L, N, D/N].
    same(name, ours.transpose(1, 0, 2), library(f"encoder/layers/attention/{name}")[LAYER])

# %% [markdown]
# #### Scores and softmax
#
# *Attention, section 3.2.1, equation 1.*
#
# How well does what token i looks for match what token j offers? The **score** is the dot product
# of query i and key j, divided by the square root of their length. (Without the division, the
# scores of long vectors would be so large that the softmax would choose one token and nothing else,
# and its gradients would vanish.) The **softmax** turns the L scores of a token into L positive
# weights that sum to 1.


# %%
def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))  # no overflow, same result
    return exponentials / exponentials.sum(-1, keepdims=True)


scores = query @ key.transpose(0, 2, 1) / np.sqrt(D / N)  # [N, L, L]: head, who looks, at whom
weights = softmax(scores)
same("attention weights", weights, library("encoder/layers/attention/attention_probs")[LAYER])
assert np.allclose(weights.sum(-1), 1)

# %%
figure, axes = plt.subplots(1, min(N, 4), figsize=(13, 4), sharey=True, layout="constrained")
for head, axis in enumerate(np.atleast_1d(axes)):
    image = axis.imshow(weights[head], cmap="Blues", vmin=0, vmax=1)
    axis.set_title(f"layer {LAYER + 1}, head {head + 1}")
    axis.set_xticks(range(L), tokens, rotation=90, fontsize=8)
    axis.set_yticks(range(L), tokens, fontsize=8)
np.atleast_1d(axes)[0].set_ylabel("this token looks")
figure.supxlabel("at this token")
figure.colorbar(image, ax=axes, label="weight", shrink=0.7)
plt.show()

# %% [markdown]
# Each row of a picture sums to 1. Rows are who looks, columns are who is looked at. Note that a
# token may look in *both* directions, at what comes before and after it. That is the B in BERT,
# *bidirectional*. A GPT blanks out everything to the right of the diagonal, because it must predict
# the next token.
#
# #### Output and residual
#
# *Attention, sections 3.2.2 and 3.1.*
#
# With its weights, each token takes the weighted mean of all values, in each head. The results of
# the heads are put side by side and mixed by one more matrix. What comes out is *added* to what the
# token was before (the **residual** connection: a layer only ever computes a correction), and the
# sum is normalised.


# %%
def attention(x, layer, allowed):
    """Returns the output of attention [L, D]; `allowed` bool [L, L] tells who may look at whom."""
    query, key, value = (heads(x, name, layer) for name in ("query", "key", "value"))
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(D / N)
    weights = softmax(np.where(allowed, scores, -np.inf))
    mixed = weights @ value  # [N, L, D/N]: the weighted mean of the values
    kernel = layer_parameter("attention/output/kernel", layer)  # [N, D/N, D]
    output = sum(mixed[head] @ kernel[head] for head in range(N))
    return output + layer_parameter("attention/output/bias", layer)


def layer_norm_of(name, layer):
    scale, bias = norm_parameters(f"{layers}/{name}")
    return scale[layer], bias[layer]


everyone = np.ones((L, L), bool)  # every token may look at every token
attended = attention(embedded, LAYER, everyone)
same("output of attention", attended, library("encoder/layers/attention")[LAYER])
after_attention = layer_norm(embedded + attended, *layer_norm_of("attention_layer_norm", LAYER))
same("after the residual", after_attention, library("encoder/layers/attention_layer_norm")[LAYER])

# %% [markdown]
# ### 5. Feed-forward: each token thinks by itself
#
# *Attention, section 3.3; GELU: Hendrycks and Gimpel 2016; `bertjax/model/encoder.py`.*
#
# Now each token digests what it has collected, with a small network of its own (the same one for
# all tokens): up to four times the size, a bend, and down again. The bend, **GELU**, lets positive
# numbers through and suppresses negative ones, smoothly: x times the probability that a standard
# normal number is below x. Without a bend, two matrices in a row would be no more than one matrix.
# Two thirds of the parameters of a layer are here.


# %%
def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def feed_forward(x, layer):
    kernel, bias = (layer_parameter(f"intermediate/{p}", layer) for p in ("kernel", "bias"))
    inner = gelu(x @ kernel + bias)  # [L, 4 D]
    kernel, bias = (layer_parameter(f"output/{p}", layer) for p in ("kernel", "bias"))
    return inner @ kernel + bias


thought = feed_forward(after_attention, LAYER)
same("feed-forward", thought, library("encoder/layers/output")[LAYER])
after_layer = layer_norm(after_attention + thought, *layer_norm_of("output_layer_norm", LAYER))
same("output of the layer", after_layer, outputs["hidden_states"][LAYER + 1][0])

# %% [markdown]
# That is a complete layer. Nothing is missing.
#
# ### 6. All layers
#
# *BERT, section 3, "Model Architecture"; `bertjax/model/bert.py`.*
#
# The layers have the same form and different numbers, and each reads what the one before has
# written. BERT-base is this loop with 12 layers, D = 768 and 12 heads; BERT-large has 24, 1024 and
# 16.


# %%
def encode(ids, types, positions, allowed):
    """The whole encoder: from integers to the last hidden states [L, D]."""
    x = word_table[ids] + position_table[positions] + type_table[types]
    x = layer_norm(x, *norm_parameters("bert/embeddings/layer_norm"))
    states = [x]
    for layer in range(config.num_hidden_layers):
        attended = attention(x, layer, allowed)
        x = layer_norm(x + attended, *layer_norm_of("attention_layer_norm", layer))
        x = layer_norm(x + feed_forward(x, layer), *layer_norm_of("output_layer_norm", layer))
        states.append(x)
    return np.stack(states)  # [layers + 1, L, D]


hidden_states = encode(ids, types, positions, everyone)
same("all hidden states", hidden_states, outputs["hidden_states"][:, 0])

# %% [markdown]
# What has been gained? A vector in the table `word_table` is the same wherever its piece occurs. A
# hidden state depends on the whole text, which is what *contextual embedding* means. Below, the
# same word occurs twice in a text. In the embeddings, its two vectors differ only by their
# positions; from layer to layer, they also take up what is around them.

# %%
word = "file"
text = "The file is open. Each line of the file is read."
(row,), _, (row_types,) = bert.encode([text])
places = [i for i, token in enumerate(row) if tokenizer.tokens[token] == word]
states = encode(row, row_types, np.arange(len(row)), np.ones((len(row), len(row)), bool))
for layer, x in enumerate(states):
    first, second = x[places[0]], x[places[1]]
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    name = f"after layer {layer}" if layer else "embeddings"
    print(f"cosine of the two vectors of {word!r}, {name}: {cosine:.3f}")

# %% [markdown]
# ## The two questions of pretraining
#
# The encoder turns text into vectors. How do the numbers in its matrices come about? By practice on
# two questions to which any text has the answers: *which piece was here?* and *do these two texts
# belong together?*
#
# ### 7. The pooler and next-sentence prediction
#
# *BERT, section 3.1, task 2; `bertjax/model/heads.py`.*
#
# `[CLS]` has no meaning of its own, so its vector is free to collect what is needed about the whole
# sequence. The **pooler** is one more matrix and a tanh on that vector. From its result, a matrix
# with two columns computes two **logits** (scores before a softmax): class 0 says that text B
# follows text A, class 1 that it comes from somewhere else.


# %%
def pool(last):
    return np.tanh(last[0] @ parameter("bert/pooler/kernel") + parameter("bert/pooler/bias"))


def next_sentence(last):
    return pool(last) @ parameter("seq_relationship/kernel") + parameter("seq_relationship/bias")


last_hidden_state = hidden_states[-1]
same("pooler", pool(last_hidden_state), outputs["pooler_output"][0])
same("next sentence", next_sentence(last_hidden_state), outputs["seq_relationship_logits"][0])
print(f"P(B follows A) = {softmax(next_sentence(last_hidden_state))[0]:.3f}")

# %% [markdown]
# ### 8. The masked language model
#
# *BERT, section 3.1, task 1.*
#
# The head that guesses pieces is a matrix, GELU and LayerNorm on each vector, and then the dot
# product with **every row of the word table**: the guess for a place is the piece whose embedding
# is most similar to the vector there. The table is used twice, at the entrance and at the exit; the
# weights are *tied* (Press and Wolf 2017; *Attention*, section 3.4). Each piece also has a bias,
# which can learn how frequent it is.


# %%
def masked_lm(x):
    """Hidden states [P, D] -> logits [P, V]."""
    x = gelu(
        x @ parameter("predictions/transform/kernel") + parameter("predictions/transform/bias")
    )
    x = layer_norm(x, *norm_parameters("predictions/layer_norm"))
    return x @ word_table.T + parameter("predictions/bias")


logits = masked_lm(last_hidden_state)
same("masked LM logits", logits, outputs["prediction_logits"][0])

# %%
text = "Returns the [MASK] of the array."
row, row_types = (np.array(x) for x in tokenizer.encode_prompt(text))
last = encode(row, row_types, np.arange(len(row)), np.ones((len(row), len(row)), bool))[-1]
place = list(row).index(tokenizer.mask_token_id)
probabilities = softmax(masked_lm(last)[place])
by_hand = [(tokenizer.tokens[i], probabilities[i]) for i in np.argsort(-probabilities)[:5]]
(by_library,) = bert.fill_mask(text, 5)
assert [word for word, _ in by_hand] == [word for word, _ in by_library]
print(text, "->", ", ".join(f"{word} {probability:.1%}" for word, probability in by_hand))

# %% [markdown]
# ## Learning
#
# ### 9. Masking: 80, 10, 10
#
# *BERT, sections 3.1 and C.2; `bertjax/data/batches/masking.py`.*
#
# 15 % of the tokens (never `[CLS]` and `[SEP]`) are chosen to be predicted. If all of them became
# `[MASK]`, the model could learn to do nothing at other tokens, and would meet no `[MASK]` when it
# is used for something else later. So of the chosen tokens
#
# - 80 % become `[MASK]`,
# - 10 % become a random piece,
# - 10 % stay as they are, and must be predicted all the same.
#
# The model cannot know which of the tokens that it sees are true. It has to keep a good idea of
# *every* token.
#
# All randomness comes from numbers of 64 bits, two per token: one decides who is chosen, the other
# what happens to it. We do it by hand and compare with the library, from the same random bits.

# %%
never = (tokenizer.cls_token_id, tokenizer.sep_token_id)
bits = random_bits((0,), [0], L)  # uint64 [1 row, 2, L]
order, dice = bits[0]

candidates = [i for i in range(L) if ids[i] not in never]
count = max(1, round(0.15 * L))
chosen = sorted(sorted(candidates, key=lambda i: order[i])[:count])
masked_ids = ids.copy()
for i in chosen:
    chance = int(dice[i] >> np.uint64(32)) / 2**32  # a random number from 0 to 1
    if chance < 0.8:
        masked_ids[i] = tokenizer.mask_token_id
    elif chance < 0.9:
        masked_ids[i] = int(int(dice[i] & np.uint64(2**32 - 1)) / 2**32 * V)
print(" ".join(tokenizer.tokens[i] for i in masked_ids))
print("to predict:", [tokens[i] for i in chosen])

masking = Masking(
    probability=0.15,
    max_predictions=count,
    vocab_size=V,
    mask_token_id=tokenizer.mask_token_id,
    never_masked=never,
)
FOLLOWS = 0  # the label of a pair whose second text follows the first
row = Row(ids, lengths=(L,), a_lengths=(len(pieces_a) + 2,), labels=(FOLLOWS,))
batch = make_batch([row], masking, RowFormat(L, tokenizer.pad_token_id), bits)
same("masked ids", masked_ids[None], batch["input_ids"])
same("places to predict", np.array(chosen)[None], batch["masked_positions"])
same("what was there", ids[chosen][None], batch["masked_labels"])

# %% [markdown]
# Over many tokens, the shares are as promised:

# %%
many = np.full(100_000, ids[1])
replaced = replacements(many, random_bits((1,), [0], len(many))[0, 0], masking)
shares = {
    "[MASK]": np.mean(replaced == tokenizer.mask_token_id),
    "unchanged": np.mean(replaced == ids[1]),
}
shares["random"] = 1 - sum(shares.values())
print({name: f"{share:.1%}" for name, share in shares.items()})
assert abs(shares["[MASK]"] - 0.8) < 0.01 and abs(shares["unchanged"] - 0.1) < 0.01

# %% [markdown]
# ### 10. The loss
#
# *BERT, section A.2: "The training loss is the sum of the mean masked LM likelihood and the mean
# next sentence prediction likelihood"; `bertjax/model/losses.py`.*
#
# The model is asked at the chosen places only. Its answer at a place is a probability for each
# piece of the vocabulary. The loss of a place is minus the natural logarithm of the probability of
# the *right* piece, the **cross entropy**: 0 if the model was certain and right, large if it was
# certain and wrong. Its unit is the *nat*. The loss of next-sentence prediction is the same with
# two classes, and the two mean losses are added.

# %%
last = encode(masked_ids, types, positions, everyone)[-1]
mlm_probabilities = softmax(masked_lm(last[chosen]))  # [P, V]
right = mlm_probabilities[np.arange(count), ids[chosen]]
mlm_loss = -np.log(right).mean()
nsp_loss = -np.log(softmax(next_sentence(last))[FOLLOWS])
loss = mlm_loss + nsp_loss
for place, probability in zip(chosen, right, strict=True):
    print(f"{tokens[place]!r:12} got {probability:.2%}: loss {-np.log(probability):.3f} nats")
print(f"masked LM {mlm_loss:.3f} + next sentence {nsp_loss:.3f} = {loss:.3f} nats")
print(f"perplexity of the masked LM: exp({mlm_loss:.3f}) = {np.exp(mlm_loss):.1f}")

# %%
loss_fn = make_loss_fn(bert.model)
loss_weights = PRETRAINING.weights(batch)  # how many answers each mean is over


@jax.jit
def loss_and_gradients(params):
    no_dropout = None
    return jax.value_and_grad(loss_fn, has_aux=True)(params, batch, loss_weights, no_dropout)


(library_loss, _), gradients = loss_and_gradients(bert.params)
same("loss", loss, library_loss)

# %% [markdown]
# **Perplexity** is the exponential of the loss: the model is as unsure as if it chose among so many
# equally likely pieces. A loss has no meaning without a comparison. A model that knows nothing
# gives each of the V pieces the probability 1/V, and its loss is ln V. A model that knows only how
# *frequent* each piece is reaches the **unigram entropy** of the text. What is below that has been
# learnt from context.
#
# ### 11. Gradients: which way is down?
#
# The loss is a function of all parameters. Its **gradient** says for each of them how the loss
# changes if the number grows a little. The chain rule computes it, from the loss backwards through
# every step above; JAX does it automatically. For the last step, doing it by hand takes a line, and
# the result is worth remembering: for a softmax with cross entropy, **the gradient of the logits is
# what the model said minus what was right**.

# %%
said_minus_right = mlm_probabilities.copy()
said_minus_right[np.arange(count), ids[chosen]] -= 1
said_minus_right /= count  # the loss is a mean over the places
same("gradient of the MLM bias", said_minus_right.sum(0), gradients["predictions"]["bias"])

# %% [markdown]
# The bias of the right piece gets a negative gradient (raise it), those of all others a positive
# one, in proportion to how much the model believed in them. The word table gets gradients from two
# sides, as it is used twice. A piece that is not in the input gets its gradient from the exit
# alone, so that we can check it as well:

# %%
transformed = gelu(
    last[chosen] @ parameter("predictions/transform/kernel")
    + parameter("predictions/transform/bias")
)
transformed = layer_norm(transformed, *norm_parameters("predictions/layer_norm"))
absent = np.setdiff1d(np.arange(V), masked_ids)
same(
    "gradient of absent pieces",
    (said_minus_right.T @ transformed)[absent],
    gradients["bert"]["embeddings"]["word_embeddings"]["embedding"][absent],
)

# %% [markdown]
# A small step against the gradient lowers the loss by the step size times the squared length of the
# gradient, as long as the step is small:

# %%
squared_length = sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(gradients))
step_size = 1e-3 / squared_length
moved = jax.tree.map(lambda p, g: p - step_size * g, bert.params, gradients)
(new_loss, _), _ = loss_and_gradients(moved)
print(f"expected fall {step_size * squared_length:.6f}, real fall {library_loss - new_loss:.6f}")
assert 0.5e-3 < library_loss - new_loss < 2e-3

# %% [markdown]
# ### 12. AdamW, as BERT was trained
#
# *BERT, section A.2; Adam: Kingma and Ba 2015; decoupled weight decay: Loshchilov and Hutter 2019;
# `bertjax/train/optimizer.py`.*
#
# Real steps are a little wiser than "against the gradient". AdamW keeps two running means for each
# parameter, of its gradient (m) and of the square of its gradient (v), and moves by m / sqrt(v). So
# each parameter has its own step size, and a parameter whose gradients are always tiny moves as
# fast as one whose gradients are large. Besides:
#
# - If the gradient of all parameters together is longer than 1, it is shortened to 1 (*clipping*).
# - *Weight decay* pulls each weight towards 0 by a hundredth of the learning rate, but not biases
#   and LayerNorms.
# - BERT's Adam has **no bias correction**. The running means begin at 0, and later libraries divide
#   by how far they have got. Google's code does not: its first updates are more than three times as
#   large (0.1 g / sqrt(0.001 g²) = 3.16). The warm-up makes this harmless. In bertjax it is
#   `--optimizer.recipe google` or `adamw`.


# %%
def adamw_step(params, m, v, gradients, rate, b1=0.9, b2=0.999, eps=1e-6, decay=0.01):
    """One step on dictionaries of arrays; returns the new (params, m, v)."""
    length = math.sqrt(sum((g**2).sum() for g in gradients.values()))
    for name, g in gradients.items():
        g = g / max(length, 1.0)
        m[name] = b1 * m[name] + (1 - b1) * g
        v[name] = b2 * v[name] + (1 - b2) * g**2
        update = m[name] / (np.sqrt(v[name]) + eps)
        if not name.endswith(("bias", "scale")):
            update = update + decay * params[name]
        params[name] = params[name] - rate * update
    return params, m, v


def flat(tree):
    """A tree of arrays as a dictionary {path: array in 64 bits}."""
    leaves = flatten_dict(tree, sep="/")
    return {path: np.asarray(value, np.float64) for path, value in leaves.items()}


RATE = 1e-4
optimizer = make_optimizer(OptimizerConfig(recipe="google"), lambda step: RATE)
state, library_params = optimizer.init(bert.params), bert.params
params = flat(bert.params)
m = {name: np.zeros_like(p) for name, p in params.items()}
v = {name: np.zeros_like(p) for name, p in params.items()}
for step in range(2):
    (step_loss, _), gradients = loss_and_gradients(library_params)
    print(f"step {step}: loss {step_loss:.4f}")
    params, m, v = adamw_step(params, m, v, flat(gradients), RATE)
    updates, state = optimizer.update(gradients, state, library_params)
    library_params = jax.tree.map(lambda p, u: np.asarray(p + u), library_params, updates)
for name in ("bert/encoder/layers/attention/query/kernel", "predictions/layer_norm/scale"):
    same(name.removeprefix("bert/encoder/layers/"), params[name], flat(library_params)[name])
assert all(np.abs(params[n] - p).max() < 1e-6 for n, p in flat(library_params).items())

# %% [markdown]
# Two steps on one pair of sentences lower the loss of that pair a lot, which is no art: it is the
# same question again. Pretraining does this a million times, on 256 *different* sequences each
# time.
#
# ### 13. The learning rate
#
# *BERT, section A.2: "learning rate warmup over the first 10,000 steps, and linear decay".*
#
# The rate rises from 0 to 1e-4 within 10,000 steps, as the first gradients are those of a random
# network and Adam's running means are still empty. Then it falls in a straight line to 0 at the
# last step. There is a detail in Google's code that papers and most other libraries do not have:
# its line falls from step *0*, hidden below the warm-up, so that the rate jumps down a little where
# the warm-up ends.

# %%
steps = np.arange(0, 100_001, 100)
phases = (Phase(num_steps=100_000, max_length=128, batch_size=256),)
figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for name in ("google", "hf"):
    schedule = make_schedule(OptimizerConfig(warmup_steps=10_000, schedule=name), phases)
    axis.plot(steps, schedule(steps), label=f"--optimizer.schedule {name}")
axis.set(xlabel="step", ylabel="learning rate", title="10,000 of 100,000 steps are warm-up")
axis.legend()
plt.show()

by_hand = np.where(steps < 10_000, steps / 10_000, 1 - steps / 100_000) * 1e-4
google = make_schedule(OptimizerConfig(warmup_steps=10_000, schedule="google"), phases)
same("Google's schedule", by_hand, google(steps))

# %% [markdown]
# ### 14. A pair that does not belong together
#
# *BERT, section 3.1, task 2.*
#
# Half of the pairs in pretraining have a random second text. What does our model say?

# %%
for second in (
    TEXT_B,
    "Close the socket before the process ends.",
):
    answer = bert([(TEXT_A, second)])["seq_relationship_logits"][0]
    print(f"P(follows) = {softmax(answer)[0]:.2f}  {TEXT_A} | {second}")

# %% [markdown]
# The task is easy in an unintended way: a random text usually has another *topic*, and topics can
# be told by words alone. This is why RoBERTa (Liu et al. 2019) dropped it, and ALBERT (Lan et al.
# 2019) swaps the two texts instead.
#
# ### 15. How many numbers?
#
# *BERT, section 3: 110 million for BERT-base.*
#
# Everything has been named now, so the parameters can be counted.

# %%
F, P = config.intermediate_size, config.max_position_embeddings
counts = {
    "embeddings": (V + P + config.type_vocab_size) * D + 2 * D,
    "one layer: attention": 4 * (D * D + D) + 2 * D,
    "one layer: feed-forward": D * F + F + F * D + D + 2 * D,
    "pooler": D * D + D,
    "heads": D * D + D + 2 * D + V + 2 * D + 2,
}
for name, number in counts.items():
    print(f"{name:26} {number:12,}")
total = sum(number for name, number in counts.items() if "layer" not in name)
total += config.num_hidden_layers * sum(n for name, n in counts.items() if "layer" in name)
print(f"{'all':26} {total:12,}")
assert total == sum(p.size for p in jax.tree.leaves(bert.params))

# %% [markdown]
# ### 16. Packing
#
# *`bertjax/data/preparation/packing.py`; `sequence_ids` in `bertjax/model/attention.py`.*
#
# Rows of a batch must be equally long, so short sequences are filled up with `[PAD]`, and the time
# for it is wasted. bertjax can put **several sequences into one row** instead. Three things keep
# them apart: positions begin at 0 in each, a token may look at tokens of its own sequence only, and
# each has its own `[CLS]`. The results are those of the sequences alone.

# %%
sequences = [(TEXT_A, TEXT_B), "A tuple is returned.", ("Read the file.", "Close it.")]
encoded = [tokenizer.encode_prompt(*((s,) if isinstance(s, str) else s)) for s in sequences]
packed_ids = np.concatenate([row for row, _ in encoded])
packed_types = np.concatenate([row_types for _, row_types in encoded])
packed_positions = np.concatenate([np.arange(len(row)) for row, _ in encoded])
sequence_ids = np.concatenate([[n + 1] * len(row) for n, (row, _) in enumerate(encoded)])
starts = np.flatnonzero(packed_positions == 0)
may_look = sequence_ids[:, None] == sequence_ids[None, :]

packed = encode(packed_ids, packed_types, packed_positions, may_look)[-1]
rows = (packed_ids, packed_types, packed_positions, sequence_ids, starts)
apply = jax.jit(lambda params, *rows: bert.model.apply({"params": params}, *rows))
library_packed = apply(bert.params, *(row[None] for row in rows))
same("packed row", packed, library_packed["last_hidden_state"][0])
same("its first sequence, alone", packed[:L], outputs["last_hidden_state"][0])

figure, axis = plt.subplots(figsize=(4, 4), layout="constrained")
axis.imshow(may_look, cmap="Blues")
axis.set(title="who may look at whom in the packed row", xlabel="at this token")
axis.set_ylabel("this token looks")
plt.show()

# %% [markdown]
# ## Questions that come up again and again
#
# ### My texts are full of words that BERT does not know. Do I need a new vocabulary?
#
# Almost never. There are no unknown words, only words of several pieces:

# %%
for word in ("tokenization", "pharmacokinetics", "cardiomyopathy"):
    print(f"{word:18}", " ".join(wordpiece(word)))

# %% [markdown]
# The layers learn what a sequence of pieces means, as they learn what a sequence of words means. An
# altogether new vocabulary would need a new word table, and with it a new pretraining from scratch.
# From cheap to expensive:
#
# 1. **Just fine-tune.** With a few thousand labelled examples this is usually enough.
# 2. **Continue the pretraining** on unlabelled text of your domain, with the *same* vocabulary
#    (Gururangan et al. 2020, *Don't Stop Pretraining*): prepare the data with the tokenizer of the
#    model, then `bertjax pretrain --init bert-base-uncased ...`.
# 3. **Give words of the domain a piece of their own**, if they are split badly and occur often:
#    `bertjax train_tokenizer --extend bert-base-uncased --add 5000` adds the words that save the
#    most tokens of your text at the end of the vocabulary, so that all other ids stay the same. The
#    row of a new piece starts from the mean of the rows of its old pieces, and number 2 trains it.
# 4. **Start from scratch** with your own vocabulary. This needs gigabytes of text and days of
#    accelerators, and is worth it for languages or notations that share few pieces with English.
#
# What number 3 does to the pieces:

# %%
new_word = "cardiomyopathy"
own = extend(tokenizer, [new_word, new_word], add=1).tokenizer  # a text of two words
(before,), (after,) = tokenizer.encode([new_word]), own.encode([new_word])
print([tokenizer.tokens[i] for i in before], "->", [own.tokens[i] for i in after])
assert after == [tokenizer.vocab_size] and own.tokens[:-1] == tokenizer.tokens

# %% [markdown]
# ### My labels are for words, but words are split. Which piece gets the label?
#
# *BERT, section 5.3: "We use the representation of the first sub-token as the input to the
# token-level classifier".*
#
# The **first piece** of each word gets the label of the word. All other pieces, `[CLS]` and `[SEP]`
# get none: they have the weight 0 in the loss. In PyTorch, this is usually written as the label
# -100, the number that its cross entropy ignores; bertjax writes -1. In predictions, the first
# piece speaks for the word. Do not copy the label to all pieces: long words would count more than
# short ones.

# %%
sentence = ["Hippopotamuses", "live", "in", "Botswana"]
labels = ["O", "O", "O", "B-LOC"]
row = [("[CLS]", "-100")]
for word, label in zip(sentence, labels, strict=True):
    first, *rest = wordpiece(word.lower())
    row += [(first, label), *((piece, "-100") for piece in rest)]
row += [("[SEP]", "-100")]
print("  ".join(f"{piece}/{label}" for piece, label in row))


task = TagTask(name="tag", labels=("O", "B-LOC"))
example = Example(id="1", where="this page", words=tuple(sentence), label=tuple(labels))
(feature,) = task.features(example, tokenizer, config.max_length)
ours = [{"-100": -1, "O": 0, "B-LOC": 1}[label] for _, label in row]
assert list(feature.labels) == ours

# %% [markdown]
# ### Why at most 512 tokens? What about longer texts?
#
# Because the position table has 512 rows (here fewer), and there is no row for position 512.
# Nothing can be looked up:

# %%
try:
    position_table[config.max_position_embeddings]
except IndexError as error:
    print("numpy:", error)
try:
    bert(input_ids=np.full((1, config.max_length + 1), ids[1]))
except ValueError as error:
    print("bertjax:", error)

# %% [markdown]
# A larger table with new rows would work technically, but they are untrained. And each head
# computes L x L scores: twice the length is four times the work. What to do:
#
# - **Truncate**, if the beginning tells enough, as in many classifications. (For long reviews, the
#   first 128 and the last 382 tokens are a little better than the first 510; Sun et al. 2019.)
# - **Windows.** Cut the text into overlapping pieces, let the model read each, and combine the
#   answers. `finetune` does this in question answering and in tagging: a window starts every
#   `doc_stride` tokens, and each possible answer, or each word, is read from the window in which it
#   has the most context on both sides. Classification averages the windows, with `--doc_stride`.
# - **Split by meaning**: classify paragraphs and combine the results.


# %%
def windows(length, room, stride):
    """(start, end) of windows of at most `room` tokens that start `stride` tokens apart."""
    starts = [0]
    while starts[-1] + room < length:
        starts.append(starts[-1] + stride)
    return [(start, min(start + room, length)) for start in starts]


print(windows(1000, room=384, stride=128))
assert windows(1000, 384, 128) == library_windows(1000, 384, 128)

# %% [markdown]
# A trap in other people's code: in bertjax and in Google's BERT, the *stride* is the distance
# between the starts of two windows; in transformers, the parameter of this name is their
# **overlap**.
#
# ### In fine-tuning there is no `[MASK]`. Why does pretraining help then?
#
# *BERT, sections 3.1, 3.2 and C.2.*
#
# Pretraining is not about `[MASK]`; it is about vectors that know their context. The mismatch is
# real, though, and the reason for the tenth of random and the tenth of unchanged tokens: at any
# token, the true piece might be another one, so the model has to form an opinion everywhere. You
# can ask it about a token that is *not* masked:

# %%
text = "The function returns a new array."
row, row_types = (np.array(x) for x in tokenizer.encode_prompt(text))
last = encode(row, row_types, np.arange(len(row)), np.ones((len(row), len(row)), bool))[-1]
opinions = softmax(masked_lm(last))
for i in range(1, len(row) - 1):
    best = np.argsort(-opinions[i])[:3]
    guesses = ", ".join(f"{tokenizer.tokens[j]} {opinions[i, j]:.0%}" for j in best)
    print(f"{tokenizer.tokens[row[i]]:12} -> {guesses}")

# %% [markdown]
# ### Is the vector of `[CLS]` an embedding of the sentence?
#
# Not by itself. In pretraining, `[CLS]` answers one question, whether B follows A, and its vector
# has to hold only what helps with that. The paper says so in a footnote of section 3.1: the vector
# "is not a meaningful sentence representation without fine-tuning, since it was trained with NSP".
# After fine-tuning, it is what you have trained it to be. For similarity without fine-tuning, the
# mean over all tokens is usually better, and models that were *trained* for similarity
# (Sentence-BERT; Reimers and Gurevych 2019) are much better. Compare the cosines:

# %%
sentences = [
    "The function returns a list of names.",
    "This method returns the list of all names.",
    "Close the socket before the process ends.",
]
for pooling in ("cls", "mean"):
    table = cosines(bert.embed(sentences, pooling=pooling).astype(np.float64))
    print(f"{pooling:5} similar pair {table[0, 1]:.3f}   different pair {table[0, 2]:.3f}")

# %% [markdown]
# Look at the difference within a line, not at the numbers themselves: in BERT, *all* vectors point
# in similar directions, so a cosine of 0.8 alone says nothing (Ethayarajh 2019).
#
# ### Why does the loss of an untrained model begin at ln V?
#
# With small random weights, all logits are nearly 0, so each of the V pieces gets a probability
# near 1/V, and minus the logarithm of 1/V is ln V. If a training from scratch begins elsewhere,
# something is wrong.

# %%
untrained = BertForPreTraining(dataclasses.replace(config, initializer_range=0.02))
loss_of_untrained = jax.jit(make_loss_fn(untrained))
_, sums = loss_of_untrained(init_params(untrained, seed=0), batch, loss_weights, None)
total, number = sums["mlm_loss"]
print(f"untrained: {total / number:.3f} nats; ln {V:,} = {math.log(V):.3f}")
assert abs(total / number - math.log(V)) < 0.3

# %% [markdown]
# ### Cased or uncased?
#
# An uncased model turns everything into lower case *and strips accents* before it looks for pieces.
# "US" and "us" are the same for it. It is the better choice unless case matters for the task: names
# (NER), German nouns, part-of-speech tags. The two have different vocabularies and cannot be mixed.
# The setting belongs to the tokenizer of a model and is stored with it (`do_lower_case`); a wrong
# setting is not an error that you would see, only a bad score. bertjax refuses lower case for a
# vocabulary with capital letters.

# %%
print("lower case:", tokenizer.do_lower_case)
print([tokenizer.tokens[i] for i in tokenizer.encode(["Café Returns"])[0]])

# %% [markdown]
# ### What do attention maps explain?
#
# They show exactly how one step, the mixing of values in one head, weights its inputs. They do not
# show *why* the model answers as it does:
#
# - The value that a weight multiplies may be small. In BERT-base, many heads look at `[SEP]` when
#   they have nothing to do, and take nearly nothing from it (Clark et al. 2019; Kobayashi et al.
#   2020). The table below compares the weight of `[CLS]` and `[SEP]` with their share of what is
#   really taken, weight times length of the value. In a model as small as ours the two hardly
#   differ; try a larger one.
# - From the second layer on, the vector at a token is not the token any more. It holds information
#   from everywhere, and so does what is taken from it.
# - The residual connection and the feed-forward networks are not in the picture at all.
# - Other attention weights can give the same answer (Jain and Wallace 2019; but see Wiegreffe and
#   Pinter 2019). To find out what an answer depends on, *change the input* and see whether the
#   answer changes.

# %%
is_mark = np.isin(ids, never)
print("share of [CLS] and [SEP], mean over the tokens")
print("layer  head   weight   weight x length of value")
for layer in range(config.num_hidden_layers):
    x = hidden_states[layer]
    query, key, value = (heads(x, name, layer) for name in ("query", "key", "value"))
    weights = softmax(query @ key.transpose(0, 2, 1) / np.sqrt(D / N))
    taken = weights * np.linalg.norm(value, axis=-1)[:, None, :]
    taken /= taken.sum(-1, keepdims=True)
    for head in range(N):
        shares = [array[head][:, is_mark].sum(-1).mean() for array in (weights, taken)]
        print(f"{layer + 1:5} {head + 1:5} {shares[0]:8.0%} {shares[1]:12.0%}")

# %% [markdown]
# "Attention of a fine-tuned model" looks at this in pictures, before and after a fine-tuning, and
# `bertjax visualize` makes an interactive page of any model and text.
#
# ### Does RoBERTa have token types?
#
# No. RoBERTa was trained without next-sentence prediction and does not tell its two texts apart by
# types; its table has a single row, which all tokens use. A pair is written with two separators,
# `<s> A </s></s> B </s>`. So do not pass it types of 0 and 1: transformers would fail with an index
# error (there is no row 1), and bertjax uses row 0 for all. DistilBERT has no token types either;
# ALBERT has them.
#
# ## Where to go from here
#
# | step on this page | file in bertjax |
# |---|---|
# | pieces, special tokens | `bertjax/tokenization/wordpiece.py`, `base.py` |
# | pairs of texts, packing | `bertjax/data/preparation/segments.py`, `packing.py` |
# | masking, batches | `bertjax/data/batches/masking.py`, `pretraining_batches.py` |
# | embeddings, layers | `bertjax/model/embeddings.py`, `attention.py`, `encoder.py`, `bert.py` |
# | heads, loss | `bertjax/model/heads.py`, `losses.py` |
# | gradient step, optimizer, learning rate | `bertjax/train/step.py`, `optimizer.py` |
#
# - "Pretrain a BERT from scratch in ten minutes" repeats the steps on a whole corpus.
# - "Fine-tune your CSV" puts a classifier on `[CLS]`.
