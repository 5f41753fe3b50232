// From series to plotly: colours of the style sheet, few enough points, and names that stay names.
const COLOURS = 10;
const DASHES = ["solid", "dot", "dashdot", "longdash", "longdashdot"];
const POINTS = 24000; // of one picture; a line has its share, at most MOST
const MOST = 1500;
const MARKS = 8000; // of snapshots in one picture

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colourOf = (number) => colour(`--run-${number % COLOURS}`);
const soft = (hex) => `${hex}38`;

// Plotly reads a little HTML in its texts: none of it may come from a run.
const plainText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const short = (value, digits = 4) => {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
};

const withError = ({ value, error }) => `${short(value)}${error ? ` ± ${short(error, 2)}` : ""}`;

// A long line keeps the lowest and the highest point of every stretch, so that no peak is lost.
const thin = (points, most) => {
  if (points.length <= most) return points;
  const kept = [];
  const width = (2 * points.length) / most;
  for (let start = 0; start < points.length; start += width) {
    const stretch = points.slice(Math.floor(start), Math.floor(start + width));
    const valued = stretch.filter((point) => point.value !== null);
    if (!valued.length) { kept.push(stretch[0]); continue; }
    const low = valued.reduce((best, point) => (point.value < best.value ? point : best));
    const high = valued.reduce((best, point) => (point.value > best.value ? point : best));
    kept.push(...(low === high ? [low] : low.step < high.step ? [low, high] : [high, low]));
  }
  if (kept[kept.length - 1] !== points[points.length - 1]) kept.push(points[points.length - 1]);
  return kept;
};

const axis = (title) => ({
  title: { text: title, standoff: 8 }, gridcolor: colour("--grid"), linecolor: colour("--rule"), zeroline: false, ticks: "",
  automargin: true, tickfont: { color: colour("--quiet"), size: 11 }, exponentformat: "power",
});

const layoutOf = (panel, shapes) => ({
  autosize: true, margin: { l: 50, r: 8, t: 8, b: 38 }, showlegend: false, hovermode: "closest", uirevision: panel.id + panel.log,
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
  font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
  hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font: { color: colour("--ink") }, align: "left" },
  xaxis: { ...axis("step"), rangemode: "nonnegative" },
  yaxis: { ...axis(""), type: panel.log ? "log" : "linear" },
  shapes,
});

const traceOf = (line, points) => ({
  type: "scatter", mode: points.length < 2 ? "markers" : "lines", name: plainText(line.label),
  x: points.map((point) => point.step), y: points.map((point) => point.value), connectgaps: false,
  text: points.map((point) => withError(point) + (point.remark ? `<br>${plainText(point.remark)}` : "")),
  line: { color: line.colour, width: line.goal ? 1.3 : 1.7, dash: line.dash }, marker: { color: line.colour, size: 5 },
  hovertemplate: "%{fullData.name}<br>step %{x}: %{text}<extra></extra>",
});

// A logarithmic axis has no place for zero: the line has a gap there, and a band that reaches it is left out.
const positive = (point) => (point.value > 0 ? point : { ...point, value: null });

const bandOf = (line, points, log) => {
  const sure = points.filter((point) => point.value !== null && point.error !== null && (!log || point.value > point.error));
  const back = [...sure].reverse();
  return {
    type: "scatter", mode: "lines", fill: "toself", fillcolor: soft(line.colour), line: { width: 0 }, hoverinfo: "skip",
    x: [...sure, ...back].map((point) => point.step),
    y: [...sure.map((point) => point.value + point.error), ...back.map((point) => point.value - point.error)],
  };
};

const eventShapes = (events, alone) => events.slice(-60).map((event, _, all) => ({
  type: "line", x0: event.step, x1: event.step, xref: "x", y0: 0, y1: 1, yref: "paper", layer: "below", opacity: 0.6,
  line: { color: alone ? colour("--quiet") : colourOf(event.run.colour), width: 1, dash: "dot" },
  ...(all.length <= 6 ? { label: { text: plainText(event.name.slice(0, 40)), textangle: -90, textposition: "end",
    xanchor: "right", yanchor: "top", padding: 3, font: { size: 10, color: colour("--quiet") } } } : {}),
}));

const goalShape = (value) => ({
  type: "line", x0: 0, x1: 1, xref: "paper", y0: value, y1: value, yref: "y", line: { color: colour("--goal"), width: 1.2, dash: "dash" },
});

const CONFIG = { responsive: true, displayModeBar: false, scrollZoom: false };

const draw = (panel, lines, events, alone) => {
  const most = Math.max(60, Math.min(MOST, Math.floor(POINTS / Math.max(1, lines.length))));
  const traces = [];
  for (const line of lines) {
    if (line.cloud) { traces.push(line.cloud); continue; }
    const points = thin(panel.log ? line.points.map(positive) : line.points, most);
    if (line.band && points.some((point) => point.error)) traces.push(bandOf(line, points, panel.log));
    traces.push(traceOf(line, points));
  }
  const shapes = [...(panel.events ? eventShapes(events, alone) : []), ...(panel.goal === undefined ? [] : [goalShape(panel.goal)])];
  return Plotly.react(panel.plot, traces, layoutOf(panel, shapes), CONFIG);
};
