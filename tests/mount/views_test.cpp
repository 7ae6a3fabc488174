// The views under .stfs in a mount, read by the programs that use them and compared with an
// independent reader of the source.
#include "tests/support/checkpoint_reader.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/elsewhere.h"
#include "tests/support/mounted.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <latch>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace stfs::test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using nlohmann::json;

class Views : public MountTest {};

const std::vector<std::string> kCheckpoints{"sharded", "single/dtypes.safetensors",
                                            "single/voices.safetensors"};

// A reader of checkpoints in Python that uses only struct and json, and decodes the values of each
// type by its definition.
constexpr const char* kReader = R"PY(
import glob, itertools, json, math, os, struct, sys
import numpy

def load(source):
    files = sorted(glob.glob(source + '/*.safetensors')) if os.path.isdir(source) else [source]
    out = {}
    for path in files:
        data = open(path, 'rb').read()
        n, = struct.unpack('<Q', data[:8])
        for name, t in json.loads(data[8:8 + n]).items():
            if name == '__metadata__': continue
            begin, end = t['data_offsets']
            out[name] = (t['dtype'], tuple(t['shape']), data[8 + n + begin:8 + n + end])
    return out

CODES = {'BOOL': '|b1', 'U8': '|u1', 'I8': '|i1', 'U16': '<u2', 'I16': '<i2', 'U32': '<u4', 'I32': '<i4',
         'U64': '<u8', 'I64': '<i8', 'F16': '<f2', 'F32': '<f4', 'F64': '<f8', 'C64': '<c8', 'BF16': '<V2',
         'F8_E5M2': '|V1', 'F8_E4M3': '|V1', 'F8_E8M0': '|V1', 'F8_E4M3FNUZ': '|V1', 'F8_E5M2FNUZ': '|V1'}

def array(tensor):
    dtype, shape, data = tensor
    return numpy.frombuffer(data, numpy.dtype(CODES[dtype])).reshape(shape)

def small(code, exponent_bits, significand_bits, bias):
    s = code & (1 << significand_bits) - 1
    e = code >> significand_bits & (1 << exponent_bits) - 1
    sign = -1.0 if code >> (significand_bits + exponent_bits) else 1.0
    unit = 1 << significand_bits
    return sign * (math.ldexp(s / unit, 1 - bias) if e == 0 else math.ldexp(1 + s / unit, e - bias))

def e4m3(c): return math.nan if c & 127 == 127 else small(c, 4, 3, 7)
def e5m2(c):
    if c & 127 > 124: return math.nan
    if c & 127 == 124: return -math.inf if c & 128 else math.inf
    return small(c, 5, 2, 15)
SMALL = {'F8_E4M3': e4m3, 'F8_E5M2': e5m2,
         'F8_E8M0': lambda c: math.nan if c == 255 else math.ldexp(1.0, c - 127),
         'F8_E4M3FNUZ': lambda c: math.nan if c == 128 else small(c, 4, 3, 8),
         'F8_E5M2FNUZ': lambda c: math.nan if c == 128 else small(c, 5, 2, 16)}
FLOATING = set(SMALL) | {'F16', 'BF16', 'F32', 'F64', 'F4', 'F6_E2M3', 'F6_E3M2'}

def floats(tensor):
    dtype, shape, data = tensor
    if dtype == 'BF16':
        return (numpy.frombuffer(data, '<u2').astype('<u4') << 16).view('<f4').reshape(shape)
    if dtype in SMALL:
        table = numpy.array([SMALL[dtype](c) for c in range(256)], '<f4')
        return table[numpy.frombuffer(data, 'u1')].reshape(shape)
    if dtype == 'F4':
        b = numpy.frombuffer(data, 'u1')
        table = numpy.array([small(c, 2, 1, 1) for c in range(16)], '<f4')
        return table[numpy.stack([b & 15, b >> 4], -1).ravel()].reshape(shape)
    if dtype.startswith('F6_'):
        bits = numpy.unpackbits(numpy.frombuffer(data, 'u1'), bitorder='little').reshape(-1, 6)
        codes = bits @ (1 << numpy.arange(6))
        layout = (2, 3, 1) if dtype == 'F6_E2M3' else (3, 2, 3)
        return numpy.array([small(c, *layout) for c in range(64)], '<f4')[codes].reshape(shape)
    with numpy.errstate(all='ignore'):
        return array(tensor).astype('<f4')

def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()

mount, source = sys.argv[1], sys.argv[2]
tensors = load(source)
stfs = mount + '/.stfs/'
)PY";

