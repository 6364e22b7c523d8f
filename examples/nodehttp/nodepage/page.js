'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const [live, summary, updates, field] = ['live', 'summary', 'updates', 'q'].map(byId);
  let watch, request, again, timer;

  // put makes old what fresh is. What stays keeps its focus and its selection: elements with
  // the same id are the same, wherever they are now, and are not moved.
  function put(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(document.adoptNode(fresh));
      return;
    }
    for (const {name} of [...old.attributes]) if (name !== 'open' && !fresh.hasAttribute(name)) old.removeAttribute(name); // a reader opens details
    for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const ids = new Set([...fresh.childNodes].map((child) => child.id).filter(Boolean));
    for (const child of [...old.childNodes]) if (child.id && !ids.has(child.id)) child.remove();
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      if (at && (at.id || '') === (child.id || '') && at.nodeName === child.nodeName) {
        const next = at.nextSibling;
        put(at, child);
        at = next;
      } else {
        const before = child.id && [...old.children].find((other) => other.id === child.id);
        if (before && before === at) at = at.nextSibling;
        if (before) before.remove();
        old.insertBefore(document.adoptNode(child), at);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  function say(element, text) { if (element.textContent !== text) element.textContent = text; }

  // once asks after some seconds, unless something asks before.
  function once(seconds) {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if (watch && watch.readyState === EventSource.CLOSED) listen(); // it was refused
      load();
    }, seconds * 1000);
  }

  // listen hears of changes, and once at the beginning.
  function listen() {
    if (watch) watch.close();
    watch = new EventSource('watch?rows=none');
    watch.onmessage = watch.onerror = load;
  }

  function lost() {
    updates.className = 'lost';
    say(updates, 'The node does not answer. Asking again.');
    once(3);
  }

  // load asks for the page as it is now. A change meanwhile makes it ask once more.
  function load() {
    if (request) { again = true; return; }
    clearTimeout(timer);
    if (document.hidden) return;
    const mine = request = new XMLHttpRequest();
    mine.open('GET', './' + location.search);
    mine.responseType = 'document';
    mine.timeout = 60000;
    mine.onloadend = () => {
      if (request !== mine) return; // another was asked for
      request = null;
      const fresh = mine.status === 200 && mine.response && mine.response.getElementById('live');
      if (!fresh) { again = false; return lost(); }
      say(summary, mine.response.getElementById('summary').textContent);
      put(byId('taken'), mine.response.getElementById('taken'));
      put(live, fresh);
      updates.className = '';
      say(updates, 'It updates itself.');
      if (!again) return once(watch?.readyState === EventSource.OPEN ? 30 : 10); // for the ages at least
      again = false;
      load();
    };
    mine.send();
  }

  function stop() {
    const mine = request;
    request = null;
    again = false;
    if (mine) mine.abort();
    clearTimeout(timer);
  }

  field.form.addEventListener('submit', (event) => { event.preventDefault(); find(); });
  let typed;
  field.addEventListener('input', () => { clearTimeout(typed); typed = setTimeout(find, 200); });
  function find() {
    clearTimeout(typed);
    const asked = new URLSearchParams(new FormData(field.form));
    if (!field.value) asked.delete('q');
    history.replaceState(null, '', './?' + asked);
    stop();
    load();
  }

  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) return listen();
    watch?.close();
    stop();
  });
  say(updates, 'It updates itself.');
  if (!document.hidden) listen();
})();
