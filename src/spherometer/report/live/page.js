// The list of runs, the cards, the events, and the pulse that keeps everything up to date.
const EVERY = 1000;
let folder = "";
let met = false; // the first run

// lr0.05 before lr0.1 before lr0.15, and seed2 before seed10
const words = (label) => label.split(/(\d+(?:\.\d+)?)/).map((word, place) => (place % 2 ? Number(word) : word));
const inOrder = (one, other) => {
  const [left, right] = [words(one.label), words(other.label)];
  const place = left.findIndex((word, index) => word !== right[index]);
  if (place < 0) return left.length - right.length;
  return right[place] === undefined || left[place] > right[place] ? 1 : -1;
};
const ordered = () => [...runs.values()].sort(inOrder);

const freeColour = () => {
  const used = new Set(chosenRuns().map((run) => run.colour));
  for (let number = 0; ; number += 1) if (!used.has(number)) return number;
};

const choose = (run, wanted) => {
  if (wanted === run.chosen) return;
  if (wanted && chosenRuns().length >= CHOSEN_AT_ONCE) {
    say(`${CHOSEN_AT_ONCE} runs are shown at most: take some away to see others`);
    return;
  }
  if (wanted) run.colour = freeColour();
  run.chosen = wanted;
  if (!wanted) forget(run);
};

const say = (text) => {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
};

const remember = () => history.replaceState(null, "", `#${chosenRuns().map((run) => run.key).join(",")}`);

// At first: what the address names; else what is running; else what was started last.
const chooseAtFirst = () => {
  const all = ordered();
  const asked = location.hash.slice(1).split(",").filter((key) => runs.has(key));
  const going = all.filter((run) => run.told.state === "running").slice(0, 6);
  const newest = all.reduce((best, run) => ((run.told.started || 0) > (best.told.started || 0) ? run : best), all[0]);
  for (const run of asked.length ? asked.map((key) => runs.get(key)) : going.length ? going : [newest]) choose(run, true);
};

const fits = (run) => {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const text = `${run.told.label} ${run.told.title} ${run.told.state}`.toLowerCase();
  return words.every((word) => text.includes(word));
};

const stateLine = (run) => {
  const { state, step, message } = run.told;
  const trouble = run.trouble || (state === "unreadable" || state === "failed" ? message : "");
  const line = element("span", { class: "state", "data-state": state }, element("b", {}, state));
  if (step !== null) line.append(` · step ${step}`);
  if (trouble) line.append(` · ${trouble}`);
  return line;
};

const entryOf = (run) => {
  if (!run.entry) {
    run.box = element("input", { type: "checkbox" });
    run.box.addEventListener("change", () => { say(""); choose(run, run.box.checked); chosenAnew(); });
    run.swatch = element("span", { class: "swatch" });
    run.entry = element("li", { "data-key": run.key }, element("label", {}, run.box, run.swatch, element("span", { class: "name" }, run.label)));
  }
  const line = stateLine(run);
  const label = run.entry.firstChild;
  if (label.childNodes.length > 3) label.lastChild.replaceWith(line); else label.append(line);
  run.entry.title = run.told.title;
  run.entry.hidden = !fits(run);
  run.box.checked = run.chosen;
  run.swatch.style.background = run.chosen ? colourOf(run.colour) : "none";
  return run.entry;
};

const showList = () => {
  const all = ordered();
  const list = byId("runs");
  const entries = all.map(entryOf);
  if (entries.length !== list.childNodes.length || entries.some((entry, place) => entry !== list.childNodes[place])) list.replaceChildren(...entries);
  const shown = all.filter(fits).length;
  byId("tally").textContent = shown === all.length ? `(${all.length})` : `(${shown} of ${all.length})`;
  byId("waiting").hidden = all.length > 0 && chosenRuns().length > 0;
  byId("waiting").textContent = all.length ? "Choose runs in the list." : `No run in ${folder} yet: waiting for the first.`;
};

const newestOf = (run, ...names) => {
  for (const name of names) {
    const points = run.series.has(seriesKey(name, "")) ? pointsOf(run.series.get(seriesKey(name, ""))) : [];
    if (points.length) return points[points.length - 1];
  }
  return null;
};

