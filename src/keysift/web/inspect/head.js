// One head: diagnostics by length, the text as tokens, and the keys of a query, which can be removed.

function drawHead() {
  const head = current();
  setText(byId("head-title"), `Layer ${head.layer}, head ${head.head}`);
  const meaning = head.kinds.map((kind) => `${kind}: ${DATA.kinds[kind]}`).join(". ");
  setText(byId("kinds"), meaning ? `${meaning}.` : "No common kind of head.");
  drawLengths();
  drawTokens();
  drawQuery();
  const rows = Object.entries(head.values).map(([name, value]) =>
    html(
      "tr",
      {},
      html("td", {}, term(name).title),
      html("td", { class: "figure" }, formatValue(value)),
      html("td", { class: "hint" }, `${term(name).meaning} (${term(name).origin})`),
    ),
  );
  byId("values").replaceChildren(html("tbody", {}, ...rows));
}

function drawLengths() {
  const chart = svgById("lengths");
  const all = current().by_length[view.diagnostic] ?? [];
  const points = all.flatMap((value, i) => (value === null ? [] : [{ value, from: record().lengths[i][0] }]));
  const note = points.length ? `${term(view.diagnostic).title}, by visible keys` : "This diagnostic is fitted over all lengths, so it has no curve.";
  setText(byId("lengths-note"), note);
  chart.replaceChildren();
  if (!points.length) return;
  const width = fitWidth(chart, 190);
  const [low, high] = [Math.min(0, ...points.map((p) => p.value)), Math.max(...points.map((p) => p.value), 1e-9)];
  /** @param {number} v */
  const y = (v) => 160 - ((v - low) / (high - low)) * 145;
  /** @param {number} i */
  const x = (i) => 52 + (i * (width - 70)) / Math.max(points.length - 1, 1);
  const path = points.map((p, i) => `${i ? "L" : "M"}${x(i)} ${y(p.value)}`).join("");
  chart.append(...axis(ticks(low, high, 4), y, 50, width - 8));
  chart.append(svg("path", { d: path, fill: "none", stroke: "var(--bar)", "stroke-width": 2 }));
  points.forEach((p, i) => {
    const dot = svg("circle", { cx: x(i), cy: y(p.value), r: 4, fill: "var(--bar)" });
    dot.append(svg("title", {}, `${p.from} visible keys: ${formatValue(p.value)}`));
    chart.append(dot, svg("text", { x: x(i), y: 180, "text-anchor": "middle", class: "tick" }, String(p.from)));
  });
  const values = points.map((p) => `${p.from}: ${formatValue(p.value)}`).join(", ");
  chart.setAttribute("aria-label", `${term(view.diagnostic).title} by visible keys: ${values}`);
}

function drawTokens() {
  const pairs = DATA.pairs[view.model];
  const area = byId("tokens");
  if (!pairs) {
    area.replaceChildren();
    setText(byId("tokens-note"), "This record stores no queries.");
    return;
  }
  const stored = new Set(pairs.queries);
  setText(
    byId("tokens-note"),
    stored.size === pairs.tokens.length
      ? "Point at a token, or move to it with Tab, to see the keys it attends to."
      : `Point at an underlined token to see the keys it attends to: ${formatCount(stored.size)} of ${formatCount(pairs.tokens.length)} queries are stored.`,
  );
  area.replaceChildren(
    ...pairs.tokens.map((token, at) => {
      // The text flows: a newline keeps its line break, with a mark that can be pointed at.
      const text = token.replace(/\n/g, "⏎\n");
      if (!stored.has(at)) return html("span", { class: "token", "data-at": at }, text);
      const choose = () => chooseQuery(at);
      const title = `token ${at}`;
      const attributes = { type: "button", class: "token stored", "data-at": at, title, "aria-pressed": "false" };
      return html("button", { ...attributes, onmouseenter: choose, onfocus: choose, onclick: choose }, text);
    }),
  );
}

