#!/usr/bin/python3
"""Makes docs/MESSAGES.md, the table of every message, from the source and advice.tsv.

  table.py          fails (status 1) unless the table is the one that the source makes
  table.py --write  writes it

A message is made where an Error is constructed, a line is logged, a warning is stored, or standard
error is written. This program reads the tokens of each such expression. It joins what is joined
with +, follows ?: into both branches, puts in the values of local variables and of functions that
return a text, and names everything else in capitals: in_quotes(tensor.name) is "NAME". Where the
text or the error is a parameter, the function is a helper, and each of its calls makes a message.

It fails for a message that it cannot read, and for one without advice: a message ends in a hint
("rule (what to do)", "rule: do this"), or a line of advice.tsv matches it.
"""

import ast
import difflib
import re
import sys

from cpp import ROOT, File, Token, Unreadable, is_op, split, tokens_of
from texts import LOGS, Reader

TABLE = ROOT / 'docs' / 'MESSAGES.md'
ADVICE = ROOT / 'docs' / 'messages' / 'advice.tsv'
# Functions that answer or keep a text: the numbers of the arguments with the error and the text.
SINKS = {('tools/gpu/holder/residency.cpp', 'error_body'): (0, 1),
         ('tools/gpu/copier/copier.cpp', 'error_answer'): (1, 2),
         ('tools/gpu/library/library.cpp', 'fail'): (0, 1)}
# (file, variable that keeps a text): the error that it becomes, and its place where the text has none.
STORED = {('core/format/index.cpp', 'error'): ('InvalidIndex', 'place'),
          ('core/source/cache.cpp', 'unusable_'): ('Unreadable', ''),
          ('tools/gpu/copier/transfer.cpp', 'note'): ('warning', ''),
          ('tools/gpu/device/cuda_device.cpp', 'why_host_converts_'):
              ('warning', '"N tensors were converted on the host, which is slower"')}
# Rows of a constant table with two texts: the error, and what a message makes of the texts.
TABLES = {('core/checkpoint/schemes.cpp', 'kRefused'): ('Quantized', 'tensor "NAME{}": {}'),
          ('core/format/guess.cpp', 'kFileKinds'): ('InvalidHeader', 'the file {} ({}): RULE')}
# (file, list) of lines that are printed as they are.
NOTES = {('tools/gpu/client/selection.cpp', 'lines')}
# Calls whose text is a command's output, and not a message; or a part that NAMED_PARAMETERS names.
OUTPUT_CALLS = {'print', 'printf', 'snprintf', 'check', 'checked', 'scalar', 'starts_with', 'static_assert', 'asm', 'volatile'}
# file: its functions, tables, or texts, that are output or a part of a message that cannot be seen.
OUTPUT = {
    'core/base/command.cpp': {'help_text'},
    'core/checkpoint/schemes.cpp': {'kSchemes', 'kPlain', 'kLeft'},
    'core/format/guess.cpp': {'with_words', 'is_page', 'finish the download', 'has the name of an unfinished download',
                              'has the name of a GGUF file and does not begin with GGUF'},
    'core/picture/histogram.cpp': {'<style>:root{color-scheme:light dark}', 'Svg::text', 'Svg::line', 'Svg::box', 'Svg::bars',
                                   "text{font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif;fill:#59636e;fill:var(--s)}",
                                   'draw_counts', 'draw_numbers', 'histogram_svg'},
    'core/report/collect.cpp': {'failure_of'},
    'core/report/findings.cpp': {'suspicion_of', 'Findings::add_unreadable', 'Findings::add_missing', 'Findings::add_scales',
                                 'Findings::add_equal', 'add_findings'},
    'core/report/page.cpp': {'heading', 'figures', 'types_table', 'what', 'kUnreadable', 'kAllZero', 'kConstant', 'kEqual', 'kScale',
                             'kMissing', 'link', 'finding_html', 'health', 'difference', 'whole_page'},
    'core/report/page_data.cpp': {'change_text', 'notes_of', 'rows_html'},
    'core/source/build.cpp': {'version_text'},
    'core/source/cache.cpp': {'# This directory is a cache of stfs: https://bford.info/cachedir/\n'},
    'core/source/fetcher_requests.cpp': {'the answer ended early'},  # a retry, which a later line tells
    'core/source/http.cpp': {'set_headers', 'no memory', 'http_libraries'},
    'core/source/http_retry.cpp': {'parse_http_date'},
    'core/source/hub_api.cpp': {'Invalid credentials in Authorization header'},  # the Hub's own
    'core/source/s3_credentials.cpp': {'Content-Type: application/x-www-form-urlencoded'},
    'core/source/source_rows.h': {'source_rows'},
    'fs/fuse/main.cpp': {'-o allow_missing mounts the rest', 'header_progress'},
    'fs/fuse/mount.cpp': {'with_advice'},
    'tools/gpu/client/device_verbs.cpp': {'doctor', 'bench'},
    'tools/gpu/client/resident_verbs.cpp': {'filter_of'},
    'tools/gpu/copier/item.cpp': {'Item::label'},
    'tools/gpu/device/cpu_device.cpp': {'cpu_info'},
    'tools/gpu/device/cuda_device.cpp': {'finding_of', 'mode_finding', 'cuda_findings'},
    'tools/info/cache_verb.cpp': {'text_of'},
    'tools/info/copy_verbs.cpp': {'standard output'},
    'tools/info/info_verb.cpp': {'print_oddities'},
    'tools/info/report_verb.cpp': {'standard output'},
    'tools/info/value_verbs.cpp': {'DiffRows::words', 'summarize'},
    'tools/info/verbs.h': {'--allow-missing reads the rest'},
}
STATUS = {'Usage': 2, 'Unreadable': 3, 'MissingShard': 3, 'MountFailed': 4, 'DeviceFailed': 5}


