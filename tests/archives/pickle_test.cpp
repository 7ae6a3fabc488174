// The reader of pickles: the opcodes of all protocols, and malformed pickles.
#include "core/format/pickle.h"

#include "core/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace stfs::test {
namespace {

using namespace std::string_literals;

// Returns a value in a form similar to Python's.
std::string shown(const Pickle& pickle, PickleValue value) {
  const auto items = [&](auto&& values, bool has_keys) {
    std::string out;
    std::size_t i = 0;
    for (const PickleValue item : values) {
      if (i > 0) out += has_keys && i % 2 == 1 ? ": " : ", ";
      out += shown(pickle, item);
      ++i;
    }
    return out;
  };
  switch (value.kind) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return value.at != 0 ? "True" : "False";
    case PickleKind::kInt: return std::to_string(value.number());
    case PickleKind::kText: return "'" + std::string(pickle.text_of(value)) + "'";
    case PickleKind::kBytes: return "b'" + std::string(pickle.text_of(value)) + "'";
    case PickleKind::kGlobal:
      return std::string(pickle.global_of(value).module) + "." +
             std::string(pickle.global_of(value).name);
    case PickleKind::kTuple: return "(" + items(pickle.items_of(value), false) + ")";
    case PickleKind::kList: return "[" + items(pickle.node(value).items, false) + "]";
    case PickleKind::kDict: return "{" + items(pickle.node(value).items, true) + "}";
    case PickleKind::kObject: {
      const Pickle::Node& node = pickle.node(value);
      const std::string called = Pickle::is_persistent(node) ? "@" : shown(pickle, node.callable);
      const std::string put = items(node.items, true);
      return called + shown(pickle, node.arguments) + (put.empty() ? "" : "{" + put + "}");
    }
    case PickleKind::kState: return "state";
    default: return "?";
  }
}

std::string read(const std::string& text) {
  const Pickle pickle(text, "p");
  return shown(pickle, pickle.result());
}

TEST(PickleReader, ReadsOpcodesInEveryProtocol) {
  const struct {
    std::string pickle;
    const char* value;
  } cases[] = {
      {"N.", "None"},
      {"\x80\2\x88.", "True"},
      {"I01\n.", "True"},
      {"I-12\n.", "-12"},
      {"L12345678901L\n.", "12345678901"},
      {"L123456789012345678901234567890L\n.", "?"},
      {"F1.5\n.", "?"},
      {"G\0\0\0\0\0\0\0\0."s, "?"},
      {"J\xfe\xff\xff\xff.", "-2"},
      {"K\xff.", "255"},
      {"M\1\1.", "257"},
      {"M\0\x80."s, "32768"},
      {"M\xff\xff.", "65535"},
      {"\x8a\1\xfe.", "-2"},
      {"\x8a\0."s, "0"},
      {"\x8b\2\0\0\0\0\1."s, "256"},
      {"\x8a\x09"
       "123456789.",
       "?"},
      {"S'a b'\n.", "'a b'"},
      {"Vx\\u00e9\\U0001f999\n.", "'xé🦙'"},
      {"V\xe9\n.", "'é'"},
      {"X\2\0\0\0ab."s, "'ab'"},
      {"\x8c\2ab.", "'ab'"},
      {"\x8d\2\0\0\0\0\0\0\0ab."s, "'ab'"},
      {"U\2ab.", "'ab'"},
      {"T\2\0\0\0ab."s, "'ab'"},
      {"C\2ab.", "b'ab'"},
      {"B\2\0\0\0ab."s, "b'ab'"},
      {"\x8e\2\0\0\0\0\0\0\0ab."s, "b'ab'"},
      {"\x96\2\0\0\0\0\0\0\0ab."s, "b'ab'"},
      {").", "()"},
      {"(NK\1t.", "(None, 1)"},
      {"K\1\x85.", "(1)"},
      {"K\1K\2\x86.", "(1, 2)"},
      {"K\1K\2K\3\x87.", "(1, 2, 3)"},
      {"]K\1a(K\2K\3e.", "[1, 2, 3]"},
      {"(K\1K\2l.", "[1, 2]"},
      {"}K\1K\2s(K\3NK\4Nu.", "{1: 2, 3: None, 4: None}"},
      {"(K\1K\2d.", "{1: 2}"},
      {"\x8f(K\1\x90.", "[1]"},
      {"(K\1\x91.", "[1]"},
      {"K\1(K\2K\3"
       "1.",
       "1"},
      {"K\1K\2"
       "0.",
       "1"},
      {"K\1"
       "2\x86.",
       "(1, 1)"},
      {"K\5q\1K\6r\2\0\0\0h\1j\2\0\0\0\x87."s, "(6, 5, 6)"},
      {"K\5p7\ng7\n\x86.", "(5, 5)"},
      {"\x80\4\x95\0\0\0\0\0\0\0\0K\5\x94h\0\x86."s, "(5, 5)"},
      {"cos\nsystem\n(K\1tR.", "os.system(1)"},
      {"\x8c\2os\x8c\6system\x93)R.", "os.system()"},
      {"ca\nB\n)\x81}K\1K\2sb.", "a.B(){state: {1: 2}}"},
      {"ca\nB\n)}\x92.", "a.B(){state: {}}"},
      {"(K\1ia\nB\n.", "a.B(1)"},
      {"(ca\nB\nK\1o.", "a.B(1)"},
      {"cc\nD\n)R(K\1K\2u(K\3e.", "c.D(){1: 2, 1: 3}"},
      {"Pname\n.", "@'name'"},
      {"K\1\x85Q.", "@(1)"},
  };
  for (const auto& [pickle, value] : cases) {
    EXPECT_EQ(read(pickle), value) << pickle;
  }
}

