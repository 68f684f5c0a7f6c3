"""Masking follows the rules and shares of google-research/bert."""

import dataclasses
import hashlib
import itertools
import sys
import types
import unicodedata

import numpy as np
import pytest

from bertjax.data.batches.masking import (
    Masking,
    UnspacedTokens,
    _draw_sizes,
    choose_tokens,
    replacements,
)
from bertjax.tokenization import train_bpe, train_unigram, train_wordpiece
from tests.cases import others_weekly

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000
MASKING = Masking(
    probability=0.15,
    max_predictions=20,
    vocab_size=VOCAB,
    mask_token_id=MASK,
    never_masked=(CLS, SEP),
)


def sequence(rng, length):
    middle = length // 2
    ids = rng.integers(5, VOCAB, length)
    ids[0], ids[middle], ids[-1] = CLS, SEP, SEP
    return ids


def random_bits(rng, count):
    return rng.integers(0, 1 << 64, count, np.uint64)


def choose_positions(ids, masking, rng):
    """Draws the positions to predict in one sequence, a row of its own."""
    one = np.zeros(1, int)
    return choose_tokens(ids, one + len(ids), one, random_bits(rng, len(ids)), masking)


def test_positions_are_distinct_sorted_and_never_special():
    rng = np.random.default_rng(0)
    for length in (4, 17, 64, 128):
        ids = sequence(rng, length)
        chosen = choose_positions(ids, MASKING, rng)
        assert (np.diff(chosen) > 0).all()
        assert not np.isin(ids[chosen], (CLS, SEP)).any()


@pytest.mark.parametrize(("length", "expected"), [(5, 1), (10, 2), (64, 10), (128, 19), (256, 20)])
def test_the_number_counts_cls_and_sep_and_is_limited(length, expected):
    # round(0.15 * 10) is 2 and round(0.15 * 128) is 19; 256 tokens meet the limit of 20.
    rng = np.random.default_rng(0)
    assert len(choose_positions(sequence(rng, length), MASKING, rng)) == expected


@pytest.mark.slow
def test_shares_over_100_000_rows_are_those_of_google_within_three_sigma():
    rows, block = 100_000, 1000
    rng = np.random.default_rng(1)
    tokens = total = kept = masked = 0
    words, where = np.zeros(VOCAB, int), np.zeros(64, int)
    for _ in range(rows // block):
        lengths = np.where(rng.random(block) < 0.1, rng.integers(8, 129, block), 64)
        ids = np.concatenate([sequence(rng, length) for length in lengths])
        chosen = choose_tokens(ids, lengths, np.arange(block), random_bits(rng, len(ids)), MASKING)
        of, starts = np.repeat(np.arange(block), lengths), np.cumsum(lengths) - lengths
        expected = np.minimum(20, np.maximum(1, np.rint(0.15 * lengths)))
        assert (np.bincount(of[chosen], minlength=block) == expected).all()
        was = ids[chosen]
        became = replacements(was, random_bits(rng, len(chosen)), MASKING)
        where += np.bincount((chosen - starts[of[chosen]])[lengths[of[chosen]] == 64], minlength=64)
        tokens, total = tokens + len(ids), total + len(chosen)
        kept += (became == was).sum()
        masked += (became == MASK).sum()
        words += np.bincount(became[(became != was) & (became != MASK)], minlength=VOCAB)
    assert abs(total / tokens - 0.15) < 0.01  # 10 of 64 for most
    # A random word is the old one, or [MASK], once in VOCAB times.
    same = 0.1 / VOCAB
    for found, share in ((masked, 0.8 + same), (kept, 0.1 + same), (words.sum(), 0.1 - 2 * same)):
        assert abs(found - share * total) < 3 * np.sqrt(share * (1 - share) * total)
    # Random words come evenly from the whole vocabulary, special tokens included ([MASK] itself
    # cannot be told from masking): chi-square over VOCAB - 1 cells.
    cells = np.delete(words, MASK)
    expected = cells.mean()
    chi_square = ((cells - expected) ** 2 / expected).sum()
    assert abs(chi_square - len(cells)) < 3 * np.sqrt(2 * len(cells))
    assert cells[[0, 1, CLS, SEP]].min() > 0
    # Every ordinary position is as likely as another: the largest of 61 deviations.
    ordinary = np.delete(where, [0, 32, 63])
    assert np.abs(ordinary - ordinary.mean()).max() < 4 * np.sqrt(ordinary.mean())


def test_whole_words_are_masked_whole_and_never_overflow():
    starts = np.ones(VOCAB, bool)
    starts[500:] = False  # ids from 500 on continue a word
    whole = dataclasses.replace(MASKING, word_starts=starts)
    rng = np.random.default_rng(0)
    sizes = []
    for _ in range(200):
        ids = sequence(rng, 64)
        chosen = choose_positions(ids, whole, rng)
        assert 0 < len(chosen) <= 10
        sizes.append(len(chosen))
        candidates = np.flatnonzero(~np.isin(ids, (CLS, SEP)))
        words = np.cumsum(starts[ids[candidates]] | (candidates == candidates[0]))
        for word in np.unique(words[np.isin(candidates, chosen)]):
            assert np.isin(candidates[words == word], chosen).all()
    assert np.mean(sizes) > 9.5


def test_a_sequence_of_special_tokens_alone_has_nothing_to_predict():
    rng = np.random.default_rng(0)
    assert len(choose_positions(np.array([CLS, SEP, SEP]), MASKING, rng)) == 0


NGRAMS = dataclasses.replace(MASKING, word_starts=np.arange(VOCAB) < 700, max_ngram=3)


def test_ngrams_are_whole_words_in_one_part_of_the_sequence_and_keep_the_budget():
    rng = np.random.default_rng(0)
    starts = NGRAMS.word_starts
    assert starts is not None
    sizes = []
    for _ in range(300):
        ids = sequence(rng, 64)
        chosen = choose_positions(ids, NGRAMS, rng)
        assert (np.diff(chosen) > 0).all() and not np.isin(ids[chosen], (CLS, SEP)).any()
        assert len(chosen) <= 10
        sizes.append(len(chosen))
        candidates = np.flatnonzero(~np.isin(ids, (CLS, SEP)))
        words = np.cumsum(starts[ids[candidates]] | (candidates == candidates[0]))
        for word in np.unique(words[np.isin(candidates, chosen)]):
            assert np.isin(candidates[words == word], chosen).all()
    assert np.mean(sizes) > 9.5


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ngrams_of_n_words_have_a_probability_of_one_nth():
    # Every token a word and a small budget in a long text, so that n-grams hardly ever touch.
    masking = dataclasses.replace(NGRAMS, word_starts=np.ones(VOCAB, bool), probability=0.005)
    rng = np.random.default_rng(0)
    counts = np.zeros(40)
    for _ in range(1500):
        chosen = choose_positions(sequence(rng, 4000), masking, rng)
        runs = np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1)
        for run in runs:
            counts[len(run)] += 1
    # The last n-gram is cut to the budget, which leaves more short ones: about one of eleven.
    shares = counts[1:4] / counts.sum()
    np.testing.assert_allclose(shares, np.array([6, 3, 2]) / 11, atol=0.035)


