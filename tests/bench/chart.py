"""Draws the rows that have another program as their peer as bars, for light and dark pages. 1 is as fast as the peer."""
import html
import math

# Names of other programs. Every other peer is a limit, and no program is faster than its limit.
PEERS = ("squashfuse", "ext4", "NumPy", "numpy", "sha256sum", "rclone", "curl", "ggml", "gguf", "zstd", "safetensors", "torch", "PyTorch", "Python", "patch")
WIDTH, LEFT, ROW, MAX_RATIO = 1000, 620, 24, 32  # pixels, and the ratio of the longest bar
LONGEST = 90  # characters of a label that fit to the left of every bar
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.peer{fill:#59636e}.bar{fill:#0969da}.slow{fill:#bc4c00}.one{stroke:#59636e}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.peer{fill:#9198a1}.bar{fill:#4493f8}.slow{fill:#db6d28}.one{stroke:#9198a1}}"""


def bars(rows):
    """Yields (work, peer, speed ratio). A row with a target of "<=" is a ratio of times and is inverted."""
    for row in rows:
        if "skipped" in row or row["median"] <= 0 or not any(name in row["peer"] for name in PEERS):
            continue
        fast = 1 / row["median"] if row["target"].startswith("<=") else row["median"]
        yield row["work"].replace("`", ""), row["peer"].replace("`", ""), fast


def draw(rows):
    """Returns the text of an SVG file."""
    found = list(bars(rows))
    unit = (WIDTH - LEFT - 60) / (2 * math.log2(MAX_RATIO))
    one = LEFT + (WIDTH - LEFT - 60) / 2
    height = ROW * len(found) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
           f'aria-label="Speed of stfs beside other programs">', f"<style>{STYLE}</style>",
           f'<text x="{one - 8:.0f}" y="18" text-anchor="end" class="peer">slower</text>',
           f'<text x="{one + 8:.0f}" y="18" class="peer">faster than the peer</text>']
    for number, (work, peer, fast) in enumerate(found):
        y = 28 + ROW * number
        length = max(-math.log2(MAX_RATIO), min(math.log2(MAX_RATIO), math.log2(fast))) * unit
        if len(work) + len(peer) > LONGEST:
            peer = peer[:LONGEST - len(work) - 1] + "…"
        # One text in two colours, so that a long name moves the peer to the right and never overlaps it.
        out.append(f'<text x="4" y="{y + 15}">{html.escape(work)} <tspan class="peer">/ {html.escape(peer)}</tspan></text>')
        out.append(f'<rect class="{"bar" if length >= 0 else "slow"}" x="{min(one, one + length):.1f}" y="{y + 3}" '
                   f'width="{abs(length):.1f}" height="{ROW - 8}" rx="2"/>')
        out.append(f'<text x="{one + max(length, 0) + 5:.1f}" y="{y + 15}">{f"{fast:.2g}" if fast < 10 else f"{fast:.0f}"} ×</text>')
    out.append(f'<line class="one" x1="{one:.1f}" y1="24" x2="{one:.1f}" y2="{height - 10}"/></svg>')
    return "\n".join(out) + "\n"
