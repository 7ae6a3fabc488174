"""Evaluates the expression of a message to its texts: literals, and names in capitals for the rest."""

import dataclasses
import itertools
import re

from cpp import KEYWORDS, Unreadable, is_op, matches, split

# Functions that return their argument, in another form.
TRANSPARENT = {'string', 'printable', 'public_name', 'to_json_text', 'move', 'from_json_text'}
# Functions with a text that only the run knows.
PLACEHOLDERS = {'errno_text': 'REASON', 'strsignal': 'SIGNAL', 'human_bytes': 'SIZE', 'to_string': 'N',
                'dtype_name': 'DTYPE', 'shape_text': 'SHAPE', 'shape_json': 'SHAPE',
                'last_line': 'TEXT', 'device_text': 'DEVICE', 'holder_socket_path': 'SOCKET',
                'list_of': 'NAMES', 'what': 'TEXT'}
# Member functions that return the object, or a part of it.
OF_THE_OBJECT = {'substr', 'front', 'back', 'string', 'data', 'c_str'}
# (function, parameter): its placeholder. Such a function is no helper: its calls make no messages of their own.
NAMED_PARAMETERS = {('check', 'what'): 'FUNCTION', ('malformed', 'what'): 'TEXT', ('run_to_exit', 'program'): 'PROGRAM',
                    ('load_index', 'path'): 'PLACE', ('scalar', 'kind'): 'VALUE', ('fail', 'subject'): 'SUBJECT',
                    ('checked', 'what'): 'ARGUMENT'}
# Clearer names for what a variable's name says badly.
RENAMED = {'OF THE MOUNT': 'OPTION', 'COPIERS': 'UUID', 'FIRST': 'DEVICE', 'AS': 'TYPE', 'MISSING': 'NAME', 'STFS TEXT': 'FUNCTION',
           'UNREADABLE': 'REASON', 'REFUSED': 'KEY', 'WHY HOST CONVERTS': 'REASON',
           'EXPRESSION': 'SLICE', 'BECAUSE': ': REASON', 'SAID': 'TEXT', 'UNUSABLE': 'MESSAGE', 'PUBLIC NAME': 'URL'}
LOGS = {'log', 'log_', 'say', 'syslog'}
# file: texts of messages that are made, and found, elsewhere.
PASSED_ON = {
    'core/checkpoint/model_files.cpp': {'PATH: WHY'},
    'core/checkpoint/checkpoint.cpp': {'PATH: WHY'},
    'core/checkpoint/dequantize.cpp': {'PATH: tensor "NAME": REASON', 'tensor "NAME": REASON'},  # TABLES has the reasons
    'core/checkpoint/metadata.cpp': {'PATH: WHY'},
    'core/checkpoint/schemes.cpp': {'PATH: WHY'},
    'core/base/command_parser.cpp': {'NAME VALUE: MESSAGE', 'NAME "VALUE": MESSAGE'},
    'core/format/index.cpp': {'PLACE: ERROR'},
    'core/source/fetcher.cpp': {'MESSAGE', 'FAILURE', 'REASON', 'TEXT'},
    'core/source/fetcher_requests.cpp': {'MESSAGE', 'FAILURE', 'REASON', 'TEXT', 'TRANSFER TEXT'},
    'core/source/http.cpp': {'MESSAGE', 'HOST: CURL EASY STRERROR'},
    'core/format/format.cpp': {'PATH: WHY'},
    'core/source/http_retry.cpp': {'PLACE: TEXT', 'URL: TEXT'},
    'core/source/hub.cpp': {'MESSAGE'},
    'core/source/sources.cpp': {'PATH: WHY', 'NAME: WHY'},
    'core/source/s3.cpp': {'NAME: TEXT'},
    'fs/fuse/loading_child.cpp': {'RECEIVED: RECEIVED', 'TEXT'},
    'tools/gpu/client/options.cpp': {'warning: LINE', 'stfs-gpu: warning: LINE'},
    'tools/gpu/copier/transfer.cpp': {'PATH: MESSAGE', 'PATHS: MESSAGE', 'FIRST: '},
    'tools/info/copy_verbs.cpp': {'PATH: WHY', 'PLACE: WHY'},
    'tools/info/value_verbs.cpp': {'PATH: FAILURE TEXT', 'PLACE: FAILURE TEXT', 'PLACE: '},
    'tools/info/cache_verb.cpp': {'UNUSABLE'},
    'tools/info/select.cpp': {'stfs-info: warning: LINE'},
    'fs/fuse/daemon.cpp': {'LINE'},
    'fs/fuse/main.cpp': {'TEXT', 'LINE', 'warning: WARNING'},
    'fs/fuse/mount.cpp': {'MOUNTPOINT: WITH ADVICE'},  # libfuse's own
    'fs/fuse/options.cpp': {'-o OPTION: MESSAGE'},
    'tools/command/command_line.cpp': {'PROGRAM: TEXT'},
    'tools/gpu/client/client.cpp': {'SAID', 'TEXT OF', 'WARNING'},
    'tools/gpu/client/resident_verbs.cpp': {'warning: WARNING'},
    'tools/gpu/client/run_verb.cpp': {'LINE', 'warning: NOTE'},
    'tools/gpu/copier/copier.cpp': {'TEXT'},
    'tools/gpu/holder/holder.cpp': {'holder: TEXT', 'USELESS'},
    'tools/gpu/holder/residency.cpp': {'TEXT', 'TEXT OF', 'NOTE'},
    'tools/gpu/library/library.cpp': {'TEXT'},
}
CODE_OF = {'device_failed': 'DeviceFailed', 'usage': 'Usage', 'STFS_GPU_DEVICE': 'DeviceFailed'}


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
        text = ''.join(text for text, _ in parts)
        for condition in (c for c, value in branches.items() if value and c.endswith(' . empty ( )')):
            text = text.replace(name_in_capitals(condition.split()[0]), '')
        if fits:
            result.append((text, tuple(branches.items())))
    return result


