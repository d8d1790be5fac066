// The view of a real model: how the mass of its heads thins out as the context grows.

function startReal() {
  byId("real-maps").addEventListener("click", () => {
    takeText(JSON.stringify(RECORD.real.maps));
    show("map", true);
  });
}

function drawReal() {
  const real = RECORD.real;
  const percent = (share) => `${Math.round(100 * share)}%`;
  const series = [
    { name: `first token, ${real.strongest_head}`, values: real.strongest },
    { name: "first token, mean of heads", values: real.first },
    { name: "largest of the rest, mean", values: real.rest },
    { name: "1 / keys", values: real.keys.map((n) => 1 / n) },
  ].map(({ name, values }) => ({
    name,
    points: real.keys.map((n, k) => [n, values[k]]).filter(([, v]) => v !== null),
  }));
  const x = { low: 2, high: Math.max(...real.keys), log: true, label: "keys in the context, logarithmic" };
  drawLines(byId("real-chart"), x, { low: 0, high: 1 }, series);
  const [low, high] = real.strongest_at;
  const summary =
    `${real.model}, ${count(real.parameters)} parameters, reading a story of ${real.tokens} tokens. ` +
    `${real.strongest_head} puts ${percent(Math.max(...real.strongest))} of its mass on the first token while it sees ` +
    `${low} to ${high} keys, and ${percent(real.strongest.at(-1))} at the end: the rest went to keys that came since. ` +
    `Of what the first token leaves, the heaviest key holds ${percent(real.rest[0])} at first and ${percent(real.rest.at(-1))} at the end; ` +
    `a head spreads over ${number(real.effective.at(-1))} keys on average.`;
  say(byId("real-facts"), summary);
  set(byId("real-chart"), { "aria-label": summary });
}
