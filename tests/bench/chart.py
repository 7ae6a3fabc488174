"""A picture of the rows that have another program as their peer: bars, 1 is as fast as the peer. For light and dark pages."""
import html
import math

# Other programs: what else is named as a peer is a limit, and no program is faster than its limit.
PEERS = ("squashfuse", "ext4", "NumPy", "numpy", "sha256sum", "rclone", "curl", "ggml", "gguf", "zstd", "safetensors", "torch", "PyTorch", "Python", "patch")
WIDTH, LEFT, ROW, MOST = 1000, 620, 24, 32  # pixels, and the longest bar's ratio
LONGEST = 90  # characters of a label that fit to the left of all bars
STYLE = """text{font:13px system-ui,sans-serif;fill:#1f2328}.peer{fill:#59636e}.bar{fill:#0969da}.slow{fill:#bc4c00}.one{stroke:#59636e}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.peer{fill:#9198a1}.bar{fill:#4493f8}.slow{fill:#db6d28}.one{stroke:#9198a1}}"""


def bars(rows):
    """(work, peer, how many times as fast): a row with a target of at most is a ratio of times."""
    for row in rows:
        if "skipped" in row or row["median"] <= 0 or not any(name in row["peer"] for name in PEERS):
            continue
        fast = 1 / row["median"] if row["target"].startswith("<=") else row["median"]
        yield row["work"].replace("`", ""), row["peer"].replace("`", ""), fast


def draw(rows):
    """The text of an SVG file."""
    found = list(bars(rows))
    unit = (WIDTH - LEFT - 60) / (2 * math.log2(MOST))
    one = LEFT + (WIDTH - LEFT - 60) / 2
    height = ROW * len(found) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
           f'aria-label="Speed of stfs beside other programs">', f"<style>{STYLE}</style>",
           f'<text x="{one - 8:.0f}" y="18" text-anchor="end" class="peer">slower</text>',
           f'<text x="{one + 8:.0f}" y="18" class="peer">faster than the peer</text>']
    for number, (work, peer, fast) in enumerate(found):
        y = 28 + ROW * number
        length = max(-math.log2(MOST), min(math.log2(MOST), math.log2(fast))) * unit
        if len(work) + len(peer) > LONGEST:
            peer = peer[:LONGEST - len(work) - 1] + "…"
        # One text of two colours, so that a long name pushes the peer along and never lies under it.
        out.append(f'<text x="4" y="{y + 15}">{html.escape(work)} <tspan class="peer">/ {html.escape(peer)}</tspan></text>')
        out.append(f'<rect class="{"bar" if length >= 0 else "slow"}" x="{min(one, one + length):.1f}" y="{y + 3}" '
                   f'width="{abs(length):.1f}" height="{ROW - 8}" rx="2"/>')
        out.append(f'<text x="{one + max(length, 0) + 5:.1f}" y="{y + 15}">{f"{fast:.2g}" if fast < 10 else f"{fast:.0f}"} ×</text>')
    out.append(f'<line class="one" x1="{one:.1f}" y1="24" x2="{one:.1f}" y2="{height - 10}"/></svg>')
    return "\n".join(out) + "\n"
