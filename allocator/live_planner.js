"use strict";
// Moves a plan by interpolating solved optima; nothing here solves. `live` is what live_planner.py made.
(function () {
  const grids = {};
  for (const law of live.laws) for (const [mode, grid] of Object.entries(law.grids)) {
    const bytes = Uint8Array.from(atob(grid.data), (c) => c.charCodeAt(0));
    grids[law.name + "/" + mode] = {axes: grid.axes, outputs: grid.outputs, values: new Float32Array(bytes.buffer)};
  }
  const byId = Object.fromEntries(live.sliders.map((s) => [s.id, s]));
  const start = Object.fromEntries(live.sliders.map((s) => [s.id, s.value]));
  start.law = live.law; start.mode = live.mode;
  let state = {...start};
  let view = null;
  const $ = (id) => document.getElementById(id);

  // Cubic along each axis, as live_planner.interpolate; beyond the ends straight on.
  function interpolate(grid, at) {
    let values = grid.values, size = grid.values.length;
    grid.axes.forEach((axis, i) => {
      const inner = size / axis.count;
      let place = (at[i] - axis.low) / (axis.high - axis.low) * (axis.count - 1);
      place = Math.min(Math.max(place, 0), axis.count - 1);
      const cell = Math.min(Math.floor(place), axis.count - 2), t = place - cell, out = new Float64Array(inner);
      for (let j = 0; j < inner; j++) {
        const p1 = values[cell * inner + j], p2 = values[(cell + 1) * inner + j];
        const p0 = cell === 0 ? 2 * p1 - p2 : values[(cell - 1) * inner + j];
        const p3 = cell === axis.count - 2 ? 2 * p2 - p1 : values[(cell + 2) * inner + j];
        const a = (p2 - p0) / 2, b = (p3 - p1) / 2, step = p2 - p1;
        out[j] = p1 + t * (a + t * (3 * step - 2 * a - b + t * (a + b - 2 * step)));
      }
      values = out; size = inner;
    });
    return values;
  }

  const ratio = (s, id) => (id in byId ? s[id] / byId[id].value : 1);

  // The plan at a state: {problem} where there is none.
  function planAt(s) {
    if (Object.keys(start).every((key) => s[key] === start[key])) return live.plan;  // exact, not interpolated
    const law = live.laws.find((l) => l.name === s.law), grid = grids[s.law + "/" + s.mode];
    if (!grid) return {problem: law.reasons[s.mode] || "no plan"};
    const base = live.base, served = ratio(s, "traffic") * ratio(s, "days") * ratio(s, "derate");
    const decode = ratio(s, "decode"), at = {};
    const tokens = base.lifetime_tokens * served;
    at.rl = Math.log(ratio(s, "rl"));
    const target = live.kind === "target_loss";
    const floor = live.laws.find((l) => l.name === live.law).floor;
    at.budget = target ? Math.log((s.budget - floor) / (byId.budget.value - floor)) : Math.log(ratio(s, "budget"));
    if (base.cost && live.k !== null) {
      const serving = base.cost.k * live.k + base.cost.f;
      const now = served * (base.cost.k * live.k * decode + base.cost.f);
      at.serving = Math.log(serving > 0 ? now / serving : 1);
      at.size = Math.log(ratio(s, "size"));
      const size = live.n_active * ratio(s, "size");
      const left = s.budget / size - now;
      if (s.mode === "fixed" && !target && left <= 0)
        return {problem: "cannot serve: serving alone costs " + short(now * size) + " " + live.unit + " of " +
          short(s.budget)};
      at.left = Math.log(left / (byId.budget.value / live.n_active));
    } else at.serving = Math.log(served * decode);
    for (const axis of grid.axes) {
      if (axis.name === "left" && at.left < axis.low) return {problem: "almost nothing is left of the budget for training"};
      if (!(at[axis.name] > axis.low - 1e-9 && at[axis.name] < axis.high + 1e-9) && axis.name !== "left")
        return {problem: "outside what this page knows"};
    }
    const z = interpolate(grid, grid.axes.map((axis) => at[axis.name]));
    if (!z.every(Number.isFinite)) return {problem: "no plan here"};
    const n = s.mode === "fixed" ? live.n_active * ratio(s, "size") : Math.exp(z[0]);
    const d = Math.exp(z[1]), k = live.k !== null ? live.k : Math.exp(z[3]);
    const r = live.rl.none ? 0 : live.rl.saturating ? live.rl.scale * Math.expm1(Math.max(z[2], 0))
      : live.rl.scale * Math.exp(z[2]);
    const plan = {n_active: n, d_pretrain: d, d_rl: r, k, d_inference: k * tokens, loss: law.floor + Math.exp(z[4]),
      tokens_per_param: d / n};
    if (!live.moving) {
      const o = base.overheads, prompts = base.prompt_tokens * served;
      const flop = [6 * n * d * o.pretrain, base.kappa * n * r * o.rl * ratio(s, "rl"),
        2 * n * (k * tokens * o.decode * decode + prompts * o.prefill)];
      const total = flop[0] + flop[1] + flop[2];
      plan.flop = total; plan.shares = flop.map((x) => x / total);
    }
    return plan;
  }

  function short(x) {
    if (x === 0) return "0";
    const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
    if (x >= 1e16 || x < 1e-3) return x.toExponential(2).replace("e+", "e");
    for (const [scale, name] of units) if (x >= scale * 0.9995) return trim(x / scale) + name;
    return trim(x);
  }
  const trim = (x) => Number(x.toPrecision(3)).toLocaleString("en", {maximumSignificantDigits: 3});
  const write = (id, value) => (id === "derate" ? value.toFixed(2) : id === "days" ? trim(value)
    : live.kind === "target_loss" && id === "budget" ? value.toFixed(4) : short(value));

  const words = {n_active: "active parameters", d_pretrain: "pre-training tokens", d_rl: "RL tokens",
    k: "samples per query", d_inference: "tokens served", loss: "loss", tokens_per_param: "tokens per parameter"};
  const names = ["pre-training", "RL", "inference"];

  function rowsAlongBudget() {
    const axis = byId.budget, rows = [];
    for (let i = 0; i <= 40; i++) {
      const budget = axis.low * Math.pow(axis.high / axis.low, i / 40);
      const plan = planAt({...state, budget});
      if (!plan.problem) rows.push({budget, loss: plan.loss});
    }
    return rows;
  }

  function draw() {
    for (const s of live.sliders) {
      const input = $("slide-" + s.id);
      input.value = position(s, state[s.id]);
      $("value-" + s.id).textContent = write(s.id, state[s.id]) + (s.unit && s.id !== "decode" && s.id !== "rl" ? " " + s.unit : "");
      input.setAttribute("aria-valuetext", write(s.id, state[s.id]) + " " + s.unit);
    }
    $("live-law").value = state.law; $("live-mode").value = state.mode;
    if (byId.size) $("row-size").hidden = state.mode !== "fixed";
    const plan = planAt(state), told = $("live-verdict");
    window.livePlan = plan;
    $("live-figures").hidden = Boolean(plan.problem);
    told.className = plan.problem ? "verdict bad" : "verdict";
    if (plan.problem) told.textContent = "No plan: " + plan.problem + ".";
    else {
      told.textContent = "Under " + state.law + ": " + short(plan.n_active) + " active parameters on " +
        short(plan.d_pretrain) + " tokens, " + short(plan.d_rl) + " RL tokens; " +
        trim(plan.tokens_per_param / 20) + " x Chinchilla's 20 tokens per parameter, loss " + plan.loss.toFixed(4) + ".";
      for (const key of Object.keys(words)) $("live-" + key).textContent =
        key === "loss" ? plan.loss.toFixed(4) : key === "k" ? trim(plan.k) : short(plan[key]);
      $("live-shares").hidden = !plan.shares;
      if (plan.shares) names.forEach((name, i) => {
        const part = $("share-" + i), share = (100 * plan.shares[i]).toFixed(1) + " %";
        part.style.flexGrow = plan.shares[i]; part.title = name + " " + share;
        $("share-text-" + i).textContent = name + " " + share;
      });
    }
    const curve = rowsAlongBudget();
    $("live-chart").hidden = curve.length === 0;
    if (view && curve.length) view.resize().data("curve", curve)
      .data("here", [plan.problem ? {...curve[0], shown: 0} : {budget: state.budget, loss: plan.loss, shown: 1}]).runAsync();
  }

  const position = (s, value) => Math.round(1000 * Math.log(value / s.low) / Math.log(s.high / s.low));
  const valueAt = (s, place) => {
    const value = s.low * Math.pow(s.high / s.low, place / 1000);
    // The scenario's own number exactly, where the slider stands on it.
    return position(s, s.value) === Number(place) ? s.value : Number(value.toPrecision(6));
  };

  function remember() {
    const changed = Object.entries(state).filter(([key, value]) => value !== start[key]);
    const hash = changed.map(([key, value]) => key + "=" + encodeURIComponent(value)).join("&");
    history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  }

  function restore() {
    const notice = $("live-notice");
    notice.hidden = true;
    state = {...start};
    const hash = location.hash.slice(1);
    if (hash === "" || document.getElementById(hash)) return draw();
    const read = {...start};
    let lawful = true;
    for (const part of hash.split("&")) {
      const [key, raw = ""] = part.split("=", 2);
      let value;
      try { value = decodeURIComponent(raw); } catch { lawful = false; continue; }
      if (key === "law" && live.laws.some((l) => l.name === value)) read.law = value;
      else if (key === "mode" && (value === "free" || value === "fixed")) read.mode = value;
      else if (key in byId && value !== "" && Number(value) >= byId[key].low * (1 - 1e-6) &&
        Number(value) <= byId[key].high * (1 + 1e-6)) read[key] = Number(value);
      else lawful = false;
    }
    if (lawful) state = read;
    else { notice.textContent = "The link's settings could not be read; this is the plan as it was made."; notice.hidden = false; }
    draw();
  }

  function toml() {
    let text = live.toml;
    for (const s of live.sliders) if (s.id !== "size") text = text.replace('"@@' + s.id + '@@"', literal(state[s.id]));
    const size = state.mode === "fixed" ? literal(live.n_active * ratio(state, "size")) : live.free_size;
    return text.replace('"@@size@@"', size).replace("@@law@@", state.law.replace(/["\\]/g, "\\$&"));
  }
  const literal = (x) => {
    const text = Math.abs(x) >= 1e16 || Math.abs(x) < 1e-3 ? x.toExponential().replace("e+", "e") : String(x);
    return /[.e]/.test(text) ? text : text + ".0";
  };

  for (const s of live.sliders) $("slide-" + s.id).addEventListener("input", (event) => {
    state[s.id] = valueAt(s, event.target.value); draw(); remember();
  });
  for (const key of ["law", "mode"]) $("live-" + key).addEventListener("change", (event) => {
    state[key] = event.target.value; draw(); remember();
  });
  $("live-reset").addEventListener("click", () => { state = {...start}; draw(); remember(); });
  $("live-toml").addEventListener("click", () => {
    const box = $("live-scenario");
    box.hidden = false; box.textContent = toml(); box.focus();
  });
  window.addEventListener("hashchange", restore);
  window.livePlanAt = planAt; window.liveScenario = toml;
  restore();
  vegaEmbed("#live-chart", live.chart, {mode: "vega-lite", renderer: "svg", ast: true, actions: false})
    .then((result) => { view = result.view; draw(); }).catch(console.error);
})();
