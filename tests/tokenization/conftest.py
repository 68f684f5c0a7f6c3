"""Tokenizers of every kind, learnt from a made-up language."""

import io
import json

import pytest
import sentencepiece
import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bertjax.tokenization import (
    BPETokenizer,
    Tokenizer,
    UnigramTokenizer,
    load_tokenizer,
    train_bpe,
    train_modernbert_bpe,
    train_unigram,
    train_wordpiece,
)


@pytest.fixture(scope="session")
def texts(sentences) -> list[str]:
    return [sentence.capitalize() for sentence in sentences]


@pytest.fixture(scope="session")
def kinds(texts, tmp_path_factory) -> dict[str, Tokenizer]:
    """One of each kind, and XLM-RoBERTa's and CamemBERT's numbering of a unigram."""
    unigram = train_unigram(texts, vocab_size=80, model_max_length=64)
    own = unigram.pieces[5:]
    roberta = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    camembert = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
    camembert += [("<unk>NOTUSED", -100.0), ("<s>", 0.0), ("</s>", 0.0)]
    return {
        "wordpiece": train_wordpiece(texts, vocab_size=90, model_max_length=64),
        "bpe": train_bpe(texts, vocab_size=300, model_max_length=64),
        "albert": unigram,
        "xlm-roberta": _as_roberta(unigram, [*roberta, *own], "XLMRobertaTokenizer"),
        "modernbert": train_modernbert_bpe(texts, vocab_size=300, model_max_length=64),
        "camembert": _as_roberta(unigram, [*camembert, *own], "CamembertTokenizer"),
        "gemma": BPETokenizer.wrap(
            train_gemma(texts), BPETokenizer.layout_of_class, model_max_length=64
        ),
        "deberta": load_tokenizer(
            deberta_folder(
                tmp_path_factory.mktemp("deberta"), sentencepiece_of(texts, 80), model_max_length=64
            )
        ),
    }


GEMMAS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
METASPACE = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")


def train_gemma(
    texts, vocab_size=400, byte_fallback=True, pre_tokenizer=METASPACE
) -> tokenizers.Tokenizer:
    """A tokenizer of Gemma's kind as mmBERT has it, with its special and its other added tokens."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = normalizers.Replace(" ", "▁"), METASPACE
    size = vocab_size - len(GEMMAS) - 256 * byte_fallback
    learner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    numbered = [f"<0x{n:02X}>" for n in range(256 * byte_fallback)]
    vocab = {piece: i for i, piece in enumerate([*GEMMAS, *numbered, *pieces])}
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(merge) for merge in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    )
    backend.normalizer, backend.pre_tokenizer = normalizers.Replace(" ", "▁"), pre_tokenizer
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(parts)
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )  # fmt: skip
    backend.add_special_tokens([AddedToken(t, lstrip=t == "<mask>") for t in GEMMAS])
    backend.add_tokens([AddedToken(t, normalized=False) for t in ("▁▁", "\n\n", "<unused0>")])
    return backend


def sentencepiece_of(texts, vocab_size=120, **options) -> bytes:
    """A unigram of SentencePiece with the first ids of DeBERTa."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=written, model_type="unigram",
        vocab_size=vocab_size, hard_vocab_limit=False, minloglevel=2, num_threads=1,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3,
        pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]", **options,
    )  # fmt: skip
    return written.getvalue()


def deberta_folder(folder, model, **config):
    """The directory as microsoft/deberta-v3-base has it: no tokenizer.json, and no class."""
    folder.mkdir(exist_ok=True)
    config = {"do_lower_case": False, "vocab_type": "spm"} | config
    (folder / "config.json").write_text('{"model_type": "deberta-v2"}')
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "spm.model").write_bytes(model)
    return folder


def _as_roberta(unigram, pieces, tokenizer_class):
    return UnigramTokenizer(
        [*pieces, ("<mask>", 0.0)],
        tokenizer_class=tokenizer_class,
        charsmap=unigram.charsmap,
        do_lower_case=False,
        keep_accents=True,
    )
