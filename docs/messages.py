#!/usr/bin/python3
"""Makes docs/MESSAGES.md, the table of every message, from the source and docs/messages.tsv.

  messages.py          fails (status 1) unless the table is the one that the source makes
  messages.py --write  writes it

A message is made where an Error is constructed, a line is logged, a warning is stored, or standard
error is written. This program reads the tokens of each such expression. It joins what is joined
with +, follows ?: into both branches, puts in the values of local variables and of functions that
return a text, and names everything else in capitals: in_quotes(tensor.name) is "NAME". Where the
text or the error is a parameter, the function is a helper, and each of its calls makes a message.

It fails for a message that it cannot read, and for one without an advice: a message ends in a hint
in brackets, or a line of messages.tsv matches it.
"""

import ast
import difflib
import itertools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / 'docs' / 'MESSAGES.md'
ADVICE = ROOT / 'docs' / 'messages.tsv'

# Functions that return their argument, in another form.
TRANSPARENT = {'string', 'string_view', 'printable', 'to_json_text', 'move', 'c_str', 'from_json_text'}
# Functions with a text that only the run knows.
PLACEHOLDERS = {'errno_text': 'REASON', 'strsignal': 'SIGNAL', 'human_bytes': 'SIZE', 'to_string': 'N',
                'dtype_name': 'DTYPE', 'shape_text': 'SHAPE', 'shape_json': 'SHAPE', 'error_name': 'ERROR',
                'last_line': 'TEXT', 'device_text': 'DEVICE', 'holder_socket_path': 'SOCKET',
                'list_of': 'NAMES', 'what': 'TEXT', 'mountpoint': 'MOUNTPOINT'}
OF_THE_OBJECT = {'substr', 'front', 'back', 'string', 'str', 'get', 'value', 'value_or', 'data', 'c_str',
                 'id', 'begin'}
# (function, parameter): a placeholder, because its callers give the names of functions alone.
NAMED_PARAMETERS = {('check', 'what'): 'FUNCTION',
                    ('malformed', 'what'): 'TEXT', ('run_to_exit', 'program'): 'PROGRAM',
                    ('load_index', 'path'): 'PLACE',
                    ('scalar', 'kind'): 'VALUE', ('fail', 'subject'): 'SUBJECT',
                    ('checked', 'what'): 'ARGUMENT', ('options_from', 'what'): 'ARGUMENT',
                    ('copy_out', 'what'): 'ARGUMENT'}
# Clearer names for what a variable's name says badly.
RENAMED = {'COPIERS': 'UUID', 'FIRST': 'DEVICE', 'AS': 'TYPE', 'MISSING': 'NAME', 'STFS TEXT': 'FUNCTION',
           'CANDIDATES': 'NAMES', 'LIST': 'VALUES', 'EXPRESSION': 'SLICE'}
# Functions that answer or keep a text: (file, function) -> (code, place, text), the arguments by number.
SINKS = {('tools/gpu/holder/residency.cpp', 'error_body'): (0, None, 1),
         ('tools/gpu/copier/copier.cpp', 'error_answer'): (1, None, 2),
         ('tools/gpu/library/library.cpp', 'fail'): (0, None, 1)}
# (file, variable that keeps a text): the error that it becomes.
STORED = {('core/format/index.cpp', 'error'): 'InvalidIndex'}
LOGS = {'log', 'log_', 'say', 'syslog'}
# (file, text): the text of a message that is made, and found, elsewhere.
PASSED_ON = {
    ('fs/fuse/main.cpp', 'TEXT'), ('fs/fuse/main.cpp', 'LINE'), ('fs/fuse/main.cpp', 'warning: WARNING'),
    ('fs/fuse/daemon.cpp', 'LINE'), ('fs/fuse/options.cpp', '-o OPTION: MESSAGE'),
    ('tools/command/command_line.cpp', 'PROGRAM: TEXT'), ('tools/gpu/client/client.cpp', 'TEXT'),
    ('tools/gpu/client/client.cpp', 'SAID'), ('tools/gpu/client/client.cpp', 'TEXT OF'),
    ('tools/gpu/client/client.cpp', 'WARNING'), ('tools/gpu/holder/residency.cpp', 'TEXT OF'),
    ('tools/gpu/holder/holder.cpp', 'holder: TEXT'),
    ('fs/fuse/mount_table.cpp', 'PATH: MESSAGE'),  # fusermount3's own
    ('fs/fuse/mount.cpp', '-o: TEXT'), ('fs/fuse/mount.cpp', 'MOUNTPOINT: TEXT'),  # libfuse's own
    ('tools/gpu/copier/copier.cpp', 'TEXT'), ('tools/gpu/client/resident_verbs.cpp', 'warning: WARNING'),
    ('tools/gpu/holder/residency.cpp', 'TEXT'), ('tools/gpu/library/library.cpp', 'TEXT'),
    ('tools/info/catalogue_verbs.cpp', 'error\tERROR\tMESSAGE'), ('core/format/index.cpp', 'PLACE: ERROR'),
}
# Calls whose text is a command's output, and not a message; or a part that NAMED_PARAMETERS names.
OUTPUT_CALLS = {'print', 'printf', 'snprintf', 'line', 'check', 'checked', 'scalar', 'write_content'}
# (file, function) that makes output.
OUTPUT = {('core/base/command.cpp', 'help_text'), ('core/checkpoint/select.cpp', 'no_such_tensor'),
          ('fs/fuse/main.cpp', 'main'), ('tools/gpu/client/device_verbs.cpp', 'doctor'),
          ('tools/gpu/client/device_verbs.cpp', 'bench'), ('tools/gpu/device/cpu_device.cpp', 'cpu_info'),
          ('tools/gpu/client/resident_verbs.cpp', 'load'),
          ('tools/gpu/client/resident_verbs.cpp', 'speed_text'),
          ('tools/gpu/device/cuda_device.cpp', 'finding_of'), ('tools/gpu/device/cuda_device.cpp', 'cuda_findings'),
          ('tools/command/terminal.cpp', 'progress_text'),
          ('core/base/command_parser.cpp', 'size_error')}  # that one reaches CLI11, which puts it into its TEXT
