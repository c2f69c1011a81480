// An answer as text: the command that asks for it, and its rows as a table.
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`; // for a shell

export function asCurl({ file, example, captions, references, method, token }) {
  const lines = example ? [`curl -O ${quote(location.origin + example)}`] : [];
  const named = file.replaceAll("\\", "\\\\").replaceAll('"', '\\"'); // for curl, which splits at ; and ,
  const parts = ["curl", ...(token ? ['-H "Authorization: Bearer $DISCODE_TOKEN"'] : []), `-F ${quote(`image=@"${named}"`)}`];
  for (const text of captions) parts.push(`--form-string ${quote(`captions=${text}`)}`);
  for (const text of references) parts.push(`--form-string ${quote(`references=${text}`)}`);
  if (method) parts.push(`--form-string ${quote(`method=${method}`)}`);
  parts.push(quote(`${location.origin}/v1/score`));
  return [...lines, parts.join(" \\\n  ")].join("\n") + "\n";
}

function cell(value) {
  let text = String(value ?? "");
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`; // a table program would compute it
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function asCsv({ file, method }, answer) {
  const number = (value) => value ?? "nan";
  const rows = answer.scores.map((row) => [file, row.caption, method, number(row.raw), number(row.smoothing),
    number(row.score), row.flags.join(" "), row.error, answer.signature]);
  const head = ["image", "caption", "method", "raw", "smoothing", "score", "flags", "error", "signature"];
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

// On a plain connection browsers hide the clipboard: then the text is shown, selected.
export async function copy(button, text) {
  const label = button.textContent;
  const byHand = document.getElementById("by-hand"), field = document.getElementById("copied");
  byHand.hidden = true;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    field.value = text;
    byHand.hidden = false;
    field.focus();
    field.select();
    button.textContent = "Shown below";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}
