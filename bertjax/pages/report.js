// Fills the page of one run, or of several runs that are compared.

const runs = data.runs, isOne = runs.length === 1;
const DASHES = ["", "7 4", "2 3"];

const LAST = ["learning_rate", "grad_norm", "tokens_per_second", "mfu"];
// Whether a training metric is a mean since the last log line; the others are of its last step.
const isMean = (name) => !["learning_rate", "grad_norm"].includes(name);
const base = (metric) => metric.slice(metric.indexOf("/") + 1);
// A metric in plain words, as in the terminal: "MLM loss", or with its capital "Learning rate".
const named = (name) => data.names[name] ? data.names[name].label : name;
const titled = (name) => named(name)[0].toUpperCase() + named(name).slice(1);
// "held-out MLM loss", "training loss", "learning rate".
function plain(metric) {
  const name = base(metric);
  return LAST.includes(name) ? named(name) : `${metric.startsWith("train/") ? "training" : "held-out"} ${named(name)}`;
}
const isPercent = (metric) => data.names[base(metric)].percent;
const shown = (metric, value) => {
  if (value === null || value === undefined) return "–";
  return isPercent(metric) ? percent(value, 2) : decimal(value);
};
// A number in a tile or table: as many digits as a reader compares.
const decimal = (value) => Math.abs(value) >= 100 ? grouped(Math.round(value)) : short(value, Math.abs(value) < 0.01 ? 3 : 4);
const color = (n) => `var(--s${n % 8})`;
const when = (seconds) => new Date(seconds * 1000).toLocaleString();

// The chart that shows a metric: "loss_NAME", the loss of one source, belongs to "loss by source".
function chartOf(metric, names) {
  const name = base(metric);
  if (name === "unigram_entropy") return names.has("mlm_loss") ? "mlm_loss" : "loss";
  const loss = [...names].find((other) => other.endsWith("loss") && name.startsWith(`${other}_`));
  return loss ? `${loss} by source` : name;
}

function seriesOf(run, index, metric, steps, values) {
  const isTrain = metric.startsWith("train/"), name = base(metric), isEntropy = name === "unigram_entropy";
  const what = isEntropy ? "unigram entropy" : isTrain ? "train" : "held out";
  const one = { metric, run: run.name, steps, values, label: isOne ? what : `${run.name}, ${what}` };
  one.color = color(isOne ? (isTrain ? 0 : 1) : index);
  one.width = isTrain ? 1.5 : 2.2;
  if (isTrain && isMean(name)) one.partial = run.partial;
  one.faint = isTrain && !isOne;
  if (isEntropy) Object.assign(one, { dash: "6 4", width: 1.6, color: "var(--soft)", label: isOne ? what : `${run.name}, ${what}` });
  else if (!isTrain) one.marks = MARKS[isOne ? 0 : index % MARKS.length];
  if (!isOne && index >= 8) one.dash = one.dash || DASHES[1];
  return one;
}

function collectCharts() {
  const found = new Map(), names = new Set();
  for (const run of runs) for (const metric of [...Object.keys(run.train), ...Object.keys(run.eval.values)]) names.add(base(metric));
  runs.forEach((run, index) => {
    const all = Object.entries(run.train).map(([metric, curve]) => [metric, curve.steps, curve.values])
      .concat(Object.entries(run.eval.values).map(([metric, values]) => [metric, run.eval.steps, values]));
    for (const [metric, steps, values] of all) {
      const id = chartOf(metric, names);
      if (!found.has(id)) found.set(id, []);
      const one = seriesOf(run, index, metric, steps, values);
      if (id.endsWith(" by source")) {
        const source = base(metric).slice(id.length - " by source".length + 1), n = new Set(found.get(id).map((other) => other.source)).size;
        one.source = source;
        one.label = isOne ? source : `${run.name}, ${source}`;
        if (isOne) Object.assign(one, { color: color(n), marks: MARKS[n % MARKS.length] });
        else one.dash = DASHES[n % DASHES.length];
      }
      // Runs on the same data have the same entropy: one line is enough.
      const isKnown = base(metric) === "unigram_entropy" && found.get(id).some((other) =>
        other.metric === metric && lastOf(other.values) === lastOf(values));
      if (isKnown) continue;
      found.get(id).push(one);
      // Train before held out, and the entropy, which is only for comparison, last.
      found.get(id).sort((a, b) => (base(a.metric) === "unigram_entropy") - (base(b.metric) === "unigram_entropy"));
    }
  });
  return found;
}