@dataclasses.dataclass
class Context:
    """Where an expression stands, and how many functions and variables led to it."""
    function: object
    position: int
    depth: int = 0


class Reader:
    def __init__(self, files):
        self.files = files
        self.by_name = {}
        for file in files:
            for function in file.functions:
                self.by_name.setdefault(function.name, []).append(function)
        self.unresolved = []  # parameters without an argument that the last expressions used
        self.arguments = {}  # of the functions being followed: (function, parameter) -> (tokens, context)
        self.failures = []

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
        """The parts of ?:, of which the last may have a ?: too."""
        condition, *rest = split(tokens, '?') or [tokens]
        if not rest:
            return None
        open_ones, begin = 0, len(condition) + 1
        for part in split(tokens[begin:], '?', ':'):
            begin += len(part)
            if begin == len(tokens) or (is_op(tokens[begin], ':') and open_ones == 0):
                break
            open_ones += 1 if is_op(tokens[begin], '?') else -1
            begin += 1
        return condition, tokens[len(condition) + 1:begin], tokens[begin + 1:]

    def texts_aside(self, tokens, context):
        """The texts of an expression that is no part of the message."""
        before = list(self.unresolved)
        texts = self.texts(tokens, context)
        self.unresolved = before
        return texts

    def known(self, condition, context):
        """What `x.empty()` is when x is known, else None."""
        words = [t.text for t in condition]
        if words[1:] == ['.', 'empty', '(', ')']:
            texts = self.texts_aside(condition[:1], context)
            if len(texts) == 1 and '\x01' not in texts[0][0]:
                return texts[0][0] == ''
        return None

    def operand(self, tokens, context):
        if not tokens:
            return [('', ())]
        if len(split(tokens, '/')) > 1:
            return [('\x01PATH\x02', ())]
        while is_op(tokens[0], '*', '&', '::'):
            tokens = tokens[1:]
        match = matches(tokens)
        literals = [i for i, t in enumerate(tokens) if t.kind == 'str' and not any(a < i < b for a, b in match.items())]
        if literals:  # perhaps beside others, as in "a" MACRO(b) "c"
            i = literals[0]
            tokens[i].is_read = True
            return joined([self.operand(tokens[:i], context), [(tokens[i].text, ())], self.operand(tokens[i + 1:], context)])
        if is_op(tokens[0], '(') and match[0] == len(tokens) - 1:
            return self.texts(tokens[1:-1], context)
        if is_op(tokens[-1], ']'):
            return self.operand(tokens[:match[len(tokens) - 1]], context)
        if is_op(tokens[-1], ')', '}'):
            return self.call(tokens, match[len(tokens) - 1], context)
        if len(tokens) == 1 and tokens[0].kind == 'id':
            return self.variable(tokens[0].text, context)
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
        if is_member and name in OF_THE_OBJECT:
            return self.operand(tokens[:bracket - 2], context)
        if name in TRANSPARENT and arguments:
            return self.texts(arguments[0], context)
        if name in PLACEHOLDERS:
            return [('\x01' + PLACEHOLDERS[name] + '\x02', ())]
        if name == 'in_quotes':
            texts = self.texts_aside(arguments[0], context)  # a name in quotes is no rule
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
                result += self.texts(function.file.statement(i + 1), Context(function, i, context.depth + 1))
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
        if not name.startswith('k'):
            return None
        for file in ([context.function.file] if context.function else []) + self.files:
            text = self.constant_in(file, name)
            if text:
                return [(text, ())]
        return None

    @staticmethod
    def constant_in(file, name):
        for i, token in enumerate(file.tokens[:-4]):
            if token.text == name and (is_op(file.tokens[i + 1], '=', '{') or is_op(file.tokens[i + 3], '=')):
                value = file.statement(i)
                for token in value:
                    token.is_read = True
                return ''.join(t.text for t in value if t.kind == 'str')
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
                begin = next(j for j in range(i, 0, -1) if is_op(tokens[j], ';', '{', '}', '('))
                if not {'string', 'string_view', 'auto', 'char'} & {t.text for t in tokens[begin:i]}:
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
                value = function.file.statement(i + 2)
                if is_op(following, '='):
                    values.append(value)
                else:
                    added.append((value, i))
        if not values:
            return None
        inner = Context(function, declared, context.depth + 1)
        before = len(self.unresolved)
        texts = [text for value in values if value or len(values) == 1
                 for text in ([('', ())] if value and value[0].text == '[' else self.texts(value, inner))]
        for value, at in added:
            extra = self.texts(value, inner)
            if self.level(function, at) > self.level(function, declared) or not is_op(tokens[at - 1], ';', '{', '}'):
                kinds = list(dict.fromkeys(text for text, _ in extra))
                kinds = [k for k in kinds if not any(k != other and other.endswith(k) for other in kinds)]
                extra = [('[' + '|'.join(kinds) + ']', ())]
            texts = joined([texts, extra])
        if not any(has_words(text) for text, _ in texts) and not added:
            if [text for text, _ in texts] == [''] or len(self.unresolved) == before:
                return [(name_in_capitals(name), ())]
        return texts

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
            for i, token in enumerate(file.tokens[:-1]):
                if token.text != function.name or not is_op(file.tokens[i + 1], '('):
                    continue
                caller = file.function_at(i)  # none for a declaration
                count = len(split(file.tokens[i + 2:file.match[i + 1]], ','))
                if caller and count == len(function.params) and not self.is_other(function, file, i, caller):
                    found.append((file, i + 1))
        return found

    def is_other(self, function, file, position, caller):
        """Whether the call is one of another function with this name."""
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
        if is_op(file.tokens[position - 1], '::'):
            return file.tokens[position - 2].text + '::' != function.scope
        return bool(function.scope) and (not is_member or any(f.name == function.name for f in file.functions))

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
        calls = self.calls(needed[0][0]) if needed else []
        if not calls:
            if needed and not has_words(texts[0][0]) and texts[0][0].count('\x01') != 1:
                raise Unreadable(f'{needed[0][0].title()}: no call of this helper was found')
            return self.finished(file, where or (file, bracket), codes, places, texts)
        found = []
        for caller, at in calls:
            before, self.arguments = self.arguments, dict(self.arguments)
            given = split(caller.tokens[at + 1:caller.match[at]], ',')
            outer = Context(caller.function_at(at), at)
            for param, argument in zip(needed[0][0].params, given):
                self.arguments[(needed[0][0], param)] = (argument, outer)
            try:
                found += self.read(file, bracket, expressions, (caller, at))
            except Unreadable as error:
                self.failures.append(f'{caller.path}:{caller.tokens[at].line}: {error}')
            self.arguments = before
        return found

    @staticmethod
    def finished(file, where, codes, places, texts):
        caller, at = where
        found, function = [], caller.function_at(at)
        places = [p for p in places if p[0]] or places  # PLACE may be lacking
        for code, place, text in ((c, p, t) for c in codes for p in places for t in texts):
            if not joined([[code], [place], [text]]):
                continue  # their conditions exclude each other
            line = place[0] + ': ' + text[0] if place[0] else text[0]
            plain = re.sub('[\x01\x02]', '', line)
            if place[0] and not has_words(place[0]):
                line = '\x01PLACE\x02: ' + text[0]
            line = re.sub('\x01(.*?)\x02', lambda m: '\x01' + RENAMED.get(m[1], m[1]) + '\x02', line)
            if plain in PASSED_ON.get(file.path, set()) | PASSED_ON.get(caller.path, set()):
                continue
            if not has_words(line) and 'REASON' not in plain:
                raise Unreadable(f'no words in "{plain}"; is it in PASSED_ON?')
            found.append((code[0], line, caller.path, function.title() if function else ''))
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
