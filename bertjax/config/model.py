"""Configs of encoders, with field names as in Hugging Face's config.json, and of known models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from bertjax.base.checked import AtLeast0, Checked, Count, NonNegative, Positive, Rate
from bertjax.base.files import brief, did_you_mean

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh"]
Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""The poolings of sentence-transformers, by their names there; see `pooled`."""
Size = Annotated[int, "[1, 2^31)"]
DROPOUT_FIELDS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "attention_output_dropout",
    "token_classifier_dropout",
    "qa_dropout",
    "embedding_dropout",
    "mlp_dropout",
    "mlp_output_dropout",
)


# {rope_type: the fields that it reads, which are keys of transformers' `rope_parameters` with
# "rope_" before}.
ROPE_FIELDS: dict[str, Sequence[str]] = {
    "default": [],
    "linear": ["rope_factor"],
    "dynamic": ["rope_factor"],
    "yarn": """
rope_factor rope_original_max_position_embeddings rope_beta_slow rope_beta_fast
rope_attention_factor
""".split(),
    "llama3": """
rope_factor rope_original_max_position_embeddings rope_low_freq_factor rope_high_freq_factor
""".split(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(Checked):
    """Config of an encoder's architecture; most field names are as in Hugging Face's config.json.

    Raises:
        ValueError: a value is outside of its range, hidden_size is not divisible by
            num_attention_heads, num_hidden_layers is not divisible by num_hidden_groups, an
            activation is unknown, or fields exclude each other.
    """

    vocab_size: Size = 30522
    """Number of rows of the word embedding; at least the vocabulary size of the tokenizer."""
    hidden_size: Size = 768
    """Dimension of the hidden states."""
    num_hidden_layers: AtLeast0 = 12
    """Number of encoder layers; 0: hidden states are the rows of the word embedding alone, as in
    static embeddings."""
    num_attention_heads: Size = 12
    """Number of attention heads, which must divide hidden_size unless head_dim is set."""
    head_dim: Size | None = None
    """Dimension of each attention head; None: hidden_size / num_attention_heads."""
    num_key_value_heads: Size | None = None
    """Number of heads of keys and values, which must divide num_attention_heads: consecutive heads
    share a key and a value (grouped-query attention, Ainslie et al. 2023); None:
    num_attention_heads."""
    intermediate_size: Size = 3072
    """Inner dimension of the feed-forward layers."""
    hidden_act: Activation = "gelu"
    """Activation of the feed-forward layers: gelu is the exact (erf) form of the original BERT;
    gelu_new and gelu_pytorch_tanh are its tanh approximation; relu, silu, swish and tanh are also
    accepted."""
    hidden_dropout_prob: Rate = 0.1
    """Dropout rate of the embeddings and of the outputs of attention and feed-forward layers."""
    attention_probs_dropout_prob: Rate = 0.1
    """Dropout rate of the attention probabilities."""
    max_position_embeddings: Size = 512
    """Number of rows of the position embedding matrix: the maximum sequence length in tokens plus
    position_offset; with global_rope_theta, the maximum sequence length."""
    type_vocab_size: AtLeast0 = 2
    """Number of token types; 0: the model has no token type embedding and ignores token types."""
    task_type_vocab_size: AtLeast0 = 0
    """Number of rows of ERNIE's task type embedding (ERNIE 2.0, Sun et al. 2019), of which row 0 is
    added to every token; 0: the model has none."""
    initializer_range: NonNegative = 0.02
    """Standard deviation of the normal distribution, truncated at initializer_cutoff_factor sigma,
    that kernels and embeddings are initialised from."""
    layer_norm_eps: Rate = 1e-12
    """Epsilon of the LayerNorms, added to the variance."""
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """What stands wherever a LayerNorm is named here: layer_norm, or rms_norm, which divides by the
    root of the mean square and subtracts no mean (Zhang and Sennrich 2019)."""
    embedding_norm: bool = True
    """Whether the embeddings get a LayerNorm."""
    pad_token_id: int | None = 0
    """Id of the padding token; bertjax.pretrain takes it from the tokenizer of the data;
    None: the model has no padding token."""
    tie_word_embeddings: bool = True
    """Whether the MLM head uses the word embedding matrix as its output projection."""
    classifier_dropout: Rate | None = None
    """Fine-tuning: dropout rate of the input of a classifier head; None: hidden_dropout_prob."""
    is_decoder: bool = False
    """Whether each token attends only to itself and to earlier tokens (causal attention)."""
    sinusoidal_pos_embds: bool = False
    """Whether the position embedding is initialised with sines and cosines (Vaswani et al. 2017,
    3.5); the position embedding is trained in both cases."""
    embedding_size: Size | None = None
    """Dimension of the embeddings, which are projected to hidden_size; None: hidden_size."""
    output_embedding_size: Size | None = None
    """Dimension of the vectors that the masked LM head multiplies by its output matrix, as in
    RemBERT; another one than that of the embeddings needs tie_word_embeddings=False; None: that of
    the embeddings."""
    num_hidden_groups: Size | None = None
    """Number of groups of consecutive layers; the layers of a group share their parameters; None:
    no layers share parameters."""
    position_offset: AtLeast0 = 0
    """Position id of the first token of a sequence; earlier rows of the position embedding are
    never used; in pretraining of a RoBERTa, bertjax.pretrain replaces it by pad_token_id + 1."""
    trained_positions: Size | None = None
    """Number of positions whose embeddings were trained, which bertjax.pretrain writes if its rows
    were shorter than max_position_embeddings; None: all, or unknown."""
    add_pooling_layer: bool = True
    """Whether the model has a pooler: a dense layer with tanh on the hidden state of [CLS]."""
    encoder_pooler: bool = True
    """With add_pooling_layer: whether the encoder without a head has the pooler, too; if False,
    only classifiers of sequences have it."""
    mlm_transform: bool = True
    """Whether the MLM head has a dense layer, an activation and a LayerNorm before its output
    matrix."""
    prediction_head_size: Size | None = None
    """With mlm_transform: size of the vectors between two linear layers without biases, each
    followed by the activation, which are the MLM head before its output matrix, as in UltraBERT;
    None: the MLM head has one dense layer and a LayerNorm."""
    mlm_activation: Activation | None = None
    """Activation of the MLM head, named as for hidden_act; None: hidden_act."""
    classifier_activation: Activation | None = None
    """Fine-tuning: activation of the dense layer that sequence classifiers have instead of the
    pooler, named as for hidden_act; None: sequence classifiers use the pooler or, with
    add_pooling_layer=False, have no dense layer, as in UltraBERT."""
    summary_activation: Activation | None = None
    """Multiple choice: activation of a dense layer of its own, "sequence_summary", that stands
    before the classifier, as in ELECTRA; None: as in sequence classifiers."""
    classifier_input_dropout: bool = False
    """Fine-tuning: whether dropout is also applied before the dense layer of sequence
    classifiers."""
    attention_output_dropout: Rate | None = None
    """Dropout rate of the output of each attention layer; None: hidden_dropout_prob."""
    token_classifier_dropout: Rate | None = None
    """Fine-tuning: dropout rate of the input of a token classifier; None: classifier_dropout."""
    qa_dropout: Rate = 0.0
    """Fine-tuning: dropout rate of the input of the question-answering head."""
    embedding_dropout: Rate | None = None
    """Dropout rate of the embeddings; None: hidden_dropout_prob."""
    mlp_dropout: Rate = 0.0
    """Dropout rate of the inner activations of the feed-forward layers."""
    mlp_output_dropout: Rate | None = None
    """Dropout rate of the output of each feed-forward layer; None: hidden_dropout_prob."""
    pre_norm: bool = False
    """Whether LayerNorms stand before attention and before the feed-forward layer instead of after
    them, and one follows the last layer; the initial weights of output projections are divided by
    sqrt(2 * num_hidden_layers)."""
    first_attention_norm: bool = False
    """With pre_norm: whether the first layer has a LayerNorm before attention, too; in ModernBERT,
    it has none, since the embeddings end with one."""
    final_norm_bias: bool | None = None
    """With pre_norm: whether the LayerNorm behind the last layer has a bias; None: norm_bias."""
    residual_scale_layers: Size | None = None
    """With pre_norm: a number of layers n; the outputs of attention and feed-forward layers are
    divided by sqrt(num_hidden_layers / n) before they are added to the residual stream, as in ESM C
    with 36, and their initial weights are those of all other layers; None: nothing is divided."""
    gated_linear_unit: bool = False
    """Whether the activations of the feed-forward layers are multiplied by a gate, a second linear
    function of their input (GeGLU if hidden_act is gelu)."""
    global_rope_theta: Positive | None = None
    """Base of the rotary position embedding, which replaces the position embedding matrix; None:
    the model has a position embedding matrix."""
    rope_interleaved: bool = False
    """With global_rope_theta: whether a rotation has two neighbours among the elements of a head as
    its coordinates, as in RoFormer, and not an element of the first half and one of the second."""
    rotary_value: bool = False
    """With global_rope_theta: whether the values of attention are rotated like queries and keys."""
    stored_rope: bool = False
    """With global_rope_theta: whether the speeds of the rotations, which follow from it, are a
    parameter that is never trained, as in ESM-2, whose files have rounded ones."""
    local_rope_theta: Positive | None = None
    """Base of the rotary position embedding in layers with local attention; None:
    global_rope_theta."""
    rope_type: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    """With global_rope_theta: which rotations are slowed in layers with global attention, by the
    names of transformers: none (default); none up to max_position_embeddings, which no row exceeds
    here (dynamic); all (linear); or the slow ones (yarn, Peng et al. 2023, and llama3)."""
    rope_factor: Positive = 1.0
    """With rope_type: the number by which the speeds of slowed rotations are divided."""
    rope_original_max_position_embeddings: Size = 512
    """With rope_type yarn or llama3: the number of positions in which rotations are counted, the
    length of the rows in a training before, with the usual speeds."""
    rope_beta_slow: Positive = 1.0
    """With rope_type yarn: pairs of elements with at most so many rotations are slowed by
    rope_factor."""
    rope_beta_fast: Positive = 32.0
    """With rope_type yarn: pairs of elements with at least so many rotations are not slowed."""
    rope_attention_factor: Positive | None = None
    """With rope_type yarn: the number by which rotated queries and keys are multiplied; None: 0.1
    ln(rope_factor) + 1, at least 1."""
    rope_low_freq_factor: Positive = 1.0
    """With rope_type llama3: as rope_beta_slow."""
    rope_high_freq_factor: Positive = 4.0
    """With rope_type llama3: as rope_beta_fast."""
    local_attention: Size | None = None
    """Window of layers with local attention in tokens: a token attends to the tokens of its
    sequence that are at most half of it away; needs pre_norm; None: all layers have global
    attention."""
    global_attn_every_n_layers: Size = 1
    """With local_attention: every n-th layer has global attention, the first of them being
    first_global_layer, and all others local attention."""
    first_global_layer: AtLeast0 = 0
    """With local_attention: index of the first layer with global attention, below
    global_attn_every_n_layers: 0 in ModernBERT, whose layers 0, n, 2n, ... are global, and n - 1 in
    UltraBERT."""
    attention_bias: bool = True
    """Whether the linear layers of attention have biases."""
    query_key_norm: bool = False
    """Whether queries and keys get a LayerNorm each, without a bias and over all heads together,
    before they are rotated, as in ESM C."""
    mlp_bias: bool = True
    """Whether the linear layers of feed-forward layers have biases."""
    mlp_output_bias: bool | None = None
    """Whether the last linear layer of feed-forward layers has a bias; None: mlp_bias."""
    norm_bias: bool = True
    """Whether LayerNorms have biases."""
    decoder_bias: bool = True
    """Whether the masked LM head adds a bias to each logit."""
    prediction_head: bool = False
    """Whether all heads begin with the same dense layer, the activation classifier_activation and a
    LayerNorm, as in ModernBERT."""
    classifier_bias: bool = True
    """With prediction_head: whether its dense layer has a bias."""
    classifier_pooling: Literal["cls", "mean", "late"] = "cls"
    """Without a pooler: what classifiers of sequences read: the hidden state of [CLS]
    (cls), the mean over all tokens (mean), or all tokens, whose logits are averaged (late)."""
    relative_attention: bool = False
    """Whether attention has embeddings of relative positions, as in DeBERTa."""
    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = ()
    """With relative_attention: which scores use relative positions: of contents for positions (c2p)
    and of positions for contents (p2c); with or without it, attention scores are divided by the
    square root of the head size times 1 + their number."""
    position_buckets: int = -1
    """With relative_attention: number of buckets of relative positions in each direction, of which
    those of far positions hold several; -1: each position has its own embedding."""
    max_relative_positions: int = -1
    """With relative_attention: largest distance that is told from larger ones; -1:
    max_position_embeddings."""
    relative_attention_num_buckets: AtLeast0 = 0
    """Number of rows of the table of relative positions whose numbers are added to the attention
    scores of each head, as in MPNet, which uses 32; 0: nothing is added."""
    share_att_key: bool = False
    """With relative_attention: whether relative positions are projected by the layers of queries
    and keys; if False, by layers of their own."""
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    """With relative_attention: whether the embeddings of relative positions get a LayerNorm."""
    position_biased_input: bool = True
    """Whether embeddings of absolute positions are added to those of words."""
    enhanced_mask_decoder: bool = False
    """Whether masked LM applies the last layer twice, to queries with absolute positions (He et al.
    2020, 3.2); transformers has no such decoder. Needs relative_attention."""
    conv_kernel_size: AtLeast0 = 0
    """Width in tokens of a convolution over the embeddings that is added to the output of the first
    layer, as in DeBERTa-v2, an odd number; 0: there is none."""
    conv_groups: Count = 1
    """Number of groups of the convolution, which must divide hidden_size."""
    conv_act: Activation = "tanh"
    """Activation of the convolution."""
    embed_proj: bool = False
    """With embedding_size: whether the projection of the embeddings stands before their LayerNorm,
    without a bias, as in DeBERTa, instead of behind it."""
    rtd_context: bool = False
    """Replaced-token detection: whether the head adds the hidden state of the first token to those
    of all tokens, with a LayerNorm, as in DeBERTa-v3."""
    token_dropout: bool = False
    """Whether the embeddings of the token mask_token_id are zero, and those of the other tokens of
    a sequence scaled such that their sum has the size that it has with 12 % masked tokens, as in
    ESM-2 (Lin et al. 2022)."""
    mask_token_id: int | None = None
    """With token_dropout: id of the mask token, which bertjax.pretrain takes from the tokenizer of
    the data; None: unknown."""
    contact_head: bool = False
    """Whether the encoder has ESM's head for contacts of residues, a logistic regression on the
    attention of all heads; no training changes it."""
    initializer_cutoff_factor: Positive = 2.0
    """Number of standard deviations at which the initial distribution is truncated."""
    model_type: str = "bert"
    """Family of the model (bert, roberta, xlm-roberta, camembert, data2vec-text, ernie, mpnet,
    albert, distilbert, electra, deberta-v2, modernbert, megatron-bert, roberta-prelayernorm,
    xlm-roberta-xl, bert-generation, rembert, roformer, nomic_bert, gte, jina_embeddings_v3, esm,
    esmc, eurobert or ultrabert), which determines the format of its
    files, and the heads and settings that it may have; it changes no other value, so begin a model
    of another family from a config in configs/pretrain."""

    def __post_init__(self):
        super().__post_init__()
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id}: it must be at least 0 and below vocab_size="
                f"{self.vocab_size}."
            )
        if self.is_static and (
            self.type_vocab_size or self.position_biased_input or self.add_pooling_layer
        ):
            raise ValueError(
                "num_hidden_layers=0 is for static embeddings, which have no token types, "
                "positions and pooler: give at least 1, or make them by convert --to static."
            )
        if self.num_hidden_layers % self.groups:
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} is not a multiple of "
                f"num_hidden_groups={self.groups}: change one of them."
            )
        if self.position_offset >= self.max_position_embeddings:
            raise ValueError(
                f"position_offset={self.position_offset} must be below "
                f"max_position_embeddings={self.max_position_embeddings}: change one of them."
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}: change one of them."
            )
        buckets = self.position_buckets
        longest = self.max_relative_positions
        if buckets == 1 or (buckets > 1 and 0 < longest <= buckets // 2 + 1):
            raise ValueError(
                f"position_buckets={buckets} must be above 1, and max_relative_positions={longest} "
                f"above {buckets // 2 + 1}, from which on positions share buckets: change one."
            )
        if self.prediction_head and self.classifier_activation is None:
            raise ValueError("prediction_head=True needs a classifier_activation, such as gelu.")
        if self.prediction_head and self.classifier_pooling == "late":
            raise ValueError("classifier_pooling=late with prediction_head=True: use cls or mean.")
        if self.prediction_head or not self.mlm_transform:
            self.refuse_set(
                ("prediction_head_size",),
                "with prediction_head=True or mlm_transform=False",
                "the MLM head has no layers of its own before its output matrix",
            )
        if not self.relative_attention and self.enhanced_mask_decoder:
            raise ValueError("enhanced_mask_decoder=True needs relative_attention=True: set it.")
        if 0 < self.relative_attention_num_buckets < 32:
            raise ValueError(
                f"relative_attention_num_buckets={self.relative_attention_num_buckets}: MPNet uses "
                "32 of them: give at least as many, or 0."
            )
        if self.conv_kernel_size and not self.conv_kernel_size % 2:
            raise ValueError(f"conv_kernel_size={self.conv_kernel_size} is even: it must be odd.")
        if self.hidden_size % self.conv_groups:
            raise ValueError(
                f"conv_groups={self.conv_groups} does not divide hidden_size={self.hidden_size}: "
                "change one of them."
            )
        if self.num_attention_heads % self.key_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.key_heads}: change one of them."
            )
        if self.tie_word_embeddings and self.output_size != self.embedding_width:
            raise ValueError(
                f"output_embedding_size={self.output_embedding_size} differs from the size of the "
                f"embeddings, {self.embedding_width}: set tie_word_embeddings=False."
            )
        if self.token_dropout and self.mask_token_id is None:
            raise ValueError("token_dropout=True needs mask_token_id, the id of the mask token.")
        self._check_layers()

    def _check_layers(self) -> None:
        """Refuses settings of the layers that exclude each other."""
        relative = ("relative_attention", "conv_kernel_size", "relative_attention_num_buckets")
        if self.pre_norm:
            reason = "only layers with the LayerNorm behind them support it"
            self.refuse_set(("num_hidden_groups", *relative), "with pre_norm=True", reason)
        else:
            reason = "only layers with the LayerNorm before them have it"
            names = (
                "local_attention",
                "first_attention_norm",
                "final_norm_bias",
                "residual_scale_layers",
            )
            self.refuse_set(names, "without pre_norm=True", reason)
        others = {*ROPE_FIELDS["yarn"], *ROPE_FIELDS["llama3"]} - {*ROPE_FIELDS[self.rope_type]}
        self.refuse_set([*others], f"with rope_type={self.rope_type}", "it does not read it")
        if self.local_attention is not None:
            reason = "local attention reads both sides"
            self.refuse_set(("is_decoder",), "with local_attention", reason)
        if self.first_global_layer >= self.global_attn_every_n_layers:
            raise ValueError(
                f"first_global_layer={self.first_global_layer} must be below "
                f"global_attn_every_n_layers={self.global_attn_every_n_layers}: change one of them."
            )
        if self.global_rope_theta is None:
            names = ("local_rope_theta", "rope_interleaved", "rotary_value", "stored_rope")
            names = (*names, "rope_type")
            self.refuse_set(names, "without global_rope_theta", "no position is rotated")
            return
        reason = "rotary positions replace those of attention"
        self.refuse_set(relative, "with global_rope_theta", reason)
        if self.head_size % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} over num_attention_heads="
                f"{self.num_attention_heads} (head_dim={self.head_dim}) gives heads of odd size, "
                "but rotary positions rotate pairs of coordinates: change one of them."
            )

    @property
    def head_size(self) -> int:
        """Dimension of each attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """Dimension of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """Dimension of the vectors that the masked LM head multiplies by its output matrix."""
        return self.output_embedding_size or self.embedding_width

    @property
    def longest_relative_position(self) -> int:
        """The largest distance of two tokens that is told from larger ones."""
        longest = self.max_relative_positions
        if longest > 0:
            return longest
        return self.max_position_embeddings

    @property
    def relative_span(self) -> int:
        """Number of embeddings of relative positions in each direction."""
        buckets = self.position_buckets
        if buckets > 0:
            return buckets
        return self.longest_relative_position

    def is_global(self, layer: int) -> bool:
        """Returns whether the layer with the index `layer` has global attention."""
        if self.local_attention is None:
            return True
        return layer % self.global_attn_every_n_layers == self.first_global_layer

    @property
    def groups(self) -> int:
        """Number of groups of layers; all layers of a group share their parameters."""
        return self.num_hidden_groups or self.num_hidden_layers or 1

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of embeddings, without layers."""
        return self.num_hidden_layers == 0

    @property
    def max_length(self) -> int:
        """The maximum sequence length in tokens that the position embedding allows."""
        return self.max_position_embeddings - self.position_offset

    def with_dropout(self, rate: float | None) -> "BertConfig":
        """Returns the config with `rate` as its dropout rates; None: with its own.

        Where a model family has no dropout, such as after DistilBERT's attention, none is added.
        """
        if rate is None:
            return self
        everywhere = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        names = [name for name in DROPOUT_FIELDS if getattr(self, name) or name in everywhere]
        rates: dict[str, Any] = dict.fromkeys(names, rate) | {"classifier_dropout": None}
        return dataclasses.replace(self, **rates)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "BertConfig":
        """Returns a config made from the content of a BERT `config.json`; ignores unknown keys.

        For families other than BERT, `bertjax.weights` first translates the keys of `config.json`.

        Raises:
            ValueError: a value is not supported, has the wrong type, or is outside of its range.
        """
        for key, only in _ONLY_SUPPORTED.items():
            if values.get(key, only) != only:
                raise ValueError(f"{key}={brief(values[key])} is not supported: only {only!r} is.")
        names = [field.name for field in dataclasses.fields(cls) if field.name in values]
        return cls(**{name: values[name] for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dictionary for `config.json`."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerConfig(Checked):
    """Config of a tagger on hidden states of a frozen encoder (Devlin et al. 2018, 5.3).

    Raises:
        ValueError: there are no layers, `size` is below 1, or `join` or `kind` is unknown.
    """

    layers: tuple[int, ...]
    """Layers whose hidden states the tagger reads: 0 = embeddings, -1 = last layer (best in Devlin
    et al. 2018: -4 -3 -2 -1); train with a learning rate of about 1e-3."""
    join: Literal["concat", "sum"] = "concat"
    """concat: the hidden states of the layers are concatenated; sum: they are added."""
    kind: Literal["linear", "bilstm"] = "linear"
    """linear: a linear classifier; bilstm: a two-layer BiLSTM and a linear classifier."""
    size: Count = 768
    """Number of units of the BiLSTM in each direction."""

    def __post_init__(self):
        super().__post_init__()
        if not self.layers:
            raise ValueError("layers=[]: name at least one (0 = embeddings, -1 = the last layer).")
        if self.kind == "linear" and self.size != TaggerConfig.size:
            raise ValueError(
                f"size={self.size} has no effect on a linear tagger: use kind='bilstm'."
            )

    def check_layers(self, num_hidden_layers: int) -> None:
        """Checks that an encoder with `num_hidden_layers` layers has every layer in `self.layers`.

        Raises:
            ValueError: a layer in `self.layers` does not exist or is named twice.
        """
        count = num_hidden_layers + 1
        wrong = [layer for layer in self.layers if not -count <= layer < count]
        if wrong:
            raise ValueError(
                f"layers={list(self.layers)}: the model has no layers {wrong}; choose among "
                f"{-count}..{count - 1} (0 = embeddings, -1 = the last layer)."
            )
        if len({layer % count for layer in self.layers}) < len(self.layers):
            raise ValueError(f"layers={list(self.layers)}: a layer is named twice; name it once.")


_ONLY_SUPPORTED = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "quantization_config": None,
    "inner_group_num": 1,
    "summary_type": "first",
    "summary_use_proj": True,
    "is_folding_model": False,
    "lora_adaptations": None,
}


# Values, other than sizes, in which RoBERTa (Liu et al. 2019), ALBERT (Lan et al. 2019), DistilBERT
# (Sanh et al. 2019) and ELECTRA (Clark et al. 2020) differ from BERT in transformers.
FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "ernie": {},
    "roberta": {
        "pad_token_id": 1,
        "position_offset": 2,
        "mlm_activation": "gelu",
        "classifier_activation": "tanh",
        "classifier_input_dropout": True,
    },
    "albert": {"num_hidden_groups": 1, "embedding_size": 128, "hidden_act": "gelu_new"},
    "distilbert": {
        "type_vocab_size": 0,
        "add_pooling_layer": False,
        "classifier_activation": "relu",
        "classifier_dropout": 0.2,
        "attention_output_dropout": 0.0,
        "token_classifier_dropout": 0.1,
        "qa_dropout": 0.1,
    },
    "electra": {
        "add_pooling_layer": False,
        "mlm_activation": "gelu",
        "classifier_activation": "gelu",
        "classifier_input_dropout": True,
        "summary_activation": "gelu",
    },
}
# ModernBERT (Warner et al. 2024); Ettin's encoders (Weller et al. 2025) have the same architecture.
FAMILY_FIELDS["modernbert"] = {
    "pad_token_id": 50283,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "attention_output_dropout": 0.0,
    "embedding_dropout": 0.0,
    "classifier_dropout": 0.0,
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "add_pooling_layer": False,
    "pre_norm": True,
    "gated_linear_unit": True,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "prediction_head": True,
    "classifier_activation": "gelu",
}
# DeBERTa-v2 (He et al. 2020, 2021); version 3 has the same architecture.
FAMILY_FIELDS["deberta-v2"] = {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "add_pooling_layer": False,
    "classifier_activation": "gelu",
    "token_classifier_dropout": 0.1,
    "embed_proj": True,
    "rtd_context": True,
}
# These families have the architecture of RoBERTa; their languages or objectives differ.
_ROBERTAS = ("xlm-roberta", "camembert", "data2vec-text")
FAMILY_FIELDS |= dict.fromkeys(_ROBERTAS, FAMILY_FIELDS["roberta"])
# MPNet (Song et al. 2020).
FAMILY_FIELDS["mpnet"] = FAMILY_FIELDS["roberta"] | {
    "type_vocab_size": 0,
    "relative_attention_num_buckets": 32,
}
# Models with the LayerNorm before attention and feed-forward layers, and positions of BERT
# (Shoeybi et al. 2019; Ott et al. 2019, "fairseq"; Goyal et al. 2021).
_PRE_NORM = {"pre_norm": True, "first_attention_norm": True}
FAMILY_FIELDS["megatron-bert"] = _PRE_NORM | {"embedding_norm": False}
FAMILY_FIELDS["roberta-prelayernorm"] = FAMILY_FIELDS["roberta"] | _PRE_NORM
FAMILY_FIELDS["xlm-roberta-xl"] = FAMILY_FIELDS["roberta-prelayernorm"] | {
    "embedding_norm": False,
    "mlp_output_dropout": 0.0,
}
# The encoder of Rothe et al. 2020, and RemBERT (Chung et al. 2020).
FAMILY_FIELDS["bert-generation"] = {
    "type_vocab_size": 0,
    "add_pooling_layer": False,
    "classifier_activation": "tanh",
}
FAMILY_FIELDS["rembert"] = {
    "embedding_size": 256,
    "output_embedding_size": 1664,
    "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.1,
}
# RoFormer (Su et al. 2021), and models of embeddings with its positions: nomic-embed (Nussbaum et
# al. 2024), mGTE (Zhang et al. 2024) and jina-embeddings-v3 (Sturua et al. 2024).
FAMILY_FIELDS["roformer"] = {
    "max_position_embeddings": 1536,
    "add_pooling_layer": False,
    "classifier_activation": "gelu",
    "classifier_input_dropout": True,
    "global_rope_theta": 10_000.0,
    "rope_interleaved": True,
}
FAMILY_FIELDS["nomic_bert"] = {
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 2048,
    "encoder_pooler": False,
    "gated_linear_unit": True,
    "global_rope_theta": 1000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
FAMILY_FIELDS["gte"] = {
    "attention_probs_dropout_prob": 0.0,
    "mlp_dropout": 0.1,
    "max_position_embeddings": 8192,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "encoder_pooler": False,
    "mlm_activation": "gelu",
    "gated_linear_unit": True,
    "global_rope_theta": 160_000.0,
    "mlp_bias": False,
    "mlp_output_bias": True,
}
FAMILY_FIELDS["jina_embeddings_v3"] = {
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "mlm_activation": "gelu",
    "classifier_activation": "tanh",
    "classifier_input_dropout": True,
    "global_rope_theta": 20_000.0,
}
# EuroBERT (Boizard et al. 2025).
FAMILY_FIELDS["eurobert"] = _PRE_NORM | {
    "pad_token_id": 128001,
    "hidden_act": "silu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
    "max_position_embeddings": 8192,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "norm_type": "rms_norm",
    "embedding_norm": False,
    "add_pooling_layer": False,
    "mlm_transform": False,
    "tie_word_embeddings": False,
    "gated_linear_unit": True,
    "global_rope_theta": 10_000.0,
    **dict.fromkeys(("attention_bias", "mlp_bias", "decoder_bias"), False),
    "classifier_activation": "gelu",
    "classifier_pooling": "late",
}

# UltraBERT (dmis-lab 2026), with its two layers of the masked LM, and none of classifiers.
FAMILY_FIELDS["ultrabert"] = FAMILY_FIELDS["eurobert"] | {
    "pad_token_id": 0,
    "max_position_embeddings": 32_768,
    "layer_norm_eps": 1e-6,
    "mlm_transform": True,
    "prediction_head_size": 768,
    "mlm_activation": "gelu_pytorch_tanh",
    "global_rope_theta": 2_560_000.0,
    "local_rope_theta": 10_000.0,
    "local_attention": 256,
    "global_attn_every_n_layers": 3,
    "first_global_layer": 2,
    "classifier_activation": None,
    "classifier_pooling": "cls",
}

# ESM-2 (Lin et al. 2022), language models of proteins.
FAMILY_FIELDS["esm"] = _PRE_NORM | {
    "pad_token_id": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "embedding_dropout": 0.0,
    "max_position_embeddings": 1026,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "embedding_norm": False,
    "classifier_activation": "tanh",
    "classifier_input_dropout": True,
    "global_rope_theta": 10_000.0,
    "stored_rope": True,
    "contact_head": True,
}
# ESM C, "Cambrian" (EvolutionaryScale 2024), has the tokens of ESM-2 and other layers.
FAMILY_FIELDS["esmc"] = FAMILY_FIELDS["esm"] | {
    "hidden_act": "silu",
    "classifier_dropout": 0.1,
    "max_position_embeddings": 2048,
    "final_norm_bias": False,
    "residual_scale_layers": 36,
    "query_key_norm": True,
    "gated_linear_unit": True,
    "mlm_activation": "gelu",
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
    **dict.fromkeys(("add_pooling_layer", "stored_rope", "contact_head"), False),
}


def _size(
    layers: int, hidden: int, vocab_size: int = 30522, model_type: str = "bert", **fields: Any
) -> BertConfig:
    # In most released models, the head size is 64 and intermediate_size is 4 * hidden_size.
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "model_type": model_type,
    }
    return BertConfig(**(FAMILY_FIELDS[model_type] | sizes | fields))


_ROBERTA: dict[str, Any] = {
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
_ERNIE: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "type_vocab_size": 4,
    "task_type_vocab_size": 3,
    "layer_norm_eps": 1e-5,
}
# These are the dropout rates of version 2; in version 1, the three smaller models have 0.1.
_ALBERT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.1,
}


def _electra(layers: int, hidden: int, **fields: Any) -> BertConfig:
    return _size(layers, hidden, model_type="electra", **fields)


_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ("p2c", "c2p"),
    "position_buckets": 256,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}


def _deberta(layers: int, hidden: int, vocab_size: int = 128100, **fields: Any) -> BertConfig:
    return _size(layers, hidden, vocab_size, "deberta-v2", **_DEBERTA | fields)


def _modernbert(layers: int, hidden: int, intermediate: int, **fields: Any) -> BertConfig:
    sizes = {"intermediate_size": intermediate, **fields}
    return _size(layers, hidden, 50368, "modernbert", **sizes)


def _ettin(layers: int, hidden: int, intermediate: int) -> BertConfig:
    fields = {"local_rope_theta": 160_000.0, "max_position_embeddings": 7999}
    return _modernbert(layers, hidden, intermediate, **fields)


def _eurobert(layers: int, hidden: int, intermediate: int, **fields: Any) -> BertConfig:
    sizes = {"intermediate_size": intermediate, "global_rope_theta": 250_000.0, **fields}
    return _size(layers, hidden, 128256, "eurobert", **sizes)


def _esm(layers: int, hidden: int) -> BertConfig:
    fields = {"num_attention_heads": 20, "token_dropout": True, "mask_token_id": 32}
    return _size(layers, hidden, 33, "esm", **fields)


def _esmc(layers: int, hidden: int, intermediate: int) -> BertConfig:
    return _size(layers, hidden, 64, "esmc", intermediate_size=intermediate)


MODEL_SIZES: dict[str, BertConfig] = {
    "bert-tiny": _size(2, 128),
    "bert-mini": _size(4, 256),
    "bert-small": _size(4, 512),
    "bert-medium": _size(8, 512),
    "bert-base-uncased": _size(12, 768),
    "bert-base-cased": _size(12, 768, vocab_size=28996),
    "bert-base-chinese": _size(12, 768, vocab_size=21128),
    "bert-base-multilingual-cased": _size(12, 768, vocab_size=119547),
    "bert-large-uncased": _size(24, 1024),
    "bert-large-cased": _size(24, 1024, vocab_size=28996),
    "roberta-base": _size(12, 768, 50265, "roberta", **_ROBERTA),
    "roberta-large": _size(24, 1024, 50265, "roberta", **_ROBERTA),
    "xlm-roberta-base": _size(12, 768, 250002, "xlm-roberta", **_ROBERTA),
    "xlm-roberta-large": _size(24, 1024, 250002, "xlm-roberta", **_ROBERTA),
    "camembert-base": _size(12, 768, 32005, "camembert", **_ROBERTA),
    "data2vec-text-base": _size(12, 768, 50265, "data2vec-text", **_ROBERTA),
    "ernie-3.0-base-zh": _size(12, 768, 40000, "ernie", **_ERNIE),
    "mpnet-base": _size(12, 768, 30527, "mpnet", max_position_embeddings=514, layer_norm_eps=1e-5),
    "albert-base-v2": _size(12, 768, 30000, "albert", **_ALBERT),
    "albert-large-v2": _size(24, 1024, 30000, "albert", **_ALBERT),
    "albert-xlarge-v2": _size(24, 2048, 30000, "albert", num_attention_heads=16, **_ALBERT),
    "albert-xxlarge-v2": _size(12, 4096, 30000, "albert", **_ALBERT),
    "distilbert-base-uncased": _size(6, 768, model_type="distilbert"),
    "distilbert-base-cased": _size(6, 768, 28996, "distilbert"),
    "electra-small": _electra(12, 256, embedding_size=128),
    "electra-base": _electra(12, 768),
    "electra-large": _electra(24, 1024),
    "deberta-v2-xlarge": _deberta(24, 1536, conv_kernel_size=3, conv_act="gelu"),
    "deberta-v2-xxlarge": _deberta(48, 1536, conv_kernel_size=3, conv_act="gelu"),
    "deberta-v3-xsmall": _deberta(12, 384),
    "deberta-v3-small": _deberta(6, 768),
    "deberta-v3-base": _deberta(12, 768),
    "deberta-v3-large": _deberta(24, 1024),
    "mdeberta-v3-base": _deberta(12, 768, vocab_size=251000),
    "modernbert-base": _modernbert(22, 768, 1152),
    "modernbert-large": _modernbert(28, 1024, 2624),
    "ettin-encoder-17m": _ettin(7, 256, 384),
    "ettin-encoder-32m": _ettin(10, 384, 576),
    "ettin-encoder-68m": _ettin(19, 512, 768),
    "ettin-encoder-150m": _ettin(22, 768, 1152),
    "ettin-encoder-400m": _ettin(28, 1024, 2624),
    "ettin-encoder-1b": _ettin(28, 1792, 3840),
    "megatron-bert-uncased-345m": _size(24, 1024, 29056, "megatron-bert"),
    "roberta-prelayernorm-large": _size(24, 1024, 50265, "roberta-prelayernorm", **_ROBERTA),
    "xlm-roberta-xl": _size(36, 2560, 250880, "xlm-roberta-xl", num_attention_heads=32, **_ROBERTA),
    "bert-for-seq-generation": _size(24, 1024, 50358, "bert-generation"),
    "rembert": _size(32, 1152, 250300, "rembert"),
    "roformer-chinese-base": _size(12, 768, 50000, "roformer"),
    "nomic-embed-text-v1.5": _size(12, 768, 30528, "nomic_bert"),
    "gte-multilingual-base": _size(12, 768, 250048, "gte"),
    "jina-embeddings-v3": _size(24, 1024, 250002, "jina_embeddings_v3"),
    "esm2-t6-8m": _esm(6, 320),
    "esm2-t12-35m": _esm(12, 480),
    "esm2-t30-150m": _esm(30, 640),
    "esm2-t33-650m": _esm(33, 1280),
    "esmc-300m": _esmc(30, 960, 2560),
    "esmc-600m": _esmc(36, 1152, 3072),
    "esmc-6b": _esmc(80, 2560, 6912),
    "eurobert-210m": _eurobert(12, 768, 3072),
    "eurobert-610m": _eurobert(26, 1152, 4096, num_attention_heads=18, num_key_value_heads=6),
    "eurobert-2.1b": _eurobert(32, 2304, 6144, num_attention_heads=18, num_key_value_heads=6),
    # The defaults of transformers, since the sizes of the released models are in their files alone.
    "ultrabert": _size(
        32, 4096, 32_000, "ultrabert", num_attention_heads=32, intermediate_size=11_008
    ),
}


def named_config(name: str, **changes: Any) -> BertConfig:
    """Returns the config of the released model `name`, with the fields in `changes` replaced.

    Raises:
        ValueError: no released model has this name; the message suggests the most similar name.
    """
    if name not in MODEL_SIZES:
        hint = did_you_mean(name, MODEL_SIZES)
        raise ValueError(f"Unknown model {name!r}. {hint}Known: {', '.join(MODEL_SIZES)}.")
    return dataclasses.replace(MODEL_SIZES[name], **changes)


# The score of a document without vectors in late interaction, as in sentence-transformers.
EMPTY_DOCUMENT = -1e9
# A number of tokens per vector.
PoolFactor = Annotated[float, "[1, inf)"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorConfig(Checked):
    """How a model turns a text into a vector: the flags that `embed` and `search` share.

    Pooling, layers and size of the vectors; None: as in the files of sentence-transformers.
    With `pooling`, nothing is taken from these files. Without them, pooling is "mean".

    Raises:
        ValueError: a value is not of the type of its field.
    """

    pooling: Pooling | None = None
    """How the hidden states of the tokens become one vector, by the names of
    sentence-transformers; None: as its files in --model say, or mean without such files."""
    normalize: bool | None = None
    """Whether each vector is divided by its Euclidean length; None: as the files of
    sentence-transformers say, or False without such files or with --pooling."""
    layers: tuple[int, ...] = (-1,)
    """Layers whose hidden states are pooled: 0 = embeddings, -1 = last layer; vectors of several
    layers are concatenated."""
    truncate_dim: int | None = None
    """Number of dimensions to keep, the first ones, for models trained with --matryoshka; None: as
    the files of sentence-transformers say, or all."""
    max_active_dims: Count | None = None
    """Number of words with the highest weights to keep, of sparse embeddings; None: as the files of
    sentence-transformers say, or all."""
    max_length: int | None = None
    """Maximum number of tokens per text; None: as the files of sentence-transformers say, or the
    maximum length of the model."""
    pool_factor: PoolFactor | None = None
    """Number of tokens of a document per vector, of models with one vector per token, whose similar
    vectors are averaged; None: as their files say, or 1."""
