// The page of `discode serve`. Whatever comes from a person or the server is set as text.
import { asCsv, asCurl, copy } from "/page/copying.js";
import { term } from "/page/terms.js";

const $ = (id) => document.getElementById(id);
let chosen = null; // the image, a Blob
let called = ""; // its file's name
let example = null; // where it comes from, if it is one of the examples
let preview = null; // its object URL
let room = Infinity; // bytes that the server takes
let pending = null; // the request under way
let explaining = new AbortController(); // what is asked about the words of the captions shown
let judge = null; // what the server says of it
let last = null; // what was asked last, and its answer
const wide = matchMedia("(min-width: 1000px)"), phone = matchMedia("(max-width: 40rem)");

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

// ---- the image
function show(blob, name, from = null) {
  chosen = blob;
  example = from;
  called = from ? from.image.split("/").pop() : name;
  if (preview) URL.revokeObjectURL(preview);
  preview = URL.createObjectURL(blob);
  $("preview").hidden = false;
  $("preview").alt = `The image ${name}`;
  $("preview").src = preview;
  $("drop").classList.add("full");
  $("drop-text").replaceChildren(make("b", { text: name }), make("span", { text: "change" }));
  for (const button of $("examples").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.dataset.image === from?.image));
  say("");
}

function take(files) {
  const file = [...files].find((one) => one.type.startsWith("image/")) ?? files[0];
  if (file) show(file, file.name || "pasted image");
}

for (const id of ["preview", "thumb"]) $(id).addEventListener("error", () => { $(id).hidden = true; }); // not for a browser
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

