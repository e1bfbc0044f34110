/* The explorer: costs come from the embedded table, acceptance from the sliders; nothing is fetched. Seconds and tokens. */
(async () => {
  "use strict";
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const AXES = DATA.axes, POLICIES = DATA.policies.map((p) => p.name), PLAINEST = POLICIES[0], OTHERS = POLICIES.slice(1);
  const SYSTEMS = DATA.systems, WINDOWED = POLICIES.filter((p) => SYSTEMS[p].windowed);
  const OFFERED = DATA.policies.filter((p) => p.offered).map((p) => p.name); // what the release has for this drafter
  const offers = (step) => step === "base" || OFFERED.includes(step);
  const byId = (id) => document.getElementById(id);

  // --- the table -------------------------------------------------------------------------------------------------

  function bytesOf(blob) {
    const raw = atob(DATA.blobs[blob]), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }
  const unpacked = new Map(); // equal arrays are stored, and unpacked, once
  function floatsOf(blob) {
    if (!unpacked.has(blob)) {
      const bytes = bytesOf(blob), view = new DataView(bytes.buffer), values = new Float64Array(bytes.length / 4);
      for (let i = 0; i < values.length; i++) values[i] = view.getFloat32(4 * i, true);
      unpacked.set(blob, values);
    }
    return unpacked.get(blob);
  }
  function nearOf({ blob, least, step }) {
    const bytes = bytesOf(blob), view = new DataView(bytes.buffer);
    return Float64Array.from({ length: bytes.length / 2 }, (_, i) => least + step * view.getUint16(2 * i, true));
  }
  const bitsOf = (blob) => {
    const bytes = bytesOf(blob);
    return Uint8Array.from({ length: 8 * bytes.length }, (_, i) => (bytes[i >> 3] >> (7 - (i & 7))) & 1);
  };

  /* A function of (context, depth, window, batch) places; see pack.py for what is stored. */
  function reader(packed, values = floatsOf(packed.blob)) {
    const shape = packed.shape;
    if (packed.folded) {
      const [, depths, batches] = shape, stride = depths * batches, byDepth = depths > 1 ? batches : 0, byBatch = batches > 1 ? 1 : 0;
      return (c, d, w, b) => values[DATA.fold[c][w] * stride + d * byDepth + b * byBatch];
    }
    let length = 1;
    const strides = [0, 0, 0, 0];
    for (let axis = 3; axis >= 0; axis--) {
      strides[axis] = shape[axis] > 1 ? length : 0;
      length *= shape[axis];
    }
    return (c, d, w, b) => values[c * strides[0] + d * strides[1] + w * strides[2] + b * strides[3]];
  }

  const flags = (packed) => reader(packed, bitsOf(packed.blob));
  const every = (table, made) => Object.fromEntries(Object.entries(table).map(([name, of]) => [name, made(of)]));
  const COSTS = every(DATA.costs, (terms) => DATA.terms.map((term) => reader(terms[term])));
  const RANGES = every(DATA.ranges, ({ low, high }) => ({ low: reader(low, nearOf(low)), high: reader(high, nearOf(high)) }));
  const MEMORY = every(DATA.memory, ({ usable, needed, longest, fits }) => ({ usable, needed: reader(needed), longest: reader(longest), fits: flags(fits) }));
  const PARTS = DATA.operations.parts.map((part) => part.map((each) => ({
    ...each, seconds: reader(each.seconds), bytes: reader(each.bytes), flops: reader(each.flops), runs: reader(each.runs), roof: reader(each.roof, bytesOf(each.roof.blob)),
  })));
  const WARNINGS = DATA.warnings.map((each) => ({
    ...each, where: each.where && flags(each.where), numbers: each.numbers.map(({ unit, values }) => ({ unit, at: reader(values) })),
  }));

  function seconds(step, c, d, w, b) {
    let total = 0;
    for (const term of COSTS[step]) total += term(c, d, w, b);
    return total;
  }
  const breakEven = (step, c, d, w, b) => seconds(step, c, d, w, b) / seconds("base", c, d, w, b);
  const fits = (step, ...at) => Boolean(MEMORY.base.fits(...at) && MEMORY[step].fits(...at));

  // --- acceptance ------------------------------------------------------------------------------------------------

  const stated = DATA.acceptance[PLAINEST], windowed = DATA.acceptance.windowed;
  const state = {
    alpha: stated.alpha,
    rates: stated.rates ? stated.rates.slice() : null, // conditional, per position
    perPosition: stated.rates !== null,
    separate: windowed !== null, // whether windowed drafts accept at a rate of their own
    windowedAlpha: windowed ? windowed.alpha : stated.alpha,
    context: DATA.start.context,
    depth: DATA.start.depth,
    window: DATA.start.window,
    batch: DATA.start.batch,
    policy: OTHERS.length && !OTHERS.some(offers) ? OTHERS[0] : PLAINEST, // beside the best, in the maps
    step: PLAINEST,
    moved: false, // whether the acceptance is a slider's rather than the command's
  };

  /* 1 + the sum of survivals: tokens per step, bonus token included. */
  function acceptLength(policy, c, d) {
    const { windowed, levels, lasting, shift, span } = SYSTEMS[policy], own = windowed && state.separate;
    let survival = 1, length = 1;
    if (span && levels[d]) return span;
    for (let j = 0; j < levels[d]; j++) {
      const rate = own ? state.windowedAlpha : state.perPosition ? state.rates[j] : state.alpha;
      survival *= Math.min(rate + shift, 1);
      length += survival;
    }
    return lasting ? 1 + (length - 1) * lasting[c] : length;
  }
  const speedup = (policy, c, d, w, b) => acceptLength(policy, c, d) / breakEven(policy, c, d, w, b);
  const unwinnable = (policy, ...at) => breakEven(policy, ...at) > SYSTEMS[policy].most[at[1]];

  // --- the verdict: wmtp_sim/decide/verdict.py of every point, as the sliders stand ---------------------------------

  const WORDS = DATA.words.verdicts, INDIFFERENT = DATA.words.indifferent, NEVER = DATA.words.never_measured;

  /* The plainest of the policies that can run and are as good as the best of them, save nothing; null where none runs. */
  function best(...at) {
    const can = OFFERED.filter((policy) => fits(policy, ...at)), gains = can.map((policy) => speedup(policy, ...at));
    const enough = (1 - INDIFFERENT) * Math.max(...gains);
    return can.length ? can[gains.findIndex((gain) => gain >= enough)] : null;
  }
  function gainOf(policy, ...at) {
    const expected = speedup(policy, ...at);
    return { low: expected * RANGES[policy].low(...at), expected, high: expected * RANGES[policy].high(...at) };
  }
  function word({ low, expected, high }) {
    const wins = expected > 1 + INDIFFERENT, loses = expected < 1 - INDIFFERENT, sure = !NEVER.length;
    const place = wins ? (sure && low > 1 ? 0 : 1) : loses ? (sure && high < 1 ? 4 : 3) : 2;
    return WORDS[place];
  }
  /* Of a point: the policy to run, its speedup, the word. Null where nothing can run; no word where nothing is drafted. */
  function verdict(...at) {
    const policy = best(...at);
    if (!policy) return null;
    const gain = gainOf(policy, ...at);
    return { policy, gain, word: AXES.depth[at[1]] ? word(gain) : null };
  }

  // --- words -----------------------------------------------------------------------------------------------------

  function tokens(count) {
    if (count >= 1048576 && count % 1048576 === 0) return `${count / 1048576}M`;
    if (count >= 1024 && count % 1024 === 0) return `${count / 1024}K`;
    return count.toLocaleString("en-US");
  }
  const about = (count) => count === Infinity ? "any" : count >= 1048576 ? `${(count / 1048576).toFixed(2)}M` : count >= 1024 ? `${Math.round(count / 1024)}K` : `${Math.round(count)}`;
  const ms = (s) => s >= 0.1 ? (s * 1e3).toFixed(0) : s >= 1e-3 ? (s * 1e3).toFixed(2) : (s * 1e3).toFixed(3);
  const percent = (x) => `${(100 * x).toFixed(1)} %`;
  const times = (factor) => `${factor.toFixed(2)}x`;
  const gigabytes = (bytes) => bytes >= 1e11 ? `${(bytes / 1e9).toFixed(0)} GB` : bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`;
  const said = (name, slots = {}) => DATA.words.sentences[name].replace(/\{(\w+)\}/g, (_, slot) => slots[slot]);
  const range = ({ low, high }) => said("range", { low: low.toFixed(2), high: high.toFixed(2) });
  const named = (policy) => DATA.words.names[policy];
  const labelled = (step) => offers(step) ? step : `${step}, ${said("not_here")}`;

  /* Why a step has no room at a point. */
  function noRoom(step, ...at) {
    const { usable, needed } = MEMORY[MEMORY.base.fits(...at) ? step : "base"];
    return said("no_room_here", { needed: gigabytes(needed(...at)), usable: gigabytes(usable) });
  }
  /* Why nothing that the release has can run: what the smallest of it needs. */
  const notOffered = () => said("nothing_offered", { engine: DATA.engine.name });
  function nothingFits(...at) {
    if (!OFFERED.length) return notOffered();
    const needs = (policy) => MEMORY[policy].needed(...at);
    return noRoom(OFFERED.reduce((one, other) => (needs(other) < needs(one) ? other : one)), ...at);
  }
  function short(step, ...at) {
    const { usable, needed, longest } = MEMORY[step];
    return said("short", { needed: gigabytes(needed(...at)), usable: gigabytes(usable), longest: longest(...at) > 0 ? about(longest(...at)) : "none" });
  }
  /* The sentences of `conclusion` in render/verdict.py, in its words. */
  function conclusion(...at) {
    if (!MEMORY.base.fits(...at)) return [said("too_large", { short: short("base", ...at) })];
    if (!AXES.depth[at[1]]) return [said("nothing_drafted", { at: said("at_depth_0") })];
    const lines = [];
    if (!MEMORY[PLAINEST].fits(...at)) {
      const room = OTHERS.filter((policy) => MEMORY[policy].fits(...at)).map(named);
      const others = room.length ? said("others_fit", { systems: room.join(" or ") }) : said("others_too_large");
      lines.push(said("draft_too_large", { others, short: short(PLAINEST, ...at) }));
    }
    return [...lines, ...pays(...at), ...whatIf(...at)];
  }
  function pays(...at) {
    const found = verdict(...at);
    if (!found) return [OFFERED.length ? said("nothing_fits") : notOffered()];
    const { policy } = found, depth = SYSTEMS[policy].levels[at[1]], place = WORDS.indexOf(found.word);
    const slots = { word: found.word, depth, policy: named(policy), gain: said("gain", { times: times(found.gain.expected), range: range(found.gain) }) };
    const beside = policy === PLAINEST ? "" : said("beside_plainest", { plainest: PLAINEST, times: times(speedup(PLAINEST, ...at)) });
    const floor = said(unwinnable(policy, ...at) ? "unwinnable" : "winnable");
    const line = place < 2 ? said("wins", { ...slots, beside }) : place > 2 ? said("loses", { ...slots, policy, floor }) : said("even", slots);
    return NEVER.length ? [line, said("not_sure", { what: NEVER.join(", or ") })] : [line];
  }
  function whatIf(...at) {
    const most = Math.max(0, ...OFFERED.filter((policy) => fits(policy, ...at)).map((policy) => speedup(policy, ...at)));
    const better = POLICIES.filter((policy) => !offers(policy) && fits(policy, ...at) && speedup(policy, ...at) > most + INDIFFERENT);
    const parts = better.map((policy) => said("would_give", { policy: named(policy), times: times(speedup(policy, ...at)) }));
    return parts.length ? [said("what_if", { engine: DATA.engine.name, parts: parts.join("; ") })] : [];
  }
  const place = () => [state.context, state.depth, state.window, state.batch];

  // --- charts ----------------------------------------------------------------------------------------------------

  const theme = {}; // the palette of the system's mode, by the names of figures.py
  function readTheme() {
    const style = getComputedStyle(document.documentElement), names = ["ground", "ink", "soft", "line", "mid", "faint", "win", "lose", ...POLICIES, ...DATA.terms];
    for (const name of names) theme[name] = style.getPropertyValue(`--${name}`).trim();
  }

  const narrow = () => window.innerWidth < 640;
  const everyDepth = () => (AXES.depth.length > 20 ? undefined : narrow() && AXES.depth.length > 8 ? 2 : 1);
  function ticks(values, most) {
    const step = Math.max(1, Math.ceil(values.length / most)), chosen = [];
    for (let i = values.length - 1; i >= 0; i -= step) chosen.unshift(values[i]);
    return { tickmode: "array", tickvals: chosen, ticktext: chosen.map((v) => (v >= 4096 && v % 1024 ? about(v) : tokens(v))) };
  }
  /* A log axis for values that span octaves, with token counts as labels. */
  function logAxis(title, values, most = 6) {
    return { title: { text: title }, type: values.length > 1 ? "log" : "category", ...ticks(values, most) };
  }
  /* The range of a map's axis: half a cell beyond its ends, so that marks in it do not widen it. */
  function cells(values, log) {
    const at = log && values.length > 1 ? values.map(Math.log10) : values, last = at.length - 1;
    if (!last) return log ? [-0.5, 0.5] : [at[0] - 0.5, at[0] + 0.5];
    return [at[0] - (at[1] - at[0]) / 2, at[last] + (at[last] - at[last - 1]) / 2];
  }
  function layout(x, y, more = {}) {
    const axis = { gridcolor: theme.line, linecolor: theme.line, zeroline: false, automargin: true, fixedrange: true, title: { standoff: 8 } };
    const titled = (own) => ({ ...axis, ...own, title: { ...axis.title, ...own.title } });
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: theme.ink, size: 13, family: "system-ui, sans-serif" },
      margin: { l: 55, r: 20, t: 15, b: 50 }, showlegend: false, hovermode: "closest", ...more, xaxis: titled(x), yaxis: titled(y),
    };
  }

  /* Direct labels at line ends, moved apart where they would overlap. Values of a linear axis. */
  function endLabels(ends, span) {
    const gap = 0.06 * span, sorted = ends.filter((end) => Number.isFinite(end.y)).sort((a, b) => a.y - b.y);
    let last = -Infinity;
    return sorted.map((end) => {
      last = Math.max(end.y, last + gap);
      return { x: end.x, y: last, text: end.text, xanchor: "left", xshift: 8, showarrow: false, font: { color: end.colour, size: 13 } };
    });
  }

  /* What the release lacks is grey and broken. */
  const WHAT_IF = { flag: "dash", ring: "dot" };
  const colour = (policy) => (offers(policy) ? theme[policy] : theme.faint);
  const dash = (policy) => (offers(policy) ? "solid" : WHAT_IF[policy]);

  /* A policy along one axis: its line where memory holds it, grey squares where it does not. ``at`` gives a point's places. */
  function lineOf(policy, x, y, at, words, more = {}) {
    const room = x.map((_, i) => fits(policy, ...at(i))), shown = (want) => y.map((value, i) => (room[i] === want ? value : null));
    const text = x.map((_, i) => `${labelled(policy)}, ${room[i] ? words(i) : noRoom(policy, ...at(i))}`);
    const plain = { x, text, hovertemplate: "%{text}<extra></extra>" };
    const lines = [{ ...plain, name: policy, y: shown(true), mode: "lines+markers", line: { color: colour(policy), width: 2.5, dash: dash(policy) }, ...more }];
    if (room.includes(false)) {
      lines.push({ ...plain, name: `${policy} no room`, y: shown(false), mode: "markers", marker: { size: 8, symbol: "square-open", color: theme.faint } });
    }
    return lines;
  }
  /* Over a chart in which nothing that the release has can run. */
  const sign = (text) => ({ xref: "paper", yref: "paper", x: 0.5, y: 0.94, yanchor: "top", showarrow: false, text, font: { color: theme.soft, size: 14 }, bgcolor: theme.ground });

  function speedupChart() {
    const [c, , w, b] = place(), depths = AXES.depth, bands = [], lines = [], ends = []; // bands lie under every line
    const at = (d) => [c, d, w, b], last = depths.length - 1;
    let top = 1.2;
    for (const policy of POLICIES) {
      const gains = depths.map((_, d) => gainOf(policy, ...at(d))), y = gains.map((gain) => gain.expected);
      const open = depths.map((_, d) => d).filter((d) => fits(policy, ...at(d)));
      if (offers(policy) && open.length > 1) {
        const x = open.map((d) => depths[d]), upper = open.map((d) => gains[d].high), lower = open.map((d) => gains[d].low);
        bands.push({ name: `${policy} band`, x: x.concat([...x].reverse()), y: upper.concat([...lower].reverse()),
          mode: "lines", fill: "toself", line: { width: 0 }, fillcolor: theme[policy] + "1c", hoverinfo: "skip" });
        top = Math.max(top, 1.06 * Math.max(...upper));
      }
      top = Math.max(top, 1.06 * Math.max(...y));
      const dead = depths.map((_, d) => unwinnable(policy, ...at(d)));
      lines.push(...lineOf(policy, depths, y, at, (d) => `depth ${depths[d]}: ${times(y[d])} (${range(gains[d])})`, {
        marker: { size: dead.map((is) => (is ? 10 : 6)), symbol: dead.map((is) => (is ? "x" : "circle")), color: dead.map((is) => (is ? "#999999" : colour(policy))) },
      }));
      const most = open.reduce((one, d) => (one === null || y[d] > y[one] ? d : one), null);
      const words = !offers(policy) ? said("not_here") : most === null ? said("no_room") : `best ${times(y[most])} at ${depths[most]}`;
      ends.push({ x: depths[last], y: y[last], text: narrow() ? policy : `${policy}, ${words}`, colour: offers(policy) ? theme[policy] : theme.soft });
    }
    const found = depths.map((_, d) => verdict(...at(d))), gained = (d) => (found[d] ? found[d].gain.expected : -Infinity);
    const chosen = depths.reduce((one, _, d) => (gained(d) > gained(one) ? d : one), 0);
    if (found[chosen]) {
      const { policy, gain } = found[chosen];
      lines.push({ name: "best", x: [depths[chosen]], y: [gain.expected], mode: "markers", hoverinfo: "skip",
        marker: { size: 17, symbol: "star", color: theme[policy], line: { color: theme.ground, width: 1.5 } } });
    }
    const span = depths[last] - depths[0] || 1;
    const hopeless = depths.filter((_, d) => OFFERED.every((policy) => unwinnable(policy, ...at(d))));
    const grey = hopeless.map((depth) => ({ type: "rect", yref: "paper", x0: depth - 0.5, x1: depth + 0.5, y0: 0, y1: 1, fillcolor: "rgba(128,128,128,0.28)", line: { width: 0 }, layer: "below" }));
    const lost = hopeless.length ? [{ x: hopeless[0] - 0.5, yref: "paper", y: 1, xanchor: "left", yanchor: "top", xshift: 3, showarrow: false, text: "unwinnable", font: { color: theme.soft, size: 12 } }] : [];
    const full = found.some(Boolean) ? [] : [sign(nothingFits(...place()))];
    if (full.length) top *= 1.2; // room for the sign
    return { data: [...bands, ...lines], layout: layout(
      { title: { text: "depth (tokens drafted per step)" }, dtick: everyDepth(), range: [depths[0] - 0.03 * span, depths[last] + 0.03 * span] },
      { title: { text: "speedup (x)" }, range: [0, top] },
      { margin: { l: 55, r: narrow() ? 55 : 190, t: 15, b: 50 },
        shapes: [
          ...grey,
          { type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 1, fillcolor: "rgba(128,128,128,0.16)", line: { width: 0 }, layer: "below" },
          { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: theme.ink, width: 1.5 } },
          { type: "line", yref: "paper", y0: 0, y1: 1, x0: depths[state.depth], x1: depths[state.depth], line: { color: theme.soft, width: 1, dash: "dot" } },
        ],
        annotations: [{ xref: "paper", x: 0.01, y: 0, yanchor: "bottom", xanchor: "left", showarrow: false, text: "below 1: speculation loses", font: { color: theme.soft, size: 12 } },
          ...lost, ...endLabels(ends, top), ...full] }) };
  }

  function termsChart() {
    const steps = ["base", ...POLICIES], at = place(), room = steps.map((step) => fits(step, ...at));
    const marks = { opacity: steps.map((step) => (offers(step) ? 1 : 0.4)), pattern: { shape: room.map((has) => (has ? "" : "/")) } };
    const data = DATA.terms.map((term, i) => ({
      name: term, type: "bar", x: steps, y: steps.map((step) => 1e3 * COSTS[step][i](...at)), marker: { color: theme[term], ...marks },
      text: steps.map((step, j) => (room[j] ? labelled(step) : `${labelled(step)}, ${noRoom(step, ...at)}`)), textposition: "none",
      hovertemplate: `%{text}<br>${term}: %{y:.3f} ms<extra></extra>`,
    }));
    const totals = steps.map((step, j) => ({ x: step, y: 1e3 * seconds(step, ...at), text: `${room[j] ? "" : `${said("no_room")}<br>`}${ms(seconds(step, ...at))} ms`, showarrow: false, yanchor: "bottom" }));
    const most = Math.max(...steps.map((step) => 1e3 * seconds(step, ...at)));
    const names = steps.map((step) => (offers(step) ? step : `${step}<br>${said("not_here").replace("in this", "in<br>this")}`));
    return { data, layout: layout({ title: { text: "system" }, tickvals: steps, ticktext: names }, { title: { text: "step (ms)" }, range: [0, 1.2 * most] },
      { barmode: "stack", annotations: totals, showlegend: true, legend: { orientation: "h", y: 1.08, yanchor: "bottom", traceorder: "normal" }, margin: { l: 55, r: 20, t: narrow() ? 85 : 50, b: 50 } }) };
  }

  /* Where a policy's speedup crosses 1.0 along the contexts that memory holds, in tokens:
   * beyond: it loses at every longer one of them (the shortest where it wins at none; null where it wins at the longest);
   * below: it loses at every shorter one (null where it wins at the shortest, or at none).
   * Null where memory holds none. */
  function crossings(policy, d, w, b) {
    const open = AXES.context.map((_, c) => c).filter((c) => fits(policy, c, d, w, b));
    if (!open.length) return null;
    const contexts = open.map((c) => AXES.context[c]), gains = open.map((c) => speedup(policy, c, d, w, b)), wins = gains.map((gain) => gain >= 1);
    const first = wins.indexOf(true), last = wins.lastIndexOf(true);
    if (last < 0) return { beyond: contexts[0], below: null };
    const between = (i) => contexts[i] * (contexts[i + 1] / contexts[i]) ** ((gains[i] - 1) / (gains[i] - gains[i + 1]));
    return { beyond: last === gains.length - 1 ? null : between(last), below: first === 0 ? null : between(first - 1) };
  }

  function losingChart() {
    const [, , w, b] = place(), contexts = AXES.context, data = [], places = AXES.depth.map((_, d) => d).filter((d) => AXES.depth[d] > 0);
    const quiet = [], shut = [], ends = [], x = places.map((d) => AXES.depth[d]);
    for (const policy of POLICIES) {
      const found = places.map((d) => crossings(policy, d, w, b));
      const lines = { beyond: found.map((each) => each && each.beyond), below: found.map((each) => each && each.below) };
      for (const [side, y] of Object.entries(lines)) {
        data.push({ name: `${policy} ${side}`, x, y, mode: "lines+markers", line: { color: colour(policy), width: 2.5, dash: side === "below" ? "dot" : offers(policy) ? "solid" : "dash" },
          marker: { size: 8, symbol: side === "below" ? "triangle-down-open" : "triangle-up" }, hovertemplate: `${labelled(policy)}, depth %{x}: loses ${side} %{y:,.0f} tokens<extra></extra>` });
        const at = y.findLastIndex((value) => value !== null);
        if (at >= 0) ends.push({ x: x[at], y: Math.log10(y[at]), text: `${policy} ${side === "below" ? "▽" : "▲"}`, colour: offers(policy) ? theme[policy] : theme.soft });
      }
      if (found.every((each) => each === null)) shut.push(policy);
      else if (found.every((each) => each === null || (each.beyond === null && each.below === null))) quiet.push(policy);
    }
    const first = Math.log10(contexts[0]), last = Math.log10(contexts[contexts.length - 1]), pad = 0.08 * (last - first || 1);
    const notes = [["wins wherever it fits", quiet.filter(offers)], [`would win, ${said("not_here")}`, quiet.filter((policy) => !offers(policy))], [said("no_room"), shut]];
    const text = notes.filter(([, policies]) => policies.length).map(([note, policies]) => `${note}: ${policies.join(", ")}`).join("<br>");
    const annotations = [...endLabels(ends, last - first || 1), ...(text ? [sign(text)] : [])];
    return { data, layout: layout({ title: { text: "depth (tokens drafted per step)" }, range: [0.5, AXES.depth[AXES.depth.length - 1] + 0.5], dtick: everyDepth() },
      { ...logAxis("context (tokens)", contexts), type: "log", range: [first - pad, last + pad] }, { annotations, margin: { l: 70, r: 75, t: 15, b: 50 } }) };
  }

  const CIVIDIS = ["#00224e", "#434e6c", "#7d7c78", "#bbae6d", "#fee838"].map((colour, i) => [i / 4, colour]);
  /* The key of two maps that share their colours, as a strip: Plotly's own bar costs a fifth of every redraw. */
  function key(id, stops, least, most, unit) {
    byId(id).querySelector(".strip").style.background = `linear-gradient(to right, ${stops.map(([at, colour]) => `${colour} ${100 * at}%`).join(", ")})`;
    const marks = stops.length === 3 ? [[0, least], [stops[1][0], 1], [1, most]] : [[0, least], [0.5, (least + most) / 2], [1, most]];
    byId(id).querySelector(".marks").replaceChildren(...marks.map(([at, value], i) => {
      const mark = element("span", `${stops.length === 3 && i < 2 ? value : value.toFixed(1)}${unit}`);
      mark.style.left = `${100 * at}%`;
      return mark;
    }));
  }
  /* A map's policy at a point, null where it has no room; ``null`` stands for the best that can run. */
  function held(policy, ...at) {
    return policy === null ? best(...at) : fits(policy, ...at) ? policy : null;
  }
  /* Cells of a map: the policy there, or why there is none. ``at`` gives the places of a column and a row. */
  function cellsOf(policy, x, y, at) {
    return y.map((_, row) => x.map((__, column) => {
      const places = at(column, row), there = held(policy, ...places);
      return { there, places, why: there ? "" : policy ? noRoom(policy, ...places) : nothingFits(...places) };
    }));
  }
  /* The cells that have room, and over them the grey ones that have none. */
  function heat(policy, x, y, cells, values, texts, more) {
    const data = [{ name: policy || "best", type: "heatmap", x, y, z: values, text: texts, showscale: false, hoverongaps: false, opacity: policy && !offers(policy) ? 0.65 : 1, hovertemplate: "%{text}<extra></extra>", ...more }];
    if (cells.some((row) => row.some(({ there }) => !there))) {
      const faint = theme.faint;
      data.push({ name: said("no_room"), type: "heatmap", x, y, z: cells.map((row) => row.map(({ there }) => (there ? null : 1))), text: cells.map((row) => row.map(({ why }) => (why ? "×" : ""))),
        hovertext: cells.map((row) => row.map(({ why }) => why)), texttemplate: "%{text}", textfont: { color: theme.ink }, opacity: 0.55, showscale: false, hoverongaps: false, colorscale: [[0, faint], [1, faint]], hovertemplate: "%{hovertext}<extra></extra>" });
    }
    return data;
  }
  function mapChart(policy) {
    const [, , w, b] = place(), places = AXES.depth.map((_, d) => d).filter((d) => AXES.depth[d] > 0);
    const x = AXES.context, y = places.map((d) => AXES.depth[d]), found = cellsOf(policy, x, y, (c, row) => [c, places[row], w, b]);
    const z = found.map((row) => row.map(({ there, places: at }) => (there ? speedup(there, ...at) : null)));
    const text = found.map((row) => row.map(({ there, places: at }) => (there ? mapWords(there, at) : "")));
    const most = Math.max(2, mapTop(w, b)), colorscale = [[0, theme.lose], [1 / most, theme.mid], [1, theme.win]];
    key("key-speedup", colorscale, 0, most, "x");
    const data = heat(policy, x, y, found, z, text, { zmin: 0, zmax: most, colorscale });
    if (x.length > 1 && y.length > 1) data.push(contour("break-even", x, y, z, 1, "solid"));
    if (AXES.depth[state.depth] > 0) data.push(here(x[state.context], AXES.depth[state.depth], theme.ink));
    return { data, layout: layout({ ...logAxis("context (tokens)", x), range: cells(x, true) }, { title: { text: "depth (tokens drafted)" }, range: cells(y, false), dtick: everyDepth() }) };
  }
  function mapWords(policy, at) {
    const gain = gainOf(policy, ...at), verdictThere = offers(policy) ? word(gain) : said("not_here");
    return `context ${tokens(AXES.context[at[0]])}, depth ${AXES.depth[at[1]]}, ${policy}<br>${verdictThere}: ${times(gain.expected)} (${range(gain)})`;
  }
  /* The largest speedup of both maps, so that they share their colours. */
  function mapTop(w, b) {
    let most = 0;
    for (const policy of [null, state.policy]) {
      AXES.depth.forEach((_, d) => AXES.context.forEach((__, c) => {
        const there = held(policy, c, d, w, b);
        if (there) most = Math.max(most, speedup(there, c, d, w, b));
      }));
    }
    return most;
  }
  /* The ends of both accept-length maps. */
  function lengthEnds(d, w) {
    let least = Infinity, most = 0;
    for (const policy of [null, state.policy]) {
      AXES.context.forEach((_, c) => AXES.batch.forEach((__, b) => {
        const there = held(policy, c, d, w, b), needed = there && breakEven(there, c, d, w, b);
        if (there) [least, most] = [Math.min(least, needed), Math.max(most, needed)];
      }));
    }
    return most ? [least, Math.max(most, least + 0.1)] : [1, 2];
  }
  function contour(name, x, y, z, level, dash) {
    return { name, type: "contour", x, y, z, showscale: false, hoverinfo: "skip", autocontour: false,
      contours: { start: level, end: level, size: 1, coloring: "none", showlabels: false }, line: { color: theme.ink, width: 2.5, dash, smoothing: 0 } };
  }
  /* The chosen point of a map. */
  const here = (x, y, color) => ({ name: "chosen", x: [x], y: [y], mode: "markers", hoverinfo: "skip", marker: { symbol: "square-open", size: 24, color, line: { width: 2.5 } } });

  function lengthChart(policy) {
    const [, d, w] = place(), x = AXES.context, y = AXES.batch, found = cellsOf(policy, x, y, (c, row) => [c, d, w, row]);
    const over = (made) => found.map((row) => row.map(({ there, places: at }) => (there ? made(there, at) : null)));
    const z = over((there, at) => breakEven(there, ...at)), [zmin, zmax] = lengthEnds(d, w);
    const text = over((there, at) => `context ${tokens(x[at[0]])}, batch ${tokens(y[at[3]])}, ${labelled(there)}<br>pays above ${breakEven(there, ...at).toFixed(2)}`);
    key("key-length", CIVIDIS, zmin, zmax, "");
    const numbers = x.length * y.length <= 100 && !narrow() ? { texttemplate: "%{z:.2f}" } : {};
    const data = heat(policy, x, y, found, z, text, { zmin, zmax, colorscale: CIVIDIS, ...numbers });
    if (x.length > 1 && y.length > 1) {
      const lines = [contour("accept length", x, y, over((there, at) => speedup(there, ...at)), 1, "solid"), contour("unwinnable", x, y, z, SYSTEMS[policy ?? PLAINEST].most[d], "dot")];
      for (const line of lines) line.line.color = "#ffffff";
      data.push(...lines);
    }
    data.push(here(x[state.context], y[state.batch], "#ffffff"));
    return { data, layout: layout({ ...logAxis("context (tokens)", x), range: cells(x, true) }, { ...logAxis("batch (sequences)", y, 10), range: cells(y, true) }) };
  }

  function windowStepChart() {
    const [c, d, , b] = place(), x = AXES.window, data = [], ends = [], at = (w) => [c, d, w, b];
    for (const policy of [...OTHERS, PLAINEST]) {
      const y = x.map((_, w) => 1e3 * seconds(policy, ...at(w)));
      const flat = policy === PLAINEST && x.length > 1 ? { mode: "lines" } : {};
      data.push(...lineOf(policy, x, y, at, (w) => `window ${tokens(x[w])}: ${ms(y[w] / 1e3)} ms`, flat));
      ends.push({ x: Math.log10(x[x.length - 1]), y: y[y.length - 1], text: policy, colour: offers(policy) ? theme[policy] : theme.soft });
    }
    return { data, layout: windowLayout("step (ms)", data, ends) };
  }

  function windowMarginChart() {
    const [c, d, , b] = place(), x = AXES.window, data = [], ends = [], at = (w) => [c, d, w, b];
    for (const policy of OTHERS) {
      const margin = x.map((_, w) => seconds(PLAINEST, ...at(w)) / seconds(policy, ...at(w)) - 1), loss = margin.map((m) => 100 * m / (1 + m));
      const lines = lineOf(policy, x, margin.map((m) => 100 * m), at, (w) => `window ${tokens(x[w])}: margin ${percent(margin[w])}, cancelled by ${percent(loss[w] / 100)} of AL`);
      lines[0].name = `${policy} margin`;
      data.push(...lines, { name: `${policy} cancelling loss`, x, y: loss.map((value, w) => (fits(policy, ...at(w)) ? value : null)), mode: "lines+markers", hoverinfo: "skip",
        line: { color: colour(policy), dash: "dash", width: 1.5 }, marker: { size: 4 } });
      const labels = { [policy]: 100 * margin[margin.length - 1], loss: loss[loss.length - 1] };
      for (const [text, y] of Object.entries(labels)) ends.push({ x: Math.log10(x[x.length - 1]), y, text, colour: offers(policy) ? theme[policy] : theme.soft });
    }
    return { data, layout: windowLayout("%", data, ends) };
  }
  function windowLayout(title, data, ends) {
    const all = data.flatMap((trace) => trace.y), least = Math.min(0, ...all), most = Math.max(...all, 1e-9), span = 1.12 * (most - least), chosen = AXES.window[state.window];
    const made = layout(logAxis("window (tokens)", AXES.window), { title: { text: title }, range: [least - (least < 0 ? 0.05 * span : 0), least + span] },
      { margin: { l: 60, r: 60, t: 15, b: 50 }, annotations: endLabels(ends, span) });
    if (AXES.window.length > 1) made.shapes = [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: chosen, x1: chosen, line: { color: theme.soft, width: 1, dash: "dot" } }];
    else for (const label of made.annotations) label.x = 0;
    return made;
  }

  // --- lists -----------------------------------------------------------------------------------------------------

  /* The largest operations of a step at the chosen point, longest first; at depth 0 every step is the base step. */
  function largest() {
    const at = place(), parts = DATA.operations.steps[AXES.depth[state.depth] ? state.step : "base"];
    const timed = parts.flatMap((part) => PARTS[part]).map((each) => ({ each, seconds: each.seconds(...at) })).filter(({ seconds }) => seconds > 0);
    return timed.sort((one, other) => other.seconds - one.seconds).slice(0, DATA.operations.listed).map(({ each, seconds: taken }) => ({
      term: each.term, name: each.name, known: each.known, seconds: taken, share: taken / seconds(state.step, ...at),
      bytes: each.bytes(...at), flops: each.flops(...at), runs: each.runs(...at), roof: DATA.operations.roofs[each.roof(...at)],
    }));
  }
  function operations() {
    const number = (text) => element("td", text, { class: "number" }), at = place(), host = COSTS[state.step][DATA.terms.indexOf("host")](...at);
    byId("operations").replaceChildren(...largest().map((each) => {
      const row = element("tr");
      row.append(element("td", each.term), element("td", each.name), number(each.runs.toFixed(0)), number(ms(each.seconds)), number(percent(each.share)),
        number((each.bytes / 1e9).toFixed(3)), number((each.flops / 1e9).toFixed(1)), element("td", each.roof), element("td", each.known));
      return row;
    }));
    const [context, depth, size, batch] = ["context", "depth", "window", "batch"].map((axis) => tokens(AXES[axis][state[axis]]));
    byId("point").textContent = `At the chosen point: context ${context}, depth ${depth}, window ${size}, batch ${batch}. The step takes ${ms(seconds(state.step, ...at))} ms, ${ms(host)} ms of it host work and waits, which no operation has.${fits(state.step, ...at) ? "" : ` It has ${noRoom(state.step, ...at)}.`} Kernels: ${DATA.profile.label}.`;
  }

  /* Whether a warning about acceptance holds where the sliders stand: the conditions of decide/warnings.py. */
  const OF_ACCEPTANCE = {
    "no-acceptance": () => stated.kind === null && !state.moved,
    "same-acceptance": () => DATA.windowable && !state.separate,
    "acceptance-assumed": () => state.moved || stated.source === "assumed",
    "accept-length-near-1": () => acceptLength(PLAINEST, state.context, state.depth) <= DATA.near_one,
  };
  const NUMBER = { GB: (bytes) => (bytes / 1e9).toFixed(1), tokens: about, count: (count) => count.toFixed(0) };
  function warnings() {
    const at = place(), drafts = AXES.depth[state.depth] > 0;
    const held = WARNINGS.filter(({ id, where }) => (where ? where(...at) : drafts && OF_ACCEPTANCE[id]()));
    return held.map(({ id, text, numbers }) => ({ id, text: numbers.reduce((said, { unit, at: value }) => said.replace("{}", () => NUMBER[unit](value(...at))), text) }));
  }
  function warn() {
    byId("warnings").replaceChildren(...warnings().map(({ id, text }) => element("li", `${text} [${id}]`)));
  }

  /* Each chart, and what moves it. */
  const CHARTS = {
    speedup: [speedupChart, "acceptance context window batch depth"],
    terms: [termsChart, "context window batch depth"],
    losing: [losingChart, "acceptance window batch"],
    "map-best": [() => mapChart(null), "acceptance window batch context depth policy"],
    "map-policy": [() => mapChart(state.policy), "acceptance window batch context depth policy"],
    "length-best": [() => lengthChart(null), "acceptance window depth context batch policy"],
    "length-policy": [() => lengthChart(state.policy), "acceptance window depth context batch policy"],
    "window-step": [windowStepChart, "context depth batch window"],
    "window-margin": [windowMarginChart, "context depth batch window"],
  };
  /* The same of lists. */
  const LISTS = { largest: [operations, "context window batch depth"], distrust: [warn, "acceptance context window batch depth"] };
  const VIEWS = { ...CHARTS, ...LISTS };
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
  const dirty = new Set(Object.keys(VIEWS));
  const seen = new Set(); // charts and lists on the screen: drawn at once, the others when the hand rests
  const BUDGET_MS = 10;
  let resting = 0, rested = false, waits = false, lastMoveMs = 0;

  function draw(id) {
    dirty.delete(id);
    const drawn = VIEWS[id][0]();
    if (id in CHARTS) Plotly.react(byId(id), drawn.data, drawn.layout, CONFIG);
  }
  const flush = () => { for (const id of [...dirty]) draw(id); };
  const waiting = () => [...dirty].filter((id) => rested || seen.has(id)); // the longest first: a set keeps the order of arrival
  function moved(what) {
    const began = performance.now();
    for (const [id, [, causes]] of Object.entries(VIEWS)) if (what === "all" || causes.split(" ").includes(what)) dirty.add(id);
    rested = false;
    say();
    drawSome();
    clearTimeout(resting);
    resting = setTimeout(() => { rested = true; drawSome(); }, 250);
    lastMoveMs = performance.now() - began;
  }
  /* What waits while the budget lasts, one view at least; the rest after the frame is painted, so that no slider sticks. */
  function drawSome() {
    const until = performance.now() + BUDGET_MS;
    for (const id of waiting()) {
      draw(id);
      if (performance.now() > until) break;
    }
    if (!waits && waiting().length) {
      waits = true;
      requestAnimationFrame(() => setTimeout(() => { waits = false; drawSome(); }));
    }
  }

  // --- controls --------------------------------------------------------------------------------------------------

  const controls = [];
  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }
  function slider(id, name, range, read, write, words, what) {
    const box = element("label", undefined, { class: "slider", for: id }), output = element("output", "", { for: id });
    const input = element("input", undefined, { type: "range", id, ...range });
    box.append(element("span", name), output, input);
    const show = () => {
      input.value = read();
      output.textContent = words();
      input.setAttribute("aria-valuetext", words());
    };
    input.addEventListener("input", () => {
      write(Number(input.value));
      state.moved ||= what === "acceptance";
      moved(what);
    });
    if (range.max === 0) input.disabled = true;
    controls.push(show);
    return box;
  }
  const RATE = { min: 0, max: 1, step: "any" }; // a stated rate stays exact until it is moved
  const rounded = (value) => Math.round(value * 1000) / 1000;

  function build() {
    const box = byId("sliders");
    const alpha = slider("alpha", "acceptance α", RATE, () => state.alpha, (v) => { state.alpha = rounded(v); state.perPosition = false; }, () => `${state.perPosition ? "rates" : state.alpha.toFixed(3)}, AL ${acceptLength(PLAINEST, state.context, state.depth).toFixed(2)}`, "acceptance");
    box.append(alpha);
    for (const [axis, unit] of [["depth", ""], ["context", " tokens"], ["window", " tokens"], ["batch", ""]]) {
      box.append(slider(axis, axis, { min: 0, max: AXES[axis].length - 1, step: 1 }, () => state[axis], (v) => { state[axis] = v; }, () => tokens(AXES[axis][state[axis]]) + unit, axis));
    }
    const own = slider("windowed-alpha", "windowed α", RATE, () => state.separate ? state.windowedAlpha : state.alpha, (v) => { state.windowedAlpha = rounded(v); state.separate = true; },
      () => state.separate ? `${state.windowedAlpha.toFixed(3)}, AL ${acceptLength(WINDOWED[0], state.context, state.depth).toFixed(2)}` : `as ${PLAINEST}`, "acceptance");
    if (WINDOWED.length) box.append(own);
    if (state.rates) {
      const details = element("details"), inside = element("div"), tick = element("label", undefined, { class: "tick" });
      const check = element("input", undefined, { type: "checkbox", id: "per-position" });
      check.addEventListener("change", () => { state.perPosition = check.checked; moved("acceptance"); });
      controls.push(() => { check.checked = state.perPosition; });
      tick.append(check, element("span", "per-position rates"));
      inside.append(tick);
      state.rates.forEach((_, j) => inside.append(slider(`rate-${j + 1}`, `a${j + 1}`, RATE, () => state.rates[j], (v) => { state.rates[j] = rounded(v); state.perPosition = true; }, () => state.rates[j].toFixed(3), "acceptance")));
      details.append(element("summary", "Acceptance per position (conditional)"), inside);
      box.append(details);
    }
    pick("policy", POLICIES, () => moved("policy"));
    pick("step", ["base", ...POLICIES], operations);
  }
  function pick(name, values, changed) {
    const select = byId(name);
    for (const value of values) select.append(element("option", labelled(value), { value }));
    select.value = state[name];
    select.addEventListener("change", () => { state[name] = select.value; changed(); });
  }

  /* Below every chart: how sure its numbers are. Costs need no acceptance. */
  const trust = [];
  function label() {
    for (const figure of document.querySelectorAll("figure")) {
      const line = element("p", "", { class: "trust" });
      figure.append(line);
      figure.setAttribute("aria-label", figure.querySelector("h2, h3").textContent);
      trust.push([line, figure.dataset.of === "gain"]);
    }
  }
  function trustWords(gain) {
    const kernels = `kernels ${DATA.profile.label}, engine ${DATA.engine.label}`;
    if (!gain) return kernels;
    const source = state.moved ? "assumed (slider)" : stated.label.split(":")[0];
    const other = state.separate ? "" : `, windowed as ${PLAINEST} (assumed)`;
    return `${kernels}, acceptance ${source}${other}`;
  }

  /* Outputs and the sentence of the chosen point. */
  function say() {
    for (const [line, gain] of trust) line.textContent = trustWords(gain);
    for (const show of controls) show();
    const at = place(), found = verdict(...at);
    byId("said").replaceChildren(...conclusion(...at).map((line) => element("p", line)));
    for (const name of ["policy-of-map", "policy-of-length"]) byId(name).textContent = labelled(state.policy);
    headline(found, at);
  }
  /* The first thing that is read: the word, the speedup, its range, with what. */
  function headline(found, at) {
    const depth = found ? SYSTEMS[found.policy].levels[state.depth] : 0, drafts = found && found.word, box = byId("verdict");
    box.dataset.place = drafts ? WORDS.indexOf(found.word) : "none";
    byId("word").textContent = drafts ? found.word : found ? "nothing drafted" : said("no_room");
    byId("gain").textContent = drafts ? times(found.gain.expected) : "";
    byId("range").textContent = drafts ? range(found.gain) : "";
    const source = state.moved ? "assumed" : stated.source;
    byId("with").textContent = drafts ? `with ${named(found.policy)} at depth ${depth}, accept length ${acceptLength(found.policy, state.context, state.depth).toFixed(2)} (${source})` : found ? "" : nothingFits(...at).replace(`${said("no_room")}: `, "");
    byId("gauge").hidden = !drafts;
    if (drafts) for (const [end, value] of Object.entries(found.gain)) byId("gauge").style.setProperty(`--${end}`, `${gaugeAt(value)}%`);
  }
  /* A speedup's place on the gauge: a quarter at its left end, 1 in its middle, four times at its right end. */
  const gaugeAt = (value) => Math.min(100, Math.max(0, 50 + 25 * Math.log2(value)));

  function write() {
    const words = { model: DATA.model, gpu: DATA.gpu, engine: DATA.engine.name, drafter: DATA.drafter, command: DATA.command };
    for (const [id, text] of Object.entries(words)) byId(id).textContent = text;
    document.title = `Break-even: ${DATA.model} on ${DATA.gpu}`;
    const a = DATA.acceptance, d = DATA.deployment, off = POLICIES.filter((policy) => !offers(policy));
    const labels = [
      `kernels: ${DATA.profile.label}`, `profile: ${DATA.profile.name}${DATA.profile.date && !DATA.profile.name.includes(DATA.profile.date) ? `, ${DATA.profile.date}` : ""}`, `engine: ${DATA.engine.label}`,
      `acceptance: ${a[PLAINEST].label}`, `windowed acceptance: ${a.windowed ? a.windowed.label : `as ${PLAINEST} (assumed)`}`,
      `sink ${d.sink}, ${d.layout.join(", ")}, KV ${d.kv_element_bytes} B, draft KV ${d.draft_kv_element_bytes} B per element`,
    ];
    if (off.length) labels.push(`${said("not_here")} for this drafter: ${off.join(", ")}`);
    byId("labels").replaceChildren(...labels.map((text) => element("li", text)));
    byId("rows").textContent = "Every point of the grid, every system: whether the release has it and memory holds it, seconds, the five terms, break-even accept length, and the range of base step over step.";
  }

  // --- CSV -------------------------------------------------------------------------------------------------------

  function csv() {
    const numbers = ["step_s", ...DATA.terms.map((term) => `${term}_s`), "base_step_s", "break_even_accept_length", "base_over_step_low", "base_over_step_high"];
    const rows = [["context", "depth", "window", "batch", "policy", "in_engine", "fits", ...numbers].join(",")];
    const number = (x) => String(Number(x.toPrecision(8)));
    AXES.context.forEach((context, c) => AXES.depth.forEach((depth, d) => AXES.window.forEach((size, w) => AXES.batch.forEach((batch, b) => {
      for (const policy of POLICIES) {
        const at = [c, d, w, b], needed = breakEven(policy, ...at), ends = RANGES[policy];
        const values = [seconds(policy, ...at), ...COSTS[policy].map((term) => term(...at)), seconds("base", ...at), needed, ends.low(...at) / needed, ends.high(...at) / needed];
        rows.push([context, depth, size, batch, policy, offers(policy), fits(policy, ...at), ...values.map(number)].join(","));
      }
    }))));
    return rows.join("\n") + "\n";
  }
  function download() {
    const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    const link = element("a", undefined, { href: url, download: "breakeven.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  // --- start -----------------------------------------------------------------------------------------------------

  write();
  await plotlyReady();
  readTheme();
  build();
  label();
  say();
  byId("download").addEventListener("click", download);
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) seen.delete(entry.target.id);
      else { seen.add(entry.target.id); if (dirty.has(entry.target.id)) draw(entry.target.id); }
    }
  });
  flush();
  for (const id of Object.keys(VIEWS)) watcher.observe(byId(id));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); moved("all"); });
  document.documentElement.dataset.drawn = "yes";
  window.wmtp = {
    state, data: DATA, csv, largest, warnings, say, lastMoveMs: () => lastMoveMs, waiting: () => waiting().length,
    /* Every chart's traces as drawn, after drawing what waits. */
    traces() { flush(); return Object.fromEntries(Object.keys(CHARTS).map((id) => [id, byId(id).data])); },
  };
})();
