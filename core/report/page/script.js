'use strict';
(() => {
const find = (selector, inside = document) => inside.querySelector(selector);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in element && name !== 'role') element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
const data = JSON.parse(find('#data').textContent);

// --- the tensors: a line of the table in <noscript> each

const kEntities = { '&lt;': '<', '&gt;': '>', '&quot;': '"', '&amp;': '&' };
const plain = (html) =>
  html.includes('&') ? html.replace(/&(lt|gt|quot|amp);/g, (entity) => kEntities[entity]) : html;
const column = new Map(data.keys.map((key, i) => [key, i]));
const rows = (() => {
  const html = find('#rows').textContent;
  const lines = html.slice(html.indexOf('<tbody>\n') + 8, html.lastIndexOf('</tbody>')).split('\n');
  lines.pop();
  return lines.map((line) => line.slice(line.indexOf('<td>') + 4).split('<td>'));
})();
const text = (i, key) => plain(rows[i][column.get(key)] ?? '');
const value = (i, key) => {
  const cell = rows[i][column.get(key)];
  return cell ? Number(cell) : NaN;
};
const elements = (i) => {
  if (data.elements[i] !== undefined) return data.elements[i]; // more dimensions than the row shows
  const shape = rows[i][column.get('shape')];
  return shape ? shape.split('×').reduce((product, dim) => product * Number(dim), 1) : 1;
};
const rms = (i) => Math.hypot(value(i, 'mean'), value(i, 'std'));
const reach = (i) => Math.max(-value(i, 'min'), value(i, 'max')) / value(i, 'std');
const pictures = new Map(data.pictures.map((entry) => [entry[0], entry]));

// --- numbers and colours

const short = (x) => {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? '–' : String(x);
  if (x === 0) return '0';
  const size = Math.abs(x);
  return size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(3)))
    : x.toExponential(1).replace('e+', 'e');
};
const grouped = (x) => x.toLocaleString('en-US', { maximumFractionDigits: 0 });
const bytes = (x) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  for (; x >= 1023.95 && unit + 1 < units.length; ++unit) x /= 1024;
  return (unit === 0 ? String(x) : x.toFixed(1)) + ' ' + units[unit];
};
const share = (x) => {
  if (x > 0 && x < 0.001) return (100 * x).toPrecision(1) + ' %';
  const percent = Number((100 * x).toPrecision(3));
  return x < 1 && percent >= 100 ? '>99.9 %' : percent + ' %';
};
const dark = matchMedia('(prefers-color-scheme: dark)');

const mix = (from, to, part) => from.map((c, i) => Math.round(c + (to[i] - c) * part));
const ramp = (stops, part) => {
  const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return mix(stops[i], stops[i + 1], at - i);
};
const css = (color) => `rgb(${color.join(' ')})`;
// From dark to light and from blue to yellow: also for people who see two colours alone.
const kRising = [[58, 44, 116], [45, 95, 148], [34, 146, 141], [112, 199, 99], [248, 226, 66]];
const kWhite = [255, 255, 255];
// As the pictures of core/values/picture/png.h: white is the middle. On a dark page, the layers have a dark one.
const kDiverging = [[20, 80, 165], [120, 180, 220], [255, 255, 255], [244, 165, 130], [202, 48, 40]];
const kDarkDiverging = [[110, 180, 255], [50, 95, 150], [28, 33, 40], [150, 72, 52], [255, 150, 115]];
// Differ in lightness too.
const kTypeColors = [[68, 119, 170], [204, 187, 68], [34, 136, 51], [238, 102, 119], [102, 204, 238],
  [170, 51, 119], [90, 70, 60]];
