// Curves to zoom in: a chart of uPlot in place of each drawing, with the points of the range that it shows.
"use strict";
(() => {
  const tools = document.querySelector(".chart-tools");
  if (!tools || typeof uPlot === "undefined") return;
  const MOST_POINTS = 1500, HEIGHT = 260, DASHES = [[], [7, 4], [2, 3]];
  const COLOURS = ["--line", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7a6fd0", "#8a9199"];
  const HELD_OUT = ["#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const charts = new Map();
  const view = { first: null, last: null, mean: 1, log: false };
  let whole = null;

  const colour = (name) =>
    name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;
  const exact = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 6 }));
  const short = (value) => {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e13)) return value.toExponential(1).replace(".0e", "e");
    const [unit, suffix] = [[1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([least]) => size >= least) ?? [1, ""];
    return `${+(value / (suffix === "k" ? 1e3 : unit)).toPrecision(4)}${suffix}`;
  };

  async function points(run, metric, more = {}) {
    const query = new URLSearchParams({ names: metric, points: MOST_POINTS, ...more });
    if (view.first !== null) query.set("first", Math.max(0, Math.floor(view.first)));
    if (view.last !== null) query.set("last", Math.max(1, Math.ceil(view.last)));
    const answer = await fetch(`/api/v1/runs/${encodeURIComponent(run)}/metrics?${query}`);
    if (!answer.ok) throw new Error(`${answer.status}`);
    const found = await answer.json();
    const pairs = found.step.map((step, index) => [step, found[metric][index]]).filter(([, value]) => value !== null);
    return pairs.sort((one, other) => one[0] - other[0]);
  }

  // Curves of one chart, the fainter first: label, points and style.
  async function curvesOf({ runs, metric, marks, heldOut }) {
    const asked = [];
    const isOne = runs.length === 1;
    if (isOne && marks.some(([, css]) => css === "restart"))
      asked.push({ label: "lost work", colour: "--lost", width: 0, dots: true, found: points(runs[0], metric, { lost: true }) });
    runs.forEach((run, index) => {
      const style = { colour: COLOURS[index % COLOURS.length], dash: DASHES[Math.floor(index / COLOURS.length) % 3] };
      const label = isOne ? metric.replaceAll("_", " ") : run;
      const isFaint = view.mean > 1;
      asked.push({ ...style, label: isFaint ? `${label}, each step` : label, isFaint, found: points(run, metric) });
      if (isFaint)
        asked.push({ ...style, label: `${label}, mean of ${view.mean.toLocaleString("en")}`,
          found: points(run, metric, { mean: view.mean }) });
    });
    const inside = ([step]) => step >= (view.first ?? -Infinity) && step <= (view.last ?? Infinity);
    heldOut.forEach(([label, all], index) =>
      asked.push({ label, colour: HELD_OUT[index % 4], dash: [5, 3], dots: true, found: all.filter(inside) }));
    for (const curve of asked) curve.points = await curve.found;
    return asked.filter((curve) => curve.points.length);
  }

  // Places of the nearest value of each curve: those of several runs are not at the same steps.
  function nearest(plot, series, hovered) {
    if (series === 0) return hovered;
    const values = plot.data[series];
    for (let away = 0; away < values.length; away++) {
      if (values[hovered - away] != null) return hovered - away;
      if (values[hovered + away] != null) return hovered + away;
    }
    return hovered;
  }

  function drawBehind(plot, facts) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = colour("--line");
    ctx.globalAlpha = 0.13;
    for (const [low, high] of facts.bands) {
      const top = plot.valToPos(high, "y", true), bottom = plot.valToPos(low, "y", true);
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
    }
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour("--soft");
    const across = facts.rules.map(([value]) => [plot.valToPos(value, "y", true), [2, 4]]);
    for (const [at, dash] of across) line(ctx, bbox.left, at, bbox.left + bbox.width, at, dash);
    for (const [step, css] of facts.marks) {
      const at = plot.valToPos(step, "x", true), bottom = bbox.top + bbox.height;
      ctx.strokeStyle = css === "restart" ? "#d55e00" : colour("--soft");
      line(ctx, at, css === "restart" ? bbox.top : bottom - 10, at, bottom, css === "restart" ? [4, 3] : []);
    }
    ctx.restore();
  }

  function line(ctx, x, y, toX, toY, dash) {
    ctx.setLineDash(dash);
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(toX, toY);
    ctx.stroke();
  }

  function options(holder, facts, curves) {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false },
      font: "12px system-ui, sans-serif", values: (_, found) => found.map(short) };
    return {
      width: holder.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false, setScale: false }, dataIdx: nearest,
        bind: { dblclick: () => () => { show(null, null); return null; } } },
      scales: { x: { time: false }, y: { distr: view.log ? 3 : 1 } },
      axes: [axis, { ...axis, size: 58 }],
      series: [
        { label: "step", value: (_, step) => exact(step) },
        ...curves.map((curve) => ({
          label: curve.label,
          stroke: colour(curve.colour) + (curve.isFaint ? "55" : ""),
          width: curve.width ?? (curve.isFaint ? 1 : 1.75),
          dash: curve.dash,
          spanGaps: true,
          points: { show: curve.dots ?? curve.points.length === 1, size: 5 },
          value: (_, value) => exact(value),
        })),
      ],
      hooks: {
        drawAxes: [(plot) => drawBehind(plot, facts)],
        setSelect: [(plot) => {
          const { left, width } = plot.select;
          if (width < 4) return;
          const [first, last] = [left, left + width].map((at) => plot.posToVal(at, "x"));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          show(first, last);
        }],
      },
    };
  }

  function draw(holder, facts, curves) {
    const tables = curves.map((curve) => {
      const shown = view.log ? curve.points.filter(([, value]) => value > 0) : curve.points;
      return [shown.map(([step]) => step), shown.map(([, value]) => value)];
    });
    const chart = charts.get(holder);
    chart.plot?.destroy();
    chart.plot = new uPlot(options(holder, facts, curves), uPlot.join(tables), holder);
    chart.plot.ctx.canvas.setAttribute("role", "img");
    chart.plot.ctx.canvas.setAttribute("aria-label", facts.title);
    holder.classList.add("is-live");
    if (facts.runs.length > 1) holder.closest("figure")?.querySelector("figcaption")?.setAttribute("hidden", "");
    const steps = tables.flatMap(([found]) => [found[0], found[found.length - 1]]).filter((step) => step != null);
    if (view.first === null && view.last === null && steps.length)
      whole = [Math.min(whole?.[0] ?? Infinity, ...steps), Math.max(whole?.[1] ?? -Infinity, ...steps)];
  }

  async function load(holder) {
    const chart = charts.get(holder), number = ++chart.number;
    try {
      const curves = await curvesOf(chart.facts);
      if (number === chart.number && curves.length) draw(holder, chart.facts, curves);
    } catch { /* the drawing, or the range of before, stays */ }
  }

  function loadAll() {
    for (const holder of document.querySelectorAll("[data-chart]")) {
      if (!charts.has(holder)) {
        charts.set(holder, { facts: JSON.parse(holder.dataset.chart), number: 0, plot: null });
        holder.setAttribute("data-keep", "");
        new ResizeObserver(() => charts.get(holder).plot?.setSize({ width: holder.clientWidth, height: HEIGHT })).observe(holder);
      }
      load(holder);
    }
    tools.hidden = charts.size === 0;
  }

  function show(first, last) {
    const isWhole = first === null || (whole && first <= whole[0] && last >= whole[1]) || last - first < 1;
    [view.first, view.last] = isWhole ? [null, null] : [Math.max(0, first), last];
    keep();
    loadAll();
  }

  function keep() {
    const range = view.first === null ? null : [Math.floor(view.first), Math.ceil(view.last)];
    const state = new URLSearchParams();
    if (range) state.set("steps", range.join("-"));
    if (view.mean > 1) state.set("mean", view.mean);
    if (view.log) state.set("log", "1");
    history.replaceState(null, "", `${location.pathname}${location.search}${state.size ? `#${state}` : ""}`);
    tools.elements.range.value = range ? `Steps ${range.map((step) => step.toLocaleString("en")).join(" to ")}` : "All steps";
  }

  function move(about, by) {
    const [first, last] = view.first === null ? whole ?? [0, 1] : [view.first, view.last];
    const middle = (first + last) / 2 + about * (last - first), half = ((last - first) * by) / 2;
    const low = Math.max(whole?.[0] ?? 0, middle - half);
    show(low, Math.min(whole?.[1] ?? Infinity, Math.max(middle + half, low + 2 * half)));
  }

  function begin() {
    const state = new URLSearchParams(location.hash.slice(1)), steps = /^(\d+)-(\d+)$/.exec(state.get("steps") ?? "");
    if (steps && +steps[1] < +steps[2]) [view.first, view.last] = [+steps[1], +steps[2]];
    view.mean = [...tools.elements.mean.options].some(({ value }) => value === state.get("mean")) ? +state.get("mean") : 1;
    view.log = state.has("log");
    [tools.elements.mean.value, tools.elements.log.checked] = [view.mean, view.log];
    const actions = { in: () => move(0, 0.5), out: () => move(0, 2), earlier: () => move(-0.5, 1), later: () => move(0.5, 1),
      all: () => show(null, null) };
    tools.addEventListener("click", ({ target }) => actions[target.name]?.());
    tools.addEventListener("change", () => {
      [view.mean, view.log] = [+tools.elements.mean.value, tools.elements.log.checked];
      keep();
      loadAll();
    });
    tools.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("page-changed", loadAll);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", loadAll);
    keep();
    loadAll();
  }

  begin();
})();
