// What was asked in this tab, as the data of the report's explorer: one item per caption.
{
  const asked = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]");
  const rows = asked.flatMap((question, number) => question.rows.map((row) => ({ ...row, question, number })));
  const PLAIN = ["raw", "smoothing"]; // of every reading
  const labels = [...PLAIN, ...new Set(asked.map((question) => question.method).filter((name) => !PLAIN.includes(name)))];
  const pack = (lists) => { // base64 of 16-bit numbers
    let bytes = "";
    for (const p of lists.flat()) {
      const whole = Math.round(65535 * Math.min(1, Math.max(0, p)));
      bytes += String.fromCharCode(whole & 255, whole >> 8);
    }
    return btoa(bytes);
  };
  const by = (values) => { // a column as lists of row numbers
    const found = {};
    values.forEach((names, i) => { for (const name of names) (found[name] ??= []).push(i); });
    return found;
  };
  const signatureOf = (label) => asked.findLast((q) => q.method === label)?.signature
    ?? (label === "smoothing" ? asked.at(-1)?.smoothingSignature : undefined) ?? "";
  const metrics = labels.map((label) => ({ label, signature: signatureOf(label) }));
  const mine = (row, label) => PLAIN.includes(label) || row.question.method === label;
  const column = (read) => metrics.map(({ label }) => rows.map((row) => (mine(row, label) ? read(row, label) : null)));
  const bars = labels.slice(1).map((label, place) => {
    const plain = place === 0; // without a prior
    const has = rows.flatMap((row, i) => (row.bars && (row.question.method === label || (plain && row.question.method === "raw")) ? [i] : []));
    return { metric: place + 1, labels: rows[has[0]]?.bars.labels ?? [], rows: has, alone: false,
             before: pack(has.map((i) => rows[i].bars.before)), after: plain ? null : pack(has.map((i) => rows[i].bars.after)) };
  });
  const bench = {
    name: "asked", title: "Asked in this tab", kind: "ratings", pairs: rows.length, judgments: 0, photos: asked.length,
    options: {}, checksums: {}, versions: {}, notes: [], runs: [], ties: "", levels: [], measures: [], main: "", data: "", metrics,
    ids: rows.map((row) => row.question.name), image: rows.map((row) => row.number), caption: rows.map((_, i) => i),
    references: rows.map((row) => row.number), scores: column((row, label) => (PLAIN.includes(label) ? row[label] : row.score)),
    errors: metrics.map(({ label }) => by(rows.map((row) => (mine(row, label) && row.error !== null ? [row.error] : [])))),
    flags: metrics.map(({ label }) => by(rows.map((row) => (row.question.method === label ? row.flags : [])))),
    explained: metrics.map(({ label }) => Object.fromEntries(rows.flatMap((row, i) => (row.spans && row.question.method === label ? [[i, row.spans.map(({ start, end, effect, marked }) => [start, end, effect, marked])]] : [])))),
    apart: column(() => null), said: rows.map(() => []), bars, thumbs: asked.map((question, i) => (question.thumbnail ? i : -1)),
  };
  const texts = rows.map((row) => row.caption);
  const lists = asked.map((question) => question.references.map((text) => texts.push(text) - 1));
  document.getElementById("data").textContent = JSON.stringify({
    title: "What you asked", version: "", notes: [], images: true, asked: true, benchmarks: [bench], texts, lists });
  document.getElementById("images").textContent = JSON.stringify(asked.map((question) => question.thumbnail));
}
