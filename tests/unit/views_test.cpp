// Tests of the contents of a checkpoint's views, without a mount.
#include "fs/view/registry.h"
#include "tests/unit/allocated.h"
#include "tests/unit/served_checkpoint.h"

#include <nlohmann/json.hpp>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace std::string_literals;

// Returns one tensor of each type, with 8 elements.
std::vector<Tensor> every_type() {
  std::vector<Tensor> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (type_info(static_cast<DType>(i)).kind == TypeKind::kQuantized) continue;
    const std::string dtype(dtype_name(static_cast<DType>(i)));
    tensors.push_back(random_tensor(dtype, dtype, {2, 4}, static_cast<std::uint64_t>(i + 1)));
  }
  return tensors;
}

const std::set<std::string> kSubByte{"F4", "F6_E2M3", "F6_E3M2"};
const std::set<std::string> kFloating{"F4",      "F6_E2M3", "F6_E3M2",     "F8_E5M2",
                                      "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
                                      "F16",     "BF16",    "F32",         "F64"};

std::set<std::string> names_with(const std::string& suffix,
                                 const std::function<bool(const std::string&)>& is_shown) {
  std::set<std::string> names;
  for (const Tensor& tensor : every_type()) {
    if (is_shown(tensor.name)) names.insert(tensor.name + suffix);
  }
  return names;
}

TEST(Views, ListOnlySupportedTypes) {
  const ServedCheckpoint mounted(every_type());
  const auto listed = [&](const std::string& view) {
    const std::vector<std::string> names = mounted.names(".stfs/" + view);
    return std::set<std::string>(names.begin(), names.end());
  };
  const auto any = [](const std::string&) { return true; };
  const auto is_floating = [](const std::string& name) { return kFloating.contains(name); };
  const auto fits_numpy = [](const std::string& name) { return !kSubByte.contains(name); };

  EXPECT_EQ(listed("json"), names_with(".json", any));
  EXPECT_EQ(listed("npy"), names_with(".npy", fits_numpy));
  EXPECT_EQ(listed("f32"), names_with("", is_floating));
  EXPECT_EQ(listed("npy-f32"), names_with(".npy", is_floating));
  EXPECT_EQ(listed("slice"), names_with("", any));
  EXPECT_EQ(listed("npy-slice"), names_with("", fits_numpy));
  EXPECT_EQ(listed("f32-slice"), names_with("", is_floating));
  EXPECT_EQ(listed("npy-f32-slice"), names_with("", is_floating));
  EXPECT_EQ(listed("tree"), names_with("", any));
  EXPECT_EQ(listed("safetensors"), names_with(".safetensors", any));
  EXPECT_EQ(listed("stats"), names_with(".json", any));
  EXPECT_EQ(listed("png"), names_with(".png", is_floating));
  EXPECT_EQ(listed("png-slice"), names_with("", is_floating));
  EXPECT_EQ(listed("hist"),
            names_with(".svg", [](const std::string& name) { return name != "C64"; }));
  EXPECT_EQ(listed("sha256"), names_with("", any));
  EXPECT_TRUE(listed("subset").empty());
}

TEST(Views, DoNotFindUnsupportedTypes) {
  const ServedCheckpoint mounted(every_type());

  for (const std::string& name : kSubByte) {
    EXPECT_FALSE(mounted.at(".stfs/npy/" + name + ".npy"));
    EXPECT_FALSE(mounted.at(".stfs/npy-slice/" + name));
    EXPECT_TRUE(mounted.at(".stfs/npy-f32/" + name + ".npy"));
  }
  for (const char* name : {"BOOL", "U8", "I64", "C64"}) {
    EXPECT_FALSE(mounted.at(".stfs/f32/"s + name)) << name;
    EXPECT_FALSE(mounted.at(".stfs/npy-f32/"s + name + ".npy")) << name;
  }
}

