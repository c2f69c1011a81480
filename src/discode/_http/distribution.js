// Bars of a distribution before and after decoding, on the page of `discode serve` and in reports.
// Whatever comes from data is set as text.
"use strict";
const SVG = "http://www.w3.org/2000/svg";

function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  const { text, ...rest } = options;
  for (const [name, value] of Object.entries(rest)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;

// `most` is the tallest bar of all charts that stand together, so that they compare; a flat
// distribution is a low chart. `after` may be null: then there is one bar per answer.
function distributionChart({ labels, before, after }, most) {
  const narrow = matchMedia("(max-width: 30rem)").matches;
  const width = narrow ? 330 : 600, full = narrow ? 76 : 100, foot = 20;
  const height = 2 + full * Math.max(...before, ...(after ?? [])) / most;
  const likeliest = (p) => `most on ${labels[p.indexOf(Math.max(...p))]}, ${percent(Math.max(...p))}`;
  const svg = draw("svg", {
    viewBox: `0 0 ${width} ${height + foot}`, class: "chart", role: "img",
    "aria-label": `Token probabilities: ${likeliest(before)}. ` +
      (after ? `With the prior: ${likeliest(after)}. ` : "") + "The table has all numbers.",
  });
  const step = width / labels.length, bar = Math.min(step * 0.36, 26);
  labels.forEach((label, i) => {
    const middle = (i + 0.5) * step;
    const bars = after ? [["before", before[i], middle - bar - 1], ["after", after[i], middle + 1]]
      : [["before", before[i], middle - bar / 2]];
    for (const [name, p, x] of bars) {
      const tall = (p / most) * full;
      svg.append(draw("rect", { class: name, x, y: height - tall, width: bar, height: tall,
                                rx: Math.min(2, tall / 2) }));
    }
    if (labels.length * 30 <= width || i % 2 === 0)
      svg.append(draw("text", { x: middle, y: height + 16 }, label));
  });
  svg.append(draw("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }));
  return svg;
}

function distributionTable({ labels, before, after }) {
  const heads = after ? ["answer", "before", "after"] : ["answer", "probability"];
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })));
  const body = labels.map((label, i) => make("tr", {},
    make("th", { scope: "row", text: label }), make("td", { text: percent(before[i]) }),
    ...(after ? [make("td", { text: percent(after[i]) })] : [])));
  return make("details", {}, make("summary", { text: "Numbers" }),
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
