// Where `extract` and `report` write: the standard output, a device or a pipe as it stands, or a
// new file. It is never a file that the command reads, by whatever name.
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

// Whether standard output is a regular file.
bool prints_to_file();

// Throws Error kUsage when the standard output is the file with this name.
void refuse_source_as_output(const std::string& path);
// The same for each file of is_read().
void refuse_source_as_output(const Sources& sources);

class Output {
 public:
  // Opens Arguments::output. Throws Error kUsage: it is a file that `sources` have read, a
  // terminal, or an existing file without Arguments::force; kUnreadable: it cannot be opened.
  Output(const Arguments& arguments, const Sources& sources);

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