TAKES_A_CODE = {'exit_status', 'take_ending_signals', 'run_to_exit'}  # and makes no message of it
STATUS = {'Usage': 2, 'Unreadable': 3, 'MissingShard': 3, 'MountFailed': 4, 'DeviceFailed': 5}
CODE_OF = {'device_failed': 'DeviceFailed', 'usage': 'Usage', 'STFS_GPU_DEVICE': 'DeviceFailed',
           'code_of': 'DeviceFailed'}
KEYWORDS = {'if', 'for', 'while', 'switch', 'catch', 'do', 'else', 'try', 'return', 'sizeof', 'throw'}


class Unreadable(Exception):
    pass


# --- tokens

TOKEN = re.compile(r'''
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<str>(?:u8|L)?R"(?P<d>[^(\s]*)\((?P<raw>.*?)\)(?P=d)"|"(?:[^"\\\n]|\\.)*")
  | (?P<chr>'(?:[^'\\\n]|\\.)+')
  | (?P<num>\d(?:'?[\w.])*)
  | (?P<id>[A-Za-z_]\w*)
  | (?P<op>::|->|\+=|==|!=|<=|>=|&&|\|\||\+\+|--|\[\[|\]\]|.)
''', re.X | re.S)
ESCAPES = {'n': '\n', 't': '\t', 'r': '\r', '0': '\0', 'x1b': '\x1b'}


class Token:
    __slots__ = ('kind', 'text', 'line', 'is_read')

    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line
        self.is_read = False


def literal(text):
    if text.startswith('R'):
        return text[text.index('(') + 1:text.rindex(')')]
    return re.sub(r'\\(x[0-9a-f]{2}|.)', lambda m: ESCAPES.get(m[1], m[1]), text[1:-1])


def preprocessed(text):
    """Without directives, except that the body of a macro stays."""
    text = text.replace('\\\n', ' \f')  # keeps the lines countable
    text = re.sub(r'(?m)^[ \t]*#[ \t]*define[ \t]+\w+(\([^)\n]*\))?(?=.*\f)', '', text)
    text = re.sub(r'(?m)^[ \t]*#.*$', '', text)
    return text.replace('\f', '\n')


def tokens_of(text):
    tokens, line = [], 1
    for match in TOKEN.finditer(preprocessed(text)):
        if match.lastgroup != 'space' and match['space'] is None:
            kind = next(k for k in ('str', 'chr', 'num', 'id', 'op') if match[k] is not None)
            value = literal(match[kind]) if kind == 'str' else match[kind]
            if kind == 'op' and value in ('[[', ']]'):
                tokens += [Token('op', value[0], line), Token('op', value[0], line)]
            else:
                tokens.append(Token(kind, value, line))
        line += match[0].count('\n')
    return tokens


OPEN, CLOSE = {'(': ')', '[': ']', '{': '}'}, {')', ']', '}'}


def is_op(token, *texts):
    return token.kind == 'op' and token.text in texts


def matches(tokens):
    """For each opening bracket the index of its closing one, and the reverse."""
    found, stack = {}, []
    for i, token in enumerate(tokens):
        if token.kind != 'op':
            continue
        if token.text in OPEN:
            stack.append(i)
        elif token.text in CLOSE:
            if not stack or OPEN[tokens[stack[-1]].text] != token.text:
                raise Unreadable(f'line {token.line}: unbalanced {token.text}')
            begin = stack.pop()
            found[begin], found[i] = i, begin
    return found


def split(tokens, *separators):
    """The parts between the separators that stand in no bracket."""
    parts, depth, last = [], 0, 0
    for i, token in enumerate(tokens):
        if token.kind != 'op':
            continue
        if token.text in OPEN:
            depth += 1
        elif token.text in CLOSE:
            depth -= 1
        elif depth == 0 and token.text in separators:
            parts.append(tokens[last:i])
            last = i + 1
    parts.append(tokens[last:])
    return parts if tokens else []


# --- functions

class Function:
    """A function or a lambda with a body; `outer` is the one that it stands in."""

    def __init__(self, file, name, scope, params, begin, end, outer, attributes):
        self.file, self.name, self.scope, self.params = file, name, scope, params
        self.begin, self.end, self.outer = begin, end, outer
        self.is_lambda = outer is not None and 'lambda' in attributes
        self.is_local = 'local' in attributes
        self.never_returns = 'noreturn' in attributes

    def title(self):
        named = self
        while named.is_lambda:
            named = named.outer
        return named.scope + named.name


