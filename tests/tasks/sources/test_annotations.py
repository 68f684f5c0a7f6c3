"""Exports of annotation tools are read as their users mean them, or refused by place."""

import json
import random
import re

import pytest

from bertjax.tasks.sources.columns import Columns
from tests.tables import read_tables

FLAG = "\U0001f1e9\U0001f1ea"  # two characters, and four UTF-16 units
FAMILY = "\U0001f469\u200d\U0001f467"  # a woman, a joiner and a girl


def write(path, rows, *, lines=True):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text if lines else json.dumps(rows), encoding="utf-8", newline="")
    return path


def read(path, **settings):
    """Returns [(text, [(text of an entity, label)])] and the dataset."""
    data = read_tables("tag", train=path, can_skip=True, **settings)
    found = []
    for example in data.examples("train"):
        entities = []
        for (start, end), tag in zip(example.offsets, example.label, strict=True):
            if tag.startswith("B-"):
                entities.append([start, end, tag[2:]])
            elif tag.startswith("I-"):
                entities[-1][1] = end
        found.append((example.text, [(example.text[s:e], kind) for s, e, kind in entities]))
    return found, data


def utf16(text):
    return len(text.encode("utf-16-le")) // 2


def spans_of(text, *parts, length=len):
    """Returns (start, end, part) of parts of a text, in the unit that `length` counts."""
    for part in parts:
        start = length(text[: text.index(part)])
        yield start, start + length(part), part


# Label Studio


def task(id, text, *annotations, key="text", **fields):
    """A task of Label Studio's JSON; an annotation is its labels, or fields of its own."""
    written = []
    for number, annotation in enumerate(annotations):
        fields_of = annotation if isinstance(annotation, dict) else {"result": annotation}
        written.append(
            {
                "id": 100 * id + number,
                "completed_by": 1,
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": f"2026-03-0{number + 1}T10:00:00.000000Z",
                "updated_at": f"2026-03-0{number + 1}T10:00:00.000000Z",
                "lead_time": 4.2,
                "result": [],
                **fields_of,
            }
        )
    return {
        "id": id,
        "annotations": written,
        "file_upload": "1-a.txt",
        "drafts": [],
        "predictions": [{"model_version": "m", "result": [labelled(text, "B", "WRONG", 0, 1)]}],
        "data": {key: text},
        "meta": {},
        "total_annotations": len(written),
        "cancelled_annotations": 0,
        "project": 7,
        **fields,
    }


def labelled(text, part, *labels, name="label", length=len):
    if len(labels) > 1 and isinstance(labels[-1], int):
        *labels, start, end = labels
    else:
        ((start, end, _),) = spans_of(text, part, length=length)
    value = {"start": start, "end": end, "text": part, "labels": list(labels)}
    return {
        "value": value,
        "id": "x1",
        "from_name": name,
        "to_name": "text",
        "type": "labels",
        "origin": "manual",
    }


TEXT = f"{FLAG} Anna lives in Bonn."


@pytest.mark.parametrize("length", [len, utf16], ids=["characters", "utf16"])
def test_label_studio_counts_characters_or_as_it_did_until_2021(length, tmp_path):
    result = [labelled(TEXT, "Anna", "PER", length=length)]
    result += [labelled(TEXT, "Bonn", "LOC", length=length)]
    path = write(tmp_path / "a.json", [task(1, TEXT, result)], lines=False)
    found, data = read(path)
    assert found == [(TEXT, [("Anna", "PER"), ("Bonn", "LOC")])]
    (note,) = data.change_notes()
    assert "1" in note and "2 entities of 2 labels (LOC, PER)" in note and "Label Studio" in note


