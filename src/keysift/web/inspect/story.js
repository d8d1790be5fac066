// The story: the findings that matter, each with its meaning, the next step, and the heads and tokens it is about.

/** @type {(model: number, layer: number, head: number) => HTMLElement} */
function headChip(model, layer, head) {
  const entry = CONTENT.records[model].heads.find((h) => h.layer === layer && h.head === head);
  const kinds = entry?.kinds.join(", ");
  const title = `show layer ${layer}, head ${head}${kinds ? `: ${kinds}` : ""}`;
  const onclick = () => showHead({ model, map: model === view.model ? view.map : 0, layer, head }, true);
  return html("button", { type: "button", class: "chip", title, onclick }, `L${layer}H${head}`);
}

/** @type {(model: number, pair: Pair) => HTMLElement} */
function pairChip(model, pair) {
  const map = Math.max(0, CONTENT.records[model].maps.findIndex((m) => m.text === pair.text && m.swap === null));
  const onclick = () => {
    view.mode = "absolute";
    view.query = pair.query;
    view.removed = new Set();
    showHead({ model, map, layer: pair.layer, head: pair.head }, true, pair.query, pair.key);
  };
  const title = `show query ${pair.query} and key ${pair.key} in layer ${pair.layer}, head ${pair.head}`;
  return html(
    "button",
    { type: "button", class: "chip", title, onclick },
    html("bdi", {}, visibleText(pair.query_token)),
    " → ",
    html("bdi", {}, visibleText(pair.key_token)),
  );
}

/** @type {(finding: Finding, model: number, tag: "h3" | "h4") => HTMLElement} */
function findingCard(finding, model, tag) {
  const chips = [
    ...finding.heads.slice(0, 6).map(([layer, head]) => headChip(model, layer, head)),
    ...finding.pairs.map((pair) => pairChip(model, pair)),
  ];
  return html(
    "article",
    { class: "card finding" },
    html("p", { class: "eyebrow" }, finding.topic),
    html(tag, {}, finding.sentence),
    html("p", {}, finding.meaning),
    html("p", { class: "action" }, html("strong", {}, "Try: "), finding.action),
    chips.length ? html("p", { class: "chips" }, chips) : null,
  );
}

/** The most important findings of a record. @type {(of: InspectionRecord) => Finding[]} */
const storyOf = (of) => of.findings.filter((f) => f.weight > 0).slice(0, CONTENT.story);

function drawStory() {
  const story = storyOf(record());
  const none = html("p", {}, "This record has no findings: it was written by an earlier version. Inspect the model again.");
  const several = CONTENT.records.length > 1;
  setText(byId("story-of"), several ? `Findings about ${record().model.name}. ${CONTENT.film ? "Other checkpoints: move the slider." : "The models are compared below."}` : "");
  byId("story").replaceChildren(...(story.length ? story.map((f) => findingCard(f, view.model, "h3")) : [none]));
}
