// The masked-word view: the tokens of the text, and the words that the model expects at every mask
// and at the token that is picked.
const words = { picked: null };
const readable = (n) => isolated(data.tokens[n].trim()) || "␣";

function explainWords() {
  const computed = Object.keys(data.words).length, tokens = data.special.filter((s) => !s).length;
  if (!data.has_words) return "This model has no trained head for masked words, so it expects no words.";
  if (!computed) return `Of a text of this length, only words at masks are computed: write ${data.mask_token} into the text.`;
  if (data.is_decoder) return "This model reads from left to right: click a token to see what it expects there after the tokens before.";
  if (computed === tokens) return "Click a token to see what the model expects there when this token is masked.";
  return "For a text of this length and a model of this size, only the words at masks were computed.";
}

function startWords() {
  $("words-help").textContent = explainWords();
  const legend = [];
  if (data.segments.includes(1)) legend.push(element("span", {}, "first text"), element("span", { class: "b" }, "second text"));
  if (data.masks.length) legend.push(element("span", { class: "mask" }, "mask"));
  if (data.tokens.some((token) => token.includes("␣"))) legend.push(element("small", {}, "␣ is the space before a word"));
  $("legend").replaceChildren(...legend);
  const chips = data.tokens.map((token, n) => {
    const chip = element("button", { class: `chip${data.segments[n] ? " b" : ""}`, dir: "auto" }, token);
    chip.type = "button";
    chip.tabIndex = -1;
    chip.dataset.n = n;
    if (data.special[n]) chip.classList.add("special");
    if (data.masks.includes(n)) chip.classList.add("mask");
    chip.disabled = !(n in data.words);
    chip.addEventListener("click", () => pickWord(n));
    return chip;
  });
  $("chips").replaceChildren(...chips);
  const isBackward = isRtl(data.tokens.filter((_, n) => !data.special[n] && !data.masks.includes(n)).join(" "));
  $("chips").dir = isBackward ? "rtl" : "ltr";
  const enabled = chips.filter((chip) => !chip.disabled);
  if (enabled.length) enabled[0].tabIndex = 0;
  // One stop of the Tab key for all tokens; arrow keys move among them.
  $("chips").addEventListener("keydown", (event) => {
    const at = enabled.indexOf(event.target);
    const right = isBackward ? -1 : 1;
    const to = { ArrowRight: at + right, ArrowDown: at + 1, ArrowLeft: at - right, ArrowUp: at - 1, Home: 0, End: enabled.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = enabled[(to + enabled.length) % enabled.length];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  pickWord(data.masks.length || !enabled.length ? null : Number(enabled[0].dataset.n));
}

function pickWord(n) {
  words.picked = n;
  for (const chip of $("chips").children) {
    if (!chip.disabled) chip.setAttribute("aria-pressed", String(Number(chip.dataset.n) === n));
  }
  const shown = data.masks.filter((mask) => mask in data.words);
  if (n !== null && !shown.includes(n)) shown.unshift(n);
  // Bars of one page have one scale, so that the model's certainty can be compared.
  const most = Math.max(...shown.map((position) => data.words[position].top[0][1]), 1e-9);
  $("words").replaceChildren(...shown.map((position) => block(position, most)));
}

function block(position, most) {
  const { top, actual } = data.words[position], made = element("div");
  const title = data.masks.includes(position) ? readable(position) : `“${readable(position)}”`;
  const heading = element("h3", {}, `${title} `);
  const how = data.masks.includes(position) ? "" : data.is_decoder ? ", from the tokens before it" : ", masked";
  heading.append(element("small", {}, `token ${position + 1}${how}`));
  const list = element("ol");
  let listed = false;
  top.forEach(([token, p], n) => {
    const isActual = actual !== undefined && n + 1 === actual[1] && token === data.tokens[position];
    listed ||= isActual;
    list.append(row(token, p, most, isActual ? "word actual" : "word"));
  });
  if (actual !== undefined && !listed) {
    list.append(row(data.tokens[position], actual[0], most, "word actual below", `rank ${actual[1].toLocaleString("en")}`));
  }
  made.append(heading, list);
  return made;
}

function row(token, p, most, className, rank) {
  const made = element("li", { class: className });
  const bar = element("i");
  bar.style.width = `${100 * Math.min(1, p / most)}%`;
  const number = element("span", {}, percent(p));
  made.append(element("b", { dir: "auto" }, token), bar, number);
  if (rank) { made.title = rank; made.children[0].append(element("small", {}, ` ${rank}`)); }
  return made;
}
