// Several models on one page: numbers side by side, findings that differ, heads matched by behaviour.

function drawCompare() {
  const { records, rows, matches } = CONTENT;
  byId("compare").hidden = records.length < 2;
  if (records.length < 2) return;
  const names = records.map((r) => r.model.name);
  const table = createTable(["mean over heads", ...names], rows.map(([title, values]) => [title, ...values.map((v) => v ?? "–")]), "models side by side");
  const stories = records.map((r, model) =>
    html("div", {}, html("h3", {}, r.model.name), html("ul", {}, storyOf(r).map((f) => html("li", {}, f.sentence, " ", ...f.heads.slice(0, 3).map(([l, h]) => headChip(model, l, h)))))),
  );
  byId("compared").replaceChildren(table, html("div", { class: "split" }, stories), matchTable(matches));
}

/** @type {(matches: Match[]) => HTMLElement} */
function matchTable(matches) {
  const rows = matches.map((m) => {
    const first = { model: 0, map: 0, layer: m.head[0], head: m.head[1] };
    const second = { model: m.model, map: 0, layer: m.other[0], head: m.other[1] };
    const both = html("button", { type: "button", class: "chip", onclick: () => ((view.other = second), showHead(first, true)) }, "side by side");
    return [headChip(0, ...m.head), CONTENT.records[m.model].model.name, headChip(m.model, ...m.other), m.distance, kindsOf(first), kindsOf(second), both];
  });
  const titles = ["head", "model", "most similar head", "distance", "kind", "its kind", ""];
  const note = "Heads are matched by where their attention goes: mass on the first, previous and own token, copies, spread and largest weight. Distance 0 is identical behaviour.";
  return folded("Heads matched by behaviour", html("p", {}, note), createTable(titles, rows, "matched heads"));
}

/** @type {(place: Place) => string} */
const kindsOf = (place) => headAt(place)?.kinds.join(", ") || "–";