def test_label_studio_takes_the_ground_truth_or_the_newest_completed_annotation(tmp_path):
    anna, bonn = ([labelled(TEXT, part, "X")] for part in ("Anna", "Bonn"))
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    rows = [
        task(1, TEXT, anna, [*bonn, relation]),
        task(2, TEXT, {"result": anna, "ground_truth": True}, bonn),
        task(3, TEXT, anna, {"result": bonn, "was_cancelled": True}),
        task(4, TEXT, {"result": anna, "was_cancelled": True}),
        task(5, TEXT),
        task(6, TEXT, []),
    ]
    found, data = read(write(tmp_path / "a.json", rows, lines=False))
    assert [[part for part, _ in entities] for _, entities in found] == [
        ["Bonn"],
        ["Anna"],
        ["Anna"],
        [],
    ]
    notes = " ".join(data.change_notes())
    assert "relation of Label Studio, not read: 1" in notes
    assert "other annotations of the same text of Label Studio, not read: 2" in notes
    assert "'was_cancelled' is true" in notes and ": 2 (the first:" in notes


def test_label_studio_repeats_texts_with_line_ends_and_at_the_end(tmp_path):
    texts = {"Anna \\n left\r\nBonn": "Anna \\n left\\nBonn", f"Hi {FLAG} {FAMILY}": FAMILY}
    tasks = []
    for number, (text, said) in enumerate(texts.items()):
        end = utf16(text)
        start = end - utf16(said) if number else 0
        tasks.append(task(number, text, [labelled(text, said, "X", start, end)]))
    found, _ = read(write(tmp_path / "a.json", tasks, lines=False))
    assert [entities[0][0] for _, entities in found] == ["Anna \\n left\r\nBonn", FAMILY]


def test_label_studio_before_version_one_has_completions(tmp_path):
    row = task(1, TEXT, [labelled(TEXT, "Bonn", "LOC")])
    row["completions"] = row.pop("annotations")
    found, _ = read(write(tmp_path / "a.json", [row], lines=False))
    assert found == [(TEXT, [("Bonn", "LOC")])]


def test_label_studio_names_its_text_and_its_groups_of_labels(tmp_path):
    result = [labelled(TEXT, "Anna", "Per son", name="ner"), labelled(TEXT, "lives", "V", name="w")]
    path = write(tmp_path / "a.json", [task(1, TEXT, result[:1], key="body")], lines=False)
    assert read(path)[0] == [(TEXT, [("Anna", "Per_son")])]
    path = write(tmp_path / "b.json", [task(1, TEXT, result, key="mail")], lines=False)
    with pytest.raises(ValueError, match="groups of labels ner, w.*--label_column"):
        read(path)
    assert read(path, columns=Columns(text="mail", label="w"))[0] == [(TEXT, [("lives", "V")])]
    path = write(
        tmp_path / "c.json", [task(1, TEXT, [result[0] | {"from_name": None}])], lines=False
    )
    assert read(path)[0] == [(TEXT, [("Anna", "Per_son")])]
    nameless = [result[0], result[1] | {"from_name": None}]
    path = write(tmp_path / "d.json", [task(1, TEXT, nameless)], lines=False)
    with pytest.raises(ValueError, match="groups of labels labels, ner.*--label_column"):
        read(path)


def test_json_min_reads_the_newest_of_the_annotations_of_a_text(tmp_path):
    def row(id, day, *labels):
        found = {"label": list(labels)} if labels else {}
        times = dict.fromkeys(["created_at", "updated_at"], f"2026-03-0{day}T10:00:00Z")
        fields = {"annotator": 1, "annotation_id": 10 * id + day, "lead_time": 2.5}
        return {"text": TEXT, "id": id, **found, **fields, **times}

    anna, bonn = (labelled(TEXT, part, "X", length=utf16)["value"] for part in ("Anna", "Bonn"))
    rows = [row(1, 2, anna), row(1, 1, bonn), row(2, 1), row(3, 1, bonn), row(3, 2, anna, bonn)]
    found, data = read(write(tmp_path / "a.json", rows, lines=False))
    assert [[part for part, _ in entities] for _, entities in found] == [
        ["Anna"],
        [],
        ["Anna", "Bonn"],
    ]
    assert "(JSON-MIN), not read: 2" in " ".join(data.change_notes())


