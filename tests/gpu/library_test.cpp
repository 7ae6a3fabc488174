// The C ABI of stfs_gpu.h with inherited tensors, without a holder, a mount or a GPU.
#include "core/base/dlpack.h"
#include "core/base/posix.h"
#include "tests/gpu/failing_new.h"
#include "tests/gpu/given.h"
#include "tests/support/files.h"
#include "tools/gpu/library/include/stfs_gpu.h"
#include "tools/library/include/stfs.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stfs::gpu::test {

using namespace stfs::test;

namespace {

using ::testing::IsSubstring;

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

const std::vector<GivenTensor> kTwo{
    {.name = "w", .shape = {2, 3}, .bytes = floats({1, 2, 3, 4, 5, 6})},
    {.name = "b", .dtype = "BF16", .shape = {2}, .bytes = "abcd"}};

std::string label(const std::string& name) { return "/w/model.safetensors::" + name; }

// Connects during a scope.
struct Connection {
  Connection() { EXPECT_EQ(stfs_gpu_connect(nullptr, 0, &handle), STFS_GPU_OK) << error(); }
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void close() { stfs_gpu_disconnect(std::exchange(handle, nullptr)); }
  static std::string error() { return stfs_gpu_last_error(); }

  stfs_gpu_connection* handle = nullptr;
};

// Acquired tensors, released at the end of a scope.
struct Tensors {
  Tensors() = default;
  ~Tensors() { release(); }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  int acquire(stfs_gpu_connection* connection, const std::vector<std::string>& names,
              const stfs_gpu_acquire_options* options = nullptr) {
    release();
    std::vector<const char*> pointers;
    for (const std::string& name : names) pointers.push_back(name.c_str());
    return stfs_gpu_acquire(connection, pointers.data(), pointers.size(), options, &handle);
  }
  void release() { stfs_gpu_release(std::exchange(handle, nullptr)); }

  stfs_gpu_tensor_info info(std::size_t index) const {
    stfs_gpu_tensor_info info{};
    info.size = sizeof info;
    EXPECT_EQ(stfs_gpu_info(handle, index, &info), STFS_GPU_OK) << stfs_gpu_last_error();
    return info;
  }
  std::string bytes(std::size_t index) const {
    const stfs_gpu_tensor_info known = info(index);
    return {reinterpret_cast<const char*>(known.pointer), known.bytes};
  }

  stfs_gpu_tensors* handle = nullptr;
};

// Returns the number of mappings of the inherited segment in this process.
std::size_t mappings() {
  const std::string maps = read_file("/proc/self/maps");
  std::size_t count = 0;
  for (std::size_t at = 0; (at = maps.find("memfd:given-segment", at)) != std::string::npos; ++at)
    ++count;
  return count;
}

TEST(Library, ReadsInheritedTensors) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;

  ASSERT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_OK) << Connection::error();

  ASSERT_EQ(stfs_gpu_count(tensors.handle), 2U);
  const stfs_gpu_tensor_info info = tensors.info(0);
  EXPECT_STREQ(info.name, "w");
  EXPECT_EQ(info.label, label("w"));
  EXPECT_STREQ(info.key, "key of w");
  EXPECT_STREQ(info.dtype, "F32");
  EXPECT_EQ(std::vector<std::uint64_t>(info.shape, info.shape + info.rank),
            (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(info.bytes, 24U);
  EXPECT_STREQ(info.device, "cpu");
  EXPECT_TRUE(std::string(info.device_uuid).starts_with("CPU-"));
  EXPECT_EQ(info.device_type, STFS_GPU_DEVICE_CPU);
  EXPECT_EQ(info.device_ordinal, 0);
  std::uint64_t pointer = 0;
  EXPECT_EQ(stfs_gpu_pointer(tensors.handle, 0, &pointer), STFS_GPU_OK);
  EXPECT_EQ(pointer, info.pointer);
  EXPECT_EQ(tensors.bytes(0), kTwo[0].bytes);
  EXPECT_EQ(tensors.bytes(1), kTwo[1].bytes);
}

TEST(Library, ReadsEveryFloatingTypeAsFloat) {
  const Given given({{.name = "w", .shape = {2}, .bytes = floats({1, -2.5F})},
                     {.name = "h", .dtype = "BF16", .shape = {2}, .bytes = {"\x80\x3f\x20\xc0", 4}},
                     {.name = "q", .dtype = "F4", .shape = {2}, .bytes = "\x21"},
                     {.name = "i", .dtype = "I32", .shape = {1}, .bytes = "abcd"},
                     {.name = "none", .shape = {0}, .bytes = ""}});
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_OK) << Connection::error();
  std::vector<float> values(2);
  const auto read = [&](std::size_t index, std::size_t count) {
    return stfs_gpu_read_f32(tensors.handle, index, values.data(), count);
  };

  EXPECT_EQ(read(0, 2), STFS_GPU_OK);
  EXPECT_EQ(values, (std::vector<float>{1, -2.5F}));
  EXPECT_EQ(read(1, 2), STFS_GPU_OK);
  EXPECT_EQ(values, (std::vector<float>{1, -2.5F}));
  EXPECT_EQ(read(2, 2), STFS_GPU_OK);
  EXPECT_EQ(values, (std::vector<float>{0.5F, 1}));
  EXPECT_EQ(stfs_gpu_read_f32(tensors.handle, 4, nullptr, 0), STFS_GPU_OK);
  EXPECT_EQ(read(0, 1), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "has 2 elements, not 1", Connection::error());
  EXPECT_EQ(read(3, 1), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "I32 is not a floating-point type", Connection::error());
  EXPECT_EQ(stfs_gpu_read_f32(tensors.handle, 0, nullptr, 2), STFS_GPU_USAGE);
  EXPECT_EQ(read(9, 1), STFS_GPU_USAGE);
}