class File:
    def __init__(self, path):
        self.path = str(path.relative_to(ROOT))
        self.tokens = tokens_of(path.read_text())
        self.match = matches(self.tokens)
        self.functions = []
        self.read_scope(0, len(self.tokens), None, '', False)

    def function_at(self, position):
        inside = [f for f in self.functions if f.begin < position < f.end]
        return max(inside, key=lambda f: f.begin, default=None)

    def text(self, begin, end):
        return ' '.join(t.text for t in self.tokens[begin:end])

    def read_scope(self, begin, end, outer, scope, is_local):
        """Finds the functions between two tokens."""
        head, i, tokens = begin, begin, self.tokens
        while i < end:
            token = tokens[i]
            if is_op(token, ';') or (is_op(token, ':') and tokens[i - 1].text in ('public', 'private', 'protected')):
                head = i + 1
            elif is_op(token, '('):
                # A lambda may stand in the brackets.
                self.read_scope(i + 1, self.match[i], outer, scope, is_local)
                i = self.match[i]
            elif is_op(token, '{'):
                close = self.match[i]
                i, kind = close, self.open(head, i, close, outer, scope, is_local)
                if kind != 'value':
                    head = i + 1
            i += 1

    def open(self, head, brace, close, outer, scope, is_local):
        tokens = self.tokens
        words = [t.text for t in tokens[head:brace] if t.kind == 'id']
        inner, kind = (scope, is_local), 'block'
        function = self.lambda_before(head, brace, close, outer, scope, is_local)
        if function is None and outer is None:
            if 'namespace' in words:
                inner = (scope, is_local or words == ['namespace'])
            elif {'class', 'struct', 'union', 'enum'} & set(words) and not self.call_in(head, brace):
                name = words[next(i for i, w in enumerate(words) if w in ('class', 'struct', 'union', 'enum')) + 1:]
                inner = (name[0] + '::' if name else scope, is_local)
            else:
                function = self.function_before(head, brace, close, scope, is_local)
                if function is None:
                    kind = 'value'
        elif function is None and not (set(words) & KEYWORDS) and head != brace:
            kind = 'value'
        if function is not None:
            self.functions.append(function)
            self.read_scope(brace + 1, close, function, scope, is_local)
            return 'value' if function.is_lambda else 'function'
        self.read_scope(brace + 1, close, outer, *inner)
        return kind

    def call_in(self, head, brace):
        return any(is_op(t, '(') for t in self.tokens[head:brace])

    def lambda_before(self, head, brace, close, outer, scope, is_local):
        """For "name = [captures](params) {"."""
        tokens, i = self.tokens, brace - 1
        while i >= head and (tokens[i].kind == 'id' or is_op(tokens[i], '->', '::', '&', '*', '<', '>')):
            i -= 1
        if i < head:
            return None
        params = []
        if is_op(tokens[i], ')'):
            begin = self.match[i]
            params = self.parameters(begin, i)
            i = begin - 1
        if i < head or not is_op(tokens[i], ']') or outer is None:
            return None
        i = self.match[i] - 1
        if i >= head and not is_op(tokens[i], '=', '(', ',', '{', 'return') and tokens[i].text != 'return':
            return None  # an array
        name = tokens[i - 1].text if is_op(tokens[i], '=') else ''
        return Function(self, name, scope, params, brace, close, outer, {'lambda'})

    def function_before(self, head, brace, close, scope, is_local):
        tokens, i = self.tokens, head
        while i < brace:
            if is_op(tokens[i], '['):  # an attribute
                i = self.match[i]
            elif is_op(tokens[i], '(') and i > head and tokens[i - 1].kind == 'id':
                break
            elif is_op(tokens[i], '='):
                return None
            i += 1
        if i >= brace or tokens[i - 1].text in KEYWORDS:
            return None
        name, at = tokens[i - 1].text, i - 1
        if at - 2 >= head and is_op(tokens[at - 1], '::'):
            scope = tokens[at - 2].text + '::'
        attributes = {'local'} if is_local else set()
        if any(t.text == 'noreturn' for t in tokens[head:at]):
            attributes.add('noreturn')
        return Function(self, name, scope, self.parameters(i, self.match[i]), brace, close, None, attributes)

    def parameters(self, begin, end):
        names = []
        for part in split(self.tokens[begin + 1:end], ','):
            part = split(part, '=')[0] if part else part
            words = [t.text for t in part if t.kind == 'id']
            names.append(words[-1] if len(words) > 1 else '')
        return names


# --- texts
# A text is a string in which \x01NAME\x02 stands for what only the run knows; with it go the
# branches of ?: that led to it, so that one condition is not followed both ways.

def name_in_capitals(text):
    words = re.sub(r'^k(?=[A-Z])', '', text.strip('_'))
    return '\x01' + re.sub(r'(?<=[a-z])(?=[A-Z])|_', ' ', words).upper() + '\x02'


def has_words(text):
    return re.search('[A-Za-z]', re.sub('\x01.*?\x02', '', text)) is not None