def test_choices_of_label_studio_are_classes(tmp_path):
    def choice(name):
        value = {"choices": [name]}
        return [{"value": value, "from_name": "sentiment", "to_name": "text", "type": "choices"}]

    rows = [task(1, "Good.", choice("pos")), task(2, "Bad.", choice("neg")), task(3, "Hm.")]
    path = write(tmp_path / "a.json", rows, lines=False)
    data = read_tables("classify", train=path)
    assert [(x.text, x.label) for x in data.examples("train")] == [
        ("Good.", "pos"),
        ("Bad.", "neg"),
    ]
    with pytest.raises(ValueError, match="without labels of spans, but with choices"):
        read(path)


# doccano and Prodigy


def test_doccano_is_read_in_each_of_its_forms(tmp_path):
    spans = [*spans_of(TEXT, "Anna", "Bonn", length=utf16)]
    newer = [[start, end, "X"] for start, end, _ in spans]
    older = [[start, end, "X"] for start, end, _ in spans_of(TEXT, "Anna", "Bonn")]
    objects = [
        {"id": 7, "label": "X", "start_offset": start, "end_offset": end} for start, end, _ in spans
    ]
    forms = {
        "relations": {"entities": objects, "relations": [{"id": 1, "from_id": 7, "to_id": 8}]},
        "text": {"label": newer, "Comments": []},
        "before": {"label": older},
        "labels": {"labels": older},
    }
    for name, fields in forms.items():
        rows = [{"id": 1, "text": TEXT, **fields}, {"id": 2, "text": "No one."}]
        rows[1] |= {key: [] for key in fields}
        found, data = read(write(tmp_path / f"{name}.jsonl", rows))
        assert found == [(TEXT, [("Anna", "X"), ("Bonn", "X")]), ("No one.", [])], name
        told = "texts of doccano, with 2 entities of 1 labels (X): 2"
        assert (told in " ".join(data.change_notes())) == (name in ("relations", "text"))


def test_prodigy_counts_characters_and_rejected_rows_are_left_out(tmp_path):
    spans = [
        {"start": start, "end": end, "token_start": 1, "token_end": 1, "label": "PER"}
        for start, end, _ in spans_of(TEXT, "Anna")
    ]
    tokens = [{"text": FLAG, "start": 0, "end": 2, "id": 0, "ws": True}]
    hashes = {"_input_hash": 1, "_task_hash": 2, "_view_id": "ner_manual", "_timestamp": 1}
    row = {"text": TEXT, "tokens": tokens, **hashes}
    rows = [
        row | {"spans": spans, "answer": "accept"},
        row | {"spans": spans, "answer": "reject"},
        row | {"spans": spans, "answer": "ignore"},
        row | {"answer": "accept"},
    ]
    found, data = read(write(tmp_path / "a.jsonl", rows))
    assert found == [(TEXT, [("Anna", "PER")]), (TEXT, [])]
    notes = " ".join(data.change_notes())
    assert "Prodigy marks" in notes and ": 2 (the first:" in notes


# brat


def brat(folder, text, ann, name="a"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    (folder / f"{name}.ann").write_text(ann, encoding="utf-8")
    return folder


ARABIC = "زارت آنا مدينة بون."


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Anna lives in Bonn.\nShe works.", ["Anna", "Bonn"]),
        (f"{FAMILY} Anna lives {FLAG} in Bonn.", ["Anna", "Bonn"]),
        ("Zoe\u0308 lives in Ko\u0308ln.", ["Zoe\u0308", "Ko\u0308ln"]),
        (ARABIC, ["آنا", "بون"]),
        ("Anna\r\nlives\r\nin Bonn.", ["Anna", "Bonn"]),
        ("安娜住在波恩。", ["安娜", "波恩"]),
        ("आन्ना बॉन में रहती है।", ["आन्ना", "बॉन"]),
    ],
    ids=["lines", "emoji", "combining", "rtl", "crlf", "chinese", "hindi"],
)
def test_brat_is_read_by_its_characters(text, parts, tmp_path):
    ann = "".join(
        f"T{i}\tX {start} {end}\t{part}\n"
        for i, (start, end, part) in enumerate(spans_of(text, *parts))
    )
    brat(tmp_path, text, ann)
    for path in (tmp_path, tmp_path / "a.ann", tmp_path / "a.txt"):
        assert read(path)[0] == [(text, [(part, "X") for part in parts])]


