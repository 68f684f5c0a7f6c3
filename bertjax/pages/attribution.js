// The words of texts in the colours of what they add to an output of the model, or take from it.

// 0.1234 -> "+0.123".
const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toPrecision(3);

// The opacity of a word's colour is its value, relative to the largest one.
function markedWord(why, index, most) {
  const value = why.values[index], about = index === why.word ? " about" : "";
  // A word has the spaces after it, and the first one those before it, which are not coloured.
  const [, before, word, after] = why.words[index].match(/^(\s*)(.*?)(\s*)$/s);
  const kind = value < 0 ? "takes" : "adds", share = Math.abs(value ?? 0) / most;
  const attributes = value === null ? { class: `w unread${about}`, title: "not read by the model" } :
    { class: `w ${share < 0.05 ? "" : kind}${about}`, title: signed(value), "data-value": value,
      style: `background:rgba(var(--${kind}), ${(0.6 * share).toFixed(3)})` };
  return [before, element("span", attributes, word), after];
}

// A paragraph for each text.
function attributedTexts(why) {
  const most = why.values.reduce((best, value) => Math.max(best, Math.abs(value ?? 0)), 1e-12);
  const texts = [[0, why.pair_start], [why.pair_start, why.words.length]].filter(([first, end]) => first < end);
  return texts.map(([first, end]) => {
    const words = why.words.slice(first, end).flatMap((_, n) => markedWord(why, first + n, most));
    return element("p", { class: "why", dir: "auto" }, ...words);
  });
}

const attributionScale = () => element("div", { class: "scale" }, "takes from it (dashed)", element("i", {}), "adds to it");

function completeness(why) {
  const change = why.output - why.baseline_output;
  const share = change ? ` (${percent(Math.abs(why.error / change), 1)} of the difference)` : "";
  return `Output ${why.output.toPrecision(4)}, of the baseline ${why.baseline_output.toPrecision(4)}. The words sum to ` +
    `${signed(change + why.error)}, the outputs differ by ${signed(change)}: completeness error ${signed(why.error)}${share}.`;
}

// All words with their numbers, the largest first: for readers who do not see or cannot hover.
function attributionNumbers(why) {
  const read = why.words.map((word, n) => [word, why.values[n]]).filter(([, value]) => value !== null);
  read.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const rows = read.map(([word, value]) => element("tr", {}, element("td", { dir: "auto" }, word.trim()), element("td", {}, signed(value))));
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "word"), element("th", { scope: "col" }, "attribution")));
  return element("details", { class: "numbers" }, element("summary", {}, "numbers of all words"),
    element("table", {}, head, element("tbody", {}, ...rows)));
}
