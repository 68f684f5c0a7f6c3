// Fills the page of `bertjax.benchmark --acceptance`: checks, speeds, and the figures that others have published.

// Model, hardware, what is reported, its source. None of them was measured here.
const PUBLISHED = [
  ["BERT-large", "8 H200, FP8", "about 1,005 sequences/s per GPU, 50 % of the peak in bfloat16", "MLPerf Training"],
  ["BERT-large, 128 tokens", "1 A100", "580 sequences/s, MFU 45 % (PyTorch)", "NVIDIA DeepLearningExamples"],
  ["BERT-large, 128 tokens", "1 A100", "694 sequences/s, MFU 53 % (PaddlePaddle)", "NVIDIA DeepLearningExamples"],
  ["BERT-base", "8 A100", "111,000 tokens/s per GPU, MFU 19 to 24 %", "Hugging Face's BERT in Composer"],
  ["MosaicBERT-base", "8 A100", "79.6 points in GLUE after 1.13 hours", "Portes et al. 2023"],
  ["Ettin, 150M parameters", "H100", "295,000 tokens/s per GPU", "Weller et al. 2025"],
  ["decoders", "TPU v4 to v6e", "MFU 50 to 71 %", "MaxText"],
  ["decoders", "H100", "MFU 50 %", "MaxText"],
];
const rows = data.rows, named = new Map(rows.map((row) => [row.row, row]));
const devices = Number.parseInt(data.device, 10);
const whole = (x) => Math.round(x).toLocaleString("en");
const known = (x, show) => (x === null || x === undefined ? "–" : show(x));
const gigabytes = (x) => `${(x / 1e9).toFixed(2)} GB`;
const milliseconds = (x) => `${(1e3 * x).toFixed(x < 0.1 ? 2 : 1)} ms`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

// A table in a box that scrolls; a cell is a text, an element, or nothing. Columns from `numbers` on are numbers.
function table(head, lines, numbers = head.length) {
  const cell = (name) => (content, i) => element(name, i >= numbers ? { class: "n" } : {}, content || content === "" ? content : "–");
  const body = lines.map((line) => element("tr", {}, ...line.map(cell("td"))));
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...head.map(cell("th")))), element("tbody", {}, ...body)));
}
const section = (title, about, ...content) => content.length &&
  $("content").append(element("section", {}, element("h2", {}, title), about && element("p", {}, about), ...content));
const verdict = (passed) => passed === null ? element("span", { class: "soft" }, "not here")
  : element("span", { class: passed ? "good" : "bad" }, passed ? "passed" : "failed");
const tile = (value, label, kind = "") => element("div", { class: "tile" }, element("b", { class: kind }, value), element("span", {}, label));

const checks = rows.flatMap((row) => row.checks || []).filter((check) => check.passed !== null);
const failed = checks.filter((check) => !check.passed).length;
const speeds = rows.filter((row) => row.tokens_per_second), main = speeds.filter((row) => row.roofline_ratio !== null);
const left = rows.filter((row) => row.left || row.begun), broken = rows.filter((row) => row.error);