def test_brat_of_a_browser_counts_a_line_end_of_windows_once(tmp_path):
    text = "Anna\r\nlives\r\nin New\r\nYork."
    unix = text.replace("\r\n", "\n")
    start = unix.index("New")
    brat(tmp_path, text, f"T1\tPER 0 4\tAnna\nT2\tLOC {start} {start + 8}\tNew York\n")
    assert read(tmp_path)[0] == [(unix, [("Anna", "PER"), ("New\nYork", "LOC")])]


def test_other_annotations_of_brat_are_counted_and_folders_are_read_with_those_in_them(tmp_path):
    others = "R1\tLives Arg1:T1 Arg2:T2\nE1\tMove:T1 Who:T1\n"
    others += "A1\tSure T1\n#1\tNote T1\thm\n*\tSame T1 T2\n"
    brat(tmp_path / "one", "Anna left.", f"T1\tPER 0 4\tAnna\n{others}")
    brat(tmp_path / "two", "It rains.", "", name="b")
    (tmp_path / "annotation.conf").write_text("[entities]\n")
    found, data = read(tmp_path)
    assert found == [("Anna left.", [("Anna", "PER")]), ("It rains.", [])]
    assert [example.id for example in data.examples("train")] == ["a", "b"]
    notes = " ".join(data.change_notes())
    assert "relations, events, attributes and notes of brat, not read: 5" in notes
    assert "annotation.conf" in data.note and "one/" not in data.note


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("T2\tX 0 4;5 9\tAnna left", "row 1.*line 2.*one part"),
        ("T2 X 0 4 Anna", "row 1.*line 2.*one part"),
        ("Anna PER", "row 1.*line 2.*one part"),
        ("T2\tX 0 3\tAnna", 'a.ann, row 1: the entity "Anna" has start 0'),
        ("T2\tX 3 99\tAnna", "a.ann, row 1.*not within the text"),
        ("T2\tX 0 9\tAnna left", '"Anna" and "Anna left" overlap'),
    ],
)
def test_what_is_wrong_in_brat_is_refused_by_place(line, said, tmp_path):
    brat(tmp_path, "Anna left.", f"T1\tPER 0 4\tAnna\n{line}\n")
    with pytest.raises(ValueError, match=said):
        read(tmp_path)


def test_brat_without_its_text_is_refused(tmp_path):
    brat(tmp_path, "Anna left.", "")
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FileNotFoundError, match="a.txt"):
        read(tmp_path)


# WebAnno TSV

NER = "#T_SP=de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity|identifier|value"
POS = "#T_SP=de.tudarmstadt.ukp.dkpro.core.api.lexmorph.type.pos.POS|PosValue"
COREFERENCE = "de.tudarmstadt.ukp.dkpro.core.api.coref.type.CoreferenceLink"
CHAIN = f"#T_CH={COREFERENCE}|referenceType|referenceRelation"


def webanno(path, header, *sentences):
    text = "\n".join(["#FORMAT=WebAnno TSV 3.3", *header, "", ""])
    path.write_text(text + "".join(f"\n{sentence}\n" for sentence in sentences), encoding="utf-8")
    return path


