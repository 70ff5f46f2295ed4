"use strict";

const about = JSON.parse(document.getElementById("about").textContent);
const byId = (id) => document.getElementById(id);
const tokens = about.pieces.length;
const layers = about.layers.length;
// Heads of all layers behind each other; those of layer l begin at firstHead[l].
const heads = about.layers.flat();
const firstHead = [0];
for (const layer of about.layers) firstHead.push(firstHead.at(-1) + layer.length);
const mostHeads = Math.max(...about.layers.map((layer) => layer.length));

const NUMBERS = {
  keys: ["keys kept", (x) => digits(x), true],
  entropy: ["entropy, nats", (x) => digits(x), false],
  first: ["weight on the first key", (x) => percent(x), false],
  distance: ["mean distance", (x) => digits(x), true],
};
const LISTED = 40; // keys in the list

const state = { token: Math.min(tokens - 1, 60), layer: null, head: null, direction: "reads" };

// ---- numbers for people

function digits(x) {
  return x >= 99.5 ? Math.round(x).toLocaleString("en").replace(/,/g, "\u2009") : x.toPrecision(2);
}

function percent(x) {
  const value = 100 * x;
  if (value >= 9.95) return `${Math.round(value)} %`;
  return value >= 0.095 ? `${value.toPrecision(2)} %` : `${value.toPrecision(1)} %`;
}

function spelled(i) {
  const piece = about.pieces[i].replace(/\n/g, "↵").replace(/\t/g, "⇥");
  return piece.trim() || piece.replace(/ /g, "␣") || "·";
}

// ---- the weights (tsallis_look/pack.py says how they lie)

let firsts, rows, keys, levels;
const weightOf = Float64Array.from({ length: 256 }, (_, level) => 2 ** (-level / about.steps));

async function unpack() {
  const packed = atob(byId("weights").textContent);
  byId("weights").remove();
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; ++i) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = heads.length * tokens;
  let at = 0;
  const take = (length) => data.subarray(at, (at += length));
  firsts = take(count);
  const low = take(count), high = take(count);
  rows = new Uint32Array(count + 1);
  for (let row = 0; row < count; ++row) rows[row + 1] = rows[row] + low[row] + 256 * high[row];
  const entries = rows[count];
  const near = take(entries), far = take(entries);
  levels = take(entries);
  keys = new Uint16Array(entries);
  for (let row = 0; row < count; ++row) {
    let key = about.causal ? row % tokens : tokens - 1;
    for (let e = rows[row]; e < rows[row + 1]; ++e) {
      key -= near[e] + 256 * far[e];
      keys[e] = key;
    }
  }
}

// The heads that are shown: first and last + 1.
function scope() {
  if (state.layer === null) return [0, heads.length];
  if (state.head === null) return [firstHead[state.layer], firstHead[state.layer + 1]];
  const head = firstHead[state.layer] + state.head;
  return [head, head + 1];
}

// Mean over the shown heads: the weights that the token gives, or that others give it.
function weights() {
  const [first, last] = scope();
  const found = new Float64Array(tokens);
  const token = state.token;
  for (let head = first; head < last; ++head) {
    if (state.direction === "reads") {
      const row = head * tokens + token;
      if (firsts[row]) found[0] += weightOf[firsts[row] - 1];
      for (let e = rows[row]; e < rows[row + 1]; ++e) found[keys[e]] += weightOf[levels[e]];
      continue;
    }
    for (let query = about.causal ? token : 0; query < tokens; ++query) {
      const row = head * tokens + query;
      if (token === 0) {
        if (firsts[row]) found[query] += weightOf[firsts[row] - 1];
        continue;
      }
      for (let e = rows[row]; e < rows[row + 1] && keys[e] >= token; ++e) {
        if (keys[e] === token) found[query] += weightOf[levels[e]];
      }
    }
  }
  for (let i = 0; i < tokens; ++i) found[i] /= last - first;
  return found;
}

// ---- the text

const text = byId("text");
let spans = [];
let shaded = [];

function writeText() {
  text.classList.toggle("prose", /\.(txt|md|rst)$/.test(about.text));
  const all = document.createDocumentFragment();
  spans = about.pieces.map((piece, i) => {
    const span = document.createElement("span");
    span.id = `t${i}`;
    span.setAttribute("role", "option");
    // A line's end can be clicked, and so can a token without a character of its own.
    if (piece === "" || piece.includes("\n")) {
      const parts = piece.split("\n");
      parts.forEach((part, k) => {
        span.append(part);
        const sign = document.createElement("i");
        sign.textContent = k < parts.length - 1 ? "↵" : piece === "" ? "·" : "";
        if (sign.textContent) span.append(sign);
        if (k < parts.length - 1) span.append("\n");
      });
    } else {
      span.textContent = piece;
    }
    span.index = i;
    all.append(span);
    return span;
  });
  text.append(all);
}