# --- places that make messages

def summed(parts):
    return [token for part in parts for token in (Token('op', '+', part[0].line), *part)][1:]


def formatted(arguments):
    """The tokens of printf's format and arguments as a sum."""
    literals, *values = arguments
    if any(t.kind != 'str' for t in literals):
        raise Unreadable('a format that is no literal')
    for token in literals:
        token.is_read = True
    line, parts = literals[0].line, []
    text = re.sub('^(stfs|stfs-gpu): ', '', ''.join(t.text for t in literals)).rstrip('\n')
    for piece in re.split(r'(%[-0-9.*]*(?:ll|l|z)?[a-zA-Z])', text):
        value = values.pop(0) if piece.startswith('%') else None
        if piece == '%s':
            parts.append([Token('op', '(', line), *value, Token('op', ')', line)])
        elif piece:
            parts.append([Token('id', 'n', line) if value else Token('str', piece, line)])
    return summed(parts)


def following_code(file, bracket):
    """The error of the exit status that is returned right after."""
    for i in range(file.match[bracket], min(file.match[bracket] + 12, len(file.tokens) - 4)):
        if file.tokens[i].text == 'exit_status' and file.tokens[i + 2].text == 'ErrorCode':
            return file.tokens[i + 2:i + 5]
    return None


def cause(file, bracket):
    """The text of an HttpEnd or a Verdict: {EIO, TEXT}, {Kind::kRefused, TEXT}, fail(EACCES, TEXT)."""
    arguments = split(file.tokens[bracket + 1:file.match[bracket]], ',')
    arguments = arguments[-2:] if len(arguments) == 4 else arguments  # Fetcher's fail()
    if not file.path.startswith('core/source/') or len(arguments) != 2 or not arguments[0] or not arguments[1]:
        return None
    if not re.fullmatch(r'(.* )?(E[A-Z]+|Kind :: k\w+)', ' '.join(t.text for t in arguments[0])):
        return None
    text = arguments[1]
    return text[3:] if [t.text for t in text[:3]] == ['.', 'text', '='] else text


