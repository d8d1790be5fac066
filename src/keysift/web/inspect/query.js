// One query: the cell under the pointer, arcs over the text, the keys of the head with removal, and the same in every head.

/** @type {(token: string) => HTMLElement} */
const tokenText = (token) => html("bdi", { class: "word" }, visibleText(token));

/** A key of a query in the current head, if it is known. @type {(query: number, key: number) => KeyValue | undefined} */
function keyValue(query, key) {
  const found = mapOf(view);
  return found?.map.row(found.index, query).find((k) => k.key === key);
}

/** Whether a score stands out, in words. @type {(place: Place, score: number) => string} */
function verdict(place, score) {
  const threshold = thresholdOf(place);
  if (threshold !== null) {
    const gap = score - threshold;
    return gap > 0 ? `accepted: ${formatValue(gap)} above the threshold ${formatValue(threshold)}` : `refused: ${formatValue(-gap)} below the threshold ${formatValue(threshold)}`;
  }
  const best = percentile(place, score, "best");
  if (best === null) return "no comparison with unrelated text in this record";
  const higher = formatPercent(1 - best);
  return best >= 0.5 ? `stands out: only ${higher} of unrelated queries have a better best key` : `does not stand out: ${higher} of unrelated queries have a better best key`;
}

/** @type {(query: number, key: number | null) => void} */
function drawReadout(query, key) {
  const map = currentMap();
  if (!map) return;
  const { tokens, pool } = map.meta;
  const value = key === null ? undefined : keyValue(query, key);
  const head = html("p", { class: "pair" }, tokenText(tokens[query]), key === null ? "" : " → ", key === null ? "" : tokenText(tokens[key]));
  /** @type {[string, string][]} */
  const lines = [["query", `token ${query}`]];
  if (key !== null) lines.push(["key", `token ${key}`], ["distance", `${query - key}`]);
  if (value && key !== null) {
    const about = value.exact ? "" : "about ";
    const share = percentile(view, value.score, "scores");
    lines.push(["weight", about + formatValue(value.weight)], ["raw score", about + formatValue(value.score)]);
    if (thresholdOf(view) === null && share !== null) lines.push(["percentile", `${formatPercent(share)} of unrelated scores are lower`]);
    lines.push(["absolute", verdict(view, value.score)]);
  } else if (key !== null) {
    const reason = pool > 1 ? `Only the largest weights of this query are stored; the map shows the largest of ${pool} x ${pool} pairs.` : "This key is not visible to the query.";
    lines.push(["weight", reason]);
  }
  const list = html("dl", {}, lines.flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]));
  const remove = key === null ? null : removeButton(key, tokens[key]);
  byId("readout").replaceChildren(head, list, query === view.query && remove ? remove : "");
}

/** @type {(key: number, token: string) => HTMLButtonElement} */
function removeButton(key, token) {
  const removed = view.removed.has(key);
  const name = `${removed ? "restore" : "remove"} key ${key} ${visibleText(token)}`;
  return html("button", { type: "button", "aria-label": name, onclick: () => toggleKey(key) }, removed ? "restore" : "remove");
}

/** @type {(key: number) => void} */
function toggleKey(key) {
  if (view.removed.has(key)) view.removed.delete(key);
  else view.removed.add(key);
  drawQuery();
  drawPanes();
  saveAddress();
}

function drawQuery() {
  const map = currentMap();
  const found = mapOf(view);
  if (!map || !found) return;
  const tokens = map.meta.tokens;
  const row = found.map.row(found.index, view.query);
  const after = weightsWithout(found.map, found.index, view.query, view.removed);
  byId("query-title").replaceChildren(`Query ${view.query}: `, tokenText(tokens[view.query]), ` in ${label(view)}`);
  setText(
    byId("stands-out"),
    thresholdOf(view) === null && record().tests.absolute_percentile
      ? "Stands out: share of the queries of unrelated text whose best key has a lower score. Below 50% the key is bright only because the others are weaker."
      : "",
  );
  drawQueryNote(row, after);
  drawKeys(row, after);
  drawEverywhere();
  drawArcs(row, after);
  colourTokens(row, after);
  drawReadout(view.query, view.key);
}

