// The page of `discode serve`. Whatever comes from a person or the server is set as text.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let chosen = null; // the image, a Blob
let preview = null; // its object URL
let room = Infinity; // bytes that the server takes
let pending = null; // the request under way

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  const { text, ...rest } = options;
  for (const [name, value] of Object.entries(rest)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  node.append(...children);
  return node;
}

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

// ---- the image
function show(blob, name) {
  chosen = blob;
  if (preview) URL.revokeObjectURL(preview);
  preview = URL.createObjectURL(blob);
  $("preview").hidden = false;
  $("preview").alt = `The image ${name}`;
  $("preview").src = preview;
  $("drop").classList.add("full");
  $("drop-text").replaceChildren(make("b", { text: name }), make("span", { text: "change" }));
  for (const button of $("examples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.title === name));
  say("");
}

function take(files) {
  const file = [...files].find((one) => one.type.startsWith("image/")) ?? files[0];
  if (file) show(file, file.name || "pasted image");
}

$("preview").addEventListener("error", () => { $("preview").hidden = true; });
$("file").addEventListener("change", (event) => take(event.target.files));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) document.body.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  take(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) {
    event.preventDefault();
    take(event.clipboardData.files);
  }
});

// ---- the captions
const inputs = () => [...$("captions").querySelectorAll("textarea")];

function fit(input) { // a long caption is seen whole
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

function number() {
  inputs().forEach((input, i) => {
    input.setAttribute("aria-label", `Caption ${i + 1}`);
    input.placeholder = i ? "another caption" : "a dog runs on the beach";
    input.nextElementSibling.setAttribute("aria-label", `Remove caption ${i + 1}`);
  });
}

function addCaption(text = "", after = null) {
  const input = make("textarea", { rows: "1", maxlength: "4000", enterkeyhint: "next" });
  input.value = text;
  const remove = make("button", { type: "button", class: "remove", text: "×" });
  const item = make("li", {}, input, remove);
  if (after) after.after(item);
  else $("captions").append(item);
  remove.addEventListener("click", () => {
    const next = item.nextElementSibling ?? item.previousElementSibling;
    if (next) {
      item.remove();
      next.querySelector("textarea").focus();
    } else {
      input.value = "";
      input.focus();
    }
    number();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) $("form").requestSubmit();
    else (item.nextElementSibling?.querySelector("textarea") ?? addCaption("", item)).focus();
  });
  input.addEventListener("paste", (event) => {
    const lines = event.clipboardData.getData("text").split(/\r?\n/).map((line) => line.trim());
    const texts = lines.filter(Boolean);
    if (texts.length < 2) return;
    event.preventDefault();
    if (!input.value.trim()) input.value = texts.shift();
    fit(input);
    let last = item;
    for (const one of texts) last = addCaption(one, last).parentElement;
    last.querySelector("textarea").focus();
  });
  input.addEventListener("input", () => fit(input));
  number();
  fit(input);
  return input;
}
addEventListener("resize", () => inputs().forEach(fit));

function setCaptions(texts) {
  $("captions").replaceChildren();
  for (const text of texts) addCaption(text);
}

$("add").addEventListener("click", () => addCaption().focus());

