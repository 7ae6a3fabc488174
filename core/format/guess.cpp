#include "core/format/guess.h"

#include "core/base/text.h"
#include "core/format/gguf.h"
#include "core/format/safetensors.h"
#include "core/format/zip.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace stfs {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kGuessBytes = 4096;
constexpr std::size_t kExcerptBytes = 100;
constexpr std::string_view kWhiteSpace = " \t\r\n";

std::string_view without_space(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // a byte-order mark
  text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
  return text;
}

// Returns true if `text` begins with `lower` in any case. `lower` must be in lower case.
bool begins_in_any_case(std::string_view text, std::string_view lower) {
  const auto is_same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  return text.size() >= lower.size() &&
         std::ranges::equal(text.substr(0, lower.size()), lower, is_same);
}

bool is_page(std::string_view first) {
  const std::string_view text = without_space(first);
  return begins_in_any_case(text, "<!doctype html") || begins_in_any_case(text, "<html");
}

bool is_object(std::string_view first) { return without_space(first).starts_with('{'); }

bool is_answer(std::string_view first) {
  constexpr std::size_t kNear = 256;  // enough, because a server's errors are short
  return is_object(first) && first.substr(0, kNear).find("\"error\"") != std::string_view::npos;
}

bool is_torch_before_1_6(std::string_view first) {
  return first.starts_with("\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv);
}

// A pickle begins with its protocol and an opcode: of a frame, a container or a number.
bool is_pickle(std::string_view first) {
  return first.size() > 2 && first[0] == '\x80' && first[1] >= 2 && first[1] <= 5 &&
         "\x95\x8a}](c"sv.find(first[2]) != std::string_view::npos;
}

// Flax writes a map with a text as its first key.
bool is_msgpack(std::string_view first) {
  const auto at = [&](std::size_t i) {
    return i < first.size() ? static_cast<unsigned char>(first[i]) : 0U;
  };
  const std::size_t key = (at(0) & 0xF0U) == 0x80 ? 1 : at(0) == 0xDE ? 3 : at(0) == 0xDF ? 5 : 0;
  return key != 0 && first.size() > key + 1 && ((at(key) & 0xE0U) == 0xA0 || at(key) == 0xD9) &&
         static_cast<unsigned char>(first[key + (at(key) == 0xD9 ? 2 : 1)]) >= ' ' &&
         static_cast<unsigned char>(first[key + (at(key) == 0xD9 ? 2 : 1)]) < 0x7F;
}

// CTranslate2's model.bin: its version, the length of a name, and the name, such as
// "TransformerSpec".
bool is_ctranslate2(std::string_view first) {
  constexpr std::size_t kName = 6;
  if (first.size() < kName || first[1] != 0 || first[2] != 0 || first[3] != 0) return false;
  const auto byte = [&](std::size_t at) -> std::size_t {
    return static_cast<unsigned char>(first[at]);
  };
  const std::size_t length = byte(4) + (byte(5) << 8);
  return length > 5 && length < 256 && first.size() >= kName + length &&
         first.substr(kName, length - 1).ends_with("Spec") && first[kName + length - 1] == '\0';
}

bool is_printable_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

// ONNX has no magic number, but a ModelProto begins with ir_version and the producer's name.
bool is_onnx(std::string_view first) {
  if (first.size() < 4 || first[0] != 8 || first[2] != 0x12) return false;
  const auto length = static_cast<unsigned char>(first[3]);
  return length > 0 && first.size() > 4U + length && is_printable_ascii(first.substr(4, length));
}

bool is_text(std::string_view first) {
  // The limit of kGuessBytes may have cut the last character.
  const std::string_view whole = first.substr(
      0, first.size() < kGuessBytes ? first.size() : utf8_floor(first, kGuessBytes - 1));
  return is_utf8(whole) && std::ranges::none_of(first, [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return (byte < ' ' && kWhiteSpace.find(c) == std::string_view::npos) || byte == 0x7F;
         });
}

struct FileKind {
  bool (*recognises)(std::string_view first);
  std::string_view what;  // completes "the file ..."
  std::string_view advice;
  bool shows_text = false;    // the message quotes the beginning of the file
  bool may_be_index = false;  // a valid index of shards may look like this too
};

constexpr std::string_view kAgain = "download it again";

// In the order in which they are tried.
constexpr FileKind kFileKinds[] = {
    {[](std::string_view f) { return f.empty(); }, "is empty",
     "an interrupted download? download it again"},
    {[](std::string_view f) { return f.find_first_not_of('\0') == std::string_view::npos; },
     "begins with zeros, as an unfinished download does", kAgain},
    {[](std::string_view f) { return f.starts_with("version https://git-lfs"); },
     "is a Git LFS pointer", "run git lfs pull"},
    {is_page, "is an HTML page, perhaps a login form or an error", kAgain},
    {[](std::string_view f) { return without_space(f).starts_with("<?xml"); },
     "is XML, perhaps a server's error", kAgain, true},
    {[](std::string_view f) {
       return is_object(f) && f.find("\"weight_map\"") != std::string_view::npos;
     },
     "is an index of shards",
     "give it a name that ends in .safetensors.index.json, beside its shards", false, true},
    {is_answer, "is a server's error", kAgain, true},
    {is_object, "is JSON", "name a .safetensors file, or an index *.safetensors.index.json", false,
     true},
    {is_torch_before_1_6, "is a PyTorch file from before 1.6",
     "load it with torch.load and save it again: torch.save writes what stfs reads"},
    {is_pickle, "is a Python pickle that torch.save did not write",
     "if you trust it, load it with pickle.load, which runs code, and save its arrays with "
     "numpy.savez"},
    {[](std::string_view f) { return f.starts_with("\x93NUMPY"); }, "is a NumPy array, .npy",
     "numpy.savez makes an archive that stfs reads"},
    {[](std::string_view f) { return f.starts_with("\x89HDF\r\n\x1A\n"); },
     "is HDF5, as Keras writes it", "convert it to safetensors"},
    {[](std::string_view f) { return f.starts_with("lmgg"); },
     "is a ggml file, as whisper.cpp uses",
     "stfs does not read this format: name a model in safetensors"},
    {[](std::string_view f) {
       return f.starts_with("tjgg") || f.starts_with("fmgg") || f.starts_with("algg");
     },
     "is a ggml file from before GGUF", "download a GGUF file of the model"},
    {[](std::string_view f) { return f.size() > 8 && f.substr(4, 4) == "TFL3"; },
     "is TensorFlow Lite", "convert it to safetensors"},
    {is_ctranslate2, "is a model of CTranslate2", "download the model that it was converted from"},
    {[](std::string_view f) { return f.starts_with("|TZR|"); }, "was written by tensorizer",
     "load it with tensorizer, and save it as safetensors"},
    {[](std::string_view f) { return f.starts_with("7z\xBC\xAF\x27\x1C"); }, "is a 7z archive",
     "unpack it"},
    {[](std::string_view f) { return f.starts_with("Rar!\x1A\x07"); }, "is a RAR archive",
     "unpack it"},
    {[](std::string_view f) { return f.starts_with("\x1F\x8B\x08"); }, "is compressed with gzip",
     "decompress it with gzip -d"},
    {[](std::string_view f) { return f.starts_with("\x28\xB5\x2F\xFD"); },
     "is compressed with zstd", "decompress it with zstd -d"},
    {[](std::string_view f) {
       return f.starts_with(
           "\xFD"
           "7zXZ");
     },
     "is compressed with xz", "decompress it with xz -d"},
    {[](std::string_view f) { return f.starts_with("BZh"); }, "is compressed with bzip2",
     "decompress it with bzip2 -d"},
    {[](std::string_view f) { return f.size() > 262 && f.substr(257, 5) == "ustar"; },
     "is a tar archive", "unpack it"},
    {is_onnx, "is ONNX", "convert it to safetensors"},
    {is_msgpack, "is msgpack, as Flax writes it", "convert it to safetensors"},
    {is_text, "is text", "download it again, or name another file", true},
};

// Returns true if the file may begin with a header: with GGUF's magic number, an archive, or a
// length within the limit of safetensors and the beginning of an object.
bool has_header(std::string_view first) {
  const auto bytes = std::as_bytes(std::span(first));
  if (is_gguf(bytes) || is_zip(bytes)) return true;
  constexpr std::size_t kLength = 8;
  if (first.size() <= kLength || !is_object(first.substr(kLength))) return false;
  std::uint64_t length = 0;
  for (std::size_t i = kLength; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first[i]);
  return length <= kMaxJsonLength;
}

bool is_gguf_name(std::string_view name) { return name.ends_with(".gguf"); }

// Returns true if the file ends with a zip archive without a comment. Such a file may be an archive
// after other bytes, or a program that unpacks itself.
bool ends_with_zip(const Source& source) {
  std::string last(22, '\0');  // the size of an end record
  return source.size() >= last.size() &&
         source.read(std::as_writable_bytes(std::span(last)), source.size() - last.size()) == 0 &&
         last.starts_with("PK\5\6");
}

// Returns what to do about a broken rule if no kind of file is recognised, or "".
std::string_view advice_for(ErrorCode code, bool begins_well) {
  switch (code) {
    case ErrorCode::kHeaderTooLarge: return ": not a safetensors file";
    case ErrorCode::kInvalidHeaderLength:
      return begins_well ? ": truncated? download it again" : ": not a safetensors file?";
    case ErrorCode::kHeaderTooSmall: return ": truncated? download it again";
    case ErrorCode::kInvalidHeader:
      return begins_well ? ": damaged? download it again" : ": not a safetensors file?";
    case ErrorCode::kInvalidHeaderDeserialization:
      return begins_well ? "" : ": not a safetensors file?";
    case ErrorCode::kMetadataIncompleteBuffer: return ": download it again";
    case ErrorCode::kGgufTruncated:
    case ErrorCode::kGgufData: return ": truncated? download it again";
    default: return "";
  }
}

Error with_words(const Error& refusal, const std::string& place, const FileKind& kind,
                 std::string_view first) {
  std::string words = "the file ";
  words += kind.what;
  if (kind.shows_text) {
    const std::string_view text = without_space(first);
    const bool is_long = text.size() > kExcerptBytes;
    std::string excerpt = printable(text.substr(
        0, is_long ? utf8_floor(text, kExcerptBytes) : text.find_last_not_of(kWhiteSpace) + 1));
    words.append(": ").append(excerpt).append(is_long ? "..." : "");
  }
  words.append(" (").append(kind.advice).append("): ");
  return {refusal.code(), place, words + refusal.message()};
}

}  // namespace

