// What was asked in this tab, as the data of the report's explorer: one item per caption.
{
  const asked = JSON.parse(sessionStorage.getItem("discode-asked") ?? "[]");
  const rows = asked.flatMap((question, number) => question.rows.map((row) => ({ ...row, question, number })));
  const labels = [...new Set(asked.map((question) => question.method))];
  const BEFORE = "before the prior";
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
  const metrics = [...labels, BEFORE].map((label) => ({
    label, signature: (label === BEFORE ? asked.at(-1)?.beforeSignature : asked.findLast((q) => q.method === label)?.signature) ?? "",
  }));
  const mine = (row, label) => label === BEFORE || row.question.method === label;
  const column = (read) => metrics.map(({ label }) => rows.map((row) => (mine(row, label) ? read(row, label) : null)));
  const bars = labels.map((label, metric) => {
    const has = rows.flatMap((row, i) => (mine(row, label) && row.bars ? [i] : []));
    return { metric, labels: rows[has[0]]?.bars.labels ?? [], rows: has, alone: false,
             before: pack(has.map((i) => rows[i].bars.before)), after: pack(has.map((i) => rows[i].bars.after)) };
  });
  const bench = {
    name: "asked", title: "Asked in this tab", kind: "ratings", pairs: rows.length, judgments: 0, photos: asked.length,
    options: {}, checksums: {}, versions: {}, notes: [], runs: [], ties: "", levels: [], measures: [], main: "", data: "", metrics,
    ids: rows.map((row) => row.question.name), image: rows.map((row) => row.number), caption: rows.map((_, i) => i),
    references: rows.map((row) => row.number), scores: column((row, label) => (label === BEFORE ? row.before : row.score)),
    errors: metrics.map(({ label }) => by(rows.map((row) => (mine(row, label) && row.error !== null ? [row.error] : [])))),
    flags: metrics.map(({ label }) => by(rows.map((row) => (label !== BEFORE && mine(row, label) ? row.flags : [])))),
    apart: column(() => null), said: rows.map(() => []), bars, thumbs: asked.map((question, i) => (question.thumbnail ? i : -1)),
  };
  const texts = rows.map((row) => row.caption);
  const lists = asked.map((question) => question.references.map((text) => texts.push(text) - 1));
  document.getElementById("data").textContent = JSON.stringify({
    title: "What you asked", version: "", notes: [], images: true, asked: true, benchmarks: [bench], texts, lists });
  document.getElementById("images").textContent = JSON.stringify(asked.map((question) => question.thumbnail));
}
