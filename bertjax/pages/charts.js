// Line charts as inline SVG: axes, a crosshair with exact values, a log scale, a legend with buttons.

const SVG = "http://www.w3.org/2000/svg";

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}

// Numbers as a reader wants them: at most `digits` significant digits, and k, M, G for large ones.
function short(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return String(Number((value / (letter === "k" ? 1e3 : unit)).toPrecision(digits))) + letter;
  }
  if (size && size < 1e-4) return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}

function grouped(value) { return value.toLocaleString("en-US"); }

// About `count` round numbers from `low` to `high`.
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of high / low > 100 ? [1] : [1, 2, 3, 5, 7]) {
      const value = Number((factor * 10 ** power).toPrecision(3));
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length >= 2 ? found : ticks(low, high, 4).filter((value) => value > 0);
}

// The index of the step nearest to `step` in a sorted array.
function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  return step - steps[low] <= steps[high] - step ? low : high;
}

const MARKS = ["circle", "square", "triangle", "diamond"];
function mark(shape, x, y, size, color) {
  const paths = {
    circle: `M${x - size},${y}a${size},${size} 0 1,0 ${2 * size},0a${size},${size} 0 1,0 ${-2 * size},0`,
    square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
    triangle: `M${x},${y - size * 1.2}l${size * 1.2},${size * 2.1}h${-size * 2.4}z`,
    diamond: `M${x},${y - size * 1.3}l${size * 1.3},${size * 1.3}l${-size * 1.3},${size * 1.3}l${-size * 1.3},${-size * 1.3}z`,
  };
  return node("path", { d: paths[shape], fill: color });
}

const charts = [];

// A chart of series {label, metric, run, steps, values, color, width, dash, marks, faint, hidden}.
class LineChart {
  constructor({ id, title, unit, series, format, zero, log, phases, events, note }) {
    Object.assign(this, { id, title, unit, series, format, zero, phases, events });
    this.canLog = log && series.every((one) => one.values.every((value) => value === null || value > 0));
    this.isLog = false;
    this.at = null;
    this.steps = [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
    this.figure = element("figure", { class: "chart", "data-chart": id });
    const head = element("div", { class: "head" }, element("h3", {}, title));
    if (this.canLog) {
      this.button = element("button", { type: "button", class: "small", "aria-pressed": "false" }, "log scale");
      this.button.addEventListener("click", () => { this.isLog = !this.isLog; this.button.setAttribute("aria-pressed", this.isLog); this.draw(); });
      head.append(this.button);
    }
    this.svg = node("svg", { tabindex: 0, role: "application", "aria-label": this.description() });
    this.tip = element("div", { class: "tip", role: "status", "aria-live": "polite", hidden: "" });
    this.plot = element("div", { class: "plot" }, this.svg, this.tip);
    this.legend = element("div", { class: "legend" });
    this.figure.append(head, this.plot, this.legend);
    if (note) this.figure.append(element("figcaption", {}, note));
    this.drawLegend();
    this.listen();
    charts.push(this);
  }

  description() {
    const last = this.series.map((one) => {
      const known = one.values.filter((value) => value !== null);
      return `${one.label} ends at ${this.format(known[known.length - 1])}`;
    });
    return `${this.title} by step. ${last.join("; ")}. Arrow keys move from point to point.`;
  }

  drawLegend() {
    this.legend.replaceChildren(...this.series.map((one) => {
      const swatch = node("svg", { viewBox: "0 0 26 12", width: 26, height: 12, "aria-hidden": "true" },
        node("line", { x1: 0, x2: 26, y1: 6, y2: 6, stroke: one.color, "stroke-width": one.width, "stroke-dasharray": one.dash || "none" }));
      if (one.marks) swatch.append(mark(one.marks, 13, 6, 3.6, one.color));
      const button = element("button", { type: "button", class: "series", "aria-pressed": String(!one.hidden) }, swatch, one.label);
      button.addEventListener("click", () => {
        one.hidden = !one.hidden;
        button.setAttribute("aria-pressed", String(!one.hidden));
        this.draw();
      });
      return button;
    }));
  }

  listen() {
    const stepAt = (event) => {
      const box = this.svg.getBoundingClientRect();
      return this.x0 + (event.clientX - box.left - this.left) / (this.right - this.left) * (this.x1 - this.x0);
    };
    this.svg.addEventListener("pointermove", (event) => this.point(nearest(this.steps, stepAt(event))));
    this.svg.addEventListener("pointerdown", (event) => this.point(nearest(this.steps, stepAt(event))));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => {
      const last = this.steps.length - 1, now = this.at === null ? -1 : this.at;
      const moves = { ArrowRight: now + 1, ArrowLeft: this.at === null ? last : now - 1, Home: 0, End: last, PageUp: now - 10, PageDown: now + 10 };
      if (event.key === "Escape") { this.point(null); return; }
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.point(Math.min(last, Math.max(0, moves[event.key])));
    });
  }

