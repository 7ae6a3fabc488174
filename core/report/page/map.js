// --- treemap

const stage = (name) => (/^(lm_head|output|score|classifier)$/.test(name) ? 3
  : /^(norm|ln_f|final_layernorm|output_norm)$/.test(name) ? 2 : /embd|embed|wte|wpe/.test(name) ? 0 : 1);
const modules = (() => {
  const root = { name: '', bytes: 0, children: new Map() };
  each((i) => {
    const size = value(i, 'bytes') || 0;
    let node = root;
    node.bytes += size;
    for (const part of text(i, 'name').split(/[./]/)) {
      let child = node.children.get(part);
      if (!child) node.children.set(part, child = { name: part, bytes: 0, children: new Map(), up: node });
      node = child;
      node.bytes += size;
    }
    // A tensor may have the name of a module.
    if (node.tensor === undefined) node.tensor = i;
    else node.children.set('\n' + i, { name: node.name, bytes: size, children: new Map(), up: node, tensor: i });
  });
  const finish = (node) => {
    if (node.tensor !== undefined && node.children.size > 0) {
      const own = value(node.tensor, 'bytes') || 0;
      node.children.set('\n', { name: '(itself)', bytes: own, children: new Map(), up: node, tensor: node.tensor });
      node.tensor = undefined;
    }
    // In the order in which data passes through a model. Within a stage the rows are sorted by name.
    node.list = [...node.children.values()].sort((a, b) => stage(a.name) - stage(b.name));
    node.children = null;
    node.list.forEach(finish);
  };
  finish(root);
  return root;
})();

// A strip treemap (Bederson, Shneiderman, Wattenberg 2002): boxes keep their order, in rows from the top. Each row
// has the length that makes its boxes most like squares. Calls place(child, x, y, width, height).
const inStrips = (list, x, y, width, height, place) => {
  const items = list.filter((child) => child.bytes > 0);
  const left = items.reduce((sum, child) => sum + child.bytes, 0);
  const scale = width * height / left; // area per byte
  // How much the boxes of a row differ from squares, weighted by their bytes.
  const cost = (from, to, sum) => {
    const high = sum * scale / width;
    let total = 0;
    for (let i = from; i < to; ++i) total += items[i].bytes * Math.abs(Math.log(items[i].bytes * scale / (high * high)));
    return total;
  };
  // The end of each row: the best of all combinations, or for many items the best choice row by row.
  const ends = [];
  if (items.length <= 80) {
    const best = [0];
    const from = [0];
    for (let end = 1; end <= items.length; ++end) {
      best[end] = Infinity;
      for (let begin = end - 1, sum = 0; begin >= 0; --begin) {
        sum += items[begin].bytes;
        const all = best[begin] + cost(begin, end, sum);
        if (all < best[end]) { best[end] = all; from[end] = begin; }
      }
    }
    for (let end = items.length; end > 0; end = from[end]) ends.unshift(end);
  } else {
    for (let at = 0, end = 1; at < items.length; at = end++) {
      let sum = items[at].bytes;
      for (let now = cost(at, end, sum) / sum; end < items.length; ++end) {
        const next = cost(at, end + 1, sum + items[end].bytes) / (sum + items[end].bytes);
        if (next > now) break;
        now = next;
        sum += items[end].bytes;
      }
      ends.push(end);
    }
  }
  let at = 0;
  for (const end of ends) {
    let sum = 0;
    for (let i = at; i < end; ++i) sum += items[i].bytes;
    const high = sum * scale / width;
    let along = x;
    for (; at < end; ++at) {
      const long = items[at].bytes * scale / high;
      place(items[at], along, y, long, high);
      along += long;
    }
    y += high;
  }
};

