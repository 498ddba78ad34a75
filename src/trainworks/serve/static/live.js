// Keeps a page as the server has it: after an event the page is fetched again, and what differs is replaced.
"use strict";
(() => {
  const status = document.getElementById("status");
  if (!status || !status.dataset.live) return;
  const shortestPause = 1000, pauseWithoutEvents = 30000;
  let pending = false, busy = false;

  const isInUse = (node) =>
    node.hasAttribute("data-keep") || node.contains(document.activeElement) || node.querySelector("[data-keep]");

  function replace(old, fresh) {
    if (old.outerHTML === fresh.outerHTML || isInUse(old)) return;
    fresh.querySelectorAll("details").forEach((one, index) => {
      one.open = old.querySelectorAll("details")[index]?.open ?? false;
    });
    const scrolled = [...old.querySelectorAll("pre, .scroll")].map((one) => [one.scrollTop, one.scrollLeft]);
    old.replaceWith(fresh);
    fresh.querySelectorAll("pre, .scroll").forEach((one, index) => {
      if (scrolled[index]) [one.scrollTop, one.scrollLeft] = scrolled[index];
    });
  }

  function show(page) {
    const main = document.querySelector("main"), fresh = page.querySelector("main");
    if (!main || !fresh) return;
    const before = main.querySelector(".state")?.textContent, now = fresh.querySelector(".state")?.textContent;
    const olds = [...main.children], news = [...fresh.children];
    if (olds.length === news.length) olds.forEach((old, index) => replace(old, news[index]));
    else if (!isInUse(main)) main.replaceChildren(...news);
    if (now && now !== before) status.textContent = `The run is now ${now}`;
  }

  async function update() {
    if (busy) { pending = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      document.dispatchEvent(new Event("page-changed"));
    } catch { /* the next event tries again */ }
    await new Promise((done) => setTimeout(done, shortestPause));
    busy = false;
    if (pending) { pending = false; update(); }
  }

  const events = new EventSource(status.dataset.live);
  events.addEventListener("changed", update);
  events.addEventListener("open", update);  // no event tells what changed while the stream was not open
  events.addEventListener("error", () => {  // the server has given all of its streams away, or refuses this one
    if (events.readyState === EventSource.CLOSED) setInterval(update, pauseWithoutEvents);
  });
})();