def test_sizes_of_ngrams_have_probabilities_of_one_nth():
    words = np.arange(20_000)
    bits = random_bits(np.random.default_rng(0), len(words))
    sizes = _draw_sizes(words, np.zeros(len(words), int), words, 3, bits)
    shares = np.bincount(sizes, minlength=4)[1:] / len(words)
    np.testing.assert_allclose(shares, np.array([6, 3, 2]) / 11, atol=0.02)


@pytest.mark.parametrize(
    ("max_ngram", "expected"), [(1, "d1a0316776b2726f"), (3, "049a2bdfb264bcf2")]
)
def test_whole_words_are_drawn_as_in_version_1(max_ngram, expected):
    """So that a run that it began goes on with the same masks."""
    masking, rng = dataclasses.replace(NGRAMS, max_ngram=max_ngram), np.random.default_rng(0)
    chosen = [choose_positions(sequence(rng, 64), masking, rng) for _ in range(50)]
    content = np.concatenate(chosen).astype("<i4").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == expected


def test_bytes_that_are_no_text_are_question_marks():
    assert b"a\xffb\xe0\xa4".decode("utf-8", "bertjax.bytes") == "a?b??"


def test_ngrams_do_not_cross_a_special_token():
    rng = np.random.default_rng(0)
    ones = dataclasses.replace(
        NGRAMS, word_starts=np.ones(VOCAB, bool), max_ngram=50, probability=0.9
    )
    # Two gaps: three words, then two, then one.
    candidates = np.array([1, 2, 3, 5, 6, 8])
    longest = np.zeros(6, int)
    for _ in range(200):
        bits = random_bits(rng, 6)
        found = _draw_sizes(candidates, np.zeros(6, int), np.arange(6), 50, bits)
        assert (found >= 1).all()
        longest = np.maximum(longest, found)
        # The third and fourth token follow each other, but belong to two sequences.
        apart = _draw_sizes(np.arange(6), np.array([0, 0, 0, 1, 1, 2]), np.arange(6), 50, bits)
        assert (apart <= [3, 2, 1, 2, 1, 1]).all()
    assert longest.tolist() == [3, 2, 1, 2, 1, 1]
    # N-grams that overlap a drawn one are skipped, so that not every sequence has all 30.
    ones = dataclasses.replace(ones, max_predictions=30)
    numbers = [len(choose_positions(sequence(rng, 40), ones, rng)) for _ in range(200)]
    assert max(numbers) == 30 and np.mean(numbers) > 28


