#include "core/base/error.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace stfs::test {
namespace {

struct Row {
  ErrorCode code;
  const char* name;
  int status;
};

constexpr std::array<Row, 41> kRows{{
    {ErrorCode::kHeaderTooSmall, "HeaderTooSmall", 1},
    {ErrorCode::kHeaderTooLarge, "HeaderTooLarge", 1},
    {ErrorCode::kInvalidHeaderLength, "InvalidHeaderLength", 1},
    {ErrorCode::kInvalidHeader, "InvalidHeader", 1},
    {ErrorCode::kInvalidHeaderDeserialization, "InvalidHeaderDeserialization", 1},
    {ErrorCode::kInvalidOffset, "InvalidOffset", 1},
    {ErrorCode::kValidationOverflow, "ValidationOverflow", 1},
    {ErrorCode::kMisalignedSlice, "MisalignedSlice", 1},
    {ErrorCode::kTensorInvalidInfo, "TensorInvalidInfo", 1},
    {ErrorCode::kMetadataIncompleteBuffer, "MetadataIncompleteBuffer", 1},
    {ErrorCode::kDuplicateTensor, "DuplicateTensor", 1},
    {ErrorCode::kGgufMagic, "GgufMagic", 1},
    {ErrorCode::kGgufVersion, "GgufVersion", 1},
    {ErrorCode::kGgufBigEndian, "GgufBigEndian", 1},
    {ErrorCode::kGgufTruncated, "GgufTruncated", 1},
    {ErrorCode::kGgufCount, "GgufCount", 1},
    {ErrorCode::kGgufKey, "GgufKey", 1},
    {ErrorCode::kGgufValue, "GgufValue", 1},
    {ErrorCode::kGgufAlignment, "GgufAlignment", 1},
    {ErrorCode::kGgufName, "GgufName", 1},
    {ErrorCode::kGgufShape, "GgufShape", 1},
    {ErrorCode::kGgufType, "GgufType", 1},
    {ErrorCode::kGgufOffset, "GgufOffset", 1},
    {ErrorCode::kGgufData, "GgufData", 1},
    {ErrorCode::kGgufSplit, "GgufSplit", 1},
    {ErrorCode::kArchive, "Archive", 1},
    {ErrorCode::kPickle, "Pickle", 1},
    {ErrorCode::kQuantized, "Quantized", 1},
    {ErrorCode::kDelta, "Delta", 1},
    {ErrorCode::kAdapter, "Adapter", 1},
    {ErrorCode::kEdit, "Edit", 1},
    {ErrorCode::kInvalidIndex, "InvalidIndex", 1},
    {ErrorCode::kMissingTensor, "MissingTensor", 1},
    {ErrorCode::kPathCollision, "PathCollision", 1},
    {ErrorCode::kUsage, "Usage", 2},
    {ErrorCode::kUnreadable, "Unreadable", 3},
    {ErrorCode::kAbsent, "Absent", 3},
    {ErrorCode::kHidden, "Unreadable", 3},
    {ErrorCode::kMissingShard, "MissingShard", 3},
    {ErrorCode::kMountFailed, "MountFailed", 4},
    {ErrorCode::kDeviceFailed, "DeviceFailed", 5},
}};

TEST(ErrorCodes, HaveExpectedNamesAndExitStatus) {
  for (const Row& row : kRows) {
    EXPECT_EQ(error_name(row.code), row.name);
    EXPECT_EQ(exit_status(row.code), row.status) << row.name;
  }
}

TEST(ErrorCodes, TestTableIsComplete) {
  std::set<ErrorCode> codes;
  for (const Row& row : kRows) codes.insert(row.code);
  EXPECT_EQ(codes.size(), static_cast<std::size_t>(ErrorCode::kDeviceFailed) + 1);
}

TEST(Error, FormatsPlaceSubjectRuleAndRuleName) {
  const Error error(ErrorCode::kInvalidOffset, "m.safetensors", "tensor \"w\": overlaps");
  EXPECT_STREQ(error.what(), "m.safetensors: tensor \"w\": overlaps (InvalidOffset)");
  EXPECT_EQ(error.message(), "tensor \"w\": overlaps");
  EXPECT_EQ(error.code(), ErrorCode::kInvalidOffset);
}

TEST(Error, UnreadableSourceHasNoRuleName) {
  EXPECT_STREQ(Error(ErrorCode::kUnreadable, "m", "No such file").what(), "m: No such file");
}

TEST(Error, FormatsOnlyMessageIfPlaceIsEmpty) {
  EXPECT_STREQ(Error(ErrorCode::kUsage, "", "-u takes one MOUNTPOINT").what(),
               "-u takes one MOUNTPOINT");
}

TEST(Error, EscapesPlace) {
  EXPECT_STREQ(Error(ErrorCode::kUnreadable, "a\x1b\n", "x").what(), "a\\x1b\\n: x");
}

}  // namespace
}  // namespace stfs::test
