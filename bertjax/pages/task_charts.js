// Figures of a task: confusion matrix, scores per class, reliability diagram, scatter plot, mistakes.

function section(title, ...children) { return element("section", {}, element("h3", {}, title), ...children); }

function table(heads, rows, numeric = []) {
  const cell = (name, value, column) => {
    const made = element(name, numeric.includes(column) ? { class: "n" } : { dir: "auto" });
    if (name === "th") made.setAttribute("scope", "col");
    made.append(value instanceof Node ? value : String(value));
    return made;
  };
  const head = element("thead", {}, element("tr", {}, ...heads.map((text, n) => cell("th", text, n))));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, n) => cell("td", value, n)))));
  return element("div", { class: "scroll" }, element("table", {}, head, body));
}

// One row per gold class, one column per predicted class; the shade is the share of the row.
function confusionMatrix({ labels, counts }) {
  const totals = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
  const head = element("tr", {}, element("th", { class: "corner" }, "label ↓ predicted →"), ...labels.map((label) => element("th", { title: label, scope: "col", dir: "auto" }, label)));
  const rows = counts.map((row, gold) => element("tr", {}, element("th", { title: labels[gold], scope: "row", dir: "auto" }, labels[gold]),
    ...row.map((count, predicted) => {
      const share = totals[gold] ? count / totals[gold] : 0;
      const cell = element("td", {
        class: gold === predicted ? "right" : "", style: `background:rgba(var(--cell), ${(share * 0.62).toFixed(3)})`,
        "data-gold": labels[gold], "data-predicted": labels[predicted],
        title: `${count} of ${totals[gold]} examples of ${labels[gold]} are predicted as ${labels[predicted]} (${percent(share, 1)})`,
      }, String(count));
      if (labels.length <= 10 && totals[gold]) cell.append(element("small", {}, percent(share, 1)));
      return cell;
    })));
  return section("Confusion matrix",
    element("p", {}, "Rows: the label in the data. Columns: the prediction. Per cent: of the row. Framed: right predictions."),
    element("div", { class: "scroll" }, element("table", { class: "matrix" }, element("thead", {}, head), element("tbody", {}, ...rows))));
}

function confusions({ rows, all }) {
  const rest = all > rows.length ? `The ${rows.length} most frequent of ${all} confusions; there are too many classes for a matrix.` : "There are too many classes for a matrix.";
  return section("Confusions", element("p", {}, rest),
    element("div", { style: "max-height:420px;overflow:auto" }, table(["gold", "predicted", "examples"], rows.map(([gold, answer, count]) => [gold, answer, grouped(count)]), [2])));
}

function classScores(classes, kind, whose = "") {
  const known = (row, value) => row.support || row.precision ? percent(value, 2) : "–";
  // Of two classes, or of several labels: with their intervals.
  const isDiagnosed = classes.some((row) => "specificity" in row), more = isDiagnosed ? ["sensitivity", "specificity", "AUROC"] : [];
  const diagnosed = (row, metric) => {
    const bounds = (row.intervals || {})[metric], value = row[metric];
    if (value === undefined) return "–";
    return element("span", {}, percent(value, 2), bounds ? element("small", { class: "interval" }, ` ${bounds.map((bound) => percent(bound, 2)).join(" to ")}`) : null);
  };
  const rows = classes.map((row) => [row.name, known(row, row.precision), known(row, row.recall), known(row, row.f1), grouped(row.support), ...more.map((metric) => diagnosed(row, metric.toLowerCase()))]);
  const made = section(`Scores by ${kind}`,
    element("p", {}, whose + "Precision: share of the predictions that are right. Recall: share of the labels that are found. F1: their harmonic mean. Support: number of labels." +
      (isDiagnosed ? " Sensitivity: the recall. Specificity: share of the examples without the label for which it is not predicted. AUROC: probability that an example with the label has a higher probability of it than one without. Beside them: 95 % intervals." : "")),
    element("div", { style: "max-height:460px;overflow:auto" }, table([kind, "precision", "recall", "F1", "support", ...more], rows, [1, 2, 3, 4, 5, 6, 7])));
  if (isDiagnosed) made.classList.add("wide");
  return made;
}

