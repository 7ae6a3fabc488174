// Where `extract` and `report` write: the standard output, a device or a pipe as it stands, or a
// new file. It is never a file that the command reads, by whatever name.
//
// Thread safety: one thread constructs, commits and destroys it.
#pragma once

#include "core/base/posix.h"
#include "core/checkpoint/checkpoint.h"
#include "core/write/new_file.h"
#include "tools/info/verbs.h"

#include <optional>
#include <span>
#include <string>

namespace stfs {

inline constexpr const char* kStandardOutput = "standard output";  // for messages

// Whether standard output is a regular file.
bool prints_to_file();

// Throws Error kUsage when the standard output is the file with this name.
void refuse_source_as_output(const std::string& path);
// Throws Error kUsage when the standard output is a file that is read for one of the checkpoints,
// which `sources` opened.
void refuse_source_as_output(std::span<const Checkpoint* const> read, const Sources& sources);

class Output {
 public:
  // Opens Arguments::output. Throws Error kUsage: it is a file that is read for one of the
  // checkpoints, a terminal, or an existing file without Arguments::force; kUnreadable: it cannot
  // be opened.
  Output(const Arguments& arguments, std::span<const Checkpoint* const> read,
         const Sources& sources);

  int fd() const;
  const std::string& name() const { return name_; }  // for messages
  bool is_new_file() const { return file_.has_value(); }

  // NewFile::commit().
  void commit();

 private:
  std::string name_;
  UniqueFd stream_;  // a device or a pipe
  std::optional<NewFile> file_;
};

}  // namespace stfs
