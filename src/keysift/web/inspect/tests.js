// The tests of relative relevance as tables, in words a reader needs.

function tableOf(titles, rows) {
  const top = html("tr", {}, ...titles.map((t) => html("th", { scope: "col" }, t)));
  const cell = (value) =>
    value instanceof Node
      ? html("td", {}, value)
      : html("td", typeof value === "number" ? { class: "figure" } : {}, typeof value === "number" ? shownNumber(value) : value);
  const body = rows.map((row) => html("tr", {}, ...row.map(cell)));
  const region = { class: "scroll", tabindex: 0, role: "region", "aria-label": titles.filter(Boolean).join(", ") };
  return html("div", region, html("table", {}, html("thead", {}, top), html("tbody", {}, ...body)));
}

function part(title, words, table) {
  return html("div", { class: "card" }, html("h3", {}, title), html("p", {}, words), table ?? "");
}

const named = (row) => `layer ${row.layer}, head ${row.head}`;

function drawTests() {
  const tests = record().tests;
  const parts = [];
  if (tests.absolute_percentile) {
    parts.push(relatively(tests.absolute_percentile), leftOut(tests.leave_out), diluted(tests.dilution));
    parts.push(nothing(tests.nothing_relevant), fewest(tests.functional));
  } else {
    parts.push(html("p", {}, "The tests were left out of this record."));
  }
  if (record().swaps.length) parts.push(swaps());
  byId("tests").replaceChildren(...parts);
}

function relatively(test) {
  const rows = test.only_relatively_bright.map((f) => [
    named(f),
    html("bdi", {}, `${f.query} ${f.query_token}`),
    html("bdi", {}, `${f.key} ${f.key_token}`),
    f.weight,
    `${(100 * f.percentile).toFixed(1)}%`,
    `${(100 * f.among_best).toFixed(1)}%`,
  ]);
  const words =
    "Keys with 30% of a row's mass or more whose raw score the best key of most unrelated rows exceeds: they are bright " +
    "because their company is dark.";
  const titles = ["head", "query", "key", "weight", "absolute percentile", "among the best unrelated"];
  return part("Only relatively bright", rows.length ? words : `${words} None was found.`, rows.length ? tableOf(titles, rows) : null);
}

function leftOut(test) {
  const rows = test.layers.map((l) => [String(l.layer), l.brightest, l.brightest_output, l.first, l.first_output]);
  rows.push(["all", test.brightest, "", test.first, ""]);
  const words =
    `Every row loses a key and the mechanism weighs the others again. The loss of the whole model is ${shownNumber(test.loss)}. ` +
    "A layer's output moves by so many times its size.";
  const titles = ["layer", "loss without the brightest key", "output moved", "loss without the first key", "output moved"];
  return part("Leave a key out", words, tableOf(titles, rows));
}

function diluted(test) {
  const rows = test.heads.map((h) => [named(h), h.exponent ?? "–", ...h.focus]);
  const words =
    `The last ${test.span} tokens are read after m unrelated ones. Focus is the largest weight on a key among them; it fades ` +
    "like n^-b: 1 for a head that averages, 0 for one that does not notice company.";
  return part("Dilution", words, tableOf(["head", "b", ...test.added.map((m) => `m = ${m}`)], rows));
}

function nothing(test) {
  const places = ["span", "first", "own", "near", "elsewhere"];
  const rows = test.heads
    .filter((h) => h.with.span > 0.1)
    .sort((a, b) => b.with.span - a.with.span)
    .slice(0, 40)
    .flatMap((h) =>
      ["with", "without"].map((way) => [way === "with" ? named(h) : "", way, ...places.map((p) => h[way][p]), h[way].largest]),
    );
  const words =
    `A span of ${test.span} tokens comes twice; then its first copy is replaced by unrelated text of the same length. Where ` +
    "did heads that read the copy (10% of their mass or more) put their mass?";
  const titles = ["head", "copy", "on the copy", "first key", "own token", "8 before", "elsewhere", "largest weight"];
  return part("Nothing relevant", rows.length ? words : `${words} No head read it.`, rows.length ? tableOf(titles, rows) : null);
}

function fewest(test) {
  const limits = Object.keys(test.deletion.smallest);
  const rows = ["deletion", "renormalised"].map((way) => ["the model", way, ...limits.map((l) => test[way].smallest[l])]);
  for (const h of test.heads ?? []) {
    for (const way of ["deletion", "renormalised"]) rows.push([named(h), way, ...limits.map((l) => h[way][l])]);
  }
  const words = `The fewest heaviest keys of each row whose loss is at most so much higher, on ${test.tokens} tokens.`;
  return part("How few keys suffice", words, tableOf(["", "way", ...limits.map((l) => `${(100 * l).toFixed(0)}% loss`)], rows));
}

function swaps() {
  const own = record().texts.reduce((sum, t) => sum + t.loss, 0) / record().texts.length;
  const names = ["effective_keys", "largest_weight", "fading_exponent", "first_mass", "row_mass", "accepted_share"];
  const line = (title, loss, heads) => [title, loss, ...names.map((name) => meanOf(heads, name) ?? "–")];
  const rows = [line("as trained", own, record().heads)];
  for (const swap of record().swaps) {
    const losses = Object.values(swap.losses);
    rows.push(line(swap.mechanism, losses.reduce((a, b) => a + b, 0) / losses.length, swap.heads));
  }
  const words = "The same model with its own scores weighed by another mechanism, without retraining; means over heads.";
  return part("What if", words, tableOf(["mechanism", "loss", ...names.map((name) => term(name).title)], rows));
}
