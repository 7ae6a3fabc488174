// The output of `extract` and `report`: the standard output, an existing device or pipe, or a new
// file. It is never a file that the command reads, even if it has another name.
//
// Thread safety: one thread constructs, commits and destroys it.
#pragma once

#include "core/base/posix.h"
#include "core/write/new_file.h"
#include "tools/info/verbs.h"

#include <optional>
#include <string>

namespace stfs {

inline constexpr const char* kStandardOutput = "standard output";  // for messages

// Returns true if standard output is a regular file.
bool prints_to_file();

// Throws Error kUsage if the standard output is the file at this path.
void refuse_source_as_output(const std::string& path);
// Throws Error kUsage if the standard output is a file for which is_read() returns true.
void refuse_source_as_output(const Sources& sources);

class Output {
 public:
  // Opens Arguments::output. Throws Error kUsage for a file that `sources` have read, for a
  // terminal, and for an existing file without Arguments::force. Throws Error kUnreadable if the
  // output cannot be opened.
  Output(const Arguments& arguments, const Sources& sources);

  int fd() const;
  const std::string& name() const { return name_; }  // for messages
  bool is_new_file() const { return file_.has_value(); }

  // Calls NewFile::commit() if the output is a new file.
  void commit();

 private:
  std::string name_;
  UniqueFd stream_;  // a device or a pipe
  std::optional<NewFile> file_;
};

}  // namespace stfs
