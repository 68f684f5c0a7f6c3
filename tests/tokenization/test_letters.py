"""Case, marks and composition of letters, and text without spaces, in many scripts."""

import unicodedata

import pytest

from bertjax import train_tokenizer
from bertjax.tokenization import load_tokenizer, train_unigram, train_wordpiece
from bertjax.tokenization.letters import about_letters
from tests.cases import WEEKLY

# Scripts in which marks are vowels or make other letters, and three in which BERT strips them.
MARKED = {
    "Hindi": "हिन्दी में लिखा है",
    "Thai": "ตีน้ำ กินข้าว ที่บ้าน",
    "Khmer": "ខ្ញុំ ទៅ ផ្ទះ",
    "Japanese": "がぎぐ と かきく",
    "Arabic": "بِسْمِ اللَّهِ أكل",
    "Tamil": "தமிழ் மொழி",
    "Korean": "한국어 문장 하나",
}
STRIPPED = {
    "German": ("Größe über Äpfel", "große uber apfel"),
    "Vietnamese": ("Tiếng Việt có dấu", "tieng viet co dau"),
    "Greek": ("Ελληνική γλώσσα", "ελληνικη γλωσσα"),
    "Russian": ("Ёлка мой край", "елка мои краи"),
}
TRAIN = {"wordpiece": train_wordpiece, "unigram": train_unigram}
KINDS = ["wordpiece", "unigram", "bpe", "modernbert"]
ALL = [*MARKED.values(), *(text for text, _ in STRIPPED.values())]
# Korean syllables fall apart in Unicode's decomposed form, too.
DECOMPOSED = {**{name: text for name, (text, _) in STRIPPED.items()}, "Korean": "한국어 문장 하나"}
DNA, PROTEIN = "ACGTTAGCnnacgt" * 20, "MKTAYIAKQRQISFVKSHFSRQ" * 12


def trained(tmp_path, texts, *flags):
    (tmp_path / "a.txt").write_text("\n".join(texts * 9), encoding="utf-8")
    output = tmp_path / f"tokenizer{len(list(tmp_path.iterdir()))}"
    flags = (f"--input={tmp_path / 'a.txt'}", f"--output={output}", *flags)
    assert train_tokenizer.main(["--text_format=lines", *flags]) == 0
    return load_tokenizer(output)


@pytest.mark.parametrize("kind", TRAIN)
@pytest.mark.parametrize("script", MARKED)
def test_marks_that_are_not_accents_are_kept_by_default(kind, script):
    said, text = [], MARKED[script]
    tokenizer = TRAIN[kind]([text] * 9, vocab_size=80, report=said.append)
    # SentencePiece normalises to NFKC.
    form = "NFKC" if kind == "unigram" else "NFC"
    assert tokenizer.decode(tokenizer.encode([text])[0]) == unicodedata.normalize(form, text)
    assert len(said) == 1 and "% of the letters have marks outside of Latin, Greek and" in said[0]
    stripped = TRAIN[kind]([text] * 9, vocab_size=80, strip_accents=True)
    changes = (script, kind) != ("Korean", "unigram")  # where syllables are composed again
    assert (stripped.normalise(text).strip() != text) == changes


@pytest.mark.parametrize("kind", TRAIN)
@pytest.mark.parametrize("script", STRIPPED)
def test_accents_are_stripped_as_by_bert(kind, script):
    text, plain = STRIPPED[script]
    said = []
    tokenizer = TRAIN[kind]([text] * 9, vocab_size=80, report=said.append)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == plain and not said
    # Words are counted with their marks, and get the counts of stripped ones.
    same = TRAIN[kind]([text, *[plain] * 8], vocab_size=80, strip_accents=True)
    assert tokenizer.tokens == same.tokens


