// What is shown together: a panel takes the quantities it is about; every other quantity gets a panel of its own.
const THRESHOLDS = {
  gradient_descent_threshold: "2 / learning rate",
  stability_threshold: "the optimiser's threshold",
  batch_threshold: "2ρ / learning rate of the batch",
};
// "test/top_eigenvalues:num=3" is about top_eigenvalues
const about = (name) => name.split(":")[0].split("/").pop();
const named = (...words) => (name) => words.includes(about(name));
const matching = (pattern) => (name) => pattern.test(about(name));

const PANELS = [
  { id: "loss", title: "Loss", takes: matching(/(^|_)loss$/), log: true, events: true },
  { id: "sharpness", title: "Sharpness against its thresholds", events: true,
    takes: named("sharpness", "preconditioned_sharpness", ...Object.keys(THRESHOLDS)) },
  { id: "ratio", title: "Stability ratio: unstable above 1", takes: named("stability_ratio"), goal: 1 },
  { id: "jacobian", title: "Jacobian norms", takes: matching(/jacobian|^n?mls$/) },
  { id: "impurity", title: "Impurity", takes: matching(/impurity/) },
  { id: "spectrum", title: "Spectrum", takes: matching(/eigenvalues|singular_values/) },
  { id: "overhead", title: "Tracking time for each second of training", takes: named("tracking_overhead"), log: true },
];
const isHome = (name) => PANELS.some((panel) => panel.takes(name));

const element = (kind, attributes = {}, ...inside) => {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
};
const byId = (id) => document.getElementById(id);

const mount = (panel, place) => {
  panel.key = element("ul", { class: "key" });
  panel.plot = element("div", { class: "plot", role: "img", "aria-label": panel.title });
  const scale = element("button", { type: "button", title: "logarithmic or linear axis" }, panel.log ? "linear" : "log");
  scale.addEventListener("click", () => {
    panel.log = !panel.log;
    scale.textContent = panel.log ? "linear" : "log";
    drawPanel(panel);
  });
  const top = element("div", {}, element("h2", {}, panel.title), scale);
  panel.figure = element("figure", { class: "panel", "data-panel": panel.id }, top, panel.key, panel.plot);
  place.append(panel.figure);
};

const labelOf = (name, part) => `${THRESHOLDS[about(name)] || name.replaceAll("_", " ")}${part ? ` ${part}` : ""}`;

// The optimiser's own threshold is the plain one without momentum: then one line says both.
const isRepeated = (run, series) => {
  if (about(series.name) !== "stability_threshold") return false;
  const plain = run.series.get(seriesKey(series.name.replace("stability_threshold", "gradient_descent_threshold"), ""));
  return plain !== undefined && pointsOf(series).every((point) => plain.points.get(point.step)?.value === point.value);
};

// One run: a colour for each quantity. Several: a colour for each run, and dashes for the quantities.
const linesOf = (panel, chosen) => {
  const alone = chosen.length === 1;
  const quantities = [];
  const lines = [];
  for (const run of chosen) {
    for (const series of run.series.values()) {
      if (!panel.takes(series.name) || isRepeated(run, series)) continue;
      const label = labelOf(series.name, series.part);
      const goal = about(series.name) in THRESHOLDS;
      const group = labelOf(series.name, series.part && panel.id === "spectrum" ? "" : series.part);
      if (!quantities.includes(group)) quantities.push(group);
      const place = quantities.indexOf(group);
      const tone = !alone ? colourOf(run.colour) : goal ? colour("--goal") : colourOf(place);
      const dash = goal ? ["dash", "longdashdot", "dot"][Object.keys(THRESHOLDS).indexOf(about(series.name))]
        : alone ? "solid" : DASHES[place % DASHES.length];
      lines.push({ label: alone ? label : `${run.label} · ${label}`, group, colour: tone, dash, goal, band: alone && !goal,
        points: pointsOf(series) });
    }
    if (panel.id === "spectrum") lines.push(...cloudsOf(run, chosen.length));
  }
  return lines;
};

// Snapshots: every value of a vector, above the step at which it was taken; with many runs, of every second step or so.
const cloudsOf = (run, numRuns) => [...run.snapshots.entries()].filter(([, taken]) => taken.size).map(([name, taken]) => {
  const num = [...taken.values()].reduce((sum, values) => sum + values.length, 0);
  const stride = Math.ceil((num * numRuns) / MARKS);
  const kept = [...taken.keys()].sort((one, other) => one - other).reverse().filter((_, place) => place % stride === 0);
  const all = kept.flatMap((step) => taken.get(step).map((value) => [step, value]));
  const alone = numRuns === 1;
  const tone = colourOf(alone ? 5 : run.colour);
  const label = alone ? name : `${run.label} · ${name}`;
  return { label, group: `${name} (snapshots)`, colour: tone, dash: "solid", cloud: {
    type: "scatter", mode: "markers", name: plainText(label), x: all.map((pair) => pair[0]), y: all.map((pair) => pair[1]),
    marker: { symbol: "line-ew-open", size: 7, color: tone, opacity: 0.55, line: { width: 1 } },
    hovertemplate: "%{fullData.name}<br>step %{x}: %{y:.4g}<extra></extra>" } };
});

const showKey = (panel, lines, alone) => {
  const seen = new Map();
  for (const line of lines) if (!seen.has(line.group)) seen.set(line.group, line);
  const entries = [...seen.values()].slice(0, 12).map((line) => {
    const stroke = element("i");
    stroke.style.borderTopStyle = { solid: "solid", dot: "dotted" }[line.dash] || "dashed";
    stroke.style.borderTopColor = alone ? line.colour : colour("--quiet");
    return element("li", {}, stroke, line.group);
  });
  panel.key.replaceChildren(...entries);
};

const drawPanel = (panel) => {
  const chosen = chosenRuns();
  const lines = linesOf(panel, chosen);
  panel.figure.hidden = !lines.length;
  if (!lines.length) return null;
  showKey(panel, lines, chosen.length === 1);
  panel.figure.dataset.lines = lines.length;
  panel.figure.dataset.points = lines.reduce((sum, line) => sum + (line.points ? line.points.length : line.cloud.x.length), 0);
  const events = chosen.flatMap((run) => [...run.events.values()]).sort((one, other) => one.step - other.step);
  return draw(panel, lines, events, chosen.length === 1);
};

const others = new Map(); // a panel for each quantity without a home
const drawOthers = () => {
  const names = new Set(chosenRuns().flatMap((run) => [...run.series.values()].map((series) => series.name)).filter((name) => !isHome(name)));
  byId("others").hidden = !names.size;
  byId("others-tally").textContent = `(${names.size})`;
  if (!byId("others").open) return;
  for (const name of [...names].sort()) {
    if (!others.has(name)) {
      others.set(name, { id: `other ${name}`, title: name.replaceAll("_", " "), takes: (other) => other === name, log: false });
      mount(others.get(name), byId("other-panels"));
    }
  }
  for (const panel of others.values()) drawPanel(panel);
};
