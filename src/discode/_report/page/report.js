// The report: tables and charts, then an explorer whose list keeps only the rows one sees.
// Whatever comes from the runs is set as text.
const $ = (id) => document.getElementById(id);
const DATA = JSON.parse($("data").textContent);
const BENCHES = DATA.benchmarks;
let thumbnails = null; // parsed when the first one is shown
const FAR = 30; // points from which a rating and a score disagree

// ---- words and numbers
const COUNT = new Intl.NumberFormat("en");
const plural = (n, word) => `${COUNT.format(n)} ${word}${n === 1 ? "" : "s"}`;
const fixed = (v, digits = 2) => (v === null || v === undefined ? "–" : v.toFixed(digits).replace(/^-/, "−"));
const signed = (v, digits = 2) => (v === null || v === undefined ? "–" : (v > 0 ? "+" : "") + fixed(v, digits));
function brief(v) { // a score of any scale
  if (v === null || v === undefined) return "–";
  const size = Math.abs(v);
  return fixed(v, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 || size === 0 ? 2 : 3);
}
function time(seconds) {
  if (seconds < 0.1) return `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return seconds < 120 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

// Characters that nobody sees, or that turn a line around, are shown by their code.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u200b\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udbff\udc00-\udfff]/;
function words(text, tag = "bdi", options = {}) {
  const node = make(tag, { dir: "auto", ...options });
  let plain = "";
  for (const letter of text) {
    if (letter.length === 1 && UNSEEN.test(letter)) {
      const code = letter.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
      node.append(plain, make("span", { class: "code", text: `U+${code}` }));
      plain = "";
    } else plain += letter;
  }
  node.append(plain);
  return node;
}

// "τ_b" with its letter below the line.
function symbol(text) {
  const [, base, below] = /^(τ)_(\w)$/.exec(text) ?? [];
  return base ? make("span", {}, base, make("sub", { text: below })) : words(text);
}
function ticks(from, to, wanted = 3) { // round numbers inside a range
  const size = 10 ** Math.floor(Math.log10((to - from) / wanted || 1));
  const step = [1, 2, 2.5, 5, 10].map((n) => n * size).find((n) => (to - from) / n <= wanted + 0.5);
  const found = [];
  for (let v = Math.ceil(from / step - 1e-9) * step; v <= to + step * 1e-6; v += step) found.push(v);
  return found;
}

// ---- the head
$("title").append(words(DATA.title));
const LABELS = [...new Set(BENCHES.flatMap((b) => b.metrics.map((m) => m.label)))];
const judged = BENCHES.reduce((sum, b) => sum + b.judgments, 0);
const ASKED = DATA.asked === true; // questions to a judge: no people, no tables
const CAPTIONERS = DATA.captioners === true; // what one judge says of several: no people
const UNRATED = ASKED || CAPTIONERS;
const COMPARED = CAPTIONERS && LABELS.length > 1; // captioners differ on an image
const METRIC = CAPTIONERS ? "Captioner" : "Metric";
document.body.classList.toggle("asked", ASKED);
document.body.classList.toggle("captioners", CAPTIONERS);
document.body.classList.toggle("compared", COMPARED);
document.body.classList.toggle("unrated", UNRATED);
if (CAPTIONERS) {
  $("agreement-title").textContent = "Means and differences";
  document.querySelector('#nav a[href="#agreement"]').textContent = "Means";
  $("category").parentElement.firstChild.textContent = "Captioner ";
}
if (ASKED) $("kind").lastChild.textContent = " discode";
if (ASKED) $("tools").prepend(make("a", { href: "/", class: "quiet", text: "Ask again" }));
$("lede").textContent = ASKED ? plural(BENCHES[0].pairs, "caption") + " of this tab; closing it forgets them."
  : CAPTIONERS ? `${plural(LABELS.length, "captioner")} on ${plural(BENCHES[0].photos, "image")}, by one judge.` : `${plural(LABELS.length, "metric")} on ${plural(BENCHES.length, "benchmark")}, ` +
  `against ${plural(judged, "judgment")} by people.`;
$("agreement-hint").textContent = (CAPTIONERS ? "Mean scores" : "In percent") + ", with 95 % intervals by bootstrap over images." +
  (LABELS.length < 2 ? "" : ` A group begins where every ${METRIC.toLowerCase()} above is better.`);

// ---- dark and light
const THEMES = ["auto", "light", "dark"];
function setTheme(name) {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  $("theme").textContent = { auto: "Colours: auto", light: "Colours: light", dark: "Colours: dark" }[name];
  $("theme").value = name;
  try { localStorage.setItem("discode-theme", name); } catch { /* a page from a file may not */ }
}
function nextTheme() { setTheme(THEMES[(THEMES.indexOf($("theme").value) + 1) % 3]); }
let kept = null;
try { kept = localStorage.getItem("discode-theme"); } catch { /* likewise */ }
setTheme(THEMES.includes(kept) ? kept : "auto");
$("theme").addEventListener("click", nextTheme);

// ---- signatures
function openSignature(bench, metric) {
  $("signature-title").replaceChildren(words(metric.label), ` on ${bench.title}`);
  $("signature-fields").replaceChildren(...metric.signature.split("|").flatMap((part) => {
    const at = part.indexOf(":");
    return [words(part.slice(0, at), "dt"), words(part.slice(at + 1), "dd")];
  }));
  $("signature-text").textContent = metric.signature;
  $("signature").showModal();
}
function signatureButton(bench, metric) {
  const button = make("button", { type: "button", class: "link", title: "Signature", "aria-label": `Signature of ${metric.label}` }, words(metric.label));
  button.addEventListener("click", () => openSignature(bench, metric));
  return button;
}
async function copy(text, button, node) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch { // a page from a file has no clipboard everywhere: the person can still copy it
    getSelection().selectAllChildren(node);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}
$("signature-copy").addEventListener("click", () =>
  copy($("signature-text").textContent, $("signature-copy"), $("signature-text")));

// ---- tables of agreement
function whisker([value, low, high], [from, to], best, wide = 200) {
  const x = (v) => 4 + (wide - 8) * (v - from) / (to - from);
  const svg = draw("svg", { viewBox: `0 0 ${wide} 16`, class: best ? "whisker best" : "whisker",
                            "aria-hidden": "true" });
  svg.append(draw("line", { class: "rail", x1: 0, x2: wide, y1: 8, y2: 8 }));
  if (low !== null) svg.append(draw("line", { class: "span", x1: x(low), x2: x(high), y1: 8, y2: 8 }));
  if (value !== null) svg.append(draw("circle", { cx: x(value), cy: 8, r: 4 }));
  return svg;
}
function domain(cells) {
  const all = cells.flat().filter((v) => v !== null && v !== undefined);
  if (!all.length) return [0, 1];
  const low = Math.min(...all), high = Math.max(...all), room = (high - low) * 0.05 || 1;
  return [low - room, high + room];
}
const interval = ([, low, high], digits = 2) => (low === null ? "" : `${fixed(low, digits - 1)} to ${fixed(high, digits - 1)}`);

function agreementTable(bench) {
  const main = bench.main;
  const range = domain(bench.metrics.map((m) => (m.cells[main] ?? []).slice(0, 3)));
  const others = bench.measures.filter(([name]) => name !== main);
  const paper = bench.metrics.some((m) => Object.values(m.cells).some((c) => c[3] !== null));
  const failed = bench.metrics.some((m) => m.failed > 0);
  const mainName = bench.measures.find(([name]) => name === main)?.[1] ?? main;
  const columns = [
    ...(bench.metrics.length > 1 ? [{ key: "group", name: "Group", of: (m) => m.group, cell: (m) => m.group ?? "–", low: true }] : []),
    { key: "label", name: METRIC, of: (m) => m.label, low: true },
    { key: main, name: mainName, main: true, of: (m) => m.cells[main]?.[0],
      cell: (m) => fixed(m.cells[main]?.[0], bench.digits) },
    { key: "interval", name: `${Math.round(100 * bench.level)} % interval` },
    ...others.map(([name, title]) => ({ key: name, name: title, of: (m) => m.cells[name]?.[0],
                                        cell: (m) => fixed(m.cells[name]?.[0]) })),
    ...(paper ? [{ key: "paper", name: "Paper", title: "What the paper printed for the first measure; in brackets where ours was made in another way", of: (m) => m.cells[main]?.[3],
                   cell: (m) => { // in brackets where ours was made in another way
                     const [, , , printed, difference] = m.cells[main] ?? [];
                     return printed !== null && difference === null ? `(${fixed(printed, 1)})` : fixed(printed, 1);
                   } }] : []),
    ...(CAPTIONERS ? [] : [{ key: "ties", name: "Ties", of: (m) => m.ties, cell: (m) => (m.ties === null ? "–" : `${fixed(m.ties, 1)} %`) }]),
    ...(failed ? [{ key: "failed", name: "No score", of: (m) => m.failed, cell: (m) => `${fixed(m.failed, 1)} %` }] : []),
  ];
  const table = make("table", { class: "agreement" });
  const body = make("tbody");
  let sort = { key: main, down: true };
  const heads = columns.map((column) => {
    const head = make("th", { scope: "col" });
    if (column.title) head.title = column.title;
    if (!column.of) head.append(column.name);
    else {
      const button = make("button", { type: "button" }, symbol(column.name));
      button.addEventListener("click", () => {
        sort = { key: column.key, down: sort.key === column.key ? !sort.down : !column.low };
        fill();
      });
      head.append(button);
    }
    if (column.key === "label") head.className = "name";
    if (column.key === "interval") head.className = "plot";
    return head;
  });
  function fill() {
    const by = columns.find((column) => column.key === sort.key);
    const rows = [...bench.metrics].sort((a, b) => order(by.of(a), by.of(b), sort.down));
    columns.forEach((column, i) => {
      if (!column.of) return;
      heads[i].setAttribute("aria-sort", column.key !== sort.key ? "none" : sort.down ? "descending" : "ascending");
    });
    body.replaceChildren(...rows.map((metric, i) => {
      const row = make("tr", {});
      if (metric.group === 1) row.classList.add("best");
      if (i && sort.key === main && rows[i - 1].group !== metric.group) row.classList.add("next");
      for (const column of columns) {
        const cell = make(column.key === "label" ? "th" : "td", {});
        if (column.key === "label") {
          cell.scope = "row";
          cell.className = "name";
          cell.append(signatureButton(bench, metric));
        } else if (column.key === "interval") {
          cell.className = "plot";
          const numbers = metric.cells[main] ?? [null, null, null];
          cell.append(whisker(numbers, range, metric.group === 1),
                      make("span", { class: "range", text: interval(numbers, bench.digits) }));
        } else {
          if (column.main) cell.className = "main";
          if (column.key === "group") cell.className = "group";
          if (!column.main) cell.append(make("span", { class: "on-phone" }, symbol(column.name), " "));
          cell.append(String(column.cell(metric)));
        }
        row.append(cell);
      }
      return row;
    }));
  }
  fill();
  table.append(make("thead", {}, make("tr", {}, ...heads)), body);
  return table;
}
function order(a, b, down) { // what is missing comes last, either way
  const none = (v) => v === null || v === undefined || Number.isNaN(v);
  if (none(a) || none(b)) return none(a) - none(b);
  const sign = typeof a === "string" ? a.localeCompare(b) : a - b;
  return down ? -sign : sign;
}

function differences(bench) {
  if (!bench.differences.length) return [];
  const head = make("tr", {}, ...[METRIC, "against", "difference", "95 %", "Holm's p"].map(
    (text, i) => make("th", { scope: "col", text, class: i < 2 ? "name" : "" })));
  const body = bench.differences.map(([a, b, value, low, high, p]) => make("tr", { class: p < 0.05 ? "" : "dim" },
    make("td", { class: "name" }, words(a)), make("td", { class: "name" }, words(b)),
    make("td", { text: signed(value, bench.digits) }), make("td", { text: `${signed(low, bench.digits)} to ${signed(high, bench.digits)}` }),
    make("td", { text: p === null ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3) })));
  return [make("details", {}, make("summary", { text: `Every pair of ${METRIC.toLowerCase()}s` }),
    make("div", { class: "scroll" }, make("table", { class: "plain" }, make("thead", {}, head), make("tbody", {}, ...body))))];
}
const what = (bench) => `${plural(bench.photos, "image")}, ${plural(bench.pairs, "pair")}` +
  (UNRATED ? "" : `, ${plural(bench.judgments, bench.kind === "ratings" ? "rating" : "choice")}`);
if (!ASKED) $("tables").replaceChildren(...BENCHES.map((bench) => make("div", { class: "bench" },
  make("h3", {}, words(bench.title), make("small", { text: what(bench) })),
  agreementTable(bench),
  make("p", { class: "hint", text: bench.compared }),
  ...differences(bench))));

// ---- the leaderboard: tables of texts, as in its Markdown
function board({ title, above, titles, rows, notes }) {
  const head = (spans) => make("tr", {}, ...spans.map(([text, columns], i) => // symbols such as τ_b
    make("th", { scope: columns > 1 ? "colgroup" : "col", colspan: columns, class: i ? "" : "name" }, symbol(text))));
  const body = rows.map(([name, ...cells]) => make("tr", {},
    make("th", { scope: "row", class: "name" }, words(name.trim())), ...cells.map((text) => make("td", { text }))));
  return make("div", { class: "bench" }, ...(title === "Leaderboard" ? [] : [make("h3", {}, words(title))]),
    make("div", { class: "scroll" }, make("table", { class: "plain" },
      make("thead", {}, ...(above.length ? [head(above)] : []), head(titles.map((text) => [text, 1]))), make("tbody", {}, ...body))),
    ...notes.map((text) => make("p", { class: "hint" }, words(text))));
}
if (DATA.board) $("boards").replaceChildren(...DATA.board.map(board));
else {
  $("board").remove();
  document.querySelector('#nav a[href="#board"]').remove();
}

// ---- charts of metrics against people
function ridges(bench, metric) {
  const { rows, edges, means } = metric.charts;
  const width = 300, left = 46, step = 27, tall = 38, right = 6;
  const height = tall - step + rows.length * step + 18;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "figure", role: "img",
    "aria-label": `Scores by rating. Mean score: ${rows.map((_, i) => `${bench.levels[i]}: ${brief(means[i])}`).join(", ")}` });
  const room = width - left - right;
  const x = (v) => left + room * (v - edges[0]) / (edges[1] - edges[0]);
  const shares = rows.map((row) => { const n = row.reduce((a, b) => a + b, 0) || 1; return row.map((v) => v / n); });
  const most = Math.max(...shares.flat(), 1e-9);
  const marks = []; // above every ridge
  [...shares.keys()].reverse().forEach((level, place) => { // the highest rating on top
    const base = tall + place * step;
    const cell = room / shares[level].length;
    let path = `M${left} ${base}`;
    shares[level].forEach((p, i) => {
      const y = (base - Math.sqrt(p / most) * tall).toFixed(1); // a root: rare scores stay visible
      path += `L${(left + i * cell).toFixed(1)} ${y}L${(left + (i + 1) * cell).toFixed(1)} ${y}`;
    });
    svg.append(draw("path", { class: "ridge", d: `${path}L${width - right} ${base}Z` }));
    svg.append(draw("text", { x: left - 8, y: base - 3, class: "end" }, bench.levels[level]));
    if (means[level] !== null) {
      const mean = Math.min(width - right, Math.max(left, x(means[level])));
      marks.push(draw("line", { class: "mean", x1: mean, x2: mean, y1: base - 9, y2: base }));
    }
  });
  svg.append(...marks);
  svg.append(draw("text", { x: left, y: height - 3, class: "start" }, brief(edges[0])),
             draw("text", { x: width - right, y: height - 3, class: "end" }, brief(edges[1])));
  return svg;
}
function margins(bench, metric) {
  const { rows: [row], edges } = metric.charts;
  const width = 300, height = 120, base = height - 18, cell = width / row.length;
  const most = Math.max(...row, 1);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "figure", role: "img",
    "aria-label": "Margins: the score of the caption that people chose minus the other's" });
  row.forEach((n, i) => {
    const tall = Math.sqrt(n / most) * (base - 16);
    const agrees = i >= row.length / 2;
    svg.append(draw("rect", { class: agrees ? "agrees" : "against", x: i * cell + 0.5, y: base - tall,
                              width: cell - 1, height: tall }));
  });
  svg.append(draw("line", { class: "axis", x1: 0, x2: width, y1: base, y2: base }),
             draw("line", { class: "mean", x1: width / 2, x2: width / 2, y1: 4, y2: base }),
             draw("text", { x: 0, y: 12, class: "start" }, "against people"),
             draw("text", { x: width, y: 12, class: "end" }, "with people"),
             draw("text", { x: 0, y: height - 3, class: "start" }, brief(edges[0])),
             draw("text", { x: width / 2, y: height - 3 }, "0"),
             draw("text", { x: width, y: height - 3, class: "end" }, brief(edges[1])));
  return svg;
}
function curve(bench, metric) {
  const points = metric.charts.curve;
  const rated = bench.kind === "ratings";
  const every = bench.metrics.flatMap((m) => m.charts.curve);
  let from = Math.min(...(rated ? [] : [0.5]), ...every.map((p) => p.mean - p.error));
  const to = rated ? Math.max(...every.map((p) => p.mean + p.error)) : 1;
  const step = ticks(from, to)[1] - ticks(from, to)[0]; // begin at a round number that is near
  if (from / step - Math.floor(from / step) < 0.3) from = Math.floor(from / step) * step;
  const width = 300, height = 120, left = 34, base = height - 20, top = 8;
  const label = rated ? (v) => fixed(v, 2) : (v) => `${Math.round(100 * v)} %`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "figure", role: "img",
    "aria-label": (rated ? "Mean rating by score, lowest first: " : "Share right by size of the margin, smallest first: ") +
      points.map((p) => label(p.mean)).join(", ") });
  const y = (v) => base - (base - top) * (v - from) / ((to - from) || 1);
  const x = (i) => left + (width - left - 8) * (points.length > 1 ? i / (points.length - 1) : 0.5);
  const marks = ticks(from, to);
  const digits = marks.every((v) => Math.abs(v - Math.round(v)) < 1e-9) ? 0 : 1;
  for (const tick of marks) svg.append(
    draw("line", { class: "grid", x1: left, x2: width, y1: y(tick), y2: y(tick) }),
    draw("text", { x: left - 6, y: y(tick) + 4, class: "end" }, rated ? fixed(tick, digits) : label(tick)));
  if (points.length) svg.append(draw("polyline", { class: "line", points: points.map((p, i) => `${x(i)},${y(p.mean)}`).join(" ") }));
  points.forEach((p, i) => {
    const node = draw("g", {}, draw("line", { class: "error", x1: x(i), x2: x(i), y1: y(p.mean - p.error), y2: y(p.mean + p.error) }),
      draw("circle", { cx: x(i), cy: y(p.mean), r: 3.2 }));
    node.append(draw("title", {}, `${rated ? "scores" : "margins"} ${brief(p.low)} to ${brief(p.high)}: ${label(p.mean)} of ${COUNT.format(p.count)}`));
    svg.append(node);
  });
  svg.append(draw("text", { x: left, y: height - 3, class: "start" }, rated ? "lowest scores" : "smallest margins"),
             draw("text", { x: width, y: height - 3, class: "end" }, rated ? "highest" : "largest"));
  return svg;
}
function categories(bench) {
  const names = bench.measures.map(([name]) => name).filter((name) => name !== bench.main);
  if (bench.kind === "ratings" || names.length < 2) return [];
  const range = domain(bench.metrics.flatMap((m) => names.map((name) => (m.cells[name] ?? []).slice(0, 3))));
  const panels = names.map((name) => {
    const best = Math.max(...bench.metrics.map((m) => m.cells[name]?.[0] ?? -Infinity));
    const rows = [...bench.metrics].sort((a, b) => order(a.cells[name]?.[0], b.cells[name]?.[0], true)).map((m) => {
      const numbers = m.cells[name] ?? [null, null, null];
      return make("tr", {}, make("th", { scope: "row", class: "name" }, words(m.label)),
        make("td", { class: "plot" }, whisker(numbers, range, numbers[0] === best, 110)), make("td", { text: fixed(numbers[0], 1) }));
    });
    return make("div", { class: "panel" }, make("h4", {}, words(name)), make("table", { class: "small" }, make("tbody", {}, ...rows)));
  });
  return [make("h4", { class: "sub", text: "By category: share of choices that agree with people, in percent" }),
    make("div", { class: "panels" }, ...panels)];
}
if (!UNRATED) $("charts").replaceChildren(...BENCHES.map((bench) => {
  const rated = bench.kind === "ratings";
  return make("div", { class: "bench" }, make("h3", {}, words(bench.title)),
    ...(BENCHES.find((other) => other.kind === bench.kind) !== bench ? [] : [make("p", { class: "hint", text: rated
      ? "Left: the scores of captions that people gave each rating (heights by square root; the mark is the mean; scores beyond the axis count in its last column). " +
        "Right: what people said, from the lowest tenth of scores to the highest; whiskers are 95 %."
      : "Left: by how much the caption that people chose is ahead (heights by square root). " +
        "Right: how often the metric is right, from its smallest margins to its largest; whiskers are 95 %." })]),
    make("div", { class: "cards" }, ...[...bench.metrics]
      .sort((a, b) => order(a.cells[bench.main]?.[0], b.cells[bench.main]?.[0], true))
      .map((metric) => make("figure", { class: "card" },
        make("figcaption", {}, words(metric.label), make("b", { text: fixed(metric.cells[bench.main]?.[0], 1) })),
        make("div", { class: "two" }, rated ? ridges(bench, metric) : margins(bench, metric), curve(bench, metric))))),
    ...categories(bench));
}));

// ---- cost
if (!UNRATED) {
  const per = (bench, metric) => metric.seconds / Math.max(1, bench.pairs);
  const all = BENCHES.flatMap((b) => b.metrics.map((m) => Math.max(1e-7, per(b, m))));
  const from = Math.log10(Math.min(...all)) - 0.2, to = Math.log10(Math.max(...all)) + 0.2;
  $("costs").className = "panels wide";
  $("costs").replaceChildren(...BENCHES.map((bench) => {
    const rows = [...bench.metrics].sort((a, b) => b.seconds - a.seconds).map((metric) => {
      const share = (Math.log10(Math.max(1e-7, per(bench, metric))) - from) / (to - from);
      const svg = draw("svg", { viewBox: "0 0 200 12", class: "meter", preserveAspectRatio: "none", "aria-hidden": "true" },
        draw("rect", { x: 0, y: 3, width: Math.max(2, 200 * share), height: 6, rx: 2 }));
      return make("tr", {}, make("th", { scope: "row", class: "name" }, words(metric.label)),
        make("td", { class: "plot" }, svg), make("td", { text: time(metric.seconds) }),
        make("td", { class: "soft", text: `${time(1000 * per(bench, metric))} per 1,000` }));
    });
    return make("div", { class: "panel" }, make("h4", {}, words(bench.title)),
      make("table", { class: "small" }, make("tbody", {}, ...rows)));
  }));
}

// ---- the items: a pair of a benchmark of ratings, or a choice between two
const FIRST = [];
let total = 0;
function byRow(words) { // words with the rows that they hold for, as rows with their words
  const found = new Map();
  for (const [word, rows] of Object.entries(words)) for (const row of rows) found.set(row, [...(found.get(row) ?? []), word]);
  return found;
}
for (const bench of BENCHES) {
  FIRST.push(total);
  bench.size = bench.kind === "ratings" ? bench.pairs : bench.judgments;
  bench.number = new Map(bench.metrics.map((metric, i) => [metric.label, i]));
  [bench.failures, bench.marks] = [bench.errors, bench.flags].map((columns) => columns.map(byRow));
  bench.mean = bench.said?.map((given) => (given.length ? given.reduce((a, b) => a + b, 0) / given.length : null));
  total += bench.size;
}
function locate(item) {
  let at = FIRST.length - 1;
  while (FIRST[at] > item) at -= 1;
  return [BENCHES[at], item - FIRST[at]];
}
const pairsOf = (bench, row) => (bench.kind === "ratings" ? [row] : [bench.left[row], bench.right[row]]);
const captionOf = (bench, pair) => (bench.caption.length ? DATA.texts[bench.caption[pair]] : bench.ids[pair]);
function scoreOf(bench, row, metric) { // of a choice: how far the chosen caption is ahead
  if (metric === undefined) return null;
  const scores = bench.scores[bench.owner?.[row] ?? metric];
  if (bench.kind === "ratings") return scores[row];
  const [left, right] = [scores[bench.left[row]], scores[bench.right[row]]];
  if (left === null || right === null) return null;
  return bench.chosen[row] === 0 ? left - right : right - left;
}
let spreads = null;
function spreadOf(item) { // how far the metrics are apart from one another
  if (!spreads) {
    spreads = new Float32Array(total);
    BENCHES.forEach((bench, b) => {
      for (let row = 0; row < bench.size; row += 1) {
        let low = Infinity, high = -Infinity;
        for (const column of bench.apart) {
          const v = column[row];
          if (v === null) continue;
          if (v < low) low = v;
          if (v > high) high = v;
        }
        spreads[FIRST[b] + row] = high > low ? high - low : 0;
      }
    });
  }
  return spreads[item];
}
const failedOn = (bench, row) => bench.failures.some((found) => pairsOf(bench, row).some((pair) => found.has(pair))) ||
  !UNRATED && bench.scores.some((column) => pairsOf(bench, row).some((pair) => column[pair] === null));
const flagged = (bench, row) => bench.marks.some((found) => pairsOf(bench, row).some((pair) => found.has(pair)));

// The words of a pair by the metric that is chosen, else by the first judge of which they are known.
function explanationOf(bench, pair) {
  const chosen = bench.number.get($("metric").value);
  const metric = bench.explained[chosen]?.[pair] ? chosen : bench.explained.findIndex((column) => column[pair]);
  if (metric < 0) return null;
  const spans = bench.explained[metric][pair].map(([start, end, effect, marked, error]) => ({ start, end, effect, marked, error }));
  return { label: bench.metrics[metric].label, spans };
}
const blamed = (bench, row) => pairsOf(bench, row).some((pair) => explanationOf(bench, pair)?.spans.some((span) => span.marked));

// ---- filters
const SHOWS = {
  all: ["Everything", "", () => true],
  against: ["Disagrees with people", `The score is ${FAR} points or more above or below the rating, both as percentile ranks; of two captions the metric prefers the one people did not choose, or neither.`,
    (bench, row, m) => { const v = bench.apart[m]?.[row]; return v !== null && v !== undefined && (bench.kind === "ratings" ? Math.abs(v) >= FAR : v >= 0); }],
  above: ["Above people", `The score is ${FAR} points or more above the rating, both as percentile ranks.`,
    (bench, row, m) => bench.kind === "ratings" && (bench.apart[m]?.[row] ?? 0) >= FAR],
  below: ["Below people", `The score is ${FAR} points or more below the rating, both as percentile ranks.`,
    (bench, row, m) => bench.kind === "ratings" && (bench.apart[m]?.[row] ?? 0) <= -FAR],
  split: ["Metrics disagree", `Two metrics are ${FAR} points or more apart; of two captions they prefer different ones.`,
    (bench, row, m, item) => (bench.kind === "ratings" ? spreadOf(item) >= FAR
      : bench.apart.some((c) => c[row] !== null && c[row] > 0) && bench.apart.some((c) => c[row] !== null && c[row] < 0))],
  wrong: ["With a marked word", "A word is taken for wrong; of the captions that were explained.", (bench, row) => blamed(bench, row)],
  failed: ["Without a score", CAPTIONERS ? "The caption has no score." : "At least one metric has no score.", (bench, row) => failedOn(bench, row)],
  flagged: ["Flagged", "A judge's score has a flag: truncated, cut, degenerate, bimodal, defused, ...", (bench, row) => flagged(bench, row)],
};
const KEYS = {
  place: ["Item", (bench, row, m, item) => item, false],
  people: ["People", (bench, row) => (bench.kind === "ratings" ? bench.mean[row] : null), true],
  score: ["Score", (bench, row, m) => scoreOf(bench, row, m), true],
  apart: ["Apart", (bench, row, m) => { const v = bench.apart[m]?.[row]; return v === null || v === undefined ? null : bench.kind === "ratings" ? Math.abs(v) : v; }, true],
  spread: ["Spread", (bench, row, m, item) => spreadOf(item), true],
};
if (UNRATED) for (const key of ["people", "apart", "spread"]) delete KEYS[key];
if (COMPARED) KEYS.apart = ["Difference", (bench, row) => bench.apart[bench.owner[row]][row], true];
if (UNRATED) for (const key of ["against", "above", "below", "split"]) delete SHOWS[key];
if (BENCHES.every((bench) => bench.explained.every((column) => !Object.keys(column).length))) delete SHOWS.wrong;
const state = { sort: "place", down: false, selected: 0, items: new Uint32Array(0) };
function options(select, rows) {
  const before = select.value;
  select.replaceChildren(...rows.map(([value, text]) => make("option", { value, text })));
  if (rows.some(([value]) => value === before)) select.value = before;
  select.disabled = rows.length < 2;
}
options($("benchmark"), [...(BENCHES.length > 1 ? [["all", "All"]] : []), ...BENCHES.map((b, i) => [String(i), b.title])]);
options($("metric"), LABELS.map((label) => [label, label]));
options($("sort"), Object.entries(KEYS).map(([key, [name]]) => [key, name]));
options($("show"), Object.entries(SHOWS).map(([key, [name]]) => [key, name]));
const shownBenches = () => ($("benchmark").value === "all" ? BENCHES : [BENCHES[Number($("benchmark").value)]]);
function offerCategories() {
  const names = new Set(shownBenches().flatMap((b) => (b.category ? [...new Set(b.category)] : [])));
  options($("category"), [["", names.size ? "All" : "none"], ...[...names].sort().map((name) => [`=${name}`, name])]);
}
offerCategories();

let lowered = null;
function matcher(query) {
  const wanted = query.trim().toLowerCase();
  if (!wanted) return null;
  lowered ??= DATA.texts.map((text) => text.toLowerCase());
  const texts = lowered.map((text) => text.includes(wanted));
  const lists = DATA.lists.map((list) => list.some((text) => texts[text]));
  return (bench, pair) => (bench.caption.length && (texts[bench.caption[pair]] || lists[bench.references[pair]])) ||
    bench.ids[pair].toLowerCase().includes(wanted);
}
const TITLES = {
  place: "The order of the benchmark", people: "The mean rating", score: "The metric's score; of a choice, how far the chosen caption is ahead",
  apart: COMPARED ? "The highest minus the lowest mean score of the captioners on this image" : "How far metric and people are apart, in percentile points", spread: "How far the metrics are apart from one another",
};
function refresh(keep = false) {
  const matches = matcher($("query").value);
  const category = $("category").value;
  const [, about, test] = SHOWS[$("show").value];
  const label = $("metric").value;
  const found = [];
  BENCHES.forEach((bench, b) => {
    if ($("benchmark").value !== "all" && Number($("benchmark").value) !== b) return;
    const m = bench.number.get(label);
    for (let row = 0; row < bench.size; row += 1) {
      if (category && `=${bench.category?.[row]}` !== category) continue;
      if (!test(bench, row, m, FIRST[b] + row)) continue;
      if (matches && !pairsOf(bench, row).some((pair) => matches(bench, pair))) continue;
      found.push(FIRST[b] + row);
    }
  });
  const key = KEYS[state.sort][1];
  if (state.sort !== "place" || state.down) {
    const values = new Map(found.map((item) => { const [bench, row] = locate(item); return [item, key(bench, row, bench.number.get(label), item)]; }));
    found.sort((a, b) => order(values.get(a), values.get(b), state.down) || a - b);
  }
  const before = state.items[state.selected];
  state.items = Uint32Array.from(found);
  state.selected = keep ? Math.max(0, found.indexOf(before)) : 0;
  $("about-show").textContent = about;
  $("about-show").hidden = !about;
  $("count").textContent = found.length === total ? plural(total, "item") : `${COUNT.format(found.length)} of ${plural(total, "item")}`;
  $("list-side").setAttribute("aria-rowcount", String(found.length + 1));
  heads();
  $("space").style.height = `${found.length * tall()}px`;
  if (!keep) $("list").scrollTop = 0;
  rows();
  choose(state.selected, false);
}

// ---- the list
const tall = () => 68;
function heads() {
  const gutter = $("list").offsetWidth - $("list").clientWidth; // of the scroll bar
  $("columns").style.paddingRight = `calc(.9rem + ${gutter}px)`;
  $("columns").replaceChildren(...Object.entries(KEYS).map(([key, [name, , down]]) => {
    const on = state.sort === key;
    const button = make("button", { type: "button", title: TITLES[key], text: name });
    button.addEventListener("click", () => sortBy(key, on ? !state.down : down));
    return make("span", { role: "columnheader", class: `c-${key}`,
      "aria-sort": on ? (state.down ? "descending" : "ascending") : "none" }, button);
  }));
}
function sortBy(key, down) {
  state.sort = key;
  state.down = down;
  $("sort").value = key;
  refresh();
}
function thumbnail(bench, pair, alt) {
  const number = bench.thumbs[bench.image[pair]] ?? -1;
  if (number < 0) return make("span", { class: "no-image", "aria-hidden": "true" });
  thumbnails ??= JSON.parse($("images").textContent);
  const image = make("img", { alt, decoding: "async", loading: "lazy", draggable: "false" });
  image.src = `data:image/webp;base64,${thumbnails[number]}`;
  return image;
}
function apartBar(bench, value) {
  const svg = draw("svg", { viewBox: "0 0 64 10", class: "apart", "aria-hidden": "true" },
    draw("line", { class: "rail", x1: 32, x2: 32, y1: 0, y2: 10 }));
  if (value !== null && value !== undefined) {
    const wide = Math.max(1, Math.abs(value) / 100 * 31);
    const bad = bench.kind === "ratings" ? Math.abs(value) >= FAR : value >= 0;
    svg.append(draw("rect", { class: bad ? "far" : "near", x: value < 0 ? 32 - wide : 32, y: 2, width: wide, height: 6, rx: 1 }));
  }
  return svg;
}
function listRow(place) {
  const item = state.items[place];
  const [bench, row] = locate(item);
  const m = bench.number.get($("metric").value);
  const pairs = pairsOf(bench, row);
  const node = make("div", { role: "row", id: `row-${item}`, class: "row", "aria-rowindex": String(place + 2),
                             "aria-selected": String(place === state.selected) });
  node.style.top = `${place * tall()}px`;
  const text = make("span", { role: "gridcell", class: "c-place" });
  const lines = make("span", { class: "lines" });
  if (bench.kind === "ratings") lines.append(words(captionOf(bench, pairs[0]), "span", { class: "caption two-lines" }));
  else {
    const first = bench.chosen[row];
    lines.append(make("span", { class: "caption" }, make("i", { class: "tick", title: "chosen by people", text: "✓" }), words(captionOf(bench, pairs[first]))),
                 make("span", { class: "caption other" }, make("i", { class: "tick" }), words(captionOf(bench, pairs[1 - first]))));
  }
  const where = [BENCHES.length > 1 ? bench.title : "", bench.category?.[row] ?? ""].filter(Boolean).join(" · ");
  if (where) lines.append(words(where, "span", { class: "where" }));
  text.append(DATA.images && bench.caption.length ? thumbnail(bench, pairs[0], "") : "", lines);
  const value = bench.apart[bench.owner?.[row] ?? m]?.[row];
  const score = scoreOf(bench, row, m);
  node.append(text,
    make("span", { role: "gridcell", class: "c-people", text: bench.kind === "ratings" ? fixed(bench.mean[row]) : "" }),
    make("span", { role: "gridcell", class: "c-score", text: bench.kind === "ratings" || score === null ? brief(score) : (score > 0 ? "+" : "") + brief(score) }),
    COMPARED ? make("span", { role: "gridcell", class: "c-apart", text: brief(value) })
      : make("span", { role: "gridcell", class: "c-apart", title: value === undefined || value === null ? "" : signed(value, 0) }, apartBar(bench, value),
        make("span", { class: "unseen", text: value === undefined || value === null ? "none" : signed(value, 0) })),
    make("span", { role: "gridcell", class: "c-spread", text: String(Math.round(spreadOf(item))) }));
  node.addEventListener("click", () => { choose(place, true); if (narrow()) openItem(); });
  return node;
}
let drawn = new Map(); // place to its row
function rows(anew = true) {
  const list = $("list");
  const from = Math.max(0, Math.floor(list.scrollTop / tall()) - 4);
  const to = Math.min(state.items.length, Math.ceil((list.scrollTop + list.clientHeight) / tall()) + 4);
  const next = new Map();
  for (let place = from; place < to; place += 1) next.set(place, (!anew && drawn.get(place)) || listRow(place));
  drawn = next;
  $("space").replaceChildren(...drawn.values());
}
let waiting = false;
$("list").addEventListener("scroll", () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; rows(false); });
}, { passive: true });
addEventListener("resize", () => { if (state.items.length) rows(); });

// ---- one item
function choose(place, focus = true) {
  state.selected = Math.max(0, Math.min(place, state.items.length - 1));
  if (!state.items.length) {
    $("item").replaceChildren(make("p", { class: "empty", text: "No item is left by these filters." }));
    $("list").removeAttribute("aria-activedescendant");
    return;
  }
  const list = $("list"), y = state.selected * tall();
  if (y < list.scrollTop) list.scrollTop = y;
  else if (y + tall() > list.scrollTop + list.clientHeight) list.scrollTop = y + tall() - list.clientHeight;
  rows();
  list.setAttribute("aria-activedescendant", `row-${state.items[state.selected]}`);
  if (focus && !narrow()) list.focus({ preventScroll: true });
  $("item").replaceChildren(...itemView(state.items[state.selected]));
  $("item").scrollTop = 0;
}
function dots(bench, given) { // the ratings that people gave, on the scale of all
  const every = bench.range ??= bench.said.flat().reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  const x = (v) => 8 + 184 * (every[1] > every[0] ? (v - every[0]) / (every[1] - every[0]) : 0.5);
  const svg = draw("svg", { viewBox: "0 0 200 26", class: "dots", "aria-hidden": "true" },
    draw("line", { class: "rail", x1: 8, x2: 192, y1: 18, y2: 18 }));
  const seen = new Map();
  for (const v of given) {
    const n = seen.get(v) ?? 0;
    seen.set(v, n + 1);
    svg.append(draw("circle", { cx: x(v), cy: 18 - 6 * Math.min(n, 2), r: 3.6 }));
  }
  return svg;
}
function rankBar(bench, score, people) { // percentile ranks of the score and of the rating
  return draw("svg", { viewBox: "0 0 104 12", class: "rank", "aria-hidden": "true" },
    draw("line", { class: "rail", x1: 2, x2: 102, y1: 6, y2: 6 }),
    draw("line", { class: Math.abs(score - people) >= FAR ? "gap far" : "gap", x1: 2 + score, x2: 2 + people, y1: 6, y2: 6 }),
    draw("line", { class: "people", x1: 2 + people, x2: 2 + people, y1: 1, y2: 11 }),
    draw("circle", { cx: 2 + score, cy: 6, r: 3.4 }));
}
let peopleRanks = null;
function rankOfPeople(bench, row) {
  peopleRanks ??= new Map();
  if (!peopleRanks.has(bench)) {
    const sorted = bench.mean.filter((v) => v !== null).sort((a, b) => a - b);
    const rank = new Map();
    for (let i = 0; i < sorted.length;) {
      let j = i;
      while (j < sorted.length && sorted[j] === sorted[i]) j += 1;
      rank.set(sorted[i], 100 * (i + j) / 2 / sorted.length);
      i = j;
    }
    peopleRanks.set(bench, rank);
  }
  return peopleRanks.get(bench).get(bench.mean[row]);
}
function scoresTable(bench, row) {
  const pairs = pairsOf(bench, row), rated = bench.kind === "ratings";
  const heads = rated ? [METRIC, "Score", UNRATED ? "" : "Rank beside people's"] : ["Metric", "A", "B", "Prefers"];
  const body = bench.metrics.flatMap((metric, m) => {
    const values = pairs.map((pair) => bench.scores[m][pair]);
    if (UNRATED && values[0] === null && !bench.failures[m].has(pairs[0])) return []; // not asked by this method, not by this captioner
    const line = make("tr", { class: metric.label === $("metric").value ? "chosen" : "" },
      make("th", { scope: "row", class: "name" }, signatureButton(bench, metric)), ...values.map((v) => make("td", { text: brief(v) })));
    const apart = bench.apart[m][row];
    const last = make("td", { class: "verdict" });
    if (values.includes(null)) last.append(make("span", { class: "bad", text: "no score" }));
    else if (rated) {
      if (apart !== null) {
        const people = rankOfPeople(bench, row);
        last.append(rankBar(bench, Math.min(100, Math.max(0, people + apart)), people), make("span", { class: "points", text: signed(apart, 0) }));
      }
    } else {
      const pick = values[0] === values[1] ? "neither" : values[0] > values[1] ? "A" : "B";
      const good = pick === "AB"[bench.chosen[row]];
      last.append(make("span", { class: good ? "good" : "bad", text: `${pick} ${good ? "✓" : "✕"}` }));
    }
    line.append(last);
    return [line];
  });
  return make("table", { class: "scores" },
    make("thead", {}, make("tr", {}, ...heads.map((text, i) => make("th", { scope: "col", text, class: i ? "" : "name" })))),
    make("tbody", {}, ...body));
}
function sideBySide(bench, chosen) { // the captions of the image, a column per captioner
  const rows = [...bench.image.keys()].filter((row) => bench.image[row] === bench.image[chosen]);
  return make("div", { class: "beside" }, ...bench.metrics.map((metric, m) => make("section", {},
    make("h4", {}, signatureButton(bench, metric)),
    ...rows.filter((row) => bench.owner[row] === m).map((row) => {
      const node = make("div", { class: row === chosen ? "chosen" : "" }, words(captionOf(bench, row), "p"),
        make("b", { text: brief(bench.scores[m][row]) }));
      for (const reason of bench.failures[m].get(row) ?? []) node.append(words(reason, "small", { class: "bad" }));
      return node;
    }))));
}
const unpacked = new Map();
function unpack(text, width) { // base64 of 16-bit numbers
  if (!unpacked.has(text)) {
    const bytes = atob(text);
    const found = new Float32Array(bytes.length / 2);
    for (let i = 0; i < found.length; i += 1) found[i] = (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535;
    unpacked.set(text, found);
  }
  const all = unpacked.get(text);
  return (row) => Array.from(all.subarray(row * width, (row + 1) * width));
}
function barsOf(bench, pair) {
  const found = [];
  for (const bars of bench.bars) {
    const base = bars.like === undefined ? bars : bench.bars[bars.like];
    base.place ??= new Map(base.rows.map((number, i) => [number, i]));
    const place = base.place.get(pair);
    if (place === undefined) continue;
    const width = bars.labels.length;
    found.push({ metric: bars.metric, labels: bars.labels, base, alone: bars.alone,
      before: unpack(base.before, width)(place), after: bars.after ? unpack(bars.after, width)(place) : null });
  }
  return found;
}
function distributions(bench, pairs) {
  const all = pairs.map((pair) => barsOf(bench, pair));
  if (!all.some((bars) => bars.length)) return [];
  const most = Math.max(0.25, ...all.flat().flatMap(({ before, after }) => [...before, ...(after ?? [])]));
  const nodes = [make("h4", { text: "Distribution" })];
  all.forEach((bars, i) => {
    const drawn = new Set();
    for (const one of bars) {
      // Metrics without a prior of their own share the chart of the token probabilities.
      const moved = bars.filter((other) => other.base === one.base && other.after);
      if (!one.after && (moved.length || drawn.has(one.base))) continue;
      drawn.add(one.base);
      const legend = make("p", { class: "legend" }, ...(pairs.length > 1 ? [make("b", { text: `${"AB"[i]} ` })] : []),
        make("span", {}, make("i", { class: "key before" }), "token probabilities"),
        ...(one.after ? [make("span", {}, make("i", { class: "key after" }), words(bench.metrics[one.metric].label))] : []));
      nodes.push(legend, distributionChart(one, most), distributionTable(one));
    }
  });
  return nodes;
}
function part(text) { // of a caption, which as a whole has a direction
  const node = words(text, "span");
  node.removeAttribute("dir");
  return node;
}
function captionNode(bench, pair, tag, options) {
  const explained = explanationOf(bench, pair), text = captionOf(bench, pair);
  return explained ? make(tag, { dir: "auto", ...options }, ...markedCaption(text, explained.spans, part)) : words(text, tag, options);
}
function effects(bench, pairs) {
  const known = pairs.map((pair) => explanationOf(bench, pair));
  const [label] = known.flatMap((each) => each?.label ?? []);
  if (label === undefined) return [];
  return [make("h4", {}, "Words, by ", words(label)),
    make("p", { class: "hint", text: "What each adds to the score, compared with something that says nothing in its place; in brackets where that is far less than a right word would." }),
    ...known.flatMap((each, i) => (each ? [make("div", { class: "of-words" }, ...(pairs.length > 1 ? [make("b", { text: "AB"[i] })] : []),
      effectsList(captionOf(bench, pairs[i]), each.spans, part))] : []))];
}
function itemView(item) {
  const [bench, row] = locate(item);
  const pairs = pairsOf(bench, row), rated = bench.kind === "ratings";
  const named = bench.caption.length > 0;
  const where = [bench.title, bench.category?.[row]].filter(Boolean).join(" · ");
  const step = (by, text, name) => {
    const button = make("button", { type: "button", class: "quiet", "aria-label": name, text });
    button.addEventListener("click", () => choose(state.selected + by, false));
    return button;
  };
  const close = make("button", { type: "button", class: "quiet close", text: "Back to the list" });
  close.addEventListener("click", closeItem);
  const nodes = [make("div", { class: "bar" }, close,
    make("span", { class: "place", text: `${COUNT.format(state.selected + 1)} of ${COUNT.format(state.items.length)}` }),
    step(-1, "←", "Previous item"), step(1, "→", "Next item"))];
  if (DATA.images && named) {
    const number = bench.thumbs[bench.image[pairs[0]]] ?? -1;
    nodes.push(number < 0 ? make("p", { class: "notice", text: "This image is not in the page." })
      : make("div", { class: "photo" }, thumbnail(bench, pairs[0], "The image of this item")));
  }
  if (!CAPTIONERS) nodes.push(make("p", { class: "where" }, words(where)));
  if (CAPTIONERS) nodes.push(sideBySide(bench, row));
  else if (rated) nodes.push(named ? captionNode(bench, pairs[0], "p", { class: "headline" }) : words(bench.ids[pairs[0]], "p", { class: "headline id" }));
  else nodes.push(make("ol", { class: "choice" }, ...pairs.map((pair, i) => make("li", { class: bench.chosen[row] === i ? "picked" : "" },
    make("b", { text: "AB"[i] }), captionNode(bench, pair, "span"),
    ...(bench.chosen[row] === i ? [make("em", { text: "people's choice" })] : [])))));
  if (!named) nodes.push(make("p", { class: "notice", text: bench.data }));
  if (rated && !UNRATED) {
    const given = bench.said[row];
    nodes.push(make("h4", { text: "People" }), make("p", { class: "people-line" }, dots(bench, given),
      make("span", { text: given.length > 12 ? `mean ${fixed(bench.mean[row])} of ${given.length}` :
        given.length > 1 ? `${given.map((v) => brief(v).replace(/\.00$/, "")).join(", ")}: mean ${fixed(bench.mean[row])}` : given.length ? brief(given[0]) : "not rated" })));
  }
  if (!CAPTIONERS) nodes.push(make("h4", { text: `${METRIC}s` }), scoresTable(bench, row));
  nodes.push(...effects(bench, pairs));
  const problems = bench.metrics.flatMap((metric, m) => pairs.flatMap((pair) => [
    ...(bench.failures[m].has(pair) ? [make("li", { class: "bad" }, words(metric.label), ": ", words(bench.failures[m].get(pair)[0]))] : []),
    ...(bench.marks[m].get(pair) ?? []).map((flag) => make("li", {}, words(metric.label), ": ", make("span", { class: "flag", text: flag })))]));
  if (problems.length && !CAPTIONERS) nodes.push(make("h4", { text: "Flags" }), make("ul", { class: "problems" }, ...problems));
  nodes.push(...distributions(bench, pairs));
  if (named) {
    const lists = [...new Set(pairs.map((pair) => bench.references[pair]))];
    const texts = lists.flatMap((list) => DATA.lists[list]);
    if (texts.length) nodes.push(make("h4", { text: "References" }),
      make("ul", { class: "references" }, ...texts.map((text) => words(DATA.texts[text], "li"))));
  }
  nodes.push(make("p", { class: "ids" }, ...pairs.map((pair) => words(bench.ids[pair], "code"))));
  return nodes;
}

// On a phone an item covers the list.
const narrow = () => matchMedia("(max-width: 52rem)").matches;
function openItem() {
  document.body.classList.add("open");
  $("item").focus({ preventScroll: true });
}
function closeItem() {
  document.body.classList.remove("open");
  $("list").focus({ preventScroll: true });
}

// ---- how it was made
function table(pairs) {
  return make("table", { class: "plain facts" }, make("tbody", {}, ...pairs.map(([name, value]) =>
    make("tr", {}, words(name, "th", { scope: "row", class: "name" }), words(String(value), "td")))));
}
$("provenance").replaceChildren(
  ...(DATA.notes.length ? [make("ul", { class: "notes" }, ...DATA.notes.map((text) => words(text, "li")))] : []),
  ...BENCHES.map((bench) => make("div", { class: "bench" },
    make("h3", {}, words(bench.title), make("small", {}, words(bench.runs.join(", ")))),
    ...(bench.notes.length ? [make("ul", { class: "notes" }, ...bench.notes.map((text) => words(text, "li")))] : []),
    ...bench.metrics.map((metric) => {
      const text = make("code", { text: metric.signature });
      const button = make("button", { type: "button", class: "quiet", text: "Copy" });
      button.addEventListener("click", () => copy(metric.signature, button, text));
      return make("div", { class: "signature" }, make("b", {}, words(metric.label)), text, button);
    }),
    make("details", {}, make("summary", { text: "Options, files and versions" }),
      table([...Object.entries(bench.options), ["ties", bench.ties],
             ...Object.entries(bench.checksums).map(([file, digest]) => [file, `SHA-256 ${digest}`]),
             ...Object.entries(bench.versions)])))));
if (!ASKED) $("foot").textContent = `Made by discode ${DATA.version}. This page is complete in itself: it fetches nothing.`;

// ---- keys
const HELP = [
  ["/", "search"], ["j|k|↓|↑", "next, previous item"], ["Page Down|Page Up", "ten items on, back"], ["Home|End", "first, last item"],
  ["Enter", "open the item (on a phone)"], ["Esc", "close it; leave the search"], ["s", "sort by the next column"], ["r", "reverse the order"],
  ["m", "next metric"], ["b", "next benchmark"], ["w", "what is shown: everything, disagreements, ..."], ["d", "colours: auto, light, dark"], ["?", "these keys"],
];
$("keys").replaceChildren(...HELP.flatMap(([keys, does]) => [
  make("dt", {}, ...keys.split("|").flatMap((key) => [make("kbd", { text: key }), " "])), make("dd", { text: does })]));
$("help-open").addEventListener("click", () => $("help").showModal());
function cycle(select) {
  if (select.options.length < 2) return;
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}
const MOVES = { j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  const { target, key } = event;
  const typing = target.closest("input, textarea, select") !== null;
  if (key === "Escape") {
    if (document.body.classList.contains("open")) closeItem();
    else if (typing) target.blur();
    return;
  }
  if (typing) {
    if (target === $("query") && (key === "Enter" || key === "ArrowDown")) { event.preventDefault(); choose(state.selected); }
    return;
  }
  const inList = $("list-side").contains(target) || $("item").contains(target);
  if (key in MOVES) { // the arrows scroll the page unless one is in the list
    if (!inList && key.length > 1) return;
    event.preventDefault();
    if (!inList) $("explorer").scrollIntoView({ block: "start" });
    choose(MOVES[key] === -Infinity ? 0 : MOVES[key] === Infinity ? state.items.length - 1 : state.selected + MOVES[key]);
  } else if (key === "Enter" && target === $("list")) { if (narrow()) openItem(); }
  else if (key === "/") { event.preventDefault(); $("query").focus(); $("query").select(); }
  else if (key === "?") $("help").showModal();
  else if (key === "d") nextTheme();
  else if (key === "m") cycle($("metric"));
  else if (key === "b") cycle($("benchmark"));
  else if (key === "w") cycle($("show"));
  else if (key === "r") sortBy(state.sort, !state.down);
  else if (key === "s") {
    const names = Object.keys(KEYS), next = names[(names.indexOf(state.sort) + 1) % names.length];
    sortBy(next, KEYS[next][2]);
  }
});
let typed = 0;
$("query").addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(refresh, 120); });
$("benchmark").addEventListener("change", () => { offerCategories(); refresh(); });
$("sort").addEventListener("change", () => sortBy($("sort").value, KEYS[$("sort").value][2]));
for (const id of ["category", "show"]) $(id).addEventListener("change", () => refresh());
$("metric").addEventListener("change", () => refresh(true));
refresh();
