// Words with an explanation: by pointer, by keyboard (focus), by touch (a tap); Escape closes it.
const tip = document.getElementById("tip");
let shown = null;

function show(button) {
  shown = button;
  tip.textContent = document.getElementById(button.getAttribute("aria-describedby")).textContent;
  tip.hidden = false;
  const at = button.getBoundingClientRect();
  const left = Math.min(at.left, document.documentElement.clientWidth - tip.offsetWidth - 12);
  const above = at.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(12, left)}px`;
  tip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
}

function hide() {
  shown = null;
  tip.hidden = true;
}

export function term(name, label, kind = "term") {
  const button = make("button", { type: "button", class: kind, "aria-describedby": `term-${name}`, text: label });
  button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(button); });
  button.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  button.addEventListener("focus", () => show(button));
  button.addEventListener("blur", hide);
  button.addEventListener("click", () => show(button)); // a tap does not focus everywhere
  return button;
}

document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
document.addEventListener("pointerdown", (event) => { if (shown && !shown.contains(event.target)) hide(); });
addEventListener("scroll", hide, { passive: true, capture: true });
addEventListener("resize", hide);
