"""The head of sentence embeddings: one vector per sequence, without parameters of its own."""

from bertjax.model.base_head import BertWithHead, Outputs, Rows
from bertjax.model.embedding_losses import contrastive, similarity
from bertjax.model.losses import Objective
from bertjax.model.pooling import pooled, unit

# The usual temperature of cosines, whose inverse is the scale 20 of sentence-transformers.
TEMPERATURE = 0.05


class BertForSentenceEmbedding(BertWithHead):
    """Computes the embedding of each sequence: sentence_embedding [B, K, D].

    The vectors are pooled from the last hidden states (Reimers and Gurevych 2019, 3). The pooler of
    the encoder, if there is one, is kept and not trained, so that transformers loads it unchanged.

    Attributes:
        pooling: "mean" for the mean over all tokens, or "cls" for the hidden state of [CLS].
        normalize: whether vectors are divided by their Euclidean length.
        temperature: by which the cosines are divided in the loss of in-batch negatives.
        matryoshka: sizes of embeddings that are trained besides the full size.
    """

    pooling: str = "mean"
    normalize: bool = False
    temperature: float = TEMPERATURE
    matryoshka: tuple[int, ...] = ()

    outputs = sequence_outputs = ("sentence_embedding",)
    objectives = {"contrastive": contrastive(TEMPERATURE, ()), "similarity": similarity(())}

    def objective(self, kind: str) -> Objective:
        """Returns the objective for labels of the kind `kind`, with the settings of the head.

        Raises:
            ValueError: a size in `matryoshka` is below 1 or exceeds that of the embeddings.
        """
        full = self.config.hidden_size
        if wrong := [size for size in self.matryoshka if not 1 <= size <= full]:
            raise ValueError(
                f"matryoshka={list(self.matryoshka)}: the embeddings have {full} numbers, so they "
                f"cannot be cut to {wrong[0]}. Choose sizes from 1 to {full}."
            )
        if kind == "contrastive":
            return contrastive(self.temperature, self.matryoshka)
        return similarity(self.matryoshka)

    def answer(self, encoded: Outputs, rows: Rows) -> Outputs:
        """Returns sentence_embedding [B, K, D] for the K sequences of each row."""
        vectors = pooled(
            encoded["last_hidden_state"], rows.sequence_ids, rows.sequence_starts, self.pooling
        )
        return {"sentence_embedding": unit(vectors) if self.normalize else vectors}
