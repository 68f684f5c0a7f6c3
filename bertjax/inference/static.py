"""Static embeddings: a table of one vector per token, made of an encoder as Model2Vec does.

The embedding of a text is the mean of the vectors of its tokens, so that a CPU computes thousands
per second (Tulkens and van Dongen 2024, "Model2Vec: Fast State-of-the-Art Static Embeddings").
"""

from pathlib import Path

import numpy as np

from bertjax.inference.embedder import Embedder
from bertjax.inference.pretrained import Pretrained
from bertjax.model.sentence_embedding import BertForSentenceEmbedding
from bertjax.tokenization.static import StaticTokenizer
from bertjax.weights.hf import model_card, save_hf
from bertjax.weights.sentence_transformers import Read, SentenceModules, files_of_head
from bertjax.weights.source import STATIC_LENGTH, static_config

SIZE = 256
"""Number of dimensions of static embeddings, unless the encoder has fewer."""
# The smooth inverse frequency of tokens with the probability p is A / (A + p) (Arora et al. 2017).
A = 1e-4
# Token ids that are encoded at once.
BLOCK = 8192


def static_table(model: Pretrained) -> tuple[np.ndarray, StaticTokenizer]:
    """Makes static embeddings of an encoder: float32 [V, D], and their tokenizer.

    The encoder reads each token of the vocabulary alone, as `[CLS] token [SEP]`; the mean of its
    hidden states, in the `SIZE` first principal components, is the vector of the token, times the
    weight of its smooth inverse frequency. The frequencies follow Zipf's law, in which ids are
    ranks, since vocabularies are ordered by frequency.
    """
    encoder = model.loaded.tokenizer
    tokenizer, ids = StaticTokenizer.of(encoder, STATIC_LENGTH)
    embedder = Embedder(model.loaded, pooling="mean", normalize=False)
    size = embedder.size
    vectors = np.empty((len(ids), size), np.float32)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        rows = []
        for token in block:
            row, _ = encoder.join([token])
            rows.append(row)
        vectors[start : start + len(block)] = embedder.of_ids(rows)
    vectors = principal_components(np.nan_to_num(vectors), min(SIZE, size))
    weights = zipf_weights(len(ids))
    return vectors * weights[:, None], tokenizer


def principal_components(vectors: np.ndarray, size: int) -> np.ndarray:
    """Returns the first principal components of vectors, float32 [N, size]; the vectors
    themselves if there are not more than `size`."""
    if len(vectors) <= size:
        return vectors
    from sklearn.decomposition import PCA  # a slow import

    # In float32, components of nearly the same variance would be mixed by rounding.
    pca = PCA(size, svd_solver="covariance_eigh")
    components = pca.fit_transform(vectors.astype(np.float64)).astype(np.float32)
    # The sign of a component is free: its largest value is positive.
    largest = np.abs(components).argmax(axis=0)
    return components * np.sign(components[largest, np.arange(size)])


def zipf_weights(count: int) -> np.ndarray:
    """Returns the smooth inverse frequencies of `count` tokens by their ranks, float32."""
    probabilities = 1 / np.arange(2, count + 2)
    probabilities /= probabilities.sum()
    return (A / (A + probabilities)).astype(np.float32)


def save_static(model: Pretrained, directory: str | Path) -> tuple[int, int]:
    """Writes static embeddings of an encoder as StaticEmbedding of sentence-transformers.

    Returns the shape of the table. Errors are those of `save_hf`, and ValueError if the model has
    no tokenizer.
    """
    table, tokenizer = static_table(model)
    config = static_config(*table.shape)
    head = BertForSentenceEmbedding(config, normalize=True)
    params = {"bert": {"embeddings": {"word_embeddings": {"embedding": table}}}}
    modules = Read[SentenceModules | None](SentenceModules(normalize=True))
    save_hf(
        directory,
        params,
        config,
        tokenizer,
        head="sentence_embedding",
        files=files_of_head(head, params, STATIC_LENGTH, modules),
        card=model_card(
            Path(directory).name, "sentence_embedding", config, tokenizer.do_lower_case
        ),
    )
    return table.shape
