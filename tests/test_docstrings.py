"""Public names of bertjax are documented: parameters, shapes, units, errors and sources.

`public_names` tells which names are public. These need no docstring of their own:

- special methods other than `__call__`: the class documents them, including the errors that
  `__init__` and `__post_init__` raise;
- `setup` of a linen module, which only creates layers;
- a method that overrides a method of a base class in bertjax; it is documented by the docstring of
  the base class and its own together;
- overloads, which add nothing but types.

"Raises:" must name the errors of `raise X(...)` in a function and in the private functions of its
module that it calls. Errors of other public functions are documented there.
"""

import ast
import re

import pytest

from tests.public_names import (
    PACKAGE,
    REPO,
    Function,
    base_names,
    bases,
    caught,
    classes,
    entries,
    fields,
    files,
    functions,
    is_special,
    parameters,
    private_callees,
    public_names,
    raised,
    section,
)

PAGES = REPO / "docs" / "api"
# The functions of the package itself are on the first page; __main__ is the command line.
NOT_ON_PAGES = {"bertjax", "bertjax.__main__"}

ARRAY = re.compile(r"\b(jax\.Array|np\.ndarray|ArrayLike)\b")
SHAPE = re.compile(
    r"\[(?!CLS|SEP|MASK|UNK|PAD)(\w|[-+*/(),. ])+\]|\bscalars?\b|\bshapes?\b|\bbatch contract\b"
)
# Parts of names, and the words one of which describes their unit.
UNITS = {
    "seconds|timeout|interval|period": "second|minute|step|epoch",
    "bytes|memory": r"bytes?\b|[KMG]i?B\b",
    "flops": "FLOP",
    "bandwidth": r"bytes?\b|[GT]i?B\b",
    "throughput|per_second": "second",
}
SOURCE = re.compile(
    r"et al\.|\b(19|20)\d\d\b|transformers|Optax|Flax|Hugging Face|google-research|PyTorch|BERT's"
)
# Errors that a context manager around the `raise` turns into others.
TRANSLATED = {("Checkpointer.save", "RuntimeError")}
# Linen modules whose origin is not published, because it is bertjax.
OWN_DESIGN = {"BertWithHead", "TokenHead", "FeatureTagger"}
# Modules that follow a paper or the public code of others.
SOURCED = """
data/batches/masking data/preparation/objectives data/preparation/packing data/preparation/segments
devices/flops devices/roofline model/attention model/bert model/embeddings model/encoder
model/flash_attention model/flash_kernels model/fused_attention model/heads model/losses
model/pretraining_heads model/soft_targets model/tagger planning/chips tasks/classification
tasks/metrics tasks/multiple_choice tasks/question_answering tasks/sources/conll tasks/sources/glue
tasks/sources/squad tasks/sources/swag tasks/squad_metrics tasks/tag_schemes tasks/tagging
tokenization/bpe tokenization/unigram tokenization/wordpiece training/distillation training/lamb
training/loss_history training/optimizer weights/hf weights/sentence_modules weights/student
weights/tf1
""".split()


def check(offenders: list[str]) -> None:
    if offenders:
        pytest.fail(f"{len(offenders)} names:\n" + "\n".join(offenders), pytrace=False)


def test_every_public_name_has_a_docstring():
    names = [n for n in public_names() if not is_special(n) and len(n.full_doc.split()) < 3]
    check([name.lacks("no docstring") for name in names])


def test_raises_sections_name_the_errors_that_a_function_raises():
    offenders = []
    for name, node in functions():
        if is_special(name) and name.owner is None:
            continue  # __getattr__ and __dir__ of a module
        documented = section(name.doc, "Raises") + section(name.full_doc, "Raises")
        callees = private_callees(name)
        handled = set[str]().union(*(caught(function, name.file) for function in [node, *callees]))
        for function in [node, *callees]:
            errors = raised(function) if function is node else raised(function) - handled
            via = "" if function is node else f", which {function.name} raises"
            offenders += [
                name.lacks(f'"Raises:" lacks {error}{via}')
                for error in sorted(errors)
                if not re.search(rf"\b{error}\b", documented)
                and (name.path, error) not in TRANSLATED
            ]
    check(offenders)


def test_every_parameter_is_named_in_the_docstring():
    offenders = []
    for name, node in functions():
        unnamed = [a.arg for a in parameters(node) if not re.search(rf"\b{a.arg}\b", name.full_doc)]
        several = len(parameters(node)) > 1 or node.name in ("__call__", "__init__")
        if unnamed and several and (not is_special(name) or node.name == "__init__"):
            offenders.append(name.lacks(f"nothing about {', '.join(unnamed)}"))
    check(offenders)