/** @type {(row: KeyValue[], after: Map<number, number> | null) => void} */
function drawQueryNote(row, after) {
  const tokens = currentMap()?.meta.tokens ?? [];
  const note = byId("query-note");
  const best = row.find((k) => k.key !== 0) ?? row[0];
  if (!best) {
    setText(note, "This query is not stored; select one that is underlined in the text.");
    return;
  }
  if (!view.removed.size) {
    note.replaceChildren("Its brightest key is ", tokenText(tokens[best.key]), ` with weight ${formatValue(best.weight)}. Is it relevant? It ${thresholdOf(view) === null ? "" : "is "}${verdict(view, best.score)}.`);
    return;
  }
  const names = [...view.removed].flatMap((key, i) => [i ? ", " : "", tokenText(tokens[key])]);
  const gone = row.filter((k) => view.removed.has(k.key)).reduce((sum, k) => sum + Math.abs(k.weight), 0);
  const rule = mapOf(view)?.map.meta.heads[mapOf(view)?.index ?? 0].rule;
  const had = view.removed.size > 1 ? "they had" : "it had";
  const reaction =
    rule === "softmax"
      ? ` ${had} ${formatPercent(gone)} of the attention. The other keys now share it, although their scores did not change.`
      : rule === "absolute"
        ? " removed. Each key is weighed on its own: the other weights did not change."
        : " removed. The page cannot compute the new weights of this mechanism; keysift.lens can.";
  const winner = after ? [...after].filter(([key]) => key !== 0).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))[0] : undefined;
  const next = winner ? [" Brightest now: ", tokenText(tokens[winner[0]]), ` with ${formatValue(winner[1])}.`] : [];
  note.replaceChildren("Without ", ...names, `:${reaction}`, ...next);
}

/** @type {(row: KeyValue[], after: Map<number, number> | null) => void} */
function drawKeys(row, after) {
  const tokens = currentMap()?.meta.tokens ?? [];
  const most = Math.max(1e-9, ...row.map((k) => Math.abs(k.weight)));
  const titles = ["key", "weight", ...(view.removed.size ? ["without"] : []), "raw score", "stands out", ""];
  const threshold = thresholdOf(view);
  const lines = row.slice(0, 40).map((k) => {
    const cells = [
      html("td", { class: "key" }, `${k.key} `, tokenText(tokens[k.key])),
      html("td", { class: "figure" }, html("span", { class: "bar-cell", style: `--share:${Math.abs(k.weight) / most}` }), `${k.exact ? "" : "≈"}${formatValue(k.weight)}`),
    ];
    if (view.removed.size) cells.push(html("td", { class: "figure changed" }, after ? formatValue(after.get(k.key)) : "–"));
    const absolute = threshold === null ? formatPercent(percentile(view, k.score, "best")) : k.score > threshold ? "accepted" : "refused";
    cells.push(html("td", { class: "figure" }, formatValue(k.score)), html("td", { class: "figure" }, absolute), html("td", {}, removeButton(k.key, tokens[k.key])));
    return html("tr", { "data-key": k.key, class: view.removed.has(k.key) ? "removed" : null }, cells);
  });
  const top = html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title)));
  byId("keys").replaceChildren(html("thead", {}, top), html("tbody", {}, lines));
}

/** The query in every head: its brightest key, and what a removal does there. */
function drawEverywhere() {
  const map = currentMap();
  if (!map) return;
  const tokens = map.meta.tokens;
  const removing = view.removed.size > 0;
  const lines = map.meta.heads.map((head, index) => {
    const row = map.row(index, view.query);
    const best = row.find((k) => k.key !== 0) ?? row[0];
    const gone = row.filter((k) => view.removed.has(k.key)).reduce((sum, k) => sum + Math.abs(k.weight), 0);
    const after = removing ? weightsWithout(map, index, view.query, view.removed) : null;
    const next = after ? [...after].filter(([key]) => key !== 0).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))[0] : undefined;
    return { head, best, gone, after, next };
  });
  lines.sort((a, b) => (removing ? b.gone - a.gone : Math.abs(b.best?.weight ?? 0) - Math.abs(a.best?.weight ?? 0)));
  setText(byId("everywhere-title"), removing ? "What the removal does in every head" : "The same query in every head");
  const titles = removing ? ["head", "share removed", "brightest before", "brightest after"] : ["head", "kind", "brightest key", "weight", "stands out"];
  const kinds = new Map(record().heads.map((h) => [label(h), h.kinds.join(", ")]));
  const rows = lines.map(({ head, best, gone, next }) => {
    const place = { ...view, layer: head.layer, head: head.head };
    const chip = html("td", {}, headChip(view.model, head.layer, head.head));
    const named = (/** @type {[number, number] | undefined} */ entry) => html("td", {}, ...(entry ? [tokenText(tokens[entry[0]]), ` ${formatValue(entry[1])}`] : ["–"]));
    if (removing) return html("tr", { "data-head": label(head) }, chip, html("td", { class: "figure" }, formatPercent(gone)), named(best ? [best.key, best.weight] : undefined), named(next));
    const threshold = thresholdOf(place);
    const stands = !best ? "–" : threshold === null ? formatPercent(percentile(place, best.score, "best")) : best.score > threshold ? "accepted" : "refused";
    return html("tr", { "data-head": label(head) }, chip, html("td", {}, kinds.get(label(head)) || "–"), html("td", {}, best ? tokenText(tokens[best.key]) : "–"), html("td", { class: "figure" }, formatValue(best?.weight)), html("td", { class: "figure" }, stands));
  });
  byId("everywhere").replaceChildren(html("thead", {}, html("tr", {}, titles.map((title) => html("th", { scope: "col" }, title)))), html("tbody", {}, rows));
}