const kOther = [128, 128, 128];
// Black or white: the one with more contrast.
const ink = (color) => {
  const [red, green, blue] = color.map((c) => (c / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? '#000' : '#fff';
};

// A canvas as sharp as the screen.
const sized = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  return context;
};

// Buttons of which one is pressed.
const choice = (group, entries, pressed, chosen) => {
  const buttons = entries.map(([key, name]) => make('button', {
    type: 'button', textContent: name, 'aria-pressed': String(key === pressed),
    onclick: () => {
      for (const button of buttons) button.setAttribute('aria-pressed', String(button.textContent === name));
      chosen(key);
    },
  }));
  group.replaceChildren(...buttons);
};

const swatch = (color, name) => {
  const box = make('i');
  box.style.background = css(color);
  return make('span', {}, box, name);
};
const rampLegend = (stops, from, to) => {
  const box = make('i', { className: 'ramp' });
  box.style.background = `linear-gradient(to right, ${stops.map(css).join(', ')})`;
  return make('span', {}, from, box, to);
};

const open = (i) => { location.hash = 't' + i; };

// --- treemap

const modules = (() => {
  const root = { name: '', bytes: 0, children: new Map() };
  rows.forEach((row, i) => {
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
    node.list = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
    node.children = null;
    node.list.forEach(finish);
  };
  finish(root);
  return root;
})();

// Squarified treemap (Bruls, Huizing, van Wijk 2000): rows of boxes along the shorter side, each row
// as long as that makes its worst box squarer. Calls place(child, x, y, width, height).
const squarify = (list, x, y, width, height, place) => {
  let left = list.reduce((sum, child) => sum + child.bytes, 0);
  let at = 0;
  while (at < list.length && left > 0) {
    const side = Math.min(width, height);
    const scale = width * height / left; // area of a byte
    const worst = (sum, most, least) => {
      const thick = sum * scale / side;
      return Math.max(thick * thick / (least * scale), most * scale / (thick * thick));
    };
    let end = at + 1;
    let sum = list[at].bytes;
    if (sum <= 0) return;
    while (end < list.length && list[end].bytes > 0 &&
           worst(sum + list[end].bytes, list[at].bytes, list[end].bytes) <=
           worst(sum, list[at].bytes, list[end - 1].bytes)) {
      sum += list[end++].bytes;
    }
    const thick = sum * scale / side;
    let along = 0;
    for (; at < end; ++at) {
      const long = list[at].bytes * scale / thick;
      if (width >= height) place(list[at], x, y + along, thick, long);
      else place(list[at], x + along, y, long, thick);
      along += long;
    }
    if (width >= height) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    left -= sum;
  }
};

const map = (() => {
  const area = find('#boxes');
  const canvas = find('canvas', area);
  let place = modules;

  const totals = new Map();
  rows.forEach((row, i) => totals.set(text(i, 'type'), (totals.get(text(i, 'type')) ?? 0) + value(i, 'bytes')));
  const types = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a));
  const typeColor = new Map(types.map((type, i) => [type, kTypeColors[i] ?? kOther]));
  // Where 2 % and 98 % of the bytes lie: small tensors, such as norms, do not stretch the scale.
  const scales = rows.map((row, i) => [rms(i), value(i, 'bytes')])
    .filter(([x]) => x > 0 && Number.isFinite(x)).sort((a, b) => a[0] - b[0]);
  const scaled = scales.reduce((sum, [, size]) => sum + size, 0);
  const quantile = (part) => {
    let sum = 0;
    return Math.log((scales.find(([, size]) => (sum += size) >= part * scaled) ?? [1])[0]);
  };
  // A factor of four at least: less is no difference to look at.
  const [low, high] = ((from, to) => {
    const widen = Math.max(0, Math.log(4) - (to - from)) / 2;
    return [from - widen, to + widen];
  })(quantile(0.02), quantile(0.98));
  // The colours of types say little where nearly all bytes are of one.
  let by = scaled > 0.5 * modules.bytes && totals.get(types[0]) > 0.95 * modules.bytes ? 'rms' : 'type';
  const color = (i) => {
    if (by === 'type') return typeColor.get(text(i, 'type'));
    if (data.nan[i]) return [0, 0, 0];
    const x = rms(i);
    if (Number.isNaN(x)) return kOther;
    return x > 0 ? ramp(kRising, (Math.log(x) - low) / (high - low)) : kWhite;
  };
  // A tensor that stands for a module too small to be divided.
  const first = (node) => {
    while (node.tensor === undefined && node.list.length > 0) node = node.list[0];
    return node.tensor;
  };
  // The modules that are shown: a chain of only children is one module.
  const joined = (node) => {
    while (node.list.length === 1) node = node.list[0];
    return node;
  };
  // What is shown of a module: its parts, and the parts of one that is most of it.
  const partsOf = (node) => {
    let parts = node.list.map(joined);
    for (;;) {
      const most = parts.find((part) => part.bytes > 0.5 * node.bytes && part.list.length > 0);
      if (!most) return parts.sort((a, b) => b.bytes - a.bytes);
      parts = parts.filter((part) => part !== most).concat(most.list.map(joined));
    }
  };
  const label = (node, above) => {
    const parts = [];
    for (let at = node; at !== above; at = at.up) parts.unshift(at.name === '' ? '(empty)' : at.name);
    return parts.join('.');
  };
  // The last parts of the name of a module, without its chain of only children, as there is room.
  const fitting = (node, width) => {
    while (node.up !== place && node.up.list.length === 1) node = node.up;
    const parts = label(node, place).split('.').slice(-2);
    if (parts.join('.').length * 7 > width - 8) parts.shift();
    return parts.join('.');
  };
  const drawLeaves = (context, node, x, y, width, height) => {
    if (node.list.length === 0 || width * height < 12) {
      const tensor = first(node);
      if (tensor === undefined) return;
      context.fillStyle = css(color(tensor));
      const gap = width > 6 && height > 6 ? 1 : width > 3 && height > 3 ? 0.5 : 0;
      context.fillRect(x, y, Math.max(width - gap, 0.3), Math.max(height - gap, 0.3));
      // White and black may be the page's colour.
      if (['rgb(255 255 255)', 'rgb(0 0 0)'].includes(css(color(tensor))) && gap === 1) {
        context.strokeStyle = css(kOther);
        context.strokeRect(x + 0.5, y + 0.5, width - 2, height - 2);
      }
      return;
    }
    squarify(node.list, x, y, width, height, (...box) => drawLeaves(context, ...box));
  };
  const show = (focus) => {
    const width = area.clientWidth;
    const height = area.clientHeight;
    if (width === 0) return;
    const context = sized(canvas, width, height);
    const boxes = [];
    squarify(partsOf(place), 0, 0, width, height, (node, x, y, w, h) => {
      const hasRoom = w > 44 && h > 34;
      drawLeaves(context, node, x + 1, y + (hasRoom ? 18 : 1), w - 2, h - (hasRoom ? 19 : 2));
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
    } else {
      legend.replaceChildren(rampLegend(kRising, short(Math.exp(low)), short(Math.exp(high))),
        swatch(kWhite, 'zero'), swatch([0, 0, 0], 'has NaN'), swatch(kOther, 'unknown'));
    }
  };
  // To the nearest box on that side.
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
  return {
    start() {
      if (!(modules.bytes > 0)) return;
      find('#map').hidden = false;
      choice(find('#map-switch'), [['type', 'Type'], ['rms', 'RMS']], by, (key) => { by = key; show(); });
      new ResizeObserver(() => show()).observe(area);
    },
  };
})();

// --- layers x roles

// "model.layers.3.mlp.experts.7.up.weight": stack "model.layers", layer 3, role
// "mlp.experts.*.up.weight", expert 7.
const placed = rows.map((row, i) => {
  const parts = text(i, 'name').split(/[./]/);
  const at = parts.findIndex((part) => /^\d{1,9}$/.test(part));
  if (at < 0 || at + 1 === parts.length) return null;
  const role = parts.slice(at + 1);
  const expert = role.findIndex((part, j) => j > 0 && /^\d{1,9}$/.test(part) && /expert/i.test(role[j - 1]));
  const number = expert < 0 ? null : Number(role[expert]);
  if (expert >= 0) role[expert] = '*';
  return { stack: parts.slice(0, at).join('.'), layer: Number(parts[at]), role: role.join('.'), expert: number };
});
const stacks = (() => {
  const found = new Map();
  placed.forEach((entry, i) => {
    if (!entry) return;
    let stack = found.get(entry.stack);
    if (!stack) found.set(entry.stack, stack = { name: entry.stack, bytes: 0, layers: new Map(), roles: new Map(), experts: new Set(), expertRoles: new Set() });
    stack.bytes += value(i, 'bytes') || 0;
    stack.roles.set(entry.role, (stack.roles.get(entry.role) ?? 0) + 1);
    if (entry.expert !== null) { stack.experts.add(entry.expert); stack.expertRoles.add(entry.role); }
    let layer = stack.layers.get(entry.layer);
    if (!layer) stack.layers.set(entry.layer, layer = new Map());
    const cell = layer.get(entry.role);
    if (cell) cell.push(i); else layer.set(entry.role, [i]);
  });
  return [...found.values()].filter((stack) => stack.layers.size > 1).sort((a, b) => b.bytes - a.bytes);
})();

// Over all elements of some tensors.
const weighted = (of) => (cell) => {
  let sum = 0;
  let count = 0;
  for (const i of cell) {
    const x = of(i);
    if (Number.isNaN(x)) continue;
    const n = elements(i);
    sum += x * n;
    count += n;
  }
  return count > 0 ? sum / count : NaN;
};
const squares = weighted((i) => rms(i) ** 2);
const kMetrics = {
  rms: { name: 'RMS', of: (cell) => (cell.length === 1 ? rms(cell[0]) : Math.sqrt(squares(cell))), show: short, scale: 'median' },
  reach: { name: 'Largest |x| / std', of: (cell) => cell.reduce((most, i) => (reach(i) > most ? reach(i) : most), -1), show: short, scale: 'log' },
  zeros: { name: 'Share of zeros', of: weighted((i) => value(i, 'zeros') / elements(i)), show: share, scale: 'share' },
  distance: { name: 'Relative distance', of: weighted((i) => value(i, 'distance')), show: short, scale: 'log' },
  equal: { name: 'Share of equal elements', of: weighted((i) => value(i, 'equal')), show: share, scale: 'share' },
};
const kNanColor = [0, 0, 0];

// The colour of a number: relative to the median of its column, or between the least and the most.
const colouring = (metric, columns) => {
  const all = columns.flat().filter((x) => Number.isFinite(x) && x > 0);
  if (metric.scale === 'median') {
    const medians = columns.map((column) => {
      const sorted = column.filter((x) => x > 0 && Number.isFinite(x)).sort((a, b) => a - b);
      return sorted[Math.floor(sorted.length / 2)];
    });
    const stops = dark.matches ? kDarkDiverging : kDiverging;
    return {
      color: (x, j) => ramp(stops, medians[j] ? 0.5 + Math.log2(x / medians[j]) / 4 : 0.5),
      legend: () => [make('span', { textContent: 'Against the median of its column:' }),
        rampLegend(stops, 'a quarter', 'four times')],
    };
  }
  const low = Math.log(all.reduce((a, b) => Math.min(a, b), Infinity));
  const high = Math.log(all.reduce((a, b) => Math.max(a, b), 0));
  if (metric.scale === 'log') {
    return {
      color: (x) => (x > 0 ? ramp(kRising, high > low ? (Math.log(x) - low) / (high - low) : 0) : kWhite),
      legend: () => (all.length > 0 ? [rampLegend(kRising, metric.show(Math.exp(low)), metric.show(Math.exp(high)))] : []),
    };
  }
  return { color: (x) => ramp(kRising, x), legend: () => [rampLegend(kRising, '0 %', '100 %')] };
};

const kMostLayers = 400;
const kMostRoles = 80;

class Layers {
  constructor(section, keys) {
    this.section = section;
    this.metric = kMetrics[keys[0]];
    this.stack = stacks[0];
    section.hidden = false;
    choice(find('.switch', section), keys.map((key) => [key, kMetrics[key].name]), keys[0], (key) => {
      this.metric = kMetrics[key];
      this.show();
    });
    const label = find('.stack', section);
    label.hidden = stacks.length < 2;
    const select = find('select', label);
    select.append(...stacks.slice(0, 100).map((stack, i) => make('option', { value: i, textContent: stack.name || '(top)' })));
    select.onchange = () => { this.stack = stacks[select.value]; this.show(); };
    this.experts = new Experts(find('.experts', section));
    this.table = find('table', section);
    this.table.addEventListener('keydown', (event) => this.key(event));
    this.table.addEventListener('click', (event) => this.enter(event.target.closest('td')));
    dark.addEventListener('change', () => this.show());
    this.show();
  }
  show() {
    const { stack, metric } = this;
    const layers = [...stack.layers.keys()].sort((a, b) => a - b).slice(0, kMostLayers);
    const roles = [...stack.roles.keys()].filter((role) => stack.roles.get(role) > 1 || stack.roles.size <= 12).slice(0, kMostRoles);
    const numbers = roles.map((role) => layers.map((layer) => {
      const cell = stack.layers.get(layer).get(role);
      const x = cell ? metric.of(cell) : NaN;
      return x < 0 ? NaN : x;
    }));
    const scale = colouring(metric, numbers);
    const head = make('tr', {}, make('th', { scope: 'col', textContent: 'layer' }), ...roles.map((role) => {
      const end = role.replace(/\.weight$/, '');
      return make('th', { scope: 'col', title: role }, make('span', {}, make('bdi', { textContent: end })));
    }));
    const body = layers.map((layer, y) => make('tr', {}, make('th', { scope: 'row', textContent: layer }), ...roles.map((role, x) => {
      const cell = stack.layers.get(layer).get(role);
      const number = numbers[x][y];
      const td = make('td', { role: 'gridcell' });
      if (!cell) { td.className = 'none'; return td; }
      const isNan = cell.some((i) => data.nan[i]);
      const color = isNan ? kNanColor : Number.isNaN(number) ? kOther : scale.color(number, x);
      td.textContent = isNan ? 'NaN' : metric.show(number);
      td.title = `layer ${layer}, ${role}: ${metric.name} ${metric.show(number)}${isNan ? ', has NaN' : ''}`;
      td.setAttribute('aria-label', td.title);
      td.style.background = css(color);
      td.style.color = ink(color);
      td.tabIndex = -1;
      td.cell = cell;
      return td;
    })));
    this.table.replaceChildren(make('thead', {}, head), make('tbody', {}, ...body));
    const start = find('td[tabindex]', this.table);
    if (start) start.tabIndex = 0;
    const more = stack.layers.size > layers.length || stack.roles.size > roles.length;
    find(':scope > .legend', this.section).replaceChildren(...scale.legend(), swatch(kNanColor, 'has NaN'),
      ...(more ? [make('span', { textContent: `${layers.length} of ${stack.layers.size} layers, ${roles.length} of ${stack.roles.size} roles` })] : []));
    this.experts.show(stack, metric);
  }
  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const td = event.target.closest('td');
    if (!td) return;
    if (event.key === 'Enter' || event.key === ' ') this.enter(td);
    else if (moves[event.key]) {
      const [dx, dy] = moves[event.key];
      let next = td;
      do {
        const row = next.parentElement.parentElement.rows[next.parentElement.sectionRowIndex + dy];
        next = row?.cells[next.cellIndex + dx];
      } while (next && next.tagName === 'TD' && !next.cell);
      if (next?.cell) { td.tabIndex = -1; next.tabIndex = 0; next.focus(); }
    } else return;
    event.preventDefault();
  }
  enter(td) {
    if (!td?.cell) return;
    if (td.cell.length === 1) { open(td.cell[0]); return; }
    list.only(td.cell); // several experts
  }
}