  visible() { return this.series.filter((one) => !one.hidden && one.steps.length); }

  range() {
    const values = this.visible().flatMap((one) => one.values).filter((value) => value !== null);
    if (!values.length) return [0, 1];
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (this.isLog) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
    if (this.zero) return [Math.min(0, low), this.axisEnd(high)];
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
  }

  // The end of an axis from 0: the next line of its grid, and 100 % for fractions above a half.
  axisEnd(high) {
    if (high <= 0 || (this.unit === "%" && high > 0.5 && high <= 1)) return 1;
    const [, second] = ticks(0, high, 6);
    return Math.ceil(high / second - 1e-9) * second;
  }

  y(value) {
    const scale = this.isLog ? Math.log10 : (number) => number;
    return this.bottom - (scale(value) - scale(this.y0)) / (scale(this.y1) - scale(this.y0)) * (this.bottom - this.top);
  }

  x(step) { return this.left + (step - this.x0) / (this.x1 - this.x0) * (this.right - this.left); }

  draw() {
    const width = Math.max(260, Math.floor(this.plot.clientWidth || 520)), height = this.figure.classList.contains("wide") ? 300 : 240;
    [this.y0, this.y1] = this.range();
    const yTicks = this.isLog ? logTicks(this.y0, this.y1) : ticks(this.y0, this.y1, 6);
    const labels = yTicks.map((value) => this.format(value, true));
    this.left = 14 + 7 * Math.max(3, ...labels.map((label) => label.length));
    [this.right, this.top, this.bottom] = [width - 14, 10, height - 36];
    [this.x0, this.x1] = [0, this.steps[this.steps.length - 1] || 1];
    const svg = this.svg;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    yTicks.forEach((value, n) => {
      svg.append(node("line", { class: "rule", x1: this.left, x2: this.right, y1: this.y(value), y2: this.y(value) }),
        node("text", { class: "tick", x: this.left - 6, y: this.y(value) + 4, "text-anchor": "end" }, labels[n]));
    });
    for (const step of ticks(0, this.x1, Math.min(8, Math.max(3, width / 90)))) {
      if (step !== Math.round(step)) continue;
      svg.append(node("line", { class: "axis", x1: this.x(step), x2: this.x(step), y1: this.bottom, y2: this.bottom + 4 }),
        node("text", { class: "tick", x: this.x(step), y: this.bottom + 17, "text-anchor": step === this.x1 ? "end" : "middle" }, short(step)));
    }
    svg.append(node("line", { class: "axis", x1: this.left, x2: this.right, y1: this.bottom, y2: this.bottom }),
      node("text", { class: "tick", x: (this.left + this.right) / 2, y: height - 4, "text-anchor": "middle" }, "step"));
    this.drawBoundaries();
    for (const one of this.visible()) this.drawSeries(one);
    this.cross = node("g", {});
    svg.append(this.cross);
    this.drawCross();
  }