TEST(Library, ReturnsTensorsInRequestedOrderAndMapsSegmentOnce) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;

  ASSERT_EQ(tensors.acquire(connection.handle, {label("b"), label("w"), label("b")}), STFS_GPU_OK)
      << Connection::error();

  ASSERT_EQ(stfs_gpu_count(tensors.handle), 3U);
  EXPECT_STREQ(tensors.info(0).name, "b");
  EXPECT_STREQ(tensors.info(1).name, "w");
  EXPECT_EQ(tensors.info(0).pointer, tensors.info(2).pointer);
  EXPECT_EQ(tensors.info(0).pointer, tensors.info(1).pointer + 512);
  EXPECT_EQ(mappings(), 1U);
  tensors.release();
  EXPECT_EQ(mappings(), 0U);
}

TEST(Library, EmptyTensorHasNoPointer) {
  const Given given({{.name = "none", .shape = {0, 3}, .bytes = ""},
                     {.name = "scalar", .shape = {}, .bytes = floats({7})}});
  Connection connection;
  Tensors tensors;

  ASSERT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_OK) << Connection::error();

  EXPECT_EQ(tensors.info(0).pointer, 0U);
  EXPECT_EQ(tensors.info(0).rank, 2U);
  EXPECT_EQ(tensors.info(1).rank, 0U);
  EXPECT_EQ(tensors.bytes(1), floats({7}));
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(tensors.handle, 0, 0, &exported), STFS_GPU_OK);
  EXPECT_EQ(exported->dl_tensor.data, nullptr);
  exported->deleter(exported);
}

TEST(Library, MapsHostMemoryReadOnly) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  auto* value = reinterpret_cast<volatile float*>(tensors.info(0).pointer);

  EXPECT_EXIT(
      {
        ::signal(SIGSEGV, SIG_DFL);  // otherwise a sanitizer reports the signal
        *value = 0;
      },
      testing::KilledBySignal(SIGSEGV), "");
}

// A name in a safetensors file may contain NUL. A name in a GGUF file may contain any byte except
// NUL.
TEST(Library, AcceptsAnyBytesInNames) {
  using namespace std::string_literals;
  const std::vector<GivenTensor> named{
      {.name = "a\0b"s, .dtype = "U8", .shape = {1}, .bytes = "1"},
      {.name = "a", .dtype = "U8", .shape = {1}, .bytes = "2"},
      {.name = "\xff é", .dtype = "U8", .shape = {1}, .bytes = "3"}};
  const Given given(named);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_OK) << Connection::error();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const stfs_gpu_tensor_info info = tensors.info(i);
    EXPECT_EQ(std::string(info.name, info.name_bytes), named[i].name);
    EXPECT_EQ(std::string(info.label, info.label_bytes), label(named[i].name));
    EXPECT_EQ(info.label[info.label_bytes], '\0');
  }

  for (const GivenTensor& one : named) {
    const std::string wanted = label(one.name);
    const char* const name = wanted.c_str();
    const std::size_t bytes = wanted.size();
    stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
    options.name_bytes = &bytes;
    Tensors found;
    ASSERT_EQ(stfs_gpu_acquire(connection.handle, &name, 1, &options, &found.handle), STFS_GPU_OK)
        << Connection::error();
    EXPECT_EQ(found.bytes(0), one.bytes);
  }
}

