// The layers x heads table: one button a head, coloured by a diagnostic.

function valueOf(head) {
  if (view.bucket < 0) return head.values[view.diagnostic] ?? null;
  return head.by_length[view.diagnostic]?.[view.bucket] ?? null;
}

/** Colours run over what is there; quantities that cover many powers of ten run over their logarithm. */
function scaleOf(values) {
  const finite = values.filter((v) => v !== null);
  if (!finite.length) return { share: () => 0, low: null, high: null };
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const log = low > 0 && high / low > 1000;
  const at = log ? Math.log10 : (v) => v;
  return { share: (v) => (high > low ? (at(v) - at(low)) / (at(high) - at(low)) : 0.5), low, high, log };
}

function drawOverview() {
  const heads = record().heads;
  const scale = scaleOf(heads.map(valueOf));
  const layers = new Map();
  heads.forEach((h) => layers.set(h.layer, [...(layers.get(h.layer) ?? []), h]));
  const most = Math.max(...[...layers.values()].map((row) => row.length));
  const top = html("tr", {}, html("th", { scope: "col" }, "layer"));
  for (let h = 0; h < most; h++) top.append(html("th", { scope: "col" }, `head ${h}`));
  const rows = [...layers].map(([layer, row]) =>
    html("tr", {}, html("th", { scope: "row" }, String(layer)), ...row.map((h) => html("td", {}, headButton(h, scale)))),
  );
  byId("overview").replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
  const range = scale.low === null ? "no value" : `${shownNumber(scale.low)} (light) to ${shownNumber(scale.high)} (dark)`;
  say(byId("scale"), `Colours from ${range}${scale.log ? ", on a logarithmic scale" : ""}. A dash: no meaning here.`);
  say(byId("meaning"), term(view.diagnostic).meaning + ` (${term(view.diagnostic).origin})`);
}

function headButton(head, scale) {
  const value = valueOf(head);
  const share = value === null ? 0 : scale.share(value);
  const kinds = head.kinds.length ? `, ${head.kinds.join(", ")}` : "";
  const title = `layer ${head.layer}, head ${head.head}: ${term(view.diagnostic).title} ${shownNumber(value)}${kinds}`;
  const button = html(
    "button",
    {
      type: "button",
      title,
      "aria-label": title,
      "aria-pressed": String(head.layer === view.layer && head.head === view.head),
      onclick: () => chooseHead(head.layer, head.head),
    },
    shownNumber(value),
  );
  button.style.setProperty("--share", share.toFixed(3));
  return button;
}

function fillChoices() {
  const names = Object.keys(record().heads[0].values);
  const every = new Set(record().heads.flatMap((h) => Object.keys(h.values)));
  const chosen = byId("diagnostic");
  chosen.replaceChildren(
    ...[...new Set([...names, ...every])].map((name) =>
      html("option", { value: name, selected: name === view.diagnostic }, term(name).title),
    ),
  );
  chosen.onchange = () => {
    view.diagnostic = chosen.value;
    drawOverview();
    drawLengths();
  };
  const bucket = byId("bucket");
  const lengths = record().lengths.map(([low, high], i) =>
    html("option", { value: i }, low === high ? `${low} visible key` : `${low} to ${high} visible keys`),
  );
  bucket.replaceChildren(html("option", { value: -1 }, "all lengths"), ...lengths);
  bucket.onchange = () => {
    view.bucket = Number(bucket.value);
    drawOverview();
  };
  if (RECORDS.length > 1) {
    const model = html("select", { id: "model" }, ...RECORDS.map((r, i) => html("option", { value: i }, r.model.name)));
    model.onchange = () => chooseModel(Number(model.value));
    byId("model-choice").replaceChildren(html("label", {}, "of ", model));
  }
}
