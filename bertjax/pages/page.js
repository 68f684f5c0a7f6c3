// What all pages share. Loaded before the scripts of a page.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// An element of HTML; children that are null or undefined are left out.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const key in attributes || {}) made.setAttribute(key, attributes[key]);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Whether the first letter of a text belongs to a script that is written from right to left.
const isRtl = (text) => /^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u.test(text);

// A text within a sentence of the other direction, whose order it leaves alone.
const isolated = (text) => (isRtl(text) ? `\u2068${text}\u2069` : text);

// 0.1234 -> "12.3 %". Unless `digits` says how many, small values keep two, so that none but 0 is shown as 0.
function percent(p, digits = p > 0 && p < 0.001 ? Math.min(8, 1 - Math.floor(Math.log10(100 * p))) : 1) {
  return `${(100 * p).toFixed(digits)} %`;
}

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// The theme is that of the system until the button is pressed.
function startTheme(redraw) {
  const set = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = dark ? "Light" : "Dark";
  };
  set(matchMedia("(prefers-color-scheme: dark)").matches);
  $("theme").addEventListener("click", () => {
    set(document.documentElement.dataset.theme !== "dark");
    redraw();
  });
}
