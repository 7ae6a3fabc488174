// A directory that gets its name when all files in it are complete.
//
//   constructor   creates a directory with a temporary name beside the target; if that is wanted,
//                 SIGHUP, SIGINT and SIGTERM remove it
//   commit()      fsync(2) of it, renameat2(2) to its own name, fsync(2) of the directory above
//   destructor    without commit(): removes it
//
// SIGKILL leaves the temporary directory behind. Thread safety: one thread uses it.
#pragma once

#include "core/base/posix.h"
#include "core/checkpoint/at_signal.h"

#include <memory>
#include <string>

namespace stfs {

class NewDirectory {
 public:
  // `cleans_up`: signals remove it; a library must not take them. Throws Error kUsage when there is
  // something of this name that is no empty directory; kUnreadable.
  NewDirectory(std::string path, bool cleans_up);
  ~NewDirectory();
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  // Creates a file in it for writing. Throws Error kUnreadable.
  UniqueFd create(const std::string& name) const;
  // fsync(2) of such a file, and mode 0666 less the umask. Throws Error kUnreadable.
  void finish(const UniqueFd& file, const std::string& name) const;
  // A file in it for reading; without it. Throw Error kUnreadable.
  UniqueFd open(const std::string& name) const;
  void remove(const std::string& name) const;
  void commit();  // throws as the constructor does

 private:
  std::string path_;       // without slashes at its end
  std::string parent_;
  std::string temporary_;  // "" once it is committed
  UniqueFd directory_;
  std::unique_ptr<AtSignal> at_signal_;
};

}  // namespace stfs