TEST(PickleReader, RejectsMalformedPickles) {
  const std::string broken[] = {
      "",
      "N",
      ".",
      "(.",
      "\x80\6N.",
      "\xff.",
      "K",
      "X\5\0\0\0ab."s,
      "\x8e\xff\xff\xff\xff\xff\xff\xff\xff."s,
      "a.",
      "Na.",
      "NNa.",
      "N(Ne.",
      "](Nu.",
      "}(Nu.",
      "}(Ne.",
      "(Nd.",
      "NNR.",
      "N)R.",
      "ca\n",
      "ca\nb",
      "NN\x93.",
      "h\1.",
      "q\1.",
      "Nr\xff\xff\xff\xff."s,
      "Np99999999999999999999\n.",
      "Ix\n.",
      "Sx\n.",
      "V\\u12\n.",
      "t.",
      "u.",
      "o.",
      "(o.",
      "(N0.",
      "\x82\1N.",
  };
  for (const std::string& pickle : broken) {
    EXPECT_THROW(read(pickle), Error) << pickle;
  }
}

TEST(PickleReader, LimitsMemoryByLength) {
  EXPECT_THROW(read(std::string(4 << 20, 'N') + "."), Error);
  EXPECT_THROW(read("](" + std::string(4 << 20, '}') + "e."), Error);
  for (const std::string unit : {"(Nl0", "]0", "\x94", "\x85", "(K\1K\2d0", "()"}) {
    std::string many = "N";
    while (many.size() < 4 << 20) many += unit;
    EXPECT_THROW(read(many + "0N."), Error) << unit;
  }
  // In a long list, values that are not texts, containers or globals are counted instead of stored.
  std::string numbers = "](";
  for (int i = 0; i < 4 << 20; ++i) numbers += i % 1000 == 999 ? "Ne(" : "N";
  EXPECT_NO_THROW(read(numbers + "e."));
}

TEST(PickleReader, AcceptsManyShortValues) {
  EXPECT_NO_THROW(read("(" + std::string(5'000, '\x88') + "t."));
  std::string lists;
  for (int i = 0; i < 20'000; ++i) lists += "]\x94";
  EXPECT_NO_THROW(read("](" + lists + "e."));
}

}  // namespace
}  // namespace stfs::test