// ---- asking
async function call(path, options = {}) {
  const token = $("token").value;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) $("token-section").hidden = false;
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(body.error?.message ?? `the server answered ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return body;
}

$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const captions = inputs().map((input) => input.value.trim()).filter(Boolean);
  if (!chosen) {
    say("Choose an image first.", true);
    $("file").focus();
    return;
  }
  if (!captions.length) {
    say("Write a caption first.", true);
    inputs()[0].focus();
    return;
  }
  if (chosen.size > room) {
    say(`The image is over ${Math.floor(room / 1048576)} MiB.`, true);
    return;
  }
  const form = new FormData();
  form.append("image", chosen, "image");
  for (const caption of captions) form.append("captions", caption);
  for (const line of $("references").value.split("\n"))
    if (line.trim()) form.append("references", line.trim());
  if ($("method").value) form.append("method", $("method").value);
  pending?.abort();
  pending = new AbortController();
  $("score").disabled = true;
  say("Scoring …");
  try {
    render(await call("/v1/score", { method: "POST", body: form, signal: pending.signal }));
    say("");
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error instanceof TypeError ? "The server cannot be reached." : error.message, true);
    if (error.status === 401) $("token").focus();
  } finally {
    $("score").disabled = false;
  }
});

// ---- the answer
const digits = (value) => (value === null ? "none" : value.toFixed(2));
const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;

// On the unit scale answers come after "0." or "1."; one axis from 0.0 to 1.0 shows both.
function spread(answer, row) {
  const { distribution: after, before: { distribution: before } } = row;
  if (answer.scale !== "unit" || row.stem === "")
    return { labels: answer.answers, before, after };
  const zeros = answer.answers.map(() => 0);
  const place = (p) => (row.stem === "1." ? [...zeros, p[0]] : [...p, 0]);
  return { labels: [...answer.answers.map((digit) => `0.${digit}`), "1.0"],
           before: place(before), after: place(after) };
}

// `most` is the tallest bar of all captions, so that charts compare; a flat one is a low chart.
function chart({ labels, before, after }, most) {
  const narrow = matchMedia("(max-width: 30rem)").matches;
  const width = narrow ? 330 : 600, full = narrow ? 76 : 100, foot = 20;
  const height = 2 + full * Math.max(...before, ...after) / most;
  const svg = document.createElementNS(SVG, "svg");
  const add = (tag, attributes, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    svg.append(node);
  };
  const top = labels[after.indexOf(Math.max(...after))];
  const first = labels[before.indexOf(Math.max(...before))];
  svg.setAttribute("viewBox", `0 0 ${width} ${height + foot}`);
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label",
    `Token probabilities: most on ${first}, ${percent(Math.max(...before))}. ` +
    `With the prior: most on ${top}, ${percent(Math.max(...after))}. The table has all numbers.`);
  const step = width / labels.length, bar = Math.min(step * 0.36, 26);
  labels.forEach((label, i) => {
    const middle = (i + 0.5) * step;
    for (const [name, p, x] of [["before", before[i], middle - bar - 1], ["after", after[i], middle + 1]]) {
      const tall = (p / most) * full;
      add("rect", { class: name, x, y: height - tall, width: bar, height: tall, rx: Math.min(2, tall / 2) });
    }
    if (labels.length * 30 <= width || i % 2 === 0)
      add("text", { x: middle, y: height + 16 }, label);
  });
  add("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height });
  return svg;
}

function numbers({ labels, before, after }) {
  const head = make("tr", {}, ...["answer", "before", "after"].map(
    (text) => make("th", { scope: "col", text })));
  const body = labels.map((label, i) => make("tr", {},
    make("th", { scope: "row", text: label }),
    make("td", { text: percent(before[i]) }), make("td", { text: percent(after[i]) })));
  return make("details", {}, make("summary", { text: "Numbers" }),
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function render(answer) {
  const ranked = [...answer.scores].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity));
  const shown = ranked.filter((row) => row.error === null).map((row) => spread(answer, row));
  const most = Math.max(0.25, ...shown.flatMap(({ before, after }) => [...before, ...after]));
  $("ranking").replaceChildren(...ranked.map((row, i) => {
    const rank = make("span", { class: "rank", text: `${i + 1}. ` });
    const caption = make("p", { class: "caption" }, rank, row.caption);
    const value = make("span", { class: "value", text: digits(row.score) });
    const item = make("li", {}, make("div", { class: "top" }, caption, value));
    if (row.error !== null) {
      item.append(make("p", { class: "sub error", text: row.error }));
      return item;
    }
    value.title = String(row.score);
    item.append(
      make("p", { class: "sub" }, "before the prior ",
           make("b", { text: digits(row.before.score) }), `, raw answer ${Number(row.raw.toFixed(6))}`),
      chart(spread(answer, row), most));
    for (const flag of row.flags) item.append(make("span", { class: "flag", text: flag }));
    item.append(numbers(spread(answer, row)));
    return item;
  }));
  $("thumb").hidden = $("preview").hidden;
  $("thumb").src = preview;
  $("signature").textContent = answer.signature;
  $("after-name").textContent = `after: ${$("method").value || "the server's method"}`;
  $("results").hidden = false;
  $("results-title").focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("results").scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
}

$("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText($("signature").textContent);
    $("copy").textContent = "Copied";
  } catch { // no permission, or a plain connection: the person can still copy it
    getSelection().selectAllChildren($("signature"));
    $("copy").textContent = "Selected";
  }
  setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
});

// ---- what the server is
let known = false;
async function meet() {
  if (known) return;
  try {
    const { models: [model], methods, method, limits } = await call("/v1/models");
    known = true;
    room = limits.body;
    $("model").textContent = `${model.model} ${model.revision}`;
    const listed = methods.some((row) => row.name === method);
    const rows = listed ? methods : [{ name: method, about: "this server's default" }, ...methods];
    $("method").replaceChildren(...rows.map((row) => make("option", { value: row.name, text: row.name })));
    $("method").value = method;
    const describe = () => { $("about").textContent = rows.find((row) => row.name === $("method").value).about; };
    $("method").addEventListener("change", describe);
    describe();
  } catch (error) {
    if (error.status !== 401) say(error.message, true);
  }
}
$("token").addEventListener("change", meet);

async function offer() {
  const examples = await call("/demo").catch(() => []);
  for (const { name, image, captions } of examples) {
    const button = make("button", { type: "button", title: name, "aria-pressed": "false",
                                    "aria-label": `Example: ${name}` },
                        make("img", { src: image, alt: "" }));
    button.addEventListener("click", async () => {
      show(await (await fetch(image)).blob(), name);
      setCaptions(captions);
    });
    $("examples").append(button);
  }
  $("examples").hidden = examples.length === 0;
}

setCaptions(["", ""]);
meet();
offer();
