// View of a real model: how its attention disperses as the context grows.

function startReal() {
  byId("real-maps").addEventListener("click", () => {
    loadText(JSON.stringify(RECORD.real.maps));
    showView("map", true);
  });
}

function drawReal() {
  const real = RECORD.real;
  /** @param {number | null} share */
  const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)}%`);
  /** @type {{ name: string, values: (number | null)[] }[]} */
  const curves = [
    { name: `first token, ${real.strongest_head}`, values: real.strongest },
    { name: "first token, mean of heads", values: real.first },
    { name: "largest share of the rest, mean of heads", values: real.rest },
    { name: "1 / keys", values: real.keys.map((n) => 1 / n) },
  ];
  /** @type {Series[]} */
  const series = curves.map(({ name, values }) => ({
    name,
    points: real.keys.flatMap((n, k) => {
      const value = values[k];
      return value === null ? [] : [/** @type {Point} */ ([n, value])];
    }),
  }));
  const last = real.keys.length - 1;
  const x = { low: 2, high: Math.max(...real.keys), log: true, label: "visible keys, logarithmic" };
  drawLines(svgById("real-chart"), x, { low: 0, high: 1 }, series);
  const [low, high] = real.strongest_at;
  const summary =
    `${real.model}, ${formatCount(real.parameters)} parameters, on a story of ${real.tokens} tokens. ` +
    `${real.strongest_head} puts ${percent(Math.max(...real.strongest))} of its mass on the first token with ` +
    `${low} to ${high} visible keys, and ${percent(real.strongest[last])} at the end: the rest moved to later keys. ` +
    `Of the mass outside the first token, the largest key holds ${percent(real.rest[0])} at the start and ${percent(real.rest[last])} at the end; ` +
    `a head spreads over ${formatNumber(real.effective[last])} keys on average.`;
  setText(byId("real-facts"), summary);
  setAttributes(svgById("real-chart"), { "aria-label": summary });
}