function rank(id) {
  const best = runs[0].best ? base(runs[0].best.metric) : "";
  if (id === best) return 0;
  if (LAST.includes(id)) return 10 + LAST.indexOf(id);
  return id === "loss" ? 1 : id.includes("loss") ? 2 : id.endsWith("accuracy") ? 3 : 4;
}

function thinning(id) {
  const curves = runs.flatMap((run) => Object.entries(run.train).filter(([metric]) => base(metric) === id).map(([, curve]) => curve));
  const thin = curves.filter((curve) => curve.count > curve.steps.length);
  if (!thin.length) return "";
  const [kept, all] = [thin.reduce((sum, curve) => sum + curve.steps.length, 0), thin.reduce((sum, curve) => sum + curve.count, 0)];
  const widths = [...new Set(thin.map((curve) => curve.width))].map(grouped).join(" or ");
  return `Train: ${grouped(kept)} of ${grouped(all)} logged values are shown: of every ${widths} steps the first, last, lowest and highest. Held-out values are all shown.`;
}

// Says that the last point of a training curve is the mean of fewer steps than the others.
function partialNote(id) {
  const one = isOne && isMean(id) && runs[0].partial, has = one && runs[0].train[`train/${id}`];
  if (!has) return "";
  return `Train: each point is the mean of ${grouped(one.every)} steps, but the last one of only ${grouped(one.steps)}.`;
}

function drawCharts() {
  const found = collectCharts(), grid = element("div", { class: "grid" });
  for (const id of [...found.keys()].sort((a, b) => rank(a) - rank(b))) {
    const series = found.get(id), inPercent = series.some((one) => isPercent(one.metric));
    const title = id.endsWith(" by source") ? `${titled(id.slice(0, -10))} by source` : titled(id);
    const chart = new LineChart({
      id, title, series, unit: inPercent ? "%" : "",
      format: (value, isTick) => inPercent ? `${Number((100 * value).toPrecision(isTick ? 3 : 4))} %` : short(value),
      zero: inPercent || ["tokens_per_second", "mfu", "learning_rate"].includes(id),
      log: id.includes("loss") || id === "learning_rate" || id === "grad_norm",
      phases: isOne ? runs[0].phases : [], events: isOne ? runs[0].events : [], note: [thinning(id), partialNote(id)].filter(Boolean).join(" "),
    });
    grid.append(chart.figure);
  }
  if (!found.size) return [element("h2", {}, "Curves"), element("p", {}, "There are no curves yet: the run has neither reached its first log line (every log_every steps) nor been evaluated.")];
  if (grid.children.length % 2) grid.children[0].classList.add("wide");
  const marks = isOne && runs[0].events.length ? " Small triangles on the axis: the run was resumed or rolled back there." : "";
  const help = `Point at a chart for exact values, or choose it with Tab and use the arrow keys. Click a name below a chart to hide its line.${marks}`;
  return [element("h2", {}, "Curves"), element("p", {}, help), grid];
}

function evaluations(run) {
  const names = Object.keys(run.eval.values);
  if (!names.length) return null;
  const made = element("details", {}, element("summary", {}, `All ${grouped(run.eval.steps.length)} evaluations of ${run.name} as a table`));
  made.addEventListener("toggle", () => {
    if (made.children.length > 1) return;
    const rows = run.eval.steps.map((step, n) => [grouped(step), ...names.map((name) => shown(name, run.eval.values[name][n]))]);
    made.append(table(["step", ...names.map(base)], rows, names.map((_, n) => n + 1).concat(0)));
  });
  return made;
}

const isBestHigh = (name) => !/(loss|mae|rmse)(_|$)/.test(name);
const lastOf = (values) => [...values].reverse().find((value) => value !== null);

// One row per run: its best value and, of each held-out metric, the last value.
function comparison() {
  const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.eval.values)))].filter((name) => base(name) !== "unigram_entropy");
  const best = (name) => {
    const values = runs.map((run) => run.eval.values[name] && lastOf(run.eval.values[name])).filter((value) => value !== null && value !== undefined);
    return isBestHigh(name) ? Math.max(...values) : Math.min(...values);
  };
  const rows = runs.map((run, index) => {
    const name = element("span", {}, element("i", { class: "swatch", style: `background:${color(index)}` }), run.name);
    const top = run.best ? `${shown(run.best.metric, run.best.value)} (${base(run.best.metric)}, step ${grouped(run.best.step)})` : "–";
    return [name, `${run.status.state}, step ${grouped(run.status.step)}`, top, ...metrics.map((metric) => {
      const value = run.eval.values[metric] ? lastOf(run.eval.values[metric]) : null;
      return element("span", { title: String(value), style: value === best(metric) ? "font-weight:700" : "" }, shown(metric, value));
    })];
  });
  return element("section", {}, element("h2", {}, "The runs side by side"), element("p", {}, "Best: by the metric that selects the checkpoint. Other columns: the last evaluation; the best value of a column is bold."),
    table(["run", "state", "best", ...metrics.map((name) => `last ${base(name)}`)], rows, metrics.map((_, n) => n + 3)));
}