def places(file, errors):
    """(bracket, (code, place, text), kind) of each place in a file that makes a message.

    `errors` has the names of classes of errors, and of functions that return one.
    """
    tokens, match = file.tokens, file.match
    for i in range(len(tokens) - 1):
        token, following = tokens[i], tokens[i + 1]
        if (file.path, token.text) in TABLES and is_op(following, '[') and is_op(tokens[i + 3], '='):
            yield from table_rows(file, i + 4)
        if token.text == 'return' and is_op(following, '{'):
            function = file.function_at(i)
            arguments = split(tokens[i + 2:match[i + 1]], ',')
            if function and function.name in errors - OUTPUT.get(file.path, set()) and len(arguments) == 3:
                yield i + 1, arguments, 'the same'
        if (file.path, token.text) in STORED and is_op(following, '='):
            code, place = STORED[(file.path, token.text)]
            yield i, (tokens_of('ErrorCode::k' + code), tokens_of(place), file.statement(i + 2)), 'the same'
        if token.text == 'throw' and not is_op(following, ';'):
            words = [t.text for t in tokens[i + 1:i + 5]]
            is_stored = words[0] == '*' and file.statement(i)[-1].text == 'error'  # *opened[i].error
            if words[0] not in errors and words[:3] != ['std', '::', 'bad_alloc'] and not is_stored:
                raise Unreadable(f'{file.path}:{token.line}: throws something else')
        if is_op(following, '{') or (token.text == 'fail' and is_op(following, '(')):
            text = cause(file, i + 1)
            if text and not (len(text) == 2 and is_op(text[0], '{')):
                yield i + 1, (None, [], text), 'cause'
                continue
        if token.kind != 'id' or not is_op(following, '(', '{'):
            continue
        bracket = i + 1
        arguments = split(tokens[bracket + 1:match[bracket]], ',')
        if token.text in ('Error', 'DriverError'):
            if following.text == '{' or len(arguments) == 1:
                continue  # the class, or a copy
            if len(arguments) != 3:
                raise Unreadable(f'{file.path}:{token.line}: an Error of {len(arguments)} arguments')
            yield bracket, arguments, 'the same'
        elif token.text in ('emplace', 'make_exception_ptr') and arguments and \
                [t.text for t in arguments[0][:2]] == ['ErrorCode', '::']:
            yield bracket, arguments, 'the same'
        elif (file.path, token.text) in SINKS and file.function_at(i):
            code, text = SINKS[(file.path, token.text)]
            yield bracket, (arguments[code], [], arguments[text]), 'the same'
        elif token.text == 'fprintf' and arguments[0][0].text == 'stderr' and \
                re.search('[A-Za-z]{3}|%s', ''.join(t.text for t in arguments[1]).split('\r')[0]):  # no bar of progress
            yield bracket, (following_code(file, bracket), [], formatted(arguments[1:])), 'note'
        elif token.text == 'write' and arguments and arguments[0] and arguments[0][-1].text == 'STDERR_FILENO':
            yield bracket, (None, [], arguments[1]), 'note'
        elif token.text in LOGS and file.function_at(i) and len(arguments) == 1 and \
                tokens[i - 1].kind == 'op':
            yield bracket, (None, [], arguments[0]), 'log'
        elif token.text == 'log' and file.path.startswith('core/source/fetcher') and len(arguments) == 2 and \
                file.function_at(i):
            yield bracket, (None, [], arguments[1]), 'log'
        elif file.path == 'core/source/sources.cpp' and token.text == 'warn' and file.function_at(i) and \
                not is_op(tokens[i - 1], '.'):
            yield bracket, (None, [], arguments[0]), 'warning'
        elif token.text == 'push_back' and (tokens[i - 2].text in ('warnings', 'warnings_') or
                                            (file.path, tokens[i - 2].text) in NOTES):
            yield bracket, (None, [], arguments[0]), 'warning'
        elif token.text in ('perror', 'warnx', 'errx'):
            raise Unreadable(f'{file.path}:{token.line}: {token.text}')


def table_rows(file, brace):
    """The messages of a table in TABLES."""
    code, text = TABLES[(file.path, file.tokens[brace - 4].text)]
    for row in split(file.tokens[brace + 1:file.match[brace]], ','):
        fields = [f for f in split(row[1:-1], ',') if f and
                  all(t.kind == 'str' or re.fullmatch('k[A-Z].*', t.text) for t in f)]
        if len(fields) < 2:
            continue
        before, between, after = ([Token('str', part, row[0].line)] for part in text.split('{}'))
        yield brace, (tokens_of('ErrorCode::k' + code), tokens_of('place'),
                      summed([before, fields[0], between, fields[1], after])), 'the same'


def check_literals(file):
    """Every literal of several words is in a message, or in output."""
    calls, failures = [], []
    for i, token in enumerate(file.tokens):
        if is_op(token, '('):
            calls.append(file.tokens[i - 1].text)
        elif is_op(token, ')'):
            calls.pop()
        if token.kind != 'str' or token.is_read or not re.search('[A-Za-z]{2}.* [a-z]|[a-z] .*[A-Za-z]{2}', token.text):
            continue
        function = file.function_at(i)
        if function is None and re.search('options|/command|error', file.path):
            continue  # the tables of the commands
        title = function.title() if function else next(
            (t.text for t in reversed(file.tokens[:i]) if re.match('k[A-Z]', t.text)), '')
        if OUTPUT_CALLS.intersection(calls) or {title, token.text} & OUTPUT.get(file.path, set()):
            continue
        failures.append(f'{file.path}:{token.line}: is "{token.text}" in {title} a message?')
    return failures