// Frame of a square plot from 0 to 1, or from low to high, on both axes.
function square(low, high, xLabel, yLabel, form) {
  const size = 320, left = 52, top = 10, right = size - 20, bottom = size - 42;
  const x = (value) => left + (value - low) / (high - low) * (right - left);
  const y = (value) => bottom - (value - low) / (high - low) * (bottom - top);
  const svg = node("svg", { viewBox: `0 0 ${size} ${size}`, style: "max-width:420px;margin:0 auto", role: "group", "aria-label": `${yLabel} by ${xLabel}` });
  for (const value of ticks(low, high, 7)) {
    svg.append(node("line", { class: "rule", x1: left, x2: right, y1: y(value), y2: y(value) }),
      node("text", { class: "tick", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, form(value)),
      node("text", { class: "tick", x: x(value), y: bottom + 16, "text-anchor": "middle" }, form(value)));
  }
  svg.append(node("text", { class: "tick", x: (left + right) / 2, y: size - 6, "text-anchor": "middle" }, xLabel),
    node("text", { class: "tick", transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  return { svg, x, y };
}

// The fitted temperature; its errors are measured on examples that it was not fitted on.
function temperatureSentence({ temperature, examples, bins, ece_before, ece_after }) {
  const after = ece_after === null ? "" : `, and ${percent(ece_after, 2)} with the temperature (fitted on one half of the examples, measured on the other)`;
  return `The exported model divides its logits by the temperature ${short(temperature, 3)}, fitted on ${grouped(examples)} examples: the calibration error over ${bins} bins is ${percent(ece_before, 2)} without it${after}. The diagram shows the probabilities without it.`;
}

// Confidence and accuracy by bins of confidence; the dashed line is perfect calibration.
function reliability({ unit, ece, bins, scaled }) {
  const { svg, x, y } = square(0, 1, "confidence of the prediction", "share that is right", (value) => `${Math.round(100 * value)} %`);
  const read = element("p", { class: "read", role: "status", "aria-live": "polite" }, "Point at a bar for its numbers.");
  const most = Math.max(...bins.map((bin) => bin.count)), total = bins.reduce((sum, bin) => sum + bin.count, 0);
  bins.forEach((bin, n) => {
    if (!bin.count) return;
    const low = n / bins.length, high = (n + 1) / bins.length, width = x(high) - x(low) - 2;
    const top = Math.max(bin.accuracy, bin.confidence), under = Math.min(bin.accuracy, bin.confidence);
    const said = `Confidence ${Math.round(100 * low)} to ${Math.round(100 * high)} %: ${grouped(bin.count)} of ${grouped(total)} ${unit}; ` +
      `mean confidence ${percent(bin.confidence, 1)}, right ${percent(bin.accuracy, 1)}.`;
    const bar = node("rect", { class: "hit", tabindex: 0, role: "img", "aria-label": said, "data-bin": n, x: x(low) + 1, width,
      y: y(bin.accuracy), height: Math.max(1, y(0) - y(bin.accuracy)), opacity: 0.45 + 0.55 * Math.sqrt(bin.count / most) });
    for (const kind of ["pointerenter", "focus"]) bar.addEventListener(kind, () => { read.textContent = said; });
    svg.append(bar, node("rect", { class: "gap", x: x(low) + 1, width, y: y(top), height: y(under) - y(top), "pointer-events": "none" }));
  });
  svg.append(node("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  return section("Reliability diagram",
    element("p", {}, ece === null ? "There are no probabilities." :
      `Expected calibration error: ${percent(ece, 2)} (mean distance between confidence and share of right ${unit}, over ${bins.length} bins of equal width). Shaded: the distance. Pale bars: few ${unit}. A bar below the dashed line: the model is too confident.`),
    scaled ? element("p", { class: "scaled" }, temperatureSentence(scaled)) : null,
    element("div", { class: "plot" }, svg), read);
}

function scatter({ points, every, examples }) {
  const values = points.flat(), low = Math.min(...values), high = Math.max(...values), pad = (high - low) * 0.05 || 1;
  const { svg, x, y } = square(low - pad, high + pad, "label in the data", "prediction", (value) => short(value, 3));
  const read = element("p", { class: "read", role: "status", "aria-live": "polite" }, "Point at a dot for its numbers.");
  svg.append(node("line", { class: "ideal", x1: x(low), y1: y(low), x2: x(high), y2: y(high) }));
  points.forEach(([gold, predicted]) => {
    const dot = node("circle", { class: "spot", cx: x(gold), cy: y(predicted), r: points.length > 500 ? 2.5 : 3.5 });
    dot.addEventListener("pointerenter", () => { read.textContent = `label ${gold}, prediction ${predicted}, difference ${short(predicted - gold)}`; });
    svg.append(dot);
  });
  const which = every > 1 ? `Every ${every}th of ${grouped(examples)} examples.` : `All ${grouped(examples)} examples.`;
  return section("Predictions and labels", element("p", {}, `${which} On the dashed line, both are equal.`), element("div", { class: "plot" }, svg), read);
}

function mistakeText(mistake) {
  const text = element("p", { dir: "auto" });
  if (mistake.marked) {
    const [start, end] = mistake.marked, letters = [...mistake.text];
    const part = (...edges) => letters.slice(...edges).join("");
    text.append(part(0, start), element("mark", {}, part(start, end)), part(end));
  } else {
    text.append(mistake.text);
  }
  return text;
}

// Where an example is: its row as a spreadsheet counts, and its id if the data has ids.
function whereIs(split, mistake) {
  const id = mistake.id && (split.has_ids || !mistake.place) ? `${mistake.place ? "id" : "example"} ${mistake.id}` : "";
  return [mistake.place, id].filter(Boolean).map((text) => ` · ${text}`).join("");
}

const attributed = (count) => element("div", {}, element("p", {}, `The words of the first ${count} have the colours of what they add to the logit of the prediction, or take from it: integrated gradients (Sundararajan et al. 2017) from a text of [PAD].`), attributionScale());

function mistakes(split) {
  const isNumber = split.label_kind === "regression", first = 8, whys = split.attributions || [];
  const rows = split.mistakes.map((mistake, n) => {
    const said = element("span", {}, "label ", element("b", { class: "gold", dir: "auto" }, String(mistake.gold)), ", predicted ",
      element("b", { class: "predicted", dir: "auto" }, isNumber ? short(mistake.predicted) : mistake.predicted),
      isNumber ? ` (error ${short(mistake.error)})` : ` with ${percent(mistake.probability, 1)}`, whereIs(split, mistake));
    if (whys[n]) return element("div", { class: "mistake" }, ...attributedTexts(whys[n]), said, element("p", { class: "read" }, `${whys[n].target}${whys[n].remark || ""}: ${completeness(whys[n])}`), attributionNumbers(whys[n]));
    return element("div", { class: "mistake" }, mistakeText(mistake), mistake.pair ? element("p", { dir: "auto" }, mistake.pair) : null, said);
  });
  const list = element("div", {}, ...rows.slice(0, first));
  const how = isNumber ? `The ${rows.length} largest errors of ${grouped(split.examples)} examples.` :
    `${grouped(split.wrong)} of ${grouped(split.decisions)} ${split.calibration.unit} are wrong; here are ${rows.length < split.wrong ? `the ${rows.length} with the highest probability` : "all of them, the most confident first"}. They show errors of the model, and errors of the labels.`;
  const made = element("section", { class: "wide" }, element("h3", {}, isNumber ? "Largest errors" : "Most confident mistakes"),
    element("p", {}, rows.length ? how : "There is no wrong prediction."), rows.length && whys.length ? attributed(whys.length) : null, list);
  if (rows.length > first) {
    const more = element("button", { type: "button", class: "small" }, rows.length < split.wrong ? `show ${rows.length}` : `show all ${rows.length}`);
    more.addEventListener("click", () => { list.append(...rows.slice(first)); more.remove(); });
    made.append(more);
  }
  return made;
}

// Labels that the model, which was not trained on them, says are wrong.
function labelErrors(errors) {
  const rows = errors.rows.map((row) => element("div", { class: "mistake" }, element("p", { dir: "auto" }, row.text),
    row.pair ? element("p", { dir: "auto" }, row.pair) : null,
    element("span", {}, row.words ? `${row.words} · ` : "", "label ", element("b", { class: "gold", dir: "auto" }, row.label), " with ",
      percent(row.self_confidence, 1), ", suggested ", element("b", { class: "predicted", dir: "auto" }, row.suggested_label), " with ",
      percent(row.probability, 1), row.place ? ` · ${row.place}` : "")));
  return element("section", { class: "wide" }, element("h3", {}, "Labels to look at"),
    element("p", {}, `${grouped(errors.count)} labels may be wrong by confident learning (Northcutt et al. 2021)${rows.length < errors.count ? `; here are the ${rows.length} surest` : ""}. label_errors.csv has all of them.`),
    ...rows);
}

// Tables on the left, the figure with the probabilities or numbers on the right, mistakes below; a wide table above.
function splitFigures(split, ...before) {
  const tables = [...before];
  if (split.confusion) tables.push(confusionMatrix(split.confusion));
  if (split.confusions) tables.push(confusions(split.confusions));
  const scores = split.classes ? classScores(split.classes, split.class_kind) : null, isWide = scores && scores.classList.contains("wide");
  if (!isWide) tables.push(scores);
  const figure = split.points ? scatter(split) : split.calibration ? reliability(split.calibration) : null;
  const left = tables.filter(Boolean), made = element("div", { class: "grid" });
  const stack = left.length ? element("div", { class: figure ? "stack" : "stack wide" }, ...left) : null;
  if (figure && !stack) figure.classList.add("wide");
  made.append(...[isWide ? scores : null, stack, figure, split.mistakes ? mistakes(split) : null, split.label_errors && split.label_errors.count ? labelErrors(split.label_errors) : null].filter(Boolean));
  return made;
}
