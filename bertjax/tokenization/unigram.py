"""The SentencePiece unigram tokenizer of ALBERT, XLM-RoBERTa, CamemBERT and DeBERTa-v2.

A text is split into the most probable sequence of pieces (Kudo 2018). Token ids and special tokens
equal transformers'; for XLM-RoBERTa and CamemBERT, they differ from the SentencePiece file. The
normalization of DeBERTa's file is not followed: transformers 5 composes characters (NFC) instead.
"""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any
from unicodedata import category, is_normalized

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from bertjax.base import progress
from bertjax.base.files import brief
from bertjax.tokenization.base import (
    METASPACE,
    SPECIAL_TOKENS,
    VISIBLE_SPACE,
    Layout,
    Report,
    SpecialTokens,
    Tokenizer,
    build_backend,
    count_words,
    explaining_the_library,
)
from bertjax.tokenization.bpe import ROBERTA, ROBERTA_ORDER
from bertjax.tokenization.letters import strip_by_default

ALBERT = Layout(special_tokens=SpecialTokens("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"))
# The layout of each class of transformers.
DEBERTA = "DebertaV2Tokenizer"
LAYOUTS = {
    "AlbertTokenizer": ALBERT,
    "XLMRobertaTokenizer": ROBERTA,
    "CamembertTokenizer": ROBERTA,
    DEBERTA: Layout(special_tokens=SPECIAL_TOKENS),
}
Pieces = list[tuple[str, float]]
"""Pairs (piece, log probability), in the order of ids."""
# The number of threads is fixed, because the rounding of sums in training depends on it.
_TRAINING_THREADS = 4
# Maximum length of a word in bytes; the library skips longer words.
_LONGEST_WORD = 1 << 20
# Values of `model_type` of a SentencePiece file, and of `type` of its pieces.
_UNIGRAM = 1
_CONTROL = 3
_USER_DEFINED = 4
# The first fields, in order of their numbers, of the messages in sentencepiece_model.proto.
_MESSAGES = {
    "SentencePiece": "piece=STRING score=FLOAT type=INT32",
    "TrainerSpec": "input=STRING model_prefix=STRING model_type=INT32 vocab_size=INT32",
    "NormalizerSpec": "name=STRING precompiled_charsmap=BYTES",
    "ModelProto": "pieces=SentencePiece trainer_spec=TrainerSpec normalizer_spec=NormalizerSpec",
}


