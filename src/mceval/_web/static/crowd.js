// Prepares a page on a crowd platform: draws the sides, and reads the assignment and the address
// for answers from the URL.
const given = new URLSearchParams(location.search);
const assignment = given.get("assignmentId") ?? "";
const preview = assignment === "ASSIGNMENT_ID_NOT_AVAILABLE";
let home = null;
try { home = new URL(given.get("turkSubmitTo")); } catch { /* the platform's own address stays */ }
for (const form of document.querySelectorAll("form")) {
  form.elements.assignmentId.value = assignment;
  if (home?.protocol === "https:" && home.hostname.endsWith(".mturk.com")) {
    form.action = new URL("/mturk/externalSubmit", home).href;
  }
  if (preview) form.addEventListener("submit", (event) => {
    event.preventDefault();
    event.stopImmediatePropagation();
  });
}
document.querySelector("#preview").hidden = !preview;

const answer = document.querySelector("#answer");
const buttons = [...answer.querySelectorAll("[data-key]")];
if (buttons.length === 2 && Math.random() < 0.5) {
  answer.elements.swapped.value = "1";
  const texts = [1, 2].map((number) => document.querySelector("#caption-" + number));
  [texts[0].textContent, texts[1].textContent] = [texts[1].textContent, texts[0].textContent];
  [buttons[0].value, buttons[1].value] = [buttons[1].value, buttons[0].value];
}

// No server checks the answer, so an unchanged caption needs a tick.
const { text, unchanged } = answer.elements;
if (text && unchanged) {
  const given = text.value.trim();
  const check = () => { unchanged.required = text.value.trim() === given; };
  for (const name of ["input", "click"]) answer.addEventListener(name, check);
  check();
}

// The guide is open the first time.
const SEEN = "discode-guide-" + document.body.className;
const sheet = document.querySelector("#guide");
try {
  sheet.open = localStorage.getItem(SEEN) === null;
  localStorage.setItem(SEEN, "1");
} catch { sheet.open = true; }