SENTENCES = (
    "#Text=Ms. Haag plays Elianti 😊 .\n"
    "1-1\t0-3\tMs.\tNNP\t*[1]\tPER[1]\t_\t_\t\n"
    "1-2\t4-8\tHaag\tNNP\t*[1]\tPER[1]\tpr[1]\tcoref->1-1\t\n"
    "1-3\t9-14\tplays\tVBD\t_\t_\t_\t_\t\n"
    "1-3.1\t9-13\tplay\t_\t_\t_\t_\t_\t\n"
    "1-4\t15-22\tElianti\tNNP\thttp://x\tWORK\t_\t_\t\n"
    "1-5\t23-25\t😊\tSYM\t_\t_\t_\t_\t\n"
    "1-6\t26-27\t.\t.\t_\t_\t_\t_\t\n",
    "#Sentence.id=s2\n#Text=In 😊 Bonn\\tor\n#Text=not .\n"
    "2-1\t28-30\tIn\tIN\t_\t_\t_\t_\t\n"
    "2-2\t31-33\t😊\tSYM\t_\t_\t_\t_\t\n"
    "2-3\t34-38\tBonn\tNNP\t*\tLOC\\_A\\|B\\[1\\]\t_\t_\t\n"
    "2-4\t39-41\tor\tCC\t_\t_\t_\t_\t\n"
    "2-5\t42-45\tnot\tRB\t_\t_\t_\t_\t\n"
    "2-6\t46-47\t.\t.\t_\t_\t_\t_\t\n",
)


def test_webanno_reads_the_named_entities_of_sentences_in_utf16_units(tmp_path):
    path = webanno(tmp_path / "a.tsv", [POS, NER, CHAIN], *SENTENCES)
    found, data = read(path)
    assert found == [
        ("Ms. Haag plays Elianti 😊 .", [("Ms. Haag", "PER"), ("Elianti", "WORK")]),
        ("In 😊 Bonn\tor\nnot .", [("Bonn", "LOC_A|B[1]")]),
    ]
    assert "layer CoreferenceLink of WebAnno TSV, not read: 1" in " ".join(data.change_notes())
    assert [example.row["document"] for example in data.examples("train")] == ["a", "a"]


def test_layers_of_webanno_are_chosen_by_name(tmp_path):
    own = ["#T_SP=webanno.custom.Span|", "#T_SP=webanno.custom.Mood|Kind|Strength"]
    sentence = "#Text=Anna left .\n1-1\t0-4\tAnna\t*\tglad\tvery\n1-2\t5-9\tleft\t_\t_\t_\n"
    path = webanno(tmp_path / "a.tsv", own, sentence + "1-3\t10-11\t.\t_\t_\t_\n")
    with pytest.raises(ValueError, match="Span, Mood.Kind, Mood.Strength.*--label_column"):
        read(path)
    for name, kind in {"Span": "Span", "Mood.Kind": "glad", "Mood.Strength": "very"}.items():
        assert read(path, columns=Columns(label=name))[0] == [("Anna left .", [("Anna", kind)])]


def test_stacked_annotations_of_webanno_overlap(tmp_path):
    lines = "1-1\t0-3\tNew\t_\tLOC[1]|ORG[2]\n1-2\t4-8\tYork\t_\tLOC[1]\n"
    path = webanno(tmp_path / "a.tsv", [NER], f"#Text=New York\n{lines}", SENTENCES_PLAIN)
    with pytest.raises(ValueError, match='a.tsv, row 5: the entities "New" and "New York" overlap'):
        read(path)
    found, data = read(path, bad_rows="skip")
    assert found[0] == ("New York", [("New York", "LOC")])
    assert "entities that overlap a longer one, left out: 1" in " ".join(data.change_notes())


SENTENCES_PLAIN = "#Text=It rains\n2-1\t9-11\tIt\t_\t_\n2-2\t12-17\trains\t_\t_\n"


def test_the_columns_of_exports_are_there_for_groups(tmp_path):
    sentences = [f"#Text=It rains\n{i}-1\t{9 * i}-{9 * i + 2}\tIt\t_\t_\n" for i in range(1, 6)]
    for name in "abcd":
        webanno(tmp_path / f"{name}.tsv", [NER], *sentences)
    read_by = read_tables("tag", train=tmp_path)
    documents = [example.row["document"] for example in read_by.examples("train")]
    assert documents == [name for name in "abcd" for _ in range(5)]
    assert len({example.id for example in read_by.examples("train")}) == 20
    rows = [task(i, f"{TEXT} {i}", [], meta={}) for i in range(8)]
    for number, row in enumerate(rows):
        row["data"]["patient"] = f"p{number % 2}"
    data = read_tables("tag", train=write(tmp_path / "a.json", rows, lines=False))
    assert [example.row["patient"] for example in data.examples("train")] == ["p0", "p1"] * 4