def test_ngrams_need_to_know_where_words_start():
    with pytest.raises(ValueError, match="max_ngram=2 counts whole words"):
        dataclasses.replace(MASKING, max_ngram=2)


def test_random_words_are_all_but_those_never_drawn():
    never = (0, 3, 4, 998, 999)
    masking = dataclasses.replace(MASKING, never_drawn=never)
    rng = np.random.default_rng(0)
    ids = np.full(400_000, 5)
    seen = replacements(ids, random_bits(rng, len(ids)), masking)
    words = np.bincount(seen, minlength=VOCAB)
    assert not words[[0, 3, 998, 999]].any() and words[MASK] > 0.79 * len(ids)
    drawn = np.delete(words, [*never, 5])
    assert drawn.min() > 0 and abs(drawn.sum() - 0.1 * len(ids)) < 1000


@pytest.mark.parametrize("share", [1.0, 0.85])
def test_tokens_that_are_not_masked_stay_without_random_words(share):
    masking = dataclasses.replace(MASKING, mask_share=share, random_share=0.0)
    count = 100_000
    bits = random_bits(np.random.default_rng(0), count)
    seen = replacements(np.full(count, 7), bits, masking)
    assert set(seen.tolist()) <= {7, MASK}
    assert abs((seen == MASK).sum() - share * count) <= 3 * np.sqrt(share * (1 - share) * count)


def greedy_by_the_book(ids, bits, masking) -> list[int]:
    """Draws words or n-grams of one sequence one after the other, as `_draw_words` describes."""
    candidates = [i for i, token in enumerate(ids) if token not in masking.never_masked]
    words: list[list[int]] = []
    for i in candidates:
        if masking.word_starts[ids[i]] or not words:
            words.append([])
        words[-1].append(i)
    wanted = min(masking.max_predictions, max(1, round(len(ids) * masking.probability)))
    heads = [word[0] for word in words]
    sizes = [1] * len(words)
    if masking.max_ngram > 1:
        sizes = _draw_sizes(
            np.array(candidates),
            np.zeros(len(candidates), int),
            np.searchsorted(candidates, heads),
            masking.max_ngram,
            bits[heads],
        ).tolist()
    taken: set[int] = set()
    chosen: list[int] = []
    for w in sorted(range(len(words)), key=lambda w: (int(bits[heads[w]]) >> 40, w)):
        for size in range(sizes[w], 0, -1):
            tokens = [token for word in words[w : w + size] for token in word]
            if len(chosen) + len(tokens) <= wanted:
                if not taken & set(range(w, w + size)):
                    taken |= set(range(w, w + size))
                    chosen += tokens
                break
    return sorted(chosen)


@pytest.mark.parametrize("max_ngram", [1, 3])
def test_many_sequences_at_once_are_masked_like_each_alone_and_by_the_book(max_ngram):
    rng = np.random.default_rng(0)
    masking = dataclasses.replace(NGRAMS, max_ngram=max_ngram)
    sequences = [sequence(rng, int(length)) for length in rng.integers(4, 130, 300)]
    sequences[7] = np.array([CLS, SEP, SEP])
    lengths = np.array([len(ids) for ids in sequences])
    bits = random_bits(rng, lengths.sum())
    ends = np.cumsum(lengths)
    for form in (masking, dataclasses.replace(masking, word_starts=None, max_ngram=1)):
        found = choose_tokens(np.concatenate(sequences), lengths, np.arange(300), bits, form)
        for ids, end in zip(sequences, ends, strict=True):
            start = end - len(ids)
            own = found[(found >= start) & (found < end)] - start
            one = np.zeros(1, int)
            alone = choose_tokens(ids, one + len(ids), one, bits[start:end], form)
            assert own.tolist() == alone.tolist()
            if form is masking:
                assert own.tolist() == greedy_by_the_book(ids.tolist(), bits[start:end], form)


@pytest.mark.parametrize("words", [False, True])
def test_the_first_sequences_of_a_packed_row_have_priority(words):
    rng = np.random.default_rng(0)
    lengths, rows = np.array([40, 40, 40, 60, 60]), np.array([0, 0, 0, 1, 1])
    ids = np.concatenate([sequence(rng, length) for length in lengths])
    starts = np.ones(VOCAB, bool) if words else None
    masking = dataclasses.replace(MASKING, max_predictions=10, word_starts=starts)
    chosen = choose_tokens(ids, lengths, rows, random_bits(rng, len(ids)), masking)
    of = np.repeat(np.arange(5), lengths)[chosen]
    # 6 of 40 and 9 of 60 tokens are wanted, 10 in each row are allowed.
    assert np.bincount(of, minlength=5).tolist() == [6, 4, 0, 9, 1]