class UnigramTokenizer(Tokenizer):
    """The unigram tokenizer of ALBERT, XLM-RoBERTa, CamemBERT or DeBERTa-v2.

    Pairs of texts are encoded as `[CLS] A [SEP] B [SEP]` for ALBERT and DeBERTa, and as
    `<s> A </s></s> B </s>` for XLM-RoBERTa and CamemBERT.

    Args:
        pieces: the (piece, log probability) pairs, in the order of their ids.
        tokenizer_class: one of `LAYOUTS`.
        charsmap: the precompiled normalization table of a SentencePiece file; b"": no table.
        do_lower_case: whether to lower-case the text; must be False except for ALBERT and DeBERTa.
        keep_accents: whether to keep the marks of all scripts, such as accents; must be True except
            for ALBERT.
        split_by_punct: whether punctuation marks are words of their own; must be False except for
            DeBERTa.
        add_prefix_space: whether all words after a special token or a punctuation mark are encoded
            as if a space preceded them; must be True except for DeBERTa.
        added: pieces of DeBERTa that are found in a text before it is split.
        model_file: the content of the SentencePiece file that `save` writes; None: none is written.

    Raises ValueError as `Tokenizer`, for pieces without a finite score, a damaged `charsmap`, or
    settings that the class does not admit.
    """

    model_file: bytes | None = None

    def __init__(
        self,
        pieces: Pieces,
        *,
        tokenizer_class: str,
        charsmap: bytes,
        do_lower_case: bool = True,
        keep_accents: bool = False,
        split_by_punct: bool = False,
        add_prefix_space: bool = True,
        added: Sequence[AddedToken] = (),
        model_file: bytes | None = None,
        **options: Any,
    ):
        layout = LAYOUTS[tokenizer_class]
        if layout is ROBERTA and (do_lower_case or not keep_accents):
            raise ValueError(
                f"do_lower_case={do_lower_case}, keep_accents={keep_accents}: {tokenizer_class} "
                "keeps capital letters and accents; set do_lower_case=False and keep_accents=True."
            )
        check_pieces(pieces)
        check_charsmap(charsmap)
        self.model_file = model_file
        normalizer = []
        if layout is ALBERT:
            normalizer = steps_of_albert(do_lower_case, keep_accents)
        metaspace: dict[str, Any] = {"replacement": METASPACE, "prepend_scheme": "always"}
        words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
        if tokenizer_class == DEBERTA:
            normalizer, words = steps_of_deberta(do_lower_case, split_by_punct, add_prefix_space)
        names = [piece for piece, _ in pieces]
        unk = layout.special_tokens.unk
        with explaining_the_library():
            if charsmap:
                normalizer.append(normalizers.Precompiled(charsmap))
            backend = build_backend(
                models.Unigram(list(pieces), names.index(unk) if unk in names else None, False),
                layout.special_tokens,
                normalizer=normalizers.Sequence(normalizer),
                pre_tokenizer=pre_tokenizers.Sequence(words),
                decoder=decoders.Metaspace(**metaspace),
            )
            if tokenizer_class == DEBERTA:  # whose mask is no piece
                mask = AddedToken(layout.special_tokens.mask, normalized=False, special=True)
                backend.add_tokens([*added, mask])
        super().__init__(backend, layout, tokenizer_class=tokenizer_class, **options)

    @property
    def pieces(self) -> Pieces:
        """The (piece, log probability) pairs of the model, in the order of their ids."""
        return self._fields["vocab"]

    @property
    def charsmap(self) -> bytes:
        """The precompiled normalization table of a SentencePiece file; b"": no table."""
        tables = (step.get("precompiled_charsmap") for step in self._normalizers)
        return base64.b64decode(next(filter(None, tables), ""))

    @property
    def keep_accents(self) -> bool:
        """Whether the marks of all scripts, such as accents, are kept."""
        return not any(step["type"] == "StripAccents" for step in self._normalizers)

    @property
    def split_by_punct(self) -> bool:
        """Whether punctuation marks are words of their own."""
        return any(step["type"] == "Punctuation" for step in self._pre_tokenizers)

    @property
    def add_prefix_space(self) -> bool:
        """Whether all words are encoded as if a space preceded them, not only a text's first."""
        return all(step.get("prepend_scheme") != "first" for step in self._pre_tokenizers)

    def _text_model(self) -> models.Model:
        # The special tokens are renamed and not removed, because the score of unknown characters
        # is computed from the scores of all pieces.
        return self._model(vocab=[(self._hidden(piece), score) for piece, score in self.pieces])

    def _tiny(self) -> Tokenizer:
        is_albert = self.tokenizer_class == "AlbertTokenizer"
        layout = LAYOUTS[self.tokenizer_class]
        special = ROBERTA_ORDER if layout is ROBERTA else layout.special_tokens
        if self.tokenizer_class == DEBERTA:  # which finds the unknown token wherever it is
            special = tuple(dict.fromkeys([*self.tokens[: self.unk_token_id + 1], *special]))
        pieces = [(piece, 0.0) for piece in special]
        return UnigramTokenizer(
            pieces,
            tokenizer_class=self.tokenizer_class,
            charsmap=self.charsmap,
            do_lower_case=special is not ROBERTA_ORDER and self.do_lower_case,
            keep_accents=not is_albert or self.keep_accents,
            split_by_punct=self.tokenizer_class == DEBERTA and self.split_by_punct,
            add_prefix_space=self.add_prefix_space,
        )

    @property
    def word_starts(self) -> np.ndarray:
        """Whether each piece of the vocabulary starts a word, bool [vocab_size].

        Those that begin with a letter, mark or digit do not; punctuation marks are separate words,
        as in google-research/albert.
        """
        special = set(self.layout.special_tokens)
        return np.array([t in special or category(t[0])[0] not in "LMN" for t in self.tokens])

    def written(self, token: str) -> bytes:
        return token.replace(METASPACE, " ").encode()

    def readable(self, token: str) -> str:
        return token.replace(METASPACE, VISIBLE_SPACE)

    def _usual_identity(self) -> Any:
        charsmap = base64.b64encode(self.charsmap).decode()
        settings = [self.tokenizer_class, self.do_lower_case, self.keep_accents]
        if self.tokenizer_class == DEBERTA:
            settings += [self.split_by_punct, self.add_prefix_space]
        return ["unigram", self.pieces, charsmap, settings]

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if self.tokenizer_class == DEBERTA:
            settings["split_by_punct"] = self.split_by_punct
            settings["add_prefix_space"] = self.add_prefix_space
        else:
            settings["keep_accents"] = self.keep_accents
        special = self.layout.special_tokens
        return {**settings, "bos_token": special.cls, "eos_token": special.sep}

    def _vocabulary_files(self) -> dict[str, bytes]:
        names = {"AlbertTokenizer": "spiece.model", DEBERTA: "spm.model"}
        name = names.get(str(self.tokenizer_class), "sentencepiece.bpe.model")
        if self.model_file is None:
            return {}
        return {name: self.model_file}