const map = (() => {
  const area = find('#boxes');
  const canvas = find('canvas', area);
  let place = modules;

  const totals = new Map();
  each((i) => totals.set(text(i, 'type'), (totals.get(text(i, 'type')) ?? 0) + value(i, 'bytes')));
  const types = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
  const typeColor = new Map(types.map((type, i) => [type, kTypeColors[i] ?? kOther]));
  const sizes = [];
  each((i) => sizes.push(value(i, 'bytes') || 0));
  // The values below which 2 % and 98 % of the bytes are: small tensors, such as norms, do not stretch the scale.
  const endsOf = (of, widest) => {
    const found = sizes.map((size, i) => [of(i), size])
      .filter(([x]) => x > 0 && Number.isFinite(x)).sort((p, q) => p[0] - q[0]);
    const all = found.reduce((sum, [, size]) => sum + size, 0);
    const quantile = (part) => {
      let sum = 0;
      return Math.log((found.find(([, size]) => (sum += size) >= part * all) ?? [1])[0]);
    };
    const [from, to] = [quantile(0.02), quantile(0.98)];
    const widen = Math.max(0, Math.log(widest) - (to - from)) / 2;
    return { low: from - widen, high: to + widen, all };
  };
  // At least a factor of four, because smaller differences do not matter.
  const ends = { rms: endsOf(rms, 4), change: isAgainst ? endsOf(change, 4) : null };
  // The RMS of a tensor relative to the median of the tensors whose names only differ in numbers.
  const ratios = (() => {
    const kinds = new Map();
    each((i) => {
      const x = rms(i);
      if (!(x > 0) || !Number.isFinite(x)) return;
      const kind = text(i, 'name').replace(/(^|[./_])\d+(?=[./_]|$)/g, '$1*');
      if (!kinds.has(kind)) kinds.set(kind, []);
      kinds.get(kind).push([x, i]);
    });
    const found = new Map();
    for (const list of kinds.values()) {
      if (list.length < 3) continue;
      const sorted = list.map(([x]) => x).sort((p, q) => p - q);
      for (const [x, i] of list) found.set(i, x / sorted[Math.floor(sorted.length / 2)]);
    }
    return found;
  })();
  const kModes = {
    type: { name: 'Type' },
    change: { name: 'Change', of: (i) => { const x = change(i); return Number.isFinite(x) && x > 0 ? x : NaN; }, unit: '' },
    kind: { name: 'RMS against its kind', of: (i) => ratios.get(i) ?? NaN, unit: ' ×' },
    rms: { name: 'RMS', of: rms, unit: '' },
  };
  const modes = ['type', isAgainst ? 'change' : '', ratios.size > 0 ? 'kind' : '', 'rms'].filter(Boolean);
  // If nearly all bytes have the same type, the colours of types show little.
  let by = isAgainst ? 'change'
    : !(ends.rms.all > 0.5 * modules.bytes && totals.get(types[0]) > 0.95 * modules.bytes) ? 'type' : ratios.size > 0 ? 'kind' : 'rms';
  const kNew = [130, 80, 223];
  const color = (i) => {
    if (by === 'type') return typeColor.get(text(i, 'type'));
    if (by === 'change') {
      const x = change(i);
      if (x === 0) return still();
      if (!Number.isFinite(x)) return /finite|NaN/.test(text(i, 'change')) ? kBroken : kNew;
    } else if (isBroken(i)) {
      return kBroken;
    }
    const x = kModes[by].of(i);
    if (Number.isNaN(x)) return by === 'kind' ? still() : kOther;
    if (by === 'kind') return ramp(against(), 0.5 + Math.log2(x) / 4);
    const { low, high } = ends[by];
    return x > 0 ? ramp(kRising, (Math.log(x) - low) / (high - low)) : still();
  };
  // Returns the factor by which a value is outside of the range of the colours.
  const beyond = (i) => {
    const x = by === 'type' ? NaN : kModes[by].of(i);
    if (!(x > 0) || !Number.isFinite(x)) return 1;
    const [low, high] = by === 'kind' ? [-Math.log(2), Math.log(2)] : [ends[by].low, ends[by].high];
    return Math.exp(Math.max(0, Math.log(x) - high, low - Math.log(x)));
  };
  const tell = (i) => {
    if (by === 'type') return text(i, 'type');
    if (by === 'change') return text(i, 'distance') ? `relative distance ${short(value(i, 'distance'))}` : text(i, 'change');
    const x = kModes[by].of(i);
    return isBroken(i) ? fault(i) : by === 'kind' ? `RMS ${short(rms(i))}, ${short(x)} × the median of its kind` : `RMS ${short(x)}`;
  };
  // Returns a tensor to represent a module that is too small to be divided.
  const first = (node) => {
    while (node.tensor === undefined && node.list.length > 0) node = node.list[0];
    return node.tensor;
  };
  // Returns the module that is shown: a chain of only children counts as one module.
  const joined = (node) => {
    while (node.list.length === 1) node = node.list[0];
    return node;
  };
  // Returns the parts of a module that are shown. If one part is most of the module, it is replaced by its parts.
  const partsOf = (node) => {
    let parts = node.list.map(joined);
    for (;;) {
      const most = parts.find((part) => part.bytes > 0.5 * node.bytes && part.list.length > 0);
      if (!most) return parts;
      parts = parts.flatMap((part) => (part === most ? most.list.map(joined) : [part]));
    }
  };
  const label = (node, above) => {
    const parts = [];
    for (let at = node; at !== above; at = at.up) parts.unshift(at.name === '' ? '(empty)' : at.name);
    return parts.join('.');
  };
  // Returns the last parts of a module's name that fit, without the module's chain of only children.
  const fitting = (node, width) => {
    while (node.up !== place && node.up.list.length === 1) node = node.up;
    const parts = label(node, place).split('.').slice(-2);
    if (parts.join('.').length * 7 > width - 8) parts.shift();
    return parts.join('.');
  };
  let leaves = []; // the boxes that are drawn: [x, y, width, height, tensor]
  const nameLeaf = (context, node, above, x, y, width, height, tensor, shade) => {
    if (width < 34 || height < 15) return;
    const name = label(node, above).replace(/\.weight$/, '');
    const far = beyond(tensor) > 1.05 ? ` ${short(kModes[by].of(tensor))}${kModes[by].unit}` : '';
    const mark = by !== 'type' && isBroken(tensor) && by !== 'change' ? ` ${fault(tensor)}` : far;
    context.fillStyle = ink(shade);
    const end = name.split('.').pop();
    const fits = (shown) => context.measureText(shown).width <= width - 8;
    let shown = [name + mark, end + mark, mark.trim()].find((one) => one !== '' && fits(one));
    for (let most = end.length; !shown && most > 2; --most) {
      const cut = end.slice(0, most) + (most < end.length ? '…' : '');
      if (fits(cut)) shown = cut;
    }
    if (shown) context.fillText(shown, x + 4, y + 12);
  };
  const drawLeaves = (context, node, above, x, y, width, height) => {
    if (node.list.length > 0 && width * height >= 12) {
      inStrips(node.list, x, y, width, height, (child, ...box) => drawLeaves(context, child, above, ...box));
      return;
    }
    const tensor = first(node);
    if (tensor === undefined) return;
    const shade = color(tensor);
    context.fillStyle = css(shade);
    const gap = width > 6 && height > 6 ? 1 : width > 3 && height > 3 ? 0.5 : 0;
    context.fillRect(x, y, Math.max(width - gap, 0.3), Math.max(height - gap, 0.3));
    if (node.list.length > 0) return;
    if (beyond(tensor) > 1.05 && width > 3 && height > 3) {
      context.strokeStyle = getComputedStyle(area).color;
      context.lineWidth = 1.5;
      context.strokeRect(x + 1, y + 1, width - 3, height - 3);
    }
    leaves.push([x, y, width, height, tensor]);
    nameLeaf(context, node, above, x, y, width, height, tensor, shade);
  };
  const show = (focus) => {
    const width = area.clientWidth;
    const height = area.clientHeight;
    if (width === 0) return;
    const context = sized(canvas, width, height);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    leaves = [];
    const boxes = [];
    inStrips(partsOf(place), 0, 0, width, height, (node, x, y, w, h) => {
      const hasRoom = node.list.length > 0 && w > 44 && h > 34;
      drawLeaves(context, node, node.list.length === 0 ? place : node, x + 1, y + (hasRoom ? 18 : 1), w - 2, h - (hasRoom ? 19 : 2));
      if (boxes.length >= 600 || w < 7 || h < 7) return;
      const name = label(node, place);
      const part = `${bytes(node.bytes)}, ${share(node.bytes / place.bytes)}`;
      const box = make('button', {
        type: 'button', className: 'box', title: `${name}: ${part}`, 'aria-label': `${name}, ${part}`,
        tabIndex: boxes.length === 0 ? 0 : -1,
        onclick: () => enter(node),
      });
      if (hasRoom) {
        const strip = make('span', {}, make('bdi', { textContent: fitting(node, w) }));
        if (w > 170) strip.append(' ', make('small', { textContent: bytes(node.bytes) }));
        box.append(strip);
      }
      Object.assign(box.style, { left: x + 'px', top: y + 'px', width: w + 'px', height: h + 'px' });
      boxes.push(box);
    });
    for (const box of area.querySelectorAll('button')) box.remove();
    area.append(...boxes);
    if (focus) boxes[0]?.focus();
    showCrumbs();
    showLegend();
  };
  const enter = (node) => {
    if (node.list.length === 0) { if (node.tensor !== undefined) open(node.tensor); return; }
    place = node;
    show(true);
  };
  const leave = () => {
    if (place === modules) return;
    do place = place.up; while (place !== modules && place.list.length === 1);
    show(true);
  };
  const showCrumbs = () => {
    const steps = [];
    for (let at = place; at; at = at.up) if (at === modules || at.list.length > 1) steps.unshift(at);
    const crumbs = steps.flatMap((node, i) => {
      const name = node === modules ? 'All tensors' : label(node, steps[i - 1]);
      const step = node === place ? make('b', { 'aria-current': 'page' }, make('bdi', { textContent: name }))
        : make('button', { type: 'button', onclick: () => { place = node; show(true); } }, make('bdi', { textContent: name }));
      return i === 0 ? [step] : [' › ', step];
    });
    find('#crumbs').replaceChildren(...crumbs, make('span', { className: 'size', textContent: ' · ' + bytes(place.bytes) }));
  };
  const showLegend = () => {
    const legend = find('#map-legend');
    if (by === 'type') {
      legend.replaceChildren(...types.slice(0, kTypeColors.length).map((type) => swatch(typeColor.get(type), type)));
      if (types.length > kTypeColors.length) legend.append(swatch(kOther, 'others'));
      return;
    }
    const out = leaves.map(([, , , , i]) => [beyond(i), i]).filter(([far]) => far > 1.05).sort((p, q) => q[0] - p[0]);
    const parts = by === 'kind' ? [rampLegend(against(), 'a quarter', 'four times')]
      : [rampLegend(kRising, short(Math.exp(ends[by].low)), short(Math.exp(ends[by].high)))];
    if (by === 'change') parts.push(swatch(still(), 'equal'), swatch(kNew, 'added, or another shape'), swatch(kBroken, 'NaN or infinity on one side'));
    else parts.push(swatch(kBroken, 'broken'), by === 'kind' ? swatch(still(), 'alone in its kind') : swatch(kOther, 'unknown'));
    if (out.length > 0) {
      const [, i] = out[0];
      parts.push(make('span', {}, `${grouped(out.length)} outlined: the farthest is `,
        make('a', { href: '#t' + i }, make('bdi', { textContent: text(i, 'name') })), ` (${short(kModes[by].of(i))}${kModes[by].unit})`));
    }
    legend.replaceChildren(...parts);
  };
  // Moves the focus to the nearest box in a direction.
  const step = (from, dx, dy) => {
    const middle = (box) => [box.offsetLeft + box.offsetWidth / 2, box.offsetTop + box.offsetHeight / 2];
    const [x, y] = middle(from);
    let best = null;
    let least = Infinity;
    for (const box of area.querySelectorAll('button')) {
      const [bx, by_] = middle(box);
      const ahead = (bx - x) * dx + (by_ - y) * dy;
      const aside = Math.abs((bx - x) * dy) + Math.abs((by_ - y) * dx);
      if (box !== from && ahead > 1 && ahead + 2 * aside < least) { least = ahead + 2 * aside; best = box; }
    }
    if (!best) return;
    from.tabIndex = -1;
    best.tabIndex = 0;
    best.focus();
  };
  area.addEventListener('keydown', (event) => {
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (arrows[event.key] && event.target.matches('button')) step(event.target, ...arrows[event.key]);
    else if (event.key === 'Escape' || event.key === 'Backspace') leave();
    else return;
    event.preventDefault();
  });
  area.addEventListener('mousemove', (event) => {
    const frame = area.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const leaf = leaves.find(([x, y, w, h]) => px >= x && px < x + w && py >= y && py < y + h);
    const told = leaf ? `${text(leaf[4], 'name')}: ${bytes(value(leaf[4], 'bytes'))}, ${tell(leaf[4])}` : '';
    find('#map-read').textContent = told;
    const box = event.target.closest('.box');
    if (box && told) box.title = told;
  });
  area.addEventListener('mouseleave', () => { find('#map-read').textContent = ''; });
  return {
    start() {
      if (!(modules.bytes > 0) || kTensors < 3) return;
      find('#map').hidden = false;
      dark.addEventListener('change', () => show());
      choice(find('#map-switch'), modes.map((key) => [key, kModes[key].name]), by, (key) => { by = key; show(); });
      new ResizeObserver(() => show()).observe(area);
    },
  };
})();

