// openapi.json as tables. Whatever comes from it is set as text.
const $ = (id) => document.getElementById(id);
let api;

$("form-example").textContent = `curl -F image=@photo.jpg \\
  --form-string 'captions=a dog runs' --form-string 'captions=a cat sleeps' \\
  ${location.origin}/v1/score`;
$("json-example").textContent = `curl -H 'content-type: application/json' ${location.origin}/v1/score -d '{
  "image": "data:image/jpeg;base64,...",
  "captions": ["a dog runs", "a cat sleeps"],
  "method": "discode"}'`;

// A schema itself, where another place names it.
const resolve = (schema) => (schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema);

function kind(schema) {
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.format === "binary") return "file";
  if (schema.type === "array") return `list of ${kind(resolve(schema.items))}`;
  return { string: "text", boolean: "true or false" }[schema.type] ?? schema.type;
}

// The fields of an object, those of the objects in it after a dot; in a request, which are needed.
function fields(schema, request, path = "") {
  return Object.entries(resolve(schema).properties ?? {}).flatMap(([name, field]) => {
    const inner = resolve(field);
    const needed = request && resolve(schema).required?.includes(name) ? ", needed" : "";
    const row = [path + name, kind(inner) + needed, field.description ?? ""];
    return [row, ...fields(inner.items ?? inner, request, `${path}${name}${inner.items ? "[]" : ""}.`)];
  });
}

// Text with `code` in it.
const marked = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", { text: part }) : part));

function table(heads, rows) {
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col", text })))),
    make("tbody", {}, ...rows.map(([first, ...others]) => make("tr", {},
      make("th", { scope: "row" }, make("code", { text: first })),
      ...others.map((text) => make("td", {}, ...marked(text))))))));
}

function operation(path, verb, about) {
  const parts = [make("h2", {}, make("span", { class: "verb", text: verb.toUpperCase() }), make("code", { text: path })),
                 make("p", { text: `${about.summary}.` })];
  for (const [type, { schema }] of Object.entries(about.requestBody?.content ?? {}))
    parts.push(make("h3", { text: `Send ${type}` }), table(["field", "type", ""], fields(schema, true)));
  const answers = Object.entries(about.responses);
  for (const [, { content }] of answers.filter(([status]) => status === "200")) {
    const found = fields(content?.["application/json"]?.schema ?? {}, false);
    if (found.length) parts.push(make("h3", { text: "Get" }), table(["field", "type", ""], found));
  }
  const others = answers.filter(([status]) => status !== "200");
  if (others.length) parts.push(make("h3", { text: "Or an error" }),
    make("p", {}, ...marked('As `{"error": {"code": ..., "message": ...}}`, the message being one line for people.')),
    table(["status", "meaning"], others.map(([status, { description }]) => [status, description])));
  return make("section", {}, ...parts);
}

try {
  api = await (await fetch("/openapi.json")).json();
  $("paths").replaceChildren(...Object.entries(api.paths).flatMap(([path, verbs]) =>
    Object.entries(verbs).map(([verb, about]) => operation(path, verb, about))));
} catch {
  $("state").textContent = "openapi.json cannot be read; load this page again.";
}