const NUMBERS = [
  ["loss", (run) => newestOf(run, "training_loss", "loss", "train_loss", "batch_loss")],
  ["sharpness", (run) => newestOf(run, "sharpness")],
  ["2 / lr", (run) => newestOf(run, "gradient_descent_threshold")],
  ["stability ratio", (run) => newestOf(run, "stability_ratio")],
  ["overhead", (run) => newestOf(run, "tracking_overhead")],
];

const cardOf = (run) => {
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = colourOf(run.colour);
  const numbers = element("dl");
  for (const [name, find] of NUMBERS) {
    const point = find(run);
    if (!point) continue;
    const shown = name === "overhead" ? `${(100 * point.value).toFixed(1)} %` : withError(point);
    numbers.append(element("div", {}, element("dt", {}, name), element("dd", {}, shown)));
  }
  const title = run.told.title ? [element("p", { class: "state" }, run.told.title)] : [];
  return element("div", { class: "card" }, element("p", { class: "name" }, swatch, element("span", {}, run.label)), element("p", {}, stateLine(run)), ...title, numbers);
};

const showEvents = () => {
  const chosen = chosenRuns();
  const all = chosen.flatMap((run) => [...run.events.values()]).sort((one, other) => other.step - one.step);
  byId("happened").hidden = !all.length;
  byId("events").replaceChildren(...all.slice(0, 200).map((event) => {
    const whose = chosen.length > 1 ? [element("span", { class: "state" }, ` ${event.run.label}`)] : [];
    const words = element("p", {}, element("b", {}, event.name), ...whose, event.text ? `: ${event.text}` : "");
    return element("li", {}, element("span", { class: "state" }, `step ${event.step}`), words);
  }));
};

const showAll = async () => {
  byId("cards").replaceChildren(...chosenRuns().sort(inOrder).map(cardOf));
  showEvents();
  await Promise.all(PANELS.map(drawPanel));
  drawOthers();
  const rows = chosenRuns().reduce((sum, run) => sum + run.num, 0);
  Object.assign(document.documentElement.dataset, { rows, chosen: chosenRuns().length, runs: runs.size });
};

const pulse = async () => {
  const told = await ask("runs");
  folder = told.folder;
  byId("folder").textContent = folder;
  document.title = `${folder} · Spherometer`;
  const before = JSON.stringify([...runs.values()].map((run) => [run.key, run.told.state, run.chosen]));
  const there = new Set(told.runs.map((entry) => entry.key));
  for (const key of runs.keys()) if (!there.has(key)) runs.delete(key);
  told.runs.forEach(meet);
  if (!met && runs.size) { met = true; chooseAtFirst(); }
  showList();
  const news = await Promise.all(chosenRuns().map(follow));
  const after = JSON.stringify([...runs.values()].map((run) => [run.key, run.told.state, run.chosen]));
  if (news.some(Boolean) || before !== after) await showAll();
  const going = told.runs.filter((entry) => entry.state === "running").length;
  byId("pulse").textContent = `${told.runs.length} run${told.runs.length === 1 ? "" : "s"}, ${going} running · ${new Date().toLocaleTimeString()}`;
  byId("pulse").classList.remove("lost");
};

let busy = null;
let rested = 0; // when the next beat may come: a page with much to draw leaves time for its reader
const beat = () => {
  const began = performance.now();
  busy = busy || pulse().catch((error) => {
    byId("pulse").textContent = error instanceof TypeError ? "the page's server has gone; start it again" : String(error);
    byId("pulse").classList.add("lost");
  }).finally(() => {
    busy = null;
    rested = performance.now() + 2 * (performance.now() - began);
  });
  return busy;
};
const chosenAnew = async () => { remember(); showList(); await busy; await showAll(); await beat(); };

byId("filter").addEventListener("input", showList);
byId("choose").addEventListener("click", () => {
  say("");
  const all = ordered();
  for (const run of all) if (!fits(run)) choose(run, false);
  for (const run of all) if (fits(run)) choose(run, true);
  chosenAnew();
});
byId("clear").addEventListener("click", () => { say(""); for (const run of runs.values()) choose(run, false); chosenAnew(); });
byId("others").addEventListener("toggle", drawOthers);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { showList(); showAll(); });
if (matchMedia("(max-width: 50rem)").matches) byId("drawer").open = false;
for (const panel of PANELS) mount(panel, byId("panels"));
for (const panel of PANELS) panel.figure.hidden = true;
beat();
setInterval(() => { if (!document.hidden && performance.now() > rested) beat(); }, EVERY);
document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); });