function fit(input) {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, 200)}px`; // what is longer scrolls
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

function post(path, asked, captions, signal) {
  const form = new FormData();
  form.append("image", asked.image, "image");
  for (const caption of captions) form.append("captions", caption);
  for (const text of asked.references) form.append("references", text);
  if (asked.method) form.append("method", asked.method);
  return call(path, { method: "POST", body: form, signal });
}
const reason = (error) => (error instanceof TypeError ? "The server cannot be reached." : error.message);

// One request at a time; a person may take it back, and the server then does not judge it.
let clock = 0;
function busy(captions) {
  const working = captions > 0, begin = Date.now();
  $("score").disabled = working;
  $("score").textContent = working ? "Scoring" : "Score";
  $("score").classList.toggle("busy", working);
  $("cancel").hidden = !working;
  $("side").setAttribute("aria-busy", String(working));
  clearInterval(clock);
  $("clock").textContent = "";
  if (working) clock = setInterval(() => { $("clock").textContent = `${Math.round((Date.now() - begin) / 1000)} s`; }, 1000);
}

const counted = (captions) => (captions === 1 ? "1 caption" : `${captions} captions`);
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

async function ask({ jump = true } = {}) {
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
  const asked = { image: chosen, name: $("drop-text").querySelector("b").textContent, file: called, example,
                  captions, references: lines($("references").value), method: $("method").value, token: $("token").value !== "" };
  pending?.abort();
  const mine = pending = new AbortController();
  busy(captions.length);
  say(`${counted(captions.length)} …`);
  try {
    const answer = await post("/v1/score", asked, captions, mine.signal);
    busy(0);
    say(`${counted(captions.length)} scored.`);
    render(asked, answer, jump);
  } catch (error) {
    if (mine !== pending) return; // another one was asked meanwhile
    busy(0);
    if (error.name === "AbortError") say("Cancelled.");
    else say(reason(error), true);
    if (error.status === 401) $("token").focus();
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("cancel").addEventListener("click", () => {
  pending.abort();
  $("score").focus();
});

// ---- the answer
const digits = (value) => (value === null ? "none" : value.toFixed(2));

// On the unit scale answers come after "0." or "1."; one axis from 0.0 to 1.0 shows both.
function spread(answer, row) {
  const { distribution: after, probabilities: before } = row;
  if (answer.scale !== "unit" || row.stem === "")
    return { labels: answer.answers, before, after };
  const zeros = answer.answers.map(() => 0);
  const place = (p) => (row.stem === "1." ? [...zeros, p[0]] : [...p, 0]);
  return { labels: [...answer.answers.map((digit) => `0.${digit}`), "1.0"],
           before: place(before), after: place(after) };
}

// Where the score lies on the scale, with what is typical of this judge where that is known.
function scoreBar(row, asked) {
  const range = judge?.range;
  if (!range) return "";
  const place = (score) => Math.min(1, Math.max(0, (score - range[0]) / (range[1] - range[0])));
  const svg = draw("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "track", y: 2.5, width: 1000, height: 5, rx: 5, ry: 2.5 }),
    draw("rect", { class: "after", y: 2.5, width: 1000 * place(row.score), height: 5, rx: 5, ry: 2.5 }));
  for (const [name, score] of Object.entries(typicalOf(asked) ?? {}))
    svg.append(draw("rect", { class: `mark ${name}`, x: 1000 * place(score) - 1.5, width: 3, height: 10 }));
  return svg;
}
// What is typical is known for the server's own method alone.
const typicalOf = (asked) => (asked.method === judge?.method ? judge?.typical : null);

// A long caption shows three lines, and the rest on demand.
function captionOf(rank, row, text) {
  const caption = make("p", { class: "caption" }, make("span", { class: "rank", text: `${rank}. ` }), text);
  const more = make("button", { type: "button", class: "link", "aria-expanded": "false", text: "Show all of it" });
  more.hidden = true;
  more.addEventListener("click", () => {
    const open = caption.classList.toggle("whole");
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Show less" : "Show all of it";
  });
  return make("div", { class: "said" }, caption, more);
}
function clamp() {
  for (const caption of $("ranking").querySelectorAll(".caption:not(.whole)"))
    caption.nextElementSibling.hidden = caption.scrollHeight <= caption.clientHeight + 1;
}
addEventListener("resize", clamp);

// ---- which words are wrong: a caption is a button that shows and hides them
function wordsOf(asked, row, kept) {
  const text = make("span", { class: "words", role: "button", tabindex: "0", "aria-expanded": "false",
                              "aria-describedby": "explain-hint", text: row.caption });
  const below = make("div", { class: "below" });
  below.hidden = true;
  let asking = null, found = null; // asked for once
  async function look() {
    below.replaceChildren(make("p", { class: "sub busy", text: "Looking at its words" }));
    try {
      const { explanations: [explained] } = await post("/v1/explain", asked, [row.caption], explaining.signal);
      found = explained;
      kept.then((keepWords) => keepWords(row, explained.spans));
    } catch (error) {
      if (error.name === "AbortError") return;
      asking = null; // to open it again is to try again
      below.replaceChildren(make("p", { class: "sub error", text: reason(error) }));
      say(reason(error), true);
    }
  }
  function mark() {
    const { spans, error } = found, marked = spans.filter((span) => span.marked).length;
    const count = marked === 1 ? "1 word is marked." : `${marked || "No"} words are marked.`;
    text.replaceChildren(...markedCaption(row.caption, spans));
    const caption = text.closest(".caption");
    if (!caption.classList.contains("whole")) caption.nextElementSibling.click(); // all of it
    below.replaceChildren(make("p", { class: "sub" }, term("words", "Words"), spans.length ? `${marked || "none"} marked` : "none that says anything about an image"),
      ...(spans.length ? [effectsList(row.caption, spans)] : []),
      ...(row.sentences ? [make("p", { class: "sub", text: `Of the caption as a whole, which scores ${digits(found.score)}.` })] : []),
      ...(found.wrong_throughout ? [make("p", { class: "sub", text: "No single word is to blame for the low score." })] : []),
      ...(found.left_out ? [make("p", { class: "sub", text: `${found.left_out} more were not looked at.` })] : []),
      ...(error ? [make("p", { class: "sub error", text: error })] : []));
    say(count);
  }
  async function toggle() {
    const opened = text.getAttribute("aria-expanded") === "false";
    text.setAttribute("aria-expanded", String(opened));
    below.hidden = !opened;
    if (opened) await (asking ??= look());
    if (text.getAttribute("aria-expanded") === "false") text.replaceChildren(row.caption);
    else if (found) mark();
    clamp();
  }
  text.addEventListener("click", () => { if (getSelection().isCollapsed) toggle(); }); // who selects text wants to copy it
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle();
  });
  return { text, below };
}

const near = (p, q) => p.every((x, i) => Math.abs(x - q[i]) < 0.0005);

function render(asked, answer, jump) {
  last = { asked, answer };
  explaining.abort();
  explaining = new AbortController();
  const kept = keep(asked, answer);
  const kinds = new Map(asked.example?.captions.map((text, i) => [text, asked.example.kinds[i]]) ?? []);
  const ranked = [...answer.scores].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity));
  const scored = ranked.filter((row) => row.error === null);
  const method = asked.method || "the server's method";
  const drawn = scored.filter((row) => row.distribution !== null); // not captions judged by sentences
  const same = drawn.every((row) => near(row.distribution, row.probabilities));
  const bars = (row) => (same ? { ...spread(answer, row), after: null } : spread(answer, row));
  const most = Math.max(0.25, ...drawn.map(bars).flatMap(({ before, after }) => [...before, ...(after ?? [])]));
  $("ranking").replaceChildren(...ranked.map((row, i) => {
    const value = make("span", { class: "value", text: digits(row.score) });
    if (row.error !== null)
      return make("li", {}, make("div", { class: "top" }, captionOf(i + 1, row, row.caption), value), make("p", { class: "sub error", text: row.error }));
    const { text, below } = wordsOf(asked, row, kept);
    const item = make("li", {}, make("div", { class: "top" }, captionOf(i + 1, row, text), value), below);
    value.title = String(row.score);
    const facts = make("p", { class: "sub" });
    // Three of one reading; a chosen raw or smoothing is one of them already.
    for (const [name, score] of Object.entries({ raw: row.raw, smoothing: row.smoothing, [method]: row.score }))
      facts.append(term($(`term-${name}`) ? name : "after", name), " ", make("b", { class: name === method ? "after" : "", text: digits(score) }));
    if (kinds.has(row.caption)) facts.append(term("written", "written as"), ` ${kinds.get(row.caption)}`);
    for (const flag of row.flags) facts.append($(`term-${flag}`) ? term(flag, flag, "flag") : make("span", { class: "flag", text: flag }));
    item.append(scoreBar(row, asked), facts);
    if (row.distribution === null) {
      item.append(make("p", { class: "sub" }, term("sentences", `mean of ${row.sentences} sentences`),
                       ` the lowest ${digits(row.lowest_score)}: ${row.lowest_sentence}`));
      return item;
    }
    const chart = make("details", { class: "chart-box" }, make("summary", { text: "Distribution" }),
                       distributionChart(bars(row), most), distributionTable(bars(row)));
    chart.open = !phone.matches || i === 0;
    item.append(chart);
    return item;
  }));
  const key = (name, ...text) => make("span", {}, make("i", { class: `key ${name}` }), ...text);
  const typical = typicalOf(asked);
  $("legend").replaceChildren(
    key("before", term("smoothing", "smoothing")), ...(same ? [] : [key("after", term("after", method))]),
    ...(typical ? [key("mark own", term("own", `good ${digits(typical.own)}`)), key("mark random", term("random", `random ${digits(typical.random)}`))] : []));
  URL.revokeObjectURL($("thumb").src);
  $("thumb").hidden = false;
  $("thumb").src = URL.createObjectURL(asked.image); // another one may be chosen by now
  $("signature").textContent = answer.signature;
  $("results").hidden = false;
  $("nothing-yet").hidden = true;
  $("by-hand").hidden = true;
  clamp();
  if (jump) $("results-title").focus({ preventScroll: true });
  const { top } = $("results").getBoundingClientRect();
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!wide.matches || top < 0 || top > innerHeight / 2)
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
// Resolves to what keeps the words of a row, too.
async function keep(asked, answer) {
  const rows = answer.scores.map((row) => ({ caption: row.caption, score: row.score, error: row.error, flags: row.flags,
    raw: row.raw, smoothing: row.smoothing, bars: row.distribution === null ? null : spread(answer, row) }));
  const question = { name: asked.name, thumbnail: await thumbnail(asked.image), references: asked.references,
    method: asked.method || "default", signature: answer.signature, smoothingSignature: answer.smoothing_signature, rows };
  const change = (make) => {
    const before = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]");
    try {
      sessionStorage.setItem("discode-asked", JSON.stringify(make(before)));
      return before.length;
    } catch { return -1; /* the tab's store is full: the explorer has what fitted */ }
  };
  const place = change((before) => [...before, question]);
  offerExplorer();
  return (row, spans) => {
    rows[answer.scores.indexOf(row)].spans = spans;
    if (place >= 0) change((before) => before.map((other, i) => (i === place ? question : other)));
  };
}
function offerExplorer() {
  const asked = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]").length;
  $("explore").hidden = !asked;
  $("explore").textContent = `Explorer (${asked})`;
}
offerExplorer();
addEventListener("pageshow", offerExplorer);

$("copy").addEventListener("click", () => copy($("copy"), $("signature").textContent));
$("copy-curl").addEventListener("click", () => copy($("copy-curl"), asCurl({ ...last.asked, example: last.asked.example?.image })));
$("copy-json").addEventListener("click", () => copy($("copy-json"), `${JSON.stringify(last.answer, null, 2)}\n`));
$("copy-csv").addEventListener("click", () => copy($("copy-csv"), asCsv(last.asked, last.answer)));

// ---- what the server is
let known = false;
async function meet() {
  if (known) return;
  try {
    const { models: [model], methods, method, limits } = await call("/v1/models");
    known = true;
    room = limits.body;
    judge = { ...model, method };
    $("model").textContent = `${model.model} ${model.revision}`.trim();
    $("note").textContent = model.note;
    $("references").disabled = !model.references;
    if (!model.references) $("references-hint").textContent = "Captions by people. This judge takes none.";
    $("about-judge").hidden = false;
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
  for (const one of examples) {
    const button = make("button", { type: "button", "data-image": one.image, "aria-pressed": "false",
                                    "aria-label": `Example: ${one.name}` },
                        make("img", { src: one.image, alt: "", width: "256", height: "256" }), make("span", { text: one.name }));
    button.addEventListener("click", async () => {
      show(await (await fetch(one.image)).blob(), one.name, one);
      setCaptions(one.captions);
      ask({ jump: false });
    });
    $("examples").append(button);
  }
  $("examples").hidden = examples.length === 0;
}

setCaptions(["", ""]);
meet();
offer();