TEST(Views, NumpyViewsOmitTensorsAbove64Dimensions) {
  const ServedCheckpoint mounted(
      {random_tensor("64", "F32", Shape(64, 1)), random_tensor("65", "F32", Shape(65, 1))});

  EXPECT_EQ(mounted.names(".stfs/npy"), std::vector<std::string>{"64.npy"});
  EXPECT_EQ(mounted.names(".stfs/npy-f32"), std::vector<std::string>{"64.npy"});
  EXPECT_EQ(mounted.names(".stfs/npy-slice"), std::vector<std::string>{"64"});
  EXPECT_EQ(mounted.names(".stfs/f32"), (std::vector<std::string>{"64", "65"}));
  EXPECT_EQ(mounted.names(".stfs/f32-slice"), std::vector<std::string>{"64"});
  EXPECT_EQ(mounted.names(".stfs/npy-f32-slice"), std::vector<std::string>{"64"});
  EXPECT_FALSE(mounted.at(".stfs/npy/65.npy"));
}

TEST(Views, NpyFilesHaveHeaderThenTensorBytes) {
  const ServedCheckpoint mounted(every_type());

  for (const Tensor& tensor : every_type()) {
    if (kSubByte.contains(tensor.name)) continue;
    const std::string file = mounted.text(".stfs/npy/" + tensor.name + ".npy");
    ASSERT_EQ(file.size() % 64, tensor.bytes.size() % 64);
    EXPECT_EQ(file.substr(file.size() - tensor.bytes.size()), tensor.bytes);
    EXPECT_TRUE(file.starts_with("\x93NUMPY\x01\x00"s));
    EXPECT_NE(file.find("'shape': (2, 4)"), std::string::npos);
  }
}

TEST(Views, F32FilesHaveConvertedValues) {
  const ServedCheckpoint mounted(
      {{"w", "BF16", {2}, "\x80\x3f\x00\xc0"s}, {"f", "F32", {1}, "abcd"}});
  const std::string floats = "\x00\x00\x80\x3f\x00\x00\x00\xc0"s;

  EXPECT_EQ(mounted.text(".stfs/f32/w"), floats);
  EXPECT_EQ(mounted.at(".stfs/f32/w")->size, 8U);
  EXPECT_EQ(mounted.text(".stfs/f32/f"), "abcd");
  const std::string npy = mounted.text(".stfs/npy-f32/w.npy");
  EXPECT_EQ(npy.substr(npy.size() - 8), floats);
  EXPECT_NE(npy.find("'<f4'"), std::string::npos);
}

TEST(Views, EscapeSuffixInDirectoryNames) {
  for (const auto& [view, suffix] :
       std::map<std::string, std::string>{{"json", "json"},
                                          {"npy", "npy"},
                                          {"npy-f32", "npy"},
                                          {"safetensors", "safetensors"},
                                          {"png", "png"},
                                          {"hist", "svg"},
                                          {"stats", "json"}}) {
    const ServedCheckpoint mounted({random_tensor("a", "F32", {1}),
                                    random_tensor("a." + suffix + "/b", "F32", {1}),
                                    random_tensor("c." + suffix, "F32", {1})});
    const std::string root = ".stfs/" + view;

    EXPECT_EQ(mounted.names(root), (std::vector<std::string>{"a." + suffix, "a%2E" + suffix,
                                                             "c." + suffix + "." + suffix}))
        << view;
    EXPECT_TRUE(S_ISREG(mounted.at(root + "/a." + suffix)->mode));
    EXPECT_TRUE(mounted.at(root + "/a%2E" + suffix + "/b." + suffix));
    EXPECT_FALSE(mounted.at(root + "/c." + suffix)) << "the file exists only with its suffix";
    EXPECT_FALSE(mounted.at(root + "/a"));
  }
}

TEST(Views, KeepNamesIfViewHasNoSuffix) {
  const ServedCheckpoint mounted(
      {random_tensor("a", "F32", {1}), random_tensor("a.npy/b", "F32", {1})});

  for (const std::string view :
       {"f32", "slice", "npy-slice", "f32-slice", "npy-f32-slice", "sha256"}) {
    EXPECT_EQ(mounted.names(".stfs/" + view), (std::vector<std::string>{"a", "a.npy"})) << view;
    EXPECT_TRUE(mounted.at(".stfs/" + view + "/a.npy/b"));
  }
}

