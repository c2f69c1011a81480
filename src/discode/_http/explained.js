// A caption with its wrong words marked, on the page of `discode serve` and in reports: in brackets,
// underlined and coloured. Whatever comes from data is set as text, by `text` where that is given.
"use strict";
const plainText = (part) => part;

function effectText(effect) { // values that round to zero are +0.00, even negative ones
  if (effect === null) return "none";
  const size = Math.abs(effect).toFixed(2);
  return (effect < 0 && Number(size) > 0 ? "−" : "+") + size;
}

// Spans are counted in code points, as Python does.
function spanTexts(caption, spans) {
  const letters = [...caption];
  return spans.map(({ start, end }) => letters.slice(start, end).join(""));
}

function markedCaption(caption, spans, text = plainText) {
  const letters = [...caption], found = spanTexts(caption, spans), nodes = [];
  let place = 0;
  spans.forEach(({ start, end, effect, marked }, i) => {
    nodes.push(text(letters.slice(place, start).join("")));
    nodes.push(marked ? make("mark", { class: "wrong" }, "[", make("u", {}, text(found[i])), ` ${effectText(effect)}]`) : text(found[i]));
    place = end;
  });
  return [...nodes, text(letters.slice(place).join(""))];
}

function effectsList(caption, spans, text = plainText) {
  const found = spanTexts(caption, spans);
  return make("ul", { class: "effects", "aria-label": "Effect of each word on the score" }, ...spans.map(({ effect, marked, error }, i) =>
    make("li", {}, make(marked ? "mark" : "span", { class: marked ? "wrong" : "word" }, ...(marked ? ["[", make("u", {}, text(found[i])), "]"] : [text(found[i])])),
         " ", make("b", { text: error || effectText(effect) }))));
}
