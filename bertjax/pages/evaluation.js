// What a reviewer asks of an evaluation: the data, scores of parts of the rows, folds, draws of few examples.

const MOST_CLASSES = 50;
const inUnits = (metric, value) => data.names[metric].percent ? percent(value, 2) : decimal(value);
const counted = (count) => count === undefined || count === null ? "–" : grouped(count);

function paragraphs(...texts) { return texts.filter(Boolean).map((text) => element("p", {}, text)); }

// How many examples there are, of what lengths and classes, and what is in two splits.
function dataOf(run) {
  const facts = run.evaluation.data;
  if (!facts) return [];
  const names = Object.keys(facts.splits), of = (name) => facts.splits[name];
  const isGrouped = facts.group_columns.length > 0, shown = ["shortest", "median", "most", "longest"];
  const heads = ["split", "examples", ...(isGrouped ? ["groups"] : []), "shortest", "median", "95 % have at most", "longest", "full length"];
  const rows = names.map((name) => [name, counted(of(name).examples), ...(isGrouped ? [counted(of(name).groups)] : []),
    ...shown.map((field) => counted(of(name)[field])), counted(of(name).truncated)]);
  const cut = facts.windows ? "Longer texts are read in overlapping windows; the length is that of the longest window." :
    "Texts in the last column have this length or more, and longer ones are cut.";
  const sizes = section("Examples", element("p", {}, `Lengths are in tokens. The model reads at most ${grouped(facts.max_length)} at once. ${cut}`),
    table(heads, rows, heads.map((_, n) => n).slice(1)),
    ...paragraphs(facts.note.replace(/^warning: /, ""), isGrouped && `Examples with one value of ${facts.group_columns.join(" or ")} are a group, which is in one split only.`));
  const made = element("div", { class: "grid" }, sizes, ...[classTable(run), leakTable(facts)].filter(Boolean));
  if (made.children.length % 2) sizes.classList.add("wide");
  return [element("h2", {}, isOne ? "Data" : `Data of ${run.name}`), made];
}

// The classes of train, and of the splits whose predictions are summarised by class.
function classTable(run) {
  const classes = { train: run.evaluation.data.classes };
  for (const { split, label_kind: kind, classes: rows } of run.splits) {
    if (["classes", "multi_label"].includes(kind) && rows) classes[split] = Object.fromEntries(rows.map((row) => [row.name, row.support]));
  }
  const splits = Object.keys(classes), names = Object.keys(classes.train).sort((a, b) => classes.train[b] - classes.train[a]);
  if (!names.length) return null;
  const rows = names.slice(0, MOST_CLASSES).map((name) => [name, ...splits.map((split) => {
    const total = Object.values(classes[split]).reduce((sum, count) => sum + count, 0), count = classes[split][name] || 0;
    return `${grouped(count)} (${percent(total ? count / total : 0, 1)})`;
  })]);
  const rest = names.length > MOST_CLASSES ? ` The ${MOST_CLASSES} most frequent of ${grouped(names.length)} are shown.` : "";
  return section("Classes", element("p", {}, `How many examples have each class: in tagging, how many words, and of long texts, how many windows.${rest}`),
    element("div", { style: "max-height:420px;overflow:auto" }, table(["class", ...splits], rows, splits.map((_, n) => n + 1))));
}

function leakTable({ leaked_rows: counts, leaks, splits }) {
  if (Object.keys(splits).length < 2) return null;
  const found = Object.entries(counts).map(([split, count]) => `${grouped(count)} examples of ${split}`);
  const said = found.length ? `${found.join(" and ")} are in train as well, equal or nearly so. Scores on them are better than those of new texts, unless --drop_leaks leaves them out. leaks.jsonl lists all pairs.` :
    "No example of another split is in train, equal or with a similarity of at least 0.8.";
  const rows = leaks.map((pair) => [pair.split, baseName(pair.where), baseName(pair.train), pair.similarity.toFixed(2)]);
  return section("Leaks between the splits", element("p", {}, said), rows.length ? table(["split", "example", "its copy in train", "similarity"], rows, [3]) : null);
}