def steps_of_albert(do_lower_case: bool, keep_accents: bool) -> list[Any]:
    """Returns the normalizers of ALBERT that precede the one of the SentencePiece file."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    return steps


def steps_of_deberta(
    do_lower_case: bool, split_by_punct: bool, add_prefix_space: bool
) -> tuple[list[Any], list[Any]]:
    """Returns the normalizers and the pre-tokenizers of DeBERTa."""
    steps: list[Any] = []
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    steps += [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC()]
    steps.append(normalizers.Strip(left=False, right=True))
    words: list[Any] = []
    if split_by_punct:
        words.append(pre_tokenizers.Punctuation("isolated"))
    scheme = "always" if add_prefix_space else "first"
    words.append(pre_tokenizers.Metaspace(METASPACE, scheme))
    return steps, words


def check_pieces(pieces: Pieces) -> None:
    """Raises ValueError if a piece is empty or has no finite score."""
    for piece, score in pieces:
        if not piece or not math.isfinite(score):
            raise ValueError(
                f"The vocabulary has the piece {brief(piece)!r} of score {score}: pieces need a "
                "character and a finite score; download it again."
            )


def check_charsmap(charsmap: bytes) -> None:
    """Raises ValueError if a precompiled normalization table has another size than it says.

    The `tokenizers` library would allocate as much memory as it says, or end the process.
    """
    size = int.from_bytes(charsmap[:4], "little")
    found = len(charsmap) - 4
    if charsmap and (found < 0 or size % 4 or size > found):
        raise ValueError(
            f"The table precompiled_charsmap is damaged: by its first 4 bytes, its trie has "
            f"{size:,} bytes, which must be a multiple of 4 and at most {max(found, 0):,}, the "
            "number of bytes that follow. Download the tokenizer again."
        )


@cache
def _model_proto() -> Any:
    """Returns the message class of SentencePiece files, with the fields that are used here.

    The class that sentencepiece ships refuses every protobuf older than the one it was made with
    (7.36 for sentencepiece 0.2.3), also one that another package needs. Other fields are kept.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="spiece.proto")
    for message, fields in _MESSAGES.items():
        added = file.message_type.add(name=message).field
        for number, (name, kind) in enumerate((field.split("=") for field in fields.split()), 1):
            of = {"type_name": kind} if kind in _MESSAGES else {"type": f"TYPE_{kind}"}
            label = "LABEL_OPTIONAL"
            if name in ("input", "pieces"):
                label = "LABEL_REPEATED"
            added.add(name=name, number=number, label=label, **of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ModelProto"))


def read_sentencepiece(
    content: bytes, file: str, tokenizer_class: str
) -> tuple[Pieces, bytes, list[AddedToken]]:
    """Reads the content of a SentencePiece file; `file` names its source in error messages.

    Returns the pieces in the order of the ids in transformers, the precompiled normalization table,
    and the control and user-defined pieces. Raises ValueError if it is no unigram model.
    """
    from google.protobuf.message import DecodeError

    model = _model_proto()()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(
            f"{file} is not a SentencePiece model ({brief(error)}): download it again."
        ) from error
    model_type = model.trainer_spec.model_type or _UNIGRAM
    if not model.pieces or model_type != _UNIGRAM:
        raise ValueError(
            f"{file} has {len(model.pieces)} pieces and model_type={model_type}: only unigram "
            "models (model_type=1) are supported."
        )
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    added = []
    for piece in model.pieces:
        if piece.type in (_CONTROL, _USER_DEFINED):
            is_special = piece.type == _CONTROL
            added.append(AddedToken(piece.piece, normalized=False, special=is_special))
    table = model.normalizer_spec.precompiled_charsmap
    return _in_order_of_ids(pieces, tokenizer_class), table, added


def _in_order_of_ids(pieces: Pieces, tokenizer_class: str) -> Pieces:
    """Returns the (piece, score) pairs of a SentencePiece file in the order of transformers' ids.

    ALBERT and DeBERTa keep the order of the file. For XLM-RoBERTa and CamemBERT, the ids are those
    of fairseq, which has special tokens that the file lacks, such as <mask>; these are inserted.
    """
    if tokenizer_class == "AlbertTokenizer":
        return [(piece, _without_number_comma(piece, score)) for piece, score in pieces]
    if tokenizer_class == DEBERTA:
        return pieces
    if tokenizer_class == "XLMRobertaTokenizer":
        first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        return [*first, *pieces[3:], ("<mask>", 0.0)]
    names = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0)]
    return [*names, ("<unk>NOTUSED", -100.0), *pieces[1:], ("<mask>", 0.0)]


