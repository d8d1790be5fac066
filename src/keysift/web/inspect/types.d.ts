// Types of the inspection page; read by the type checker only, never part of the page.
// Records have the schema of keysift.records.lens, maps that of keysift.records.lens_maps.

type Values = Record<string, number | null | undefined>;
interface HeadRecord {
  layer: number;
  head: number;
  kinds: string[];
  values: Values;
  by_length: Record<string, (number | null)[]>;
}
interface Term {
  title: string;
  meaning: string;
  origin: string;
  compared?: boolean;
}
interface Kind {
  name: string;
  meaning: string;
  score: string;
  limit: number | null;
}
interface Pair {
  layer: number;
  head: number;
  text: number;
  query: number;
  key: number;
  query_token: string;
  key_token: string;
}
interface Finding {
  topic: string;
  sentence: string;
  meaning: string;
  action: string;
  heads: [number, number][];
  pairs: Pair[];
  weight: number;
}
interface Swap {
  mechanism: string;
  losses: Record<string, number>;
  heads: HeadRecord[];
}
type Rule = "softmax" | "absolute" | "other";
interface KeyGroup {
  size: number;
  centre: number;
  reach: number;
  bound: number;
  best: number;
}
interface MapHead {
  layer: number;
  head: number;
  rule: Rule;
  mechanism: string;
  threshold: number | null;
  window: number | null;
  acceptance: number | null;
  groups: KeyGroup[];
}
interface MapRecord {
  text: number;
  swap: string | null;
  tokens: string[];
  pool: number;
  queries: number[];
  keys: number;
  heads: MapHead[];
}
interface InspectionRecord {
  model: { name: string; family: string; parameters: number; vocabulary: number; heads: number[]; mechanisms: string[] };
  texts: { name: string; tokens: number; loss: number; bits_per_byte: number | null; beginning: string }[];
  findings: Finding[];
  lengths: [number, number][];
  heads: HeadRecord[];
  swaps: Swap[];
  maps: MapRecord[];
  made: { step?: number };
  /** Results by the name of the test; empty if the tests were left out. */
  tests: {
    absolute_percentile?: { tokens: number; levels: number[]; scores: Record<string, number[][]>; best: Record<string, number[][]> };
    acceptance?: { widths: number[]; heads: { layer: number; head: number; acceptance: number; passing: number[]; empty: number[] }[] };
    leave_out?: LeaveOutTest;
    dilution?: { span: number; added: number[]; heads: { layer: number; head: number; exponent: number | null; focus: number[] }[] };
    nothing_relevant?: { span: number; heads: { layer: number; head: number; with: MassByPlace; without: MassByPlace }[] };
    functional?: FunctionalTest;
  };
}
interface LeaveOutTest {
  loss: number;
  brightest: number;
  first: number;
  layers: { layer: number; brightest: number; brightest_output: number; first: number; first_output: number }[];
}
interface MassByPlace {
  span: number;
  first: number;
  own: number;
  near: number;
  elsewhere: number;
  largest: number;
}
type Smallest = Record<string, number | null>;
interface FunctionalTest {
  tokens: number;
  deletion: { smallest: Smallest };
  renormalised: { smallest: Smallest };
  heads?: { layer: number; head: number; deletion: Smallest; renormalised: Smallest }[];
}
interface Content {
  records: InspectionRecord[];
  story: number;
  terms: Record<string, Term>;
  kinds: Kind[];
  matches: Match[];
  /** Whether the records are checkpoints of one run. */
  film: boolean;
  rows: [string, (number | null)[]][];
}
/** Heads of the first model and the most similar head of another. */
interface Match {
  model: number;
  head: [number, number];
  other: [number, number];
  distance: number;
}
/** Key of a query: exact if it is one of the stored keys. */
interface KeyValue {
  key: number;
  score: number;
  weight: number;
  exact: boolean;
}
type Mode = "weight" | "score" | "absolute";
interface Place {
  model: number;
  map: number;
  layer: number;
  head: number;
}
interface View extends Place {
  query: number;
  key: number | null;
  removed: Set<number>;
  mode: Mode;
  other: Place | null;
  /** Acceptance width of the slider; null is the learned one. */
  width: number | null;
}
type Rgb = [number, number, number];
type Cell = string | number | null | undefined | Node;