TEST(Library, NullIsAnErrorAndNotACrash) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  const char* no_name = nullptr;
  stfs_gpu_tensors* out = nullptr;
  std::uint64_t pointer = 0;
  DLManagedTensorVersioned* exported = nullptr;

  EXPECT_EQ(stfs_gpu_connect(nullptr, 0, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_acquire(nullptr, nullptr, 0, nullptr, &out), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_acquire(connection.handle, nullptr, 0, nullptr, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_acquire(connection.handle, nullptr, 1, nullptr, &out), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_acquire(connection.handle, &no_name, 1, nullptr, &out), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_info(nullptr, 0, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_info(tensors.handle, 0, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_pointer(nullptr, 0, &pointer), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_pointer(tensors.handle, 0, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_export(nullptr, 0, 0, &exported), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_export(tensors.handle, 0, 0, nullptr), STFS_GPU_USAGE);
  EXPECT_EQ(stfs_gpu_export_unversioned(tensors.handle, 0, 0, nullptr), STFS_GPU_USAGE);
  tensors.release();
  EXPECT_EQ(mappings(), 0U);  // the failed calls have left no mapping
  EXPECT_EQ(stfs_gpu_count(nullptr), 0U);
  stfs_gpu_release(nullptr);
  stfs_gpu_disconnect(nullptr);
}

TEST(Library, ReportsInvalidRequests) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  stfs_gpu_acquire_options options = STFS_GPU_ACQUIRE_OPTIONS_INIT;
  stfs_gpu_connection* other = nullptr;
  DLManagedTensorVersioned* exported = nullptr;

  EXPECT_EQ(stfs_gpu_connect(nullptr, 8, &other), STFS_GPU_USAGE);
  options.as = "f64";
  EXPECT_EQ(tensors.acquire(connection.handle, {label("w")}, &options), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "\"f64\"", Connection::error());
  options.as = nullptr;
  options.shard = "1";
  EXPECT_EQ(tensors.acquire(connection.handle, {label("w")}, &options), STFS_GPU_USAGE);
  EXPECT_EQ(tensors.acquire(connection.handle, {"/nowhere/at/all"}), STFS_GPU_UNREADABLE);
  EXPECT_EQ(tensors.handle, nullptr);

  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  std::uint64_t pointer = 0;
  EXPECT_EQ(stfs_gpu_pointer(tensors.handle, 1, &pointer), STFS_GPU_USAGE);
  EXPECT_EQ(Connection::error(), "tensor 1: there are only 1, counted from 0");
  EXPECT_EQ(stfs_gpu_export(tensors.handle, 0, 4, &exported), STFS_GPU_USAGE);
}

TEST(Library, LastErrorIsPerThreadAndSharedByBothHeaders) {
  EXPECT_EQ(stfs_gpu_connect(nullptr, 0, nullptr), STFS_GPU_USAGE);
  const std::string mine = stfs_gpu_last_error();
  std::string others = "unset";

  std::thread([&others] { others = stfs_gpu_last_error(); }).join();

  EXPECT_FALSE(mine.empty());
  EXPECT_EQ(others, "");
  EXPECT_EQ(stfs_last_error(), mine);
}

TEST(Library, RefusesTensorsOnSeveralDevicesAndNamesThem) {
  std::vector<GivenTensor> given = kTwo;
  given.push_back({.name = "far", .shape = {1}, .bytes = "1234", .device = "GPU-1111"});
  const Given environment(given);
  Connection connection;
  Tensors tensors;

  EXPECT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_USAGE);

  EXPECT_EQ(Connection::error(), "not on one device: " + ('"' + label("far")) +
                                     "\" is on GPU-1111; \"" + label("w") + "\", \"" + label("b") +
                                     "\" are on cpu");
  EXPECT_EQ(tensors.acquire(connection.handle, {label("w"), label("b")}), STFS_GPU_OK)
      << Connection::error();
}

TEST(Library, ExportOutlivesReleaseAndDisconnect) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(tensors.handle, 0, 0, &exported), STFS_GPU_OK);

  tensors.release();
  connection.close();

  EXPECT_EQ(mappings(), 1U);
  const DLTensor& tensor = exported->dl_tensor;
  EXPECT_EQ(exported->version.major, 1U);
  EXPECT_EQ(exported->flags, dlpack::kReadOnly);
  EXPECT_EQ(tensor.device.device_type, dlpack::kCpu);
  EXPECT_EQ(tensor.device.device_id, 0);
  ASSERT_EQ(tensor.ndim, 2);
  EXPECT_EQ(tensor.shape[0], 2);
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_EQ(tensor.strides[0], 3);
  EXPECT_EQ(tensor.strides[1], 1);
  EXPECT_EQ(tensor.byte_offset, 0U);
  EXPECT_EQ(std::memcmp(tensor.data, kTwo[0].bytes.data(), 24), 0);
  std::thread([exported] { exported->deleter(exported); }).join();
  EXPECT_EQ(mappings(), 0U);
}