TEST(Views, FileNamesHaveAtMost255Bytes) {
  const ServedCheckpoint mounted(
      {random_tensor(std::string(240, 'n'), "F32", {1}),
       random_tensor(std::string(400, 'm'), "F32", {1}),
       random_tensor(std::string(228, 'd') + ".safetensors/x", "F32", {1})});

  mounted.walk_all([](const std::string& path, const Attributes&) {
    EXPECT_LE(path.size() - (path.rfind('/') + 1), 255U) << path;
  });
}

// Makes the file of a new view, which shows the bytes of U8 tensors in upper case.

int make_upper(const ViewFile& file, Content& content) {
  const stfs::Tensor tensor = file.tensor();
  std::string text(tensor.length, '\0');
  tensor.content().copy(0, std::as_writable_bytes(std::span(text)));
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  content.literal(std::move(text));
  return 0;
}

TEST(Views, NewViewNeedsOnlyTableRow) {
  std::vector<ViewSpec> views(all_views().begin(), all_views().end());
  views.push_back({.id = static_cast<View>(200),
                   .name = "upper",
                   .suffix = ".txt",
                   .shows = [](const stfs::Tensor& tensor) { return tensor.dtype == DType::kU8; },
                   .make = make_upper,
                   .shows_values = true});
  const ServedCheckpoint mounted({{"a/b", "U8", {3}, "xyz"}, {"f", "F32", {1}, "1234"}},
                                 {.views = views});

  EXPECT_EQ(mounted.names(".stfs").back(), "upper");
  EXPECT_EQ(mounted.names(".stfs/upper"), std::vector<std::string>{"a"});
  EXPECT_EQ(mounted.text(".stfs/upper/a/b.txt"), "XYZ");
  EXPECT_EQ(mounted.at(".stfs/upper/a/b.txt")->size, 3U);
  EXPECT_EQ(mounted.at(".stfs/upper/a/b.txt")->mtime.tv_sec, 1'000'000'001);
  EXPECT_EQ(mounted->open(mounted.inode(".stfs/upper/a/b.txt")), 0);
  EXPECT_EQ(mounted.xattr(".stfs/upper/a/b.txt", "user.stfs.name"), "a/b");
  EXPECT_FALSE(mounted.at(".stfs/upper/f.txt"));
}

TEST(Views, NewViewOfEachNameKindNeedsOnlyTableRow) {
  std::vector<ViewSpec> views(all_views().begin(), all_views().end());
  const auto make = [](const ViewFile& file, Content& content) {
    content.literal("<" + std::string(file.expression) + " " + std::to_string(file.number) + " " +
                    std::to_string(file.tensors.size()) + ">");
    return 0;
  };
  const auto tensors = [](const ViewFile& file) {
    return std::vector<std::uint32_t>(file.expression == "two" ? 2 : 0);
  };
  const auto list = [](const Checkpoint&) {
    NameList names;
    for (const char* name : {"second", "first"}) names.add(name);
    names.sort();
    return names;
  };
  views.push_back({.id = static_cast<View>(200),
                   .name = "parts",
                   .suffix = ".p",
                   .names = Names::kExpressions,
                   .make = make});
  views.push_back({.id = static_cast<View>(201),
                   .name = "globs",
                   .suffix = ".g",
                   .names = Names::kGlobs,
                   .tensors = tensors,
                   .make = make});
  views.push_back({.id = static_cast<View>(202),
                   .name = "list",
                   .names = Names::kList,
                   .list = list,
                   .make = make});
  views.push_back(
      {.id = View::kControl, .file = 9, .name = "file.txt", .names = Names::kFile, .make = make});
  const ServedCheckpoint mounted({{"a", "U8", {1}, "x"}, {"b", "U8", {1}, "y"}}, {.views = views});

  EXPECT_EQ(mounted.text(".stfs/parts/b/x,y.p"), "<x,y 1 0>");
  EXPECT_EQ(mounted.text(".stfs/globs/two.g"), "<two 0 2>");
  EXPECT_FALSE(mounted.at(".stfs/globs/none.g"));
  EXPECT_EQ(mounted.names(".stfs/list"), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(mounted.text(".stfs/list/second"), "< 0 0>");
  EXPECT_EQ(mounted.text(".stfs/file.txt"), "< 9 0>");
  EXPECT_EQ(mounted->looked_up_names(), 2U);
}

// Tests of sizes and listings.

const Metadata kStrangeMetadata{
    {"format", "pt"}, {"quote\"", "line\n\t\x01\\"}, {"\u00e9", "\u20ac"}};

TEST(Views, SizesMatchContents) {
  std::vector<Tensor> tensors = every_type();
  tensors.push_back({"quote\" back\\ line\n\x7f \u00e9\u202e /a.b", "U8", {1}, "x"});
  tensors.push_back({"", "I64", {0, 5}, ""});
  const ServedCheckpoint mounted({tensors, {random_tensor("second", "F16", {3})}}, {},
                                 kStrangeMetadata);
  int files = 0;

  const auto check = [&](const std::string& path, const Attributes& attributes) {
    if (!S_ISREG(attributes.mode) || mounted->is_computed(attributes.inode)) return;
    EXPECT_EQ(attributes.size, mounted.text(path).size()) << path;
    ++files;
  };
  mounted.walk_all(check);
  for (const char* path : {".stfs/slice/F32/1,:", ".stfs/npy-slice/F32/:,1.npy",
                           ".stfs/f32-slice/F4/:,1", ".stfs/npy-f32-slice/F16/0.npy",
                           ".stfs/subset/F*.safetensors", ".stfs/subset/*.safetensors"}) {
    check(path, *mounted.at(path));
  }

  EXPECT_GT(files, 100);
}

#ifndef STFS_SANITIZED  // sanitizers have their own allocator
TEST(Views, ListingsAndSizesDoNotMakeTexts) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 300; ++i) tensors.push_back({"t" + std::to_string(i), "U8", {1}, "x"});
  const ServedCheckpoint mounted(tensors, {}, Metadata{{"k", std::string(1 << 20, 'v')}});
  const std::uint64_t subsets = mounted.inode(".stfs/subset");
  const std::uint64_t before = allocated_bytes();

  for (const char* directory : {".stfs", ".stfs/safetensors", ".stfs/json", ".stfs/npy"}) {
    EXPECT_FALSE(mounted.list(mounted.inode(directory)).empty());
  }
  EXPECT_EQ(mounted.look_up(subsets, "t*.safetensors"), 0);

  EXPECT_LT(allocated_bytes() - before, 1 << 20) << "a single text of the metadata is larger";
}
#endif

