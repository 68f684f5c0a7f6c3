"""Examples of the formats of the user's own files, for `--help` and the documentation."""

# {task: formats of its files}; each has a title, the suffix, and the lines of an example.
FORMATS = {
    "classify": """\
CSV with one class per text (.csv):
    text,label
    A good film.,positive
    "Long, but good.",positive
    Bad.,negative

CSV with pairs of texts (.csv):
    sentence1,sentence2,label
    Anna left.,Anna is gone.,entailment
    Anna left.,Anna is here.,contradiction

JSON lines with several classes per text (.jsonl):
    {"text": "Good and short.", "labels": ["good", "short"]}
    {"text": "Good.", "labels": ["good"]}
    {"text": "An hour.", "labels": []}""",
    "regress": """\
CSV with a number per text (.csv):
    text,score
    A good film.,4.5
    A bad film.,1

JSON lines with a number per pair of texts (.jsonl):
    {"text1": "A cat.", "text2": "A small cat.", "score": 4.2}
    {"text1": "A cat.", "text2": "A car.", "score": 0.5}
    {"text1": "A dog.", "text2": "The dog.", "score": 4.8}""",
    "embed": """\
CSV with pairs of texts that belong together (.csv):
    anchor,positive
    How old is Anna?,Anna's age is 30.
    Who left?,Anna has gone.
    Where is Bonn?,Bonn is on the Rhine.

JSON lines with hard negatives, the same number for each pair (.jsonl):
    {"anchor": "Who left?", "positive": "Anna left.", "negatives": ["Anna came."]}
    {"anchor": "Where?", "positive": "In Bonn.", "negatives": ["In May."]}
    {"anchor": "When?", "positive": "In May.", "negatives": ["In Bonn."]}

CSV with the similarity of pairs of texts (.csv):
    sentence1,sentence2,score
    A cat.,A small cat.,4.2
    A cat.,A car.,0.5
    A dog.,The dog.,4.8""",
    "tag": """\
CoNLL's columns: a word and its tag per line, a blank line between sentences (.conll):
    Anna B-PER
    left O

    Bonn B-LOC

JSON lines with words and tags (.jsonl):
    {"words": ["Anna", "left"], "tags": ["B-PER", "O"]}
    {"words": ["Bonn"], "tags": ["B-LOC"]}
    {"words": ["It", "rains"], "tags": ["O", "O"]}

JSON lines with entities, such that text[start:end] is the entity (.jsonl):
    {"text": "Anna left.", "entities": [{"start": 0, "end": 4, "label": "PER"}]}
    {"text": "To Bonn!", "entities": [[3, 7, "LOC"]]}
    {"text": "It rains.", "entities": []}""",
    "qa": """\
SQuAD's JSON (.json):
    {"data": [{"paragraphs": [{"context": "Anna left.", "qas": [
      {"id": "1", "question": "Who left?", "answers": [{"text": "Anna", "answer_start": 0}]}
    ]}]}]}

JSON lines, a JSON array or Parquet with a question per row, as datasets writes them (.jsonl):
    {"id": "1", "question": "Who left?", "context": "Anna left.", "answers": {"text": ["Anna"], "answer_start": [0]}}
    {"id": "2", "question": "What did Anna do?", "context": "Anna left.", "answers": {"text": ["left"], "answer_start": [5]}}
    {"id": "3", "question": "Who came?", "context": "Anna left.", "answers": {"text": [], "answer_start": []}}

CSV with one answer per question, and its position in the passage, from 0 (.csv):
    question,context,answer,answer_start
    Who left?,Anna left.,Anna,0
    Who came?,Anna left.,,""",  # noqa: E501
    "choice": """\
CSV with one column per choice, and the index of the correct choice (.csv):
    text,choice0,choice1,label
    It rains.,Take an umbrella.,Take a spoon.,0
    It is late.,Wake up.,Go to bed.,1

JSON lines with a list of choices (.jsonl):
    {"text": "It rains.", "choices": ["Take an umbrella.", "Run."], "label": 0}
    {"text": "It is late.", "choices": ["Wake up.", "Go to bed."], "label": 1}
    {"text": "I am hungry.", "choices": ["Sleep.", "Eat."], "label": "Eat."}""",
}
_OTHERS = (
    "The same columns may be in {others}. All but Parquet may be compressed (gz, bz2, xz, zst), "
    "and a folder of files is read as one file. Other column names are guessed, or given with "
    "--text_column, --label_column and so on."
)


def format_help(task: str) -> str:
    """Returns the formats of the user's files for a task, for --help; "" for official files."""
    if task not in FORMATS:
        return ""
    parts = [f"Files for --task={task}:", FORMATS[task]]
    if task != "qa":
        others = (
            "a JSON array, Parquet, or CSV, in which the lists are written as in JSON; other "
            "suffixes, also .tsv, mean CoNLL's columns"
        )
        parts.append(
            _OTHERS.format(others=others if task == "tag" else "TSV, a JSON array or Parquet")
        )
    return "\n\n".join(parts)
