// Table of layers and heads: one button per head, coloured by a diagnostic.

/** @type {(head: HeadRecord) => number | null} */
function headValue(head) {
  if (view.bucket < 0) return head.values[view.diagnostic] ?? null;
  return head.by_length[view.diagnostic]?.[view.bucket] ?? null;
}

/**
 * Colour scale over the range of the values; logarithmic if they span more than a factor of 1000.
 * @type {(values: (number | null)[]) => Scale}
 */
function colourScale(values) {
  const finite = values.filter((v) => v !== null);
  if (!finite.length) return { share: () => 0, low: null, high: null, log: false };
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const log = low > 0 && high / low > 1000;
  const at = log ? Math.log10 : Number;
  return { share: (v) => (high > low ? (at(v) - at(low)) / (at(high) - at(low)) : 0.5), low, high, log };
}

function drawOverview() {
  const heads = record().heads;
  const scale = colourScale(heads.map(headValue));
  /** @type {Map<number, HeadRecord[]>} */
  const layers = new Map();
  heads.forEach((h) => layers.set(h.layer, [...(layers.get(h.layer) ?? []), h]));
  const columns = Math.max(...[...layers.values()].map((row) => row.length));
  const top = html("tr", {}, html("th", { scope: "col" }, "layer"));
  for (let h = 0; h < columns; h++) top.append(html("th", { scope: "col" }, `head ${h}`));
  const rows = [...layers].map(([layer, row]) =>
    html("tr", {}, html("th", { scope: "row" }, String(layer)), ...row.map((h) => html("td", {}, headButton(h, scale)))),
  );
  byId("overview").replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
  const range = scale.low === null ? "no value" : `${formatValue(scale.low)} (light) to ${formatValue(scale.high)} (dark)`;
  setText(byId("scale"), `Colours from ${range}${scale.log ? ", on a logarithmic scale" : ""}. A dash means that the diagnostic does not apply.`);
  setText(byId("meaning"), term(view.diagnostic).meaning + ` (${term(view.diagnostic).origin})`);
}

/** @type {(head: HeadRecord, scale: Scale) => HTMLElement} */
function headButton(head, scale) {
  const value = headValue(head);
  const share = value === null ? 0 : scale.share(value);
  const kinds = head.kinds.length ? `, ${head.kinds.join(", ")}` : "";
  const title = `layer ${head.layer}, head ${head.head}: ${term(view.diagnostic).title} ${formatValue(value)}${kinds}`;
  const button = html(
    "button",
    {
      type: "button",
      title,
      "aria-label": title,
      "aria-pressed": String(head.layer === view.layer && head.head === view.head),
      onclick: () => chooseHead(head.layer, head.head),
    },
    formatValue(value),
  );
  button.style.setProperty("--share", share.toFixed(3));
  return button;
}

function fillChoices() {
  const every = new Set(record().heads.flatMap((h) => Object.keys(h.values)));
  const diagnostic = /** @type {HTMLSelectElement} */ (byId("diagnostic"));
  diagnostic.replaceChildren(
    ...Object.keys(DATA.terms).filter((name) => every.has(name)).map((name) =>
      html("option", { value: name, selected: name === view.diagnostic }, term(name).title),
    ),
  );
  diagnostic.onchange = () => {
    view.diagnostic = diagnostic.value;
    drawOverview();
    drawLengths();
  };
  const bucket = /** @type {HTMLSelectElement} */ (byId("bucket"));
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
