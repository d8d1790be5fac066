// Tests of relative relevance as tables, each with a short explanation.

/** @type {(titles: string[], rows: Cell[][]) => HTMLElement} */
function createTable(titles, rows) {
  const top = html("tr", {}, ...titles.map((title) => html("th", { scope: "col" }, title)));
  /** @param {Cell} value */
  const cell = (value) =>
    typeof value === "number" ? html("td", { class: "figure" }, formatValue(value)) : html("td", {}, value);
  const body = rows.map((row) => html("tr", {}, ...row.map(cell)));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": titles.filter(Boolean).join(", ") };
  return html("div", region, html("table", {}, html("thead", {}, top), html("tbody", {}, ...body)));
}

/** @type {(title: string, text: string, table?: HTMLElement | null) => HTMLElement} */
function testCard(title, text, table) {
  return html("div", { class: "card" }, html("h3", {}, title), html("p", {}, text), table);
}

/** @type {(row: { layer: number, head: number }) => string} */
const headName = (row) => `layer ${row.layer}, head ${row.head}`;

/** @type {(share: number) => string} */
const formatPercent = (share) => `${(100 * share).toFixed(1)}%`;

function drawTests() {
  const { absolute_percentile, leave_out, dilution, nothing_relevant, functional } = record().tests;
  const parts = [];
  if (absolute_percentile) parts.push(relativelyBrightCard(absolute_percentile));
  else parts.push(html("p", {}, "This record does not contain the tests."));
  if (leave_out) parts.push(leaveOutCard(leave_out));
  if (dilution) parts.push(dilutionCard(dilution));
  if (nothing_relevant) parts.push(nothingRelevantCard(nothing_relevant));
  if (functional) parts.push(fewestKeysCard(functional));
  if (record().swaps.length) parts.push(swapsCard());
  byId("tests").replaceChildren(...parts);
}

/** @type {(test: PercentileTest) => HTMLElement} */
function relativelyBrightCard(test) {
  const rows = test.only_relatively_bright.map((f) => [
    headName(f),
    html("bdi", {}, `${f.query} ${visibleText(f.query_token)}`),
    html("bdi", {}, `${f.key} ${visibleText(f.key_token)}`),
    f.weight,
    formatPercent(f.percentile),
    formatPercent(f.among_best),
  ]);
  const text =
    "Keys with at least 30% of the attention whose raw score is lower than the best score of most rows of unrelated " +
    "text: they get a large weight only because the other keys are weaker.";
  const titles = ["head", "query", "key", "weight", "absolute percentile", "percentile among brightest keys"];
  const table = rows.length ? createTable(titles, rows) : null;
  // No head has a value where every mechanism weighs each key on its own.
  const applies = record().heads.some((head) => (head.values.only_relatively_bright ?? null) !== null);
  const none = applies ? "No such key." : "Does not apply: no head has a bright key whose weight other keys could change.";
  return testCard("Large weights with low scores", table ? text : `${text} ${none}`, table);
}

/** @type {(test: LeaveOutTest) => HTMLElement} */
function leaveOutCard(test) {
  /** @type {Cell[][]} */
  const rows = test.layers.map((l) => [String(l.layer), l.brightest, l.brightest_output, l.first, l.first_output]);
  rows.push(["all", test.brightest, "", test.first, ""]);
  const text =
    `One key is removed from every row and the weights are computed again. The loss with all keys is ` +
    `${formatValue(test.loss)}. The change of a layer's output is relative to its norm.`;
  const titles = [
    "layer",
    "loss without the key of largest weight",
    "output change",
    "loss without the first key",
    "output change",
  ];
  return testCard("Leave one key out", text, createTable(titles, rows));
}

/** @type {(test: DilutionTest) => HTMLElement} */
function dilutionCard(test) {
  const rows = test.heads.map((h) => [headName(h), h.exponent ?? "–", ...h.focus]);
  const text =
    `The last ${test.span} tokens are read after m unrelated tokens. The table shows the largest weight on a key among ` +
    "them. It decreases like n^-b: b is 1 for a head that averages and 0 for a head that ignores the added keys.";
  return testCard("Dilution", text, createTable(["head", "b", ...test.added.map((m) => `m = ${m}`)], rows));
}

/** @type {(test: NothingRelevantTest) => HTMLElement} */
function nothingRelevantCard(test) {
  const rows = test.heads
    .filter((h) => h.with.span > 0.1)
    .sort((a, b) => b.with.span - a.with.span)
    .slice(0, 40)
    .flatMap((h) => [
      [headName(h), "present", ...massColumns(h.with)],
      ["", "replaced", ...massColumns(h.without)],
    ]);
  const text =
    `A span of ${test.span} tokens occurs twice; then its first copy is replaced by unrelated text of the same length. ` +
    "The table shows where heads that attended to the copy (at least 10% of their mass) put their mass.";
  const titles = ["head", "copy", "on the copy", "first key", "own token", "8 tokens before", "elsewhere", "largest weight"];
  const table = rows.length ? createTable(titles, rows) : null;
  return testCard("Nothing relevant", table ? text : `${text} No head attended to the copy.`, table);
}

/** @type {(mass: MassByPlace) => number[]} */
const massColumns = (mass) => [mass.span, mass.first, mass.own, mass.near, mass.elsewhere, mass.largest];

/** @type {(test: FunctionalTest) => HTMLElement} */
function fewestKeysCard(test) {
  const limits = Object.keys(test.deletion.smallest);
  /** @type {(name: string, weights: string, smallest: Record<string, number | null>) => Cell[]} */
  const row = (name, weights, smallest) => [name, weights, ...limits.map((limit) => smallest[limit])];
  const rows = [
    row("the model", "not renormalised", test.deletion.smallest),
    row("the model", "renormalised", test.renormalised.smallest),
  ];
  for (const head of test.heads ?? []) {
    rows.push(row(headName(head), "not renormalised", head.deletion), row(headName(head), "renormalised", head.renormalised));
  }
  const text =
    "The smallest k for which keeping only the top k keys per query raises the loss by at most the given share. " +
    `Measured on ${test.tokens} tokens.`;
  const titles = ["", "weights", ...limits.map((limit) => `loss +${(100 * Number(limit)).toFixed(0)}%`)];
  return testCard("How many keys are needed", text, createTable(titles, rows));
}

function swapsCard() {
  const names = comparedTerms(record().swaps.map((swap) => swap.heads));
  /** @type {(title: string, loss: number | null, heads: HeadRecord[]) => Cell[]} */
  const row = (title, loss, heads) => [title, loss, ...names.map((name) => meanValue(heads, name) ?? "–")];
  const rows = [row("as trained", meanLoss(record()), record().heads)];
  for (const swap of record().swaps) rows.push(row(swap.mechanism, mean(Object.values(swap.losses)), swap.heads));
  const text = "Another mechanism applied to the same scores, without retraining. Values are means over heads.";
  return testCard("Other mechanisms", text, createTable(["mechanism", "loss", ...names.map((name) => term(name).title)], rows));
}
