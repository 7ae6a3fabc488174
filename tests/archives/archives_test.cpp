// Files from PyTorch and NumPy as a checkpoint: their tensors, and files that break a rule.
#include "core/base/error.h"
#include "core/checkpoint/checkpoint.h"
#include "core/format/archive.h"
#include "core/source/local_file.h"
#include "tests/archives/archive_file.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::test {
namespace {

using namespace std::string_literals;
using pickled::dict;
using pickled::storage;
using pickled::tensor;
using pickled::whole;

std::string counted(std::size_t bytes) {
  std::string out(bytes, '\0');
  std::iota(out.begin(), out.end(), '\0');
  return out;
}

class Archives : public ::testing::Test {
 protected:
  const Checkpoint& open(const std::string& bytes, const std::string& name = "m.pt") {
    const std::string path = (dir_ / name).string();
    checkpoint_.reset();
    write_file(path, bytes);
    checkpoint_ = std::make_unique<const Checkpoint>(std::span(&path, 1));
    return *checkpoint_;
  }
  // Returns "NAME DTYPE SHAPE" for each tensor, sorted by name.
  std::vector<std::string> shown() const {
    std::vector<std::string> lines;
    for (const std::uint32_t i : checkpoint_->list().by_name()) {
      const stfs::Tensor tensor = checkpoint_->tensor(i);
      lines.push_back(std::string(tensor.name) + " " + std::string(dtype_name(tensor.dtype)) + " " +
                      shape_json(tensor.shape));
    }
    return lines;
  }
  std::string bytes_of(std::string_view name) const {
    const stfs::Tensor tensor = checkpoint_->tensor(checkpoint_->find(name).value());
    const Content content = tensor.content();
    EXPECT_EQ(content.size(), tensor.length);
    std::string bytes(content.size(), '\0');
    EXPECT_EQ(content.copy(0, std::as_writable_bytes(std::span(bytes))), 0) << name;
    return bytes;
  }
  bool is_stored(std::string_view name) const {
    return checkpoint_->locator(checkpoint_->find(name).value()).has_value();
  }
  // Returns the error for a file. Returns "" if it is accepted and every byte can be read.
  std::string refusal(const std::string& bytes, const std::string& name = "m.pt") {
    try {
      open(bytes, name);
      for (std::uint32_t i = 0; i < checkpoint_->tensor_count(); ++i) {
        bytes_of(checkpoint_->name(i));
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  bool warns(std::string_view words) const {
    return std::ranges::any_of(checkpoint_->warnings(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  }

  TempDir dir_;
  std::unique_ptr<const Checkpoint> checkpoint_;
};

using TorchFile = Archives;
using NumPyArchive = Archives;
using ZipArchive = Archives;
using InflatedMember = Archives;

std::string two_tensors() {
  return torch_file(whole(dict({{"a", tensor(storage("FloatStorage", "0", 2), 0, {2}, {1})},
                                {"b", tensor(storage("ByteStorage", "1", 3), 0, {3}, {1})}})),
                    {"12345678", "xyz"})
      .bytes();
}

TEST_F(TorchFile, StoredTensorIsExtentOfFile) {
  open(two_tensors());
  EXPECT_EQ(shown(), (std::vector<std::string>{"a F32 [2]", "b U8 [3]"}));
  EXPECT_EQ(bytes_of("a"), "12345678");
  const Extent extent = checkpoint_->locator(checkpoint_->find("b").value()).value();
  EXPECT_EQ(read_file(dir_ / "m.pt").substr(extent.offset, extent.length), "xyz");
  EXPECT_EQ(checkpoint_->parts().front().format->name, "PyTorch");
}

TEST_F(TorchFile, ComputesViewsFromStorage) {
  const std::string bytes = counted(24);
  const std::string six = storage("ShortStorage", "0", 12);  // 3 x 4
  open(torch_file(whole(dict({{"whole", tensor(six, 0, {3, 4}, {4, 1})},
                              {"row", tensor(six, 4, {4}, {1})},
                              {"transposed", tensor(six, 0, {4, 3}, {1, 4})},
                              {"stepped", tensor(six, 1, {2, 2}, {8, 2})},
                              {"expanded", tensor(six, 3, {2, 3}, {1, 0})},
                              {"windows", tensor(six, 0, {2, 3}, {1, 1})},
                              {"scalar", tensor(six, 5, {}, {})},
                              {"none", tensor(six, 0, {0, 4}, {4, 1})}})),
                  {bytes})
           .bytes());
  EXPECT_EQ(bytes_of("whole"), bytes);
  EXPECT_EQ(bytes_of("row"), bytes.substr(8, 8));
  const auto elements = [&](const std::vector<int>& indices) {
    std::string out;
    for (const int i : indices) out += bytes.substr(static_cast<std::size_t>(i) * 2, 2);
    return out;
  };
  EXPECT_EQ(bytes_of("transposed"), elements({0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_EQ(bytes_of("stepped"), elements({1, 3, 9, 11}));
  EXPECT_EQ(bytes_of("expanded"), elements({3, 3, 3, 4, 4, 4}));
  EXPECT_EQ(bytes_of("windows"), elements({0, 1, 2, 1, 2, 3}));
  EXPECT_EQ(bytes_of("scalar"), elements({5}));
  EXPECT_EQ(bytes_of("none"), "");
  EXPECT_TRUE(is_stored("whole") && is_stored("row") && is_stored("scalar"));
  EXPECT_FALSE(is_stored("transposed"));
  const stfs::Tensor from =
      checkpoint_->tensor(checkpoint_->find("stepped").value()).computed->inputs().front();
  EXPECT_EQ(from.name, "archive/data/0");
  EXPECT_EQ(from.length, 24U);
}

TEST_F(TorchFile, NamesTensorsByKeyPath) {
  const std::string t = tensor(storage("ByteStorage", "0", 1), 0, {1}, {1});
  const std::string namespace_object =
      pickled::call("argparse", "Namespace", {}) + dict({{"slot", t}}) + "b";
  const std::string slots =
      pickled::call("my", "Class", {}) + pickled::tuple({dict({{"d", t}}), dict({{"s", t}})}) + "b";
  const std::string numbered = "}(" + pickled::integer(7) + t + "N" + t + "\x88" + t + "u";
  const std::string ordered =
      pickled::call("collections", "OrderedDict", {}) + "(" + pickled::text("k") + t + "u";
  const std::string parameter =
      pickled::call("torch._utils", "_rebuild_parameter", {t, "\x88", "N"});
  const std::string subclass = pickled::call(
      "torch._tensor", "_rebuild_from_type_v2",
      {pickled::global("torch._utils", "_rebuild_tensor_v2"), pickled::global("my", "Tensor"),
       pickled::tuple({storage("ByteStorage", "0", 1), pickled::integer(0),
                       pickled::tuple({pickled::integer(1)}), pickled::tuple({pickled::integer(1)}),
                       "\x89", "N"}),
       dict({})});
  open(torch_file(whole(dict({{"state_dict", dict({{"module.w.x", t}})},
                              {"list", pickled::list({"N", t, pickled::tuple({t})})},
                              {"object", namespace_object},
                              {"slots", slots},
                              {"n", numbered},
                              {"ordered", ordered},
                              {"parameter", parameter},
                              {"subclass", subclass},
                              {"called", pickled::call("os", "system", {pickled::text("x"), t})},
                              {"", t},
                              {"epoch", pickled::integer(3)}})),
                  {"q"})
           .bytes());
  const std::vector<std::string> names{"",
                                       "called.1",
                                       "list.1",
                                       "list.2.0",
                                       "n.7",
                                       "n.None",
                                       "n.True",
                                       "object.slot",
                                       "ordered.k",
                                       "parameter",
                                       "slots.d",
                                       "slots.s",
                                       "state_dict.module.w.x",
                                       "subclass"};
  std::vector<std::string> lines;
  for (const std::string& name : names) lines.push_back(name + " U8 [1]");
  EXPECT_EQ(shown(), lines);
  EXPECT_TRUE(checkpoint_->warnings().empty());
  open(torch_file(whole(t), {"q"}).bytes());
  EXPECT_EQ(shown(), (std::vector<std::string>{"tensor U8 [1]"}));
}

TEST_F(TorchFile, TensorReachedTwiceIsTwoTensorsWithSameBytes) {
  const std::string t = tensor(storage("ByteStorage", "0", 4), 0, {4}, {1});
  const std::string tied = "}(" + pickled::text("a") + t + "q\1" + pickled::text("b") + "h\1u";
  open(torch_file(whole(tied), {"same"}).bytes());
  EXPECT_EQ(bytes_of("a"), "same");
  EXPECT_EQ(checkpoint_->locator(0)->offset, checkpoint_->locator(1)->offset);
}

TEST_F(TorchFile, RejectsTwoPathsWithSameName) {
  const std::string t = tensor(storage("ByteStorage", "0", 1), 0, {1}, {1});
  const std::string what =
      refusal(torch_file(whole(dict({{"a.b", t}, {"a", dict({{"b", t}})}})), {"q"}).bytes());
  EXPECT_NE(what.find("\"a.b\""), std::string::npos) << what;
  EXPECT_NE(what.find("DuplicateTensor"), std::string::npos) << what;
}

TEST_F(TorchFile, SkipsUnsupportedTensorsWithWarning) {
  const std::string t = tensor(storage("ByteStorage", "0", 4), 0, {4}, {1});
  const auto rebuilt = [&](std::string_view name) {
    return pickled::call("torch._utils", name, {t});
  };
  const std::string conjugate = pickled::call(
      "torch._utils", "_rebuild_tensor_v2",
      {storage("ComplexFloatStorage", "1", 1), pickled::integer(0), pickled::tuple({}),
       pickled::tuple({}), "\x89", "N", dict({{"conj", "\x88"}})});
  const std::string meta = storage("ByteStorage", "0", 4);
  open(torch_file(
           whole(dict({{"sparse", rebuilt("_rebuild_sparse_tensor")},
                       {"quantised", rebuilt("_rebuild_qtensor")},
                       {"new", rebuilt("_rebuild_something")},
                       {"conjugate", conjugate},
                       {"complex128", tensor(storage("ComplexDoubleStorage", "0", 0), 0, {0}, {1})},
                       {"negative", tensor(storage("ByteStorage", "0", 4), 3, {4}, {-1})},
                       {"beyond", tensor(storage("ByteStorage", "0", 4), 1, {4}, {1})},
                       {"far", tensor(storage("ByteStorage", "0", 4), 0, {2, 2147483647},
                                      {2147483647, 2147483647})},
                       {"storage", meta},
                       {"good", t}})),
           {"abcd", "01234567"})
           .bytes());
  EXPECT_EQ(shown(), (std::vector<std::string>{"good U8 [4]"}));
  EXPECT_EQ(bytes_of("good"), "abcd");
  for (const char* words :
       {"\"sparse\": is sparse", "\"quantised\": is quantised",
        "\"new\": is made by torch._utils._rebuild_something",
        "\"conjugate\": its bytes are not its values (conj)",
        "\"complex128\": safetensors has no type", "\"negative\": it has no valid shape and",
        "\"beyond\": extends past", "\"far\": extends past", "\"storage\": is a storage"}) {
    EXPECT_TRUE(warns(words)) << words;
  }
}

TEST_F(TorchFile, UntypedStorageGetsTypeFromTensor) {
  const auto untyped = [&](std::string_view type, std::int32_t count) {
    return pickled::call(
        "torch._utils", "_rebuild_tensor_v3",
        {storage("UntypedStorage", "0", 8), pickled::integer(1),
         pickled::tuple({pickled::integer(count)}), pickled::tuple({pickled::integer(1)}), "\x89",
         "N", pickled::global("torch", type)});
  };
  open(torch_file(whole(dict({{"e4m3", untyped("float8_e4m3fn", 3)},
                              {"u16", untyped("uint16", 3)},
                              {"f4", untyped("float4_e2m1fn_x2", 2)},
                              {"bits", untyped("bits8", 2)}})),
                  {"01234567"})
           .bytes());
  EXPECT_EQ(shown(), (std::vector<std::string>{"e4m3 F8_E4M3 [3]", "f4 F4 [4]", "u16 U16 [3]"}));
  EXPECT_EQ(bytes_of("u16"), "234567");
  EXPECT_EQ(bytes_of("f4"), "12");
  EXPECT_TRUE(warns("bits8"));
}

TEST_F(TorchFile, RejectsScriptsBigEndianFilesAndWrongStorages) {
  const std::string t = whole(tensor(storage("ByteStorage", "0", 1), 0, {1}, {1}));
  ZipFile script = torch_file(t, {"q"});
  script.add("archive/constants.pkl", "\x80\2).");
  EXPECT_NE(refusal(script.bytes()).find("torch.jit.load"), std::string::npos);
  ZipFile big = torch_file(t, {"q"});
  big.members[1].data = "big";
  EXPECT_NE(refusal(big.bytes()).find("big-endian"), std::string::npos);
  ZipFile without = torch_file(t, {});
  EXPECT_NE(refusal(without.bytes()).find("storage \"0\" is not in the file"), std::string::npos);
  ZipFile small = torch_file(whole(tensor(storage("ByteStorage", "0", 9), 0, {1}, {1})), {"q"});
  EXPECT_NE(refusal(small.bytes()).find("has 1 bytes, but should have 9"), std::string::npos);
  EXPECT_NE(refusal("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s)
                .find("torch.save writes what stfs reads"),
            std::string::npos);
}

TEST_F(TorchFile, DoesNotRunCodeInPickle) {
  const std::filesystem::path mark = dir_ / "ran";
  const std::string t = tensor(storage("ByteStorage", "0", 1), 0, {1}, {1});
  open(torch_file(whole(dict({{"w", t},
                              {"evil", pickled::call("os", "system",
                                                     {pickled::text("touch " + mark.string())})}})),
                  {"q"})
           .bytes());
  EXPECT_EQ(shown(), (std::vector<std::string>{"w U8 [1]"}));
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST_F(TorchFile, RejectsPicklesThatExpandOutOfProportion) {
  const std::string t = tensor(storage("ByteStorage", "0", 1), 0, {1}, {1});
  // [t], then forty lists that each contain the previous list twice. There are 2^40 paths to `t`.
  const auto doubled = [](std::string value) {
    value = "](" + value + "eq\1";
    for (char i = 1; i < 41; ++i) value += "](h"s + i + "h" + i + "eq" + static_cast<char>(i + 1);
    return whole(value);
  };
  EXPECT_NE(refusal(torch_file(doubled(t), {"q"}).bytes()).find("too many paths"),
            std::string::npos);
  EXPECT_EQ(refusal(torch_file(doubled("N"), {}).bytes()), "");
  std::string tuples = "Nq\1";
  for (char i = 1; i < 41; ++i) tuples += "h"s + i + "h" + i + "\x86q" + static_cast<char>(i + 1);
  EXPECT_EQ(refusal(torch_file(whole(tuples), {}).bytes()), "");
  // A tensor that is repeated a million times, and a key of 100 KB that is repeated 100,000 times.
  // Each repetition takes only two or three bytes.
  std::string often = "](" + t + "q\1",
              long_key = "}(" + pickled::text(std::string(100'000, 'k')) + "q\1)";
  for (int i = 0; i < 1'000'000; ++i) often += "h\1";
  for (int i = 0; i < 100'000; ++i) long_key += "h\1)";
  EXPECT_NE(refusal(torch_file(whole(often + "e"), {"q"}).bytes()).find("too many values"),
            std::string::npos);
  EXPECT_NE(refusal(torch_file(whole(long_key + "u"), {}).bytes()).find("too many paths"),
            std::string::npos);
  // A list that contains itself, and nested lists. Deeper nests than Python can write are refused.
  EXPECT_EQ(refusal(torch_file(whole("]q\1h\1a" + t + "a"), {"q"}).bytes()), "");
  EXPECT_EQ(shown(), (std::vector<std::string>{"1 U8 [1]"}));
  for (const int depth : {100'000, 1'100'000}) {
    std::string nest, ends;
    for (int i = 0; i < depth; ++i) {
      nest += "](" + pickled::integer(i);
      ends += "e";
    }
    const std::string refused = refusal(torch_file(whole(nest + t + ends), {"q"}).bytes());
    EXPECT_EQ(refused != "", depth > 1'000'000) << refused;
  }
  // A hundred references to a tuple without tensors, and as many to a tuple with a tensor.
  std::string rows = "](" + pickled::tuple(std::vector(1'000, pickled::integer(1))) + "q\1" +
                     pickled::tuple({t}) + "q\2";
  for (int i = 0; i < 100; ++i) rows += "h\1h\2";
  EXPECT_EQ(refusal(torch_file(whole(rows + "e"), {"q"}).bytes()), "");
  EXPECT_EQ(shown().size(), 101U);
}

TEST_F(TorchFile, RejectsCompressedPickleOutOfProportion) {
  for (const std::size_t length : {std::size_t{300} << 10, std::size_t{16} << 20}) {
    ZipFile zip =
        torch_file("\x80\2B" + std::string(4, '\0') + std::string(length, '0') + "N.", {});
    zip.members.front().is_deflated = true;
    EXPECT_NE(refusal(zip.bytes()).find("is too large for its compressed size"), std::string::npos)
        << length;
  }
}

// A key of 1 MiB is part of the names of sixty tensors with one byte. All names together may be at
// most twice as long as the pickle.
TEST_F(TorchFile, RejectsNamesOutOfProportion) {
  const std::string t = tensor(storage("ByteStorage", "0", 1), 0, {1}, {1});
  const auto with = [&](std::size_t paths) {
    std::string list = "](" + t + "q\1";
    for (std::size_t i = 1; i < paths; ++i) list += "h\1";
    return refusal(
        torch_file(whole(dict({{std::string(1 << 20, 'k'), list + "e"}})), {"q"}).bytes());
  };
  EXPECT_EQ(with(2), "");
  // The same key nested sixty times.
  std::string deep = "](" + pickled::text(std::string(1 << 20, 'k')) + "q\1", ends;
  for (int i = 0; i < 60; ++i) {
    deep += "}h\1";
    ends += "s";
  }
  EXPECT_NE(refusal(torch_file(whole(deep + t + ends + "e"), {"q"}).bytes())
                .find("too many paths for its 1.0 MiB"),
            std::string::npos);
  EXPECT_NE(with(60).find("too many paths for its 1.0 MiB"), std::string::npos);
}

TEST_F(TorchFile, SkipsTensorsThatRepeatStorageTooOften) {
  const auto repeated = [](std::int32_t rows) {
    return tensor(storage("FloatStorage", "0", 4), 0, {rows, 1 << 20, 4}, {0, 0, 1});
  };
  open(torch_file(
           whole(dict({{"a", repeated(1000)}, {"b", repeated(40)}, {"c", repeated(30'000'000)}})),
           {std::string(16, 'x')})
           .bytes());
  EXPECT_EQ(shown(), (std::vector<std::string>{"a F32 [1000,1048576,4]"}));
  EXPECT_TRUE(
      warns("\"b\": it repeats a storage of 16 B up to 640.0 MiB, but all such tensors may have "
            "only 16.0 GiB together"));
  EXPECT_TRUE(warns("\"c\": it repeats"));
}

TEST_F(TorchFile, SkipsBackAndForthStridesOverCompressedStorage) {
  constexpr std::int32_t kBytes = 8 << 20, kCount = 1024, kStride = kBytes / (2 * kCount) - 1;
  const std::string bytes = storage("ByteStorage", "0", kBytes);
  ZipFile zip =
      torch_file(whole(dict({{"back", tensor(bytes, 0, {kCount, kCount}, {kStride + 1, kStride})},
                             {"transposed", tensor(bytes, 0, {kCount, kCount}, {1, kCount})},
                             {"windows", tensor(bytes, 0, {kBytes - 9, 10}, {1, 1})},
                             {"rows", tensor(bytes, 0, {7, 4096}, {1000, 1})}})),
                 {std::string(kBytes, 'x')});
  for (const bool is_deflated : {false, true}) {
    for (ZipFile::Member& member : zip.members) member.is_deflated = is_deflated;
    open(zip.bytes());
    EXPECT_EQ(shown().size(), is_deflated ? 3U : 4U);
    EXPECT_EQ(warns("\"back\": its strides go back and forth over a compressed storage"),
              is_deflated);
  }
}

// Each read of 32 MiB would decompress the whole array.
TEST_F(NumPyArchive, SkipsCompressedFortranOrderArrayOverOneGiB) {
  for (const bool is_fortran : {false, true}) {
    ZipFile zip;
    std::string text(2 << 20, '\0');  // random bytes, which compression does not shorten
    std::mt19937 random(1);
    std::ranges::generate(text, [&] { return static_cast<char>(random()); });
    zip.add("a.npy", npy_file("|u1", "(32768, 32769)", text, is_fortran));
    zip.members[0].is_deflated = true;
    zip.members[0].unpacked_more = 32768ULL * 32769 - text.size();
    zip.add("b.npy", npy_file("|u1", "(1,)", "x"));
    open(zip.bytes(), "m.npz");
    EXPECT_EQ(shown().size(), is_fortran ? 1U : 2U);
    EXPECT_EQ(warns("\"a\": is compressed and in Fortran order"), is_fortran);
  }
}

TEST_F(NumPyArchive, SkipsArrayWithDuplicateHeaderKey) {
  ZipFile zip;
  zip.add("a.npy", npy_file("<f4', 'descr': '<i4", "(1,)", "1234"));
  zip.add("b.npy", npy_file("<f4", "(1,), 'shape': (2,)", "1234"));
  zip.add("c.npy", npy_file("<f4", "(1,)", "1234"));
  zip.add("d.npy", npy_file("<f4', \"descr\": '<i4", "(1,)", "1234"));
  open(zip.bytes(), "m.npz");
  EXPECT_EQ(shown(), (std::vector<std::string>{"c F32 [1]"}));
  EXPECT_TRUE(warns("\"d\": its header has quotes"));
  EXPECT_TRUE(warns("\"a\": its header has 'descr' twice"));
  EXPECT_TRUE(warns("\"b\": its header has 'shape' twice"));
}

TEST_F(NumPyArchive, WarnsAboutDirectoryWithBytes) {
  ZipFile zip;
  zip.add("a.npy", npy_file("<f4", "(1,)", "1234"));
  zip.add("b.npy/", npy_file("<f4", "(1,)", "1234"));
  zip.add("c/", "");
  open(zip.bytes(), "m.npz");
  EXPECT_EQ(shown(), (std::vector<std::string>{"a F32 [1]"}));
  EXPECT_TRUE(warns("\"b.npy/\": is not a NumPy array"));
  EXPECT_FALSE(warns("\"c/\""));
}

// The warning depends on whether the file also has tensors, arrays, or neither.
TEST_F(TorchFile, CountsSkippedObjectsByClass) {
  const std::string t = tensor(storage("ByteStorage", "0", 4), 0, {4}, {1});
  const auto dtensor = [&](std::string_view name) {
    return pickled::call(
        "torch._tensor", "_rebuild_from_type_v2",
        {pickled::global("torch._utils", "_rebuild_wrapper_subclass"),
         pickled::global("torch.distributed.tensor", name), pickled::tuple({t}), "}"});
  };
  const std::string array =
      pickled::call("numpy.core.multiarray", "_reconstruct",
                    {pickled::global("numpy", "ndarray"), pickled::tuple({}), "N"}) +
      pickled::tuple({pickled::call("numpy", "dtype", {pickled::text("f4")})}) + "b";
  const std::string reference =
      pickled::call("torch_xla.utils.serialization", "TensorReference", {pickled::integer(0)});
  const auto opened = [&](const std::string& value) {
    open(torch_file(whole(value), {"abcd"}).bytes());
  };
  opened(dict({{"a", dtensor("DTensor")}, {"b", dtensor("DTensor")}}));
  EXPECT_TRUE(warns("\"a\": is a torch.distributed.tensor.DTensor: it is made of other tensors"));
  EXPECT_TRUE(warns(
      "it holds no tensor that stfs can show, only 2 torch.distributed.tensor.DTensor: save what "
      "full_tensor() gives"));
  opened(dict({{"a", array}, {"b", array}, {"c", reference}}));
  EXPECT_TRUE(
      warns("it holds no tensor that stfs can show, only 2 numpy.ndarray, 1 "
            "torch_xla.utils.serialization.TensorReference: save arrays"));
  for (const std::string& each :
       {array, pickled::call("numpy._core.numeric", "_frombuffer", {pickled::text("x")})}) {
    opened(dict({{"a", each}, {"t", t}, {"u", t}}));
    EXPECT_TRUE(warns("not shown are 1 numpy.ndarray"));
  }
  opened(dict({{"a", reference}, {"t", t}}));
  EXPECT_TRUE(warns("not shown are 1 torch_xla.utils.serialization.TensorReference"));
  opened(dict({{"a", pickled::call("argparse", "Namespace", {})}, {"t", t}, {"u", t}}));
  EXPECT_TRUE(checkpoint_->warnings().empty()) << checkpoint_->warnings().front();
  opened(dict({{"step", pickled::integer(1)}}));
  EXPECT_TRUE(warns("it holds no tensors"));
}

TEST_F(TorchFile, DecompressesDeflatedStorage) {
  ZipFile zip =
      torch_file(whole(dict({{"a", tensor(storage("ShortStorage", "0", 12), 2, {2}, {1})},
                             {"t", tensor(storage("ShortStorage", "0", 12), 0, {4, 3}, {1, 4})}})),
                 {counted(24)});
  for (ZipFile::Member& member : zip.members) member.is_deflated = true;
  open(zip.bytes());
  EXPECT_EQ(bytes_of("a"), counted(24).substr(4, 4));
  EXPECT_EQ(bytes_of("t").substr(0, 6), "\0\1\x8\x9\x10\x11"s);
}

ZipFile arrays(bool is_deflated) {
  ZipFile zip;
  const auto add = [&](std::string name, std::string data) {
    zip.members.push_back({std::move(name), std::move(data), is_deflated, false});
  };
  add("a.npy", npy_file("<f4", "(2,)", "12345678"));
  add("layer/b.npy", npy_file("|b1", "()", "\1"));
  add("f.npy", npy_file("<i2", "(2, 3)", "aAbBcCdDeEfF", true));
  add("v.npy", npy_file("|V2", "(2,)", "wxyz"));
  add("vf.npy", npy_file("|V2", "(2, 2)", "aAbBcCdD", true));
  add("e.npy", npy_file("<f8", "(0, 3)", ""));
  return zip;
}

TEST_F(NumPyArchive, StoredAndDeflatedArraysAreEqual) {
  for (const auto& [is_deflated, is_zip64] :
       {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
    ZipFile zip = arrays(is_deflated);
    zip.is_zip64 = is_zip64;
    open(zip.bytes(), "m.npz");
    EXPECT_EQ(shown(),
              (std::vector<std::string>{"a F32 [2]", "e F64 [0,3]", "f I16 [2,3]",
                                        "layer/b BOOL []", "v U8 [2,2]", "vf U8 [2,2,2]"}));
    EXPECT_EQ(bytes_of("a"), "12345678");
    EXPECT_EQ(bytes_of("layer/b"), "\1");
    EXPECT_EQ(bytes_of("f"), "aAcCeEbBdDfF");
    EXPECT_EQ(bytes_of("v"), "wxyz");
    EXPECT_EQ(bytes_of("vf"), "aAcCbBdD");
    EXPECT_EQ(is_stored("a"), !is_deflated);
    EXPECT_EQ(checkpoint_->parts().front().format->name, "NumPy");
  }
}

TEST_F(NumPyArchive, SkipsNonNumericMembersWithWarning) {
  ZipFile zip = arrays(false);
  zip.add("big.npy", npy_file(">f4", "(2,)", "12345678"));
  zip.add("text.npy", npy_file("<U3", "(1,)", std::string(12, 'x')));
  zip.add("object.npy", npy_file("|O", "()", "\x80\2N."));
  zip.add("readme.txt", "hello");
  zip.add("none.npy", "hello");
  zip.add("folder/", "");
  zip.members.push_back({"secret.npy", npy_file("|u1", "(1,)", "x")});
  zip.members.back().flags = 1;
  zip.members.push_back({"lzma.npy", npy_file("|u1", "(1,)", "x")});
  zip.members.back().method_instead = 14;
  open(zip.bytes(), "m.npz");
  EXPECT_EQ(checkpoint_->tensor_count(), 6U);
  for (const char* words : {"\"big\": safetensors has no type for \">f4\"", "\"text\"",
                            "\"object\"", "\"readme.txt\"", "\"none\": is not a NumPy array",
                            "\"secret\": is encrypted", "\"lzma\": is compressed by method 14"}) {
    EXPECT_TRUE(warns(words)) << words;
  }
  EXPECT_FALSE(warns("folder"));
  zip = {};
  zip.add("a.npy", npy_file("<f4", "(3,)", "12345678"));
  EXPECT_NE(refusal(zip.bytes(), "m.npz").find("size does not fit its shape"), std::string::npos);
  EXPECT_EQ(refusal(ZipFile().bytes(), "m.npz"), "");
  EXPECT_EQ(checkpoint_->tensor_count(), 0U);
}

TEST_F(ZipArchive, ReadsFormsThatWritersUse) {
  for (int form = 0; form < 8; ++form) {
    ZipFile zip = torch_file(whole(tensor(storage("ByteStorage", "0", 3), 0, {3}, {1})), {"xyz"});
    zip.is_zip64 = (form & 1) != 0;
    if ((form & 2) != 0) zip.comment = "a comment, PK\5\6, and more of it";
    for (ZipFile::Member& member : zip.members) member.has_descriptor = (form & 4) == 0;
    EXPECT_EQ(refusal(zip.bytes()), "") << form;
    EXPECT_EQ(bytes_of("tensor"), "xyz") << form;
  }
}

// torch.distributed.checkpoint writes such shards. Without this rule the sizes of the archives
// would decide which one is read.
TEST_F(ZipArchive, RejectsSeveralArchivesInOneFile) {
  const auto archive = [](std::int32_t bytes, bool is_zip64) {
    ZipFile zip = torch_file(whole(tensor(storage("ByteStorage", "0", bytes), 0, {bytes}, {1})),
                             {std::string(static_cast<std::size_t>(bytes), 'x')});
    zip.is_zip64 = is_zip64;
    return zip.bytes();
  };
  for (const bool is_zip64 : {false, true}) {
    const std::string small = archive(3, is_zip64), large = archive(3000, is_zip64);
    for (const std::string& file :
         {small + small, small + large, large + small, small + large + small}) {
      const std::string refused = refusal(file);
      EXPECT_NE(refused.find("several zip archives one after the other"), std::string::npos)
          << refused;
      EXPECT_NE(refused.find("dcp_to_torch DIR FILE"), std::string::npos) << refused;
    }
    // `zip --adjust-sfx` and Python's mode "a" write such a file, in which offsets count from the
    // start of the file.
    ZipFile adjusted =
        torch_file(whole(tensor(storage("ByteStorage", "0", 3), 0, {3}, {1})), {"xyz"});
    adjusted.is_zip64 = is_zip64;
    adjusted.prefix = small;
    EXPECT_NE(refusal(adjusted.bytes()).find("several zip archives"), std::string::npos);
    EXPECT_NE(refusal(small + std::string(7, '\0')).find("has 7 more bytes after its zip archive"),
              std::string::npos);
    for (const char* const other : {"junk", "#!/bin/sh\nexec unzip $0\n"}) {
      EXPECT_NE(refusal(other + small).find("does not begin with the zip archive that it ends"),
                std::string::npos);
    }
    EXPECT_NE(refusal(small, "__0_0.distcp").find("shard of a distributed checkpoint of PyTorch"),
              std::string::npos);
  }
}

TEST_F(ZipArchive, RejectsInconsistentMembersAndEscapesParentPaths) {
  const ZipFile good = torch_file(whole(tensor(storage("ByteStorage", "0", 30), 0, {3}, {1})),
                                  {std::string(30, 'x')});
  const auto with = [&](const auto& change) {
    ZipFile zip = good;
    change(zip.members[2]);
    return refusal(zip.bytes());
  };
  EXPECT_EQ(with([](auto&) {}), "");
  EXPECT_NE(with([](auto& m) { m.header_shift = -20; }), "");
  EXPECT_NE(with([](auto& m) { m.header_shift = 20; }), "");
  EXPECT_NE(with([](auto& m) { m.header_shift = 1 << 30; }), "");
  EXPECT_NE(with([](auto& m) { m.unpacked_more = 1; }).find("two sizes differ"), std::string::npos);
  EXPECT_NE(with([](auto& m) { m.name = "archive/version"; }).find("occurs twice"),
            std::string::npos);
  EXPECT_NE(with([](auto& m) {
              m.is_deflated = true;
              m.unpacked_more = 1 << 20;
            }).find("is impossible for its"),
            std::string::npos);
  // A name that would leave the archive is an ordinary tensor name.
  ZipFile leaving;
  leaving.add("../../etc/x.npy", npy_file("|u1", "(1,)", "x"));
  open(leaving.bytes(), "m.npz");
  EXPECT_EQ(checkpoint_->tensor(0).path, "%2E%2E/%2E%2E/etc/x");
  EXPECT_NE(refusal(torch_file("", {}).bytes()), "");
  ZipFile other;
  other.add("readme", "hello");
  EXPECT_NE(refusal(other.bytes()).find("neither PyTorch's data.pkl nor arrays"),
            std::string::npos);
}

// Reads only the header of a file. Returns nullopt if it is refused.
std::optional<Header> header_of(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::remove(path);  // truncating the file would flush it to the disk
  write_file(path, bytes);
  const LocalFile source(path.string());
  try {
    return read_archive(source, "m.pt", [&](std::uint64_t offset, std::span<std::byte> out) {
      return source.read(out, offset);
    });
  } catch (const Error& error) {
    EXPECT_EQ(exit_status(error.code()), 1) << error.what();
    return std::nullopt;
  }
}

TEST_F(ZipArchive, RejectsEveryTruncationAndSurvivesFlippedBytes) {
  for (const std::string& bytes : {two_tensors(), arrays(true).bytes()}) {
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      ASSERT_FALSE(header_of(dir_ / "m", bytes.substr(0, length))) << length;
    }
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      std::string flipped = bytes;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x41);
      const std::optional<Header> header = header_of(dir_ / "m", flipped);
      if (!header || at % 8 != 0) continue;
      open(flipped);
      for (std::uint32_t i = 0; i < checkpoint_->tensor_count(); ++i) {
        const Content content = checkpoint_->tensor(i).content();
        std::vector<std::byte> out(content.size());
        static_cast<void>(content.copy(0, out));
      }
    }
  }
}

TEST_F(InflatedMember, ConcurrentReadersGetBytesAtAnyOffset) {
  std::string data;
  std::uint32_t state = 1;
  while (data.size() < 3'000'000) {
    state = state * 1664525 + 1013904223;
    data += static_cast<char>('a' + (state >> 28));
  }
  ZipFile zip;
  zip.members.push_back(
      {"w.npy", npy_file("|u1", "(" + std::to_string(data.size()) + ",)", data), true});
  open(zip.bytes(), "m.npz");
  const Content content = checkpoint_->tensor(0).content();
  std::vector<std::thread> readers;
  std::vector<int> wrong(4);
  for (unsigned reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      std::uint32_t seed = reader + 7;
      std::string out(70'000, '\0');
      for (int i = 0; i < 30; ++i) {
        seed = seed * 1664525 + 1013904223;
        const std::uint64_t offset = reader == 0 ? static_cast<std::uint64_t>(i) * out.size()
                                                 : seed % (data.size() - out.size());
        const int error = content.copy(offset, std::as_writable_bytes(std::span(out)));
        if (error != 0 || data.compare(offset, out.size(), out) != 0) ++wrong[reader];
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST_F(InflatedMember, ChangedFileGivesESTALE) {
  const std::string data = counted(3000);
  ZipFile zip;
  zip.members.push_back({"w.npy", npy_file("|u1", "(3000,)", data), true});
  open(zip.bytes(), "m.npz");
  const Content content = checkpoint_->tensor(0).content();
  std::vector<std::byte> out(data.size());
  ASSERT_EQ(content.copy(0, out), 0);
  std::filesystem::last_write_time(
      dir_ / "m.npz", std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(content.copy(0, out), ESTALE);
  EXPECT_EQ(content.verify(0, data.size()), ESTALE);
}

TEST_F(InflatedMember, WrongChecksumFailsReadOfLastByte) {
  ZipFile zip;
  zip.members.push_back({"w.npy", npy_file("|u1", "(3000,)", std::string(3000, 'x')), true});
  zip.members.back().crc_flip = 1;
  open(zip.bytes(), "m.npz");
  const Content content = checkpoint_->tensor(0).content();
  std::vector<std::byte> out(3000);
  EXPECT_EQ(content.copy(0, std::span(out).first(2000)), 0);
  EXPECT_EQ(content.copy(0, out), EIO);
}

}  // namespace
}  // namespace stfs::test
