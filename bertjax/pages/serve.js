// Asks the server of the page, and shows what it answers: bars where there are scores, else JSON.
const CHARACTERS = 4000; // of JSON that are shown

const lines = () => $("texts").value.split("\n").filter((line) => line.trim());

function headers() {
  const key = $("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
}

// What is sent to an endpoint.
function bodyOf(endpoint) {
  const texts = lines();
  const bodies = {
    "v1/embeddings": { input: texts },
    rerank: { query: $("query").value, texts, return_text: true },
    predict: { inputs: texts.map((text) => text.split(" ||| ").slice(0, 2)) },
    similarity: { inputs: { source_sentence: $("query").value, sentences: texts } },
  };
  const options = endpoint === "similarity" ? {} : { truncate: true };
  return { ...(bodies[endpoint] || { inputs: texts }), ...options };
}

// Pairs of a name and a score, of answers that have some.
function scoresOf(endpoint, answer) {
  const texts = lines();
  if (endpoint === "rerank") return answer.map((rank) => [rank.text, rank.score]);
  if (endpoint === "similarity") return answer.map((cosine, i) => [texts[i], cosine]);
  if (endpoint === "embed") {
    const [first] = answer;
    return answer.map((vector, i) => [texts[i], vector.reduce((sum, x, d) => sum + x * first[d], 0)]);
  }
  if (endpoint === "predict") {
    return answer.flatMap((classes, i) =>
      classes.slice(0, 5).map((one) => [`${texts[i]} \u2192 ${one.label || entity(one)}`, one.score]));
  }
  return [];
}

const entity = ({ word, entity_group }) => `${word} (${entity_group})`;

function showBars(scores) {
  const most = Math.max(...scores.map(([, score]) => Math.abs(score)), 1e-9);
  $("bars").replaceChildren(...scores.map(([name, score]) => element("div", { class: "bar" },
    element("b", {}, name), element("span", {}, score.toFixed(4)),
    element("i", { style: `width: ${(100 * Math.abs(score)) / most}%` }))));
}

const messageOf = (error) => ({ error: error.message });

// What stands for a response if the server cannot be reached.
const noAnswer = (error) => ({ ok: false, status: "of no answer", json: async () => messageOf(error) });

async function ask(event) {
  event.preventDefault();
  const endpoint = $("endpoint").value;
  const start = performance.now();
  const response = await fetch(`models/${encodeURIComponent($("model").value)}/${endpoint}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(bodyOf(endpoint)),
  }).catch(noAnswer);
  const answer = await response.json().catch(messageOf);
  const seconds = (performance.now() - start) / 1000;
  const about = { embed: ", and the cosines of the first text with all" }[endpoint] || "";
  $("said").textContent = `Status ${response.status} in ${seconds.toFixed(3)} s${response.ok ? about : ""}`;
  showBars(response.ok ? scoresOf(endpoint, answer) : []);
  const text = JSON.stringify(answer, null, 1);
  $("json").textContent = text.length > CHARACTERS ? `${text.slice(0, CHARACTERS)} \u2026` : text;
  $("answer").hidden = false;
}

function showModels(models) {
  const shown = models.map((model) => element("option", { value: model.name }, `${model.name} (${model.kind})`));
  $("model").replaceChildren(...shown);
  const choose = () => {
    const model = models.find((one) => one.name === $("model").value);
    const endpoints = model ? model.endpoints : [];
    $("endpoint").replaceChildren(...endpoints.map((one) => element("option", { value: one }, `/${one}`)));
    showQuery();
  };
  $("model").onchange = choose;
  choose();
}

function showQuery() {
  $("query-label").hidden = !["rerank", "similarity"].includes($("endpoint").value);
}

async function readModels() {
  const response = await fetch("info", { headers: headers() }).catch(noAnswer);
  const answer = await response.json().catch(messageOf);
  showModels(answer.models || []);
  $("said").textContent = answer.error || "";
  $("answer").hidden = response.ok;
}

function startServe() {
  $("key-label").hidden = !data.needs_key;
  $("key").onchange = readModels;
  $("endpoint").onchange = showQuery;
  $("form").onsubmit = ask;
  showModels(data.models);
}
