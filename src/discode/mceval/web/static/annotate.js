// Optional comfort: without scripts, the same buttons send the same forms.
const find = (selector) => document.querySelector(selector);
const image = find("#image");
const answer = find("#answer");
const area = find("#text");
const viewer = find("#viewer");

// An answer is sent once: a second click finds nothing to press.
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", (event) => {
    if (document.body.classList.contains("busy")) event.preventDefault();
    document.body.classList.add("busy");
  });
}
// A page that comes back by the browser's own way is ready again; the server says if it is too old.
addEventListener("pageshow", () => document.body.classList.remove("busy"));

// Keys
const seen = () => !image || (image.complete && !document.body.classList.contains("busy"));
const writing = (target) => target.matches("textarea, select, input:not([type=radio], [type=checkbox])");
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.ctrlKey && area) {
    event.preventDefault();
    answer.requestSubmit();
  }
  if (event.key === "Escape") closeSheets();
  // A key that is held down answers once, and not the next image as well.
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (viewer?.open || writing(event.target)) return;
  const key = event.key.toLowerCase();
  if ((key === "1" || key === "2") && answer && !area) {
    const sheet = find("details.pass[open]");
    if (!sheet && seen()) answer.querySelector(`[data-key="${key}"]`).click();
  } else if (key === "u") {
    find("#undo button:not(:disabled)")?.click();
  } else if (key === "s" || key === "f") {
    const sheet = find(key === "s" ? "#skip" : "#flag");
    if (sheet) {
      event.preventDefault();
      sheet.querySelector("summary").click();
    }
  } else if (key === "z" && viewer) {
    openViewer();
  }
});

// Skip and flag: one sheet at a time, the first reason in focus, closed by Escape or a click beside.
const sheets = [...document.querySelectorAll("details.pass")];
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
    sheet.querySelector("input[type=radio]").focus();
  });
}
addEventListener("pointerdown", (event) => {
  for (const sheet of sheets) if (!sheet.contains(event.target)) sheet.open = false;
});

// The image, enlarged: a translation and a scale, moved by pointers, wheel and keys.
const view = { x: 0, y: 0, scale: 1 };
const pointers = new Map();
const large = viewer?.querySelector("img");
function place() {
  large.style.transform = `translate(${view.x}px, ${view.y}px) scale(${view.scale})`;
}
function zoom(factor, x = innerWidth / 2, y = innerHeight / 2) {
  const scale = Math.min(16, Math.max(1, view.scale * factor));
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  move(0, 0);
}
function move(x, y) {
  view.x = Math.min(0, Math.max(innerWidth * (1 - view.scale), view.x + x));
  view.y = Math.min(0, Math.max(innerHeight * (1 - view.scale), view.y + y));
  place();
}
function openViewer() {
  large.src = image.src;
  Object.assign(view, { x: 0, y: 0, scale: 1 });
  place();
  viewer.showModal();
}
if (viewer) {
  find("#zoom").addEventListener("click", (event) => {
    event.preventDefault();
    openViewer();
  });
  viewer.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
    if (event.key in step) move(...step[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else if (event.key === "0") zoom(0);
    else if (event.key.toLowerCase() === "z") viewer.close();
    else return;
    event.preventDefault();
  });
  viewer.addEventListener("click", (event) => {
    const wanted = event.target.dataset.zoom;
    if (wanted === "in") zoom(1.6);
    if (wanted === "out") zoom(1 / 1.6);
    if (wanted === "fit") zoom(0);
    if (wanted === "close") viewer.close();
  });
  viewer.addEventListener("close", () => find("#zoom").focus());
  large.addEventListener("dblclick", (event) => {
    zoom(view.scale > 1 ? 0 : 3, event.clientX, event.clientY);
  });
  viewer.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
  }, { passive: false });
  large.addEventListener("pointerdown", (event) => {
    large.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
  });
  large.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
    if (other) {
      const far = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
      const x = (event.clientX + other.clientX) / 2;
      const y = (event.clientY + other.clientY) / 2;
      zoom(far(event) / Math.max(1, far(before)), x, y);
    } else {
      move(event.clientX - before.clientX, event.clientY - before.clientY);
    }
    pointers.set(event.pointerId, event);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    large.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
}

// Revising: what was taken out and what was put in, word by word (longest common subsequence).
function compareWords(before, after) {
  const rows = before.length;
  const columns = after.length;
  const table = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let i = rows - 1; i >= 0; i -= 1) {
    for (let j = columns - 1; j >= 0; j -= 1) {
      table[i][j] = before[i] === after[j]
        ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const parts = [];
  const add = (tag, word) => {
    if (parts.length && parts[parts.length - 1].tag === tag) parts[parts.length - 1].words.push(word);
    else parts.push({ tag, words: [word] });
  };
  let i = 0;
  let j = 0;
  while (i < rows || j < columns) {
    if (i < rows && j < columns && before[i] === after[j]) {
      add("span", before[i]);
      i += 1;
      j += 1;
    } else if (i < rows && (j === columns || table[i + 1][j] >= table[i][j + 1])) {
      add("del", before[i]);
      i += 1;
    } else {
      add("ins", after[j]);
      j += 1;
    }
  }
  return parts;
}
const diff = find("#diff");
if (area && diff) {
  const words = (text) => text.split(/\s+/u).filter(Boolean);
  const before = diff.dataset.before;
  const restore = find("#restore");
  const show = () => {
    const parts = compareWords(words(before), words(area.value));
    const same = parts.length === 1 && parts[0].tag === "span";
    diff.replaceChildren();
    if (same) diff.textContent = "None yet.";
    for (const part of same ? [] : parts) {
      const element = document.createElement(part.tag);
      element.textContent = part.words.join(" ");
      diff.append(element, " ");
    }
    diff.classList.toggle("soft", same);
    find("#send").textContent = same ? "Keep it as it is" : "Send my version";
    restore.hidden = same;
  };
  area.addEventListener("input", show);
  restore.addEventListener("click", () => {
    area.value = before;
    show();
    area.focus();
  });
  show();
}

// Somebody who is still looking keeps the task; an abandoned page does not.
const beat = find("#beat");
if (beat) {
  let awake = false;
  for (const name of ["pointermove", "pointerdown", "keydown", "scroll"]) {
    addEventListener(name, () => { awake = true; }, { passive: true });
  }
  setInterval(() => {
    if (!awake || document.hidden) return;
    awake = false;
    const body = new URLSearchParams(new FormData(beat));
    fetch("/beat", { method: "POST", body, credentials: "same-origin" }).catch(() => {});
  }, Math.max(5, Number(beat.dataset.seconds)) * 1000);
}