// "a.csv, row 3" for "folder/a.csv, row 3".
function baseName(where) { return where.slice(where.lastIndexOf("/") + 1); }

// Scores with their intervals as dots on lines; the table beside it has the same numbers as text.
function intervalPlot(label, rows, format) {
  const bounds = rows.flatMap((row) => [row.value, ...(row.interval || []), ...(row.values || [])]);
  const low = Math.min(...bounds), high = Math.max(...bounds), pad = (high - low) * 0.06 || 0.05;
  const left = 150, width = 560, step = 26, height = rows.length * step + 34;
  const x = (value) => left + (value - low + pad) / (high - low + 2 * pad) * (width - left - 30);
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}; the table has the same numbers`, style: "max-width:720px" });
  for (const value of ticks(low - pad, high + pad, 6)) {
    svg.append(node("line", { class: "rule", x1: x(value), x2: x(value), y1: 4, y2: height - 26 }),
      node("text", { class: "tick", x: x(value), y: height - 10, "text-anchor": "middle" }, format(value)));
  }
  rows.forEach((row, n) => {
    const y = 16 + n * step, name = row.label.length > 20 ? `${row.label.slice(0, 19)}…` : row.label;
    svg.append(node("text", { class: "tick", x: left - 10, y: y + 4, "text-anchor": "end" }, name));
    if (row.interval) svg.append(node("line", { class: "range", x1: x(row.interval[0]), x2: x(row.interval[1]), y1: y, y2: y }));
    for (const value of row.values || []) svg.append(node("circle", { class: "draw", cx: x(value), cy: y, r: 3 }));
    svg.append(node("circle", { class: "point", cx: x(row.value), cy: y, r: 5 }));
  });
  return element("div", { class: "plot" }, svg);
}

// The scores of the rows with each value of a column, the worst first.
function sliceFigure(split, column, { metric, rows, few }) {
  const title = `${titled(metric)} of ${split} by ${column}`;
  const rare = Object.entries(few), shownRare = rare.slice(0, MOST_CLASSES).map(([value, count]) => `${value} (${count})`);
  const tooFew = rare.length ? `Too few rows for a score: ${shownRare.join(", ")}${rare.length > MOST_CLASSES ? ` and ${grouped(rare.length - MOST_CLASSES)} more` : ""}.` : "";
  if (!rows.length) return section(title, ...paragraphs(tooFew));
  const format = (value) => inUnits(metric, value);
  const cells = rows.map((row) => {
    const found = row.intervals[metric];
    return [row.value, grouped(row.rows), format(row.scores[metric]), found ? found.map(format).join(" to ") : "–"];
  });
  const dots = rows.map((row) => ({ label: row.value, value: row.scores[metric], interval: row.intervals[metric] }));
  return section(title, element("p", {}, "The worst value is first. Lines are 95 % intervals: where they overlap much, the difference may be chance."),
    intervalPlot(title, dots, (value) => data.names[metric].percent ? percent(value, 0) : short(value, 3)),
    table([column, "rows", named(metric), "95 % interval"], cells, [1, 2, 3]), ...paragraphs(tooFew));
}

function slicesOf(slices) {
  const figures = Object.entries(slices || {}).flatMap(([split, columns]) => Object.entries(columns).map(([column, found]) => sliceFigure(split, column, found)));
  if (!figures.length) return [];
  if (figures.length % 2) figures[0].classList.add("wide");
  return [element("h2", {}, "Scores of slices"), element("div", { class: "grid" }, ...figures)];
}

// What the baselines are; "" without any.
function baselineSentence(run) {
  const found = run.evaluation.baselines || {};
  if (!found.splits) return "";
  const models = Object.values(found.splits)[0];
  if (!models) return found.skipped;
  const constant = "mean" in models ? "The mean answers every row with the mean of the targets." : "The majority answers every row with the most frequent class, or the labels that most rows have.";
  return `The baselines are trained on ${grouped(found.rows)} examples of train. ${constant} The bag of words is a logistic or ridge regression on the TF-IDF of words: what the encoder adds is the distance to it.`;
}
