import bz2
import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertjax.base import progress
from bertjax.data.text import streams
from bertjax.data.text.corpus import Corpus, ReadOptions
from bertjax.data.text.pydocs import clean, is_english, module_paragraphs
from bertjax.data.text.sentences import sentences_of, split_sentences
from bertjax.data.text.streams import MAX_LINE_CHARACTERS

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "text"

LINES = "The first sentence.\nThe second one.\n\nAnother document.\nIts end.\n"
LINES_READ = [["The first sentence.", "The second one."], ["Another document.", "Its end."]]
PROSE = (
    "A paragraph of prose. It has several sentences on one line, as most files of text do.\n\n"
    "Another paragraph follows. It ends the document.\n"
)
PROSE_READ = [
    [
        "A paragraph of prose.",
        "It has several sentences on one line, as most files of text do.",
        "Another paragraph follows.",
        "It ends the document.",
    ]
]
WIKI = (
    '<doc id="1" url="u" title="Ham &amp; eggs">\nHam &amp; eggs\n\nA dish &lt;b&gt; it is. Good.\n'
    'Origin.\n</doc>\n<doc id="2" url="u" title="Other">\nOther\n\n</doc>\n'
    '<doc id="3" url="u" title="Third">\nNot the title.\n</doc>\n'
)
WIKI_READ = [["A dish <b> it is.", "Good.", "Origin."], [], ["Not the title."]]


def read(*inputs, **options):
    corpus = Corpus([str(path) for path in inputs], ReadOptions(**options))
    return [sentences_of(document) for document in corpus.documents()]


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def tar_of(files, mode: Literal["w", "w:xz"] = "w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "expected"), [(LINES, LINES_READ), (PROSE, PROSE_READ), (WIKI, WIKI_READ)]
)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda data: data,
        lambda data: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r"),
        gzip.compress,
        lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:]),
        bz2.compress,
        lzma.compress,
        zstandard.compress,
        lambda data: zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
        lambda data: tar_of({"./a/b.txt": data, "._b.txt": b"\xff"}),
        lambda data: tar_of({"b.txt": data}, "w:xz"),
        lambda data: zstandard.compress(tar_of({"b.txt.gz": gzip.compress(data)})),
    ],
    ids=["plain", "crlf+bom", "cr", "gz", "gz*2", "bz2", "xz", "zst", "zst*2", "tar", "tar.xz",
         "gz in tar.zst"],
)  # fmt: skip
def test_every_wrapping_gives_the_same_documents(tmp_path, content, expected, wrap):
    # The name says nothing: the content does.
    assert read(write(tmp_path / "file", wrap(content.encode()))) == expected


def test_format_of_text_can_be_forced(tmp_path):
    path = write(tmp_path / "a.txt", PROSE)
    assert len(read(path, text_format="lines")) == 2
    path = write(tmp_path / "b.txt", LINES)
    assert len(read(path, text_format="prose")) == 1


def test_wrapped_prose_is_told_from_sentences_a_line(tmp_path):
    words = "Many words make a line and lines of equal width make a page of wrapped prose. ".split()
    lines = [" ".join(words[i % 9 :] + words[: i % 9]) for i in range(40)]
    wrapped = "\n".join(lines[:20]) + "\n\n" + "\n".join(lines[20:]) + "\n"
    assert len(read(write(tmp_path / "wrapped.txt", wrapped))) == 1
    sentences = "".join(f"{'Word ' * (3 + i % 17)}{i}.\n" + "\n" * (i % 9 == 8) for i in range(90))
    assert len(read(write(tmp_path / "lines.txt", sentences))) == 10


@pytest.mark.parametrize("end", ["word.", "शब्द।", "ቃል።", "لفظ؟", "ល។ល។", "說。」", "բա՞", "ᠪᠠ᠃"])
def test_lines_of_one_width_that_end_with_a_sentence_mark_are_sentences(tmp_path, end):
    sentences = "".join(f"{'word ' * 10}{end}\n" + "\n" * (i % 9 == 8) for i in range(45))
    assert len(read(write(tmp_path / "lines.txt", sentences))) == 5


