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
    ...paragraphs(facts.note.replace(/^warning: /, ""), facts.warning, isGrouped && `Examples with one value of ${facts.group_columns.join(" or ")} are a group, which is in one split only.`));
  const made = element("div", { class: "grid" }, sizes, ...[classTable(run), leakTable(facts)].filter(Boolean));
  if (made.children.length % 2) sizes.classList.add("wide");
  return [element("h2", {}, isOne ? "Data" : `Data of ${run.name}`), made];
}

// The classes of train, and of the splits whose predictions are summarised by class.
function classTable(run) {
  const classes = { train: run.evaluation.data.classes };
  for (const { split, label_kind: kind, classes: rows } of run.splits) {
    if (["classes", "multi_label", "distribution"].includes(kind) && rows) classes[split] = Object.fromEntries(rows.map((row) => [row.name, row.support]));
  }
  const splits = Object.keys(classes), names = Object.keys(classes.train).sort((a, b) => classes.train[b] - classes.train[a]);
  if (!names.length) return null;
  const sum = (split) => Object.values(classes[split]).reduce((sum, count) => sum + count, 0);
  // An example may have several labels, or none: shares are then those of the examples.
  const kinds = [run.evaluation.data.label_kind, ...run.splits.map((split) => split.label_kind)];
  const isSeveral = !run.evaluation.data.windows && kinds.includes("multi_label");
  const totals = Object.fromEntries(splits.map((split) => [split, isSeveral ? (run.evaluation.data.splits[split] || {}).examples || 0 : sum(split)]));
  const rows = names.slice(0, MOST_CLASSES).map((name) => [name, ...splits.map((split) => {
    const total = totals[split], count = classes[split][name] || 0;
    return `${grouped(count)} (${percent(total ? count / total : 0, 1)})`;
  })]);
  const rest = names.length > MOST_CLASSES ? ` The ${MOST_CLASSES} most frequent of ${grouped(names.length)} are shown.` : "";
  return section("Classes", element("p", {}, `How many examples have each class: in tagging, how many words, and of long texts, how many windows.${rest}`),
    element("div", { style: "max-height:420px;overflow:auto" }, table(["class", ...splits], rows, splits.map((_, n) => n + 1))));
}

