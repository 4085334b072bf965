"""Regular expressions over topic names, in linear time.

Rules:
- A pattern matches a whole name, as Kafka 4's brokers have it: `orders` does not match `orders-eu`, `orders.*` does.
- A safe part of RE2's language: literals, escapes, `.`, classes, groups, `|`, `* + ?`, `{m,n}`, `^`, `$`. The
  rest (back-references, look-around, flags, `\\b`) is refused with a sentence that says what.
- A name is matched by walking a set of places in the pattern, one character at a time, never backwards. The sets that
  occur are remembered, so most characters cost one look-up. `steps` counts the places walked when one does not.
- Everything is bounded: the pattern's length, its nesting, its size when repetitions are written out, and the sets
  that are remembered.
"""

from __future__ import annotations

import string
from typing import Any, Final, NamedTuple

PATTERN_LENGTH: Final = 8192
NESTING: Final = 100
REPEATS: Final = 1000
PROGRAM_SIZE: Final = 10_000
REMEMBERED_SETS: Final = 2_000

CHAR, SPLIT, JUMP, BEGIN, END, MATCH = range(6)

_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_SPACE: Final = frozenset("\t\n\f\r ")
_SETS: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class PatternError(ValueError):
    """The pattern is not one that we serve; the message says why."""


class Chars(NamedTuple):
    """A set of characters, or all but those."""

    members: frozenset[str]
    negated: bool = False

    def holds(self, char: str) -> bool:
        return (char in self.members) is not self.negated


class Instruction(NamedTuple):
    """`first` and `second` are where to go on; `chars` is for CHAR."""

    op: int
    first: int = -1
    second: int = -1
    chars: Chars | None = None


