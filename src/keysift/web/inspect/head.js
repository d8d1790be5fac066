// One head: its numbers by length, the text as tokens, and the keys of a query with what removing one does.

function drawHead() {
  const head = current();
  say(byId("head-title"), `Layer ${head.layer}, head ${head.head}`);
  const meaning = head.kinds.map((kind) => `${kind}: ${DATA.kinds[kind]}`).join(". ");
  say(byId("kinds"), meaning ? `${meaning}.` : "No simple kind.");
  drawLengths();
  drawTokens();
  drawQuery();
  const rows = Object.entries(head.values).map(([name, value]) =>
    html(
      "tr",
      {},
      html("td", {}, term(name).title),
      html("td", { class: "figure" }, shownNumber(value)),
      html("td", { class: "hint" }, `${term(name).meaning} (${term(name).origin})`),
    ),
  );
  byId("values").replaceChildren(html("tbody", {}, ...rows));
}

function drawLengths() {
  const chart = byId("lengths");
  const all = current().by_length[view.diagnostic] ?? [];
  const points = all.map((value, i) => ({ value, from: record().lengths[i][0] })).filter((p) => p.value !== null);
  const note = points.length ? `${term(view.diagnostic).title}, by visible keys` : "fitted over all lengths: no curve";
  say(byId("lengths-note"), note);
  chart.replaceChildren();
  if (!points.length) return;
  const width = sized(chart, 190);
  const [low, high] = [Math.min(0, ...points.map((p) => p.value)), Math.max(...points.map((p) => p.value), 1e-9)];
  const y = (v) => 160 - ((v - low) / (high - low)) * 145;
  const x = (i) => 52 + (i * (width - 70)) / Math.max(points.length - 1, 1);
  const path = points.map((p, i) => `${i ? "L" : "M"}${x(i)} ${y(p.value)}`).join("");
  chart.append(...axis(ticks(low, high, 4), y, 50, width - 8));
  chart.append(svg("path", { d: path, fill: "none", stroke: "var(--bar)", "stroke-width": 2 }));
  points.forEach((p, i) => {
    const dot = svg("circle", { cx: x(i), cy: y(p.value), r: 4, fill: "var(--bar)" });
    dot.append(svg("title", {}, `${p.from} visible keys: ${shownNumber(p.value)}`));
    chart.append(dot, svg("text", { x: x(i), y: 180, "text-anchor": "middle", class: "tick" }, String(p.from)));
  });
  const said = points.map((p) => `${p.from}: ${shownNumber(p.value)}`).join(", ");
  chart.setAttribute("aria-label", `${term(view.diagnostic).title} by visible keys: ${said}`);
}

function drawTokens() {
  const pairs = DATA.pairs[view.model];
  const place = byId("tokens");
  if (!pairs) {
    place.replaceChildren();
    say(byId("tokens-note"), "This record keeps no single queries.");
    return;
  }
  const stored = new Set(pairs.queries);
  say(
    byId("tokens-note"),
    stored.size === pairs.tokens.length
      ? "Point at a token, or move to it with Tab, to see what it reads as a query."
      : `Point at an underlined token: ${count(stored.size)} of ${count(pairs.tokens.length)} queries are stored.`,
  );
  place.replaceChildren(
    ...pairs.tokens.map((text, at) => {
      if (!stored.has(at)) return html("span", { class: "token", "data-at": at }, text);
      const choose = () => chooseQuery(at);
      const title = `token ${at}`;
      const attributes = { type: "button", class: "token stored", "data-at": at, title, "aria-pressed": "false" };
      return html("button", { ...attributes, onmouseenter: choose, onfocus: choose, onclick: choose }, text);
    }),
  );
}

function colourTokens(row, weights) {
  const shares = new Map(row ? row.keys.map((k, i) => [k.key, weights[i]]) : []);
  const most = Math.max(1e-9, ...[...shares.values()].map(Math.abs));
  for (const token of byId("tokens").children) {
    const at = Number(token.dataset.at);
    const percent = Math.round((60 * Math.abs(shares.get(at) ?? 0)) / most);
    token.style.background = percent ? `color-mix(in srgb, var(--bar) ${percent}%, transparent)` : "";
    token.classList.toggle("here", at === view.query);
    if (token.hasAttribute("aria-pressed")) set(token, { "aria-pressed": String(at === view.query) });
  }
}

function drawQuery() {
  const row = view.query === null ? null : rowOf(view.layer, view.head, view.query);
  const table = byId("keys");
  if (!row) {
    table.replaceChildren();
    say(byId("query-note"), "No query chosen yet.");
    colourTokens(null, []);
    return;
  }
  const tokens = DATA.pairs[view.model].tokens;
  const weights = without(row, view.gone);
  say(byId("query-title"), `Keys of query ${view.query}`);
  byId("query-title").append(" ", html("bdi", {}, tokens[view.query]));
  say(byId("query-note"), noteOf(row, weights));
  const titles = ["key", "token", "raw score", "weight", "absolute percentile", "after removal", ""];
  const rows = row.keys.map((k, i) => keyRow(k, weights[i], tokens[k.key], row));
  const top = html("tr", {}, ...titles.map((t) => html("th", { scope: "col" }, t)));
  table.replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
  colourTokens(row, weights);
}

function noteOf(row, weights) {
  const stored = row.keys.length === row.seen ? "all" : `the ${row.keys.length} heaviest`;
  const moved = row.keys.reduce((sum, k, i) => sum + (view.gone.has(k.key) ? 0 : Math.abs(weights[i] - k.weight)), 0);
  const start = `It sees ${count(row.seen)} keys; ${stored} are shown. `;
  if (!view.gone.size) return `${start}Press “remove” to take a key away and see what the others get.`;
  if (row.removal === "nothing") return `${start}Each key is judged alone: the others did not move.`;
  if (row.removal === "unknown") return `${start}This mechanism's answer cannot be computed in the page.`;
  return `${start}The others shown moved by ${shownNumber(moved)} in sum, although their scores did not.`;
}

function keyRow(k, after, text, row) {
  const gone = view.gone.has(k.key);
  const percentile = percentileOf(view.layer, view.head, k.score);
  const bar = html("span", { class: "bar" });
  bar.style.width = `${Math.min(1, Math.abs(k.weight)) * 5}rem`;
  const button = html(
    "button",
    {
      type: "button",
      "aria-pressed": String(gone),
      "aria-label": `${gone ? "put back" : "remove"} key ${k.key}`,
      disabled: row.removal === "unknown",
      onclick: () => toggleKey(k.key),
    },
    gone ? "put back" : "remove",
  );
  return html(
    "tr",
    { class: gone ? "gone" : false, "data-key": k.key },
    html("td", { class: "figure" }, String(k.key)),
    html("td", {}, html("bdi", {}, text)),
    html("td", { class: "figure" }, shownNumber(k.score)),
    html("td", {}, `${shownNumber(k.weight)} `, bar),
    html("td", { class: "figure" }, percentile === null ? "–" : `${(100 * percentile).toFixed(1)}%`),
    html("td", { class: "figure" }, view.gone.size && row.removal !== "unknown" ? shownNumber(after) : ""),
    html("td", {}, button),
  );
}

function toggleKey(key) {
  if (!view.gone.delete(key)) view.gone.add(key);
  drawQuery();
  byId("keys").querySelector(`[data-key="${key}"] button`)?.focus();
}
