// Draws every figure of the page with the colours of its style sheet when it comes near, and again when these change.
(() => {
  "use strict";
  if (!window.Plotly) return;
  const resolve = (value, look) => {
    if (Array.isArray(value)) {
      const plain = typeof value[0] === "number" && typeof value.at(-1) === "number"; // long lists of numbers stay as they are
      return plain ? value : value.map((entry) => resolve(entry, look));
    }
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, resolve(entry, look)]));
    const name = typeof value === "string" && /^var\((--[a-z-]+)\)$/.exec(value);
    return name ? look.getPropertyValue(name[1]).trim() : value;
  };
  const draw = (place) => {
    const figure = resolve(JSON.parse(place.nextElementSibling.textContent), getComputedStyle(document.documentElement));
    figure.layout.font.family = getComputedStyle(place).fontFamily;
    if (place.clientWidth < 480) {
      figure.layout.font.size = 12;
      figure.layout.margin.l = 46;
      figure.layout.margin.r = 4;
    }
    Plotly.react(place, figure.data, figure.layout, { responsive: true, displayModeBar: false, scrollZoom: false });
  };
  const places = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  const near = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting || drawn.has(target)) continue;
        drawn.add(target);
        draw(target);
      }
    },
    { rootMargin: "800px" }
  );
  for (const place of places) near.observe(place);
  const again = () => drawn.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    for (const place of places) drawn.add(place);
    again();
  });
  addEventListener("afterprint", again);
})();