# The tree: ("chars", Chars) ("begin",) ("end",) ("all", [nodes]) ("any", [nodes]) ("repeat", node, least, most or None)
Node = tuple[Any, ...]


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LENGTH:
            raise PatternError(f"a pattern has at most {PATTERN_LENGTH} characters")
        self._text = text
        self._at = 0

    def parse(self) -> Node:
        tree = self._alternatives(0)
        if self._at < len(self._text):
            raise self._fault("unexpected )")
        return tree

    def _alternatives(self, depth: int) -> Node:
        if depth > NESTING:
            raise self._fault("too many nested groups")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else ("any", branches)

    def _sequence(self, depth: int) -> Node:
        nodes: list[Node] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            nodes.append(self._repeated(self._atom(depth)))
        return ("all", nodes)

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy: the same names match
        if self._bounds() is not None:
            raise self._fault("nested repetition")
        return ("repeat", node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        start = self._at
        if not self._take("{"):
            return None
        least = self._number()
        most = least
        if self._take(","):
            most = self._number()
            if least is not None and most is None and self._take("}"):
                return self._checked(least, None)
        if least is None or most is None or not self._take("}"):
            self._at = start  # not a repetition: a literal brace
            return None
        return self._checked(least, most)

    def _checked(self, least: int, most: int | None) -> tuple[int, int | None]:
        if max(least, most or 0) > REPEATS or (most is not None and most < least):
            raise self._fault("bad repetition")
        return least, most

    def _number(self) -> int | None:
        start = self._at
        while self._at < len(self._text) and self._peek() in string.digits:
            self._at += 1
        digits = self._text[start : self._at]
        if len(digits) > 6:
            raise self._fault("bad repetition")
        return int(digits) if digits else None

    def _atom(self, depth: int) -> Node:
        char = self._next()
        match char:
            case "(":
                return self._group(depth)
            case "[":
                return ("chars", self._class())
            case ".":
                return ("chars", Chars(frozenset("\n"), negated=True))
            case "^":
                return ("begin",)
            case "$":
                return ("end",)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise self._fault(f"nothing to repeat before {char}")
        return ("chars", Chars(frozenset(char)))

    def _group(self, depth: int) -> Node:
        if self._take("?") and not self._take(":"):
            if not (self._take("P<") or self._take("<")) or self._peek() in "=!":
                raise self._fault("flags and look-around are not supported")
            end = self._text.find(">", self._at)
            if end < 0 or not self._text[self._at : end].isidentifier():
                raise self._fault("bad group name")
            self._at = end + 1
        tree = self._alternatives(depth + 1)
        if not self._take(")"):
            raise self._fault("missing )")
        return tree

    def _escape(self) -> Node:
        char = self._next()
        if char == "A":
            return ("begin",)
        if char == "z":
            return ("end",)
        return ("chars", self._escaped(char))

    def _escaped(self, char: str) -> Chars:
        if char.lower() in _SETS:
            return Chars(_SETS[char.lower()], negated=char.isupper())
        if char in _CONTROLS:
            return Chars(frozenset(_CONTROLS[char]))
        if char.isalnum():
            raise self._fault(f"\\{char} is not supported")
        return Chars(frozenset(char))

    def _class(self) -> Chars:
        negated = self._take("^")
        members: set[str] = set()
        first = True
        while first or not self._take("]"):
            low = self._next()
            if low == "[" and self._peek() == ":":
                raise self._fault("[:classes:] are not supported")
            found = self._escaped(self._next()) if low == "\\" else Chars(frozenset(low))
            first = False
            if found.negated:
                raise self._fault("a negated escape inside a class is not supported")
            if len(found.members) == 1 and self._text[self._at : self._at + 1] == "-" and self._after() != "]":
                self._at += 1
                members |= self._range(next(iter(found.members)))
            else:
                members |= found.members
        return Chars(frozenset(members), negated)

    def _range(self, low: str) -> set[str]:
        high = self._next()
        if high == "\\":
            high = next(iter(self._escaped(self._next()).members))
        if not low <= high or ord(high) - ord(low) > 255:
            raise self._fault("bad range in a class")
        return {chr(code) for code in range(ord(low), ord(high) + 1)}

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\0"

    def _after(self) -> str:
        return self._text[self._at + 1 : self._at + 2]

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._fault("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _fault(self, reason: str) -> PatternError:
        return PatternError(f"{reason} (at character {self._at})")


class _Compiler:
    """Writes a tree as instructions; each node is told where to go on when it has matched."""

    def __init__(self) -> None:
        self.program: list[Instruction] = [Instruction(MATCH)]

    def add(self, instruction: Instruction) -> int:
        if len(self.program) >= PROGRAM_SIZE:
            raise PatternError("the pattern is too large")
        self.program.append(instruction)
        return len(self.program) - 1

    def emit(self, node: Node, then: int) -> int:
        """Returns where `node` begins."""
        match node:
            case ("chars", chars):
                return self.add(Instruction(CHAR, then, chars=chars))
            case ("begin",):
                return self.add(Instruction(BEGIN, then))
            case ("end",):
                return self.add(Instruction(END, then))
            case ("all", nodes):
                for each in reversed(nodes):
                    then = self.emit(each, then)
                return then
            case ("any", nodes):
                starts = [self.emit(each, then) for each in nodes]
                start = starts.pop()
                while starts:
                    start = self.add(Instruction(SPLIT, starts.pop(), start))
                return start
            case ("repeat", inner, least, most):
                return self._repeat(inner, least, most, then)
        raise AssertionError(node)

    def _repeat(self, node: Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self.add(Instruction(JUMP))
            self.program[loop] = Instruction(SPLIT, self.emit(node, loop), then)
            then = loop
        else:
            for _ in range(most - least):
                then = self.add(Instruction(SPLIT, self.emit(node, then), then))
        for _ in range(least):
            start = self.emit(node, then)
            if start == then:
                break  # nothing, however often, is nothing
            then = start
        return then


class Pattern:
    """See the module. Raises PatternError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps = 0
        compiler = _Compiler()
        start = compiler.emit(_Parser(text).parse(), 0)
        self._program = compiler.program
        self._start = self._closure([start], at_begin=True)
        self._moves: dict[frozenset[int], dict[str, frozenset[int]]] = {}

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches."""
        places = self._start
        for char in name:
            moves = self._moves.get(places)
            if moves is None:
                if len(self._moves) >= REMEMBERED_SETS:
                    self._moves.clear()
                moves = self._moves[places] = {}
            following = moves.get(char)
            if following is None:
                if len(moves) >= REMEMBERED_SETS:
                    moves.clear()
                following = moves[char] = self._advance(places, char)
            if not following:
                return False
            places = following
        return 0 in self._closure(places, at_begin=not name, at_end=True)

    def _advance(self, places: frozenset[int], char: str) -> frozenset[int]:
        self.steps += len(places)
        reached = []
        for at in places:
            instruction = self._program[at]
            if instruction.op == CHAR and instruction.chars is not None and instruction.chars.holds(char):
                reached.append(instruction.first)
        return self._closure(reached)

    def _closure(
        self, starts: list[int] | frozenset[int], *, at_begin: bool = False, at_end: bool = False
    ) -> frozenset[int]:
        """Every place that can be reached without a character. Ends of the text that are not there yet are kept."""
        seen: set[int] = set()
        kept: list[int] = []
        waiting = list(starts)
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            self.steps += 1
            instruction = self._program[at]
            if instruction.op == SPLIT:
                waiting += (instruction.first, instruction.second)
            elif (instruction.op == BEGIN and at_begin) or (instruction.op == END and at_end):
                waiting.append(instruction.first)
            elif instruction.op != BEGIN:
                kept.append(at)
        return frozenset(kept)
