// Content of the page, the current view, and its address (the part of the link after #).

/** @type {{ content: string, arrays: Record<string, string>[][] }} */
const PACKED = JSON.parse(byId("data").textContent ?? "");

/** @type {Content} */
let CONTENT;
/** @type {TextMap[][]} */
let MAPS = [];

/** @type {View} */
const view = {
  model: 0,
  map: 0,
  layer: 0,
  head: 0,
  query: 0,
  key: null,
  removed: new Set(),
  mode: "weight",
  other: null,
  width: null,
};

async function loadContent() {
  CONTENT = JSON.parse(new TextDecoder().decode(await inflate(PACKED.content)));
}

async function loadMaps() {
  MAPS = await Promise.all(
    CONTENT.records.map((r, model) =>
      Promise.all(
        r.maps.map(async (meta, index) => {
          const packed = Object.entries(PACKED.arrays[model][index]);
          const arrays = await Promise.all(packed.map(async ([name, text]) => [name, await unpack(text)]));
          return new TextMap(meta, Object.fromEntries(arrays));
        }),
      ),
    ),
  );
}

/** @type {() => InspectionRecord} */
const record = () => CONTENT.records[view.model];
/** @type {() => TextMap | undefined} */
const currentMap = () => MAPS[view.model]?.[view.map];
/** @type {(place: Place) => HeadRecord | undefined} */
const headAt = (place) => CONTENT.records[place.model].heads.find((h) => h.layer === place.layer && h.head === place.head);
/** @type {(head: { layer: number, head: number }) => string} */
const label = (head) => `L${head.layer}H${head.head}`;
/** @type {(name: string) => Term} */
const term = (name) => CONTENT.terms[name] ?? { title: name, meaning: "", origin: "" };

/** Map and index of a head, if the page has its map. @type {(place: Place) => { map: TextMap, index: number } | null} */
function mapOf(place) {
  const map = MAPS[place.model]?.[place.map];
  const index = map ? map.indexOf(place.layer, place.head) : -1;
  return map && index >= 0 ? { map, index } : null;
}

/**
 * Percentile, 0 to 1, of a score in a table of quantiles of unrelated text; null without the test.
 * @type {(place: Place, score: number, table: "scores" | "best") => number | null}
 */
function percentile(place, score, table) {
  const test = CONTENT.records[place.model].tests.absolute_percentile;
  const values = test?.[table]?.[place.layer]?.[place.head];
  if (!test || !values || Number.isNaN(score)) return null;
  if (score <= values[0]) return 0;
  for (let i = 1; i < values.length; i++) {
    if (score <= values[i]) {
      const share = values[i] > values[i - 1] ? (score - values[i - 1]) / (values[i] - values[i - 1]) : 1;
      return test.levels[i - 1] + share * (test.levels[i] - test.levels[i - 1]);
    }
  }
  return 1;
}

/** @type {(place: Place) => string} */
const writePlace = ({ model, map, layer, head }) => [model, map, layer, head].join(".");

/** @type {(text: string) => Place | null} */
function readPlace(text) {
  const [model, map, layer, head] = text.split(".").map(Number);
  const place = { model, map, layer, head };
  return mapOf(place) || CONTENT.records[model]?.heads.some((h) => h.layer === layer && h.head === head) ? place : null;
}

/** The view as the part of a link after #. @type {() => string} */
function writeAddress() {
  const parts = [`head=${writePlace(view)}`, `query=${view.query}`, `show=${view.mode}`];
  if (view.removed.size) parts.push(`without=${[...view.removed].join(".")}`);
  if (view.other) parts.push(`beside=${writePlace(view.other)}`);
  if (view.width !== null) parts.push(`r=${view.width}`);
  return `#${parts.join("&")}`;
}

/** Apply an address; whatever is not valid is ignored. Returns whether it names a head. @type {(hash: string) => boolean} */
function readAddress(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const place = readPlace(parts.get("head") ?? "");
  if (!place) return false;
  Object.assign(view, place);
  const tokens = currentMap()?.meta.tokens.length ?? 1;
  const query = Number(parts.get("query"));
  view.query = Number.isInteger(query) && query >= 0 && query < tokens ? query : tokens - 1;
  const mode = parts.get("show");
  if (mode === "weight" || mode === "score" || mode === "absolute") view.mode = mode;
  const without = (parts.get("without") ?? "").split(".").filter(Boolean).map(Number);
  view.removed = new Set(without.filter((key) => Number.isInteger(key) && key >= 0 && key <= view.query));
  view.other = readPlace(parts.get("beside") ?? "");
  const width = Number(parts.get("r"));
  view.width = parts.has("r") && width > 0 && width <= 1 ? width : null;
  return true;
}

/** @type {(value: number | null | undefined) => string} */
function formatValue(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e12) return formatCount(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1).replace("e+", "e");
  return formatNumber(value);
}

/** Whole percents; one digit below 10%, and above 99%, where all is not nearly all. @type {(share: number | null) => string} */
function formatPercent(share) {
  if (share === null) return "–";
  if (share > 0.995 && share < 1) return share > 0.9995 ? "over 99.9%" : `${(100 * share).toFixed(1)}%`;
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`;
}
