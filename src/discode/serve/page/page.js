// The page of `discode serve`. Whatever comes from a person or the server is set as text.
const $ = (id) => document.getElementById(id);
let chosen = null; // the image, a Blob
let preview = null; // its object URL
let room = Infinity; // bytes that the server takes
let pending = null; // the request under way

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
      distributionChart(spread(answer, row), most));
    for (const flag of row.flags) item.append(make("span", { class: "flag", text: flag }));
    item.append(distributionTable(spread(answer, row)));
    return item;
  }));
  $("thumb").hidden = $("preview").hidden;
  $("thumb").src = preview;
  $("signature").textContent = answer.signature;
  $("after-name").textContent = `after: ${$("method").value || "the server's method"}`;
  keep(answer);
  $("results").hidden = false;
  $("results-title").focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  $("results").scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" });
}

// ---- what was asked, for the explorer: kept in this tab alone
async function thumbnail(blob) {
  try {
    const image = await createImageBitmap(blob);
    const scale = Math.min(1, 288 / Math.max(image.width, image.height));
    const canvas = make("canvas", { width: Math.max(1, Math.round(image.width * scale)),
                                    height: Math.max(1, Math.round(image.height * scale)) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/webp", 0.6).replace(/^data:image\/webp;base64,/, "");
  } catch { return ""; } // an image that the browser cannot draw
}
async function keep(answer) {
  const asked = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]");
  const references = $("references").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const rows = answer.scores.map((row) => ({ caption: row.caption, score: row.score, error: row.error, flags: row.flags,
    before: row.before.score, bars: row.error === null ? spread(answer, row) : null }));
  asked.push({ name: $("drop-text").querySelector("b").textContent, thumbnail: await thumbnail(chosen), references,
    method: $("method").value || "default", signature: answer.signature, beforeSignature: answer.before_signature, rows });
  try {
    sessionStorage.setItem("discode-asked", JSON.stringify(asked));
  } catch { /* the tab's store is full: the explorer has what fitted */ }
  offerExplorer();
}
function offerExplorer() {
  const asked = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]").length;
  $("explore").hidden = !asked;
  $("explore").textContent = `Explore what you asked (${asked})`;
}
offerExplorer();
addEventListener("pageshow", offerExplorer);

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