def joined(alternatives):
    """The texts of a sequence of expressions, from the alternatives of each."""
    result = []
    for parts in itertools.product(*alternatives):
        branches, fits = {}, True
        for _, chosen in parts:
            for condition, value in chosen:
                fits = fits and branches.setdefault(condition, value) == value
        if fits:
            result.append((''.join(text for text, _ in parts), tuple(branches.items())))
    return result


class Context:
    """Where an expression stands, and how many functions and variables led to it."""

    def __init__(self, function, position, depth=0):
        self.function, self.position, self.depth = function, position, depth


class Reader:
    def __init__(self, files):
        self.files = files
        self.by_name = {}
        for file in files:
            for function in file.functions:
                self.by_name.setdefault(function.name, []).append(function)
        self.unresolved = []  # parameters without an argument that the last expressions used
        self.arguments = {}  # of the functions being followed: (function, parameter) -> (tokens, context)
        self.helpers = set()

    def texts(self, tokens, context):
        if context.depth > 12:
            return [('\x01…\x02', ())]
        parts = self.branches(tokens)
        if parts:
            condition, first, second = parts
            known = self.known(condition, context)
            key = ' '.join(t.text for t in condition)
            result = []
            for value, branch in ((True, first), (False, second)):
                if known in (None, value):
                    for text, chosen in self.texts(branch, context):
                        result += joined([[('', ((key, value),))], [(text, chosen)]])
            return result
        return joined([self.operand(part, context) for part in split(tokens, '+')])

    @staticmethod
    def branches(tokens):
        depth, question, nested = 0, None, 0
        for i, token in enumerate(tokens):
            if token.kind != 'op':
                continue
            if token.text in OPEN:
                depth += 1
            elif token.text in CLOSE:
                depth -= 1
            elif depth == 0 and token.text == '?':
                if question is None:
                    question = i
                else:
                    nested += 1
            elif depth == 0 and token.text == ':' and question is not None:
                if nested == 0:
                    return tokens[:question], tokens[question + 1:i], tokens[i + 1:]
                nested -= 1
        return None

    def known(self, condition, context):
        """What `x.empty()` is when x is known, else None."""
        words = [t.text for t in condition]
        if words[1:] == ['.', 'empty', '(', ')']:
            before = list(self.unresolved)
            texts = self.texts(condition[:1], context)
            self.unresolved = before
            if len(texts) == 1 and '\x01' not in texts[0][0]:
                return texts[0][0] == ''
        return None

    def operand(self, tokens, context):
        if not tokens:
            return [('', ())]
        # Literals beside others, as in "a" MACRO(b) "c".
        if any(t.kind == 'str' for t in tokens):
            runs, depth = [], 0
            for token in tokens:
                is_text = token.kind == 'str' and depth == 0
                token.is_read = token.is_read or is_text
                if token.kind == 'op' and token.text in OPEN:
                    depth += 1
                elif token.kind == 'op' and token.text in CLOSE:
                    depth -= 1
                if runs and runs[-1][0] == is_text:
                    runs[-1][1].append(token)
                else:
                    runs.append((is_text, [token]))
            if len(runs) > 1 or runs[0][0]:
                return joined([[(''.join(t.text for t in run), ())] if is_text else
                               self.operand(run, context) for is_text, run in runs])
        while is_op(tokens[0], '*', '&', '::'):
            tokens = tokens[1:]
        match = matches(tokens)
        if is_op(tokens[0], '(') and match[0] == len(tokens) - 1:
            return self.texts(tokens[1:-1], context)
        if is_op(tokens[-1], ']'):
            return self.operand(tokens[:match[len(tokens) - 1]], context)
        if is_op(tokens[-1], ')', '}'):
            return self.call(tokens, match[len(tokens) - 1], context)
        if len(tokens) == 1 and tokens[0].kind == 'id':
            return self.variable(tokens[0].text, context)
        if tokens[-1].kind == 'num':
            return [(tokens[-1].text, ())]
        if tokens[-1].kind != 'id':
            raise Unreadable('cannot read ' + ' '.join(t.text for t in tokens))
        return [(name_in_capitals(tokens[-1].text), ())]

    def call(self, tokens, bracket, context):
        if bracket == 0:  # {}
            return self.texts(tokens[1:-1], context)
        name = tokens[bracket - 1].text
        arguments = split(tokens[bracket + 1:-1], ',')
        is_member = bracket >= 2 and is_op(tokens[bracket - 2], '.', '->')
        if is_op(tokens[bracket - 1], '>'):  # static_cast<T>(x)
            return self.texts(arguments[0], context) if arguments else [('\x01NAME\x02', ())]
        if is_member and name == 'append':
            return joined([self.operand(tokens[:bracket - 2], context), self.texts(arguments[0], context)])
        if is_member and (name in OF_THE_OBJECT):
            return self.operand(tokens[:bracket - 2], context)
        if name in TRANSPARENT and arguments:
            return self.texts(arguments[0], context)
        if name in PLACEHOLDERS:
            return [('\x01' + PLACEHOLDERS[name] + '\x02', ())]
        if name == 'in_quotes':
            before = list(self.unresolved)
            texts = self.texts(arguments[0], context)
            self.unresolved = before  # a name in quotes is no rule
            inner = texts[0][0] if not has_words(texts[0][0]) and texts[0][0].count('\x01') == 1 else '\x01NAME\x02'
            return [('"' + inner + '"', ())]
        if not is_member:
            function = self.lookup(name, context, len(arguments))
            if function is not None:
                texts = self.returned(function, arguments, context)
                if texts:
                    return texts
        return [(name_in_capitals(name), ())]

    def lookup(self, name, context, count):
        candidates = [f for f in self.by_name.get(name, ()) if len(f.params) == count]
        here = context.function.file if context.function else None
        near = [f for f in candidates if f.file is here]
        if near:
            return near[-1]
        return candidates[0] if len(candidates) == 1 and not candidates[0].is_local else None

    def returned(self, function, arguments, context):
        """The texts that a function may return; None when it does not make texts."""
        tokens = function.file.tokens
        before, self.arguments = self.arguments, dict(self.arguments)
        for param, argument in zip(function.params, arguments):
            self.arguments[(function, param)] = (argument, context)
        result = []
        for i in range(function.begin, function.end):
            if tokens[i].text == 'return' and function.file.function_at(i) is function:
                end = next(j for j in range(i, function.end + 1) if is_op(tokens[j], ';') and
                           function.file.function_at(j) is function)
                result += self.texts(tokens[i + 1:end], Context(function, i, context.depth + 1))
        self.arguments = before
        texts = [text for text in result if text[0]]
        return texts if any(has_words(text) for text, _ in texts) else None

    def variable(self, name, context):
        function = context.function
        while function is not None:
            texts = self.local(name, function, context)
            if texts is not None:
                return texts
            if name in function.params:
                if (function.name, name) in NAMED_PARAMETERS:
                    return [('\x01' + NAMED_PARAMETERS[(function.name, name)] + '\x02', ())]
                if (function, name) in self.arguments:
                    argument, where = self.arguments[(function, name)]
                    return self.texts(argument, Context(where.function, where.position, context.depth + 1))
                self.unresolved.append((function, name))
                return [(name_in_capitals(name), ())]
            function = function.outer
        return self.constant(name, context) or [(name_in_capitals(name), ())]

    def constant(self, name, context):
        """The text of a constant, of this file if it has one of this name."""
        if context.function is None or not name.startswith('k'):
            return None
        for file in [context.function.file] + self.files:
            text = self.constant_in(file.tokens, name)
            if text:
                return [(text, ())]
        return None

    @staticmethod
    def constant_in(tokens, name):
        for i in range(1, len(tokens) - 4):
            if tokens[i].text == name and tokens[i - 1].kind in ('id', 'op') and \
                    (is_op(tokens[i + 1], '=', '{') or (is_op(tokens[i + 1], '[') and is_op(tokens[i + 3], '='))):
                i = next(j for j in range(i, len(tokens)) if is_op(tokens[j], '=', '{'))
                end = next(j for j in range(i, len(tokens)) if is_op(tokens[j], ';'))
                return ''.join(t.text for t in tokens[i + 1:end] if t.kind == 'str')
        return None

    def local(self, name, function, context):
        """The texts of a local variable: its first value, and what is added to it."""
        tokens, match = function.file.tokens, function.file.match
        last = min(context.position, function.end) if context.function.file is function.file else function.end
        declared, values, added = None, [], []
        for i in range(function.begin + 1, last):
            if tokens[i].text != name or tokens[i].kind != 'id':
                continue
            previous, following = tokens[i - 1], tokens[i + 1]
            starts = previous.kind == 'id' and previous.text not in KEYWORDS or is_op(previous, '&', '>', '*')
            if starts and is_op(following, '=', '(', '{', ';') and declared is None:
                kind = [t.text for t in tokens[max(function.begin, i - 8):i]]
                begin = max((j for j, t in enumerate(kind) if t in (';', '{', '}', '(')), default=-1)
                if not {'string', 'string_view', 'auto', 'char'} & set(kind[begin + 1:]):
                    return None
                declared = i
                if is_op(following, ';'):
                    values.append([])
                elif is_op(following, '='):
                    end = i
                    while not is_op(tokens[end], ';', ')'):
                        end = match.get(end, end) + 1
                    values.append(tokens[i + 2:end])
                else:
                    value = tokens[i + 2:match[i + 1]]
                    values.append(value if len(split(value, ',')) < 2 else [])
            elif declared is not None and is_op(following, '=', '+='):
                end = next(j for j in range(i, function.end) if is_op(tokens[j], ';'))
                if is_op(following, '='):
                    values.append(tokens[i + 2:end])
                else:
                    added.append((tokens[i + 2:end], i))
        if declared is None or not values:
            return None
        inner = Context(function, declared, context.depth + 1)
        before = list(self.unresolved)
        texts = [text for value in values if value or len(values) == 1
                 for text in ([('', ())] if value and value[0].text == '[' else self.texts(value, inner))]
        for value, at in added:
            extra = self.texts(value, inner)
            if self.level(function, at) > self.level(function, declared) or not self.is_statement(function, at):
                kinds = list(dict.fromkeys(text for text, _ in extra))
                kinds = [k for k in kinds if not any(k != other and other.endswith(k) for other in kinds)]
                extra = [('[' + '|'.join(kinds) + ']', ())]
            texts = joined([texts, extra])
        if not any(has_words(text) for text, _ in texts) and not added:
            if len(texts) == 1 and not texts[0][0]:
                return [(name_in_capitals(name), ())]
            if len(self.unresolved) == len(before):
                return [(name_in_capitals(name), ())]
        return texts

    def is_statement(self, function, position):
        return is_op(function.file.tokens[position - 1], ';', '{', '}')

    def level(self, function, position):
        return sum(1 for begin, end in function.file.match.items() if begin < position < end
                   and begin < end and begin > function.begin)

    # --- calls

    def calls(self, function):
        """(file, position of the bracket) of each call of a helper."""
        found = []
        for file in self.files:
            if (function.is_local or function.is_lambda) and file is not function.file:
                continue
            for i in range(1, len(file.tokens) - 1):
                if file.tokens[i].text != function.name or not is_op(file.tokens[i + 1], '('):
                    continue
                caller = file.function_at(i)
                if caller is None and not self.in_initialiser(file, i):
                    continue  # a declaration
                count = len(split(file.tokens[i + 2:file.match[i + 1]], ','))
                if count != len(function.params) or self.is_other(function, file, i, caller):
                    continue
                found.append((file, i + 1))
        return found

    @staticmethod
    def in_initialiser(file, position):
        return False

    def is_other(self, function, file, position, caller):
        """Whether the call is one of another function with this name."""
        if file.tokens[position - 1].kind == 'id' and file.tokens[position - 1].text not in KEYWORDS:
            return True  # a declaration
        is_member = is_op(file.tokens[position - 1], '.', '->')
        enclosing = caller
        while enclosing is not None:
            for other in file.functions:
                if other.is_lambda and other.name == function.name and other.outer is enclosing and not is_member:
                    return other is not function
            enclosing = enclosing.outer
        if function.is_lambda:
            return True
        if file is function.file:
            return False
        if not is_member and any(f.name == function.name and not f.is_lambda for f in file.functions):
            return True
        return bool(function.scope) and not is_member

    # --- messages

    def read(self, file, bracket, expressions, where=None):
        """The messages of one place. `expressions`: (code, place, text) as tokens."""
        function = file.function_at(bracket)
        context = Context(function, bracket)
        code_tokens, place_tokens, text_tokens = expressions
        self.unresolved = []
        codes = self.codes(code_tokens, context)
        texts = self.texts(text_tokens, context)
        needed = list(self.unresolved)
        places = self.texts(place_tokens, context)
        needed += [(f, p) for f, p in self.unresolved[len(needed):] if f.never_returns]
        needed = [(f, p) for f, p in needed if f.name not in LOGS]
        where = where or (file, bracket)
        if needed:
            helper = needed[0][0]
            self.helpers.add(helper.name)
            calls = self.calls(helper)
            if not calls:
                if texts[0][0].count('\x01') == 1 and not has_words(texts[0][0]):
                    return self.finished(file, where, codes, places, texts)
                raise Unreadable(f'{helper.title()}: no call of this helper was found')
            found = []
            for caller, at in calls:
                before, self.arguments = self.arguments, dict(self.arguments)
                given = split(caller.tokens[at + 1:caller.match[at]], ',')
                outer = Context(caller.function_at(at), at)
                for param, argument in zip(helper.params, given):
                    self.arguments[(helper, param)] = (argument, outer)
                found += self.read(file, bracket, expressions, (caller, at))
                self.arguments = before
            return found
        return self.finished(file, where, codes, places, texts)

    @staticmethod
    def finished(file, where, codes, places, texts):
        caller, at = where
        function = caller.function_at(at)
        title = function.title() if function else ''
        found = []
        for code, place, text in ((c, p, t) for c in codes for p in places for t in texts):
            complete = joined([[code], [place], [text]])
            if not complete:
                continue
            line = place[0] + ': ' + text[0] if place[0] else text[0]
            plain = re.sub('[\x01\x02]', '', line)
            if place[0] and not has_words(place[0]):
                line = '\x01PLACE\x02: ' + text[0]
            line = re.sub('\x01(.*?)\x02', lambda m: '\x01' + RENAMED.get(m[1], m[1]) + '\x02', line)
            if not has_words(line) and (file.path, plain) in PASSED_ON or (caller.path, plain) in PASSED_ON:
                continue
            if not has_words(line) and 'REASON' not in plain:
                raise Unreadable(f'{caller.path}:{caller.tokens[at].line}: no words in "{plain}"')
            found.append((code[0], line, caller.path, title))
        return found

    def codes(self, tokens, context):
        if tokens is None:
            return [('', ())]
        parts = self.branches(tokens)
        if parts:
            key = ' '.join(t.text for t in parts[0])
            return [(code, chosen + ((key, value),)) for value, branch in ((True, parts[1]), (False, parts[2]))
                    for code, chosen in self.codes(branch, context)]
        words = [t.text for t in tokens]
        if words[:2] == ['ErrorCode', '::']:
            return [(words[2].removeprefix('k'), ())]
        for word in words:
            if word in CODE_OF:
                return [(CODE_OF[word], ())]
        if words[:1] == ['exit_status']:
            return self.codes(tokens[2:-1], context)
        if len(words) == 1:
            function = context.function
            while function is not None:
                if words[0] in function.params:
                    if (function, words[0]) in self.arguments:
                        return self.codes(*self.arguments[(function, words[0])])
                    self.unresolved.append((function, words[0]))
                    return [('', ())]
                function = function.outer
        if words[-3:] == ['code', '(', ')'] or words == ['code'] or '(' in words:
            return [('', ())]  # that of an error which is made elsewhere
        raise Unreadable('cannot read the error ' + ' '.join(words))


