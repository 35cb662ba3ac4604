"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const HEIGHT = { wide: 300, usual: 220 };
  const PRINT_WIDTH = { wide: 680, usual: 320 };
  const COLOURS = 8;
  const charts = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const lineColour = (n) => colour(`c${n % COLOURS}`);
  const at = (path) => path.reduce((found, key) => found[key], data);
  const shown = (value, digits) =>
    value == null ? "–" : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return `${+value.toFixed(2)}`;
  };

  // uPlot's own form: least step in seconds, text, then what is added when the year, day or minute changes.
  const CLOCK = [
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
  ];

  // Line n of a stack is drawn at the sum of the lines up to n; an unknown counts as nothing where another is known.
  function stacked(lines) {
    const sums = lines[0].map(() => null);
    return lines.map((line) =>
      line.map((value, i) => {
        if (value != null) sums[i] = (sums[i] ?? 0) + value;
        return sums[i];
      }),
    );
  }

  function drawMarks(u) {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    let free = -Infinity;
    ctx.save();
    ctx.font = `${10 * ratio}px sans-serif`;
    ctx.lineWidth = ratio;
    for (const mark of data.marks) {
      const x = Math.round(u.valToPos(mark.time, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.kind) || colour("ink");
      ctx.setLineDash(mark.kind === "diagnosis" ? [2 * ratio, 3 * ratio] : [5 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = String(mark.number);
      const width = ctx.measureText(text).width;
      if (x - width / 2 > free + 2 * ratio) {
        ctx.textAlign = "center";
        ctx.fillText(text, x, bbox.top - 3 * ratio);
        free = x + width / 2;
      }
    }
    ctx.restore();
  }

  function axes(chart) {
    const common = {
      stroke: () => colour("soft"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { stroke: () => colour("grid"), width: 1 },
      font: "11px system-ui, sans-serif",
    };
    return [{ ...common, values: CLOCK }, { ...common, size: 46, values: (_, splits) => splits.map((v) => short(v * (chart.factor ?? 1))) }];
  }

  function timeOptions(chart, known) {
    const digits = chart.factor === 100 || chart.unit === "requests" ? 1 : 0;
    const series = chart.lines.map((line, n) => ({
      label: line.label,
      stroke: () => lineColour(n),
      width: chart.stacked ? 1 : 1.75,
      dash: line.dashed ? [6, 4] : undefined,
      fill: chart.stacked ? () => `color-mix(in srgb, ${lineColour(n)} 62%, ${colour("card")})` : undefined,
      value: (_, __, ___, i) => (i == null ? "–" : shown(known[n][i] == null ? null : known[n][i] * chart.factor, digits)),
      points: { show: data.time.length < 3 },
    }));
    return {
      tzDate: (time) => uPlot.tzDate(new Date(time * 1e3), "Etc/UTC"),
      cursor: { sync: { key: "time" }, drag: { x: true, y: false } },
      scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] } },
      series: [{ label: "time", value: (_, v) => (v == null ? "–" : new Date(v * 1e3).toISOString().slice(5, 19).replace("T", " ")) }, ...series],
      hooks: { draw: [drawMarks] },
    };
  }

  function timeChart(chart) {
    const known = chart.lines.map((line) => at(line.path));
    const options = timeOptions(chart, known);
    if (!chart.stacked) return { options, values: [data.time, ...known] };
    // The highest sum is drawn first, so that the lower ones lie on it.
    options.series = [options.series[0], ...options.series.slice(1).reverse()];
    return { options, values: [data.time, ...stacked(known).reverse()] };
  }

  function lengthsChart() {
    const { most_tokens: most, completions } = data.work.lengths;
    const options = {
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false, range: () => [-0.6, most.length - 0.4] }, y: { range: (_, __, top) => [0, top * 1.08 || 1] } },
      series: [
        { label: "tokens up to", value: (_, v) => (v == null ? "–" : shown(most[v], 0)) },
        { label: "completions", stroke: () => lineColour(0), fill: () => lineColour(0), paths: uPlot.paths.bars({ size: [0.8, 64] }), points: { show: false }, value: (_, v) => shown(v, 0) },
      ],
    };
    return { options, values: [most.map((_, i) => i), completions], ticks: most };
  }

  function widthOf(place) {
    return Math.max(200, Math.floor(place.clientWidth));
  }

  function show(id, title, chart, { options, values, ticks }) {
    const place = document.getElementById(`chart-${id}`);
    const wide = place.closest(".wide") !== null;
    const both = axes(chart);
    if (ticks) both[0] = { ...both[0], splits: () => ticks.map((_, i) => i), values: () => ticks.map(short), grid: { show: false } };
    // A run ends with samples in which nothing is known: a legend that nobody points at shows the last that has a value.
    const newest = Math.max(0, values[0].findLastIndex((_, i) => values.slice(1).some((line) => line[i] != null)));
    const hooks = { ...options.hooks, setLegend: [(u) => u.legend.idx == null && u.setLegend({ idx: newest }, false)] };
    const plot = new uPlot(
      { width: widthOf(place), height: wide ? HEIGHT.wide : HEIGHT.usual, padding: [16, 26, 0, 0], axes: both, legend: { live: true }, ...options, hooks },
      values,
      place,
    );
    reachByKeys(place, plot, values[0].length);
    charts.push({ place, plot, wide });
  }

  function reachByKeys(place, plot, points) {
    let index = points - 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -points, End: points };
    place.addEventListener("keydown", (event) => {
      if (!(event.key in steps) || event.target !== place) return;
      event.preventDefault();
      index = Math.min(points - 1, Math.max(0, index + steps[event.key]));
      plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: 10 });
      plot.setLegend({ idx: index });
    });
    for (const label of place.querySelectorAll(".u-legend .u-series:not(:first-child) th")) {
      label.tabIndex = 0;
      label.setAttribute("role", "button");
      label.setAttribute("aria-pressed", "true");
      label.addEventListener("click", () =>
        label.setAttribute("aria-pressed", String(!label.parentElement.classList.contains("u-off"))),
      );
      label.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        label.click();
      });
    }
  }

  const resize = (width) => {
    for (const { place, plot, wide } of charts)
      plot.setSize({ width: width ? width[wide ? "wide" : "usual"] : widthOf(place), height: plot.height });
  };
  const repaint = () => charts.forEach(({ plot }) => plot.redraw(false, true));

  // One row a point and GPU; the host's own figures stand in rows whose gpu is "all".
  function csv() {
    const gpuNames = Object.keys(Object.values(data.gpu)[0] ?? {});
    const hostNames = Object.keys(data.host);
    const names = [...new Set([...gpuNames, ...hostNames])];
    const rows = [["time_utc", "gpu", ...names].join(",")];
    data.time.forEach((time, i) => {
      const stamp = new Date(time * 1e3).toISOString();
      const row = (gpu, lines) => rows.push([stamp, gpu, ...names.map((name) => lines[name]?.[i] ?? "")].join(","));
      for (const gpu of data.gpus) row(gpu, data.gpu[gpu]);
      row("all", data.host);
    });
    return rows.join("\n") + "\n";
  }

  function save(name, kind, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  for (const chart of data.charts) show(chart.id, chart.title, chart, timeChart(chart));
  if (data.work.lengths) show("lengths", "Lengths", {}, lengthsChart());
  document.getElementById("save-csv").addEventListener("click", () => save(`${data.job}.csv`, "text/csv", csv()));
  document.getElementById("save-json").addEventListener("click", () => save(`${data.job}.json`, "application/json", JSON.stringify(data, null, 1)));

  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => resize());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  // Paper can't be unfolded.
  const folded = [];
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    folded.push(...document.querySelectorAll("details:not([open])"));
    folded.forEach((details) => (details.open = true));
    resize(PRINT_WIDTH);
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    folded.splice(0).forEach((details) => (details.open = false));
    resize();
  });
})();