def test_a_folder_of_webanno_is_read_with_those_in_it(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        webanno(tmp_path / name / "x.tsv", [NER], SENTENCES_PLAIN)
    (tmp_path / "b" / "c.tsv").write_text("It\tO\n")
    assert [text for text, _ in read(tmp_path)[0]] == ["It rains", "It rains"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1-1\t0-4\tAnna\t_\t*\n", "row 5.*is not an entity"),
        ("1-1\t0-4\tAnna\n", "row 5.*line 6"),
        ("1-1\t0-4\tAnna\t_\n", "row 5.*token 0-4"),
        ("#a comment alone\n", "row 5.*no tokens"),
        ("Anna left\n", "row 5.*line 6"),
        ("1-1\t0-44\tAnna\t_\tPER\n", "row 5.*not within the text"),
    ],
)
def test_what_is_wrong_in_webanno_is_refused_by_place(line, said, tmp_path):
    path = webanno(tmp_path / "a.tsv", [NER], f"#Text=Anna left\n{line}")
    with pytest.raises(ValueError, match=said):
        read(path)


# All tools


def test_overlaps_are_refused_by_place_or_the_longest_is_kept(tmp_path):
    text = "He saw New York City Hall today"
    parts = ["New York City Hall", "York", "City Hall today"]
    result = [labelled(text, part, "X") for part in parts] + [labelled(text, "He", "A", "B")]
    path = write(tmp_path / "a.json", [task(1, text, result), task(2, "Hi.", [])], lines=False)
    with pytest.raises(ValueError, match="a.json, row 1.*overlap"):
        read(path)
    found, data = read(path, bad_rows="skip")
    assert found == [(text, [("He", "A"), ("New York City Hall", "X")]), ("Hi.", [])]
    assert "overlap a longer one, left out: 3" in " ".join(data.change_notes())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"start": 0, "end": 99, "labels": ["X"]}, "row 2.*not within the text"),
        ({"start": 0, "end": 4, "labels": ["X"], "text": "Bert"}, "row 2.*Bert"),
        ({"start": 0, "end": 4, "labels": []}, "row 2.*is not an entity"),
        ({"start": "/p[1]", "end": "/p[2]", "labels": ["X"]}, "row 2.*is not an entity"),
        ({"start": 4, "end": 4, "labels": ["X"]}, "row 2.*is empty"),
    ],
)
def test_what_is_wrong_in_label_studio_is_refused_by_place(value, said, tmp_path):
    good = labelled("Anna left.", "Anna", "X")
    bad = good | {"value": value}
    rows = [task(1, "Anna left.", [good]), task(2, "Anna left.", [bad])]
    path = write(tmp_path / "a.json", rows, lines=False)
    with pytest.raises(ValueError, match=said):
        read(path)
    found, data = read(path, bad_rows="skip")
    assert len(found) == 1 and len(data.all_bad_rows()) == 1


def test_a_malformed_task_is_refused_by_place(tmp_path):
    rows = [task(1, "Anna left.", [labelled("Anna left.", "Anna", "X")])] * 2
    rows += [task(2, "Anna left.", [{"value": {}}]), {"id": 3}]
    path = write(tmp_path / "a.json", [*rows[:2], *rows[:2] * 50, *rows[2:]], lines=False)
    with pytest.raises(ValueError, match="row 103.*\n.*row 104"):
        read(path)


WORDS = "Anna Bonn New York U.N. 1,000 O'Brien x|y[1] a_b * -> #tag Zoë Ko\u0308ln".split()
WORDS += ["आन्ना", "रहती", "زارت", "آنا", "安", "波", "😊", "𝒜b", FLAG, FAMILY]