# --- places that make messages

def formatted(tokens):
    """The tokens of printf's format and arguments as a sum."""
    arguments = split(tokens, ',')
    text = ''.join(t.text for t in arguments[0] if t.kind == 'str')
    for token in arguments[0]:
        token.is_read = True
    if any(t.kind != 'str' for t in arguments[0]):
        raise Unreadable('a format that is no literal')
    line, values, result = arguments[0][0].line, arguments[1:], []
    text = re.sub('^(stfs|stfs-gpu): ', '', text).rstrip('\n')

    def add(part):
        result.extend(([Token('op', '+', line)] if result else []) + part)
    for piece in re.split(r'(%[-0-9.*]*(?:ll|l|z)?[a-zA-Z%])', text):
        if piece == '%%':
            add([Token('str', '%', line)])
        elif piece.startswith('%'):
            value = values.pop(0)
            add(value if piece == '%s' else [Token('id', 'n', line)])
        elif piece:
            add([Token('str', piece, line)])
    return result


def following_code(file, bracket):
    """The error of the exit status that is returned right after."""
    for i in range(file.match[bracket], min(file.match[bracket] + 12, len(file.tokens) - 4)):
        if file.tokens[i].text == 'exit_status' and file.tokens[i + 2].text == 'ErrorCode':
            return file.tokens[i + 2:i + 5]
    return None