bool is_unfinished_name(std::string_view name) {
  return std::ranges::any_of(kUnfinishedSuffixes,
                             [&](std::string_view end) { return name.ends_with(end); });
}

bool is_piece_name(std::string_view name) {
  const std::string last(name.substr(name.rfind('/') + 1));
  constexpr std::array kPatterns{"*.part[0-9]of[0-9]",        "*.part[0-9]*of[0-9][0-9]",
                                 "*.part[0-9][0-9]of[0-9]*",  "*-split-[a-z]",
                                 "*.gguf.0[0-9][0-9]",        "*.gguf.parta[a-z]",
                                 "*.safetensors.0[0-9][0-9]", "*.safetensors.parta[a-z]"};
  return std::ranges::any_of(
      kPatterns, [&](const char* pattern) { return ::fnmatch(pattern, last.c_str(), 0) == 0; });
}

Error explained(const Error& refusal, const Source& source, const std::string& place) {
  if (exit_status(refusal.code()) != 1) return refusal;
  std::string first(std::min<std::uint64_t>(kGuessBytes, source.size()), '\0');
  if (source.read(std::as_writable_bytes(std::span(first)), 0) != 0) return refusal;
  if (is_unfinished_name(place) || is_unfinished_name(source.path())) {
    constexpr FileKind kUnfinished{nullptr, "has the name of an unfinished download",
                                   "finish the download"};
    return with_words(refusal, place, kUnfinished, first);
  }
  if (is_piece_name(place) || is_piece_name(source.path())) {
    constexpr FileKind kPiece{nullptr, "has the name of one piece of a split file",
                              "join all pieces in their order with cat, and name the result"};
    return with_words(refusal, place, kPiece, first);
  }
  if (place.ends_with("/data.pkl") || place == "data.pkl") {
    constexpr FileKind kUnpacked{
        nullptr, "has the name of the pickle of a PyTorch file that was unpacked",
        "pack its directory again, with zip -0 -r FILE.pt in the directory above"};
    return with_words(refusal, place, kUnpacked, first);
  }
  const bool begins_well = has_header(first);
  if (!begins_well) {
    const auto* const kind = std::ranges::find_if(
        kFileKinds, [&](const FileKind& row) { return row.recognises(first); });
    if (kind != std::end(kFileKinds)) return with_words(refusal, place, *kind, first);
    if (is_gguf_name(place) || is_gguf_name(source.path())) {
      constexpr FileKind kNoGguf{
          nullptr, "has the name of a GGUF file and does not begin with GGUF", kAgain};
      return with_words(refusal, place, kNoGguf, first);
    }
    if (ends_with_zip(source)) {
      constexpr FileKind kBehind{nullptr, "does not begin with the zip archive that it ends with",
                                 "download it again, or remove the bytes before the archive"};
      return with_words(refusal, place, kBehind, first);
    }
  }
  return {refusal.code(), place,
          refusal.message() + std::string(advice_for(refusal.code(), begins_well))};
}

Error explained(const Error& refusal, std::string_view index, const std::string& place) {
  const std::string_view first = index.substr(0, kGuessBytes);
  const auto* const kind =
      std::ranges::find_if(kFileKinds, [&](const FileKind& row) { return row.recognises(first); });
  if (kind == std::end(kFileKinds) || kind->may_be_index) return refusal;
  return with_words(refusal, place, *kind, first);
}

}  // namespace stfs
