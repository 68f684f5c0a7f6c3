"""Tokens as people read them."""

from bertjax.tokenization import train_bpe, train_unigram


def test_byte_level_tokens_are_the_text(sentences):
    tokenizer = train_bpe(sentences, vocab_size=300)
    text = "é  日\n😀 abc"
    (ids,) = tokenizer.encode([text])
    shown = [tokenizer.readable(tokenizer.tokens[i]) for i in ids]
    assert all(piece.isprintable() and "Ġ" not in piece for piece in shown)
    hidden = {"␣": " ", "↵": "\n"}
    content = b"".join(
        bytes.fromhex(piece[1:-1])
        if piece.startswith("<")
        else "".join(hidden.get(character, character) for character in piece).encode()
        for piece in shown
    )
    assert content.decode() == text
    assert tokenizer.readable("<mask>") == "<mask>" and tokenizer.readable("Ġa") == "␣a"


def test_other_tokens_remain_but_for_spaces(tokenizer, sentences):
    assert tokenizer.readable("##a") == "##a"
    unigram = train_unigram(sentences, vocab_size=90)
    assert unigram.readable("▁a") == "␣a" and unigram.readable("[MASK]") == "[MASK]"