TEST(Views, ShareOneMetadataText) {
  const std::vector<std::vector<Tensor>> files{{random_tensor("a", "U8", {1})},
                                               {random_tensor("b", "U8", {1})}};
  const ServedCheckpoint mounted(files, {}, Metadata{{"k", std::string(1 << 20, 'v')}});
  // Calls `look` with the address from which a part of a file's metadata is sent.
  const auto with_piece = [&](const std::string& path, const auto& look) {
    const std::uint64_t inode = mounted.inode(".stfs/" + path);
    mounted->read(
        {inode, 9, 1000}, [](FileSystem::Ticket) {},
        [&](int error, const Reply& reply) {
          ASSERT_EQ(error, 0);
          look(reply.pieces()[0].iov_base);
        });
  };
  int compared = 0;

  with_piece("merged.safetensors", [&](const void* merged) {
    for (const char* path :
         {"safetensors/a.safetensors", "safetensors/b.safetensors", "subset/?.safetensors"}) {
      with_piece(path, [&](const void* other) {
        EXPECT_EQ(other, merged) << path;
        ++compared;
      });
    }
  });

  EXPECT_EQ(compared, 3);
}

// Tests of slices.

TEST(Slices, HaveExpectedContents) {
  const ServedCheckpoint mounted({{"w", "U8", {3, 4}, "abcdefghijkl"}});

  EXPECT_EQ(mounted.text(".stfs/slice/w/1"), "efgh");
  EXPECT_EQ(mounted.text(".stfs/slice/w/:,1"), "bfj");
  EXPECT_EQ(mounted.text(".stfs/slice/w/::2,1::2"), "bdjl");
  EXPECT_EQ(mounted.text(".stfs/slice/w/-1,-1"), "l");
  EXPECT_EQ(mounted.text(".stfs/slice/w/...,0"), "aei");
  EXPECT_EQ(mounted.text(".stfs/slice/w/..."), "abcdefghijkl");
  EXPECT_EQ(mounted.text(".stfs/slice/w/2:1"), "");
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->size, 3U);
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->mode, static_cast<mode_t>(S_IFREG | 0444));
  EXPECT_EQ(mounted.at(".stfs/slice/w/:,1")->mtime.tv_sec, 1'000'000'001);
  const std::string npy = mounted.text(".stfs/npy-slice/w/:,1:3.npy");
  EXPECT_EQ(npy.substr(npy.size() - 6), "bcfgjk");
  EXPECT_NE(npy.find("'shape': (3, 2)"), std::string::npos);
  const std::string scalar = mounted.text(".stfs/npy-slice/w/0,0.npy");
  EXPECT_NE(scalar.find("'shape': ()"), std::string::npos);
}