def places(file):
    """(bracket, (code, place, text), kind) of each place in a file that makes a message."""
    tokens, match = file.tokens, file.match
    for i in range(len(tokens) - 1):
        token, following = tokens[i], tokens[i + 1]
        if token.kind == 'str' and token.text.startswith('error\t'):
            end = next(j for j in range(i, len(tokens)) if is_op(tokens[j], ';'))
            yield i, (None, [], tokens[i:end]), 'check'
        if (file.path, token.text) in STORED and is_op(following, '='):
            end = next(j for j in range(i, len(tokens)) if is_op(tokens[j], ';'))
            code = tokens_of('ErrorCode::k' + STORED[(file.path, token.text)])
            yield i, (code, tokens_of('place'), tokens[i + 2:end]), 'error'
        if token.text == 'throw' and not is_op(following, ';'):
            words = [t.text for t in tokens[i + 1:i + 5]]
            if words[0] not in ('Error', 'OutOfDeviceMemory') and words[:3] != ['std', '::', 'bad_alloc']:
                raise Unreadable(f'{file.path}:{token.line}: throws something else')
        if token.kind != 'id' or not is_op(following, '(', '{'):
            continue
        bracket = i + 1
        arguments = split(tokens[bracket + 1:match[bracket]], ',')
        if token.text == 'Error':
            if following.text == '{' or len(arguments) == 1:
                continue  # the class, or a copy
            if [t.text for t in arguments[0]][-1:] == ['code'] and len(arguments[0]) == 2:
                continue  # its constructor
            if len(arguments) != 3:
                raise Unreadable(f'{file.path}:{token.line}: an Error of {len(arguments)} arguments')
            yield bracket, tuple(arguments), 'error'
        elif token.text in ('emplace', 'make_exception_ptr') and arguments and \
                [t.text for t in arguments[0][:2]] == ['ErrorCode', '::']:
            yield bracket, tuple(arguments), 'error'
        elif (file.path, token.text) in SINKS and file.function_at(i):
            numbers = SINKS[(file.path, token.text)]
            yield bracket, tuple([] if n is None else arguments[n] for n in numbers), 'error'
        elif token.text == 'fprintf' and arguments[0][0].text == 'stderr' and \
                not arguments[1][0].text.startswith('\r'):  # the bar of progress
            yield bracket, (following_code(file, bracket), [], formatted(tokens[bracket + 1 + 2:match[bracket]])), 'line'
        elif token.text == 'write' and arguments[0] and arguments[0][-1].text == 'STDERR_FILENO':
            yield bracket, (None, [], arguments[1]), 'line'
        elif token.text == 'fputs' and arguments[1][0].text == 'stderr':
            if any(t.kind == 'str' and re.search('[A-Za-z]{3}', t.text) for t in arguments[0]):
                yield bracket, (None, [], arguments[0]), 'line'
        elif token.text in LOGS and file.function_at(i) and len(arguments) == 1 and \
                tokens[i - 1].kind == 'op':
            yield bracket, (None, [], arguments[0]), 'log'
        elif token.text == 'push_back' and tokens[i - 2].text in ('warnings', 'warnings_'):
            yield bracket, (None, [], arguments[0]), 'warning'
        elif token.text in ('perror', 'warnx', 'errx'):
            raise Unreadable(f'{file.path}:{token.line}: {token.text}')