def test_functions_of_arrays_tell_the_shapes():
    offenders = []
    for name, node in functions():
        annotations = [a.annotation for a in parameters(node)] + [node.returns]
        types = " ".join(ast.unparse(a) for a in annotations if a is not None)
        if ARRAY.search(types) and not is_special(name) and not SHAPE.search(name.full_doc):
            offenders.append(name.lacks(f"no shapes, such as [B, L], for {types}"))
    check(offenders)


def test_described_parameters_and_attributes_exist():
    offenders = []
    for name, node in functions():
        known = {a.arg for a in parameters(node)}
        unknown = [e for e in entries(section(name.doc, "Args")) if e not in known]
        offenders += [name.lacks(f'"Args:" describes {entry!r}') for entry in unknown]
    for name, node in classes():
        nodes = [n for c in [node, *bases(node)] for n in ast.walk(c)]
        known = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        known |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        known |= {n.name for n in nodes if isinstance(n, Function)}
        unknown = [e for e in entries(section(name.doc, "Attributes")) if e not in known]
        offenders += [name.lacks(f'"Attributes:" describes {entry!r}') for entry in unknown]
        inits = [n for n in node.body if isinstance(n, Function) and n.name == "__init__"]
        known = {a.arg for init in inits for a in parameters(init)}
        unknown = [e for e in entries(section(name.doc, "Args")) if e not in known]
        offenders += [name.lacks(f'"Args:" describes {entry!r}') for entry in unknown]
    check(offenders)


def test_every_field_is_described():
    # Configs: by a string below the field, which --help prints, too. Other records: in the class.
    offenders = []
    for name, node in classes():
        documented = "\n".join([name.doc, *(ast.get_docstring(base) or "" for base in bases(node))])
        is_config = name.file.parent.name == "config" and "Config" in node.name
        for statement, field, below in fields(node):
            if not below and (is_config or not re.search(rf"\b{field}\b", documented)):
                offenders.append(name.lacks(f"nothing about the field {field}", statement))
    check(offenders)


def test_times_sizes_and_rates_have_units():
    offenders = []
    for name in public_names():
        described = []
        if isinstance(name.node, Function):
            described = [(a.arg, name.full_doc) for a in parameters(name.node)]
            described.append((name.node.name, name.full_doc))
        elif isinstance(name.node, ast.ClassDef):
            described = [(field, below or name.doc) for _, field, below in fields(name.node)]
        for subject, text in described:
            for parts, words in UNITS.items():
                if re.search(rf"(^|_)({parts})$", subject) and not re.search(words, text):
                    offenders.append(name.lacks(f"no unit of {subject}"))
    check(offenders)


def test_what_others_published_names_its_source():
    what, offenders = "no source, such as Devlin et al. 2018, 3.1", []
    for name in public_names():
        node, doc = name.node, name.doc
        if isinstance(node, ast.Module):
            module = str(name.file.relative_to(PACKAGE).with_suffix(""))
            needed = module in SOURCED
        elif isinstance(node, ast.ClassDef):
            doc += "".join(ast.get_docstring(base) or "" for base in bases(node))
            needed = "nn.Module" in base_names(node) and node.name not in OWN_DESIGN
        else:
            result = ast.unparse(node.returns) if node.returns else ""
            needed = "GradientTransformation" in result
        if needed and not SOURCE.search(doc):
            offenders.append(name.lacks(what))
    missing = [module for module in SOURCED if not (PACKAGE / f"{module}.py").is_file()]
    check(offenders + [f"{module}.py does not exist: correct SOURCED" for module in missing])


def test_docstrings_are_plain_markdown():
    # Outside of backticks, Markdown takes <x> for HTML, *x* for emphasis and [x][y] for a link.
    offenders = []
    for name in public_names():
        texts = [name.doc]
        if isinstance(name.node, ast.ClassDef):
            texts += [below for _, _, below in fields(name.node)]
        for text in texts:
            prose = re.sub(r"`[^`]*`", "", text)
            found = re.findall(r"<[/!a-zA-Z][^>\n]*>|(?<!\w)\*\w[^\n]*\w\*|\][\[(]|^#.*", prose)
            offenders += [name.lacks(f"put {markup!r} into backticks") for markup in found]
        # A colon in the first line would make a type of the text before it.
        if ": " in section(name.doc, "Returns").partition("\n")[0] + " ":
            offenders.append(name.lacks('the first line of "Returns:" has a colon'))
    check(offenders)


def test_every_module_is_on_exactly_one_page_of_the_api_reference():
    shown = [
        line.removeprefix("::: ").strip()
        for page in sorted(PAGES.glob("*.md"))
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    ]
    parts = [file.relative_to(REPO).with_suffix("").parts for file in files()]
    modules = {".".join(p).removesuffix(".__init__") for p in parts} - NOT_ON_PAGES
    check(
        [
            f"{module} is on {shown.count(module)} pages"
            for module in sorted(modules)
            if shown.count(module) != 1
        ]
    )