/** Arcs from the query to its keys, over the text up to the query. @type {(row: KeyValue[], after: Map<number, number> | null) => void} */
function drawArcs(row, after) {
  const tokens = currentMap()?.meta.tokens ?? [];
  const chart = svgById("arcs");
  const width = fitWidth(chart, 190);
  // Most keys are near: on a linear scale their arcs would lie on each other.
  const reach = Math.log2(2 + view.query - Math.min(view.query, ...row.slice(0, 24).map((k) => k.key)));
  const x = (/** @type {number} */ at) => width - 32 - ((width - 64) * Math.log2(1 + view.query - at)) / reach;
  const base = 128;
  /** @type {SVGElement[]} */
  const parts = [svg("line", { x1: 16, x2: width - 16, y1: base, y2: base, class: "grid" })];
  const shown = row.map((k) => ({ ...k, weight: after ? (after.get(k.key) ?? k.weight) : k.weight })).filter((k) => Math.abs(k.weight) > 0.005).slice(0, 24);
  const most = Math.max(1e-9, ...shown.map((k) => Math.abs(k.weight)));
  /** @type {[number, number][]} */
  const taken = [];
  for (const k of shown) {
    const [from, to] = [x(k.key), x(view.query)];
    const height = Math.min(118, 14 + 0.5 * Math.abs(to - from));
    const d = k.key === view.query ? `M${from - 4} ${base} C${from - 12} ${base - 28} ${from + 12} ${base - 28} ${from + 4} ${base}` : `M${from} ${base} C${from} ${base - height} ${to} ${base - height} ${to} ${base}`;
    const share = Math.abs(k.weight) / most;
    parts.push(svg("path", { d, class: view.key === k.key ? "arc chosen" : "arc", "stroke-width": (0.5 + 5 * share).toFixed(2), "stroke-opacity": (0.25 + 0.65 * share).toFixed(2) }));
    if (taken.length >= 14) continue;
    const text = visibleText(tokens[k.key]).slice(0, 10);
    const half = 3.6 * text.length + 4;
    const level = [0, 1, 2, 3].find((l) => !taken.some(([at, other]) => other === l && Math.abs(at - from) < half + 26));
    if (level === undefined) continue;
    taken.push([from, level]);
    parts.push(svg("text", { x: Math.min(width - half, Math.max(half, from)), y: base + 14 + 14 * level, "text-anchor": "middle", class: "tick" }, text));
  }
  parts.push(svg("circle", { cx: x(view.query), cy: base, r: 4, class: "query-dot" }));
  chart.replaceChildren(...parts);
  const names = shown.slice(0, 6).map((k) => `${visibleText(tokens[k.key])} ${formatValue(k.weight)}`);
  chart.setAttribute("aria-label", `Arcs from query ${visibleText(tokens[view.query])} to its keys: ${names.join(", ")}`);
}

function drawTokens() {
  const map = currentMap();
  if (!map) return;
  byId("tokens").replaceChildren(
    ...map.meta.tokens.map((token, at) => {
      // The text flows: a newline keeps its line break, with a mark that can be pointed at.
      const text = token.replace(/\n/g, "⏎\n").replace(/[\p{Cf}]/gu, "�");
      if (!map.stored.has(at)) return html("span", { class: "token", "data-at": at }, text);
      return html("button", { type: "button", class: "token stored", "data-at": at, title: `token ${at}`, "aria-pressed": "false", onclick: () => selectCell(at, null) }, text);
    }),
  );
}

/** @type {(row: KeyValue[], after: Map<number, number> | null) => void} */
function colourTokens(row, after) {
  const weights = new Map(row.map((k) => [k.key, Math.abs(after?.get(k.key) ?? k.weight)]));
  const most = Math.max(1e-9, ...weights.values());
  /** @type {NodeListOf<HTMLElement>} */
  const tokens = byId("tokens").querySelectorAll(".token");
  for (const token of tokens) {
    const at = Number(token.dataset.at);
    token.style.setProperty("--share", Math.sqrt((weights.get(at) ?? 0) / most).toFixed(3));
    token.classList.toggle("out", view.removed.has(at));
    if (token.tagName === "BUTTON") token.setAttribute("aria-pressed", String(at === view.query));
  }
}