def check_codes(file, reader):
    """Every function that takes an ErrorCode is known."""
    known = {'Error', 'emplace', 'throw_errno'} | reader.helpers | TAKES_A_CODE
    tokens = file.tokens
    for i in range(2, len(tokens) - 2):
        if tokens[i].text == 'ErrorCode' and is_op(tokens[i + 1], '::') and is_op(tokens[i - 1], '(') and \
                tokens[i - 2].kind == 'id' and tokens[i - 2].text not in known | KEYWORDS:
            raise Unreadable(f'{file.path}:{tokens[i].line}: what does {tokens[i - 2].text} do with an error?')


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
        if function is None or OUTPUT_CALLS.intersection(calls) or (file.path, function.title()) in OUTPUT:
            continue
        failures.append(f'{file.path}:{token.line}: is "{token.text}" in {function.title()} a message?')
    return failures


def messages():
    """[(kind or error, line, file, function)]"""
    paths = sorted(p for d in ('core', 'fs', 'tools') for s in ('cpp', 'h') for p in (ROOT / d).rglob(f'*.{s}'))
    files = [File(path) for path in paths]
    reader = Reader(files)
    found, failures = [], []
    for file in files:
        if file.path.startswith('core/base/error.'):
            continue
        for bracket, expressions, kind in places(file):
            try:
                for code, line, path, function in reader.read(file, bracket, expressions):
                    line = re.sub('^(\x01PROGRAM\x02|stfs|stfs-gpu): ', '', line).rstrip('\n').replace('\t', ' ')
                    if kind == 'line' and not code:
                        kind = 'warning' if line.startswith('warning: ') else 'note'
                    found.append((code or kind, re.sub('[\x01\x02]', '', line.removeprefix('warning: ')), path, function))
            except Unreadable as error:
                failures.append(f'{file.path}:{file.tokens[bracket].line}: {error}')
    for file in files:
        check_codes(file, reader)
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
    ('Other messages of a command', lambda e: e in OTHERS.values() or e == 'check', ''),
    ('Exceptions of the Python module', lambda e: e.endswith('Error'),
     '`stfs_gpu.Error` has the messages above.'),
    ('Warnings', lambda e: e == 'warning', 'The command goes on. `warning: ` stands before each.'),
    ('The log', lambda e: e == 'log',
     'Of a mount: syslog(3), or standard error with `-f`. Of the holder, after `holder: `: the file beside its socket, '
     'or its standard error.'),
)
# Status of a message that is neither an Error nor a warning.
OTHERS = {'COMMAND: REASON': '127, 126', 'ended while a source did not answer': '0', 'out of memory': '3; stfs-gpu: 5', 'no GPU: WHY': '0'}
BROKEN = re.findall(r'return "(\w+)";', (ROOT / 'core/base/error.cpp').read_text())
BROKEN = [name for name in BROKEN if name not in STATUS and name != 'Unknown']
HINT = re.compile(r' \([^()]*[a-z][^()]* [^()]*\)$')  # "rule (what to do)"

