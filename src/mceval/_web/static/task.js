// A task's page: zoom, both captions seen before an answer, the changes to a caption. It makes no
// requests, so that pages of crowd platforms can embed it.
const find = (selector) => document.querySelector(selector);
const image = find("#image");
const answer = find("#answer");
const area = find("#text");
const viewer = find("#viewer");

// Answers are enabled once the image has loaded and both ends of both captions were in view.
const unread = new Set(answer ? answer.querySelectorAll("[data-view]") : []);
let broken = false;
function whatIsMissing() {
  if (broken || (image?.complete && !image.naturalWidth)) return "broken";
  if (image && !image.complete) return "loading";
  return unread.size ? "unread" : "";
}
function showWhatIsMissing() {
  const missing = whatIsMissing();
  if (!answer || answer.dataset.missing === missing) return;
  answer.dataset.missing = missing;
  find("#choice").classList.toggle("waiting", missing !== "");
  const say = find("#choice .missing");
  say.textContent = {
    broken: "The image did not load, so it cannot be answered. ",
    loading: "The image is still loading …",
    unread: `Read ${find("#name-2") ? "both captions" : "the caption"} to the end, then choose.`,
  }[missing] ?? "";
  if (missing !== "broken") return;
  const again = document.createElement("button");
  again.type = "button";
  again.className = "quiet";
  again.textContent = "Try again";
  again.addEventListener("click", () => location.reload());
  say.append(again);
}
if (answer) {
  image?.addEventListener("load", showWhatIsMissing);
  image?.addEventListener("error", () => {
    broken = true;
    showWhatIsMissing();
  });
  answer.addEventListener("submit", (event) => {
    if (!whatIsMissing()) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  });
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      unread.delete(entry.target);
      watch.unobserve(entry.target);
    }
    showWhatIsMissing();
  }, { rootMargin: `0px 0px -${find("#choice").offsetHeight}px` }); // the part behind the bar is not visible
  for (const element of unread) watch.observe(element);
  showWhatIsMissing();
}

// The enlarged image: translation and scale, controlled by pointers, wheel and keys.
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
  if (whatIsMissing() === "broken") return;
  large.src = image.src;
  Object.assign(view, { x: 0, y: 0, scale: 1 });
  place();
  viewer.showModal();
}
addEventListener("keydown", (event) => {
  const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.repeat
    && !event.defaultPrevented;
  const typing = event.target.matches?.("textarea, select, input:not([type=radio], [type=checkbox])");
  const off = document.body.classList.contains("no-keys");
  if (viewer && !viewer.open && plain && !typing && !off && event.key.toLowerCase() === "z") openViewer();
});
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

// Revising: removed and added words (longest common subsequence).
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
// Show the changes, or `none` if there are none; return whether there are none.
function showChanges(before, after, none) {
  const words = (text) => text.split(/\s+/u).filter(Boolean);
  const parts = compareWords(words(before), words(after));
  const same = parts.length === 1 && parts[0].tag === "span";
  diff.replaceChildren();
  if (same) diff.textContent = none;
  for (const part of same ? [] : parts) {
    const element = document.createElement(part.tag);
    element.textContent = part.words.join(" ");
    diff.append(element, " ");
  }
  diff.classList.toggle("soft", same);
  return same;
}
if (diff && !area) showChanges(diff.dataset.before, diff.dataset.after, "Nothing.");
if (area && diff) {
  const before = diff.dataset.before;
  const restore = find("#restore");
  // The draft survives a lost session or a closed page, and is restored with the same task.
  const DRAFT = "discode-draft";
  const task = area.dataset.draft;
  try {
    const draft = JSON.parse(localStorage.getItem(DRAFT));
    if (task && draft?.task === task) area.value = draft.text;
  } catch { /* no local storage */ }
  const keep = () => {
    try {
      if (task) localStorage.setItem(DRAFT, JSON.stringify({ task, text: area.value }));
    } catch { /* for this page only */ }
  };
  const show = () => {
    keep();
    const same = showChanges(before, area.value, "None yet.");
    find("#send").textContent = same ? "Keep it as it is" : "Send my version";
    restore.hidden = same;
    find("#unchanged").hidden = !same;
  };
  area.addEventListener("input", show);
  restore.addEventListener("click", () => {
    area.value = before;
    show();
    area.focus();
  });
  show();
}