def messages():
    """[(kind or error, line, file, function)]"""
    paths = sorted(p for d in ('core', 'fs', 'tools') for s in ('cpp', 'h') for p in (ROOT / d).rglob(f'*.{s}'))
    files = [File(path) for path in paths]
    reader = Reader(files)
    found, failures = [], reader.failures
    errors = {'Error', 'DriverError', 'OutOfDeviceMemory'} | {
        name.text for file in files for error, name, bracket in zip(file.tokens, file.tokens[1:], file.tokens[2:])
        if error.text == 'Error' and name.kind == 'id' and is_op(bracket, '(')}
    for file in files:
        if file.path.startswith('core/base/error.'):
            continue
        for bracket, expressions, kind in places(file, errors):
            try:
                for code, line, path, function in reader.read(file, bracket, expressions):
                    if '\x1b' in line:
                        continue  # a bar of progress
                    line = re.sub('[\x01\x02\n]', '', line).replace('\t', ' ')
                    line = re.sub('^(PROGRAM|stfs|stfs-gpu): ', '', line)
                    if line.startswith('warning: '):
                        code, line = 'warning', line.removeprefix('warning: ')
                    found.append((code or kind, line, path, function))
            except Unreadable as error:
                failures.append(f'{file.path}:{file.tokens[bracket].line}: {error}')
    for file in files:
        failures += check_literals(file)
    if failures:
        raise Unreadable('\n'.join(failures))
    return found


def python_messages():
    """Those of the Python module, which raises exceptions of its own."""
    path = 'tools/gpu/library/python/stfs_gpu.py'
    found = []

    def visit(node, name):
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = f'{name}.{child.name}'.strip('.')
            elif isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and child.exc.args:
                text = child.exc.args[-1]
                for text in [text.body, text.orelse] if isinstance(text, ast.IfExp) else [text]:
                    if not isinstance(text, (ast.Constant, ast.JoinedStr)):
                        continue  # the text of an error that is made elsewhere, or a name
                    values = text.values if isinstance(text, ast.JoinedStr) else [text]
                    line = ''.join(str(v.value) if isinstance(v, ast.Constant) else
                                   re.findall(r'[A-Za-z]+', ast.unparse(v.value))[-1].upper() for v in values)
                    found.append((child.exc.func.id if child.exc.func.id != 'Error' else 'Usage', line, path, inner))
            visit(child, inner)
    visit(ast.parse((ROOT / path).read_text()), '')
    return found


# --- the table

SECTIONS = (
    ('Exit status 1: the checkpoint breaks its format', lambda e: e in BROKEN, ''),
    ('Exit status 2: wrong usage', lambda e: e == 'Usage',
     'stfs puts `-o OPTION: ` before the rule of an option of `-o`.'),
    ('Exit status 3: a file cannot be read or written', lambda e: STATUS.get(e) == 3, ''),
    ('Exit status 4: the mount failed', lambda e: STATUS.get(e) == 4,
     'A message of libfuse or fusermount3 may stand here too, after the mountpoint.'),
    ('Exit status 5: the device failed', lambda e: STATUS.get(e) == 5, ''),
    ('Other messages of a command', lambda e: e in OTHERS.values(), ''),
    ('Additions to other messages', lambda e: e == 'the same',
     'MESSAGE is one of the messages above, and the exit status is its own.'),
    ('Causes: the network and its servers', lambda e: e == 'cause',
     'Of a source elsewhere. One stands at the end of a message of exit status 3, or of a line of the log.'),
    ('Exceptions of the Python module', lambda e: e.endswith('Error'),
     '`stfs_gpu.Error` has the messages above.'),
    ('Warnings', lambda e: e == 'warning', 'The command goes on. `warning: ` stands before each.'),
    ('The log', lambda e: e == 'log',
     'Of a mount: syslog(3), or standard error with `-f`. Of the holder, after `holder: `: the file beside its socket, '
     'or its standard error.'),
)
# Status of a message that is neither an Error nor a warning.
OTHERS = {'COMMAND: REASON': '127, 126', 'out of memory': '3; stfs-gpu: 5', 'no GPU: WHY': '0',
          'ended while a source did not answer: see its network file system': '0'}
BROKEN = re.findall(r'return "(\w+)";', (ROOT / 'core/base/error.cpp').read_text())
BROKEN = [name for name in BROKEN if name not in STATUS and name != 'Unknown']
# "rule (what to do)", "rule: do this"
HINT = re.compile(r' \([^()]*[a-z][^()]* [^()]*\)$|'
                  r'[:;,.?] (add|choose|connect|convert|download|end|export|extract|finish|give|install|leave|load|mount|'
                  r'name|read|redirect|report|run|see|set|start|take|try|unmount|unpin|use|wait|write) .*$', re.I)