INTRODUCTION = """# Messages

Every message of `stfs`, `stfs-info`, `stfs-gpu` (with its holder and copiers) and `libstfs_gpu`, with
the next step. `docs/messages.py` makes this file from the source and from `docs/messages.tsv`; a test
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
    made = {}
    for error, line, path, function in messages() + python_messages():
        if error == 'note':
            error = OTHERS.get(line, '')
            if not error:
                raise Unreadable(f'{path}: "{line}" needs its exit status in OTHERS')
        made.setdefault((error, line), {}).setdefault(path, {})[function] = None
    lines, used, lacking, result = advice_lines(), set(), [], []
    for (error, line), where in made.items():
        fits = [l for l in lines if l[1] in ('*', error) and l[2].match(line)]
        if fits:
            used.add(fits[0][0])
        elif not HINT.search(line):
            lacking.append(f'  {error}: {line}  ({next(iter(where))})')
        places = '; '.join(f'{path}: {", ".join(filter(None, functions))}'.rstrip(': ')
                           for path, functions in where.items())
        result.append((error, line, fits[0][3] if fits else 'as it says', places))
    idle = [f'  {ADVICE.name}:{number}' for number, *_ in lines if number not in used]
    if lacking:
        raise Unreadable('a message says what to do next, or docs/messages.tsv does; these lack both:\n' + '\n'.join(lacking))
    if idle:
        raise Unreadable('advice for no message:\n' + '\n'.join(idle))
    return result


def table():
    out, left = [INTRODUCTION], rows()
    for title, belongs, note in SECTIONS:
        here = [row for row in left if belongs(row[0])]
        left = [row for row in left if not belongs(row[0])]
        out.append(f'## {title}\n' + (f'\n{note}\n' if note else ''))
        out.append('| message | error or status | what to do | made in |\n|---|---|---|---|')
        order = {name: i for i, name in enumerate(BROKEN)}
        for error, line, advice, places in sorted(here, key=lambda row: (order.get(row[0], 0), row)):
            shown = '`' + line.replace('|', '\\|') + '`'
            out.append(f'| {shown} | {error} | {advice} | {places} |')
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
        sys.exit(f'messages.py: {error}')
    if sys.argv[1:] == ['--write']:
        TABLE.write_text(text)
    elif not TABLE.exists() or TABLE.read_text() != text:
        old = TABLE.read_text().splitlines() if TABLE.exists() else []
        sys.stdout.writelines(line + '\n' for line in difflib.unified_diff(
            old, text.splitlines(), 'docs/MESSAGES.md', 'the source', lineterm='', n=0))
        sys.exit('messages.py: docs/MESSAGES.md is not what the source makes (docs/messages.py --write)')


if __name__ == '__main__':
    main()