/** @type {(row: QueryRow | null, weights: number[]) => void} */
function colourTokens(row, weights) {
  const shares = new Map(row ? row.keys.map((k, i) => [k.key, weights[i]]) : []);
  const largest = Math.max(1e-9, ...[...shares.values()].map(Math.abs));
  /** @type {NodeListOf<HTMLElement>} */
  const tokens = byId("tokens").querySelectorAll(".token");
  for (const token of tokens) {
    const at = Number(token.dataset.at);
    const percent = Math.round((60 * Math.abs(shares.get(at) ?? 0)) / largest);
    token.style.background = percent ? `color-mix(in srgb, var(--bar) ${percent}%, transparent)` : "";
    token.classList.toggle("selected", at === view.query);
    if (token.hasAttribute("aria-pressed")) setAttributes(token, { "aria-pressed": String(at === view.query) });
  }
}

function drawQuery() {
  const { query } = view;
  const row = query === null ? null : storedRow(view.layer, view.head, query);
  const pairs = DATA.pairs[view.model];
  const table = byId("keys");
  if (!row || !pairs || query === null) {
    table.replaceChildren();
    setText(byId("query-note"), "No query selected.");
    colourTokens(null, []);
    return;
  }
  const { tokens } = pairs;
  const weights = weightsWithout(row, view.removed);
  setText(byId("query-title"), `Keys of query ${query}`);
  byId("query-title").append(" ", html("bdi", {}, visibleText(tokens[query])));
  setText(byId("query-note"), queryNote(row, weights));
  const titles = ["key", "token", "raw score", "weight", "absolute percentile", "after removal", ""];
  const rows = row.keys.map((k, i) => keyRow(k, weights[i], tokens[k.key], row));
  const top = html("tr", {}, ...titles.map((t) => html("th", { scope: "col" }, t)));
  table.replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
  colourTokens(row, weights);
}

/** @type {(row: QueryRow, weights: number[]) => string} */
function queryNote(row, weights) {
  const stored = row.keys.length === row.seen ? "all" : `the ${row.keys.length} with the largest weights`;
  const change = row.keys.reduce((sum, k, i) => sum + (view.removed.has(k.key) ? 0 : Math.abs(weights[i] - k.weight)), 0);
  const start = `${formatCount(row.seen)} visible keys; ${stored} are shown. `;
  if (!view.removed.size) return `${start}Press “remove” to remove a key and see how the other weights change.`;
  if (row.removal === "nothing") return `${start}Each key is weighed on its own: the other weights did not change.`;
  if (row.removal === "unknown") return `${start}The page cannot compute the new weights of this mechanism.`;
  return `${start}The other weights changed by ${formatValue(change)} in total, although their scores did not.`;
}

/** @type {(key: StoredKey, after: number, text: string, row: QueryRow) => HTMLElement} */
function keyRow(key, after, text, row) {
  const removed = view.removed.has(key.key);
  const percentile = scorePercentile(view.layer, view.head, key.score);
  const bar = html("span", { class: "bar" });
  bar.style.width = `${Math.min(1, Math.abs(key.weight)) * 5}rem`;
  const button = html(
    "button",
    {
      type: "button",
      "aria-pressed": String(removed),
      "aria-label": `${removed ? "restore" : "remove"} key ${key.key}`,
      disabled: row.removal === "unknown",
      onclick: () => toggleKey(key.key),
    },
    removed ? "restore" : "remove",
  );
  return html(
    "tr",
    { class: removed ? "removed" : false, "data-key": key.key },
    html("td", { class: "figure" }, String(key.key)),
    html("td", {}, html("bdi", {}, visibleText(text))),
    html("td", { class: "figure" }, formatValue(key.score)),
    html("td", {}, `${formatValue(key.weight)} `, bar),
    html("td", { class: "figure" }, percentile === null ? "–" : formatPercent(percentile)),
    html("td", { class: "figure" }, view.removed.size && row.removal !== "unknown" ? formatValue(after) : ""),
    html("td", {}, button),
  );
}

/** @type {(key: number) => void} */
function toggleKey(key) {
  if (!view.removed.delete(key)) view.removed.add(key);
  drawQuery();
  /** @type {HTMLElement | null} */
  const button = byId("keys").querySelector(`[data-key="${key}"] button`);
  button?.focus();
}