class Experts {
  constructor(part) {
    this.part = part;
    this.select = find('select', part);
    this.canvas = find('canvas', part);
    this.readout = find('.readout', part);
    this.at = [0, 0];
    this.select.onchange = () => this.draw();
    this.canvas.onmousemove = (event) => { this.at = this.place(event); this.tell(); };
    this.canvas.onclick = (event) => { this.at = this.place(event); this.enter(); };
    this.canvas.onkeydown = (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const move = moves[event.key];
      if (event.key === 'Enter') this.enter();
      else if (move) this.at = [this.at[0] + move[0], this.at[1] + move[1]];
      else return;
      event.preventDefault();
      this.tell();
    };
  }
  show(stack, metric) {
    this.stack = stack;
    this.metric = metric;
    this.part.hidden = stack.experts.size < 2;
    if (this.part.hidden) return;
    const roles = [...stack.expertRoles].slice(0, 100);
    if (roles.join('\n') !== this.roles) {
      this.roles = roles.join('\n');
      this.select.replaceChildren(...roles.map((role) => make('option', { textContent: role, value: role })));
    }
    this.draw();
  }
  draw() {
    const { stack, metric } = this;
    this.rows = [...stack.experts].sort((a, b) => a - b).slice(0, 1024);
    this.columns = [...stack.layers.keys()].sort((a, b) => a - b).slice(0, 512);
    const row = new Map(this.rows.map((expert, y) => [expert, y]));
    this.cells = this.columns.map((layer) => {
      const cells = new Array(this.rows.length).fill(-1);
      for (const i of stack.layers.get(layer).get(this.select.value) ?? []) {
        const y = row.get(placed[i].expert);
        if (y !== undefined) cells[y] = i;
      }
      return cells;
    });
    this.numbers = this.cells.map((cells) => cells.map((i) => (i < 0 ? NaN : metric.of([i]))));
    const scale = colouring(metric, this.numbers);
    this.width = Math.max(4, Math.min(24, Math.floor(1200 / this.columns.length)));
    this.height = this.rows.length > 128 ? 4 : 10;
    const width = this.width * this.columns.length;
    const height = this.height * this.rows.length;
    this.canvas.style.width = width + 'px';
    this.canvas.style.height = height + 'px';
    const context = sized(this.canvas, width, height);
    this.numbers.forEach((numbers, x) => numbers.forEach((number, y) => {
      const i = this.cells[x][y];
      if (i < 0) return;
      const color = data.nan[i] ? kNanColor : Number.isNaN(number) || number < 0 ? kOther : scale.color(number, x);
      context.fillStyle = css(color);
      context.fillRect(x * this.width, y * this.height, this.width - 0.5, this.height - 0.5);
    }));
    this.readout.textContent = `${grouped(this.rows.length)} experts down, ${grouped(this.columns.length)} layers across`;
  }
  place(event) {
    return [Math.floor(event.offsetX / this.width), Math.floor(event.offsetY / this.height)];
  }
  tensor() {
    const clamp = (x, count) => Math.min(Math.max(x, 0), count - 1);
    this.at = [clamp(this.at[0], this.columns.length), clamp(this.at[1], this.rows.length)];
    return this.cells[this.at[0]][this.at[1]];
  }
  tell() {
    const i = this.tensor();
    const [x, y] = this.at;
    this.readout.textContent = `expert ${this.rows[y]}, layer ${this.columns[x]}: ` +
      (i < 0 ? 'none' : `${this.metric.name} ${this.metric.show(this.numbers[x][y])}${data.nan[i] ? ', has NaN' : ''}`);
  }
  enter() {
    const i = this.tensor();
    if (i >= 0) open(i);
  }
}