def _without_number_comma(piece: str, score: float) -> float:
    """Lowers the score of "9," by 100, so that it is split, as in google-research/albert."""
    if piece.endswith(",") and piece[-2:-1].isdigit():
        return score - 100
    return score


def with_pieces(tokenizer: UnigramTokenizer, pieces: Pieces) -> UnigramTokenizer:
    """Returns a tokenizer with the new (piece, log probability) pairs `pieces` at the end.

    The SentencePiece file gets the pieces as well. It is left out for XLM-RoBERTa and CamemBERT,
    because transformers would give the id of their mask token to a piece at the end of the file.
    """
    # Added tokens become pieces, too, so that the new ones follow them.
    least = min(score for _, score in tokenizer.pieces)
    added = [(token, least) for token in tokenizer.tokens[len(tokenizer.pieces) :]]
    extended = tokenizer.with_model(vocab=[*tokenizer.pieces, *added, *pieces])
    extended.model_file = None
    if tokenizer.model_file is not None and tokenizer.layout.second_type:
        model = _model_proto()()
        model.ParseFromString(tokenizer.model_file)
        for piece, score in (*added, *pieces):
            model.pieces.add(piece=piece, score=score)
        model.trainer_spec.vocab_size = len(model.pieces)
        extended.model_file = model.SerializeToString()
    return extended


def train_unigram(
    texts: Iterable[str],
    *,
    vocab_size: int,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    model_max_length: int = 512,
    report: Report | None = None,
) -> UnigramTokenizer:
    """Learns an ALBERT unigram vocabulary of at most `vocab_size` pieces from an iterable of texts.

    The vocabulary does not depend on the order of the texts, unless `count_words` drops rare words
    to bound memory; `report` is then called with a message. Texts are lower-cased if
    `do_lower_case`, and lose accents and other marks if `strip_accents`, here and later. If
    `strip_accents` is None, they do so with `do_lower_case`, unless over 1 % of the letters have
    marks outside of Latin, Greek and Cyrillic; `report` is then called, too. `model_max_length` is
    only stored in the tokenizer. Raises ValueError if the texts are empty, or contain more distinct
    characters than `vocab_size` allows.
    """
    import sentencepiece  # imported here, because only training needs it

    def words_of(normalizer: normalizers.Normalizer, text: str) -> list[str]:
        return normalizer.normalize_str(text).split()

    # The trainer gets words with their counts, because it would keep whole texts in memory.
    stripping = normalizers.Sequence(steps_of_albert(do_lower_case, keep_accents=False))
    normalizer = stripping
    if not strip_accents:
        normalizer = normalizers.Sequence(steps_of_albert(do_lower_case, keep_accents=True))
    words = count_words(map(partial(words_of, normalizer), texts), report)
    if strip_accents is None and do_lower_case:
        strip_accents, words = strip_by_default(words, partial(words_of, stripping), report)
    written = io.BytesIO()
    special = ALBERT.special_tokens
    try:
        with progress.progress("learning the vocabulary"):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{word}\t{words[word]}" for word in sorted(words)),
                input_format="tsv",
                model_writer=written,
                model_type="unigram",
                vocab_size=vocab_size,
                hard_vocab_limit=False,
                character_coverage=0.99995,
                max_sentence_length=_LONGEST_WORD,
                num_threads=_TRAINING_THREADS,
                pad_id=0,
                unk_id=1,
                bos_id=-1,
                eos_id=-1,
                pad_piece=special.pad,
                unk_piece=special.unk,
                control_symbols=[special.cls, special.sep, special.mask],
                minloglevel=2,
            )
    except RuntimeError as error:
        raise ValueError(
            f"No unigram vocabulary of {vocab_size} entries can be learned from these texts "
            f"({error}): check that --input names files with text."
        ) from error
    name = "AlbertTokenizer"
    model_file = written.getvalue()
    pieces, charsmap, _ = read_sentencepiece(model_file, "The trained model", name)
    tokenizer = UnigramTokenizer(
        pieces,
        tokenizer_class=name,
        charsmap=charsmap,
        do_lower_case=do_lower_case,
        keep_accents=not strip_accents,
        model_file=model_file,
        model_max_length=model_max_length,
    )
    if strip_accents and not all(is_normalized("NFC", word) for word in words):
        table = normalizers.Precompiled(charsmap)  # composes Hangul in the trainer alone
        steps = [stripping, normalizers.NFC(), table]
        tokenizer = tokenizer.with_parts(normalizer=normalizers.Sequence(steps))
    return tokenizer
