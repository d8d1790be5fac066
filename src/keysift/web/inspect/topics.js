// What is folded: all findings by topic, experiments, diagnostics of the head.

/** @type {(titles: string[], rows: Cell[][], name?: string) => HTMLElement} */
function createTable(titles, rows, name) {
  const top = html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title)));
  const cell = (/** @type {Cell} */ value) => (typeof value === "number" ? html("td", { class: "figure" }, formatValue(value)) : html("td", {}, value));
  const body = rows.map((row) => html("tr", {}, row.map(cell)));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": name ?? titles.filter(Boolean).join(", ") };
  return html("div", region, html("table", {}, html("thead", {}, top), html("tbody", {}, body)));
}

/** @type {(title: string, ...content: Child[]) => HTMLElement} */
const folded = (title, ...content) => html("details", { class: "card" }, html("summary", {}, title), ...content);

function drawTopics() {
  const rest = record().findings.slice(storyOf(record()).length);
  /** @type {Map<string, Finding[]>} */
  const topics = new Map();
  rest.forEach((f) => topics.set(f.topic, [...(topics.get(f.topic) ?? []), f]));
  const { leave_out, dilution, nothing_relevant, functional } = record().tests;
  const parts = [...topics].map(([topic, list]) => folded(`${topic}: ${list.length} more`, ...list.map((f) => findingCard(f, view.model, "h4"))));
  if (leave_out) parts.push(leaveOutTable(leave_out));
  if (dilution) parts.push(folded("Distraction by unrelated tokens", html("p", {}, `The last ${dilution.span} tokens are read after m unrelated tokens. The largest weight on a key among them falls like n^-b.`), createTable(["head", "b", ...dilution.added.map((m) => `m = ${m}`)], dilution.heads.map((h) => [label(h), h.exponent, ...h.focus]), "dilution")));
  if (nothing_relevant) parts.push(nothingRelevantTable(nothing_relevant));
  if (functional) parts.push(fewestKeysTable(functional));
  if (record().swaps.length) parts.push(swapsTable());
  parts.push(valuesTable());
  byId("topics").replaceChildren(...parts);
}

/** @type {(test: LeaveOutTest) => HTMLElement} */
function leaveOutTable(test) {
  /** @type {Cell[][]} */
  const rows = test.layers.map((l) => [String(l.layer), l.brightest, formatPercent(l.brightest_output), l.first, formatPercent(l.first_output)]);
  rows.push(["all", test.brightest, "", test.first, ""]);
  const titles = ["layer", "loss without the brightest keys", "output change", "loss without the first key", "output change"];
  return folded("Leave a key out", html("p", {}, `One key is removed from every row and the weights are computed again. The loss with all keys is ${formatValue(test.loss)}.`), createTable(titles, rows, "leave a key out"));
}

/** @type {(test: { span: number, heads: { layer: number, head: number, with: MassByPlace, without: MassByPlace }[] }) => HTMLElement} */
function nothingRelevantTable(test) {
  const columns = (/** @type {MassByPlace} */ m) => [m.span, m.first, m.own, m.near, m.elsewhere, m.largest];
  const rows = [...test.heads].sort((a, b) => b.with.span - a.with.span).slice(0, 20).flatMap((h) => [[label(h), "present", ...columns(h.with)], ["", "replaced", ...columns(h.without)]]);
  const titles = ["head", "copy", "on the copy", "first key", "own token", "8 before", "elsewhere", "largest weight"];
  return folded("Nothing relevant", html("p", {}, `A passage of ${test.span} tokens occurs twice; then its first copy is replaced by unrelated text. Where does the attention go?`), createTable(titles, rows, "nothing relevant"));
}

/** @type {(test: FunctionalTest) => HTMLElement} */
function fewestKeysTable(test) {
  const limits = Object.keys(test.deletion.smallest);
  const row = (/** @type {string} */ name, /** @type {string} */ how, /** @type {Smallest} */ s) => [name, how, ...limits.map((l) => s[l])];
  const rows = [row("the model", "not renormalised", test.deletion.smallest), row("the model", "renormalised", test.renormalised.smallest)];
  for (const h of test.heads ?? []) rows.push(row(label(h), "not renormalised", h.deletion), row(label(h), "renormalised", h.renormalised));
  return folded("How many keys are needed", html("p", {}, `The smallest k for which keeping only the top k keys raises the loss by at most the given share, on ${test.tokens} tokens.`), createTable(["", "weights", ...limits.map((l) => `loss +${(100 * Number(l)).toFixed(0)}%`)], rows, "fewest keys"));
}

/** @type {(heads: { values: Values }[], name: string) => number | null} */
function meanValue(heads, name) {
  const values = heads.map((h) => h.values[name]).filter((v) => v !== null && v !== undefined);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function swapsTable() {
  const names = Object.keys(CONTENT.terms).filter((name) => CONTENT.terms[name].compared && record().swaps.some((s) => meanValue(s.heads, name) !== null));
  const losses = record().texts.map((t) => t.loss);
  const mean = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0) / values.length;
  const row = (/** @type {string} */ name, /** @type {number} */ loss, /** @type {HeadRecord[]} */ heads) => [name, loss, ...names.map((n) => meanValue(heads, n) ?? "–")];
  const rows = [row("as trained", mean(losses), record().heads), ...record().swaps.map((s) => row(s.mechanism, mean(Object.values(s.losses)), s.heads))];
  return folded("Other mechanisms on the same scores", createTable(["mechanism", "loss", ...names.map((n) => term(n).title)], rows, "other mechanisms"));
}

function valuesTable() {
  const head = headAt(view);
  const rows = Object.entries(head?.values ?? {}).map(([name, value]) => [term(name).title, value ?? "–", ...(head?.by_length[name] ? [curve(head.by_length[name])] : [""]), `${term(name).meaning} (${term(name).origin})`]);
  const fold = folded(`All diagnostics of ${label(view)}`, createTable(["diagnostic", "mean", "by visible keys", "meaning"], rows, "diagnostics of the head"));
  fold.id = "values";
  return fold;
}

/** Small line of a diagnostic over the number of visible keys. @type {(values: (number | null)[]) => Node} */
function curve(values) {
  const points = values.flatMap((v, i) => (v === null ? [] : [{ v, i }]));
  if (!points.length) return document.createTextNode("–");
  const [low, high] = [Math.min(...points.map((p) => p.v)), Math.max(...points.map((p) => p.v))];
  const path = points.map((p, n) => `${n ? "L" : "M"}${2 + (76 * p.i) / Math.max(1, values.length - 1)} ${18 - (16 * (p.v - low)) / (high - low || 1)}`).join("");
  const names = points.map((p) => `${record().lengths[p.i][0]}: ${formatValue(p.v)}`).join(", ");
  return svg("svg", { width: 80, height: 20, role: "img", "aria-label": names }, svg("title", {}, names), svg("path", { d: path, fill: "none", stroke: "var(--bar)", "stroke-width": 1.5 }));
}
