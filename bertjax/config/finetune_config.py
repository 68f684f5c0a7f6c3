"""The config of a fine-tuning run: `bertjax.finetune`."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from bertjax.base.checked import AtLeast0, Count, Positive, Rate
from bertjax.config.model import Pooling, TaggerConfig
from bertjax.config.training import OptimizerConfig, TrainingConfig

GLUE_TASK = "glue"
# The shortest sequence of a text pair is [CLS] a [SEP] b [SEP].
SHORTEST = 5
LAST = "last"
EmbedLoss = Literal["contrastive", "symmetric", "simcse", "similarity", "cosent", "margin", "kl"]
RerankLoss = Literal["binary", "listwise", "margin", "kl"]


def check_runs(config: "FinetuneConfig") -> None:
    """Checks which of the fields that change the course of a run are combined."""
    default = "" if config.shots is None else " (the default of --shots)"
    if config.folds == 1 or config.folds < 0:
        raise ValueError(f"folds={config.folds}: give at least 2, or 0 for no cross-validation.")
    modes = (
        (
            config.select_by == LAST and f"--select_by {LAST}{default}",
            "patience evals_per_epoch",
            "the dev split is evaluated only once, with the model of the last step",
        ),
        (
            config.sweep and "--sweep",
            "max_steps",
            "all runs would have as many updates, although --sweep compares numbers of epochs",
        ),
        (
            config.sweep and "--sweep",
            "seeds",
            "run with --sweep first, then run the best settings with --seeds",
        ),
        (
            config.shots is not None and f"--shots {config.shots}",
            "sweep",
            "a dev split that is many times as large as the train split would choose the settings",
        ),
        (
            config.shots is not None and f"--shots {config.shots}",
            "doc_stride",
            "a long text has several windows, and a shot would be one of them",
        ),
        (
            config.folds and f"--folds {config.folds}",
            "dev dev_fraction shots seeds sweep calibrate tune_thresholds",
            "the folds take the place of a dev split, and the last model is trained on all rows",
        ),
        (
            config.folds and f"--folds {config.folds}",
            "patience select_by evals_per_epoch",
            "a fold that selects a checkpoint cannot measure it",
        ),
        (
            config.feature_layers and "--feature_layers",
            "layer_decay freeze_embeddings freeze_layers lora_rank",
            "the encoder is frozen as a whole",
        ),
        (
            config.lora_rank and f"--lora_rank {config.lora_rank}",
            "layer_decay freeze_embeddings freeze_layers",
            "the weights of the encoder stay as they are, and its adapters have one learning rate",
        ),
        (
            config.task.lower() == GLUE_TASK and f"--task {GLUE_TASK}",
            "train dev test dev_fraction shots folds feature_layers teacher class_weights "
            "label_smoothing tune_thresholds select_by push_to_hub",
            "it would have to be another one for each task; run the task alone with it, such as "
            "--task mnli, in its folder WORKDIR/mnli",
        ),
    )
    for mode, fields, reason in modes:
        values = {name: getattr(config, name) for name in fields.split() if mode}
        flags = [
            f"--{name}" if value is True else f"--{name} {value}"
            for name, value in values.items()
            if value != getattr(FinetuneConfig, name) and (name, value) != ("select_by", LAST)
        ]
        if flags:
            raise ValueError(
                f"{mode} cannot be combined with {', '.join(flags)}: {reason}. Leave one of them "
                "out."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Config of a fine-tuning run: the task, the model and the training settings.

    Raises:
        ValueError: a value is out of its range, or a setting has no effect with the others.
    """

    GROUPS: ClassVar[dict[str, str]] = {
        "data": "task data_dir tfds_data_dir train dev dev_fraction skip_bad_rows "
        "test retrieval_dir keep_same_id text_column pair_column label_column id_column "
        "choice_columns negative_columns score_columns ignore_columns label_separator keep_labels "
        "max_length "
        "doc_stride max_query_length max_answer_length null_threshold reader_threads",
        "model": "init dropout pooling query_prompt document_prompt normalize feature_layers "
        "feature_join tagger tagger_size",
        "training": "batch_size accumulation_steps num_epochs max_steps loss class_weights "
        "label_smoothing layer_decay average_decay freeze_embeddings freeze_layers lora_rank "
        "lora_alpha lora_targets teacher temperature soft_weight matryoshka false_negative_margin "
        "patience seed seeds sweep folds shots optimizer max_bad_steps skip_spikes rollback_steps",
        "hardware": "dtype attention remat unroll dropout_prng deterministic peak_tflops mesh "
        "distributed",
        "output": "workdir overwrite evals_per_epoch select_by calibrate tune_thresholds "
        "lora_export log_every stall_seconds submission push_to_hub hub_private track "
        "track_project",
    }

    task: str = ""
    """Task to fine-tune on, which is required: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli,
    squad, squad2, swag or conll; glue for all tasks of GLUE, one after the other; or classify,
    regress, tag, qa, choice, embed or rerank for files of your own."""
    init: str = "bert-base-uncased"
    """Model to start from: a model directory, a .bin or .safetensors file, the workdir of a run, a
    TF1 checkpoint, a hub name, or bertjax:tiny, a small model that comes with bertjax."""
    workdir: str = ""
    """Directory for checkpoints, metrics, predictions and the model; empty: runs/TASK. glue has a
    subdirectory for each task."""
    data_dir: str | None = None
    """Folder with the official files of the task; None: the task is downloaded from the Hugging
    Face hub, unless TensorFlow Datasets has prepared it. glue trains on the tasks whose folders
    are there, and says which are missing."""
    tfds_data_dir: str | None = None
    """Data folder of TensorFlow Datasets, which prepares the task there if necessary; None: the
    default folder of TensorFlow Datasets, which is used only if it has the task already."""
    train: str | None = None
    """Tasks on files of your own, which require it: file with the train split, or a folder of
    files: CSV, TSV, JSON, Parquet, SQuAD's JSON or CoNLL's columns, all but Parquet also
    compressed; or a folder that save_to_disk of datasets wrote; also in gs:// and s3:// buckets; or
    a dataset of the Hugging Face Hub, hf:OWNER/NAME@REVISION:CONFIG:SPLIT, of which all but
    OWNER/NAME may be left out; None: that of a benchmark task, which accepts no other."""
    dev: str | None = None
    """Tasks on files of your own: file or folder with the dev split; None: --dev_fraction of
    --train. Benchmark tasks have their own dev split and do not accept it."""
    dev_fraction: Rate | None = None
    """Tasks on files of your own without --dev: fraction of --train that is held out as the dev
    split (classify: the same fraction of every class; tag: of every type of tag; regress: evenly
    over the targets; qa: all questions on a passage together; rerank: all rows of a query); 0:
    train on all of --train, without evaluation; None: 0.1."""
    skip_bad_rows: bool = False
    """Whether rows of your files that cannot be used, such as those with an empty text, are left
    out and listed in WORKDIR/bad_rows.jsonl; if False, such rows end the command with an error;
    lines in CoNLL's format with too few or too many columns always end the command."""
    test: str | None = None
    """Tasks on files of your own: file or folder with the test split, which is predicted after
    training; None: nothing is predicted. Benchmark tasks do not accept it; their own test split,
    which squad and squad2 do not have, is predicted as well."""
    retrieval_dir: str | None = None
    """embed: folder with a collection in BEIR's files (corpus.jsonl, queries.jsonl and
    qrels/dev.tsv), which each evaluation on the dev split searches; None: no such search."""
    keep_same_id: bool = False
    """Whether --retrieval_dir ranks the passage that has the id of the query; off, as in BEIR,
    where such a passage is the query itself."""
    text_column: str | None = None
    """Column of the text, of the first text of a pair or, in tagging, of the words or the running
    text (in files with a word per line, its number, from 1); qa, whose columns are named as in
    SQuAD, and benchmark tasks do not accept it; None: the column is guessed from the names and
    positions of the columns, and the guess is printed."""
    pair_column: str | None = None
    """Column of the second text of a pair (embed: of the positive; rerank: of the passage or the
    positive), or in multiple choice, of a text that is put before every choice; None: the column is
    guessed from the column names, or if --text_column is given, there is no second text."""
    label_column: str | None = None
    """Column of the label, in tagging, of the tags or entities (in files with a word per line, its
    number, from 1; -1: the last), or for embed, of the score of a pair; rerank: of labels from 0 to
    1; None: the column is guessed from the names and positions of the columns."""
    id_column: str | None = None
    """Column of the example id, which is written to the predictions; None: the column is guessed
    from the column names; if no column is named like an id, the row index is the id."""
    choice_columns: tuple[str, ...] = ()
    """Multiple choice: columns of the choices, or the one column of JSON or Parquet that holds a
    list of choices; empty: the columns are guessed from the column names."""
    negative_columns: tuple[str, ...] = ()
    """embed and rerank: columns of the hard negatives, texts that are like the positive but wrong,
    or the one column of JSON or Parquet that holds a list of them; empty: the columns are guessed
    from the column names."""
    score_columns: tuple[str, ...] = ()
    """embed and rerank: columns of a teacher's scores of the positive and of each hard negative, in
    this order, or the one column of JSON or Parquet that holds a list of them; empty: the list in a
    column named scores, if there are hard negatives."""
    ignore_columns: tuple[str, ...] = ()
    """Tasks on files of your own: columns that are not meant to be used. A column that is not read
    and could change the meaning, such as another label, a split or a weight, stops the command
    unless it is named here; empty: none."""
    label_separator: str | None = None
    """String that separates the labels of an example with several labels; None: one label per
    example, or a list of labels in JSON, JSON lines or Parquet."""
    keep_labels: tuple[str, ...] = ()
    """Classification: labels that are classes, although they usually mark a missing one: -, ?, _,
    NA, N/A, None, null, nan, -1 beside 0, and -100; empty: rows with such a label are refused."""
    max_length: Annotated[int, f"[{SHORTEST}, inf)"] | None = None
    """Maximum number of tokens per sequence; None: the default of the task (128; question
    answering: 384; rerank: 256, of query and passage)."""
    doc_stride: int | None = None
    """Maximum number of tokens between the starts of two consecutive windows of a text of more than
    max_length tokens, as in Google's BERT (in transformers, it is the overlap of the windows);
    classification and regression: every window is trained with the label, and predictions average
    the windows; None: 128 in question answering, half of a window in tagging; in classification and
    regression, long texts are truncated; multiple choice does not accept it."""
    max_query_length: Count = 64
    """Question answering: maximum number of tokens of a question; longer questions are
    truncated."""
    max_answer_length: Count = 30
    """Question answering: maximum number of tokens of a predicted answer."""
    null_threshold: float = 0.0
    """Question answering with unanswerable questions (squad2, qa): "no answer" is predicted if its
    logit exceeds the logit of the best answer by more than this threshold."""
    teacher: str | None = None
    """Teacher that was fine-tuned on the same task, for distillation: a model directory, the
    workdir of a finished run or a hub name; None: the student learns from the labels only."""
    temperature: Positive | None = None
    """Distillation: temperature by which the logits of teacher and student are divided; None: 2.
    embed: temperature by which the cosines are divided in the loss, the inverse of the scale of
    sentence-transformers; --loss kl of embed and rerank: by which scores are divided; similarity,
    margin, binary and listwise have none; None: 0.05 (kl: 1)."""
    soft_weight: Annotated[float, "(0, 1]"] | None = None
    """Distillation: loss weight of the teacher's predictions; the loss weight of the labels is 1
    minus soft_weight; None: 0.5."""
    loss: EmbedLoss | RerankLoss | None = None
    """embed: contrastive is the cross entropy with which an anchor finds its positive in the batch;
    symmetric adds that with which a positive finds its anchor; simcse is contrastive with a file of
    single texts, each of which is encoded with two dropout masks; similarity is the squared error
    of the cosines of pairs with scores, and cosent compares their order alone; margin and kl learn
    from a teacher's scores as below, with dot products; None: contrastive, or similarity of pairs
    with scores. rerank: binary is the binary cross entropy of each passage; listwise the cross
    entropy of the positive among the passages of a query; margin and kl learn from a teacher's
    scores (margin: the squared error of the differences between the positive and each negative; kl:
    the divergence of the softmaxes over the passages of a query); None: listwise if there are
    negatives, else binary."""
    pooling: Pooling | None = None
    """embed: the embedding is the mean of the hidden states of all tokens, the hidden state of
    [CLS] (cls), or another pooling by its name in sentence-transformers; None: as the files of
    sentence-transformers in --init say, with all of their modules and prompts, or mean."""
    query_prompt: str | None = None
    """embed: text before the anchor, or the name of a prompt in the files of sentence-transformers
    in --init; saved with the model as the prompt "query"; None: the prompt "query" in --init, or
    if there is none, the default prompt there."""
    document_prompt: str | None = None
    """embed: the same before all texts but the anchor, saved and looked up as "document"; None:
    likewise."""
    normalize: bool | None = None
    """embed: whether the embeddings of the model have length 1; the loss, which compares cosines,
    is the same; None: as the files of sentence-transformers in --init say, or False if there are
    none or --pooling is given."""
    matryoshka: tuple[int, ...] = ()
    """embed: sizes to which the embeddings can be cut afterwards (Kusupati et al. 2022), such as
    256 128 64: the loss is the sum of the losses of the whole embeddings and of their first
    numbers; empty: the whole embeddings alone."""
    false_negative_margin: float | None = None
    """embed, the losses contrastive, symmetric and simcse: texts of the batch whose cosine with an
    anchor is above that of its positive minus this margin are no negatives (Solatorio 2024, with
    the model as its own guide); None: all other texts are negatives."""
    feature_layers: tuple[int, ...] = ()
    """Tagging: layers whose hidden states, with the encoder frozen, are the input of a tagger (0 =
    embeddings, -1 = last layer; best in Devlin et al. 2018: -4 -3 -2 -1); train the tagger with a
    learning rate of about 1e-3; empty: the encoder is fine-tuned."""
    feature_join: Literal["concat", "sum"] = "concat"
    """With feature_layers: whether the hidden states of several feature layers are concatenated or
    summed."""
    tagger: Literal["linear", "bilstm"] = "linear"
    """With feature_layers: kind of tagger on the hidden states: linear is a linear layer; bilstm is
    a two-layer BiLSTM and a linear layer, as in Devlin et al. 2018."""
    tagger_size: Count = 768
    """With feature_layers: number of units of the bilstm tagger in each direction."""
    batch_size: Count = 32
    """Number of examples (of long texts: windows) per update, over all devices."""
    accumulation_steps: Count = 1
    """Number of microbatches per update (gradient accumulation); more microbatches need less memory
    and give the same gradient (with dropout_prng threefry2x32). embed: also with negatives from the
    whole batch, by cached gradients, for which the encoder is applied twice."""
    num_epochs: Positive = 3.0
    """Number of passes over the train split."""
    max_steps: Count | None = None
    """Number of updates of the training and of the learning-rate schedule, whatever num_epochs is;
    None: computed from num_epochs."""
    optimizer: OptimizerConfig = OptimizerConfig(
        recipe="adamw",
        learning_rate=5e-5,
        schedule="hf",
        warmup_steps=0,
        warmup_proportion=0.1,
    )
    """Optimizer and learning-rate schedule."""
    class_weights: tuple[float, ...] | Literal["balanced"] | None = None
    """Loss weight of each class, in the order of the class ids (id2label in config.json). For files
    of your own, the ids are sorted: numbers by value, other labels alphabetically, tags as O, B-X,
    I-X, B-Y, I-Y and so on; a benchmark task has an order of its own, such as entailment, neutral,
    contradiction for mnli. balanced: weights inversely proportional to class frequency; None: all
    weights are 1. With several labels per example, they are pos_weight in PyTorch; balanced is the
    number of examples without the label per example with it."""
    label_smoothing: Rate = 0.0
    """Tasks with one class per example or word, and choice: share of each label that is spread
    evenly over all classes in the training loss, as in PyTorch's CrossEntropyLoss; the loss of
    evaluations has no smoothing."""
    layer_decay: Annotated[float, "(0, 1]"] = 1.0
    """Factor of the learning rate from each layer to the one below, as in BEiT (Bao et al. 2022):
    of N layers, layer i from 0 has the factor layer_decay^(N - i), the embeddings
    layer_decay^(N + 1), pooler and head 1."""
    average_decay: Rate = 0.0
    """Decay rate of an exponential moving average of the trained parameters, with corrected bias,
    which is evaluated, selected and exported in place of them, such as 0.999; 0: no average."""
    freeze_embeddings: bool = False
    """Do not train the embeddings, which then have no optimizer state."""
    freeze_layers: AtLeast0 = 0
    """Number of the lowest encoder layers that are not trained and have no optimizer state."""
    lora_rank: AtLeast0 = 0
    """Rank of LoRA's adapters (Hu et al. 2021), which are trained, with pooler and head, in place
    of the encoder; learning rates of about ten times the usual ones are common; 0: no LoRA."""
    lora_alpha: Positive | None = None
    """LoRA: numerator of the factor lora_alpha / lora_rank of the adapters; None: lora_rank."""
    lora_targets: tuple[str, ...] = ()
    """LoRA: linear layers of the encoder that get an adapter, by the ends of their names in
    transformers, as in PEFT's target_modules, such as query value, or Wqkv of ModernBERT; empty:
    all."""
    lora_export: Literal["merged", "adapter"] = "merged"
    """LoRA: merged writes a usual model; adapter also model/adapter, which PEFT loads."""
    evals_per_epoch: Count = 1
    """Number of evaluations on the dev split per epoch; each evaluation saves a checkpoint, and the
    best checkpoint becomes the final model."""
    select_by: str | None = None
    """Metric on the dev split by which the best checkpoint is selected. classify: accuracy,
    macro_f1, weighted_f1, loss (several labels per example: micro_f1, macro_f1, subset_accuracy);
    regress: pearson, spearman, pearson_spearman, mae, rmse, r2; embed: spearman, pearson,
    pearson_spearman (pairs without scores: mrr, recall_at_1, recall_at_10, triplet_accuracy; with
    --retrieval_dir: ndcg_at_10, mrr_at_10, recall_at_100);
    rerank: ndcg_at_10, mrr_at_10, map; tag: f1, precision, recall, accuracy (tags that mark no
    entities: accuracy); qa: f1, exact_match (with unanswerable questions: f1, exact); choice:
    accuracy; benchmark tasks: the names in scores.json of a finished run without the split, such as
    accuracy for mnli; last: the dev split selects nothing, but is evaluated once, with the model of
    the last step; None: the main metric of the task."""
    calibrate: bool = False
    """Tasks with one class per example: fit a temperature on the dev split, by which predict
    divides the logits to compute probabilities; the predicted classes do not change. The expected
    calibration error before and after is measured on examples that the temperature was not fitted
    on, and written to calibration.json."""
    tune_thresholds: bool = False
    """Tasks with several labels per example: choose on the dev split, for each label, the
    probability from which it is predicted, so that its F1 is the highest; task.json keeps the
    thresholds. Their F1 is measured on examples that they were not chosen on."""
    patience: AtLeast0 = 0
    """Number of consecutive evaluations in which the metric of --select_by does not improve on its
    best value, after which training stops early; 0: no early stopping."""
    seeds: Count = 1
    """Number of runs, with seed, seed + 1, ...; their mean and standard deviation are reported, and
    the model of the run that is best on the dev split is exported; not with --sweep."""
    sweep: bool = False
    """Train 18 times, on the grid of Devlin et al. 2018 (batches of 16 and 32, learning rates 5e-5,
    3e-5 and 2e-5, 2 to 4 epochs), which replaces batch_size, learning_rate and num_epochs; the
    model of the run that is best on the dev split is exported."""
    folds: int = 0
    """Tasks on files of your own: number of folds of a cross-validation, in which each fold is
    predicted by a model trained on the others; the mean and the standard deviation over the folds
    and all predictions are written, and the exported model is trained on all of --train; 0: no
    cross-validation."""
    shots: Count | None = None
    """Tasks with one class per example: number of training examples per class, drawn at random with
    seed; with --seeds, each run has a draw of its own, and the model of the first one is exported;
    the defaults of the other settings are then in configs/finetune/few_shot.py, unless
    --config is given; None: all examples."""
    submission: str | None = None
    """GLUE: zip file for the GLUE server, to which the task's test predictions are added; None:
    submission.zip in the folder of the predictions."""
    log_every: Count = 50
    """Number of steps between log lines of metrics."""
    reader_threads: Count = 2
    """Number of threads that read and batch examples ahead of the training."""

    def __post_init__(self):
        super().__post_init__()
        if self.seed + self.seeds > 2**32:
            raise ValueError(
                f"seed={self.seed} with seeds={self.seeds}: the last seed, seed + seeds - 1, "
                "must be below 2^32."
            )
        if self.dev is not None:
            self.refuse_idle(
                "dev_fraction",
                f"because --dev {self.dev} is the dev split: leave one of them out.",
            )
        if self.loss == "simcse":
            self.refuse_idle(
                "dev_fraction folds",
                "on --loss simcse, as single texts cannot be evaluated: give --dev with pairs.",
            )
        if self.retrieval_dir is None:
            self.refuse_idle("keep_same_id", "without --retrieval_dir: add it.")
        by_scores = self.task.lower() in ("embed", "rerank")
        if by_scores and self.teacher is not None:
            raise ValueError(
                f"--teacher {self.teacher}: {self.task} learns from --score_columns; leave it out."
            )
        if self.teacher is None:
            self.refuse_idle(
                "soft_weight" if by_scores else "temperature soft_weight",
                "without a teacher: set --teacher, or leave out these settings.",
            )
        if not self.feature_layers:
            self.refuse_idle(
                "feature_join tagger tagger_size",
                "without a tagger on a frozen encoder: add --feature_layers, for example "
                "--feature_layers -4 -3 -2 -1.",
            )
        if not self.lora_rank:
            self.refuse_idle(
                "lora_alpha lora_targets lora_export", "without LoRA: add --lora_rank 8."
            )
        if self.tagger == "linear":
            self.refuse_idle(
                "tagger_size", "on a linear tagger, which has no hidden units; add --tagger bilstm."
            )
        check_runs(self)

    @property
    def feature_tagger(self) -> TaggerConfig | None:
        """Config of the tagger to train on the frozen encoder; None: the encoder is fine-tuned."""
        if not self.feature_layers:
            return None
        return TaggerConfig(
            layers=self.feature_layers,
            join=self.feature_join,
            kind=self.tagger,
            size=self.tagger_size,
        )