// --- the table: only the rows in sight are in the document

const list = (() => {
  const kRow = 28;
  const hasNotes = rows.some((row) => row.length > column.get('notes'));
  // What differs is looked for first.
  const differs = ['change', 'distance', 'equal', 'largest'].filter((key) => column.has(key));
  const keys = [...data.keys.slice(0, 4), ...differs, ...data.keys.slice(4).filter((key) =>
    !differs.includes(key) && (key !== 'notes' || hasNotes))];
  const scroll = find('#scroll');
  const table = find('#list');
  const body = find('tbody', table);
  const input = find('#search input');
  const isNumber = new Set(['bytes', 'min', 'max', 'mean', 'std', 'zeros', 'distance', 'equal', 'largest', 'file']);
  const kNames = { name: 'Name', type: 'Type', shape: 'Shape', bytes: 'Bytes', min: 'Min', max: 'Max', mean: 'Mean',
    std: 'Std', zeros: 'Zeros', change: 'Difference', distance: 'Distance', equal: 'Equal', largest: 'Largest', file: 'File', notes: 'Notes' };
  const kWidths = { type: 84, shape: 116, bytes: 88, zeros: 100, file: 56, notes: 150, change: 130 };
  let order = rows.map((row, i) => i);
  let sorted = order;
  let sortKey = null;
  let isDown = false;
  let texts = null;
  let chosen = null; // the tensors of a cell of the layers, else all
  let active = 0; // the place in `order` that the Tab key reaches
  const shown = new Map();
  const top = make('tr', { className: 'space', ariaHidden: 'true' }, make('td', { colSpan: keys.length }));
  const bottom = top.cloneNode(true);

  const choose = (cell) => {
    chosen = cell && new Set(cell);
    input.value = '';
    filter();
  };
  const all = make('button', { type: 'button', textContent: 'Show all', hidden: true, onclick: () => { choose(null); input.focus(); } });

  const rowOf = (i) => {
    const cells = keys.map((key) => {
      const cell = make('td', { className: isNumber.has(key) ? 'n' : '' });
      const shownText = key === 'bytes' ? bytes(value(i, key)) : key === 'zeros' && text(i, key) ? grouped(value(i, key)) : text(i, key);
      if (key === 'name') cell.append(make('a', { href: '#t' + i }, make('bdi', { textContent: shownText || '(no name)' })));
      else cell.textContent = shownText;
      if (key === 'name' || key === 'notes' || key === 'change') cell.title = shownText;
      if (key === 'bytes') cell.title = text(i, key);
      return cell;
    });
    return make('tr', { className: i === tensor.shown() ? 'shown' : '' }, ...cells);
  };
  const render = () => {
    // Before rows go: what makes a browser lay out the shorter table makes it scroll.
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
    table.setAttribute('aria-rowcount', order.length + 1);
    find('#found').textContent = order.length === rows.length ? `${grouped(rows.length)} tensors`
      : `${grouped(order.length)} of ${grouped(rows.length)} tensors`;
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
    // Below the head of the table, which covers a row.
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
  const sortBy = (key) => {
    const startsDown = isNumber.has(key) || key === 'shape';
    if (sortKey !== key) { sortKey = key; isDown = startsDown; }
    else if (isDown === startsDown) isDown = !isDown;
    else sortKey = null;
    const values = rows.map((row, i) => (key === 'shape' ? elements(i) : isNumber.has(key) ? value(i, key) : key === 'name' ? i : text(i, key)));
    sorted = rows.map((row, i) => i);
    if (sortKey) {
      const sign = isDown ? -1 : 1;
      const isNone = (x) => x === '' || Number.isNaN(x);
      sorted.sort((a, b) => {
        const x = values[a];
        const y = values[b];
        if (isNone(x) || isNone(y)) return isNone(x) - isNone(y) || a - b;
        return x < y ? -sign : x > y ? sign : a - b;
      });
    }
    for (const th of table.tHead.rows[0].cells) {
      const isKey = th.key === sortKey;
      th.setAttribute('aria-sort', isKey ? (isDown ? 'descending' : 'ascending') : 'none');
      find('span', th).textContent = isKey ? (isDown ? ' ↓' : ' ↑') : '';
    }
    filter();
  };
  return {
    start() {
      find('#search').hidden = false;
      find('#found').after(all);
      scroll.hidden = false;
      table.tHead.append(make('tr', {}, ...keys.map((key) => {
        const th = make('th', { scope: 'col', className: key + (isNumber.has(key) ? ' n' : ''), 'aria-sort': 'none' },
          make('button', { type: 'button', onclick: () => sortBy(key) }, kNames[key], make('span', { ariaHidden: 'true' })));
        th.key = key;
        if (key !== 'name') th.style.width = (kWidths[key] ?? 86) + 'px';
        return th;
      })));
      table.style.minWidth = keys.reduce((sum, key) => sum + (key === 'name' ? 300 : kWidths[key] ?? 86), 0) + 'px';
      body.append(top, bottom);
      refresh();
      scroll.addEventListener('scroll', render, { passive: true });
      scroll.addEventListener('keydown', key);
      new ResizeObserver(render).observe(scroll);
      input.addEventListener('input', filter);
    },
    only(cell) {
      choose(cell);
      find('#tensors').scrollIntoView();
      input.focus();
    },
    mark() {
      for (const [i, row] of shown) row.className = i === tensor.shown() ? 'shown' : '';
    },
  };
})();

// --- one tensor

const kDigits = new Map([...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'].map((c, i) => [c, i]));
const kPixels = [...Array(61).keys()].map((i) => ramp(kDiverging, i / 60)).concat([[0, 255, 0], [0, 0, 0], [128, 128, 128]]);
const kQuantiles = ['0.1 %', '1 %', '25 %', 'median', '75 %', '99 %', '99.9 %'];

const tensor = (() => {
  const isMounted = location.pathname.endsWith('/.stfs/report.html');
  let at = null;

  const bars = (heights, width) => {
    const kSpace = 'http://www.w3.org/2000/svg';
    const svg = document.createElementNS(kSpace, 'svg');
    svg.setAttribute('viewBox', `0 0 ${width} 100`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    const path = document.createElementNS(kSpace, 'path');
    path.setAttribute('d', 'M0 100' + heights.map((h) => `V${(100 - 100 * h).toFixed(1)}h1`).join('') + 'V100Z');
    svg.append(path);
    return svg;
  };
  const histogram = (entry) => {
    const [low, high, below, above, quantiles, most, digits] = entry;
    const counts = [];
    for (let i = 0; i < digits.length; i += 2) {
      const level = kDigits.get(digits[i]) * 64 + kDigits.get(digits[i + 1]);
      counts.push(Math.expm1(level / 4095 * Math.log1p(Math.max(most, 1))));
    }
    const decades = Math.log10(2 * Math.max(most, 1));
    const parts = [
      make('figcaption', { textContent: `Values in ${counts.length} bins, at most ${grouped(most)}` }),
      bars(counts.map((count) => count / Math.max(most, 1)), counts.length),
      make('figcaption', { textContent: 'The same on a logarithmic scale' }),
      bars(counts.map((count) => (count < 0.5 ? 0 : Math.log10(2 * count) / decades)), counts.length),
      make('div', { className: 'axis' }, make('span', { textContent: short(low) }),
        make('span', { textContent: short((low + high) / 2) }), make('span', { textContent: short(high) })),
    ];
    const outside = [below > 0 ? `${grouped(below)} below` : '', above > 0 ? `${grouped(above)} above` : ''].filter(Boolean);
    if (outside.length > 0) parts.push(make('figcaption', { className: 'bad', textContent: `Outside: ${outside.join(', ')}` }));
    parts.push(make('dl', { className: 'quantiles', ariaLabel: 'Quantiles' }, ...quantiles.map((q, k) =>
      make('div', {}, make('dt', { textContent: kQuantiles[k] }), make('dd', { textContent: short(q) })))));
    return parts;
  };
  const thumbnail = ([width, digits]) => {
    const canvas = make('canvas', { width, height: Math.ceil(digits.length / width), role: 'img',
      'aria-label': 'Values as a picture: positive red, zero white, negative blue' });
    const context = canvas.getContext('2d');
    const image = context.createImageData(canvas.width, canvas.height);
    [...digits].forEach((digit, i) => image.data.set([...kPixels[kDigits.get(digit)], 255], 4 * i));
    context.putImageData(image, 0, 0);
    return [make('figcaption', { textContent: 'Values, to 3 standard deviations' }), canvas,
      make('p', { className: 'legend' }, swatch(kPixels[60], '+'), swatch(kPixels[30], '0'), swatch(kPixels[0], '−'),
        swatch(kPixels[62], 'NaN'), swatch(kPixels[61], 'infinity'))];
  };
  const facts = (i) => {
    const terms = [];
    const add = (term, ...content) => {
      if (content[0] !== '' && content[0] !== undefined) terms.push(make('dt', { textContent: term }), make('dd', {}, ...content));
    };
    const link = (j) => make('a', { href: '#t' + j }, make('bdi', { textContent: text(j, 'name') || '(no name)' }));
    add('Type', text(i, 'type'));
    add('Shape', text(i, 'shape').replaceAll('×', ' × ') || 'one value');
    add('Values', grouped(elements(i)));
    add('Bytes', `${bytes(value(i, 'bytes'))} (${grouped(value(i, 'bytes'))})`);
    add('File', make('bdi', { textContent: data.files[column.has('file') ? value(i, 'file') - 1 : 0] ?? '' }));
    add('Notes', text(i, 'notes'));
    if (data.equal[i] !== undefined && rows[data.equal[i]]) add('Equal to', link(data.equal[i]));
    for (const key of ['min', 'max', 'mean', 'std']) add(key[0].toUpperCase() + key.slice(1), text(i, key));
    if (text(i, 'std')) {
      add('RMS', short(rms(i)));
      if (value(i, 'std') > 0) add('Largest |x| / std', short(reach(i)));
    }
    if (text(i, 'zeros')) add('Zeros', `${grouped(value(i, 'zeros'))} (${share(value(i, 'zeros') / Math.max(elements(i), 1))})`);
    if (data.nan[i]) add('NaN', make('b', { className: 'bad', textContent: grouped(data.nan[i]) }));
    if (data.inf[i]) add('Infinity', make('b', { className: 'bad', textContent: grouped(data.inf[i]) }));
    if (column.has('change')) {
      add('Difference', text(i, 'change'));
      if (text(i, 'distance')) add('Relative distance', text(i, 'distance'));
      if (text(i, 'equal')) add('Equal elements', share(value(i, 'equal')));
      if (text(i, 'largest')) add('Largest difference', text(i, 'largest'));
    }
    if (isMounted) {
      const path = data.paths[i] === undefined ? text(i, 'name') : data.paths[i]; // null: too long
      const file = (name, url) => make('a', { href: url, textContent: name });
      const hasValues = text(i, 'type') !== 'C64' && elements(i) > 0;
      if (path !== null) {
        add('Files', file('bytes', '../' + path), ' · ', file('statistics', `stats/${path}.json`), ...(hasValues
          ? [' · ', file('picture', `png/${path}.png`), ' · ', file('histogram', `hist/${path}.svg`)] : []));
      }
    }
    return make('dl', {}, ...terms);
  };
  const show = (i) => {
    at = i;
    find('#tensor').hidden = false;
    find('#tensor-heading').replaceChildren(make('bdi', { textContent: text(i, 'name') || '(no name)' }));
    find('#facts').replaceChildren(facts(i));
    const entry = pictures.get(i);
    find('#histogram').replaceChildren(...(entry?.[1] ? histogram(entry[1]) : []));
    find('#thumbnail').replaceChildren(...(entry?.[2] ? thumbnail(entry[2]) : []));
    find('#previous').disabled = i === 0;
    find('#next').disabled = i + 1 === rows.length;
    list.mark();
  };
  const fromHash = () => {
    const match = /^#t(\d+)$/.exec(location.hash);
    if (!match || Number(match[1]) >= rows.length) return false;
    show(Number(match[1]));
    find('#tensor').scrollIntoView();
    find('#tensor-heading').focus({ preventScroll: true });
    return true;
  };
  return {
    shown: () => at,
    start() {
      addEventListener('hashchange', fromHash);
      // The link to the tensor that is shown already changes no hash.
      addEventListener('click', (event) => {
        const link = event.target.closest?.('a[href^="#t"]');
        if (link && link.getAttribute('href') === location.hash) fromHash();
      });
      find('#previous').onclick = () => open(at - 1);
      find('#next').onclick = () => open(at + 1);
      if (!fromHash() && rows.length > 0) {
        const odd = find('.findings a')?.getAttribute('href').slice(2);
        show(odd === undefined ? 0 : Number(odd));
      }
    },
  };
})();

list.start();
map.start();
tensor.start();
if (stacks.length > 0) {
  new Layers(find('#layers'), ['rms', 'reach', 'zeros']);
  if (find('#difference')) {
    const grid = find('#layers').cloneNode(true);
    grid.id = 'changes';
    find('h2', grid).replaceWith(make('h3', { id: 'changes-heading', textContent: 'By layer' }));
    for (const part of [grid, find('table', grid)]) part.setAttribute('aria-labelledby', 'changes-heading');
    for (const select of grid.querySelectorAll('select')) select.replaceChildren();
    find('#difference').append(grid);
    new Layers(grid, ['distance', 'equal']);
  }
}
})();