def random_text(draw):
    """Returns a text, (start, end) of its words, and (start, end, label) of its entities."""
    text, words, marks = "", [], []
    for _ in range(draw.randint(3, 12)):
        word = draw.choice(WORDS)
        words.append((len(text), len(text) + len(word)))
        text += word + draw.choice([" ", " ", "  ", "\n", "\r\n"])
    first = 0
    while first < len(words):
        last = min(first + draw.randint(0, 2), len(words) - 1)
        if draw.random() < 0.4:
            marks.append((words[first][0], words[last][1], draw.choice(["PER", "LOC", "Ö_1"])))
        first = last + 1
    return text.rstrip(), words, marks


def escaped(text):
    text = re.sub(r"([\\\[\]|_;*])", r"\\\1", text).replace("->", "\\->")
    return text.replace("\r", "\\r").replace("\n", "\\n")


def webanno_sentence(number, text, words, marks, base):
    def place(at):
        return base + utf16(text[:at])

    lines = [f"#Text={escaped(part)}" for part in text.split("\n")]
    for token, (start, end) in enumerate(words, 1):
        value = "_"
        for index, (first, last, label) in enumerate(marks):
            if first <= start and end <= last:
                value = f"{escaped(label)}[{100 * number + index}]"
        lines.append(
            f"{number}-{token}\t{place(start)}-{place(end)}\t{escaped(text[start:end])}\t_\t{value}\t"
        )
    return "\n".join(lines)


def test_all_tools_give_the_same_entities_of_random_texts(tmp_path):
    draw = random.Random(7)
    docs = [random_text(draw) for _ in range(60)]
    tasks, older, doccano, prodigy, sentences, base = [], [], [], [], [], 0
    for number, (text, words, marks) in enumerate(docs, 1):
        results, results16, offsets, spans = [], [], [], []
        parts = [(*mark, re.sub("\r?\n", "\\\\n", text[mark[0] : mark[1]])) for mark in marks]
        for start, end, label, said in parts:
            start16, end16 = utf16(text[:start]), utf16(text[:end])
            results.append(labelled(text, said, label, start, end))
            results16.append(labelled(text, said, label, start16, end16))
            offsets.append({"label": label, "start_offset": start16, "end_offset": end16})
            spans.append({"start": start, "end": end, "label": label})
        tasks.append(task(number, text, results))
        older.append(task(number, text, results16))
        row = {"id": number, "text": text}
        doccano.append({**row, "entities": offsets, "relations": [], "Comments": []})
        prodigy.append({**row, "spans": spans, "_task_hash": number, "answer": "accept"})
        for folder in ("lf", "crlf"):
            ann = ""
            for start, end, label, said in parts:
                if folder == "lf":
                    start, end = (len(text[:at].replace("\r\n", "\n")) for at in (start, end))
                ann += "\t".join(["T1", f"{label} {start} {end}", said.replace("\\n", " ")]) + "\n"
            brat(tmp_path / folder, text, ann, name=f"{number:03}")
        sentences.append(webanno_sentence(number, text, words, marks, base))
        base += utf16(text) + 1
    wanted = [(text, [(text[s:e], label) for s, e, label in marks]) for text, _, marks in docs]
    write(tmp_path / "ls.json", tasks, lines=False)
    write(tmp_path / "ls16.json", older, lines=False)
    write(tmp_path / "doccano.jsonl", doccano)
    write(tmp_path / "prodigy.jsonl", prodigy)
    webanno(tmp_path / "webanno.tsv", [NER], *sentences)
    for name in "ls.json ls16.json doccano.jsonl prodigy.jsonl webanno.tsv crlf lf".split():
        found, _ = read(tmp_path / name)
        for (text, entities), (wanted_text, wanted_entities) in zip(found, wanted, strict=True):
            if name == "lf":  # the text in which a line end is one character, if that decides
                text, wanted_text = text.replace("\r\n", "\n"), wanted_text.replace("\r\n", "\n")
                entities = [(part.replace("\r\n", "\n"), label) for part, label in entities]
                wanted_entities = [(x.replace("\r\n", "\n"), y) for x, y in wanted_entities]
            assert (text, entities) == (wanted_text, wanted_entities), name


