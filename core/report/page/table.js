// --- the table: only the visible rows are in the document

const list = (() => {
  const kRow = 28;
  const hasNotes = rows.some((row) => row.length > column.get('notes'));
  let sortKey = null;
  const narrow = matchMedia('(max-width: 600px)');
  // Users look first for what differs and for what is odd.
  const differs = ['change', 'distance', 'equal', 'largest'].filter((key) => column.has(key));
  const notes = hasNotes ? ['notes'] : [];
  const wide = ['name', ...differs, ...notes, 'type', 'shape', 'bytes', 'min', 'max', 'mean', 'std', 'zeros', ...(column.has('file') ? ['file'] : [])];
  const kFirst = isAgainst ? 'distance' : 'std';
  // On a phone: only the name and the column by which the rows are sorted.
  const keysNow = () => (narrow.matches ? ['name', sortKey && sortKey !== 'name' ? sortKey : kFirst] : wide);
  let keys = wide;
  const scroll = find('#scroll');
  const table = find('#list');
  const body = find('tbody', table);
  const input = find('#search input');
  const isNumber = new Set(['bytes', 'min', 'max', 'mean', 'std', 'zeros', 'distance', 'equal', 'largest', 'file']);
  const kNames = { name: 'Name', type: 'Type', shape: 'Shape', bytes: 'Bytes', min: 'Min', max: 'Max', mean: 'Mean',
    std: 'Std', zeros: 'Zeros', change: 'Difference', distance: 'Distance', equal: 'Equal', largest: 'Largest', file: 'File', notes: 'Notes' };
  const kWidths = { type: 70, shape: 104, bytes: 84, min: 84, max: 84, mean: 84, std: 84, equal: 74, zeros: 92, file: 52, notes: 180, change: 124 };
  let isDown = false;
  // If the user has not sorted: in the order of names, or with another checkpoint, tensors that differ first.
  const kLost = ['now NaN', 'now infinite', 'was not finite', 'added', 'removed', 'shape', 'type'];
  const rank = (i) => {
    const at = kLost.findIndex((kind) => text(i, 'change').startsWith(kind));
    return at >= 0 ? at : change(i) > 0 ? kLost.length : kLost.length + 1;
  };
  const unsorted = () => {
    const all = rows.map((row, i) => i);
    if (!isAgainst) return all;
    const ranks = all.map(rank);
    const far = all.map(change);
    return all.sort((a, b) => ranks[a] - ranks[b] || (far[a] === far[b] ? a - b : far[b] - far[a]));
  };
  let sorted = unsorted();
  let order = sorted;
  let texts = null;
  let chosen = null; // the tensors of a cell of the layers; null: all
  let active = 0; // the position in `order` that the Tab key reaches
  const shown = new Map();
  const top = make('tr', { className: 'space', ariaHidden: 'true' }, make('td', { colSpan: keys.length }));
  const bottom = top.cloneNode(true);

  const choose = (cell) => {
    chosen = cell && new Set(cell);
    input.value = '';
    filter();
  };
  const all = make('button', { type: 'button', textContent: 'Show all', hidden: true, onclick: () => { choose(null); input.focus(); } });

  const kMeasured = new Set(['min', 'max', 'mean', 'std', 'distance', 'largest']);
  const shownOf = (i, key) => {
    if (text(i, key) === '') return '';
    if (key === 'bytes') return bytes(value(i, key));
    if (key === 'zeros') return grouped(value(i, key));
    if (key === 'equal') return share(value(i, key));
    if (!kMeasured.has(key)) return text(i, key);
    const x = value(i, key);
    return !Number.isFinite(x) ? '∞' : Math.abs(x) >= 1e-3 && Math.abs(x) < 1e5 ? text(i, key) : short(x);
  };
  const rowOf = (i) => {
    const cells = keys.map((key) => {
      const cell = make('td', { className: isNumber.has(key) ? 'n' : '' });
      const shownText = shownOf(i, key);
      if (key === 'name' && i < kTensors) cell.append(make('a', { href: '#t' + i }, make('bdi', { textContent: shownText || '(no name)' })));
      else if (key === 'name') cell.append(make('a', { tabIndex: 0 }, make('s', { textContent: shownText || '(no name)' })));
      else cell.textContent = shownText;
      cell.title = kMeasured.has(key) || key === 'bytes' ? text(i, key) : shownText;
      return cell;
    });
    const row = make('tr', { className: isBroken(i) ? 'broken' : data.severity[i] === 1 ? 'odd' : '' }, ...cells);
    row.classList.toggle('shown', i === tensor.shown());
    return row;
  };
  const render = () => {
    // Read the position before rows are removed, because a layout of the shorter table would change it.
    const first = Math.ceil(scroll.scrollTop / kRow);
    const from = Math.max(0, first - 13);
    const to = Math.min(order.length, from + Math.ceil(scroll.clientHeight / kRow) + 25);
    const wanted = new Set(order.slice(from, to));
    const gone = [...shown].filter(([i]) => !wanted.has(i));
    if (gone.some(([, row]) => row.contains(document.activeElement))) scroll.focus({ preventScroll: true });
    for (const [i, row] of gone) { row.remove(); shown.delete(i); }
    if (active < from || active >= to) active = Math.min(first, to - 1);
    top.firstChild.style.height = from * kRow + 'px';
    bottom.firstChild.style.height = (order.length - to) * kRow + 'px';
    let after = top;
    for (let at = from; at < to; ++at) {
      let row = shown.get(order[at]);
      if (!row) shown.set(order[at], row = rowOf(order[at]));
      row.setAttribute('aria-rowindex', at + 2);
      find('a', row).tabIndex = at === active ? 0 : -1;
      if (after.nextSibling !== row) after.after(row);
      after = row;
    }
  };
  const refresh = () => {
    for (const row of shown.values()) row.remove();
    shown.clear();
    // If there are only a few rows, show no empty frame below them.
    scroll.style.height = order.length < 12 ? `${(order.length + 1) * kRow + 14}px` : '';
    scroll.style.minHeight = order.length < 12 ? '0' : '';
    table.setAttribute('aria-rowcount', order.length + 1);
    const noun = rows.length === 1 ? 'tensor' : 'tensors';
    find('#found').textContent = order.length === rows.length ? `${grouped(rows.length)} ${noun}`
      : `${grouped(order.length)} of ${grouped(rows.length)} ${noun}`;
    scroll.scrollTop = 0;
    active = 0;
    render();
  };
  const key = (event) => {
    if (!event.target.matches('td a')) return;
    const page = Math.floor(scroll.clientHeight / kRow) - 2;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (!move) return;
    active = Math.min(Math.max(active + move, 0), order.length - 1);
    // Keep the row below the head of the table, which covers one row.
    const visible = scroll.clientHeight - 3 * kRow;
    scroll.scrollTop = Math.min(Math.max(scroll.scrollTop, active * kRow - visible), active * kRow);
    render();
    find('a', shown.get(order[active])).focus({ preventScroll: true });
    event.preventDefault();
  };
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter((word) => word !== '');
    texts ??= rows.map((row, i) => ['name', 'type', 'shape', 'change', 'notes'].map((key) => text(i, key)).join(' ').toLowerCase());
    order = words.length === 0 && !chosen ? sorted
      : sorted.filter((i) => (!chosen || chosen.has(i)) && words.every((word) => texts[i].includes(word)));
    all.hidden = !chosen;
    refresh();
  };
  const head = () => {
    if (table.tHead.rows.length > 0 && keys.join() === keysNow().join()) return;
    keys = keysNow();
    for (const space of [top, bottom]) space.firstChild.colSpan = keys.length;
    table.tHead.replaceChildren(make('tr', {}, ...keys.map((key) => {
      const th = make('th', { scope: 'col', className: key + (isNumber.has(key) ? ' n' : ''), 'aria-sort': 'none' },
        make('button', { type: 'button', onclick: () => sortBy(key) }, kNames[key], make('span', { ariaHidden: 'true' })));
      th.key = key;
      if (key !== 'name') th.style.width = (kWidths[key] ?? 86) + 'px';
      return th;
    })));
    table.style.minWidth = narrow.matches ? '' : keys.reduce((sum, key) => sum + (key === 'name' ? 300 : kWidths[key] ?? 86), 0) + 'px';
    if (!narrow.matches) return;
    // The other columns are not shown, so their heads cannot be clicked.
    const th = table.tHead.rows[0].cells[1];
    find('button', th).firstChild.data = '';
    find('button', th).setAttribute('aria-label', `Sort by ${kNames[th.key]}`);
    find('span', th).textContent = '⇅';
    th.prepend(make('select', { 'aria-label': 'Column', onchange: (event) => sortBy(event.target.value) },
      ...wide.slice(1).map((key) => make('option', { value: key, textContent: kNames[key], selected: key === th.key }))));
    th.style.width = '108px';
  };
  const sortBy = (key) => {
    const startsDown = isNumber.has(key) || ['shape', 'notes', 'change'].includes(key);
    if (sortKey !== key) { sortKey = key; isDown = startsDown; }
    else if (isDown === startsDown) isDown = !isDown;
    else sortKey = null;
    // Values that are not numbers are placed where users look for them: added and removed tensors with the largest
    // changes, tensors with NaN before all others.
    const far = { change: (i) => -rank(i), distance: change, equal: (i) => (change(i) === Infinity ? -1 : value(i, 'equal')),
      largest: (i) => (change(i) === Infinity ? Infinity : value(i, 'largest')),
      notes: (i) => (data.nan[i] ?? 0) + (data.inf[i] ?? 0) + (data.severity[i] ?? 0) / 4 || (text(i, 'notes') ? 0.1 : NaN) };
    const values = rows.map((row, i) => (far[key] ? far[key](i) : key === 'shape' ? elements(i) : isNumber.has(key) ? value(i, key)
      : key === 'name' ? i : text(i, key)));
    sorted = unsorted();
    if (sortKey) {
      const sign = isDown ? -1 : 1;
      const isNone = (x) => x === '' || Number.isNaN(x);
      sorted.sort((a, b) => {
        const x = values[a];
        const y = values[b];
        if (isNone(x) || isNone(y)) return isNone(x) - isNone(y);
        return x < y ? -sign : x > y ? sign : 0; // if equal, keep the order of unsorted()
      });
    }
    head();
    for (const th of table.tHead.rows[0].cells) {
      const isKey = th.key === sortKey;
      th.setAttribute('aria-sort', isKey ? (isDown ? 'descending' : 'ascending') : 'none');
      find('span', th).textContent = isKey ? (isDown ? ' ↓' : ' ↑') : find('select', th) ? '⇅' : '';
    }
    filter();
  };
  return {
    start() {
      find('#search').hidden = false;
      find('#found').after(all);
      scroll.hidden = false;
      head();
      body.append(top, bottom);
      refresh();
      scroll.addEventListener('scroll', render, { passive: true });
      scroll.addEventListener('keydown', key);
      new ResizeObserver(render).observe(scroll);
      narrow.addEventListener('change', () => { head(); refresh(); });
      input.addEventListener('input', filter);
    },
    only(cell) {
      choose(cell);
      find('#tensors').scrollIntoView();
      input.focus();
    },
    mark() {
      for (const [i, row] of shown) row.classList.toggle('shown', i === tensor.shown());
    },
  };
})();