@pytest.mark.parametrize(
    "sentence", ["Many words are here.", "शब्द यहाँ है।", "这里有很多字。", "ቃል እዚህ አለ።", "លេង។"]
)
def test_a_long_line_is_a_document(tmp_path, capsys, sentence):
    lines = [f"{n} " + f"{sentence} " * (300 // len(sentence.encode()) + 5) for n in range(20)]
    expected = [split_sentences(line) for line in lines]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    assert read(path) == expected == read(path, text_format="documents")
    assert "a.txt: its long lines are read as one document each" in capsys.readouterr().out
    assert len(read(path, text_format="prose")) == 1
    longer = [4 * line for line in lines]
    assert len(read(write(tmp_path / "b.txt", "\n\n".join(longer)))) == 20
    assert len(read(write(tmp_path / "c.txt", "\n\n".join(["A heading", *longer])))) == 1
    short = write(tmp_path / "d.txt", f"{sentence}\n\n{sentence}{sentence}\n\n{sentence}")
    assert len(read(short, text_format="documents")) == 3
    book = "\n".join([*lines, *["“A short line.”"] * 5])
    assert len(read(write(tmp_path / "e.txt", book))) == 1


def test_json_lines_with_another_field(tmp_path):
    rows = [{"body": "One. Two."}, {"body": None}, {"body": ""}, {"body": "Three.\n\nFour."}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    assert read(path, text_field="body") == [["One.", "Two."], [], ["Three.", "Four."]]
    with pytest.raises(ValueError, match=r"a.jsonl, line 1 has no text field 'text'.*\['body'\]"):
        read(path)


def test_a_nested_field_is_named_by_its_path(tmp_path):
    texts = ["घर बड़ा है।", "ቤቱ ትልቅ ነው።", "家は大きい。", "Дом большой.", None]
    rows = [{"id": n, "data": {"text": text}} for n, text in enumerate(texts)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (path, tmp_path / "a.parquet"):
        assert read(file, text_field="data.text") == [[text] for text in texts if text]
        with pytest.raises(ValueError, match=r"no text (field|column) 'text'.*\['data.text'\]"):
            read(file)
    dotted = write(tmp_path / "b.jsonl", json.dumps({"data.text": "Здесь.", "data": None}))
    assert read(dotted, text_field="data.text") == [["Здесь."]]
    with pytest.raises(ValueError, match="has a dict, not a text, in the text field 'data'"):
        read(path, text_field="data")
    listed = write(tmp_path / "c.jsonl", json.dumps({"text": texts[:2], "data": {"t": "x"}}))
    with pytest.raises(ValueError, match=r"has a list, not a text.*\['data.t'\]"):
        read(listed)
    for content in (json.dumps(rows), json.dumps(rows, indent=1), json.dumps(rows[0], indent=1)):
        with pytest.raises(ValueError, match=r"d.json, line \d.* jq -c"):
            read(write(tmp_path / "d.json", content))


def test_wiki_extractor_json_drops_the_title(tmp_path):
    row = {"id": "1", "url": "u", "title": "Ham", "text": "Ham\n\nA dish.\nOrigin."}
    assert read(write(tmp_path / "wiki_00", json.dumps(row))) == [["A dish.", "Origin."]]


def test_bad_json_names_file_and_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": \n')
    with pytest.raises(ValueError, match="a.jsonl, line 2 is not JSON"):
        read(path)
    with pytest.raises(ValueError, match="b.json, line 1 has no text field"):
        read(write(tmp_path / "b.json", '["a", "b"]'))
    half = write(tmp_path / "c.jsonl", '{"text": "a \\ud83d b"}')
    with pytest.raises(ValueError, match="line 1 contains an unpaired surrogate"):
        read(half)
    assert read(half, errors="replace") == [["a \ufffd b"]]


def test_parquet_streams_its_text_column(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"id": [1, 2, 3], "text": ["One. Two.", None, "Three."]})
    pyarrow.parquet.write_table(table, path, row_group_size=2)
    assert read(path) == [["One.", "Two."], ["Three."]]
    with pytest.raises(ValueError, match=r"no text column 'body'. Its text columns: \['text'\]"):
        read(path, text_field="body")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="not a complete Parquet file"):
        read(path)


def test_undecodable_bytes_are_located_and_can_be_replaced(tmp_path):
    good = ("é" * 300_001).encode() + b" a. \n"
    path = write(tmp_path / "latin.txt", good + b"caf\xe9 au lait")
    with pytest.raises(
        ValueError,
        match=rf"latin.txt is not UTF-8: byte 0xe9 in line 2, at offset {len(good) + 3:,} ",
    ):
        read(path)
    assert read(path, errors="replace")[-1][-1].endswith("caf\ufffd au lait")
    cut = write(tmp_path / "cut.txt", "abc é".encode()[:-1])
    with pytest.raises(ValueError, match=r"offset 4 \(unexpected end of data\)\. If only a few"):
        read(cut)
    bom = write(tmp_path / "bom.txt", b"\xef\xbb\xbfab\xff")
    with pytest.raises(ValueError, match="offset 5 "):
        read(bom)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_an_undecodable_byte_is_of_the_line_that_it_stands_in(tmp_path, monkeypatch, end, cut):
    monkeypatch.setattr(streams, "BLOCK_BYTES", 64)
    lines = [f'{{"text": "Zeile {number} für alle."}}' for number in range(40)]
    content = end.join(lines).encode()
    place = content.index(b"Zeile 29") + cut
    bad = content[:place] + b"\xf0" + content[place:]
    path = write(tmp_path / "a.jsonl", bad)
    with pytest.raises(ValueError, match=f"byte 0xf0 in line 30, at offset {place:,} "):
        read(path)


_ENCODED = {
    "cp1251": "Все счастливые семьи похожи друг на друга. Каждая семья несчастлива по-своему. ",
    "cp932": "国境の長いトンネルを抜けると雪国であった。夜の底が白くなった。"
    "信号所に汽車が止まった。",
    "gb18030": "天下大势，分久必合，合久必分。周末七国分争，并入于秦。",
    "cp1256": "كان يا ما كان في قديم الزمان ملك عادل يحكم بلدا بعيدا. وكان له ثلاث بنات. ",
    "cp874": "แมวกินปลาและหมาวิ่งเล่นในสวนหลังบ้านทุกวันตอนเช้า โปรดอ่านคู่มือก่อนใช้งาน ",
    "cp1252": "Für die Bücher müssen wir schließlich bezahlen. Schöne Grüße aus München! ",
}


@pytest.mark.parametrize("encoding", _ENCODED)
def test_text_in_another_encoding_is_named_and_read(tmp_path, encoding):
    text = _ENCODED[encoding] + "\n"
    path = write(tmp_path / "old.txt", (50 * text).encode(encoding))
    says = rf"old.txt.*not UTF-8.*probably {encoding} \('[^']+'\).*pass --encoding"
    for errors in ("strict", "replace"):
        with pytest.raises(ValueError, match=says):
            read(path, errors=errors)
    long = write(tmp_path / "x-old.txt", (9 * "x" + 900 * text).encode(encoding))
    with pytest.raises(ValueError, match=says):
        read(long)
    plain = write(tmp_path / "new.txt", 50 * text)
    assert read(path, encoding=encoding) == read(plain)
    row = json.dumps({"text": 50 * text}, ensure_ascii=False)
    rows = write(tmp_path / "a.jsonl", row.encode(encoding))
    prose = {"text_format": "prose"}
    assert read(rows, encoding=encoding, **prose) == read(plain, **prose)
    for marked in ("utf-16", "utf-32", "utf-8-sig"):
        assert read(write(tmp_path / "marked.txt", (50 * text).encode(marked))) == read(plain)
    with pytest.raises(
        ValueError, match="zeros or control.*--encoding utf-16-le|probably utf_16_le"
    ):
        read(write(tmp_path / "utf16.txt", ("ascii and " + text).encode("utf-16-le") * 9))
    assert read(tmp_path / "utf16.txt", encoding="utf-16-le")
    between = 900 * b"x" + text.split()[0].encode(encoding) + 30 * b"\0"
    with pytest.raises(ValueError, match="not UTF-8") as error:
        read(write(tmp_path / "a", 50 * between))
    assert len(str(error.value).replace(str(tmp_path), "")) < 360


def test_few_replaced_characters_are_counted(tmp_path):
    path = write(tmp_path / "a.txt", ("शब्द। " * 9999).encode() + b"\xff\xfe." + "។\ufffd".encode())
    corpus = Corpus([str(path)], ReadOptions(errors="replace"))
    assert len(list(corpus.documents())) == 1
    assert corpus.counts["replaced_characters"] == 2


@pytest.mark.parametrize(
    "compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress]
)
def test_files_cut_short_are_refused(tmp_path, compress):
    data = compress(PROSE.encode() * 50)
    with pytest.raises(ValueError, match="a.txt is damaged or truncated"):
        read(write(tmp_path / "a.txt", data[: len(data) // 2]))


def test_a_tar_cut_short_is_refused(tmp_path):
    data = tar_of({"a": PROSE.encode() * 100, "b": PROSE.encode() * 100})
    with pytest.raises(ValueError, match="is damaged or truncated"):
        read(write(tmp_path / "a.tar", data[:25_000]))


@pytest.mark.parametrize("text_format", ["lines", "prose"])
def test_one_endless_line_is_cut_between_words_and_loses_none(tmp_path, text_format):
    words = [f"w{i}" for i in range(200_000)]
    path = write(tmp_path / "endless.txt", " ".join(words))
    corpus = Corpus([str(path)], ReadOptions(text_format=text_format))
    documents = list(corpus.documents())
    assert corpus.counts["long_lines_cut"] == 1
    assert max(len(line) for d in documents for line in d.text.split("\n")) <= MAX_LINE_CHARACTERS
    assert " ".join(s for d in documents for s in sentences_of(d)).split() == words


def test_cuts_of_long_lines_do_not_depend_on_how_bytes_arrive(tmp_path):
    text = " ".join(f"w{i}" for i in range(100_000)) + "\nshort\n" + "x" * 300_000 + " end"
    plain = read(write(tmp_path / "a", text), text_format="prose")
    packed = read(write(tmp_path / "b", lzma.compress(text.encode())), text_format="prose")
    assert plain == packed


def test_files_come_in_sorted_order_and_missing_ones_are_named(tmp_path):
    for name in ("c", "a", "b"):
        write(tmp_path / name, f"File {name} speaks here.")
    write(tmp_path / "empty", "")
    expected = [[f"File {name} speaks here."] for name in "abc"]
    assert read(tmp_path) == read(tmp_path / "*") == expected
    with pytest.raises(FileNotFoundError, match="No file matches --input '.*nothing.*'"):
        read(tmp_path / "nothing*")


def test_links_to_one_file_are_read_once(tmp_path, capsys):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name, text in (
        ("a/ग.txt", "शब्द।"),
        ("a/b/文.txt", "文字。"),
        ("z.txt", "Слово."),
        ("ቃ", "ቃል።"),
    ):
        write(tmp_path / name, text)
    write(tmp_path / "a" / ".hidden", "Not read.")
    once = read(tmp_path)
    assert len(once) == 4 and not capsys.readouterr().out
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "up2").symlink_to("..")
    (tmp_path / "zz").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "zz.txt").symlink_to("z.txt")
    os.link(tmp_path / "z.txt", tmp_path / "zzz.txt")
    assert read(tmp_path) == once
    assert f"{tmp_path}: 2 links to files that are read anyway" in capsys.readouterr().out
    assert read(tmp_path / "*.txt") == [["Слово."]]
    assert read(tmp_path / "zz.txt") == [["Слово."]]


def test_a_docstring_is_read_without_code_tables_and_markup():
    docstring = """Compute the thing, `fast`.

    This is the **long** description of :class:`~numpy.ndarray` objects, which
    goes on in a second line.

    Parameters
    ----------
    x : array_like
        The values that are to be computed here.

    .. math::

        x = y^2

    For example::

        code = here()

    >>> f(1)
    2

    =====  =====
    a      b
    =====  =====

    Args:
      name: The name that the thing will have
        from now on.
    """
    assert [paragraph for paragraph in clean(docstring) if is_english(paragraph)] == [
        "Compute the thing, fast.",
        "This is the long description of numpy.ndarray objects, which goes on in a second line.",
        "The values that are to be computed here.",
        "The name that the thing will have from now on.",
    ]


def test_repeated_documentation_is_read_once_and_code_never():
    source = (
        '"""What this module does is told here."""\n'
        'def f():\n    """What this module does is told here.  Then something else is told."""\n'
        "    return x  # a short comment\n"
        "# A long comment takes three lines of text,\n# so that it says something\n# of interest.\n"
    )
    assert list(module_paragraphs(source, set())) == [
        "What this module does is told here.",
        "Then something else is told.",
        "A long comment takes three lines of text, so that it says something of interest.",
    ]
    assert not is_english("x = f(y) + g[0] and 2 more.")
    assert list(module_paragraphs("def broken(:", set())) == []


def test_pydocs_are_plenty_english_and_the_same_every_time():
    first = Corpus(["pydocs"])
    documents = [document for _, document in zip(range(60), first.documents(), strict=False)]
    again = [
        document for _, document in zip(range(60), Corpus(["pydocs"]).documents(), strict=False)
    ]
    assert documents == again
    sentences = [sentence for document in documents for sentence in sentences_of(document)]
    assert len(set(sentences)) > 0.99 * len(sentences) > 300
    words = Counter(word for sentence in sentences for word in sentence.lower().split())
    assert sum(words[word] for word in ("the", "a", "is", "of", "to")) > 0.1 * words.total()


def test_datasets_prepared_by_tfds_are_read_without_tensorflow(tmp_path):
    import tensorflow_datasets as tfds

    class TinyText(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict({"body": tfds.features.Text()})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):  # type: ignore[override]
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from ((i, {"body": f"Text {i} é. End."}) for i in range(3))

    TinyText(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    options = {"tfds_data_dir": str(tmp_path), "text_field": "body"}
    corpus = Corpus(["tfds:tiny_text:1.0.0"], ReadOptions(**options))
    assert corpus.identity == [["tfds:tiny_text/1.0.0", 3]]
    found = [sentences_of(document) for document in corpus.documents()]
    assert sorted(found) == [[f"Text {i} é.", "End."] for i in range(3)]
    with pytest.raises(ValueError, match=r"no text field 'text'. Its text fields: \['body'\]"):
        read("tfds:tiny_text", tfds_data_dir=str(tmp_path))
    assert "tensorflow" not in sys.modules


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    text = "One sentence.\nAnother one.\n"
    with ThreadPoolExecutor(1) as pool:
        pool.submit((tmp_path / "pipe.txt").write_text, text)
        assert read(tmp_path / "pipe.txt") == [["One sentence.", "Another one."]]


@pytest.mark.real
@pytest.mark.skipif(not SHARED.is_dir(), reason="the real corpora are not beside the checkout")
def test_real_files_are_told_apart():
    def layouts(name):
        documents = Corpus([str(SHARED / name)]).documents()
        return Counter(d.layout for d, _ in zip(documents, range(300), strict=False))

    assert layouts("sample_text.txt") == {"lines": 3}
    assert layouts("standard-ebooks.tar.xz")["prose"] >= 299
    assert layouts("enwiki-2014-wikiextractor.tar.xz") == {"paragraphs": 300}


@pytest.mark.parametrize("wrap", [bytes, gzip.compress])
def test_a_pipe_that_nobody_writes_is_named_while_it_is_waited_for(
    wrap, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Timer(0.4, (tmp_path / "pipe").write_bytes, (wrap(b"One line.\n"),))
    writer.start()
    documents = [document.text for document in Corpus([str(tmp_path / "pipe")]).documents()]
    writer.join()
    assert documents == ["One line."]
    assert f"waiting for a process that writes to {tmp_path / 'pipe'}" in capsys.readouterr().err


def test_a_pipe_whose_writer_writes_late_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe")

    def write():
        with (tmp_path / "pipe").open("w") as file:
            time.sleep(0.4)
            file.write("One line.\n")

    writer = threading.Thread(target=write)
    writer.start()
    assert len([*Corpus([str(tmp_path / "pipe")]).documents()]) == 1
    writer.join()
    assert "waiting for a process that writes" in capsys.readouterr().err
