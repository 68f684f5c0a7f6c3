import gzip
import json

import pytest

from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.sentences import sentences_of

# Two sentences of each script, without spaces at their ends.
TEXTS = [
    ("सूरज उगता है।", "चाँद डूबता है।"),
    ("ቤቱ ትልቅ ነው።", "ልጁ መጣ።"),
    ("国境の長いトンネル。", "雪国であった。"),
    ("Дом большой.", "Мальчик пришёл."),
    ("البيت كبير.", "جاء الولد."),
]


def read(path, content, **options):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    corpus = Corpus([str(path)], ReadOptions(**options))
    return [sentences_of(document) for document in corpus.documents()]


def record(kind, text):
    body = text.encode()
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: u\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body + b"\r\n\r\n"


def test_wet_files_give_a_document_for_each_page(tmp_path):
    pages = [f"{a}\n{b}\n" for a, b in TEXTS]
    records = [record("warcinfo", "software: x"), *(record("conversion", p) for p in pages)]
    expected = [list(text) for text in TEXTS]
    assert read(tmp_path / "a", b"".join(records)) == expected
    assert read(tmp_path / "b", b"".join(map(gzip.compress, records))) == expected
    with pytest.raises(ValueError, match="WARC file of pages"):
        read(tmp_path / "c", record("response", "<html>"))
    with pytest.raises(ValueError, match="damaged WARC record"):
        read(tmp_path / "d", records[1] + b"x" + records[2])


def test_conllu_gives_its_texts(tmp_path):
    content = "".join(
        f"# newdoc id = {n}\n"
        + "".join(
            f"# sent_id = {n}\n# text = {t}\n1\t{t}\t_\t_\t_\t_\t0\troot\t_\t_\n\n" for t in text
        )
        for n, text in enumerate(TEXTS)
    )
    assert read(tmp_path / "a", content) == [list(text) for text in TEXTS]


def test_fasta_gives_whole_sequences(tmp_path):
    protein, dna = "MKTAYIAKQRQISFVKSHFSRQ" * 8, "acgtACGTNNNN" * 90
    wrapped = ["\n".join(s[n : n + 60] for n in range(0, len(s), 60)) for s in (protein, dna)]
    content = f">sp|P1|ONE first\n{wrapped[0]}*\n>two\n{wrapped[1]}\n"
    assert read(tmp_path / "a", content) == [[protein], [dna[:1000], dna[1000:]]]
    assert len(read(tmp_path / "b", ">quoted\nAn answer to a mail.\n")) == 1


def test_dumps_of_mediawiki_give_articles(tmp_path):
    pytest.importorskip("mwparserfromhell")
    pages = "".join(
        f"<page><title>{a}</title><ns>{ns}</ns>{redirect}<revision><text>{{{{Box|x=1}}}}\n"
        f"'''{a}''' [[Файл:a.jpg|thumb|the [[file]]]]&lt;ref&gt;source&lt;/ref&gt;\n== Head ==\n"
        f"* [[x|{b}]]\n{{|\n|-\n| cell\n|}}\n[[Category:c]]</text></revision></page>"
        for ns, redirect in ((0, ""), (1, ""), (0, '<redirect title="x"/>'))
        for a, b in TEXTS
    )
    dump = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><namespaces>'
        f'<namespace key="6">Файл</namespace></namespaces></siteinfo>{pages}</mediawiki>'
    )
    assert read(tmp_path / "a", dump) == [list(text) for text in TEXTS]
    with pytest.raises(ValueError, match="a is damaged"):
        read(tmp_path / "a", dump[:-20])


@pytest.mark.parametrize(
    ("kind", "begin", "line", "command"),
    [
        ("HTML", "<!DOCTYPE html>\n<html><body>", "<p>{}</p>", "trafilatura"),
        ("XML", '<?xml version="1.0"?>\n<TEI><text>', "<p>{}</p>", "itertext"),
        ("PO", '# x\nmsgid ""\nmsgstr ""\n', 'msgid "x"\nmsgstr "{}"\n', "po2txt"),
        ("CSV", "id,body", '1,"{}"', "read_csv"),
        ("CSV", "id\tbody", "1\t{}", "read_csv"),
    ],
)
def test_other_markup_is_warned_of_once(tmp_path, capsys, kind, begin, line, command):
    content = "\n".join([begin, *(line.format(a + b) for a, b in TEXTS)]) + "\n"
    for name in "ab":
        (tmp_path / name).write_text(content)
    list(Corpus([str(tmp_path)]).documents())
    out = capsys.readouterr().out
    assert out.count("warning:") == 1
    assert f"{tmp_path}/a looks like {kind}, and is read as text" in out and command in out
    rows = "\n".join(json.dumps({"text": a}) for a, _ in TEXTS)
    prose = "\n".join(f"{a}, yes, {b}" for a, b in TEXTS)
    assert read(tmp_path / "c", rows) and read(tmp_path / "d", prose)
    assert "warning" not in capsys.readouterr().out
