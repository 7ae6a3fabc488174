// The contents of the directory .stfs.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/mounted.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace stfs::test {
namespace {

using nlohmann::json;

const std::vector<std::string> kFields = {"path",  "name",   "dtype", "shape",
                                          "bytes", "source", "offset"};

class DotStfs : public MountTest {};

TEST_F(DotStfs, OptionViewsHidesListsOrRemovesDirectory) {
  const std::vector<std::string> tensors{"mask", "tokens"};
  const struct {
    std::vector<std::string> options;
    std::vector<std::string> listed;
    bool exists;
  } rows[] = {{{}, tensors, true},
              {{"-o", "views=hidden"}, tensors, true},
              {{"-o", "views=visible"}, {".stfs", "mask", "tokens"}, true},
              {{"-o", "views=off"}, tensors, false}};
  for (const auto& [options, listed, exists] : rows) {
    SCOPED_TRACE(options.empty() ? "" : options.back());
    const Mounted mount({test_data("single/voices.safetensors")}, options);

    EXPECT_EQ(names_in(mount.path()), listed);
    EXPECT_EQ(std::filesystem::is_directory(mount / ".stfs"), exists);
    EXPECT_EQ(std::filesystem::is_regular_file(mount / ".stfs/info.json"), exists);
  }
}

TEST_F(DotStfs, TensorsJsonListsEveryTensorByOffset) {
  const Mounted mount({test_data("sharded")});

  const json tensors = json::parse(read_file(mount / ".stfs/tensors.json"));

  ASSERT_EQ(tensors.size(), 36u);
  std::pair<std::string, std::uint64_t> previous;
  for (const json& tensor : tensors) {
    const std::string path = tensor.at("path");
    EXPECT_EQ(tensor.size(), kFields.size());
    for (const std::string& field : kFields) EXPECT_TRUE(tensor.contains(field)) << field;
    EXPECT_EQ(xattr(mount / path, "user.stfs.name"), tensor.at("name"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.dtype"), tensor.at("dtype"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.shape"), tensor.at("shape").dump());
    EXPECT_EQ(xattr(mount / path, "user.stfs.source"), tensor.at("source"));
    EXPECT_EQ(xattr(mount / path, "user.stfs.offset"), tensor.at("offset").dump());
    EXPECT_EQ(xattr(mount / path, "user.stfs.length"), tensor.at("bytes").dump());
    const std::pair<std::string, std::uint64_t> location = {tensor.at("source"),
                                                            tensor.at("offset")};
    EXPECT_LT(previous, location);
    previous = location;
  }
}

}  // namespace
}  // namespace stfs::test