function summary() {
  $("title").textContent = `Acceptance of ${data.device}`;
  document.title = $("title").textContent;
  const sentences = [checks.length
    ? `${failed ? `${plural(failed, "check")} of ${checks.length} failed` : `All ${plural(checks.length, "check")} passed`}.`
    : "No check has been made yet."];
  for (const row of main.slice(0, 2))
    sentences.push(`${row.row}: ${whole(row.tokens_per_second)} tokens/s, MFU ${percent(row.mfu)}.`);
  if (broken.length) sentences.push(`${plural(broken.length, "row")} ended with an error.`);
  if (left.length) sentences.push(`${plural(left.length, "row")} of ${rows.length} left for the next call.`);
  $("said").textContent = sentences.join(" ");
  const versions = Object.entries(data.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  const dates = [...new Set(rows.map((row) => row.date).filter(Boolean))].join(", ");
  $("about").textContent = `Sizes: ${data.size}. ${versions}; code ${data.code}; measured on ${dates}.`;
  if (data.size === "tiny") $("content").append(element("p", { class: "warning" },
    "The models of this table are tiny: it shows that the checks pass and that all rows can be measured. Its speeds say nothing about models of a usual size."));
  $("content").append(element("div", { class: "tiles" },
    tile(`${checks.length - failed} / ${checks.length}`, "checks passed", failed ? "bad" : "good"),
    ...main.map((row) => tile(whole(row.tokens_per_second), `tokens/s, MFU ${percent(row.mfu)}: ${row.row}`))));
}

// One group per row: closed if all of its checks have passed.
function checkTable() {
  const groups = rows.filter((row) => row.checks).map((row) => {
    const made = row.checks.filter((check) => check.passed !== null), good = made.filter((check) => check.passed);
    const lines = row.checks.map((check) => {
      const about = check.reason && element("small", { class: "soft" }, check.reason), isBounded = check.tolerance !== undefined;
      return [element("span", {}, check.what, about), verdict(check.passed),
        isBounded && known(check.error, (x) => x.toExponential(1)), isBounded && check.tolerance.toExponential(1)];
    });
    const state = element("span", { class: good.length < made.length ? "bad" : "good" }, `${good.length} of ${made.length} passed`);
    return element("details", good.length < made.length ? { open: "" } : {},
      element("summary", {}, `${row.row[0].toUpperCase()}${row.row.slice(1)}: `, state, element("span", { class: "soft" }, `, compared with ${row.reference}`)),
      table(["check", "", "difference", "at most"], lines, 2));
  });
  section("Checks", "A difference is the largest one, relative to the largest value. For attention kernels in bfloat16, it may be twice that of XLA's attention.", ...groups);
}

function speedTable() {
  const plans = new Map(rows.filter((row) => row.plan).map((row) => [row.of, row]));
  const lines = speeds.map((row) => {
    const plan = plans.get(row.row);
    return [row.row, `${row.batch.join(" x ")}, ${row.attention}`, whole(row.tokens_per_second),
      whole(row.batch[0] / row.step_seconds), percent(row.mfu), known(row.roofline_ratio, percent), milliseconds(row.step_seconds),
      plan && known(plan.bound, milliseconds), known(row.peak_memory_bytes, gigabytes), plan && gigabytes(plan.bytes),
      `${row.compile_seconds.toFixed(1)} s`, known(row.input_stall, percent)];
  });
  if (lines.length) section("Speed", "Tokens without padding, of all devices. Multiplications: the time of the step's matrix multiplications, run alone, over the time of the step. Plan: lower bound of the step's time, and memory that the step needs at most. Memory: the peak of the process, known where it is above that of earlier rows.",
    table(["train step", "batch, attention", "tokens/s", "rows/s", "MFU", "multiplications", "step", "plan", "memory", "plan", "compilation", "waiting for input"], lines, 2));
  const how = [...new Set([...plans.values()].map((row) => row.plan))];
  if (how.length) $("content").lastChild.append(element("p", {}, `Plan: ${how.join("; ")}`));
}

// Ratios of rows that differ in one setting.
function comparisons() {
  const lines = [], rate = (row) => row && row.tokens_per_second;
  const compare = (what, over, under) => { if (rate(over) && rate(under)) lines.push([what, (rate(over) / rate(under)).toFixed(2)]); };
  for (const row of speeds) {
    const of = (suffix) => named.get(`${row.row}, ${suffix}`), fewer = / of \d+ devices$/;
    compare(`${row.row}: speed without dropout over speed with dropout`, of("no dropout"), row);
    compare(`${row.row}: speed with dropout by rbg over threefry2x32`, of("dropout by rbg"), row);
    compare(`${row.row}: tokens/s of packed rows of text over rows of one sequence`, of("packed text"), of("text"));
    for (const mesh of ["fsdp", "tensor"]) compare(`${row.row}: speed of the mesh ${mesh} over data`, of(mesh), row);
    if (fewer.test(row.row)) {
      const all = named.get(row.row.replace(/, \d+ of \d+ devices$/, "")), number = Number(row.row.match(/(\d+) of/)[1]);
      if (rate(all)) lines.push([`${row.row}: tokens/s per device over those on all ${devices}`, (rate(row) / number / (rate(all) / devices)).toFixed(2)]);
    }
  }
  for (const row of rows.filter((row) => row.contenders)) for (const one of row.contenders)
    for (const [key, value] of Object.entries(one)) if (key.startsWith("over_"))
      lines.push([`${row.row}: time of ${one.contender} over ${key.slice(5)}, ${one.batch.join(" x ")} tokens, in turns`, value.toFixed(2)]);
  if (lines.length) section("Comparisons", "", table(["what", "ratio"], lines, 1));
}

function others() {
  section("What others have published", "On other hardware than this, unless the names agree; no figure of this table was measured here.",
    table(["model", "hardware", "figure", "source"], PUBLISHED));
}

function notMeasured() {
  const lines = rows.filter((row) => row.left || row.begun || row.error || row.skipped).map((row) => [row.row,
    element("span", { class: row.error ? "bad" : "soft" }, row.error ? "error" : row.skipped ? "left out" : row.begun ? "not finished" : "next call"),
    element("span", {}, row.error || row.skipped || (row.begun ? "the process ended during this row" : ""))]);
  if (lines.length) section("Not measured", "The same command measures what is left, and repeats what ended with an error.", table(["row", "", "reason"], lines));
}

summary();
checkTable();
speedTable();
comparisons();
others();
notMeasured();
startTheme(() => {});
document.body.dataset.ready = "yes";
