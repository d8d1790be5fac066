// Comparison of several models on the same texts: one row per diagnostic, one column per model.

function drawCompare() {
  byId("compare").hidden = RECORDS.length < 2;
  if (RECORDS.length < 2) return;
  /** @type {(title: string, values: (number | null | undefined)[]) => HTMLElement} */
  const line = (title, values) => {
    const cells = values.map((value) => html("td", { class: "figure" }, formatValue(value)));
    return html("tr", {}, html("th", { scope: "row" }, title), ...cells);
  };
  const terms = comparedTerms(RECORDS.map((r) => r.heads));
  const rows = [
    line("loss, bits per byte", RECORDS.map(meanBits)),
    line(`loss, nats per token${sameTokens() ? "" : " (different tokenizers: not comparable)"}`, RECORDS.map(meanLoss)),
    ...terms.map((name) => line(term(name).title, RECORDS.map((r) => meanValue(r.heads, name)))),
    line("dilution exponent", RECORDS.map((r) => meanExponent(r.tests.dilution))),
    line("loss without the key of largest weight", RECORDS.map((r) => r.tests.leave_out?.brightest)),
    line("fewest keys within 5% of the loss", RECORDS.map((r) => r.tests.functional?.deletion.smallest["0.05"])),
  ];
  const top = html("tr", {}, html("th", {}), ...RECORDS.map((r) => html("th", { scope: "col" }, r.model.name)));
  byId("compared").replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
}

/** Whether all models split the texts into the same number of tokens of an equally large vocabulary. */
function sameTokens() {
  const tokens = RECORDS.map((r) => [r.model.vocabulary, ...r.texts.map((text) => text.tokens)].join());
  return new Set(tokens).size === 1;
}

/** @type {(test: DilutionTest | undefined) => number | null} */
function meanExponent(test) {
  return mean((test?.heads ?? []).map((head) => head.exponent).filter((exponent) => exponent !== null));
}
