// What is known of each run, and how news are fetched: the list always, the rows of chosen runs when their file has changed.
const runs = new Map();
const CHOSEN_AT_ONCE = 24;
const SNAPSHOTS = 40; // of one array, evenly spread over the steps
const chosenRuns = () => [...runs.values()].filter((run) => run.chosen);
const seriesKey = (name, part) => `${name}\u0000${part}`;

const forget = (run) => Object.assign(run, {
  series: new Map(), events: new Map(), arrays: new Map(), snapshots: new Map(), stamp: null, num: 0,
  last: { rows: 0, events: 0, arrays: 0 },
});

const ask = async (path, query = {}) => {
  const reply = await fetch(`${path}?${new URLSearchParams(query)}`, { cache: "no-store" });
  if (!reply.ok) return { trouble: await reply.text() };
  return reply.json();
};

const meet = (told) => {
  const run = runs.get(told.key) || forget({ chosen: false, colour: -1, trouble: "" });
  runs.set(told.key, Object.assign(run, { told, key: told.key, label: told.label }));
};

const pointsOf = (series) => {
  if (!series.sorted) {
    series.sorted = [...series.points.entries()].map(([step, point]) => ({ step, ...point })).sort((one, other) => one.step - other.step);
  }
  return series.sorted;
};

const keep = (run, news) => {
  for (const [step, name, part, value, error, remark] of news.rows) {
    const key = seriesKey(name, part);
    if (!run.series.has(key)) run.series.set(key, { name, part, points: new Map() });
    const series = run.series.get(key);
    if (!series.points.has(step)) run.num += 1;
    series.points.set(step, { value, error, remark });
    series.sorted = null;
  }
  for (const [step, name, text] of news.events) run.events.set(`${step} ${name}`, { step, name, text, run });
  for (const [step, name] of news.arrays) {
    if (!run.arrays.has(name)) run.arrays.set(name, new Set());
    run.arrays.get(name).add(step);
    run.snapshots.get(name)?.delete(step); // written again
  }
  run.last = news.last;
};

const numArrays = (run) => [...run.arrays.values()].reduce((sum, steps) => sum + steps.size, 0);
const isWhole = (run, held) => run.num === held.rows && run.events.size === held.events && numArrays(run) === held.arrays;

// True if there was anything new. A run that was rewound holds less than we do: then we begin again.
const follow = async (run) => {
  const stamp = run.told.stamp;
  if (!stamp || run.stamp === stamp) return false;
  for (let again = true; again;) {
    const news = await ask("news", { key: run.key, ...run.last });
    run.trouble = news.trouble || "";
    if (news.trouble) return true;
    keep(run, news);
    again = news.more;
    if (!news.more && !isWhole(run, news.held)) { forget(run); return true; }
  }
  await Promise.all([...run.arrays.keys()].filter((name) => name !== "trajectory").map((name) => photograph(run, name)));
  run.stamp = stamp;
  return true;
};

const photograph = async (run, name) => {
  const steps = [...run.arrays.get(name)].sort((one, other) => one - other);
  const stride = Math.max(1, (steps.length - 1) / (SNAPSHOTS - 1));
  const wanted = new Set();
  for (let place = 0; place <= steps.length - 1 + 1e-9; place += stride) wanted.add(steps[Math.round(place)]);
  const had = run.snapshots.get(name) || new Map();
  const taken = new Map([...had].filter(([step]) => wanted.has(step)));
  for (const step of wanted) {
    if (taken.has(step)) continue;
    const found = await ask("array", { key: run.key, step, name });
    if (!found.values) break; // no vector, or no longer there
    taken.set(step, found.values);
  }
  run.snapshots.set(name, taken);
};
