// Several models on the same texts: one row a diagnostic, one column a model.

const COMPARED = [
  "effective_keys",
  "effective_share",
  "largest_weight",
  "fading_exponent",
  "first_mass",
  "row_mass",
  "accepted_share",
  "refuses_all",
  "threshold_distance",
  "recall_8",
  "recall_of_shuffled_values_8",
  "distance_tightness_5",
  "entropy_floor_share",
  "gradient_tightness",
  "saturated",
  "left_out_moved",
  "left_out_output",
  "bright",
  "only_relatively_bright",
];

function drawCompare() {
  byId("compare").hidden = RECORDS.length < 2;
  if (RECORDS.length < 2) return;
  const loss = (r) => r.texts.reduce((sum, t) => sum + t.loss, 0) / r.texts.length;
  const faded = (r) => r.tests.dilution?.heads.map((h) => ({ values: { b: h.exponent } })) ?? [];
  const line = (title, values) =>
    html("tr", {}, html("th", { scope: "row" }, title), ...values.map((v) => html("td", { class: "figure" }, shownNumber(v))));
  const rows = [
    line("loss, nats per token", RECORDS.map(loss)),
    ...COMPARED.filter((name) => DATA.terms[name]).map((name) =>
      line(term(name).title, RECORDS.map((r) => meanOf(r.heads, name))),
    ),
    line("dilution exponent", RECORDS.map((r) => meanOf(faded(r), "b"))),
    line("loss without the brightest keys", RECORDS.map((r) => r.tests.leave_out?.brightest)),
    line("fewest keys within 5% of the loss", RECORDS.map((r) => r.tests.functional?.deletion.smallest["0.05"])),
  ];
  const top = html("tr", {}, html("th", {}), ...RECORDS.map((r) => html("th", { scope: "col" }, r.model.name)));
  byId("compared").replaceChildren(html("thead", {}, top), html("tbody", {}, ...rows));
}
