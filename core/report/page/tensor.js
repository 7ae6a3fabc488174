// --- one tensor

const kDigits = new Map([...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'].map((c, i) => [c, i]));
const pixelColors = () => [...Array(61).keys()].map((i) => ramp(dark.matches ? kDarkDiverging : kDiverging, i / 60))
  .concat([[0, 200, 0], dark.matches ? [255, 235, 59] : [0, 0, 0], [128, 128, 128]]);
const kQuantiles = ['0.1 %', '1 %', '25 %', 'median', '75 %', '99 %', '99.9 %'];

const tensor = (() => {
  const isMounted = location.pathname.endsWith('/.stfs/report.html');
  let at = null;

  const kSpace = 'http://www.w3.org/2000/svg';
  // Draws heights between 0 and 1 as bars, and the heights of the other checkpoint as a line.
  const bars = (heights, before) => {
    const svg = document.createElementNS(kSpace, 'svg');
    svg.setAttribute('viewBox', `0 0 ${heights.length} 100`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('aria-hidden', 'true');
    const draw = (list, style, close) => {
      const path = document.createElementNS(kSpace, 'path');
      path.setAttribute('class', style);
      path.setAttribute('d', 'M0 100' + list.map((h) => `V${(100 - 98 * h).toFixed(1)}h1`).join('') + 'V100' + close);
      svg.append(path);
    };
    draw(heights, 'now', 'Z');
    if (before) draw(before, 'before', '');
    return svg;
  };
  const countsOf = (most, digits) => {
    const counts = [];
    for (let i = 0; i < digits.length; i += 2) {
      const level = kDigits.get(digits[i]) * 64 + kDigits.get(digits[i + 1]);
      counts.push(Math.expm1(level / 4095 * Math.log1p(Math.max(most, 1))));
    }
    return counts;
  };
  const histogram = ([low, high, quantiles, below, above, most, digits], before) => {
    const counts = countsOf(most, digits);
    const old = before && countsOf(before[2], before[3]);
    const top = Math.max(most, before?.[2] ?? 0, 1);
    const decades = Math.log10(2 * top);
    const even = (list) => list?.map((count) => count / top);
    const steep = (list) => list?.map((count) => (count < 0.5 ? 0 : Math.log10(2 * count) / decades));
    const parts = [
      make('figcaption', { textContent: `Values in ${counts.length} bins, at most ${grouped(top)}` }),
      bars(even(counts), even(old)),
      make('figcaption', { textContent: 'The same on a logarithmic scale' }),
      bars(steep(counts), steep(old)),
      make('div', { className: 'axis' }, make('span', { textContent: short(low) }),
        make('span', { textContent: short((low + high) / 2) }), make('span', { textContent: short(high) })),
    ];
    if (old) parts.push(make('p', { className: 'legend' }, make('span', { className: 'now', textContent: 'now' }), make('span', { className: 'before', textContent: 'before' })));
    const outside = [below > 0 ? `${grouped(below)} below` : '', above > 0 ? `${grouped(above)} above` : ''].filter(Boolean);
    if (outside.length > 0) parts.push(make('figcaption', { className: 'outside', textContent: `Outside: ${outside.join(', ')}` }));
    parts.push(make('dl', { className: 'quantiles', ariaLabel: 'Quantiles' }, ...quantiles.map((q, k) =>
      make('div', {}, make('dt', { textContent: kQuantiles[k] }), make('dd', { textContent: short(q) })))));
    return parts;
  };
  const thumbnail = ([width, digits, isStrength, middle, limit]) => {
    const colors = pixelColors();
    const canvas = make('canvas', { width, height: Math.ceil(digits.length / width), role: 'img',
      'aria-label': isStrength ? 'The RMS of each block of the tensor against that of all, as a picture' : 'Values as a picture' });
    const context = canvas.getContext('2d');
    const image = context.createImageData(canvas.width, canvas.height);
    [...digits].forEach((digit, i) => image.data.set([...colors[kDigits.get(digit)], 255], 4 * i));
    context.putImageData(image, 0, 0);
    // Without this limit, a wide picture of few rows would be too flat to see.
    canvas.style.aspectRatio = canvas.width / Math.max(canvas.height, canvas.width / 4);
    const ends = isStrength ? [`× ${short(limit)}`, short(middle), `÷ ${short(limit)}`]
      : [middle + limit, middle, middle - limit].map(short);
    const marks = [[62, 'NaN'], [61, 'infinity']].filter(([i]) => digits.includes([...kDigits.keys()][i]));
    return [make('figcaption', { textContent: isStrength ? 'RMS of each block, against that of the tensor' : 'Values, to 3 standard deviations' }), canvas,
      make('p', { className: 'legend' }, swatch(colors[60], ends[0]), swatch(colors[30], ends[1]), swatch(colors[0], ends[2]),
        ...marks.map(([i, name]) => swatch(colors[i], name)))];
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
    const places = data.places[i] ?? {};
    const broken = (term, count, at) => count && add(term, make('b', { className: 'bad', textContent: grouped(count) }), at ? ` at ${at}` : '');
    if (places.largest) add('Largest |x|', `${short(Math.max(Math.abs(value(i, 'min')), Math.abs(value(i, 'max'))))} at ${places.largest}`);
    broken('NaN', data.nan[i], places.nan);
    broken('Infinity', data.inf[i], places.inf);
    if (places.look) add('Values around', make('code', { textContent: places.look }));
    if (isAgainst) {
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
    find('#histogram').replaceChildren(...(entry?.h ? histogram(entry.h, entry.b) : []));
    find('#thumbnail').replaceChildren(...(entry?.p ? thumbnail(entry.p) : []));
    find('#previous').disabled = i === 0;
    find('#next').disabled = i + 1 === kTensors;
    list.mark();
  };
  const fromHash = () => {
    const match = /^#t(\d+)$/.exec(location.hash);
    if (!match || Number(match[1]) >= kTensors) return false;
    show(Number(match[1]));
    find('#tensor').scrollIntoView();
    find('#tensor-heading').focus({ preventScroll: true });
    return true;
  };
  return {
    shown: () => at,
    start() {
      addEventListener('hashchange', fromHash);
      // A click on a link to the tensor that is already shown does not change the hash.
      addEventListener('click', (event) => {
        const link = event.target.closest?.('a[href^="#t"]');
        if (link && link.getAttribute('href') === location.hash) fromHash();
      });
      find('#previous').onclick = () => open(at - 1);
      find('#next').onclick = () => open(at + 1);
      dark.addEventListener('change', () => { if (at !== null) show(at); });
      if (!fromHash() && kTensors > 0) {
        const odd = find('.far a, .findings a')?.getAttribute('href').slice(2);
        show(odd === undefined ? 0 : Number(odd));
      }
    },
  };
})();

list.start();
map.start();
tensor.start();
if (stacks.length > 0) {
  new Layers(find('#layers'), [...(isAgainst ? ['distance', 'equal'] : []), 'rms', 'reach', 'zeros']);
}
})();
