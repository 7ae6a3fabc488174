"""Reads C++ as tokens, and finds the functions and lambdas in them. It knows clang-format's style."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
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


@dataclasses.dataclass(eq=False)
class Token:
    kind: str  # a name in TOKEN
    text: str  # of a literal: what it stands for
    line: int
    is_read: bool = False  # the literal is part of a message


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

@dataclasses.dataclass(eq=False)
class Function:
    """A function or a lambda with a body. A lambda stands in the function `outer`."""
    file: 'File'
    name: str
    scope: str  # "Class::", or empty
    params: list
    begin: int  # its brackets
    end: int
    outer: 'Function' = None
    is_local: bool = False  # to its file
    never_returns: bool = False

    @property
    def is_lambda(self):
        return self.outer is not None

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

    def statement(self, begin):
        """The tokens from `begin` to the end of the statement."""
        end = begin
        while not is_op(self.tokens[end], ';'):
            end = self.match.get(end, end) + 1 if is_op(self.tokens[end], *OPEN) else end + 1
        return self.tokens[begin:end]

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
            elif {'class', 'struct', 'union', 'enum'} & set(words) and not any(is_op(t, '(') for t in tokens[head:brace]):
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
        name = tokens[i - 1].text if is_op(tokens[i], '=') else ''
        return Function(self, name, scope, params, brace, close, outer)

    def function_before(self, head, brace, close, scope, is_local):
        tokens, i = self.tokens, head
        while i < brace:
            if is_op(tokens[i], '['):  # an attribute
                i = self.match[i]
            elif is_op(tokens[i], '(') and i > head and tokens[i - 1].kind == 'id':
                if not is_op(tokens[self.match[i] + 1], '>'):  # std::function<void(int)>
                    break
                i = self.match[i]
            elif is_op(tokens[i], '='):
                return None
            i += 1
        if i >= brace or tokens[i - 1].text in KEYWORDS:
            return None
        name, at = tokens[i - 1].text, i - 1
        if at - 2 >= head and is_op(tokens[at - 1], '::'):
            scope = tokens[at - 2].text + '::'
        never_returns = any(t.text == 'noreturn' for t in tokens[head:at])
        return Function(self, name, scope, self.parameters(i, self.match[i]), brace, close, None, is_local, never_returns)

    def parameters(self, begin, end):
        names = []
        for part in split(self.tokens[begin + 1:end], ','):
            part = split(part, '=')[0] if part else part
            words = [t.text for t in part if t.kind == 'id']
            names.append(words[-1] if len(words) > 1 else '')
        return names
