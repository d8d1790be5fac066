// Handlers of the user's selections, and the initial drawing of the page.

/** @type {(layer: number, head: number) => void} */
function chooseHead(layer, head) {
  Object.assign(view, { layer, head });
  view.removed.clear();
  drawOverview();
  drawHead();
  /** @type {HTMLElement | null} */
  const selected = byId("overview").querySelector('[aria-pressed="true"]');
  selected?.focus({ preventScroll: true });
}

/** @type {(query: number) => void} */
function chooseQuery(query) {
  if (view.query === query) return;
  view.query = query;
  view.removed.clear();
  drawQuery();
}

/** @type {(model: number) => void} */
function chooseModel(model) {
  Object.assign(view, { model, layer: 0, head: record().heads[0].head, query: null, bucket: -1 });
  view.removed.clear();
  drawPage();
}

/** The findings of the record; of several records, those of each under the name of its model. */
function drawFindings() {
  /** @type {(r: InspectionRecord) => HTMLElement[]} */
  const sentences = (r) => r.findings.map((sentence) => html("li", {}, sentence));
  const items = RECORDS.length > 1
    ? RECORDS.map((r) => html("li", {}, html("strong", {}, r.model.name), html("ul", {}, ...sentences(r))))
    : sentences(RECORDS[0]);
  byId("findings").replaceChildren(...items);
}

function drawPage() {
  const { model, texts } = record();
  setText(byId("title"), `Attention in ${joinNames(RECORDS.map((r) => r.model.name))}`);
  const textSummaries = texts.map((t) => `${t.name}: ${formatCount(t.tokens)} tokens, loss ${formatValue(t.loss)}, "${t.beginning}..."`);
  const name = RECORDS.length > 1 ? `${model.name}: ` : "";
  const size = `${formatCount(model.parameters)} parameters, ${model.heads.length} layers`;
  setText(byId("about"), `${name}${model.family}, ${size}. ${textSummaries.join("; ")}.`);
  drawFindings();
  fillChoices();
  const pairs = DATA.pairs[view.model];
  if (pairs) view.query = pairs.queries[pairs.queries.length - 1];
  drawOverview();
  drawHead();
  drawTests();
  drawCompare();
}

drawPage();