INTRODUCTION = """# Messages

Every message of `stfs`, `stfs-info`, `stfs-gpu` (with its holder and copiers) and `libstfs_gpu`, with
the next step. `docs/messages/table.py` makes this file from the source and from `advice.tsv` beside it; a test
fails when they differ. Longer advice is in [TROUBLESHOOTING.md](TROUBLESHOOTING.md).

A command prints its name before a message: `stfs-info: model.safetensors: not a regular file`. A
message of exit status 1 ends with the error in brackets: `(InvalidOffset)`. Words in capitals stand
for what only the run knows: PLACE is the file, URL, mountpoint or device that the message is about;
REASON is the system's own text, such as `Permission denied`; TEXT comes from another program or
library; N is a number. `[A|B]` is there in some cases.
"""


def advice_lines():
    lines = []
    for number, line in enumerate(ADVICE.read_text().splitlines(), 1):
        if not line or line.startswith('#'):
            continue
        fields = line.split('\t')
        if len(fields) != 3:
            raise Unreadable(f'{ADVICE.name}:{number}: not ERROR, MESSAGE and ADVICE with tabs between them')
        pattern = re.compile('.*'.join(re.escape(part) for part in fields[1].split('*')) + '$')
        lines.append((number, fields[0], pattern, fields[2]))
    return lines


def rows():
    """(error, message, advice, places) of each message once."""
    made, found = {}, messages() + python_messages()
    lines = {line for _, line, *_ in found}
    for error, line, path, function in found:
        plural = re.sub(r'\bN ((?:more )?[a-z]+)\b', r'N \1s', line)
        line = plural if plural in lines else line  # "N tensor" and "N tensors" are one message
        if error == 'note':
            if function in OUTPUT.get(path, ()):
                continue
            if line not in OTHERS:
                raise Unreadable(f'{path}: "{line}" needs its exit status in OTHERS')
            error = OTHERS[line]
        error = 'Unreadable' if error == 'Hidden' else error  # alike to a user
        made.setdefault((error, line), {}).setdefault(path, {})[function] = None
    idle, lacking, result = advice_lines(), [], []
    all_advice = list(idle)
    for (error, line), where in made.items():
        fit = next((a for a in all_advice if a[1] in ('*', error) and a[2].match(line)), None)
        if fit in idle:
            idle.remove(fit)
        if not fit and not HINT.search(line):
            lacking.append(f'  {error}: {line}  ({next(iter(where))})')
        places = '; '.join(f'{path}: {", ".join(filter(None, functions))}'.rstrip(': ')
                           for path, functions in where.items())
        result.append((error, line, fit[3] if fit else 'as it says', places))
    if lacking:
        raise Unreadable('a message says what to do next, or docs/messages/advice.tsv does; these lack both:\n' +
                         '\n'.join(lacking))
    if idle:
        raise Unreadable('advice for no message:\n' + '\n'.join(f'  {ADVICE.name}:{number}' for number, *_ in idle))
    return result


def table():
    out, left = [INTRODUCTION], rows()
    for title, belongs, note in SECTIONS:
        here = [row for row in left if belongs(row[0])]
        left = [row for row in left if not belongs(row[0])]
        out.append(f'## {title}\n' + (f'\n{note}\n' if note else ''))
        out.append('| message | error or status | what to do | made in |\n|---|---|---|---|')
        for error, line, advice, places in sorted(here, key=lambda row: (row[0] in BROKEN and BROKEN.index(row[0]), row)):
            line = line.replace('|', '\\|')
            out.append(f'| `{line}` | {error} | {advice} | {places} |')
        out.append('')
    if left:
        raise Unreadable(f'no section for {left}')
    return '\n'.join(out)


def main():
    if sys.argv[1:] not in ([], ['--write']):
        sys.exit(__doc__)
    try:
        text = table()
    except Unreadable as error:
        sys.exit(f'table.py: {error}')
    if sys.argv[1:] == ['--write']:
        TABLE.write_text(text)
    elif TABLE.read_text() != text:
        sys.stdout.writelines(line + '\n' for line in difflib.unified_diff(
            TABLE.read_text().splitlines(), text.splitlines(), 'docs/MESSAGES.md', 'the source', lineterm='', n=0))
        sys.exit('table.py: docs/MESSAGES.md is not what the source makes (docs/messages/table.py --write)')


if __name__ == '__main__':
    main()
