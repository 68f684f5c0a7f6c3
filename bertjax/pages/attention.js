// The page of attention: one layer and head as lines and as a matrix, all heads, and the drift.
const size = data.tokens.length, cells = size * size, levels = data.attention.levels;
const state = { layer: data.first.layer, head: data.first.head, from: null, to: null, values: null };
const ROW = matchMedia("(pointer: coarse)").matches ? 28 : 20;
// At most this number of lines is drawn of all tokens; lines of one token are all drawn.
const MOST_LINES = 3000;
// The probability of a stored value.
const decoded = Float64Array.from({ length: levels + 1 }, (_, value) => (value / levels) ** data.attention.power);
// Side of a small matrix of the overview, in values.
const SMALL = 64;

async function unpack() {
  const bytes = Uint8Array.from(atob(data.attention.gzip), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  return levels > 255 ? new Uint16Array(buffer) : new Uint8Array(buffer);
}

function valuesOf(layer, head) {
  const start = (layer * data.heads + head) * cells;
  return state.values.subarray(start, start + cells);
}

function probability(layer, head, from, to) { return decoded[valuesOf(layer, head)[from * size + to]]; }

// Indices of the lines that are drawn for all tokens: the strongest, found by counting values.
function strongest(values) {
  const counts = new Uint32Array(levels + 1);
  for (const value of values) counts[value]++;
  let least = levels, count = counts[levels];
  while (least > 1 && count + counts[least - 1] <= MOST_LINES) count += counts[--least];
  const found = [];
  for (let i = 0; i < cells; i++) if (values[i] >= least) found.push(i);
  return { found, total: cells - counts[0] };
}

let lines = { key: "" };
function chosenLines(values) {
  const key = `${state.layer} ${state.head}`;
  if (lines.key !== key) lines = { key, ...strongest(values) };
  const { from, to } = state;
  if (from === null && to === null) return lines.found;
  const all = Array.from({ length: size }, (_, n) => (from !== null ? from * size + n : n * size + to));
  return all.filter((i) => values[i] > 0);
}

function drawLines() {
  const canvas = $("links"), view = $("lines");
  const height = Math.min(size * ROW, view.clientHeight || 620), top = view.scrollTop;
  const width = canvas.parentElement.clientWidth - $("from").offsetWidth - $("to").offsetWidth;
  const context = sized(canvas, width, height);
  canvas.style.width = "100%";
  const values = valuesOf(state.layer, state.head), chosen = chosenLines(values);
  const alone = state.from !== null || state.to !== null;
  // The lines of one token are drawn relative to its strongest one.
  const strongest = chosen.reduce((best, i) => Math.max(best, decoded[values[i]]), 1e-9);
  const most = alone ? strongest : Math.max(strongest, 0.05);
  const line = colour("--line"), groups = Array.from({ length: 65 }, () => []);
  for (const i of chosen) {
    const y1 = Math.floor(i / size) * ROW + ROW / 2 - top, y2 = (i % size) * ROW + ROW / 2 - top;
    if ((y1 < 0 && y2 < 0) || (y1 > height && y2 > height)) continue;
    groups[Math.round(64 * decoded[values[i]] / most)].push(y1, y2);
  }
  groups.forEach((ends, strength) => {
    context.beginPath();
    for (let n = 0; n < ends.length; n += 2) { context.moveTo(4, ends[n]); context.lineTo(width - 4, ends[n + 1]); }
    context.strokeStyle = `rgba(${line}, ${Math.min(1, 0.03 + 1.2 * strength / 64)})`;
    context.lineWidth = 0.7 + 2.3 * strength / 64;
    context.stroke();
  });
  if (state.from !== null && state.to !== null) {
    context.beginPath();
    context.moveTo(4, state.from * ROW + ROW / 2 - top);
    context.lineTo(width - 4, state.to * ROW + ROW / 2 - top);
    context.strokeStyle = colour("--picked");
    context.lineWidth = 3;
    context.stroke();
  }
  canvas.dataset.lines = chosen.length;
  $("lines-note").textContent = alone ? "The lines are relative to the strongest one of the token."
    : !chosen.length ? "All tokens attend about equally, so no lines are drawn; pick a token to see its lines."
    : chosen.length < lines.total
      ? `Drawn are the ${chosen.length.toLocaleString("en")} strongest of ${lines.total.toLocaleString("en")} lines; pick a token to see all of its lines.`
      : "";
}

function startTokens(side) {
  const list = $(side);
  data.tokens.forEach((token, n) => {
    const made = element("div", { class: `token${data.segments[n] ? " b" : ""}${data.special[n] ? " special" : ""}`, dir: "auto" }, token);
    made.style.height = `${ROW}px`;
    made.id = `${side}-${n}`;
    made.dataset.n = n;
    made.title = token;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", "false");
    list.append(made);
  });
  const pick = (event) => {
    const n = event.target.dataset.n;
    if (n === undefined) return;
    select(side === "from" ? Number(n) : null, side === "to" ? Number(n) : null);
  };
  list.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") pick(event); });
  list.addEventListener("click", pick);
  list.addEventListener("keydown", (event) => {
    const at = state[side];
    const to = { ArrowDown: at === null ? 0 : at + 1, ArrowUp: at === null ? size - 1 : at - 1, Home: 0, End: size - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const n = (to + size) % size;
    select(side === "from" ? n : null, side === "to" ? n : null);
    $(`${side}-${n}`).scrollIntoView({ block: "nearest" });
  });
}

function select(from, to) {
  if (from === state.from && to === state.to) return;
  for (const [side, n] of [["from", from], ["to", to]]) {
    if (state[side] !== null) $(`${side}-${state[side]}`).setAttribute("aria-selected", "false");
    if (n !== null) $(`${side}-${n}`).setAttribute("aria-selected", "true");
    if (n === null) $(side).removeAttribute("aria-activedescendant");
    else $(side).setAttribute("aria-activedescendant", `${side}-${n}`);
    state[side] = n;
  }
  drawLines();
  paintMatrix();
  paintDrift();
  say();
}

let matrix = {}, drift = {}, overview = {};
function drawMatrix() {
  const values = valuesOf(state.layer, state.head);
  const most = decoded[values.reduce((best, value) => Math.max(best, value), 1)];
  const shades = Uint8Array.from({ length: levels + 1 }, (_, n) => Math.min(255, Math.round(255 * Math.sqrt(decoded[n] / most))));
  $("matrix-note").textContent = `The strongest colour is ${percent(most)}.`;
  matrix.picture = image(size, size, (i) => shades[values[i]], palette());
  paintMatrix();
}

function paintMatrix() {
  matrix.at = place($("matrix").parentElement.clientWidth, size, size);
  paint($("matrix"), matrix.at, matrix.picture, data.tokens, (n) => data.tokens[n],
    { row: state.from ?? undefined, column: state.to ?? undefined });
}

function drawDrift() {
  const most = Math.max(...data.change.map((row) => Math.max(...row)), 1e-9);
  $("drift-range").textContent = `0 to ${most.toFixed(2)} (strongest colour)`;
  drift.picture = image(size, data.layers, (i) => Math.round(255 * Math.max(0, data.change[Math.floor(i / size)][i % size]) / most), palette());
  paintDrift();
}

function paintDrift() {
  drift.at = place($("drift").parentElement.clientWidth, size, data.layers, 20);
  const n = state.from ?? state.to;
  paint($("drift"), drift.at, drift.picture, data.tokens, (layer) => `layer ${layer + 1}`, { row: state.layer, column: n ?? undefined });
  $("drift-said").textContent = n === null ? "Point at a cell or a token to read its values."
    : `${readable(n)}: ` + data.change.map((row, layer) => `layer ${layer + 1} ${row[n].toFixed(3)}`).join(", ");
}

// The largest value of each block of a matrix, so that a line of one token is still seen.
function shrunk(values) {
  const side = Math.min(size, SMALL), small = new Uint16Array(side * side);
  for (let from = 0; from < size; from++) {
    const row = Math.floor(from * side / size) * side;
    for (let to = 0; to < size; to++) {
      const i = row + Math.floor(to * side / size), value = values[from * size + to];
      if (value > small[i]) small[i] = value;
    }
  }
  return small;
}

function drawOverview() {
  const side = Math.min(size, SMALL), colours = palette();
  overview.small ??= [];
  overview.pictures ??= [];
  const round = (overview.round ?? 0) + 1;
  overview.round = round;
  let layer = 0;
  const next = () => {  // one layer per frame: long texts must not block the page
    if (overview.round !== round) return;
    for (let head = 0; head < data.heads; head++) {
      const n = layer * data.heads + head, small = (overview.small[n] ??= shrunk(valuesOf(layer, head)));
      overview.pictures[n] = image(side, side, (i) => Math.round(255 * Math.sqrt(decoded[small[i]])), colours);
    }
    paintOverview();
    if (++layer < data.layers) setTimeout(next); else document.body.dataset.overview = "yes";
  };
  next();
}

function paintOverview() {
  const room = $("overview").parentElement.clientWidth, left = 24, top = 18;
  const step = Math.max(20, Math.min(120, Math.floor((room - left) / data.heads)));
  overview.at = { columns: data.heads, rows: data.layers, cell: [step, step], left, top };
  const context = sized($("overview"), left + step * data.heads, top + step * data.layers);
  context.imageSmoothingEnabled = size > step;
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.fillStyle = colour("--soft");
  for (let head = 0; head < data.heads; head++) context.fillText(head + 1, left + (head + 0.5) * step, top / 2);
  for (let layer = 0; layer < data.layers; layer++) context.fillText(layer + 1, left / 2, top + (layer + 0.5) * step);
  overview.pictures.forEach((picture, n) => {
    const x = left + (n % data.heads) * step, y = top + Math.floor(n / data.heads) * step;
    context.drawImage(picture, x + 2, y + 2, step - 4, step - 4);
    context.strokeStyle = colour("--rule");
    context.lineWidth = 1;
    context.strokeRect(x + 2.5, y + 2.5, step - 5, step - 5);
  });
  context.strokeStyle = colour("--picked");
  context.lineWidth = 3;
  context.strokeRect(left + state.head * step + 1.5, top + state.layer * step + 1.5, step - 3, step - 3);
  $("overview").setAttribute("aria-label", `All layers and heads as small matrices; layer ${state.layer + 1}, head ${state.head + 1} is shown; arrow keys choose another`);
}

function best(score) {
  return Array.from({ length: size }, (_, n) => n).sort((a, b) => score(b) - score(a)).slice(0, 3)
    .map((n) => `${readable(n)} ${percent(score(n))}`).join(", ");
}

function say() {
  const { from, to, layer, head } = state;
  let text = `layer ${layer + 1}, head ${head + 1}, all tokens`;
  if (from !== null && to !== null) text = `${readable(from)} → ${readable(to)}: ${percent(probability(layer, head, from, to))}`;
  else if (from !== null) text = `${readable(from)} attends to ${best((n) => probability(layer, head, from, n))}`;
  else if (to !== null) text = `${readable(to)} is attended to by ${best((n) => probability(layer, head, n, to))}`;
  $("said").textContent = text;
}

function draw() {
  $("layer").value = state.layer;
  $("head").value = state.head;
  drawLines();
  drawMatrix();
  paintOverview();
  paintDrift();
  say();
}

function notes() {
  const said = [];
  if (data.shared_layers) said.push("The layers of this model share their parameters.");
  if (data.is_decoder) said.push("This model reads from left to right: a token attends to itself and to the tokens before it.");
  if (levels <= 255) said.push(`To keep the page small, probabilities are rounded, by at most 0.4 percentage points` +
    (data.attention.threshold ? `, and those below ${percent(data.attention.threshold)} are shown as 0.` : "."));
  $("note").textContent = said.join(" ");
}

function startPrediction() {
  const { prediction } = data;
  $("prediction").hidden = !prediction;
  if (!prediction) return;
  const { label, labels, probabilities, score, answer } = prediction;
  if (score !== undefined) $("predicted").textContent = `Score: ${score.toFixed(4)}`;
  else if (answer !== undefined) $("predicted").textContent = answer ? `Answer: ${isolated(answer)} (${percent(prediction.probability)})` : "No answer in the passage.";
  else if (label !== undefined) $("predicted").textContent = `Label: ${isolated(label)}`;
  else if (!prediction.words) $("predicted").textContent = `Labels: ${labels.map(isolated).join(", ") || "none"}`;
  const list = element("ol");
  if (prediction.words) prediction.words.forEach((word, n) => list.append(row(`${word}: ${labels[n]}`, probabilities[n] ?? 0, 1, "word")));
  else if (probabilities) Object.entries(probabilities).sort((a, b) => b[1] - a[1]).forEach(([name, p]) => list.append(row(name, p, 1, "word")));
  $("probabilities").replaceChildren(list);
}

function options(select, count, key) {
  for (let n = 0; n < count; n++) select.append(new Option(String(n + 1), String(n)));
  select.addEventListener("change", () => { state[key] = Number(select.value); draw(); });
}

function onKey(event) {
  if (event.target.tagName === "SELECT" || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape") { select(null, null); return; }
  const step = { ArrowLeft: ["head", -1], ArrowRight: ["head", 1], ArrowUp: ["layer", -1], ArrowDown: ["layer", 1] }[event.key];
  if (!step) return;
  const count = step[0] === "head" ? data.heads : data.layers;
  state[step[0]] = (state[step[0]] + step[1] + count) % count;
  event.preventDefault();
  draw();
}

function recolour() { drawLines(); drawMatrix(); drawDrift(); drawOverview(); }

function repaint() { drawLines(); paintMatrix(); paintDrift(); paintOverview(); }

unpack().then((values) => {
  state.values = values;
  $("model").textContent = data.model;
  document.title = `Attention of ${data.model}`;
  options($("layer"), data.layers, "layer");
  options($("head"), data.heads, "head");
  startTokens("from");
  startTokens("to");
  startTheme(recolour);
  notes();
  drawDrift();
  drawMatrix();
  drawOverview();
  draw();
  startWords();
  startPrediction();
  $("all").addEventListener("click", () => select(null, null));
  $("lines").addEventListener("scroll", drawLines);
  follow($("matrix"), () => matrix.at, select);
  follow($("drift"), () => drift.at, (_, n) => select(n, null));
  $("overview").addEventListener("click", (event) => {
    const at = cellAt(event, $("overview"), overview.at);
    if (at) { [state.layer, state.head] = at; draw(); }
  });
  document.addEventListener("keydown", onKey);
  addEventListener("resize", repaint);
  document.body.dataset.ready = "yes";
});
