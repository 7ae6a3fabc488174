// --- layers x roles

// "model.layers.3.mlp.experts.7.up.weight": stack "model.layers", layer 3, role
// "mlp.experts.*.up.weight", expert 7.
const placed = rows.map((row, i) => {
  if (i >= kTensors) return null;
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

// Returns the mean over all elements of several tensors.
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
  distance: { name: 'Relative distance', of: weighted((i) => value(i, 'distance')), show: short, scale: 'log', isChange: true },
  equal: { name: 'Share of equal elements', of: weighted((i) => value(i, 'equal')), show: share, scale: 'share', isChange: true },
};

// Colours a number relative to the median of its column, or between the smallest and the largest number.
const colouring = (metric, columns) => {
  const all = columns.flat().filter((x) => Number.isFinite(x) && x > 0);
  if (metric.scale === 'median') {
    const medians = columns.map((column) => {
      const sorted = column.filter((x) => x > 0 && Number.isFinite(x)).sort((a, b) => a - b);
      return sorted[Math.floor(sorted.length / 2)];
    });
    const stops = against();
    return {
      color: (x, j) => ramp(stops, medians[j] ? 0.5 + Math.log2(x / medians[j]) / 4 : 0.5),
      legend: () => [make('span', { textContent: 'Against the median of its column:' }),
        rampLegend(stops, 'a quarter', 'four times')],
    };
  }
  if (metric.scale === 'log') {
    // Ignore the few extreme numbers, which would leave the same colour to all others.
    all.sort((a, b) => a - b);
    const low = Math.log(all[Math.floor(all.length * 0.02)]);
    const high = Math.log(all[Math.ceil(all.length * 0.98) - 1]);
    return {
      color: (x) => (x > 0 ? ramp(kRising, high > low ? (Math.log(x) - low) / (high - low) : 0) : still()),
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
      const broken = cell.find(isBroken);
      const odd = cell.some((i) => data.severity[i] === 1);
      const lost = metric.isChange ? cell.find((i) => !Number.isFinite(change(i))) : undefined;
      const isRed = metric.isChange ? lost !== undefined && /finite|NaN/.test(text(lost, 'change')) : broken !== undefined;
      const color = isRed ? kBroken : Number.isNaN(number) ? kOther : scale.color(number, x);
      const what = isRed ? fault(lost ?? broken) : '';
      const isShare = what === '0' && metric === kMetrics.zeros; // the number shows it already
      td.textContent = isRed && !isShare ? what : lost !== undefined ? text(lost, 'change').split(',')[0] : metric.show(number);
      td.title = `layer ${layer}, ${role}: ${metric.name} ${metric.show(number)}${broken !== undefined ? `, broken (${fault(broken)})` : odd ? ', odd' : ''}`;
      td.setAttribute('aria-label', td.title);
      td.style.background = css(color);
      td.style.color = ink(color);
      if (odd && !metric.isChange) td.classList.add('odd');
      td.tabIndex = -1;
      td.cell = cell;
      return td;
    })));
    this.table.replaceChildren(make('thead', {}, head), make('tbody', {}, ...body));
    const start = find('td[tabindex]', this.table);
    if (start) start.tabIndex = 0;
    const more = stack.layers.size > layers.length || stack.roles.size > roles.length;
    find(':scope > .legend', this.section).replaceChildren(...scale.legend(), swatch(kBroken, metric.isChange ? 'NaN or infinity on one side' : 'broken'),
      ...(metric.isChange ? [swatch(still(), 'equal')] : []),
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
      const color = isBroken(i) ? kBroken : Number.isNaN(number) || number < 0 ? kOther : scale.color(number, x);
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
      (i < 0 ? 'none' : `${this.metric.name} ${this.metric.show(this.numbers[x][y])}${isBroken(i) ? `, broken (${fault(i)})` : ''}`);
  }
  enter() {
    const i = this.tensor();
    if (i >= 0) open(i);
  }
}