bool has_numpy() { return run({"/usr/bin/python3", "-c", "import numpy"}).status == 0; }

// Runs kReader and `script` with the mount and the source as arguments. The script prints "ok" or
// fails.
Outcome python(const std::string& script, const Mounted& mount, const std::string& source) {
  return run({"/usr/bin/python3", "-c", kReader + script, mount.path().string(), source});
}

void expect_ok(const Outcome& result, const std::string& where) {
  EXPECT_EQ(result.status, 0) << where << ": " << result.err;
  EXPECT_EQ(result.out, "ok\n") << where;
}

#define REQUIRE_NUMPY() \
  if (!has_numpy()) GTEST_SKIP() << "no NumPy in /usr/bin/python3"

// Returns a [4,6] tensor of every type with random bits, a scalar, and an empty tensor.
std::vector<Tensor> every_type() {
  std::vector<Tensor> tensors;
  std::uint64_t seed = 0;
  for (const char* dtype :
       {"BOOL",    "F4",          "F6_E2M3",     "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
        "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16", "F16", "BF16",    "I32",
        "U32",     "F32",         "C64",         "F64",     "I64", "U64"}) {
    tensors.push_back(random_tensor("type/"s + dtype, dtype, {4, 6}, ++seed));
  }
  tensors.push_back(random_tensor("scalar", "F32", {}, 90));
  tensors.push_back(random_tensor("empty", "BF16", {0, 3}, 91));
  return tensors;
}