TEST(Slices, F32SlicesMatchWholeTensor) {
  const ServedCheckpoint mounted(every_type());

  for (const std::string& name : kFloating) {
    const std::string whole = mounted.text(".stfs/f32/" + name);  // the shape is [2, 4]
    const auto element = [&](std::size_t row, std::size_t column) {
      return whole.substr((row * 4 + column) * sizeof(float), sizeof(float));
    };
    const std::string expected = element(0, 1) + element(0, 3) + element(1, 1) + element(1, 3);
    EXPECT_EQ(mounted.text(".stfs/f32-slice/" + name + "/:,1::2"), expected) << name;
    EXPECT_EQ(mounted.text(".stfs/f32-slice/" + name + "/-1,2"), element(1, 2)) << name;
    EXPECT_EQ(mounted.text(".stfs/f32-slice/" + name + "/..."), whole) << name;
    EXPECT_EQ(mounted.text(".stfs/f32-slice/" + name + "/1:1"), "") << name;
    EXPECT_EQ(mounted.at(".stfs/f32-slice/" + name + "/:,1::2")->size, 16U) << name;
    const std::string npy = mounted.text(".stfs/npy-f32-slice/" + name + "/:,1::2.npy");
    EXPECT_EQ(npy.size(), 64 * 2 + expected.size()) << name;
    EXPECT_TRUE(npy.ends_with(expected)) << name;
    EXPECT_NE(npy.find("'descr': '<f4'"), std::string::npos) << name;
    EXPECT_NE(npy.find("'shape': (2, 2)"), std::string::npos) << name;
  }
  EXPECT_FALSE(mounted.at(".stfs/f32-slice/U8"));
  EXPECT_FALSE(mounted.at(".stfs/npy-f32-slice/C64"));
}

TEST(Slices, InvalidExpressionGivesErrno) {
  const ServedCheckpoint mounted({{"w", "U8", {3, 4}, "abcdefghijkl"}, {"f", "F4", {2, 2}, "xy"}});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");
  const std::uint64_t npy = mounted.inode(".stfs/npy-slice/w");

  for (const char* bad : {"x", "0,0,0", "::-1", "0 ", "", "1:2:3:4"}) {
    EXPECT_EQ(mounted.look_up(w, bad), EINVAL) << bad;
    EXPECT_EQ(mounted.look_up(npy, bad + ".npy"s), EINVAL) << bad;
    EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/f32-slice/f"), bad), EINVAL) << bad;
  }
  for (const char* outside : {"3", "-4", "0,4"}) {
    EXPECT_EQ(mounted.look_up(w, outside), ERANGE) << outside;
    EXPECT_EQ(mounted.look_up(npy, outside + ".npy"s), ERANGE) << outside;
  }
  EXPECT_EQ(mounted.look_up(npy, "0"), ENOENT);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/f32-slice/f"), "2"), ERANGE);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/npy-f32-slice/f"), "-3.npy"), ERANGE);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/slice/f"), "0,0"), EINVAL);
  EXPECT_EQ(mounted.look_up(mounted.inode(".stfs/slice/f"), "0"), 0);
  EXPECT_EQ(mounted->looked_up_names(), 1U) << "rejected names must not be kept";
}

