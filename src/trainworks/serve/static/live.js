// Keeps a page as the server has it: after an event the page is fetched again, and what differs is replaced.
"use strict";
(() => {
  function reachScrolled() {  // a table that is wider than the page is scrolled by keyboard, too
    for (const box of document.querySelectorAll(".scroll, pre")) {
      if (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight) box.tabIndex = 0;
    }
  }
  reachScrolled();
  addEventListener("resize", reachScrolled);
  document.addEventListener("page-changed", reachScrolled);

  const status = document.getElementById("status");
  if (!status || !status.dataset.live) return;
  const shortestPause = 1000, pauseWithoutEvents = 30000;
  let pending = false, busy = false;

  const isInUse = (node) =>
    node.hasAttribute("data-keep") || node.contains(document.activeElement) || node.querySelector("[data-keep]");

  function replace(old, fresh) {
    if (old.outerHTML === fresh.outerHTML || isInUse(old)) return old;
    fresh.querySelectorAll("details").forEach((one, index) => {
      one.open = old.querySelectorAll("details")[index]?.open ?? false;
    });
    const scrolled = [...old.querySelectorAll("pre, .scroll")].map((one) => [one.scrollTop, one.scrollLeft]);
    fresh.querySelectorAll("input[type=checkbox]").forEach((one) => {
      one.checked = [...old.querySelectorAll("input:checked")].some(({ value }) => value === one.value);
    });
    old.replaceWith(fresh);
    fresh.querySelectorAll("pre, .scroll").forEach((one, index) => {
      if (scrolled[index]) [one.scrollTop, one.scrollLeft] = scrolled[index];
    });
    return fresh;
  }

  // Parts by their heading, so that one that is new or gone moves no other, and what a reader uses stays in place.
  function byHeading(main) {
    const parts = new Map();
    for (const part of main.children) {
      const heading = `${part.tagName} ${part.querySelector("h2")?.textContent ?? part.className}`;
      let key = heading;
      for (let number = 2; parts.has(key); number++) key = `${heading} ${number}`;
      parts.set(key, part);
    }
    return parts;
  }

  function show(page) {
    const main = document.querySelector("main"), fresh = page.querySelector("main");
    if (!main || !fresh) return;
    const before = main.querySelector(".state")?.textContent, now = fresh.querySelector(".state")?.textContent;
    const olds = byHeading(main);
    let last = null;
    for (const [key, part] of byHeading(fresh)) {
      const placed = olds.has(key) ? replace(olds.get(key), part) : part;
      olds.delete(key);
      if (placed.parentNode !== main || placed.previousElementSibling !== last)
        main.insertBefore(placed, last ? last.nextSibling : main.firstChild);
      last = placed;
    }
    olds.forEach((old) => { if (!isInUse(old)) old.remove(); });
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