function differences() {
  const rows = data.differences.map(({ field, values }) => [field, ...values.map((value) => element("span", {}, value === null ? "–" : value))]);
  const made = element("section", { style: "margin-top:18px" }, element("h2", {}, "Differences of the configs"));
  made.append(rows.length ? table(["field", ...runs.map((run) => run.name)], rows) : element("p", {}, "The configs are equal, but for the workdir."));
  return made;
}

function scoreTable(run) {
  const splits = run.splits.filter((split) => split.scores && Object.keys(split.scores).length);
  const scores = Object.fromEntries(splits.map((split) => [split.split, split.scores]));
  for (const [key, value] of Object.entries(run.scores)) {
    if (typeof value !== "number") continue;
    const [split, ...rest] = key.split("/");
    (scores[split] = scores[split] || {})[rest.join("/")] = value;
  }
  const intervals = { ...run.intervals };
  for (const split of splits) for (const [name, bounds] of Object.entries(split.intervals || {})) intervals[`${split.split}/${name}`] = bounds;
  const columns = Object.keys(scores), names = [...new Set(columns.flatMap((split) => Object.keys(scores[split])))];
  if (!names.length) return null;
  const baselines = (run.evaluation.baselines || {}).splits || {};
  const simple = (split) => Object.keys(baselines[split] || {});
  const rows = names.map((name) => [titled(name), ...columns.flatMap((split) => [cellOf(split, name), ...simple(split).map((model) => {
    const value = baselines[split][model][name];
    return value === undefined ? "–" : element("span", { "data-baseline": `${split}/${model}/${name}`, title: String(value) }, inUnits(name, value));
  })])]);
  function cellOf(split, name) {
    const value = scores[split][name], bounds = intervals[`${split}/${name}`];
    const format = (number) => inUnits(name, number);
    const cell = element("span", { title: String(value), "data-score": `${split}/${name}`, "data-value": String(value) },
      typeof value !== "number" ? "–" : format(value));
    if (!bounds) return cell;
    return element("span", {}, cell, element("small", { class: "interval" }, ` ${bounds.map(format).join(" to ")}`));
  }
  const meaning = Object.keys(intervals).length ? " Beside each score is its 95 % interval: what other rows of the same kind would give." : "";
  const steps = run.splits.filter((split) => split.step !== null && split.step !== undefined).map((split) => `${split.split}: the model of step ${grouped(split.step)}`);
  const heads = columns.flatMap((split) => [split, ...simple(split).map((model) => `${split}: ${model}`)]);
  return element("section", {}, element("h3", {}, "Scores and baselines"),
    element("p", {}, `Of the last predictions that were written${steps.length ? ` (${steps.join("; ")})` : ""}.${meaning}`),
    table(["metric", ...heads], rows, heads.map((_, n) => n + 1)), ...paragraphs(baselineSentence(run), run.evaluation.verdict));
}

function taskOf(run) {
  const scores = run.kind === "fine-tuning" ? scoreTable(run) : null;
  const whose = isOne ? "" : ` by ${run.name}`, made = dataOf(run);
  if (scores) made.push(element("h2", {}, `Scores${whose}`), scores);
  made.push(...slicesOf(run.evaluation.slices));
  for (const split of run.splits) {
    const count = split.examples ? `, ${grouped(split.examples)} labelled examples` : "";
    made.push(element("h2", {}, `Predictions of ${split.split}${whose}${count}`), splitFigures({ ...split, classes: (run.evaluation.by_class || {})[split.split] || split.classes }));
  }
  return made;
}

const IDLE = "idle between processes";
// The seconds in which a process of the run was there.
const working = (ledger) => Object.entries(ledger.seconds).reduce((sum, [name, value]) => sum + (name === IDLE ? 0 : value), 0);