TEST(Library, ExportedCopyIsIndependent) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  DLManagedTensorVersioned* copy = nullptr;

  ASSERT_EQ(stfs_gpu_export(tensors.handle, 0, STFS_GPU_EXPORT_COPY, &copy), STFS_GPU_OK);

  EXPECT_EQ(copy->flags, dlpack::kIsCopied);
  EXPECT_EQ(std::memcmp(copy->dl_tensor.data, kTwo[0].bytes.data(), 24), 0);
  std::memset(copy->dl_tensor.data, 0, 24);
  EXPECT_EQ(tensors.bytes(0), kTwo[0].bytes);
  tensors.release();
  EXPECT_EQ(mappings(), 0U);  // the copy does not keep the original mapped
  copy->deleter(copy);
}

TEST(Library, RefusesUnversionedExportOfReadOnlyMemory) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  DLManagedTensor* exported = nullptr;

  EXPECT_EQ(stfs_gpu_export_unversioned(tensors.handle, 0, 0, &exported), STFS_GPU_USAGE);
  EXPECT_PRED_FORMAT2(IsSubstring, "read-only", Connection::error());
  EXPECT_EQ(exported, nullptr);
  ASSERT_EQ(stfs_gpu_export_unversioned(tensors.handle, 0, STFS_GPU_EXPORT_COPY, &exported),
            STFS_GPU_OK);
  EXPECT_EQ(std::memcmp(exported->dl_tensor.data, kTwo[0].bytes.data(), 24), 0);
  exported->deleter(exported);
}

// The codes are numbers from DLPack's specification, so that they do not depend on our header.
TEST(Library, TypesHaveDLPackCodes) {
  struct Row {
    const char* dtype;
    unsigned code;
    unsigned bits;
  };
  constexpr Row kRows[] = {
      {"BOOL", 6, 8},         {"F4", 17, 4},          {"F6_E2M3", 15, 6}, {"F6_E3M2", 16, 6},
      {"U8", 1, 8},           {"I8", 0, 8},           {"F8_E5M2", 12, 8}, {"F8_E4M3", 10, 8},
      {"F8_E8M0", 14, 8},     {"F8_E4M3FNUZ", 11, 8}, {"I16", 0, 16},     {"U16", 1, 16},
      {"F8_E5M2FNUZ", 13, 8}, {"F16", 2, 16},         {"BF16", 4, 16},    {"I32", 0, 32},
      {"U32", 1, 32},         {"F32", 2, 32},         {"C64", 5, 64},     {"F64", 2, 64},
      {"I64", 0, 64},         {"U64", 1, 64}};
  std::vector<GivenTensor> all;
  for (const Row& row : kRows) {
    all.push_back(
        {.name = row.dtype, .dtype = row.dtype, .shape = {8}, .bytes = std::string(row.bits, 'x')});
  }
  const Given given(all);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_OK) << Connection::error();

  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(kRows[i].dtype);
    DLManagedTensorVersioned* exported = nullptr;
    ASSERT_EQ(stfs_gpu_export(tensors.handle, i, 0, &exported), STFS_GPU_OK);
    EXPECT_STREQ(tensors.info(i).dtype, kRows[i].dtype);
    EXPECT_EQ(exported->dl_tensor.dtype.code, kRows[i].code);
    EXPECT_EQ(exported->dl_tensor.dtype.bits, kRows[i].bits);
    EXPECT_EQ(exported->dl_tensor.dtype.lanes, 1U);
    exported->deleter(exported);
  }
}