function shade(found) {
  for (const i of shaded) spans[i].style.backgroundColor = "";
  shaded = [];
  const most = Math.max(...found);
  if (!(most > 0)) return;
  for (let i = 0; i < tokens; ++i) {
    if (!(found[i] > 0)) continue;
    const strength = Math.sqrt(found[i] / most);
    if (strength < 0.04) continue;
    spans[i].style.backgroundColor = `rgba(var(--hue), ${strength.toFixed(3)})`;
    shaded.push(i);
  }
}

function drawStrip(found) {
  const canvas = byId("strip");
  const width = Math.max(1, canvas.clientWidth * devicePixelRatio);
  canvas.width = width;
  canvas.height = 14 * devicePixelRatio;
  const pen = canvas.getContext("2d");
  const hue = getComputedStyle(document.documentElement).getPropertyValue("--hue");
  const most = Math.max(...found);
  const thick = Math.max(2 * devicePixelRatio, width / tokens);
  for (let i = 0; i < tokens; ++i) {
    if (!(found[i] > 0)) continue;
    pen.fillStyle = `rgba(${hue}, ${Math.sqrt(found[i] / most)})`;
    pen.fillRect((i / tokens) * width, 0, thick, canvas.height);
  }
  pen.fillStyle = "#1f2328";
  pen.fillRect((state.token / tokens) * width, 0, thick, canvas.height);
}

// ---- the list of keys

function list(found) {
  const order = [];
  let sum = 0;
  for (let i = 0; i < tokens; ++i) {
    if (!(found[i] > 0)) continue;
    order.push(i);
    sum += found[i];
  }
  order.sort((a, b) => found[b] - found[a] || b - a);
  const reads = state.direction === "reads";
  const what = reads ? (order.length === 1 ? "key" : "keys") : order.length === 1 ? "token" : "tokens";
  byId("token").textContent =
    `“${spelled(state.token)}”, token ${state.token + 1}, ${reads ? "reads" : "is read by"} ` +
    `${order.length} ${what}`;
  // Rounding to a byte moves a sum by some percent.
  const hidden = reads && order.length > 0 && sum < 0.95;
  byId("sum").textContent = order.length === 0
    ? `No weight here is ${percent(about.cut)} or more.`
    : hidden ? `They have ${percent(sum)} of its weight.` : "";
  const most = order.length ? found[order[0]] : 1;
  byId("keys").replaceChildren(...order.slice(0, LISTED).map((i) => {
    const item = document.createElement("li"), button = document.createElement("button");
    const name = document.createElement("code"), place = document.createElement("small");
    const weight = document.createElement("b");
    name.textContent = spelled(i);
    place.textContent = i + 1;
    weight.textContent = percent(found[i]);
    const width = (100 * found[i]) / most;
    button.style.background =
      `linear-gradient(to right, rgba(var(--hue), .4) ${width}%, transparent ${width}%)`;
    button.append(name, place, weight);
    button.index = i;
    item.append(button);
    return item;
  }));
  if (order.length > LISTED) {
    const item = document.createElement("li");
    const rest = order.slice(LISTED).reduce((total, i) => total + found[i], 0);
    item.textContent = `and ${order.length - LISTED} more with ${percent(rest)} together`;
    item.className = "rest";
    byId("keys").append(item);
  }
}

// ---- the map of the heads

const cells = new Map(); // "layer,head", with -1 for all heads of a layer and for all layers