int errno_of_open(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

// Sizes and listings.

TEST_F(Views, EverySizeEqualsNumberOfBytes) {
  for (const std::string& name : kCheckpoints) {
    const Mounted mount({test_data(name)});
    int computed = 0;
    for (const auto& entry : fs::recursive_directory_iterator(mount / ".stfs")) {
      if (!entry.is_regular_file()) continue;
      const std::string path = entry.path().lexically_relative(mount / ".stfs");
      const std::string bytes = read_file(entry.path());
      if (path.starts_with("stats/") || path.starts_with("sha256/") || path.starts_with("hist/")) {
        EXPECT_EQ(entry.file_size(), 0U) << path;
        EXPECT_GT(bytes.size(), 60U) << path;
        computed += path.starts_with("hist/") ? 0 : 1;
      } else if (path == "counters.json") {
        EXPECT_EQ(entry.file_size(), 0U);
        EXPECT_FALSE(bytes.empty());
      } else {
        EXPECT_EQ(entry.file_size(), bytes.size()) << path;
      }
    }
    EXPECT_EQ(computed, 2 * static_cast<int>(names_in(mount.path()).size()));
  }
}

TEST_F(Views, DirectoryListsEveryView) {
  const Mounted mount({test_data("sharded")});

  EXPECT_EQ(names_in(mount / ".stfs"),
            (std::vector<std::string>{
                "counters.json", "f32",          "f32-slice",   "header",
                "hist",          "info.json",    "json",        "merged.safetensors",
                "metadata",      "npy",          "npy-f32",     "npy-f32-slice",
                "npy-slice",     "png",          "png-slice",   "report.html",
                "safetensors",   "sha256",       "slice",       "stats",
                "subset",        "tensors.json", "tensors.tsv", "tree"}));
  EXPECT_EQ(names_in(mount / ".stfs/npy").size(), 36U);
  EXPECT_EQ(names_in(mount / ".stfs/slice").size(), 36U);
  EXPECT_TRUE(names_in(mount / ".stfs/slice/float32_357").empty());
  EXPECT_TRUE(names_in(mount / ".stfs/subset").empty());
}

TEST_F(Views, CountersCountReadBytes) {
  const Mounted mount({test_data("sharded")});
  const std::string path = mount / ".stfs/counters.json";
  EXPECT_EQ(std::filesystem::file_size(path), 0U);
  const Outcome seen = sh(R"(find "$1" -type f -exec cat {} + > /dev/null; cat "$2")",
                          {mount.path().string(), path});

  EXPECT_NE(seen.out.find("\"bytes_returned\": "), std::string::npos) << seen.out;
  EXPECT_EQ(seen.out.find("\"bytes_returned\": 0,"), std::string::npos) << seen.out;
}

TEST_F(Views, HiddenFromFindTarDuAndCp) {
  const Mounted mount({test_data("single/dtypes.safetensors")});
  const TempDir out;

  const Outcome seen = sh(R"(find "$1" | grep -c stfs/ || true
    tar -C "$1" -cf - . | tar -tf - | grep -c '\.stfs' || true
    ls -a "$1" | grep -c '\.stfs' || true
    cp -r "$1/." "$2"; ls -A "$2" | wc -l
    du -s --apparent-size -B1 "$1"/* | awk '{ s += $1 } END { print s }')",
                          {mount.path(), out.path()});

  EXPECT_EQ(seen.out, "0\n0\n0\n36\n4305\n") << seen.err;
}

// npy, f32

TEST_F(Views, NumpyLoadsEveryNpyFile) {
  REQUIRE_NUMPY();
  for (const std::string& name : kCheckpoints) {
    const Mounted mount({test_data(name)});
    expect_ok(python(R"PY(
shown = 0
for name, tensor in tensors.items():
    path = stfs + 'npy/' + name + '.npy'
    if tensor[0] not in CODES:
        assert not os.path.exists(path), name
        continue
    shown += 1
    expected = array(tensor)
    for mode in (None, 'r'):
        found = numpy.load(path, mmap_mode=mode)
        assert same(found, expected), (name, mode, found.dtype, found.shape)
        if mode and expected.size: assert isinstance(found, numpy.memmap) and found.offset % 64 == 0
assert shown == len(os.listdir(stfs + 'npy'))
print('ok')
)PY",
                     mount, test_data(name)),
              name);
  }
}

TEST_F(Views, NumpyLoadsEveryNpyF32File) {
  REQUIRE_NUMPY();
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", every_type());
  std::vector<std::string> sources{dir / "m.safetensors"};
  for (const std::string& name : kCheckpoints) sources.push_back(test_data(name));
  for (const std::string& source : sources) {
    const Mounted mount({source});
    expect_ok(python(R"PY(
for name, tensor in tensors.items():
    path = stfs + 'npy-f32/' + name + '.npy'
    if tensor[0] not in FLOATING:
        assert not os.path.exists(path) and not os.path.exists(stfs + 'f32/' + name), name
        continue
    expected = floats(tensor)
    for mode in (None, 'r'):
        found = numpy.load(path, mmap_mode=mode)
        assert found.dtype == numpy.dtype('<f4') and found.shape == expected.shape, name
        assert numpy.array_equal(found, expected, equal_nan=True), (name, mode)
    raw = numpy.fromfile(stfs + 'f32/' + name, '<f4').reshape(expected.shape)
    assert numpy.array_equal(raw, expected, equal_nan=True), name
print('ok')
)PY",
                     mount, source),
              source);
  }
}

TEST_F(Views, PerlReadsBf16AsFloats) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {{"w", "BF16", {3}, "\x80\x3f\x00\xc0\x20\x41"s}});
  const Mounted mount({dir / "m.safetensors"});

  const Outcome perl = run({"perl", "-e", R"(
open my $f, '<:raw', $ARGV[0] or die $!; local $/; print join(' ', unpack('f<*', <$f>)), "\n";)",
                            mount / ".stfs/f32/w"});

  EXPECT_EQ(perl.out, "1 -2 10\n") << perl.err;
}

// Slices.

constexpr const char* kSliceScript = R"PY(
def check(name, expression):
    whole = array(tensors[name])
    expected = eval('whole[' + expression + ']')
    raw = open(stfs + 'slice/' + name + '/' + expression, 'rb').read()
    assert raw == expected.tobytes(), (name, expression, len(raw))
    found = numpy.load(stfs + 'npy-slice/' + name + '/' + expression + '.npy')
    assert same(found, expected), (name, expression, found.shape, expected.shape)
)PY";

TEST_F(Views, SlicesEqualNumpySlices) {
  REQUIRE_NUMPY();
  const TempDir dir;
  write_safetensors(
      dir / "m.safetensors",
      {random_tensor("W", "BF16", {300, 257}, 1), random_tensor("c", "C64", {7, 11, 13}, 2),
       random_tensor("b", "U8", {5}, 3), random_tensor("s", "F32", {}, 4),
       random_tensor("e", "F64", {0, 4}, 5), random_tensor("wide", "F32", {3, 20'000}, 6),
       random_tensor("r5", "I16", {2, 3, 4, 5, 6}, 7)});
  const Mounted mount({dir / "m.safetensors"});

  expect_ok(python(std::string(kSliceScript) + R"PY(
for expression in ['0:128,:', '0:128', '3', '-1', '::2', '...,0', ':,0', ':,-1', ':,10:20', ':,::3', '::7,5:200:11',
                   '-5:', ':-5', '-100:-50,-7:', '...', '0,0', '-1,-1', '0,...', '...,-1', '5:5', '200:100,:',
                   '0:9999,:', '-9999:3', '299', '+3', '1:2', '1:2,', ':,:', '::299', '::1000', ':,256:257', '1::2,1::2']:
    check('W', expression)
for expression in ['0', ':,0', ':,:,0', '...,0', '1:3,...,::2', '0,...,0', '::2,::2,::2', '-1,-1,-1', ':,3:5',
                   '...,1:2,3', '3:2', '...,:,:,:']:
    check('c', expression)
for expression in ['0', '::2', '-2:', '...']: check('b', expression)
check('s', '...')
for expression in ['...', ':', ':,0', '0:0', ':,::2']: check('e', expression)
for expression in [':,::5000', ':,1', '::2,19999', ':,5000:15000', '1:,::2']: check('wide', expression)
import random
random.seed(7)
def bound(n): return random.choice(['', str(random.randint(-n - 2, n + 2))])
for _ in range(400):
    items = []
    for n in tensors['r5'][1][:random.randint(1, 5)]:
        if random.random() < .3: items.append(str(random.randint(-n, n - 1)))
        else: items.append(bound(n) + ':' + bound(n) + random.choice(['', ':', ':' + str(random.randint(1, n + 1))]))
    if len(items) < 5 and random.random() < .3: items.insert(random.randint(0, len(items)), '...')
    if '...' in items and len(items) == 6: items.remove('...')
    check('r5', ','.join(items))
print('ok')
)PY",
                   mount, dir / "m.safetensors"),
            "slices");
}

TEST_F(Views, Float32SlicesEqualNumpySlices) {
  REQUIRE_NUMPY();
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", every_type());
  const Mounted mount({dir / "m.safetensors"});

  expect_ok(python(R"PY(
for name, tensor in tensors.items():
    if tensor[0] not in FLOATING:
        assert not os.path.exists(stfs + 'f32-slice/' + name), name
        continue
    whole = floats(tensor)
    for expression in ['...', '0', '-1', '::2', ':,1', '1:,::3', ':,-3:-1', '3,5', '::3,1:4', '...,0', '1:1', '::5,::5']:
        if expression.count(',') >= len(tensor[1]) and expression != '...': continue
        if not whole.size and expression[-1] != ':' and expression != '...': continue
        expected = eval('whole[' + expression + ']')
        raw = numpy.fromfile(stfs + 'f32-slice/' + name + '/' + expression, '<f4')
        assert numpy.array_equal(raw, expected.ravel(), equal_nan=True), (name, expression)
        found = numpy.load(stfs + 'npy-f32-slice/' + name + '/' + expression + '.npy')
        assert found.dtype == numpy.dtype('<f4') and found.shape == expected.shape, (name, expression)
        assert numpy.array_equal(found, expected, equal_nan=True), (name, expression)
print('ok')
)PY",
                   mount, dir / "m.safetensors"),
            "float32 slices");
}

TEST_F(Views, SliceWithMillionsOfRunsUsesBoundedMemory) {
  const TempDir dir;
  constexpr std::uint64_t kBytes = 40'000'000;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("w", "U8", {kBytes}), random_tensor("f", "F4", {kBytes})});
  const Mounted mount({dir / "m.safetensors"});

#ifdef STFS_SANITIZED
  constexpr const char* kMaxKib = "524288";  // a sanitizer keeps some freed memory
#else
  constexpr const char* kMaxKib = "65536";
#endif
  const Outcome result = sh(R"(
    rss() { awk '/VmHWM/ { print $2 }' /proc/$2/status; }
    before=$(rss x "$2"); wc -c < "$1"; cat "$3" | wc -c; after=$(rss x "$2"); echo $((after - before < $4)))",
                            {mount / ".stfs/slice/w/::2", std::to_string(mount.daemon()),
                             mount / ".stfs/f32-slice/f/1::2", kMaxKib});

  EXPECT_EQ(result.out, "20000000\n80000000\n1\n") << result.err;
}

std::uint64_t resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6));
  }
  return 0;
}

TEST_F(Views, SliceNamesAreFreedWhenKernelForgetsThem) {
  if (::access("/proc/sys/vm/drop_caches", W_OK) != 0) {
    GTEST_SKIP() << "only root can drop the names that the kernel caches";
  }
#ifdef STFS_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps freed memory";
#endif
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", {random_tensor("w", "U8", {1000, 4000})});
  const Mounted mount({dir / "m.safetensors"});
  const pid_t daemon = mount.daemon();
  const char* is_long = std::getenv("STFS_LONG");
  const int names = is_long != nullptr && *is_long == '1' ? 1'000'000 : 20'000;
  const auto drop = [] {
    ::sync();
    std::ofstream("/proc/sys/vm/drop_caches") << "2\n";
  };
  const auto look_up = [&](int first) {
    struct stat64 status = {};
    for (int i = first; i < first + names; ++i) {
      const std::string expression = std::to_string(i % 1000) + "," + std::to_string(i / 1000);
      ASSERT_EQ(::stat64((mount / (".stfs/slice/w/" + expression)).c_str(), &status), 0);
    }
  };
  const std::uint64_t before = resident_kib(daemon);

  look_up(0);
  const std::uint64_t full = resident_kib(daemon);
  const bool is_forgotten = eventually([&] {
    drop();
    return resident_kib(daemon) < before + (full - before) / 4 + 2048;
  });
  const std::uint64_t after = resident_kib(daemon);
  look_up(names);
  const std::uint64_t again = resident_kib(daemon);

  EXPECT_TRUE(is_forgotten) << before << " KiB, then " << full << " KiB, then " << after << " KiB";
  EXPECT_LT(again, full + 4096) << "new names must reuse the freed memory";
}

// safetensors files

std::map<std::string, TensorEntry> single_entries() {
  return entries_of(test_data("single/dtypes.safetensors"));
}

void expect_same(const std::map<std::string, TensorEntry>& found,
                 const std::map<std::string, TensorEntry>& expected) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, entry] : expected) {
    const auto other = found.find(name);
    ASSERT_NE(other, found.end()) << name;
    EXPECT_EQ(other->second.dtype, entry.dtype) << name;
    EXPECT_EQ(other->second.shape, entry.shape) << name;
    EXPECT_TRUE(other->second.bytes() == entry.bytes()) << name;
  }
}

TEST_F(Views, MergedFileContainsEveryTensor) {
  const Mounted mount({test_data("sharded")});
  const fs::path merged = mount / ".stfs/merged.safetensors";

  const Outcome check = run({STFS_INFO_BINARY, "check", merged});

  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_EQ(single_entries().size(), 36U);
  expect_same(entries_of(merged), single_entries());
  EXPECT_EQ((8 + header_text(merged).size()) % 4096, 0U);
}

TEST_F(Views, MountOfMergedFileHasSameTensors) {
  const Mounted mount({test_data("sharded")});
  const fs::path merged = mount / ".stfs/merged.safetensors";
  const TempDir dir;
  ASSERT_EQ(run({"cp", merged, dir / "copy.safetensors"}).status, 0);

  const Mounted copy({dir / "copy.safetensors"});
  const Mounted straight({merged});

  for (const Mounted* again : {&copy, &straight}) {
    const Outcome diff = run({"diff", "-r", mount.path(), again->path()});
    EXPECT_EQ(diff.status, 0) << diff.out << diff.err;
    EXPECT_EQ(names_in(again->path()).size(), 36U);
    EXPECT_TRUE(read_file(*again / ".stfs/merged.safetensors") == read_file(merged));
    EXPECT_EQ(xattr(*again / "bfloat16_35", "user.stfs.shape"), "[3,5]");
  }
}

TEST_F(Views, MergedFileOfSingleSourceEqualsSource) {
  const TempDir dir;
  const std::string w = R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::map<std::string, std::string> files{
      {"spaces", safetensors_bytes("{" + w + "}      ", "abcd")},
      {"metadata_last",
       safetensors_bytes("{" + w + R"(, "__metadata__" : {"z":"1","a":"2"} })", "abcd")},
      {"empty", safetensors_bytes("{}", "")},
      {"large", safetensors_bytes(header_json({random_tensor("x", "F32", {700'000})}),
                                  random_tensor("x", "F32", {700'000}).bytes)},
  };
  for (const auto& [name, bytes] : files) {
    const fs::path source = dir / (name + ".safetensors");
    write_file(source, bytes);
    const Mounted mount({source});
    const fs::path merged = mount / ".stfs/merged.safetensors";

    const Outcome digests = sh(R"(sha256sum < "$1"; sha256sum < "$2")", {source, merged});

    const std::size_t line = digests.out.find('\n') + 1;
    EXPECT_EQ(digests.out.substr(0, line), digests.out.substr(line)) << name << digests.err;
    EXPECT_EQ(fs::file_size(merged), bytes.size()) << name;
    if (!is_remote()) {  // a server reports its own time in seconds
      EXPECT_EQ(fs::last_write_time(merged), fs::last_write_time(source)) << name;
    }
    EXPECT_EQ(xattr(merged, "user.stfs.source"), std::nullopt);
  }
}

TEST_F(Views, MergedFileOmitsTensorsMissingInIndex) {
  const TempDir dir;
  write_safetensors(dir / "1.safetensors",
                    {random_tensor("a", "U8", {3}), random_tensor("e", "F32", {0})});
  write_index(dir / "part.safetensors.index.json", {{"a", "1.safetensors"}});
  write_index(dir / "all.safetensors.index.json", {{"a", "1.safetensors"}, {"e", "1.safetensors"}});

  const Mounted part({dir / "part.safetensors.index.json"});
  const Mounted all({dir / "all.safetensors.index.json"});

  EXPECT_EQ(entries_of(part / ".stfs/merged.safetensors").size(), 1U);
  EXPECT_TRUE(read_file(all / ".stfs/merged.safetensors") == read_file(dir / "1.safetensors"));
}

TEST_F(Views, MetadataConflictIsOmittedAndReported) {
  const TempDir dir;
  write_safetensors(dir / "a.safetensors", {random_tensor("a", "U8", {1})},
                    Metadata{{"format", "pt"}, {"part", "1"}});
  write_safetensors(dir / "b.safetensors", {random_tensor("b", "U8", {1})},
                    Metadata{{"format", "pt"}, {"part", "2"}});
  const Mounted mount({dir / "a.safetensors", dir / "b.safetensors"});

  const json header = json::parse(header_text(mount / ".stfs/merged.safetensors"));

  EXPECT_EQ(header.at("__metadata__"), (json{{"format", "pt"}}));
  EXPECT_NE(read_file(mount / ".stfs/info.json").find("\"part\""), std::string::npos);
}

TEST_F(Views, SubsetContainsTensorsThatMatchGlob) {
  const TempDir dir;
  write_safetensors(
      dir / "m.safetensors",
      {random_tensor("layers/0/q", "U8", {3}, 1), random_tensor("layers/1/q", "F32", {3}, 2),
       random_tensor("layers/1/k", "F16", {3}, 3), random_tensor("head.weight", "F64", {3}, 4)},
      Metadata{{"format", "pt"}});
  const auto all = entries_of(dir / "m.safetensors");
  const Mounted mount({dir / "m.safetensors"});
  const auto expect_subset = [&](const std::string& glob, const std::vector<std::string>& names) {
    const fs::path file = mount / (".stfs/subset/" + glob + ".safetensors");
    std::map<std::string, TensorEntry> expected;
    for (const std::string& name : names) expected[name] = all.at(name);
    SCOPED_TRACE(glob);
    EXPECT_EQ(run({STFS_INFO_BINARY, "check", file}).status, 0);
    expect_same(entries_of(file), expected);
    EXPECT_EQ(json::parse(header_text(file)).at("__metadata__"), (json{{"format", "pt"}}));
  };

  expect_subset("layers%2F*%2Fq", {"layers/0/q", "layers/1/q"});
  expect_subset("layers%2F1%2F?", {"layers/1/q", "layers/1/k"});
  expect_subset("*[qt]", {"layers/0/q", "layers/1/q", "head.weight"});
  expect_subset("head.weight", {"head.weight"});
  expect_subset("*", {"layers/0/q", "layers/1/q", "layers/1/k", "head.weight"});
  EXPECT_EQ(errno_of_open(mount / ".stfs/subset/nothing*.safetensors"), ENOENT);
  EXPECT_EQ(errno_of_open(mount / ".stfs/subset/*"), ENOENT);
}

TEST_F(Views, SingleTensorIsValidFile) {
  const Mounted mount({test_data("sharded")});

  for (const auto& [name, entry] : single_entries()) {
    const fs::path file = mount / (".stfs/safetensors/" + name + ".safetensors");
    expect_same(entries_of(file), {{name, entry}});
  }
  const Outcome check = sh(R"("$1" check "$2"/*)", {STFS_INFO_BINARY, mount / ".stfs/safetensors"});
  EXPECT_EQ(check.status, 0) << check.out << check.err;
}

// stats, sha256

TEST_F(Views, StatsEqualNumpy) {
  REQUIRE_NUMPY();
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", every_type());
  std::vector<std::string> sources;
  for (const std::string& name : kCheckpoints) sources.push_back(test_data(name));
  sources.push_back(dir / "m.safetensors");
  for (const std::string& source : sources) {
    const Mounted mount({source});
    expect_ok(python(R"PY(
numpy.seterr(all='ignore')
for name, tensor in tensors.items():
    stats = json.load(open(stfs + 'stats/' + name + '.json'))
    values = floats(tensor) if tensor[0] in FLOATING and tensor[0] != 'F64' else array(tensor)
    assert list(stats) == ['count', 'min', 'max', 'mean', 'std', 'zeros', 'nan', 'inf',
                           'nan_at', 'inf_at', 'largest_at'], stats
    assert stats['count'] == values.size, name
    assert stats['zeros'] == (values == 0).sum(), name
    assert stats['nan'] == numpy.isnan(values).sum(), name
    assert stats['inf'] == (numpy.isinf(values) & ~numpy.isnan(values)).sum(), name
    for key, found in (('nan_at', numpy.isnan(values)),
                       ('inf_at', numpy.isinf(values) & ~numpy.isnan(values))):
        assert stats[key] == numpy.argwhere(found).tolist()[:8], (name, stats)
    finite = values[numpy.isfinite(values)]
    if tensor[0] == 'C64' or finite.size == 0:
        assert [stats[k] for k in ('min', 'max', 'mean', 'std', 'largest_at')] == [None] * 5, name
        continue
    finite = finite.astype('f8')
    size = numpy.abs(numpy.where(numpy.isfinite(values), values, 0).astype('f8'))
    first = numpy.isfinite(values) & (size == numpy.abs(finite).max())
    assert stats['largest_at'] == numpy.argwhere(first)[0].tolist(), (name, stats)
    assert stats['min'] == finite.min() and stats['max'] == finite.max(), (name, stats)
    if not (math.isfinite(finite.sum()) and math.isfinite(finite.std())): continue
    assert numpy.isclose(stats['mean'], finite.mean(), rtol=1e-9, atol=1e-12 * abs(finite).max()), (name, stats)
    assert numpy.isclose(stats['std'], finite.std(), rtol=1e-9, atol=1e-12 * abs(finite).max()), (name, stats)
print('ok')
)PY",
                     mount, source),
              source);
  }
}

TEST_F(Views, Sha256sumAcceptsTheDigests) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors",
                    {random_tensor("a/b c", "U8", {1000}), random_tensor("back\\slash", "U8", {3}),
                     random_tensor("", "U8", {1}), random_tensor("line\nend", "U8", {7}),
                     random_tensor("empty", "U8", {0}), random_tensor("*star", "U8", {2}),
                     random_tensor(" lead", "U8", {2})});
  for (const std::string& source :
       {(dir / "m.safetensors").string(), test_data("sharded").string()}) {
    const Mounted mount({source});

    const Outcome check =
        sh(R"(cd "$1"; find .stfs/sha256 -type f -exec cat {} + | sha256sum -c)", {mount.path()});
    const Outcome strict =
        sh(R"(cd "$1"; find .stfs/sha256 -type f -exec cat {} + | sort -k2 > "$2/ours"
                               find . -type f -printf '%P\0' | xargs -0 sha256sum | sort -k2 | cmp - "$2/ours")",
           {mount.path(), dir.path()});

    EXPECT_EQ(check.status, 0) << check.out << check.err;
    EXPECT_EQ(std::ranges::count(check.out, '\n'), source.ends_with("m.safetensors") ? 7 : 36);
    EXPECT_EQ(strict.status, 0) << strict.out << strict.err;
  }
}

// More bytes than any machine can hash before a command times out.
constexpr std::uint64_t kTooMuch = 1ULL << 40;

// Writes a checkpoint with one tensor. Its bytes are a hole in the file.
void write_sparse(const fs::path& path, const std::string& name, std::uint64_t bytes) {
  HeaderBuilder header;
  header.add(name, "U8", {bytes}, bytes);
  write_file(path, safetensors_bytes(header.finish(), ""));
  fs::resize_file(path, fs::file_size(path) + bytes);
}

// Returns the processor time of a process in clock ticks.
std::uint64_t ticks_of(pid_t pid) {
  std::string text = read_file("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  fields >> user >> system;
  return user + system;
}

// Returns true if every thread of a process sleeps. A thread that computes is running or runnable.
bool is_asleep(pid_t pid) {
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "stat");  // absent if the thread has just ended
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.empty() || text[text.rfind(')') + 2] != 'S') return false;
  }
  return true;
}

TEST_F(Views, DeathOfReaderStopsComputation) {
  if (is_remote()) GTEST_SKIP() << "1 TiB of zeros is too much for the network";
  const TempDir dir;
  write_sparse(dir / "m.safetensors", "big", kTooMuch);
  const Mounted mount({dir / "m.safetensors"});
  const pid_t daemon = mount.daemon();

  for (const char* path : {".stfs/stats/big.json", ".stfs/sha256/big"}) {
    for (const int signal : {SIGKILL, SIGINT}) {
      const std::uint64_t before = ticks_of(daemon);
      Process reader({"cat", mount / path});
      ASSERT_TRUE(eventually([&] { return ticks_of(daemon) > before + 10; }))
          << "the daemon must compute";
      EXPECT_TRUE(reader.running());
      EXPECT_FALSE(read_file(mount / ".stfs/info.json").empty())
          << "the mount must serve other readers";
      EXPECT_EQ(names_in(mount.path()), std::vector<std::string>{"big"});

      reader.signal(signal);
      const Outcome outcome = reader.wait();

      EXPECT_EQ(outcome.status, 128 + signal) << path << ": " << outcome.err;
      EXPECT_FALSE(outcome.timed_out) << path;
      int idle = 0;  // consecutive checks that found all threads asleep
      EXPECT_TRUE(eventually([&] {
        idle = is_asleep(daemon) ? idle + 1 : 0;
        return idle == 50;
      })) << path
          << ": the computation continues";
    }
  }
}

TEST_F(Views, UnmountDoesNotWaitForComputation) {
  if (is_remote()) GTEST_SKIP() << "1 TiB of zeros is too much for the network";
  const TempDir dir;
  write_sparse(dir / "m.safetensors", "big", kTooMuch);
  ForegroundMount mount({dir / "m.safetensors"});
  const pid_t daemon = mount.process().pid();
  Process reader({"cat", mount / ".stfs/sha256/big"});
  ASSERT_TRUE(eventually([&] { return ticks_of(daemon) > 20; }));

  mount.process().signal(SIGTERM);
  const Outcome outcome = mount.process().wait();

  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_NE(reader.wait().status, 0) << "the reader must not get a partial digest";
}

TEST_F(Views, ConcurrentReadersOfAllViewsSeeSameBytes) {
  const TempDir dir;
  write_safetensors(dir / "m.safetensors", every_type(), Metadata{{"format", "pt"}});
  // The first mount gives the expected bytes. In the second mount every first access happens under
  // load.
  std::map<std::string, std::string> expected;
  std::vector<std::string> listed;
  {
    const Mounted quiet({dir / "m.safetensors"});
    listed = names_in(quiet / ".stfs");
    for (const fs::path& root : {quiet.path(), quiet / ".stfs"}) {
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (!entry.is_regular_file()) continue;
        const std::string path = entry.path().lexically_relative(quiet.path());
        if (path == ".stfs/counters.json") continue;  // each read changes it
        expected[path] = read_file(entry.path());
      }
    }
    for (const char* path :
         {".stfs/slice/type/BF16/:,1", ".stfs/slice/type/F64/1:3", ".stfs/slice/type/U8/::2,::2",
          ".stfs/npy-slice/type/F32/-1,:.npy", ".stfs/subset/*F32*.safetensors",
          ".stfs/subset/type%2F*.safetensors"}) {
      expected[path] = read_file(quiet / path);
    }
  }
  ASSERT_GT(expected.size(), 200U);
  std::vector<std::string> paths;
  for (const auto& [path, bytes] : expected) paths.push_back(path);

  const Mounted mount({dir / "m.safetensors"}, {"-o", "page_cache=direct"});
  constexpr int kThreads = 6;
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      RandomBytes random(static_cast<std::uint64_t>(t) + 1);
      start.arrive_and_wait();
      for (std::size_t round = 0; round < paths.size() * 2; ++round) {
        // In the first rounds all threads use the same order, so that they read the same file at
        // once.
        const std::string& path =
            paths[round < paths.size() ? round : random.next() % paths.size()];
        EXPECT_TRUE(read_file(mount / path) == expected[path]) << path;
        if (round % 50 == static_cast<std::size_t>(t)) {
          EXPECT_EQ(names_in(mount / ".stfs"), listed);
          EXPECT_EQ(names_in(mount / ".stfs/npy/type").size(), 19U);
        }
        const std::string index = std::to_string(random.next() % 24 / 6);
        EXPECT_EQ(fs::file_size(mount / (".stfs/slice/type/U8/" + index)), 6U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stfs::test