TEST(Slices, DirectoriesAreEmptyAndKnowTheirParent) {
  const ServedCheckpoint mounted(
      {random_tensor("a/b", "F32", {2}), random_tensor("c", "F32", {2})});

  for (const std::string view :
       {".stfs/slice", ".stfs/npy-slice", ".stfs/f32-slice", ".stfs/npy-f32-slice"}) {
    for (const auto& [path, parent] :
         std::map<std::string, std::string>{{"/a/b", "/a"}, {"/c", ""}}) {
      const std::uint64_t directory = mounted.inode(view + path);
      const std::vector<Listed> listed = mounted.list(directory);
      ASSERT_EQ(listed.size(), 2U) << view << path;
      EXPECT_EQ(listed[1].attributes.inode, mounted.inode(view + parent)) << view << path;
      EXPECT_EQ(mounted->open(directory), EISDIR);
    }
  }
}

TEST(Slices, DisappearAfterAsManyForgetsAsLookups) {
  const ServedCheckpoint mounted({random_tensor("w", "U8", {10})});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");
  Attributes found{};
  ASSERT_EQ(mounted.look_up(w, "3:5", found), 0);
  ASSERT_EQ(mounted.look_up(w, "3:5"), 0);
  EXPECT_EQ(mounted->looked_up_names(), 1U);

  mounted->forget(found.inode, 1);
  EXPECT_TRUE(mounted->attributes(found.inode));
  mounted->forget(found.inode, 1);

  EXPECT_EQ(mounted->looked_up_names(), 0U);
  EXPECT_FALSE(mounted->attributes(found.inode));
  EXPECT_EQ(mounted->open(found.inode), ENOENT);
  std::string bytes;
  EXPECT_EQ(mounted.read(found.inode, 0, 1, bytes), ENOENT);
}

TEST(Slices, ForgottenSlicesAreNotKept) {
  const ServedCheckpoint mounted({random_tensor("w", "U8", {1000, 1000})});
  const std::uint64_t w = mounted.inode(".stfs/slice/w");

  for (int i = 0; i < 100'000; ++i) {
    Attributes found{};
    ASSERT_EQ(mounted.look_up(w, std::to_string(i % 1000) + "," + std::to_string(i / 1000), found),
              0);
    mounted->forget(found.inode, 1);
  }

  EXPECT_EQ(mounted->looked_up_names(), 0U);
}

// Returns the tensors in a file, as a map from name to bytes, with an independent reader.
std::map<std::string, std::string> tensors_in(const std::string& file) {
  std::map<std::string, std::string> out;
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const std::uint64_t begin = value["data_offsets"][0];
    const std::uint64_t end = value["data_offsets"][1];
    out[name] = file.substr(8 + length + begin, end - begin);
  }
  return out;
}

TEST(Subsets, HaveTensorsWithMatchingNames) {
  const ServedCheckpoint mounted({{"layers/0/q", "U8", {1}, "1"},
                                  {"layers/1/q", "U8", {1}, "2"},
                                  {"layers/0/k", "U8", {1}, "3"},
                                  {"head", "U8", {1}, "4"},
                                  {"", "U8", {1}, "5"},
                                  {"50%", "U8", {1}, "6"}});
  const auto names = [&](const std::string& glob) {
    std::set<std::string> out;
    const std::string file = mounted.text(".stfs/subset/" + glob + ".safetensors");
    for (const auto& [name, bytes] : tensors_in(file)) out.insert(name);
    return out;
  };

  EXPECT_EQ(names("layers%2F*%2Fq"), (std::set<std::string>{"layers/0/q", "layers/1/q"}));
  EXPECT_EQ(names("layers%2F0%2F?"), (std::set<std::string>{"layers/0/q", "layers/0/k"}));
  EXPECT_EQ(names("*[qd]"), (std::set<std::string>{"layers/0/q", "layers/1/q", "head"}));
  EXPECT_EQ(names("*").size(), 6U);
  EXPECT_EQ(names("head"), std::set<std::string>{"head"});
  EXPECT_EQ(names("%"), std::set<std::string>{""});
  EXPECT_EQ(names("50%25"), std::set<std::string>{"50%"});
  EXPECT_FALSE(mounted.at(".stfs/subset/nothing*.safetensors"));
  EXPECT_FALSE(mounted.at(".stfs/subset/*"));
  EXPECT_FALSE(mounted.at(".stfs/subset/%zz.safetensors"));
  EXPECT_TRUE(mounted.names(".stfs/subset").empty());
}

