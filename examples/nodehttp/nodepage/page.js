'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const [live, summary, updates, field] = ['live', 'summary', 'updates', 'q'].map(byId);
  let request, timer;

  // put makes old what fresh is. What stays keeps its focus and its selection: elements with
  // the same id are the same, wherever they are now, and are not moved.
  function put(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(document.adoptNode(fresh));
      return;
    }
    for (const {name} of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
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

  function later(seconds) {
    clearTimeout(timer);
    timer = setTimeout(load, seconds * 1000);
  }

  function lost() {
    updates.className = 'lost';
    say(updates, 'The node does not answer. Asking again.');
    later(3);
  }

  // load asks for the page: for the next one if after is given, else for what is now.
  function load(after) {
    if (request) request.abort();
    clearTimeout(timer);
    if (document.hidden) return;
    const asked = new URLSearchParams(location.search);
    if (after) asked.set('after', after);
    const mine = request = new XMLHttpRequest();
    mine.open('GET', './?' + asked);
    mine.responseType = 'document';
    mine.timeout = 60000;
    mine.onerror = mine.ontimeout = lost;
    mine.onload = () => {
      if (mine.status === 503) return later(10);
      const fresh = mine.status === 200 && mine.response && mine.response.getElementById('live');
      if (!fresh) return lost();
      const version = fresh.dataset.version;
      say(summary, mine.response.getElementById('summary').textContent);
      put(byId('taken'), mine.response.getElementById('taken'));
      put(live, fresh);
      updates.className = '';
      say(updates, 'It updates itself.');
      load(version);
    };
    mine.send();
  }

  field.form.addEventListener('submit', (event) => { event.preventDefault(); find(); });
  let typed;
  field.addEventListener('input', () => { clearTimeout(typed); typed = setTimeout(find, 200); });
  function find() {
    clearTimeout(typed);
    const asked = new URLSearchParams(new FormData(field.form));
    if (!field.value) asked.delete('q');
    history.replaceState(null, '', './?' + asked);
    load();
  }

  document.addEventListener('visibilitychange', () => { if (document.hidden && request) request.abort(); load(); });
  say(updates, 'It updates itself.');
  load(live.dataset.version);
})();
