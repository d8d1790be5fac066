// What a reader chooses, and the first drawing.

function chooseHead(layer, head) {
  Object.assign(view, { layer, head });
  view.gone.clear();
  drawOverview();
  drawHead();
  byId("overview").querySelector('[aria-pressed="true"]')?.focus({ preventScroll: true });
}

function chooseQuery(at) {
  if (view.query === at) return;
  view.query = at;
  view.gone.clear();
  drawQuery();
}

function chooseModel(model) {
  Object.assign(view, { model, layer: 0, head: record().heads[0].head, query: null, bucket: -1 });
  view.gone.clear();
  begin();
}

function begin() {
  const { model, texts, findings } = record();
  say(byId("title"), `Attention in ${model.name}`);
  const read = texts.map((t) => `${t.name}: ${count(t.tokens)} tokens, loss ${shownNumber(t.loss)}`).join("; ");
  say(byId("about"), `${model.family}, ${count(model.parameters)} parameters, ${model.heads.length} layers. ${read}.`);
  byId("findings").replaceChildren(...findings.map((sentence) => html("li", {}, sentence)));
  fillChoices();
  const pairs = DATA.pairs[view.model];
  if (pairs) view.query = pairs.queries[pairs.queries.length - 1];
  drawOverview();
  drawHead();
  drawTests();
  drawCompare();
}

begin();
