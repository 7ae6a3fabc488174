#include "core/format/pickle.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

namespace stfs {
namespace {

static_assert(std::endian::native == std::endian::little);

// The limit of the memory for values: kFewBytes, which is enough for a short pickle, plus
// kBytesForOne for each byte of the pickle. A limit is needed because a value may have one byte in
// the pickle and takes 16 bytes of memory.
constexpr std::uint64_t kFewBytes = 16 << 20, kBytesForOne = 8;
constexpr std::size_t kKeptItems = 64;  // items of a list; of later plain ones, runs are counted
constexpr std::uint64_t kDecoded = std::uint64_t{1} << 63;  // in PickleValue::at: in decoded_

}  // namespace

// The machine that reads a pickle: a stack, a memo, and a function for each opcode.
class Pickle::Reader {
 public:
  Reader(Pickle& out, const std::string& place) : out_(out), text_(out.text_), place_(place) {
    room_ = text_.size() * kBytesForOne + kFewBytes;
  }

  void read();

 private:
  using Step = void (Reader::*)();
  using Kind = PickleKind;

  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::kPickle, place_,
                "byte " + std::to_string(begin_) + " of the pickle: " + rule);
  }

  // --- the pickle's bytes

  std::string_view bytes(std::uint64_t count) {
    if (count > text_.size() - at_) refuse("the file ends in the middle of a value: truncated?");
    const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(count));
    at_ += static_cast<std::size_t>(count);
    return taken;
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) refuse("the file ends in the middle of a line: truncated?");
    const std::string_view taken = text_.substr(at_, end - at_);
    at_ = end + 1;
    return taken;
  }
  PickleValue text_value(Kind kind, std::string_view text) const {
    return {kind, static_cast<std::uint32_t>(text.size()),
            static_cast<std::uint64_t>(text.data() - text_.data())};
  }
  // Subtracts `memory` bytes from the memory that the pickle may still use.
  void take(std::uint64_t memory) {
    if (memory > room_) {
      refuse("it has too many values for its " + human_bytes(text_.size()) +
             ": they would take more than " + human_bytes(text_.size() * kBytesForOne + kFewBytes) +
             " of memory");
    }
    room_ -= memory;
  }
  PickleValue decoded_value(Kind kind, std::string_view text) {
    take(text.size());
    const std::uint64_t at = out_.decoded_.size();
    out_.decoded_ += text;
    return {kind, static_cast<std::uint32_t>(text.size()), kDecoded | at};
  }

  // --- the stack

  void push(PickleValue value) {
    if (stack_.size() >= deepest_) {
      take(sizeof value + sizeof(std::size_t));  // includes an entry of marks_
      ++deepest_;
    }
    stack_.push_back(value);
  }
  PickleValue pop() {
    if (stack_.empty() || stack_.back().kind == Kind::kMark) refuse("nothing is on the stack");
    const PickleValue value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.empty() || stack_.back().kind == Kind::kMark) refuse("nothing is on the stack");
    return stack_.back();
  }
  // Removes the last mark from marks_, and returns the index in stack_ of the first value above it.
  // The mark itself is the entry before that value.
  std::size_t marked() {
    if (marks_.empty()) refuse("no mark is on the stack");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return mark + 1;
  }
  void drop_from(std::size_t mark_and_one) { stack_.resize(mark_and_one - 1); }

  PickleValue new_node(Kind kind, Node node) {
    take(sizeof node + (node.items.size() + 1) * sizeof(PickleValue));
    out_.nodes_.push_back(std::move(node));
    return {kind, 0, out_.nodes_.size() - 1};
  }
  PickleValue new_tuple(std::span<const PickleValue> items) {
    const std::uint64_t at = out_.items_.size();
    take(items.size() * sizeof(PickleValue));
    out_.items_.insert(out_.items_.end(), items.begin(), items.end());
    return {Kind::kTuple, static_cast<std::uint32_t>(items.size()), at};
  }
  PickleValue new_object(PickleValue callable, PickleValue arguments) {
    return new_node(Kind::kObject, {.callable = callable, .arguments = arguments, .items = {}});
  }
  Node& node_below(std::size_t first) {
    if (first < 2 || !stack_[first - 2].is_node())
      refuse("adds items to an object that cannot hold any");
    return out_.nodes_[stack_[first - 2].at];
  }

  // Adds values to the list or object below the mark.
  void append_from(std::size_t first) {
    Node& node = node_below(first);
    const bool is_list = stack_[first - 2].kind == Kind::kList;
    if (stack_[first - 2].kind == Kind::kDict) refuse("adds items without keys to a dictionary");
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (is_list && node.items.size() > kKeptItems && stack_[i].is_plain() && count_plain(node))
        continue;
      take((is_list ? 1 : 2) * sizeof(PickleValue));
      if (!is_list) node.items.push_back({Kind::kInt, 0, node.items.size() / 2});
      node.items.push_back(stack_[i]);
    }
    drop_from(first);
  }
  // Adds a plain value to the run of plain values at the end of a list. Returns false if the last
  // item is not a plain value or a run.
  static bool count_plain(Node& node) {
    PickleValue& last = node.items.back();
    const bool is_count = last.kind == Kind::kOther && last.count > 0;
    if (!is_count && !last.is_plain()) return false;
    last = {Kind::kOther, is_count ? last.count + 1 : 2, 0};
    return true;
  }
  void set_from(std::size_t first) {
    Node& node = node_below(first);
    take((stack_.size() - first) * sizeof(PickleValue));
    if (stack_[first - 2].kind == Kind::kList) refuse("adds keys to a list");
    if ((stack_.size() - first) % 2 != 0) refuse("a key without a value");
    node.items.insert(node.items.end(), stack_.begin() + static_cast<std::ptrdiff_t>(first),
                      stack_.end());
    drop_from(first);
  }

  // --- opcodes, with their names in pickletools.py

  void proto() {
    if (number<std::uint8_t>() > 5) refuse("a protocol that stfs does not support");
  }
  void frame() { bytes(8); }
  void stop() {
    out_.result_ = pop();
    has_ended_ = true;
  }
  void mark() {
    marks_.push_back(stack_.size());
    push({Kind::kMark, 0, 0});
  }
  void pop_one() {
    if (!stack_.empty() && stack_.back().kind == Kind::kMark) {
      drop_from(marked());
    } else {
      pop();
    }
  }
  void pop_mark() { drop_from(marked()); }
  void dup() { push(PickleValue(top())); }

  void none() { push({}); }
  void new_true() { push({Kind::kBool, 0, 1}); }
  void new_false() { push({Kind::kBool, 0, 0}); }
  void push_int(std::int64_t value) { push({Kind::kInt, 0, static_cast<std::uint64_t>(value)}); }
  void binint() { push_int(number<std::int32_t>()); }
  void binint1() { push_int(number<std::uint8_t>()); }
  void binint2() { push_int(number<std::uint16_t>()); }
  void push_long(std::string_view little) {
    if (little.size() > 8) return push({Kind::kOther, 0, 0});
    const bool is_negative = !little.empty() && (static_cast<unsigned char>(little.back()) & 0x80U);
    std::uint64_t value = is_negative ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, little.data(), little.size());
    push_int(static_cast<std::int64_t>(value));
  }
  void long1() { push_long(bytes(number<std::uint8_t>())); }
  void long4() { push_long(bytes(number<std::uint32_t>())); }
  void push_decimal(std::string_view digits) {
    if (digits.ends_with('L')) digits.remove_suffix(1);
    std::int64_t value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec == std::errc::result_out_of_range) return push({Kind::kOther, 0, 0});
    if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
      refuse("not a valid number");
    }
    push_int(value);
  }
  void int_line() {
    const std::string_view digits = line();
    if (digits == "00" || digits == "01") return push({Kind::kBool, 0, digits[1] == '1' ? 1U : 0U});
    push_decimal(digits);
  }
  void long_line() { push_decimal(line()); }
  void float_line() {
    line();
    push({Kind::kOther, 0, 0});
  }
  void binfloat() {
    bytes(8);
    push({Kind::kOther, 0, 0});
  }

  template <class Length>
  void text() {
    push(text_value(Kind::kText, bytes(checked(number<Length>()))));
  }
  template <class Length>
  void data() {
    push(text_value(Kind::kBytes, bytes(checked(number<Length>()))));
  }
  std::uint64_t checked(std::uint64_t length) const {
    if (length > text_.size() - at_) refuse("the file ends in the middle of a value: truncated?");
    return length;
  }
  // `'...'`, perhaps with Python's escapes. A text with escapes becomes kOther, because no text
  // that stfs needs has one.
  void string_line() {
    std::string_view quoted = line();
    const bool is_quoted = quoted.size() >= 2 && quoted.front() == quoted.back() &&
                           (quoted.front() == '\'' || quoted.front() == '"');
    if (!is_quoted) refuse("a text without quotes");
    quoted = quoted.substr(1, quoted.size() - 2);
    if (quoted.find('\\') != std::string_view::npos) return push({Kind::kOther, 0, 0});
    push(text_value(Kind::kText, quoted));
  }
  // A text in Latin-1. Other characters are escaped by their code points: \u20ac, \U0001f600.
  void unicode_line() {
    const std::string_view raw = line();
    const bool is_plain = std::ranges::all_of(
        raw, [](char c) { return c != '\\' && static_cast<unsigned char>(c) < 0x80; });
    if (is_plain) return push(text_value(Kind::kText, raw));
    std::string utf8;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      std::uint32_t code = static_cast<unsigned char>(raw[i]);
      const std::size_t digits = raw[i] != '\\' || i + 1 == raw.size() ? 0
                                 : raw[i + 1] == 'u'                   ? 4
                                 : raw[i + 1] == 'U'                   ? 8
                                                                       : 0;
      if (digits != 0) {
        const std::string_view hexadecimal = raw.substr(i + 2, digits);
        const char* const end = hexadecimal.data() + hexadecimal.size();
        const auto result = std::from_chars(hexadecimal.data(), end, code, 16);
        if (hexadecimal.size() != digits || result.ptr != end || code > 0x10FFFF) {
          refuse("a text with a broken escape");
        }
        i += 1 + digits;
      }
      append_utf8(code, utf8);
    }
    push(decoded_value(Kind::kText, utf8));
  }
  static void append_utf8(std::uint32_t code, std::string& out) {
    const auto rest = [&](unsigned shift) {
      out += static_cast<char>(0x80U | ((code >> shift) & 0x3FU));
    };
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else if (code < 0x800) {
      out += static_cast<char>(0xC0U | (code >> 6));
      rest(0);
    } else if (code < 0x10000) {
      out += static_cast<char>(0xE0U | (code >> 12));
      rest(6);
      rest(0);
    } else {
      out += static_cast<char>(0xF0U | (code >> 18));
      rest(12);
      rest(6);
      rest(0);
    }
  }

  void empty_tuple() { push(new_tuple({})); }
  void tuple() {
    const std::size_t first = marked();
    const PickleValue made = new_tuple(std::span(stack_).subspan(first));
    drop_from(first);
    push(made);
  }
  template <std::size_t count>
  void tuple_of() {
    std::array<PickleValue, count> items;
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push(new_tuple(items));
  }
  void empty_list() { push(new_node(Kind::kList, {})); }
  void empty_dict() { push(new_node(Kind::kDict, {})); }
  void list() {
    const std::size_t first = marked();
    Node node;
    node.items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    drop_from(first);
    push(new_node(Kind::kList, std::move(node)));
  }
  void dict() {
    const std::size_t first = marked();
    Node node;
    node.items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    if (node.items.size() % 2 != 0) refuse("a key without a value");
    drop_from(first);
    push(new_node(Kind::kDict, std::move(node)));
  }
  void append() {
    const PickleValue item = pop();
    mark();
    push(item);
    append_from(marked());
  }
  void appends() { append_from(marked()); }
  void setitem() {
    const PickleValue value = pop();
    const PickleValue key = pop();
    mark();
    push(key);
    push(value);
    set_from(marked());
  }
  void setitems() { set_from(marked()); }

  void push_global(PickleValue module, PickleValue name) {
    take(sizeof(GlobalTexts));
    out_.globals_.push_back({module, name});
    push({Kind::kGlobal, 0, out_.globals_.size() - 1});
  }
  void global() {
    const PickleValue module = text_value(Kind::kText, line());
    push_global(module, text_value(Kind::kText, line()));
  }
  void stack_global() {
    const PickleValue name = pop();
    const PickleValue module = pop();
    if (module.kind != Kind::kText || name.kind != Kind::kText) refuse("a global without a name");
    push_global(module, name);
  }
  void reduce() {
    const PickleValue arguments = pop();
    const PickleValue callable = pop();
    if (arguments.kind != Kind::kTuple) refuse("arguments that are not a tuple");
    push(new_object(object_of(callable), arguments));
  }
  // Refuses None as a callable, because it marks an object with a persistent id.
  PickleValue object_of(PickleValue callable) const {
    if (callable.kind == Kind::kNone) refuse("a call of None");
    return callable;
  }
  void newobj() { reduce(); }
  void newobj_ex() {
    const PickleValue keywords = pop();
    reduce();
    if (keywords.is_node()) {
      take(2 * sizeof(PickleValue));
      out_.nodes_[top().at].items.insert(out_.nodes_[top().at].items.end(),
                                         {{Kind::kState, 0, 0}, keywords});
    }
  }
  void inst() {
    global();
    const PickleValue callable = pop();
    const std::size_t first = marked();
    const PickleValue arguments = new_tuple(std::span(stack_).subspan(first));
    drop_from(first);
    push(new_object(callable, arguments));
  }
  void obj() {
    const std::size_t first = marked();
    if (first == stack_.size()) refuse("an object without a class");
    const PickleValue callable = object_of(stack_[first]);
    const PickleValue arguments = new_tuple(std::span(stack_).subspan(first + 1));
    drop_from(first);
    push(new_object(callable, arguments));
  }
  void build() {
    const PickleValue state = pop();
    const PickleValue object = top();
    if (object.kind != Kind::kObject) return;  // for instance a state for a class: it is ignored
    std::vector<PickleValue>& items = out_.nodes_[object.at].items;
    take(2 * sizeof(PickleValue));
    items.insert(items.end(), {{Kind::kState, 0, 0}, state});
  }
  void binpersid() { push(new_object({}, pop())); }
  void persid() { push(new_object({}, text_value(Kind::kText, line()))); }

  void put(std::uint64_t index) {
    // Writers count from 0. A number far beyond the count so far would only waste memory.
    if (index > 4 * puts_ + 1024) refuse("a memo index that is too large");
    ++puts_;
    if (index >= memo_.size()) {
      take((index + 1 - memo_.size()) * sizeof(PickleValue));
      memo_.resize(static_cast<std::size_t>(index + 1), {Kind::kMark});
    }
    memo_[static_cast<std::size_t>(index)] = top();
  }
  void get(std::uint64_t index) {
    if (index >= memo_.size() || memo_[static_cast<std::size_t>(index)].kind == Kind::kMark) {
      refuse("a memo index that has no value");
    }
    push(memo_[static_cast<std::size_t>(index)]);
  }
  std::uint64_t index_line() {
    const std::string_view digits = line();
    std::uint64_t index = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
      refuse("not a valid memo index");
    }
    return index;
  }
  void put_line() { put(index_line()); }
  void get_line() { get(index_line()); }
  void binput() { put(number<std::uint8_t>()); }
  void long_binput() { put(number<std::uint32_t>()); }
  void binget() { get(number<std::uint8_t>()); }
  void long_binget() { get(number<std::uint32_t>()); }
  void memoize() { put(puts_); }

  static constexpr std::array<Step, 256> steps() {
    std::array<Step, 256> table{};
    const auto row = [&](unsigned char opcode, Step step) { table[opcode] = step; };
    row(0x80, &Reader::proto);
    row(0x95, &Reader::frame);
    row('.', &Reader::stop);
    row('(', &Reader::mark);
    row('0', &Reader::pop_one);
    row('1', &Reader::pop_mark);
    row('2', &Reader::dup);
    row('N', &Reader::none);
    row(0x88, &Reader::new_true);
    row(0x89, &Reader::new_false);
    row('J', &Reader::binint);
    row('K', &Reader::binint1);
    row('M', &Reader::binint2);
    row(0x8A, &Reader::long1);
    row(0x8B, &Reader::long4);
    row('I', &Reader::int_line);
    row('L', &Reader::long_line);
    row('F', &Reader::float_line);
    row('G', &Reader::binfloat);
    row('X', &Reader::text<std::uint32_t>);
    row(0x8C, &Reader::text<std::uint8_t>);
    row(0x8D, &Reader::text<std::uint64_t>);
    row('T', &Reader::text<std::uint32_t>);  // a text of Python 2
    row('U', &Reader::text<std::uint8_t>);
    row('S', &Reader::string_line);
    row('V', &Reader::unicode_line);
    row('B', &Reader::data<std::uint32_t>);
    row('C', &Reader::data<std::uint8_t>);
    row(0x8E, &Reader::data<std::uint64_t>);
    row(0x96, &Reader::data<std::uint64_t>);
    row(')', &Reader::empty_tuple);
    row('t', &Reader::tuple);
    row(0x85, &Reader::tuple_of<1>);
    row(0x86, &Reader::tuple_of<2>);
    row(0x87, &Reader::tuple_of<3>);
    row(']', &Reader::empty_list);
    row('}', &Reader::empty_dict);
    row(0x8F, &Reader::empty_list);  // a set
    row('l', &Reader::list);
    row('d', &Reader::dict);
    row(0x91, &Reader::list);  // a frozen set
    row('a', &Reader::append);
    row('e', &Reader::appends);
    row(0x90, &Reader::appends);
    row('s', &Reader::setitem);
    row('u', &Reader::setitems);
    row('c', &Reader::global);
    row(0x93, &Reader::stack_global);
    row('R', &Reader::reduce);
    row(0x81, &Reader::newobj);
    row(0x92, &Reader::newobj_ex);
    row('i', &Reader::inst);
    row('o', &Reader::obj);
    row('b', &Reader::build);
    row('Q', &Reader::binpersid);
    row('P', &Reader::persid);
    row('p', &Reader::put_line);
    row('g', &Reader::get_line);
    row('q', &Reader::binput);
    row('r', &Reader::long_binput);
    row('h', &Reader::binget);
    row('j', &Reader::long_binget);
    row(0x94, &Reader::memoize);
    return table;
  }
  Pickle& out_;
  std::string_view text_;
  const std::string& place_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;  // position of the current opcode
  bool has_ended_ = false;
  std::uint64_t room_ = 0;   // bytes of memory that values may still use
  std::size_t deepest_ = 0;  // the greatest size of stack_ so far
  std::vector<PickleValue> stack_;
  std::vector<std::size_t> marks_;
  std::deque<PickleValue> memo_;
  std::uint64_t puts_ = 0;
};

void Pickle::Reader::read() {
  static constexpr std::array<Step, 256> kSteps = steps();
  while (!has_ended_) {
    begin_ = at_;
    const auto opcode = number<std::uint8_t>();
    const Step step = kSteps[opcode];
    if (step == nullptr) refuse("an opcode that stfs does not support");
    (this->*step)();
  }
}

Pickle::Pickle(std::string text, const std::string& place)
    : length_(text.size()), text_(std::move(text)) {
  Reader(*this, place).read();
}

std::string_view Pickle::text_of(PickleValue text) const {
  const bool is_decoded = (text.at & kDecoded) != 0;
  return std::string_view(is_decoded ? decoded_ : text_)
      .substr(static_cast<std::size_t>(text.at & ~kDecoded), text.count);
}

std::span<const PickleValue> Pickle::items_of(PickleValue tuple) const {
  return std::span(items_).subspan(static_cast<std::size_t>(tuple.at), tuple.count);
}

Pickle::Global Pickle::global_of(PickleValue global) const {
  const GlobalTexts& texts = globals_[global.at];
  return {text_of(texts.module), text_of(texts.name)};
}

}  // namespace stfs
