// Types of the playground; read by the type checker only, never part of the page.
// The data that Python embeds has the schema of keysift.records.playground.

interface Dial {
  name: string;
  meaning: string;
  default: number;
  low: number;
  high: number;
}
interface Mechanism {
  name: string;
  title: string;
  formula: string;
  absolute: boolean;
  cosine: boolean;
  source: string;
  maps: number;
  dials: Dial[];
  holds: string[];
}
interface Preset {
  name: string;
  title: string;
  cosines: number[];
  before: number[];
  crowd: number;
}
interface GoldenCase {
  mechanism: string;
  scores: number[];
  second: number[];
  keep: boolean[];
  distance: number[];
  scalars: Record<string, number>;
  weights: number[];
}
interface GoldenPreset {
  preset: string;
  mechanism: string;
  weights: number[];
  mass: number;
  accepted: number;
  entropy: number;
}
interface GoldenScene {
  query: number;
  second: number;
  position: number;
  angles: number[];
  positions: number[];
  values: Point[];
  window: number;
  acceptance: number;
  lam: number;
  sharpness: number;
  outputs: Record<SceneMechanism, Point>;
}
/** Dispersion measured on a real model by `keysift play --model`. */
interface RealModel {
  model: string;
  parameters: number;
  tokens: number;
  keys: number[];
  first: (number | null)[];
  rest: (number | null)[];
  effective: number[];
  strongest: number[];
  strongest_head: string;
  strongest_at: [number, number];
  maps: unknown;
}
interface PageData {
  version: string;
  promises: Record<string, string>;
  mechanisms: Mechanism[];
  presets: Preset[];
  cases: GoldenCase[];
  preset_cases: GoldenPreset[];
  scenes: GoldenScene[];
  real: RealModel;
}

type Point = [number, number];
type View = "scores" | "geometry" | "map" | "real";
type SceneMechanism = "softmax" | "differential_v2" | "screening";

interface Key {
  name: string;
  cosine: number;
  second: number;
  masked: boolean;
}
/** Everything the weights of the scores view depend on. */
interface WeightInputs {
  keys: Key[];
  crowd: number;
  level: number;
  temperature: number;
  width: number;
  scaled: boolean;
  dials: Record<string, number>;
}
interface PlaneKey {
  angle: number;
  distance: number;
  value: Point;
}
interface Plane {
  query: number;
  second: number;
  window: number;
  rotate: boolean;
  keys: PlaneKey[];
}
interface MapChoice {
  layer: number;
  head: number;
  query: number;
}
interface State extends WeightInputs {
  view: View;
  shown: string[];
  selected: string;
  pinned: boolean;
  before: WeightInputs | null;
  plane: Plane;
  map: MapChoice;
}
interface Store {
  state: State;
  past: State[];
  future: State[];
  gesture: string | null;
  lastChange: number;
  draw: (state: State) => void;
  frameRequested: boolean;
}
interface UpdateOptions {
  gesture?: string | null;
  compare?: boolean;
}

type Numbers = Float64Array | number[];
type Mask = Uint8Array;
/** Inputs of a weight function besides the scores; scalars of the mechanism are entries of their own. */
interface RowInputs {
  keep: Mask;
  second: Float64Array;
  distance: Numbers;
  [scalar: string]: any;
}
type WeightFunction = (scores: Float64Array, row: RowInputs) => Float64Array;
interface Summary {
  mass: number;
  accepted: number;
  entropy: number;
}
/** How weights changed: by how much where the score stayed the same, else null; and each weight before. */
interface Changes {
  keys: (number | null)[];
  crowd: number;
  before: (number | null)[];
}
interface Scene extends Plane {
  acceptance: number;
  lam: number;
  sharpness: number;
}
interface SceneResult {
  weights: Record<SceneMechanism, Float64Array>;
  outputs: Record<SceneMechanism, Point>;
  cosines: Float64Array;
}

/** A group of older keys for one query: whether its bound opens it, and its keys. */
interface OldGroup {
  centre: number;
  radius: number;
  opened: boolean;
  keys: { angle: number; accepted: boolean }[];
}

interface ChartAxis {
  low: number;
  high: number;
  label?: string;
  log?: boolean;
}
interface Series {
  name: string;
  points: Point[];
  dot?: Point | null;
}
type MovePointer = (x: number, y: number, gesture: string) => void;
/** A knob with the current mapping from the pointer to its value. */
type Knob = SVGElement & { toValue?: (x: number) => number; circle?: [number, number, number] };
interface Handle {
  group: SVGElement;
  hit: SVGElement;
  stem: SVGElement;
  knob: SVGElement;
  label: SVGElement;
  value: SVGElement;
}
interface DialSlider {
  row: HTMLElement;
  input: HTMLInputElement;
  out: HTMLElement;
  of: Dial;
}
type FactName = "mass" | "accepted" | "entropy" | "own" | "others";
interface Card {
  box: HTMLElement;
  chart: SVGSVGElement;
  facts: Record<FactName, HTMLElement>;
  verdict: HTMLElement;
  sliders: DialSlider[];
}
interface MapHead {
  name: string | null;
  weights: Float64Array;
  scores: Float64Array | null;
  threshold: number | null;
}
interface Maps {
  tokens: string[];
  layers: MapHead[][];
}
