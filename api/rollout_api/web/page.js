"use strict";
// Keeps the page of one job fresh: tiles and conditions from its event stream, curve and workers by a read every few
// seconds. Everything that it shows was rendered by the server before; without scripts the page reloads instead.
(() => {
  const job = document.querySelector("[data-job]");
  const RENEW_MS = 5 * 60 * 1000, DETAILS_MS = 4000;
  const get = async (path) => {
    const answer = await fetch(path, { cache: "no-store" });
    if (answer.status === 401) location.reload();
    return answer.ok ? answer : null;
  };
  setInterval(() => get("/"), RENEW_MS); // each read of the page renews the cookie
  if (!job) return;

  const base = job.dataset.job;
  const KINDS = JSON.parse(job.dataset.kinds);
  const number = new Intl.NumberFormat("en");
  const set = (name, text) => {
    const place = document.querySelector(`[data-value="${name}"]`);
    if (place && place.textContent !== text) place.textContent = text;
  };
  const rounded = (value, digits = 2) => (value === null || value === undefined ? "–" : String(+value.toFixed(digits)));

  const showLive = ({ live, liveError }) => {
    set("away", live ? "" : `No live numbers: ${liveError.detail}`);
    if (!live) return;
    const { progress, stream, weights, seed } = live;
    set("frames", number.format(progress.frames));
    set("total", progress.totalFrames ? `of ${number.format(progress.totalFrames)}` : "no end set");
    document.querySelector("progress").value = progress.percent ?? 0;
    set("rate", number.format(Math.round(progress.framesPerSecond)));
    set("workers", String(progress.workers));
    set("return", rounded(live.recentReturn));
    set("episodes", `${number.format(progress.episodes)} episodes`);
    set("version", String(weights.latestVersion));
    set("lag", `workers’ lag ${weights.lag}`);
    set("unacked", number.format(stream.unackedFrames));
    set("dropped", `${number.format(stream.droppedFrames)} dropped`);
    set("seed", String(seed.seed));
    set("epoch", `epoch ${seed.epoch}`);
  };

  const row = (cells) => {
    const line = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (kind) cell.className = kind;
      line.append(cell);
    }
    return line;
  };
  const fill = (name, rows) => document.querySelector(`[data-rows="${name}"]`).replaceChildren(...rows);

  const showFailure = (failure) => {
    document.querySelector('[data-value="failure"]').hidden = !failure;
    if (!failure) return;
    set("failed", `${failure.group}-${failure.worker}, attempt ${failure.attempt}, exit code ${failure.exitCode ?? "–"}`);
    set("words", failure.message ?? "");
  };

  const showConditions = (status) => {
    const state = status.state ?? "Pending";
    set("state", state);
    document.querySelector('[data-value="state"]').className = `state ${KINDS[state] ?? "soft"}`;
    set("ready", status.readyWorkers ? `${status.readyWorkers} ready` : "");
    fill("conditions", status.conditions.map((c) =>
      row([[c.type], [c.status], [c.reason], [c.message, "text"], [c.lastTransitionTime, "soft"]])));
    showFailure(status.lastFailure);
  };

  const showWorkers = ({ items }) => fill("workers", items.map((w) => row([
    [`${w.group}-${w.index}`], [String(w.attempt)], [w.isLost ? "Lost" : w.state, w.isLost ? "bad" : ""],
    [number.format(w.frames)], [number.format(Math.round(w.framesPerSecond))], [String(w.policyVersion)],
    [String(w.seedEpoch)], [`${w.lastSeenSeconds.toFixed(1)} s`, "soft"], [w.lastError, "text bad"]])));

  const showCurve = ({ curve }) => {
    const chart = document.querySelector("[data-chart]");
    const { left, right, top, bottom } = JSON.parse(chart.dataset.chart);
    if (!curve.length) return;
    const xs = curve.map((p) => p.frames), ys = curve.map((p) => p.meanReturn);
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const at = (v, low, high, from, to) => (high > low ? from + ((v - low) / (high - low)) * (to - from) : (from + to) / 2);
    const points = curve.map((p) =>
      `${at(p.frames, x0, x1, left, right).toFixed(1)},${at(p.meanReturn, y0, y1, bottom, top).toFixed(1)}`);
    chart.querySelector(".curve").setAttribute("points", points.join(" "));
    set("x0", number.format(x0)); set("x1", number.format(x1)); set("y0", rounded(y0)); set("y1", rounded(y1));
  };

  let busy = false, last = 0;
  const details = async () => {
    if (busy || Date.now() - last < DETAILS_MS) return;
    busy = true;
    try {
      for (const [path, show] of [["workers", showWorkers], ["episodes?points=200", showCurve]]) {
        const answer = await get(`${base}/${path}`);
        if (answer) show(await answer.json());
      }
    } catch { /* the gateway is away: the event stream tells when it is back */ }
    busy = false;
    last = Date.now();
  };

  const events = new EventSource(`${base}/events`);
  events.addEventListener("open", () => set("link", "live"));
  events.addEventListener("error", () => set("link", "reconnecting…"));
  events.addEventListener("progress", (e) => { showLive(JSON.parse(e.data)); details(); });
  events.addEventListener("conditions", (e) => showConditions(JSON.parse(e.data)));
  events.addEventListener("deleted", () => { events.close(); set("link", "deleted"); });
})();
