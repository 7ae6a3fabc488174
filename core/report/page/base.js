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

// --- the tensors: one line per tensor in the table in <noscript>

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
  if (data.elements[i] !== undefined) return data.elements[i]; // has more dimensions than the row shows
  const shape = rows[i][column.get('shape')];
  return shape ? shape.split('×').reduce((product, dim) => product * Number(dim), 1) : 1;
};
const rms = (i) => Math.hypot(value(i, 'mean'), value(i, 'std'));
const reach = (i) => Math.max(-value(i, 'min'), value(i, 'max')) / value(i, 'std');
const pictures = new Map(data.pictures);
// The rows after the tensors are rows of removed tensors.
const kTensors = data.tensors;
const each = (act) => { for (let i = 0; i < kTensors; ++i) act(i); };
const isAgainst = column.has('change');
const isBroken = (i) => data.severity[i] === 2;
// The distance of a tensor from the other checkpoint: 0 if equal, infinite if no number expresses it.
const change = (i) => {
  const kind = text(i, 'change');
  if (kind === 'equal') return 0;
  const distance = value(i, 'distance');
  return Number.isNaN(distance) ? Infinity : distance;
};
// What is broken in a tensor, short enough for a cell.
const fault = (i) => (data.nan[i] ? 'NaN' : data.inf[i] ? '∞' : value(i, 'zeros') === elements(i) ? '0' : '!');

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
// From dark to light and from blue to yellow, so that people with colour blindness can distinguish the colours.
const kRising = [[58, 44, 116], [45, 95, 148], [34, 146, 141], [112, 199, 99], [248, 226, 66]];
const kWhite = [255, 255, 255];
const kBroken = [207, 34, 46];
// As in the pictures of core/values/picture/png.h: white is the middle, or a dark colour on a dark page.
const kDiverging = [[20, 80, 165], [120, 180, 220], [255, 255, 255], [244, 165, 130], [202, 48, 40]];
const kDarkDiverging = [[110, 180, 255], [50, 95, 150], [28, 33, 40], [150, 72, 52], [255, 150, 115]];
// Red means broken, so the scale for comparisons with others of the same kind ends in orange.
const kAgainst = [[38, 98, 170], [148, 190, 226], [246, 247, 248], [248, 200, 120], [217, 119, 6]];
const kDarkAgainst = [[96, 165, 250], [40, 84, 136], [33, 39, 47], [128, 84, 20], [245, 166, 35]];
const against = () => (dark.matches ? kDarkAgainst : kAgainst);
// For unchanged tensors and for zero.
const still = () => (dark.matches ? [48, 54, 61] : [226, 230, 234]);
// These colours differ in lightness too.
const kTypeColors = [[68, 119, 170], [204, 187, 68], [34, 136, 51], [238, 102, 119], [102, 204, 238],
  [170, 51, 119], [90, 70, 60]];
const kOther = [128, 128, 128];
// Returns black or white, whichever has more contrast.
const ink = (color) => {
  const [red, green, blue] = color.map((c) => (c / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? '#000' : '#fff';
};

// Returns a drawing context with the resolution of the screen.
const sized = (canvas, width, height) => {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  return context;
};

// Shows a group of buttons; exactly one of them is pressed.
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