function writeMap() {
  const map = byId("map");
  map.style.setProperty("--tall", mostHeads > 8 ? "15px" : "22px");
  map.style.gridTemplateColumns = `1.6rem repeat(${layers}, minmax(0, 1fr))`;
  const wide = layers > 12 ? 5 : 1; // every fifth layer is numbered
  for (let head = -1; head < mostHeads; ++head) {
    const row = document.createElement("div");
    row.setAttribute("role", "row");
    row.style.display = "contents";
    for (let layer = -1; layer < layers; ++layer) {
      const cell = document.createElement("button");
      cell.setAttribute("role", head < 0 ? "columnheader" : layer < 0 ? "rowheader" : "gridcell");
      cell.tabIndex = -1;
      cell.layer = layer;
      cell.head = head;
      if (head < 0 && layer < 0) {
        cell.textContent = "all";
        cell.className = "name";
        cell.title = "all heads";
      } else if (head < 0) {
        cell.className = "layer";
        cell.textContent = layer === 0 || (layer + 1) % wide === 0 ? layer + 1 : "";
        cell.title = `all heads of layer ${layer + 1}`;
        cell.setAttribute("aria-label", cell.title);
      } else if (layer < 0) {
        cell.textContent = head + 1;
        cell.className = "name";
        cell.disabled = true;
      }
      if (layer < 0 && head >= 0) {
        row.append(cell);
        continue;
      }
      if (layer >= 0 && head >= about.layers[layer].length) cell.style.visibility = "hidden";
      else cells.set(`${layer},${head}`, cell);
      row.append(cell);
    }
    map.append(row);
  }
}

function colourMap() {
  const name = byId("number").value;
  const [, form, logarithmic] = NUMBERS[name];
  const scale = logarithmic ? (x) => Math.log(Math.max(x, 0.5)) : (x) => x;
  const values = heads.map((head) => head[name]);
  const least = Math.min(...values), most = Math.max(...values);
  const span = scale(most) - scale(least) || 1;
  for (const [place, cell] of cells) {
    const [layer, head] = place.split(",").map(Number);
    if (layer < 0 || head < 0) continue;
    const value = about.layers[layer][head][name];
    const strength = 0.06 + 0.94 * ((scale(value) - scale(least)) / span);
    cell.style.backgroundColor = `rgba(var(--map), ${strength.toFixed(3)})`;
    cell.title = `layer ${layer + 1}, head ${head + 1}: ${form(value)}`;
    cell.setAttribute("aria-label", cell.title);
  }
  byId("least").textContent = form(least);
  byId("most").textContent = form(most);
}

function describeScope() {
  const [first, last] = scope();
  const mean = (name) => {
    let sum = 0;
    for (let head = first; head < last; ++head) sum += heads[head][name];
    return sum / (last - first);
  };
  const what = state.layer === null ? "All heads: a head keeps"
    : state.head === null ? `Layer ${state.layer + 1}: a head keeps`
    : `Layer ${state.layer + 1}, head ${state.head + 1}, keeps`;
  const alpha = heads[first].alpha;
  byId("numbers").textContent =
    `${what} ${digits(mean("keys"))} keys (${percent(mean("share"))} of those it sees), ` +
    `entropy ${digits(mean("entropy"))} nats, ${percent(mean("first"))} on the first key, ` +
    `mean distance ${digits(mean("distance"))}` +
    (last - first === 1 && alpha !== null ? `, α = ${alpha.toFixed(2)}.` : ".") +
    (mean("shown") < 0.995 ? ` Shown here: ${percent(mean("shown"))} of the weight.` : "");
}

function fill(select, choices) {
  select.replaceChildren(...choices.map(([value, label]) => {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = label;
    return option;
  }));
}

// ---- what is shown

function show() {
  const [first] = scope();
  document.documentElement.classList.toggle("readers", state.direction === "readers");
  for (const input of document.querySelectorAll("#direction input")) {
    input.checked = input.value === state.direction;
  }
  byId("layer").value = state.layer ?? "all";
  const count = state.layer === null ? 0 : about.layers[state.layer].length;
  fill(byId("head"), [["all", "all"], ...Array.from({ length: count }, (_, h) => [h, h + 1])]);
  byId("head").value = state.head ?? "all";
  byId("head").disabled = state.layer === null;
  const here = cells.get(`${state.layer ?? -1},${state.head ?? -1}`);
  for (const cell of cells.values()) {
    cell.tabIndex = cell === here ? 0 : -1;
    cell.classList.toggle("in", cell === here);
    cell.setAttribute("aria-selected", cell === here);
  }
  for (const span of text.querySelectorAll(".it")) {
    span.classList.remove("it");
    span.removeAttribute("aria-selected");
  }
  spans[state.token].classList.add("it");
  spans[state.token].setAttribute("aria-selected", "true");
  text.setAttribute("aria-activedescendant", `t${state.token}`);
  const found = weights();
  shade(found);
  drawStrip(found);
  list(found);
  describeScope();
  const place = new URLSearchParams({ token: state.token + 1 });
  if (state.layer !== null) place.set("layer", state.layer + 1);
  if (state.head !== null) place.set("head", state.head + 1);
  if (state.direction === "readers") place.set("direction", "readers");
  history.replaceState(null, "", `#${place}`);
}