@pytest.mark.parametrize("lowers", [True, False])
@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_one_flag_strips_the_marks_of_all_kinds(tmp_path, kind, strips, lowers):
    flags = [
        "--kind",
        kind,
        "--vocab_size=300",
        "--strip_accents" if strips else "--no_strip_accents",
    ]
    if not lowers:
        flags.append("--no_do_lower_case")
    tokenizer = trained(tmp_path, ALL, *flags)
    for text in ALL:
        (ids,) = tokenizer.encode([text])
        expected = text.lower() if lowers and kind in TRAIN else text
        if strips:
            kept = unicodedata.normalize("NFKD" if kind == "unigram" else "NFD", expected)
            kept = [c for c in kept if unicodedata.category(c) != "Mn"]
            if kind == "unigram":
                kept = [c for c in kept if unicodedata.category(c)[0] != "M"]
            expected = unicodedata.normalize("NFC", "".join(kept))
        got = unicodedata.normalize("NFC", tokenizer.decode(ids))
        assert got == unicodedata.normalize("NFKC" if kind == "unigram" else "NFC", expected)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (kind, flag)
        for kind in KINDS
        for flag in ("--strip_accents", "--no_strip_accents", "--normalize=nfc")
        if (kind, flag) != ("modernbert", "--normalize=nfc")  # which composes anyway
    ],
)
def test_transformers_gives_the_same_ids(tmp_path, kind, flag):
    transformers = pytest.importorskip("transformers")
    tokenizer = trained(tmp_path, ALL, "--kind", kind, "--vocab_size=300", flag)
    tokenizer.save(tmp_path / "copy")
    for folder in (tmp_path / "tokenizer1", tmp_path / "copy"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        for text in [*ALL, *(unicodedata.normalize("NFD", text) for text in ALL), "한국어 中文"]:
            assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text


@pytest.mark.parametrize(
    ("flags", "text", "line"),
    [
        ([], STRIPPED["German"][0], "lower-cased and lose their marks: 'Größe' becomes 'große'"),
        ([], MARKED["Hindi"], "lower-cased and keep their marks: 'हिन्दी' stays 'हिन्दी'"),
        ([], "CC(=O)Oc1ccccc1C(=O)O c1ccc", "lower-cased and lose their marks: 'CC' becomes 'cc'"),
        ([], "한국어 문장", "lower-cased and keep their marks: '한국어' stays '한국어'"),
        (["--strip_accents"], "한국어 문장", "or takes syllables of Hangul apart"),
        (["--no_do_lower_case"], "Größe über", "keep their case and keep their marks: 'Größe' st"),
        (["--kind=bpe", "--vocab_size=300"], "Größe über", "keep their case and keep their marks"),
        (["--strip_accents"], MARKED["Thai"], "warning: the tokenizer strips marks, which "),
        *(
            ([f"--kind={kind}", "--vocab_size=300"], MARKED[script], "BPE splits words at marks")
            for kind, script in [("bpe", "Hindi"), ("modernbert", "Khmer"), ("bpe", "Tamil")]
        ),
    ],
)
def test_what_is_done_to_letters_is_said(tmp_path, capsys, flags, text, line):
    trained(tmp_path, [text], *flags)
    assert unicodedata.normalize("NFC", line) in unicodedata.normalize(
        "NFC", capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("Hộp thoại này mở tập tin", True),
        ("Die Größe der Datei ist in dem Dialog ein Wert", False),
        ("THE CAT SAT ON THE MAT", False),
    ],
)
def test_stripping_the_marks_of_many_words_is_warned_of(tmp_path, capsys, text, warns):
    trained(tmp_path, [text])
    assert ("warning: letters are lower-cased and lose" in capsys.readouterr().out) == warns
    trained(tmp_path, [text], "--no_strip_accents")
    assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
@pytest.mark.parametrize(("repeats", "is_said"), [(40, True), (4_000, False)])
def test_marks_of_a_rare_script_that_are_stripped_are_said(
    tmp_path, capsys, kind, repeats, is_said
):
    texts = [MARKED["Hindi"], *["the cat sat on a mat with cats"] * repeats]
    tokenizer = trained(tmp_path, texts, f"--kind={kind}", "--vocab_size=60")
    said = capsys.readouterr().out
    assert tokenizer.normalise("\u0915\u094d").strip() == "\u0915"
    assert ("of the letters have marks" in said) == is_said
    if is_said:
        assert "splits, as in 'हिन्दी': --no_strip_accents keeps them" in said
        trained(tmp_path, texts, f"--kind={kind}", "--vocab_size=60", "--no_strip_accents")
        assert "of the letters have marks" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        *(("wordpiece", script) for script in DECOMPOSED),
        *(
            pytest.param("bpe", x, marks=() if x in ("German", "Korean") else WEEKLY)
            for x in DECOMPOSED
        ),
    ],
)
def test_decomposed_text_is_warned_of_and_composed(tmp_path, capsys, kind, script):
    text = DECOMPOSED[script]
    apart = unicodedata.normalize("NFD", text)
    flags = ["--kind", kind, "--vocab_size=400", "--no_do_lower_case"]
    before = trained(tmp_path, [apart], *flags)
    assert "not in Unicode's composed form (NFC)" in capsys.readouterr().out
    assert before.encode([text]) != before.encode([apart])
    composed = trained(tmp_path, [apart], *flags, "--normalize=nfc")
    assert "composed form" not in capsys.readouterr().out
    assert composed.encode([text]) == composed.encode([apart])
    assert composed.decode(composed.encode([apart])[0]) == text
    assert trained(tmp_path, [text], *flags).tokens == composed.tokens
    # A tokenizer that does not compose is told of the text that is composed for it.
    assert about_letters(before, [apart])[1:] and not about_letters(before, [apart], "nfc")[1:]