TEST(Library, HandlesFailHarmlesslyInForkedChild) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(tensors.handle, 0, 0, &exported), STFS_GPU_OK);

  const pid_t child = ::fork();
  if (child == 0) {
    stfs_gpu_tensors* other = nullptr;
    std::uint64_t pointer = 0;
    int wrong = 0;
    wrong |= (stfs_gpu_pointer(tensors.handle, 0, &pointer) != STFS_GPU_USAGE) << 0;
    wrong |= (stfs_gpu_acquire(connection.handle, nullptr, 0, nullptr, &other) != STFS_GPU_USAGE)
             << 1;
    exported->deleter(exported);
    stfs_gpu_release(tensors.handle);
    stfs_gpu_disconnect(connection.handle);
    wrong |= (mappings() != 1) << 2;
    // The child may open its own connection.
    Connection own;
    Tensors others;
    wrong |= (others.acquire(own.handle, {label("b")}) != STFS_GPU_OK) << 3;
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  EXPECT_EQ(tensors.bytes(0), kTwo[0].bytes);
  exported->deleter(exported);
  tensors.release();
  EXPECT_EQ(mappings(), 0U);
}

TEST(Library, ForkedChildDropsExportWithoutMemory) {
  const Given given(kTwo);
  Connection connection;
  Tensors tensors;
  ASSERT_EQ(tensors.acquire(connection.handle, {label("w")}), STFS_GPU_OK) << Connection::error();
  DLManagedTensorVersioned* exported = nullptr;
  ASSERT_EQ(stfs_gpu_export(tensors.handle, 0, 0, &exported), STFS_GPU_OK);
  tensors.release();

  const pid_t child = ::fork();
  if (child == 0) {
    const NoMemory none;
    exported->deleter(exported);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_EQ(status, 0);
  exported->deleter(exported);
  EXPECT_EQ(mappings(), 0U);
}

// This test is in this program because only this program can make operator new fail.
TEST(StartThread, RestoresSignalMaskWhenOutOfMemory) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  bool has_started = false;
  bool has_failed = false;

  {
    const NoMemory none;
    try {
      start_thread([] {}).join();
      has_started = true;
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
  }

  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_TRUE(has_failed && !has_started);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
}

TEST(Library, RejectsInheritedListThatIsNotAList) {
  for (const char* text : {"", "{}", "[1]", R"([{"name":"w"}])", "[", "[[[[[["}) {
    const GivenText given(text);
    stfs_gpu_connection* connection = nullptr;

    EXPECT_EQ(stfs_gpu_connect(nullptr, 0, &connection), STFS_GPU_USAGE) << text;

    EXPECT_TRUE(Connection::error().starts_with("STFS_GPU_TENSORS: ")) << Connection::error();
    EXPECT_EQ(connection, nullptr);
  }
}

TEST(Library, RejectsInheritedListWithRangesOutsideSegment) {
  const Given honest(kTwo);
  const auto changed = [&honest](const std::string& from, const std::string& to) {
    std::string text = honest.json();
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {changed("\"offset\":0", "\"offset\":2097151"),
        changed("\"offset\":0", "\"offset\":18446744073709551615"),
        changed("\"bytes\":24", "\"bytes\":25"), changed("[2,3]", "[2,4294967296,4294967296]"),
        changed("\"segment_bytes\":2097152", "\"segment_bytes\":8")}) {
    const GivenText given(text);
    stfs_gpu_connection* connection = nullptr;

    EXPECT_EQ(stfs_gpu_connect(nullptr, 0, &connection), STFS_GPU_DEVICE) << text;
  }
  // Mapping a segment that is shorter than stated fails, because a later access would raise SIGBUS.
  std::string longer = honest.json();
  for (std::size_t at; (at = longer.find(":2097152")) != std::string::npos;)
    longer.replace(at, 8, ":4194304");
  const GivenText given(longer);
  Connection connection;
  Tensors tensors;
  EXPECT_EQ(tensors.acquire(connection.handle, {}), STFS_GPU_DEVICE);
}

TEST(Library, ReportsSocketWithoutHolder) {
  const TempDir dir;
  const std::string path = dir / "socket";
  stfs_gpu_connection* connection = nullptr;

  EXPECT_EQ(stfs_gpu_connect(path.c_str(), 0, &connection), STFS_GPU_DEVICE);

  EXPECT_PRED_FORMAT2(IsSubstring, "no holder listens at \"" + path, Connection::error());
  EXPECT_EQ(connection, nullptr);
}

}  // namespace
}  // namespace stfs::gpu::test