function pick(layer, head) {
  state.layer = layer < 0 ? null : layer;
  state.head = layer < 0 || head < 0 ? null : head;
  show();
}

function select(token, scroll = true) {
  state.token = Math.max(0, Math.min(tokens - 1, token));
  show();
  if (scroll) spans[state.token].scrollIntoView({ block: "nearest" });
}

function turn() {
  state.direction = state.direction === "reads" ? "readers" : "reads";
  show();
}

// The token of the line above or below that is nearest to this one.
function acrossLines(step) {
  const box = (i) => spans[i].getClientRects()[0] ?? spans[i].getBoundingClientRect();
  const from = box(state.token);
  let line = null, best = state.token, least = Infinity;
  for (let i = state.token + step; i >= 0 && i < tokens; i += step) {
    const to = box(i);
    if (Math.abs(to.top - from.top) < 4) continue;
    line ??= to.top;
    if (Math.abs(to.top - line) >= 4) break;
    const away = Math.abs(to.left + to.width / 2 - from.left - from.width / 2);
    if (away < least) [least, best] = [away, i];
  }
  return best;
}

function listen() {
  text.addEventListener("click", (event) => {
    const span = event.target.closest("#text > span");
    if (span) select(span.index, false);
  });
  text.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const to = {
      ArrowLeft: () => select(state.token - 1),
      ArrowRight: () => select(state.token + 1),
      ArrowUp: () => select(acrossLines(-1)),
      ArrowDown: () => select(acrossLines(1)),
      Home: () => select(0),
      End: () => select(tokens - 1),
      r: turn,
      R: turn,
    }[event.key];
    if (!to) return;
    event.preventDefault();
    to();
  });
  byId("keys").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    select(button.index);
    text.focus({ preventScroll: true });
  });
  byId("map").addEventListener("click", (event) => {
    const cell = event.target.closest("button");
    if (!cell || cell.disabled) return;
    pick(cell.layer, cell.head);
    cell.focus();
  });
  byId("map").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in step)) return;
    event.preventDefault();
    const layer = (state.layer ?? -1) + step[event.key][0];
    const head = (layer < 0 ? -1 : state.head ?? -1) + step[event.key][1];
    const cell = cells.get(`${layer},${head}`);
    if (!cell) return;
    pick(layer, head);
    cell.focus();
  });
  byId("direction").addEventListener("change", (event) => {
    state.direction = event.target.value;
    show();
  });
  byId("layer").addEventListener("change", (event) => {
    const layer = event.target.value === "all" ? -1 : Number(event.target.value);
    const there = layer >= 0 && state.head !== null && state.head < about.layers[layer].length;
    pick(layer, there ? state.head : -1);
  });
  byId("head").addEventListener("change", (event) => {
    pick(state.layer, event.target.value === "all" ? -1 : Number(event.target.value));
  });
  byId("number").addEventListener("change", colourMap);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pick(-1, -1);
  });
  addEventListener("resize", () => drawStrip(weights()));
}

function readAddress() {
  const place = new URLSearchParams(location.hash.slice(1));
  const number = (name, most) => {
    const value = Number(place.get(name)) - 1;
    return Number.isInteger(value) && value >= 0 && value < most ? value : null;
  };
  state.token = number("token", tokens) ?? state.token;
  state.layer = number("layer", layers);
  if (state.layer !== null) state.head = number("head", about.layers[state.layer].length);
  if (place.get("direction") === "readers") state.direction = "readers";
}

async function begin() {
  if (typeof DecompressionStream === "undefined") {
    byId("facts").textContent =
      "This page needs DecompressionStream, which browsers have had since 2023.";
    return;
  }
  await unpack();
  byId("facts").textContent = about.facts;
  document.querySelector("main").hidden = false;
  writeText();
  writeMap();
  fill(byId("layer"), [["all", "all"], ...about.layers.map((_, l) => [l, l + 1])]);
  fill(byId("number"), Object.entries(NUMBERS).map(([name, [label]]) => [name, label]));
  byId("heads").open = matchMedia("(min-width: 821px)").matches;
  colourMap();
  readAddress();
  listen();
  const named = location.hash.includes("token=");
  show();
  if (named) spans[state.token].scrollIntoView({ block: "center" });
  document.body.dataset.ready = Math.round(performance.now());
}

begin();