function timeOf(run) {
  if (!run.ledger) return null;
  const entries = Object.entries(run.ledger.seconds).filter(([, value]) => value > 0);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const bar = element("div", { class: "bar", role: "img", "aria-label": entries.map(([name, value]) => `${name} ${percent(value / total, 1)}`).join(", ") });
  const order = ["stepping", "compiling", "evaluating", "saving", "waiting for input", "start-up", "restoring", "lost steps"];
  const rows = entries.map(([name, value]) => {
    // Without a process there is no activity, and so no colour of one.
    const shade = name === IDLE ? "var(--idle)" : color(Math.max(0, order.indexOf(name)));
    bar.append(element("i", { style: `width:${100 * value / total}%;background:${shade}`, title: `${name}: ${short(value)} s` }));
    const label = name === "stepping" ? "training" : name === "lost steps" ? `${name} (${grouped(run.ledger.lost_steps)} steps)` : name;
    return [element("span", {}, element("i", { class: "swatch", style: `background:${shade}` }), label),
      element("span", { "data-activity": name, "data-value": value }, value < 100 ? value.toFixed(1) : grouped(Math.round(value))), percent(value / total, 1)];
  });
  const many = run.ledger.processes === 1 ? "one process" : `${run.ledger.processes} processes`;
  const pause = run.ledger.seconds[IDLE] || 0, idle = pause ? `, and ${duration(pause)} between them` : "";
  const lost = run.ledger.seconds["lost steps"] > 0 ? " Lost steps had to be computed again after a kill or a rollback." : "";
  return element("section", {}, element("h3", {}, "Where the time went"),
    element("p", {}, `${duration(working(run.ledger))} in ${many}${idle}.${lost}`), bar,
    table(["activity", "seconds", "share"], rows, [1, 2]));
}

function duration(seconds) {
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} minutes`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} hours` : `${(seconds / 86400).toFixed(1)} days`;
}

function notesOf(run) {
  const skipped = run.skipped.rows.map((row) => [grouped(row.step), short(row.loss), short(row.grad_norm), row.in_a_row, `${grouped(row.first_row)} to ${grouped(row.last_row)} of phase ${row.phase + 1}`]);
  const made = element("section", {}, element("h3", {}, "Warnings and interruptions"));
  const { warning, warnings = [], leaked_rows: leaked = {} } = run.evaluation.data || {};
  const leaks = Object.entries(leaked).map(([split, count]) => `Leaks: ${grouped(count)} examples of ${split} are in train as well, equal or nearly so.`);
  const notes = [...run.notes, ...leaks, warning, ...warnings].filter(Boolean);
  made.append(notes.length ? element("ul", { class: "notes" }, ...notes.map((note) => element("li", {}, note))) : element("p", {}, "None: no update was skipped, and the run was not interrupted."));
  if (skipped.length) {
    made.append(element("details", {}, element("summary", {}, `The first ${skipped.length} skipped updates`),
      table(["step", "loss", "gradient norm", "in a row", "rows"], skipped, [0, 1, 2, 3])));
  }
  return made;
}

function processesOf(run) {
  const made = element("section", { class: "wide" }, element("h3", {}, "Command, hardware and versions"));
  if (!run.processes.length) made.append(element("p", {}, "They are not known: the run was made by a version that did not record them."));
  const last = run.processes[run.processes.length - 1];
  if (!last) return made;
  const memory = last.memory_bytes ? `, ${(last.memory_bytes / 1e9).toFixed(0)} GB of memory` : "";
  const facts = [
    ["workdir", run.address], ["devices", `${last.devices}, ${last.num_processes} process(es), mesh ${last.mesh}`],
    ["host", `${last.host}: ${last.processor}, ${last.cores} cores${memory}`], ["system", last.system],
    ["arithmetic", `${last.dtype}, attention kernel ${last.attention}`], ["parameters", grouped(last.parameters || 0)],
    ["versions", Object.entries(last.versions).map(([name, version]) => `${name} ${version}`).join(", ")],
  ];
  made.append(element("pre", {}, last.command), table(["", ""], facts));
  if (run.processes.length > 1) {
    const rows = run.processes.map((one) => [when(one.start), grouped(one.step || 0), one.ended ? `${one.ended.state}${one.ended.reason ? `: ${one.ended.reason.slice(0, 200)}` : ""}` : one === last && run.status.state === "running" ? "running" : "ended without a word (killed, or rolled back)", one.devices, one.host]);
    made.append(element("h4", {}, `All ${run.processes.length} processes`), table(["started", "from step", "end", "devices", "host"], rows, [1]));
  }
  return made;
}

function configOf(run) {
  const list = (rows) => element("div", { class: "fields" }, ...rows.map((row) =>
    element("div", { "data-field": row.field }, element("span", {}, row.field), element("b", {}, row.value))));
  const changed = run.config.filter((row) => row.changed);
  return element("section", { class: "wide" }, element("h3", {}, "Config"),
    element("p", {}, "The fields that differ from the defaults of the code; the whole config is below."), list(changed),
    element("details", {}, element("summary", {}, `All ${run.config.length} fields`), list(run.config)));
}

