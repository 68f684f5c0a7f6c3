"""`bertjax.load_pretrained` loads a model that can be called on texts or arrays.

What the files of a model say is read when the model is loaded, and no method reads them again. The
task that a model was fine-tuned on is restored in `saved_task`, the examples that it makes of texts
are in `texts`, and everything is computed in `predictor`.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax.typing import DTypeLike

from bertjax.base.checked import Count, check
from bertjax.base.files import brief
from bertjax.base.outputs import keep_apart
from bertjax.base.progress import progress
from bertjax.config.finetune_config import SHORTEST
from bertjax.devices.compilation import refuse_fork, start_jax
from bertjax.inference.attribution import STEPS, Attribution, Attributor, Baseline
from bertjax.inference.embedder import ROLES
from bertjax.inference.late_interaction import TokenEmbedder
from bertjax.inference.masks import fill_mask
from bertjax.inference.output_files import file_identity
from bertjax.inference.predictor import (
    Predictor,
    for_inference,
    inference_params,
    model_outputs,
    one_device,
)
from bertjax.inference.saved_task import description_of, is_described, with_task
from bertjax.inference.texts import from_texts, single_texts, text_tuples
from bertjax.model import BertConfig, BertWithHead
from bertjax.model.late_interaction import BertForLateInteraction
from bertjax.tasks import Example, Prediction, Task
from bertjax.tasks.reranking import ranking_task
from bertjax.tokenization import Tokenizer
from bertjax.weights import LoadedModel, load_model, save_hf
from bertjax.weights.families import architecture, family_of
from bertjax.weights.fill import part_in_words
from bertjax.weights.hf import TAGGER, model_card
from bertjax.weights.late_interaction import files_of_head
from bertjax.weights.load import head_tensors, with_masked_lm
from bertjax.weights.names import two_biases
from bertjax.weights.sentence_transformers import changed_weights, transformer_folder
from bertjax.weights.sparse_modules import changed_query_weights

# Fields of config.json that are saved as they were; a CrossEncoder of sentence-transformers has its
# activation in the last two.
KEPT_FIELDS = (
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "sentence_transformers",
    "sbert_ce_default_activation_function",
)
Text = str | tuple[str, str]


def load_pretrained(
    path_or_name: str | Path,
    head: str | None = "auto",
    *,
    num_labels: int | None = None,
    vocab_size: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> "Pretrained":
    """Loads a model, to be called on texts or arrays.

        bert = bertjax.load_pretrained("bert-base-uncased")
        outputs = bert(["one text", ("text a", "text b")])
        outputs["last_hidden_state"]  # float32 [2, L, 768]

    Parts of the model that the loaded weights lack, such as a classifier, are initialised at
    random, and their names are printed. If the model has no tokenizer, it can be called on arrays,
    but not on texts. Compiled programs are kept on disk, in jax's persistent compilation cache.

    Args:
        path_or_name: a Hugging Face directory, a file `.safetensors` or `.bin`, a TF1 checkpoint,
            the workdir of a run (also in a bucket), a name on the Hub, or `bertjax:tiny`.
        head: the name of the head, one of `bertjax.model.HEADS`; None: the head of the source;
            "auto": the head of the source if it was fine-tuned for a task, and "encoder", without a
            head, if it was pretrained.
        num_labels: the number of classes; None: as in the source, or 2 if it has no classes.
        vocab_size: the vocabulary size to resize the model to; None: the model is not resized.
        dtype: the dtype of the activations; the parameters are float32.

    Raises:
        FileNotFoundError: there is no model at `path_or_name`, neither locally nor on the Hub.
        ValueError: a file is damaged, transformers lacks the head for the model family, the shapes
            of the weights do not fit the config or `num_labels`, or the tokenizer has more tokens
            than the model.
    """
    check("num_labels", num_labels, Count | None)
    check("vocab_size", vocab_size, Count | None)
    name = getattr(dtype, "__name__", str(dtype))
    check("dtype", name, Literal["float32", "bfloat16", "float16"])
    start_jax()
    loaded = load_model(
        path_or_name,
        head,
        num_labels=num_labels,
        vocab_size=vocab_size,
        dtype=dtype,
        tokenizer_required=False,
    )
    for part in loaded.absent:
        print(
            f"{path_or_name} has no {part_in_words(part)}: it is initialised at random; train it "
            "before use"
        )
    if loaded.left_out:
        print(
            f"{path_or_name} is loaded without its head {loaded.left_out}: it gives hidden states. "
            f'Give head="{loaded.left_out}" for its logits; `save` keeps the head in any case'
        )
    return Pretrained(loaded)


class Pretrained:
    """A model with its parameters, config, tokenizer and labels; call it on texts or arrays.

    Attributes:
        model: the Flax linen module.
        tokenizer: None if the loaded directory has none. Until a tokenizer is assigned, such a
            model can be called on arrays, but not on texts.
        labels: names of the classes; None if the model has no named classes.
        head: the name of the head in `bertjax.model.HEADS`.
        absent: names of parts of the model, such as "classifier" or "bert/pooler", that the loaded
            weights lack; the parameters of these parts are initialised at random.
        identity: JSON values that differ if the files of the model differ.
    """

    def __init__(self, loaded: LoadedModel):
        self.model: BertWithHead = loaded.model
        self.params: Any = loaded.params
        self.config: BertConfig = loaded.config
        self.tokenizer: Tokenizer | None = loaded.tokenizer
        self.labels = loaded.labels
        self.absent = loaded.absent
        self.head = loaded.head
        self.identity = file_identity(transformer_folder(loaded.source.where))
        # A masked LM head that the model lacks may be asked for later; it is copied, because files
        # may be mapped into memory.
        source = loaded.source
        names = two_biases(source.tensors, loaded.config)
        if "predictions" not in loaded.model.parts:
            names += head_tensors(source, loaded.config)
        kept = {name: np.array(source.tensors[name]) for name in names}
        self._loaded = loaded._replace(params={}, source=source._replace(tensors=kept))
        self._on_device: tuple[Any, Any] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "params": jax.device_get(self.params), "_on_device": (None, None)}
        for computed in ("_restored", "_masked_lm"):  # with arrays on the device
            state.pop(computed, None)
        return state

    def __repr__(self) -> str:
        count = sum(x.size for x in jax.tree.leaves(self.params))
        classes = ""
        if self.labels:
            classes = f" ({brief(', '.join(self.labels), 60)})"
        return (
            f"<{architecture(self.config, self.head)}{classes}, "
            f"{self.config.num_hidden_layers} layers of size {self.config.hidden_size}, "
            f"{count:,} parameters, from {self.where}>"
        )

    @property
    def where(self) -> Path:
        """The folder or file that the model was loaded from."""
        return self._loaded.source.where

    @property
    def loaded(self) -> LoadedModel:
        """The model on the device as a `LoadedModel`; raises ValueError without a tokenizer."""
        if self.tokenizer is None:
            raise ValueError(
                f"{self.where} has no tokenizer (tokenizer.json), so texts cannot be encoded: "
                "pass input_ids, or assign the tokenizer of the model: "
                "bert.tokenizer = bertjax.tokenization.load_tokenizer(...)."
            )
        return self._loaded._replace(params=self._device_params(), tokenizer=self.tokenizer)

    def _device_params(self) -> Any:
        refuse_fork()
        if self._on_device[0] is not self.params:
            params = inference_params(self.params, self.model)
            self._on_device = (self.params, params)
        return self._on_device[1]

    def __call__(
        self,
        texts: Sequence[Text] | None = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        batch_size: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Applies the model without dropout.

        A batch is split and padded to a few shapes, so that calls of different shapes share
        compiled programs; it may be larger than the device memory. The outputs have no padding.

        Args:
            texts: texts or pairs of texts, which are truncated as by `encode`.
            input_ids: token ids that replace `texts`, int [B, L] as in transformers ([B, C, L] for
                multiple choice with C choices).
            attention_mask: 1 (or True) for tokens and 0 for padding, of the shape of `input_ids`;
                None: no token is padding.
            token_type_ids: the token types, of the shape of `input_ids`; None: all are 0.
            output_hidden_states: whether to also return "hidden_states" [layers + 1, B, L, D].
            output_attentions: whether to also return "attentions" [layers, B, heads, L, L].
            batch_size: maximum number of rows that the device computes at once; None: chosen by the
                length of the rows.

        Returns:
            A dict of arrays, whose keys are the names of the outputs in transformers:
            last_hidden_state [B, L, D], pooler_output [B, D] and those of the head, such as logits.
            Logits are float32; hidden states have the dtype that was given to `load_pretrained`.

        Raises:
            ValueError: not exactly one of `texts` and `input_ids` is set, an array has another
                shape, type or range than described, rows are too long for the model, or it has no
                tokenizer for texts.
        """
        check("batch_size", batch_size, Count | None)
        check("output_hidden_states", output_hidden_states, bool)
        check("output_attentions", output_attentions, bool)
        if (texts is None) == (input_ids is None):
            raise ValueError("Give either texts or input_ids.")
        if texts is not None:
            if attention_mask is not None or token_type_ids is not None:
                raise ValueError(
                    "attention_mask or token_type_ids has no effect on texts: give input_ids."
                )
            input_ids, attention_mask, token_type_ids = self.encode(texts)
        batch = _model_inputs(self.config, self.head, input_ids, attention_mask, token_type_ids)
        *rows, length = batch["input_ids"].shape
        outputs = model_outputs(
            self.model,
            self._device_params(),
            {name: x.reshape(-1, length) for name, x in batch.items()},
            hidden_states=output_hidden_states,
            attentions=output_attentions,
            batch_size=batch_size,
        )
        if len(rows) == 2:
            outputs["logits"] = outputs["logits"].reshape(rows)
        hf_names = family_of(self.config).outputs
        return {hf_names.get(key, key): value for key, value in outputs.items()}

    def predict(
        self,
        texts: Sequence[str | tuple[str, ...]],
        *,
        batch_size: int | None = None,
        max_length: int | None = None,
        doc_stride: int | None = None,
    ) -> list[Prediction]:
        """Computes the predictions of the model's head for texts, as `bertjax.predict` does.

        Args:
            texts: texts or pairs of texts; (question, passage) for question answering, (text,
                choice, choice, ...) for multiple choice, and texts or lists of words for tagging.
            batch_size: maximum number of rows in one call of the model, where a row may hold
                several short sequences; None: enough rows to keep the device busy.
            max_length: maximum number of tokens per sequence; None: as in fine-tuning.
            doc_stride: maximum number of tokens between the starts of two consecutive windows of a
                text of more tokens; None: as in fine-tuning.

        Returns:
            A dict for each element of `texts`, with the keys of `bertjax.tasks.task.Prediction`.

        Raises:
            ValueError: no task uses the head of the model, or an argument does not fit it.
        """
        task, examples = from_texts(self.task_with(max_length, doc_stride), texts)
        pairs = self.predictions(task, examples, batch_size=batch_size, shows_progress=False)
        return [prediction for _, prediction in pairs]

    def predictions(
        self,
        task: Task,
        examples: Iterable[Example],
        *,
        batch_size: int | None = None,
        report_problems: bool = False,
        shows_progress: bool = True,
    ) -> Iterator[tuple[Example, Prediction]]:
        """Yields (example, prediction) for each of `examples`, in order; see `Predictor.__call__`.

        `task` is that of `task_with`, or another with the same labels in the same order. At the
        end, a message on stderr says how many texts may have been truncated.
        """
        predictor, params = self.predictor(task, batch_size=batch_size)
        with progress("predicting", unit="sequences", shown=shows_progress) as state:
            predictor.after_batch = state.advance
            yield from predictor(params, examples, report_problems=report_problems)
        if message := predictor.truncated.message:
            print(
                f"{message}. The model reads up to {self.config.max_length} tokens.",
                file=sys.stderr,
            )

    def predictor(self, task: Task, *, batch_size: int | None = None) -> tuple[Predictor, Any]:
        """Returns what computes the predictions of `predictions`, and its parameters."""
        check("batch_size", batch_size, Count | None)
        model, params, tokenizer = self._with_task_head()
        predictor = Predictor(
            task, for_inference(model), tokenizer, task.max_length, one_device(), batch_size
        )
        return predictor, params

    def attribute(
        self,
        texts: Sequence[str | tuple[str, ...]],
        *,
        label: str | None = None,
        word: int | None = None,
        baseline: Baseline = "pad",
        steps: int = STEPS,
    ) -> list[list[Attribution]]:
        """Computes how much each word adds to the prediction for its text, or takes from it.

        The values are integrated gradients over the word embeddings (Sundararajan et al. 2017):
        their sum is the output for the text minus the output for the baseline, up to
        `Attribution.completeness_error`. The output is the logit of the predicted class, or of each
        predicted label of several, or of the most probable label if none is predicted; the number
        of a regression, or each of several; or the score of a reranker before its activation. In
        tagging, it is the logit of the tag of a word: there is an attribution for each of the first
        20 words whose predicted tag is not O, or for `word` alone.

        Args:
            texts: as in `predict`, without question answering and multiple choice.
            label: the class or tag to attribute instead of the predicted one, or one of several
                numbers.
            word: the number of a word, from 1, whose tag alone is attributed.
            baseline: the token that replaces all tokens of a text in the baseline, but the special
                tokens, which are kept: "pad" or "mask".
            steps: the number of points of the Gauss-Legendre quadrature.

        Returns:
            For each element of `texts`, a list of its attributions.

        Raises:
            ValueError: the task of the model has no such outputs, or an argument does not fit it.
        """
        attribute = self.attributor(baseline, steps)
        task, examples = from_texts(attribute.task, texts)
        pairs = self.predictions(task, examples, shows_progress=False)
        return [attribute(*pair, label, word) for pair in pairs]

    def attributor(self, baseline: Baseline = "pad", steps: int = STEPS) -> Attributor:
        """Returns what attributes predictions to words; arguments and errors as in `attribute`."""
        return Attributor(self.task_with(), *self._with_task_head(), baseline, steps)

    def _with_task_head(self) -> tuple[BertWithHead, Any, Tokenizer]:
        """Returns the model of the task, its parameters on the device, and the tokenizer."""
        loaded = self.loaded
        restored = self._restored[0]
        return restored.model, restored.params | loaded.params, loaded.tokenizer

    @functools.cached_property
    def _restored(self) -> tuple[LoadedModel, Task, dict[str, Any]]:
        loaded, task, description = with_task(self._loaded._replace(params=self.params))
        # Those of a tagger; all others are on the device already.
        own = {name: loaded.params[name] for name in loaded.params.keys() - self.params.keys()}
        return loaded._replace(params=inference_params(own, loaded.model)), task, description

    @property
    def task(self) -> Task:
        """The task that the model was fine-tuned on; `task.source` is None.

        Raises:
            ValueError: no task uses the head of the model.
        """
        return self._restored[1]

    @property
    def description(self) -> Mapping[str, Any]:
        """The content of `task.json`, {} for models of other libraries."""
        return self._restored[2]

    def task_with(self, max_length: int | None = None, doc_stride: int | None = None) -> Task:
        """Returns the task with the limits that `predict` describes; errors are as there."""
        check("max_length", max_length, int | None)
        check("doc_stride", doc_stride, Count | None)
        where = self.loaded.source.where
        task = self.task
        if doc_stride is not None:
            if not hasattr(task, "doc_stride"):
                raise ValueError(
                    f"doc_stride={doc_stride} has no effect on {where}, whose task {task.name} "
                    "reads no windows: leave it out."
                )
            task = dataclasses.replace(task, **{"doc_stride": doc_stride})
        origin = " (of task.json, or model_max_length)"
        if max_length is not None:
            origin = ""
            task = dataclasses.replace(task, max_length=max_length)
        if not SHORTEST <= task.max_length <= self.config.max_length:
            raise ValueError(
                f"max_length={task.max_length}{origin}, but {where} reads {SHORTEST} to "
                f"{self.config.max_length} tokens: choose a value in this range."
            )
        return task

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        layers: Sequence[int] = (-1,),
        batch_size: int | None = None,
        truncate_dim: int | None = None,
        max_active_dims: int | None = None,
        prompt: str | None = None,
    ) -> Any:
        """Computes a vector for each text: float32 [len(texts), D].

        Of a sparse model, and without `pooling`, it is a SciPy CSR array of the weights of words.

        Args:
            texts: the texts; long texts are truncated as by `encode` or, if `pooling` is None, to
                the length in the files of sentence-transformers.
            pooling: as in `bertjax.model.sentence_embedding.pooled`; None: all that the files of
                sentence-transformers say is followed, and without such files, it is "mean".
            normalize: whether to divide each vector by its Euclidean length; None: as these files
                say, or False if there are none or `pooling` is set.
            layers: indices of the hidden states to pool (0: embeddings, -1: last layer); the
                vectors of several layers are concatenated.
            batch_size: as in `predict`.
            truncate_dim: number of dimensions to keep of each vector, the first ones, before it is
                normalised; None: as these files say, or all.
            max_active_dims: number of the highest weights of sparse embeddings to keep; None: as
                these files say, or all.
            prompt: the name of a prompt in these files, or a text to put before each text; None:
                the default prompt of these files, if any.

        Errors are those of `encoder_of`, or ValueError if an element of `texts` is no text, or the
        model has one vector per token.
        """
        from bertjax.inference.indexes import encoder_kind, encoder_of  # imports SciPy: slow

        if encoder_kind(self.loaded, pooling) is TokenEmbedder:
            raise ValueError(
                f"{self.where} has one vector per token: use Pretrained.token_vectors, or give "
                "--pooling to ignore its files of sentence-transformers."
            )
        embedder = encoder_of(
            self.loaded,
            pooling=pooling,
            layers=layers,
            batch_size=batch_size,
            normalize=normalize,
            truncate_dim=truncate_dim,
            max_active_dims=max_active_dims,
            prompt=prompt,
        )
        return embedder(single_texts(texts))

    def token_vectors(
        self,
        texts: Sequence[str],
        *,
        role: str = "document",
        batch_size: int | None = None,
        prompt: str | None = None,
        pool_factor: float | None = None,
    ) -> list[np.ndarray]:
        """Computes the vectors of the tokens of texts, float32 [T, D] each, in late interaction.

        Args:
            texts: queries or documents, which `role` says: "query" or "document".
            batch_size: as in `predict`.
            prompt: as in `embed`; None: that of the role.
            pool_factor: the number of tokens of a document per vector; None: as the files of
                sentence-transformers say, or 1.

        Raises:
            ValueError: the model has one vector per text, or an argument does not fit it.
        """
        from bertjax.inference.indexes import encoder_kind  # imports SciPy: slow

        if encoder_kind(self.loaded, None) is not TokenEmbedder or role not in ROLES:
            raise ValueError(
                f"token_vectors(role={role!r}) of {self.where}: this needs a model with one vector "
                "per token, as --task=colbert trains, and the role query or document."
            )
        embedder = TokenEmbedder(
            self.loaded, role, batch_size=batch_size, prompt=prompt, pool_factor=pool_factor
        )
        return embedder(single_texts(texts))

    def rerank(
        self, query: str, candidates: Sequence[str], *, batch_size: int | None = None
    ) -> list[dict[str, Any]]:
        """Ranks passages for a query, the best first, with a model that scores pairs.

        Returns a dict for each of `candidates`: its `index` there, its `score` and its `text`. Of a
        model with two classes, the score is the probability of the one that is named like a match.

        Raises:
            ValueError: the model is no reranker and has no such class, or a text is empty.
        """
        task, _ = ranking_task(self.task_with(), f"rerank() of {self.where}")
        texts = tuple(single_texts(candidates))
        if not texts:
            return []
        example = Example(id="0", where="candidates", text=query, choices=texts)
        pairs = self.predictions(task, [example], batch_size=batch_size, shows_progress=False)
        ((_, prediction),) = pairs
        return prediction["ranking"]

    def fill_mask(self, text: str, top_k: int = 5) -> list[list[tuple[str, float]]]:
        """Predicts the `top_k` most probable tokens for each [MASK] of `text`, most probable first.

        Result and errors are as in `bertjax.inference.masks`. If the model was loaded
        without its masked LM head, the head of the model's files is used.
        """
        return fill_mask(self.masked_lm, text, top_k)

    @property
    def masked_lm(self) -> LoadedModel:
        """The model with the masked LM head of its files, even if it was loaded with another."""
        loaded = self.loaded
        if "predictions" in self.model.parts:
            return loaded
        head = self._masked_lm
        encoder = {"bert": loaded.params["bert"]}
        return head._replace(params=head.params | encoder, tokenizer=loaded.tokenizer)

    @functools.cached_property
    def _masked_lm(self) -> LoadedModel:
        loaded = with_masked_lm(self._loaded._replace(params=self.params))
        head = dict(loaded.params)
        del head["bert"]  # the encoder is on the device already
        return loaded._replace(params=inference_params(head, loaded.model))

    def encode(self, texts: Sequence[Text]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenizes texts or pairs of texts, as calling the model does.

        They are truncated to the `model_max_length` of the tokenizer, as in transformers, or to the
        maximum length of the model if it is smaller.

        Returns (input_ids, attention_mask, token_type_ids), int32 [B, L] each.
        """
        tokenizer = self.loaded.tokenizer
        limit = self.loaded.max_length
        rows = [tokenizer.encode_prompt(*parts, max_length=limit) for parts in text_tuples(texts)]
        length = max((len(ids) for ids, _ in rows), default=1)
        ids = np.full((len(rows), length), tokenizer.pad_token_id, np.int32)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for i, (row, row_types) in enumerate(rows):
            used = slice(len(row))
            ids[i, used] = row
            types[i, used] = row_types
            mask[i, used] = 1
        # A model with one token type uses it for every token, whatever its tokenizer returns.
        return ids, mask, np.minimum(types, max(self.config.type_vocab_size - 1, 0))

    def save(self, directory: str | Path) -> None:
        """Writes a Hugging Face directory: config, weights, labels, model card and tokenizer.

        A head of pretraining that `load_pretrained` left out is written as well. Files that tell
        how the model is used are kept: files of sentence-transformers and, for a fine-tuned model,
        `task.json` with its maximum length and column names, and the tagger on a frozen encoder.

        Raises ValueError if `directory` holds the model itself, or files that bertjax did not
        write. If the disk is full, the previous content of `directory` remains.
        """
        source = self._loaded.source
        usage = self._loaded.source.usage
        keep_apart("the directory", directory, "model", source.where)
        head = self.head
        params = self.params
        if self._loaded.left_out:
            whole = with_masked_lm(self._loaded._replace(params=params), self._loaded.left_out)
            head = whole.head
            params = whole.params
            if "bert/pooler" in self.absent:
                del params["bert"]["pooler"]
        files: dict[str, Any] = usage.sentence_files.result()
        files = files | changed_weights(usage.modules, params)
        files = files | changed_query_weights(usage.modules, params)
        if isinstance(self.model, BertForLateInteraction):
            files = files_of_head(self.model, params, self.loaded.max_length, usage.modules)
        tagger = usage.tagger.result() if head == "encoder" else None
        if tagger is not None:
            files[TAGGER] = safetensors.numpy.save(tagger)
        if tagger is not None or is_described(self._loaded):
            files["task.json"] = json.dumps(description_of(self._loaded), indent=2)
        is_lower = self.tokenizer and self.tokenizer.do_lower_case
        kept = two_biases(source.tensors, self.config)[:1]
        save_hf(
            directory,
            params,
            self.config,
            self.tokenizer,
            head=head,
            extra=self._fields_to_save(),
            files=files,
            kept={name: source.tensors[name] for name in kept},
            card=model_card(Path(directory).name, head, self.config, is_lower),
        )

    def _fields_to_save(self) -> dict[str, Any]:
        """Returns fields of config.json besides those of `BertConfig`."""
        source = self._loaded.source.config
        fields = {key: source[key] for key in KEPT_FIELDS if key in source}
        objectives = self.model.objectives.values()
        if self.labels is None and any(objective.named_classes for objective in objectives):
            names = {i: f"LABEL_{i}" for i in range(self.model.num_labels)}
            fields["id2label"] = names
            fields["label2id"] = {name: i for i, name in names.items()}
            fields.pop("num_labels", None)
        return fields


def _model_inputs(
    config: BertConfig, head: str, input_ids: Any, attention_mask: Any, token_type_ids: Any
) -> dict[str, np.ndarray]:
    """Checks the arrays of a call; returns all three, int32 [B, L] or, with choices, [B, C, L]."""
    ids = _ids("input_ids", input_ids, config, "vocab_size")
    axes = 2
    if ids.ndim == 3 and head == "multiple_choice":
        axes = 3
    if ids.ndim != axes or not ids.shape[-1]:
        raise ValueError(
            f"input_ids has the shape {ids.shape}: give an array [rows, tokens], or [rows, "
            "choices, tokens] for multiple choice, with at least one token."
        )
    if ids.shape[-1] > config.max_length:
        raise ValueError(
            f"The inputs have {ids.shape[-1]} tokens per row, but the model accepts at most "
            f"{config.max_length}: truncate the inputs."
        )
    arrays = {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "attention_mask": np.ones_like(ids),
    }
    if token_type_ids is not None:
        arrays["token_type_ids"] = _ids("token_type_ids", token_type_ids, config, "type_vocab_size")
    if attention_mask is not None:
        arrays["attention_mask"] = _mask(attention_mask)
    for name, array in arrays.items():
        if array.shape != ids.shape:
            raise ValueError(
                f"{name} has the shape {array.shape}, but input_ids has {ids.shape}: give both one "
                "shape."
            )
    return arrays


def _ids(name: str, value: Any, config: BertConfig, size: str) -> np.ndarray:
    array = _array(name, value, "iu")
    # Models without token types, whose size is 0, ignore them, as in transformers.
    end = getattr(config, size) or 1 << 31
    if ((array < 0) | (array >= end)).any():
        raise ValueError(
            f"{name} range from {array.min()} to {array.max()}, but the model has "
            f"{size}={end}: use the tokenizer of the model."
        )
    return array.astype(np.int32)


def _mask(value: Any) -> np.ndarray:
    array = _array("attention_mask", value, "biuf")
    if not np.isin(array, (0, 1)).all():
        raise ValueError(
            f"attention_mask range from {array.min()} to {array.max()}, give 1 for tokens and 0 "
            "for padding."
        )
    return array.astype(np.int32)


def _array(name: str, value: Any, kinds: str) -> np.ndarray:
    """Returns an array whose dtype is one of `kinds`, letters of numpy."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} has rows of different lengths: pad them.") from error
    if array.size and array.dtype.kind not in kinds:
        raise ValueError(f"{name} has the type {array.dtype}: give integers.")
    return array