function leakTable({ leaked_rows: counts, leaks, dropped_leaks: dropped = {}, splits }) {
  if (Object.keys(splits).length < 2) return null;
  const found = Object.entries(counts).map(([split, count]) => `${grouped(count)} examples of ${split}`);
  const left = Object.entries(dropped).map(([split, count]) => ` --drop_leaks left ${grouped(count)} examples out of ${split}, which leaks.jsonl lists.`).join("");
  const said = (found.length ? `${found.join(" and ")} are in train as well, equal or nearly so. Scores on them are better than those of new texts; --drop_leaks leaves them out. leaks.jsonl lists all pairs.` :
    "No example of another split is in train, equal or with a similarity of at least 0.8.") + left;
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

// The runs of one command (seeds, folds, draws): {name: {split/metric: score}} of those with scores in common.
function severalRuns(command) {
  const { intervals = {}, ...byRun } = command.scores;
  const own = runs.filter((run) => run.address.slice(0, run.address.lastIndexOf("/")) === command.address);
  const of = (name) => own.find((run) => run.address === `${command.address}/${name}`);
  // A mean over several tasks would say nothing.
  if (new Set(own.map((run) => (run.config.find((row) => row.field === "task") || {}).value)).size > 1) return null;
  const names = Object.keys(byRun).filter((name) => Object.keys(byRun[name]).some((key) => key.startsWith("dev")));
  if (names.length < 2) return null;
  const keys = Object.keys(byRun[names[0]]).filter((key) => names.every((name) => key in byRun[name]));
  const best = own[0].best ? base(own[0].best.metric) : "", main = keys.find((key) => base(key) === best) || keys[0];
  return main ? { byRun, names, keys, main, intervals, of } : null;
}

const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => values.length < 2 ? null : Math.sqrt(values.reduce((sum, value) => sum + (value - meanOf(values)) ** 2, 0) / (values.length - 1));
const scoreName = (key) => `${key.slice(0, key.indexOf("/"))}: ${named(base(key))}`;
const inPlot = (key) => (value) => data.names[base(key)].percent ? percent(value, 0) : short(value, 3);
// The mean of a score of the baselines over several runs, `of` their names; undefined if they have none.
function meanBaseline(of, names, key, model) {
  const values = names.map(of).filter(Boolean).map((run) => {
    const of = ((run.evaluation.baselines || {}).splits || {})[key.slice(0, key.indexOf("/"))];
    return of && of[model] ? of[model][base(key)] : undefined;
  });
  return values.length && values.every((value) => value !== undefined) ? meanOf(values) : undefined;
}
const BASELINE_NAMES = ["majority", "mean", "bag of words"];

// Every run with its scores, then their mean and spread, and the means of the baselines.
function runsTable({ byRun, names, keys, intervals, of }) {
  const cell = (key, value, bounds) => value === null || value === undefined ? "–" : element("span", {}, inUnits(base(key), value),
    bounds ? element("small", { class: "interval" }, ` ${bounds.map((end) => inUnits(base(key), end)).join(" to ")}`) : null);
  const rows = names.map((name) => [name, ...keys.map((key) => cell(key, byRun[name][key], (intervals[name] || {})[key]))]);
  const values = (key) => names.map((name) => byRun[name][key]);
  rows.push(["mean", ...keys.map((key) => element("b", { "data-mean": key }, inUnits(base(key), meanOf(values(key)))))]);
  rows.push(["standard deviation", ...keys.map((key) => cell(key, deviation(values(key))))]);
  for (const [covered, found] of Object.entries(intervals.mean || {})) {
    rows.push([`95 % interval of the mean: ${covered}`, ...keys.map((key) => found[key] ? found[key].map((end) => inUnits(base(key), end)).join(" to ") : "–")]);
  }
  for (const model of BASELINE_NAMES) {
    const means = keys.map((key) => meanBaseline(of, names, key, model));
    if (means.some((value) => value !== undefined)) rows.push([`${model}, mean`, ...means.map((value, n) => cell(keys[n], value))]);
  }
  return table(["run", ...keys.map(scoreName)], rows, keys.map((_, n) => n + 1));
}

const COVERED = { rows: "other rows of the same kind", seeds: "other models of the same data", both: "other models and other rows" };

function runsFigure(found) {
  const { byRun, names, main, intervals } = found;
  const dots = names.map((name) => ({ label: name, value: byRun[name][main], interval: (intervals[name] || {})[main] }));
  const covers = Object.entries(intervals.mean || {}), last = covers[covers.length - 1];
  dots.push({ label: "mean", value: meanOf(names.map((name) => byRun[name][main])), interval: last && last[1][main], values: names.map((name) => byRun[name][main]) });
  const meaning = covers.length ? ` Intervals of the mean cover ${covers.map(([name]) => `${name} (${COVERED[name] || name})`).join(", ")}.` : "";
  return element("section", { class: "wide" }, element("h3", {}, `Scores of ${names.length} runs`),
    element("p", {}, `The figure shows ${scoreName(main)}. Beside each score is its 95 % interval.${meaning}`),
    intervalPlot(scoreName(main), dots, inPlot(main)), runsTable(found));
}

// The curve of a score over the number of training examples per class: dots are draws, the line is their mean.
function curveFigure({ byRun, main, of }, groups) {
  const points = groups.map(([shots, names]) => {
    const values = names.map((name) => byRun[name][main]);
    return { shots, names, values, mean: meanOf(values), spread: deviation(values) };
  });
  const all = points.flatMap((point) => [...point.values, point.mean - (point.spread || 0), point.mean + (point.spread || 0)]);
  const low = Math.min(...all), high = Math.max(...all), pad = (high - low) * 0.08 || 0.05, width = 640, height = 300, left = 64, bottom = height - 44;
  const ends = [Math.log(points[0].shots), Math.log(points[points.length - 1].shots)];
  const x = (shots) => left + 24 + (Math.log(shots) - ends[0]) / (ends[1] - ends[0]) * (width - left - 60);
  const y = (value) => bottom - (value - low + pad) / (high - low + 2 * pad) * (bottom - 12);
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: "max-width:760px", "aria-label": `${scoreName(main)} by the number of examples per class; the table has the same numbers` });
  for (const value of ticks(low - pad, high + pad, 5)) {
    svg.append(node("line", { class: "rule", x1: left, x2: width - 12, y1: y(value), y2: y(value) }), node("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, inPlot(main)(value)));
  }
  svg.append(node("polyline", { points: points.map((point) => `${x(point.shots)},${y(point.mean)}`).join(" "), fill: "none", stroke: "var(--s0)", "stroke-width": 2 }));
  for (const { shots, values, mean, spread } of points) {
    svg.append(node("text", { class: "tick", x: x(shots), y: bottom + 18, "text-anchor": "middle" }, grouped(shots)));
    if (spread !== null) svg.append(node("line", { class: "range", x1: x(shots), x2: x(shots), y1: y(mean - spread), y2: y(mean + spread) }));
    for (const value of values) svg.append(node("circle", { class: "draw", cx: x(shots), cy: y(value), r: 3 }));
    svg.append(node("circle", { class: "point", cx: x(shots), cy: y(mean), r: 5 }));
  }
  svg.append(node("text", { class: "tick", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "training examples per class"));
  const format = (value) => value === null || value === undefined ? "–" : inUnits(base(main), value);
  const rows = points.map(({ shots, names, values, mean, spread }) => [grouped(shots), names.length, element("b", { "data-shots": shots }, format(mean)), format(spread),
    `${format(Math.min(...values))} to ${format(Math.max(...values))}`, format(meanBaseline(of, names, main, "bag of words"))]);
  return element("section", { class: "wide" }, element("h3", {}, "Scores by the number of training examples"),
    element("p", {}, `${titled(base(main))} of ${main.slice(0, main.indexOf("/"))}. Each run has a draw of its own; bars are one standard deviation of the draws.`), element("div", { class: "plot" }, svg),
    table(["examples per class", "draws", "mean", "standard deviation", "lowest to highest", "bag of words, mean"], rows, [0, 1, 2, 3, 4, 5]));
}

// Runs by the number of shots, in ascending order; one group if they do not differ in it.
function byShots({ names, of }) {
  const groups = new Map();
  for (const name of names) {
    const run = of(name), row = run && run.config.find((one) => one.field === "shots");
    const shots = row ? Number(row.value) || 0 : 0;
    groups.set(shots, [...(groups.get(shots) || []), name]);
  }
  return [...groups].sort((a, b) => a[0] - b[0]);
}

// The examples of each fold that are in the folds it is evaluated without.
function foldLeaks({ names, of }) {
  const folds = names.map(of).filter((run) => run && run.evaluation.data);
  const rows = folds.map((run) => [run.name, counted(run.evaluation.data.splits.dev && run.evaluation.data.splits.dev.examples), counted(run.evaluation.data.leaked_rows.dev || 0)]);
  const pairs = folds.flatMap((run) => run.evaluation.data.leaks.map((pair) => [run.name, baseName(pair.where), baseName(pair.train), pair.similarity.toFixed(2)])).slice(0, 20);
  return section("Leaks between the folds", element("p", {}, "Examples of a fold that are in the other folds, equal or with a similarity of at least 0.8: scores on them are better than those of new texts. leaks.jsonl of each fold lists all pairs."),
    table(["fold", "examples", "also in other folds"], rows, [1, 2]), pairs.length ? table(["fold", "example", "its copy in another fold", "similarity"], pairs, [3]) : null);
}

// The means of several commands, such as two cross-validations, beside each other.
function sideBySide(commands) {
  const known = commands.map((command) => [command.name, severalRuns(command)]).filter(([, found]) => found);
  const keys = known.length < 2 ? [] : known[0][1].keys.filter((key) => known.every(([, { keys }]) => keys.includes(key)));
  if (!keys.length) return [];
  const cell = ({ byRun, names, intervals }, key) => {
    const format = (value) => inUnits(base(key), value), bounds = ((intervals.mean || {}).rows || {})[key];
    return element("span", {}, format(meanOf(names.map((name) => byRun[name][key]))), bounds ? element("small", { class: "interval" }, ` ${bounds.map(format).join(" to ")}`) : null);
  };
  const rows = keys.map((key) => [scoreName(key), ...known.map(([, found]) => cell(found, key))]);
  return [element("h2", {}, "Side by side"), element("p", {}, "Means over the runs of each command, with their 95 % intervals over rows. Whether two models differ is not seen by whether their intervals overlap: bertjax score --compare tests it for two files of predictions."),
    table(["mean", ...known.map(([name]) => name)], rows, known.map((_, n) => n + 1))];
}

// The page of several runs of one command begins with what they say together; that of several commands with their means.
function severalOf() {
  const last = (address) => address.slice(address.lastIndexOf("/") + 1), all = data.several.map(({ address }) => last(address));
  const commands = data.several.map((command, n) => ({ ...command, name: new Set(all).size === all.length ? all[n] : command.address }));
  return [...sideBySide(commands), ...commands.flatMap((command) => {
    const made = commandOf(command);
    if (made.length && commands.length > 1) made[0].append(`: ${command.name}`);
    return made;
  })];
}

function commandOf(command) {
  const found = severalRuns(command);
  if (!found) return [];
  const groups = byShots(found), isFolds = found.names.every((name) => /^fold\d+$/.test(name)), { slices, label_errors: errors, by_class: classes = {}, verdict } = command.evaluation;
  const grid = element("div", { class: "grid" });
  if (groups.length > 1 && groups[0][0] > 0) grid.append(curveFigure(found, groups));
  else grid.append(runsFigure(found));
  if (!isFolds) return [element("h2", {}, groups.length > 1 ? "A few examples per class" : "Several runs"), grid];
  const leaks = foldLeaks(found);
  leaks.classList.add("wide");
  grid.append(leaks);
  for (const rows of Object.values(classes)) {
    const kind = runs.flatMap((run) => run.splits).map((split) => split.class_kind).find(Boolean) || "label";
    grid.append(classScores(rows, kind, "Of the examples of all folds together, each predicted by the model that was not trained on it; AUROC compares examples of the same fold. "));
  }
  if (errors && errors.count) grid.append(labelErrors(errors));
  return [element("h2", {}, "Cross-validation"), element("p", {}, "Each fold is predicted by a model that was trained on the others, and the exported model is trained on all examples. The mean over the folds estimates its score, a little too low, because their models have seen fewer examples. Scores of labels and slices are no means: they are of the examples of all folds together."), ...paragraphs(verdict), grid, ...slicesOf(slices)];
}