function leadOf(run, index) {
  const { state, step, num_steps: total, sentence } = run.status;
  const swatch = isOne ? null : element("i", { class: "swatch", style: `background:${color(index)}` });
  const made = element("section", { class: "run", "data-run": run.name, "data-state": state }, isOne ? null : element("h3", {}, swatch, run.name),
    element("p", { class: "said" }, element("span", { class: `badge ${state}` }, state), sentence), element("p", {}, run.what));
  if (total) {
    const share = Math.min(100, 100 * step / total);
    made.append(element("div", { class: "progress", role: "progressbar", "aria-label": `step ${step} of ${total}`, "aria-valuenow": Math.round(share), "aria-valuemin": 0, "aria-valuemax": 100 }, element("i", { style: `width:${share}%` })));
  }
  const tiles = [];
  if (run.best) {
    const which = run.best.higher_is_better ? "highest" : "lowest";
    const equal = run.best.equal > 1 ? `, one of ${run.best.equal} evaluations with this value` : "";
    tiles.push([shown(run.best.metric, run.best.value), `${which} ${plain(run.best.metric)}, at step ${grouped(run.best.step)}${equal}`]);
  }
  if (isOne) {
    for (const metric of ["train/loss", "train/tokens_per_second", "train/mfu"]) {
      const curve = run.train[metric];
      if (!curve) continue;
      const n = curve.steps.length - 1, last = curve.steps[n];
      const few = run.partial && run.partial.step === last ? `, a mean of only ${grouped(run.partial.steps)} steps` : "";
      tiles.push([shown(metric, curve.values[n]), `last ${plain(metric)}, at step ${grouped(last)}${few}`]);
    }
    if (run.ledger) tiles.push([duration(working(run.ledger)), run.ledger.processes === 1 ? "running time" : `running time of ${run.ledger.processes} processes`]);
  }
  made.append(element("div", { class: "tiles" }, ...tiles.map(([value, label]) => element("div", { class: "tile" }, element("b", {}, value), element("span", {}, label)))));
  if (run.hints.length) made.append(element("div", { class: "hints", "data-hints": run.hints.length }, element("b", {}, "What stands out"), ...run.hints.map((hint) => element("p", {}, hint.replaceAll(" %", "\u00a0%")))));
  return made;
}

function writtenNote() {
  const age = Date.now() / 1000 - data.written, ago = age < 90 ? "just now" : `${duration(age)} ago`;
  const late = runs.some((run) => run.status.state === "running") && age > 900 ?
    " A run that goes on writes its page again at every evaluation, and at log lines: if there is no newer page, the run may have been killed, which `bertjax report` finds out." : "";
  return `Written ${when(data.written)} (${ago}); reload the page for a newer one.${late}`;
}

function fillPage() {
  const together = isOne ? [] : severalOf(), folder = runs[0].address.split("/").slice(-2)[0];
  const title = isOne ? `${runs[0].kind === "pretraining" ? "Pretraining" : "Fine-tuning"}: ${runs[0].name}` :
    together.length ? `${together[0].textContent}${data.several.length > 1 ? "" : `: ${folder}`}` : `${runs.length} runs compared`;
  $("title").textContent = document.title = title;
  $("written").textContent = writtenNote();
  $("lead").before(...together);
  $("lead").append(...runs.map(leadOf));
  if (runs.length > 2) $("lead").className = "grid";
  const content = $("content");
  if (!isOne) content.append(element("div", { style: "margin-top:18px" }, comparison(), differences()));
  const curves = [...drawCharts(), ...runs.map(evaluations).filter(Boolean)];
  // A reviewer asks for the data and the scores first.
  if (isOne) content.append(...taskOf(runs[0]));
  content.append(...curves);
  for (const run of runs) {
    const parts = [...(isOne ? [] : taskOf(run)), element("h2", {}, isOne ? "The run" : `The run ${run.name}`),
      element("div", { class: "grid" }, ...[timeOf(run), notesOf(run), processesOf(run), configOf(run)].filter(Boolean))].filter(Boolean);
    if (isOne) content.append(...parts);
    else content.append(element("details", runs.length > 2 ? {} : { open: "" }, element("summary", {}, `Details of ${run.name}`), ...parts));
  }
}

startTheme(() => {});
fillPage();
// Paper has no folded parts.
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
new ResizeObserver(() => { for (const chart of charts) chart.draw(); }).observe($("content"));
for (const chart of charts) chart.draw();
document.body.dataset.ready = "yes";