  drawBoundaries() {
    this.phases.forEach((phase, n) => {
      if (!n || phase.start >= this.x1) return;
      const x = this.x(phase.start);
      this.svg.append(node("line", { class: "boundary", x1: x, x2: x, y1: this.top, y2: this.bottom }),
        node("text", { class: "tick", x: x + 4, y: this.top + 10 }, `phase ${n + 1}: ${phase.max_length} tokens`));
    });
    for (const event of this.events) {
      if (event.step > this.x1) continue;
      const x = this.x(event.step);
      this.svg.append(node("path", { class: "event", d: `M${x},${this.bottom - 9}l5,9h-10z` },
        node("title", {}, `${event.kind} at step ${event.step}`)));
    }
  }

  drawSeries(one) {
    let path = "", pen = "M";
    one.steps.forEach((step, n) => {
      if (one.values[n] === null) { pen = "M"; return; }
      path += `${pen}${this.x(step).toFixed(1)},${this.y(one.values[n]).toFixed(1)}`;
      pen = "L";
    });
    this.svg.append(node("path", { d: path, fill: "none", stroke: one.color, "stroke-width": one.width, "stroke-linejoin": "round",
      "stroke-dasharray": one.dash || "none", opacity: one.faint ? 0.6 : 1 }));
    const known = one.values.filter((value) => value !== null).length;
    if (known === 1 || (one.marks && known <= 80)) {
      one.steps.forEach((step, n) => {
        if (one.values[n] !== null) this.svg.append(mark(one.marks || "circle", this.x(step), this.y(one.values[n]), 2.8, one.color));
      });
    }
  }

  point(index) {
    this.at = index;
    const step = index === null ? null : this.steps[index];
    for (const chart of charts) {
      if (chart !== this) chart.at = step === null ? null : nearest(chart.steps, step);
      chart.drawCross();
      if (chart !== this) chart.tip.hidden = true;
    }
    this.drawTip();
  }

  drawCross() {
    this.cross?.replaceChildren();
    if (this.at === null || !this.cross) return;
    const x = this.x(this.steps[this.at]);
    this.cross.append(node("line", { class: "cross", x1: x, x2: x, y1: this.top, y2: this.bottom }));
    for (const [one, n] of this.pointed()) {
      const circle = node("circle", { cx: this.x(one.steps[n]), cy: this.y(one.values[n]), r: 4, fill: one.color, class: "dot" });
      this.cross.append(circle);
    }
  }

  // The series, each with the index of its point nearest to the crosshair.
  pointed() {
    const step = this.steps[this.at];
    return this.visible().map((one) => [one, nearest(one.steps, step)]).filter(([one, n]) => one.values[n] !== null);
  }

  drawTip() {
    this.tip.hidden = this.at === null;
    if (this.at === null) return;
    const step = this.steps[this.at];
    const rows = this.pointed().map(([one, n]) => {
      const swatch = element("i", { style: `background:${one.color}` });
      const at = one.steps[n] === step ? "" : ` at step ${grouped(one.steps[n])}`;
      const mean = one.partial && one.partial.step === one.steps[n] ? ` (mean of only ${one.partial.steps} step${one.partial.steps > 1 ? "s" : ""})` : "";
      const where = at || mean ? element("small", {}, at + mean) : null;
      return element("div", { class: "row", "data-metric": one.metric, "data-run": one.run, "data-step": one.steps[n], "data-value": one.values[n] },
        swatch, element("span", {}, one.label, where), element("b", {}, this.exact(one.values[n])));
    });
    this.tip.replaceChildren(element("strong", {}, `step ${grouped(step)}`), ...rows);
    const x = this.x(step), isLeft = x > (this.left + this.right) / 2;
    // Where the chart is too narrow for both, the values are shown below it.
    const isBelow = this.plot.clientWidth < 480;
    this.tip.classList.toggle("below", isBelow);
    this.tip.style.left = isBelow ? "0" : isLeft ? "auto" : `${x + 10}px`;
    this.tip.style.right = isBelow ? "0" : isLeft ? `${this.plot.clientWidth - x + 10}px` : "auto";
  }

  // The value as it is in metrics.jsonl; fractions also in per cent.
  exact(value) { return this.unit === "%" ? `${value} (${percent(value, 2)})` : String(value); }
}