TEST(Subsets, DisappearAfterForget) {
  const std::vector<std::vector<Tensor>> files{many(), {{"second", "U8", {1}, "x"}}};
  const ServedCheckpoint mounted(files, {}, std::nullopt);
  Attributes found{};
  ASSERT_EQ(mounted.look_up(mounted.inode(".stfs/subset"), "*.safetensors", found), 0);
  EXPECT_EQ(found.size, mounted.text(".stfs/merged.safetensors").size());
  std::string bytes;
  EXPECT_EQ(mounted.read(found.inode, 0, kMost, bytes), 0);
  EXPECT_EQ(bytes, mounted.text(".stfs/merged.safetensors"));

  mounted->forget(found.inode, 1);

  EXPECT_EQ(mounted->looked_up_names(), 0U);
  EXPECT_EQ(mounted->open(found.inode), ENOENT);
}

TEST(Views, SafetensorsFilesHaveOneTensor) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"format", "pt"}});

  for (const Tensor& tensor : many()) {
    const auto number = mounted.checkpoint().find(tensor.name);
    const std::string path(mounted.checkpoint().tensor(*number).path);
    const auto found = tensors_in(mounted.text(".stfs/safetensors/" + path + ".safetensors"));
    EXPECT_EQ(found, (std::map<std::string, std::string>{{tensor.name, tensor.bytes}}));
  }
}

TEST(Views, MergedFileHasAllTensors) {
  const ServedCheckpoint mounted({many(), {{"second", "F64", {1}, "12345678"}}}, {},
                                 Metadata{{"k", "v"}});

  const auto found = tensors_in(mounted.text(".stfs/merged.safetensors"));

  EXPECT_EQ(found.size(), many().size() + 1);
  for (const Tensor& tensor : many()) EXPECT_EQ(found.at(tensor.name), tensor.bytes);
  EXPECT_EQ(found.at("second"), "12345678");
}

TEST(Views, MergedFileOfSingleSourceIsIdentical) {
  const ServedCheckpoint mounted(many(), {}, Metadata{{"z", "1"}, {"a", "2"}});

  EXPECT_EQ(mounted.at(".stfs/merged.safetensors")->size, fs::file_size(mounted.source()));
  EXPECT_EQ(mounted.text(".stfs/merged.safetensors"), read_file(mounted.source()));
}

TEST(Views, TreeViewTurnsDotsIntoDirectories) {
  const ServedCheckpoint mounted({{"model.layers.0.w", "U8", {1}, "1"},
                                  {"model.layers.1.w", "U8", {1}, "2"},
                                  {"model.norm", "U8", {1}, "3"},
                                  {"plain", "U8", {1}, "4"}});

  EXPECT_EQ(mounted.names(".stfs/tree"), (std::vector<std::string>{"model", "plain"}));
  EXPECT_EQ(mounted.names(".stfs/tree/model"), (std::vector<std::string>{"layers", "norm"}));
  EXPECT_EQ(mounted.text(".stfs/tree/model/layers/1/w"), "2");
  EXPECT_EQ(mounted.xattr(".stfs/tree/model/layers/1/w", "user.stfs.name"), "model.layers.1.w");
  std::string names;
  EXPECT_EQ(mounted->list_xattr(mounted.inode(".stfs/tree/plain"), names), 0);
  EXPECT_TRUE(names.starts_with("user.stfs.name"));
  EXPECT_EQ(mounted.list(mounted.inode(".stfs/tree/model/layers"))[1].attributes.inode,
            mounted.inode(".stfs/tree/model"));
}

// Tests of computed files.

struct Computation {
  int error = -1;
  std::string bytes;
};

Computation computed(const ServedCheckpoint& mounted, std::uint64_t inode, std::uint64_t offset = 0,
                     std::uint64_t length = kMost) {
  std::promise<Computation> promise;
  mounted->read(
      {inode, offset, length}, [](FileSystem::Ticket) {},
      [&](int error, const Reply& reply) {
        promise.set_value({error, bytes_of(reply)});
      });
  return promise.get_future().get();
}