def test_a_model_that_learnt_from_one_tool_reads_the_exports_of_the_others(tmp_path):
    trained = Columns(text="text", label="entities")
    ((start, end, _),) = spans_of("Anna left.", "Anna")
    prodigy = {"text": "Anna left.", "_task_hash": 1, "answer": "accept", "tokens": []}
    prodigy["spans"] = [{"start": start, "end": end, "label": "PER"}]
    tasks = [task(1, "Anna left.", [labelled("Anna left.", "Anna", "PER", name="ner")])]
    doccano = {"id": 1, "text": "Anna left.", "label": [[start, end, "PER"]], "Comments": []}
    sentence = "#Text=Anna left.\n1-1\t0-4\tAnna\t_\tPER\n1-2\t5-10\tleft.\t_\t_\n"
    paths = [
        write(tmp_path / "a.json", tasks, lines=False),
        write(tmp_path / "b.jsonl", [doccano]),
        write(tmp_path / "c.jsonl", [prodigy]),
        brat(tmp_path / "d", "Anna left.", "T1\tPER 0 4\tAnna\n"),
        webanno(tmp_path / "e.tsv", [NER], sentence),
    ]
    for path in paths:
        data = read_tables("tag", test=path, columns=trained, bad_rows="report")
        (example,) = data.examples("test")
        assert (example.text, example.label[0]) == ("Anna left.", "B-PER"), path
        assert not example.problem


def test_exports_in_which_nothing_is_found_are_texts_without_entities(tmp_path):
    rows = {
        "a.json": task(1, "Hi.", []),
        "b.jsonl": {"text": "Hi.", "spans": [], "_task_hash": 1, "answer": "accept"},
        "c.jsonl": {"id": 1, "text": "Hi.", "label": [], "Comments": []},
    }
    some = write(
        tmp_path / "some.json", [task(1, TEXT, [labelled(TEXT, "Anna", "X")])], lines=False
    )
    for name, row in rows.items():
        path = write(tmp_path / name, [row], lines=name == "a.json")
        data = read_tables("tag", train=some, dev=path)
        assert [example.label for example in data.examples("dev")] == [("O", "O")], name


def test_labels_of_prodigy_may_have_spaces(tmp_path):
    spans = [{"start": 0, "end": 4, "label": "Family name"}]
    row = {"text": "Anna left", "spans": spans, "_task_hash": 1, "answer": "accept"}
    assert read(write(tmp_path / "a.jsonl", [row]))[0][0][1] == [("Anna", "Family_name")]


def test_other_versions_of_webanno_and_words_alone_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("#FORMAT=WebAnno TSV 2\n\n#Text=Hi\n1-1\tHi\tO\n")
    with pytest.raises(ValueError, match="a.tsv is not WebAnno TSV 3"):
        read(tmp_path / "a.tsv")
    path = webanno(tmp_path / "b.tsv", [POS], "#Text=Hi\n1-1\t0-2\tHi\tUH\t")
    with pytest.raises(ValueError, match="POS.PosValue"):
        read(path)
    assert read(path, columns=Columns(label="POS.PosValue"))[0] == [("Hi", [("Hi", "UH")])]


def test_tables_that_are_no_exports_stay_as_they_are(tmp_path):
    entities = [[3, 7, "X"]]
    rows = [{"id": 1, "text": f"{FLAG} Anna", "entities": entities, "answer": "accept"}]
    assert read(write(tmp_path / "a.jsonl", rows))[0] == [(f"{FLAG} Anna", [("Anna", "X")])]
    rows = [{"text": "Anna", "data": {"x": 1}, "entities": [[0, 4, "X"]], "annotations": 3}]
    assert read(write(tmp_path / "b.jsonl", rows))[0] == [("Anna", [("Anna", "X")])]
    (tmp_path / "c.tsv").write_text("#FORMAT=x\nAnna\tB-X\n\nleft\tO\n")
    data = read_tables("tag", train=tmp_path / "c.tsv")
    assert [example.words for example in data.examples("train")] == [("Anna",), ("left",)]
