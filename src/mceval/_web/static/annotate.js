// Optional: without scripts, the same buttons send the same forms.
const find = (selector) => document.querySelector(selector);
const body = document.body;
const answer = find("#answer");
const area = find("#text");
const viewer = find("#viewer");

// An answer is sent once: a second click has no effect, neither here nor on the next page, which
// has not been seen yet. The server also refuses answers that come too early.
const UNSEEN_MS = 800;
let unseen = true;
const early = document.querySelectorAll("#answer .first, #undo button");
for (const button of early) {
  button.disabled = true;
  button.title = "Look at the page first; this will be active in a moment";
}
setTimeout(() => {
  unseen = false;
  for (const button of early) {
    button.disabled = false;
    button.removeAttribute("title");
  }
}, UNSEEN_MS);
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", (event) => {
    const wait = unseen && form.matches("#answer, #undo");
    if (wait || body.classList.contains("busy")) event.preventDefault();
    if (!wait) body.classList.add("busy");
  });
}
// A page restored by the browser is ready again; the server reports if it is outdated.
addEventListener("pageshow", () => body.classList.remove("busy"));

// Screen readers announce changes after loading, not the initial content.
for (const said of document.querySelectorAll("[data-say]")) {
  const words = said.textContent;
  said.textContent = "";
  setTimeout(() => { said.textContent = words; }, 150);
}

// Single keys can be turned off, since they interfere with speech input.
const KEYS = "discode-keys";
const stored = () => {
  try { return localStorage.getItem(KEYS); } catch { return null; }
};
function useKeys(on) {
  body.classList.toggle("no-keys", !on);
  for (const box of document.querySelectorAll("[data-keys]")) box.checked = on;
}
for (const box of document.querySelectorAll("[data-keys]")) {
  box.closest("label").hidden = false;
  box.addEventListener("change", () => {
    try { localStorage.setItem(KEYS, box.checked ? "on" : "off"); } catch { /* for this page only */ }
    useKeys(box.checked);
  });
}
useKeys(stored() !== "off");

const writing = (target) => target.matches("textarea, select, input:not([type=radio], [type=checkbox])");
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey && area) {
    event.preventDefault();
    answer?.requestSubmit();
  }
  if (event.key === "Escape") closeSheets();
  // A key that is held down answers only once.
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (viewer?.open || writing(event.target) || body.classList.contains("no-keys")) return;
  const key = event.key.toLowerCase();
  if ((key === "1" || key === "2") && answer && !area) {
    const sheet = find("details.pass[open]");
    // Click the button itself, which is disabled until it can be seen.
    if (!sheet && !answer.dataset.missing) answer.querySelector(`[data-key="${key}"]`).click();
  } else if (key === "u") {
    find("#undo button")?.click();
  } else if (key === "s" || key === "f") {
    const sheet = find(key === "s" ? "#skip" : "#flag");
    if (sheet) {
      event.preventDefault();
      sheet.querySelector("summary").click();
    }
  }
});

// Sheets: one at a time, first field focused, closed by Cancel, Escape or a click outside.
const sheets = [...document.querySelectorAll("details.pass, details.criterion")];
function closeSheets() {
  for (const sheet of sheets.filter((one) => one.open)) {
    sheet.open = false;
    sheet.querySelector("summary").focus();
  }
}
for (const sheet of sheets) {
  sheet.addEventListener("toggle", () => {
    if (!sheet.open) return;
    for (const other of sheets) if (other !== sheet) other.open = false;
    sheet.querySelector("input:not([type=hidden])")?.focus();
  });
  sheet.querySelector("[data-cancel]")?.addEventListener("click", (event) => {
    event.preventDefault();
    sheet.querySelector("form").reset();
    closeSheets();
  });
}
addEventListener("pointerdown", (event) => {
  for (const sheet of sheets) if (!sheet.contains(event.target)) sheet.open = false;
});

const print = find("[data-print]");
if (print) {
  print.hidden = false;
  print.addEventListener("click", () => window.print());
}

// Activity keeps the task; an abandoned page loses it.
const beat = find("#beat");
if (beat) {
  let awake = false;
  for (const name of ["pointermove", "pointerdown", "keydown", "scroll"]) {
    addEventListener(name, () => { awake = true; }, { passive: true });
  }
  setInterval(() => {
    if (!awake || document.hidden) return;
    awake = false;
    const form = new URLSearchParams(new FormData(beat));
    fetch("/beat", { method: "POST", body: form, credentials: "same-origin" }).catch(() => {});
  }, Math.max(5, Number(beat.dataset.seconds)) * 1000);
}