TEST(ComputedFiles, HaveStatisticsAndDigest) {
  const ServedCheckpoint mounted({{"a/b", "U8", {3}, "abc"}});

  const json stats = json::parse(computed(mounted, mounted.inode(".stfs/stats/a/b.json")).bytes);
  const Computation digest = computed(mounted, mounted.inode(".stfs/sha256/a/b"));

  EXPECT_EQ(stats["count"], 3);
  EXPECT_EQ(stats["min"], 97);
  EXPECT_EQ(stats["mean"], 98);
  EXPECT_EQ(digest.error, 0);
  EXPECT_EQ(digest.bytes,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a/b\n");
  EXPECT_EQ(mounted.at(".stfs/sha256/a/b")->size, 0U);
  EXPECT_TRUE(mounted->is_computed(mounted.inode(".stfs/sha256/a/b")));
  EXPECT_FALSE(mounted->is_computed(mounted.inode("a/b")));
}

TEST(ComputedFiles, ReadAnyByteRange) {
  const ServedCheckpoint mounted({{"w", "U8", {3}, "abc"}});
  const std::uint64_t inode = mounted.inode(".stfs/stats/w.json");
  const std::string whole = computed(mounted, inode).bytes;

  EXPECT_TRUE(whole.ends_with("}\n"));
  for (std::uint64_t offset = 0; offset <= whole.size() + 1; ++offset) {
    const std::string part = offset < whole.size() ? whole.substr(offset, 5) : "";
    EXPECT_EQ(computed(mounted, inode, offset, 5).bytes, part);
  }
  EXPECT_EQ(computed(mounted, inode, kMost, kMost).bytes, "");
}

TEST(ComputedFiles, ChangedSourceGivesESTALEAndIsLoggedOnce) {
  ServedCheckpoint mounted({{"w", "U8", {3}, "abc"}});
  fs::resize_file(mounted.source(), 10);

  for (const char* path : {".stfs/stats/w.json", ".stfs/sha256/w"}) {
    EXPECT_EQ(mounted->open(mounted.inode(path)), ESTALE) << path;
    const Computation answer = computed(mounted, mounted.inode(path));
    EXPECT_EQ(answer.error, ESTALE) << path;
    EXPECT_EQ(answer.bytes, "") << path;
  }
  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST(ComputedFiles, ReturnEINTRWhenStopped) {
  const ServedCheckpoint mounted({{"w", "U8", {3}, "abc"}});
  mounted->stop_waiting();

  EXPECT_EQ(computed(mounted, mounted.inode(".stfs/sha256/w")).error, EINTR);
}

// Tests of changed sources through every view.

class StaleViews : public ::testing::TestWithParam<const char*> {};

TEST_P(StaleViews, OpenAndReadGiveESTALE) {
  ServedCheckpoint mounted({{"w", "BF16", {8, 8}, RandomBytes(1).bytes(128)}});
  const std::uint64_t inode = mounted.inode(".stfs/"s + GetParam());
  ASSERT_EQ(mounted->open(inode), 0);
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted->open(inode), ESTALE);
  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.log.size(), 1U);
}

TEST_P(StaleViews, RepeatedReadsGiveESTALEAndAreLoggedOnce) {
  ServedCheckpoint mounted({{"w", "BF16", {8, 8}, RandomBytes(1).bytes(128)}});
  const std::uint64_t inode = mounted.inode(".stfs/"s + GetParam());
  fs::resize_file(mounted.source(), 10);
  std::string bytes;

  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.read(inode, 0, kMost, bytes), ESTALE);
  EXPECT_EQ(mounted.log.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Views, StaleViews,
                         ::testing::Values("npy/w.npy", "f32/w", "npy-f32/w.npy", "slice/w/2:4",
                                           "slice/w/:,2:4", "npy-slice/w/2:4.npy",
                                           "npy-slice/w/:,2:4.npy", "f32-slice/w/:,1",
                                           "npy-f32-slice/w/0.npy", "png/w.png",
                                           "png-slice/w/0.png", "hist/w.svg", "tree/w",
                                           "safetensors/w.safetensors", "merged.safetensors",
                                           "subset/*.safetensors", "header/s0.safetensors.json"),
                         [](const auto& parameter) {
                           std::string name;
                           for (const char c : std::string(parameter.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace stfs::test