# Clauses that are longer than the tokens to predict of a row.
CLAUSES = {
    "Chinese": "我们在北京大学学习语言模型并且研究各种文字的词语边界",
    "Japanese": "わたしたちはとうきょうでことばのモデルをまなんでいます",
    "Thai": "เราเรียนรู้แบบจำลองภาษาที่มหาวิทยาลัยในกรุงเทพมหานคร",
    "Khmer": "យើងរៀនអំពីគំរូភាសានៅសាកលវិទ្យាល័យក្នុងរាជធានីភ្នំពេញ",
    "Lao": "ພວກເຮົາຮຽນຮູ້ແບບຈຳລອງພາສາຢູ່ມະຫາວິທະຍາໄລໃນນະຄອນຫຼວງ",
    "Burmese": "ကျွန်ုပ်တို့သည်ဘာသာစကားပုံစံကိုတက္ကသိုလ်တွင်လေ့လာကြသည်",
}
KINDS = {
    "bpe": lambda texts: train_bpe(texts, vocab_size=400),
    "unigram": lambda texts: train_unigram(texts, vocab_size=110, do_lower_case=False),
    "wordpiece": lambda texts: train_wordpiece(texts, vocab_size=150, do_lower_case=False),
}


def never_masked(tokenizer, text, starts, segment=None):
    """The share of the tokens that 300 draws never predict."""
    (pieces,) = tokenizer.encode([text])
    ids = np.array([tokenizer.cls_token_id, *pieces, tokenizer.sep_token_id])
    special = (tokenizer.cls_token_id, tokenizer.sep_token_id)
    fields = {"vocab_size": tokenizer.vocab_size, "never_masked": special, "segment": segment}
    masking = dataclasses.replace(MASKING, word_starts=starts, **fields)
    rng, seen = np.random.default_rng(0), np.zeros(len(ids), bool)
    for _ in range(300):
        seen[choose_positions(ids, masking, rng)] = True
    return 1 - seen[1:-1].mean()


@pytest.mark.parametrize("language", others_weekly(CLAUSES, "Japanese", "Thai"))
@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_of_scripts_without_spaces_are_masked_at_times(language, kind):
    text = " ".join([CLAUSES[language]] * 2)
    tokenizer = KINDS[kind]([text[:10], text[5:20], *text, text[-9:]])
    before, unspaced = tokenizer.word_starts, UnspacedTokens(tokenizer)
    if kind == "bpe":
        assert never_masked(tokenizer, text, before) > 0.3
    assert never_masked(tokenizer, text, before | unspaced.starts) < 0.05
    # Each begins where a character does, so that no character is masked in parts.
    for token, starts in zip(tokenizer.tokens, unspaced.starts, strict=True):
        if starts:
            written = tokenizer.written(token)
            assert written[0] & 0xC0 != 0x80  # no byte inside a character
            text = written.decode(errors="ignore").strip()
            assert not unicodedata.category(text[:1] or "a").startswith("M")  # no mark of a letter


def test_words_of_scripts_with_spaces_stay_as_they_are():
    texts = ["Größe über alles, naïve Привет мир", "नमस्ते दुनिया שלום 안녕하세요 🙂 ½", "a.m. U.S."]
    for train in KINDS.values():
        tokenizer = train([*texts, "안녕하세요 세계의 언어 모델을 배웁니다"] * 5)
        used = sorted({token for ids in tokenizer.encode(texts) for token in ids})
        unspaced = UnspacedTokens(tokenizer)
        assert not unspaced.tokens[used].any() and not unspaced.starts[used].any()


@pytest.mark.parametrize("language", CLAUSES)
@pytest.mark.parametrize("is_installed", [False, True])
def test_words_of_icu_are_masked_whole(monkeypatch, language, is_installed):
    text = CLAUSES[language]
    words = [text[place : place + 3] for place in range(0, len(text), 3)]
    if is_installed:
        words = list(pytest.importorskip("icu4py.breakers").WordBreaker(text, "en"))
    else:
        breakers = types.SimpleNamespace(WordBreaker=lambda given, _: {text: words}[given])
        monkeypatch.setitem(sys.modules, "icu4py.breakers", breakers)
    tokenizer = KINDS["bpe"]([*text])  # some of its tokens are parts of a character
    (pieces,) = tokenizer.encode([text])
    starts = UnspacedTokens(tokenizer).segment(np.array(pieces))
    written = [tokenizer.written(tokenizer.tokens[token]) for token in pieces]
    places = [0, *np.flatnonzero(starts)[1:], len(written)]
    found = [b"".join(written[a:b]).decode() for a, b in itertools.pairwise(places)]
    assert found == words