@pytest.mark.parametrize("text", [DNA, PROTEIN, "한국어" * 60, "แมวกินปลา" * 30])
def test_words_that_are_too_long_are_counted(tmp_path, text):
    said = []
    words = train_wordpiece([f"a b {text}"] * 3, vocab_size=80, report=said.append)
    assert words.tokens[-2:] == ["a", "b"]
    assert "3 words of more than 100 characters" in said[-1] and "--split residues" in said[-1]
    assert f"{len(text) / (len(text) + 2):.1%} of the characters" in said[-1]
    with pytest.raises(ValueError, match="no word to learn .* 3 words of more than 100 .*residues"):
        train_wordpiece([text] * 3, vocab_size=80)


def residues(tmp_path):
    return trained(tmp_path, [DNA, PROTEIN], "--split=residues")


def test_residues_are_tokens_of_any_case(tmp_path):
    tokenizer = residues(tmp_path)
    assert tokenizer.vocab_size == 5 + len(set(DNA + PROTEIN)) and not tokenizer.do_lower_case
    for text in (DNA, PROTEIN, "MKacg"):
        (ids,) = tokenizer.encode([text])
        assert [tokenizer.tokens[i] for i in ids] == list(text) and tokenizer.decode(ids) == text
    assert tokenizer.encode(["MxK M K"]) == [
        [tokenizer.vocab[x] for x in ("M", "[UNK]", "K", "M", "K")]
    ]
    assert tokenizer.word_starts.all()
    ids, _ = tokenizer.encode_prompt("MK[MASK]A")
    assert ids.count(tokenizer.mask_token_id) == 1 and len(ids) == 6
    assert tokenizer.encode_with_offsets("M KA")[1].tolist() == [[0, 1], [2, 3], [3, 4]]


@pytest.mark.parity
def test_transformers_gives_the_ids_of_residues(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = residues(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer1")
    for text in (DNA, PROTEIN, "MxK M\tK\n.", "MK[MASK]A", "é 한 ก็"):
        assert theirs(text)["input_ids"] == tokenizer.encode_prompt(text)[0], text


@pytest.mark.parametrize(
    "fields",
    [
        {"split": "residues", "kind": "bpe"},
        {"split": "residues", "strip_accents": True},
        {"normalize": "nfc", "kind": "modernbert"},
        {"strip_accents": True, "extend": "bertjax:tiny"},
    ],
)
def test_settings_that_exclude_each_other_are_refused(tmp_path, fields):
    with pytest.raises(ValueError, match="has no effect with"):
        train_tokenizer.train_tokenizer(input="a", output=str(tmp_path / "b"), **fields)


def test_a_unigram_composes_the_syllables_of_hangul_when_asked(tmp_path, capsys):
    # SentencePiece's table, as the library applies it, composes two letters at most.
    text = DECOMPOSED["Korean"]
    apart = unicodedata.normalize("NFD", text)
    plain = trained(tmp_path, [text], "--kind=unigram", "--vocab_size=60")
    assert plain.decode(plain.encode([text])[0]) == text and plain.encode([apart]) != plain.encode(
        [text]
    )
    assert about_letters(plain, [apart])[1:] and not about_letters(plain, [text])[1:]
    composed = trained(tmp_path, [apart], "--kind=unigram", "--vocab_size=60", "--normalize=nfc")
    assert composed.encode([apart]) == composed.encode([text])
    assert composed.decode(composed.encode([apart])[0]) == text
