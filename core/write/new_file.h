// A new file, or a new directory of files, that gets its name when it is complete: it appears whole
// or not at all.
//
//   constructor   opens the directory above, and uses names by its descriptor alone: that directory
//                 may be renamed meanwhile. A NewFile begins without a name (O_TMPFILE) where the
//                 file system can do that; else, as every NewDirectory, with a temporary one
//   commit()      fsync(2), linkat(2) or renameat2(2) to its own name, fsync(2) of the directory
//                 above
//   destructor    without commit(): removes it; what had the name before is unchanged
//
// The writer holds a lock (flock(2)) of what has a temporary name. A process that is killed leaves
// it, unlocked, and the next writer in the same directory removes it.
//
// Thread safety: one thread constructs, commits and destroys it.
#pragma once

#include "core/base/posix.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace stfs {

// What SIGHUP, SIGINT and SIGTERM do meanwhile. kRemove: they are blocked in this thread, and so in
// those that it starts; a thread of the output takes them, removes what has a temporary name, and
// ends the process by the signal. kNothing: for a library, which leaves signals to its program.
enum class AtSignal { kRemove, kNothing };

// What files and directories share.
class NewOutput {
 public:
  NewOutput(const NewOutput&) = delete;
  NewOutput& operator=(const NewOutput&) = delete;

 protected:
  NewOutput(std::string path, AtSignal at_signal);
  ~NewOutput();
  void open_directory_above(const std::string& target);
  // Calls `make`, which returns a descriptor or -1 with errno, with a new name, and locks what it
  // made.
  void begin_named(const std::function<int(const char* name)>& make);
  bool is_mine() const;
  void discard();
  void sync_directory_above() const;
  [[noreturn]] void fail(int error) const;

  const std::string path_;  // for messages
  std::string name_;        // in the directory above
  UniqueFd above_;
  UniqueFd fd_;
  std::mutex naming_;      // held while names change; at a signal until the process ends
  std::string temporary_;  // its name in the directory above; "" while it has none

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

class NewFile : public NewOutput {
 public:
  enum class Begin { kUnnamed, kNamed };
  enum class Existing { kKeep, kReplace };

  // A symbolic link stands for the file that it leads to. kNamed: does not use O_TMPFILE (for
  // tests). Throws Error kUsage when there is a file and it is to be kept; kUnreadable, also when
  // `path` exists and is not a regular file.
  NewFile(const std::string& path, Existing existing, AtSignal at_signal,
          Begin begin = Begin::kUnnamed);

  int fd() const { return fd_.get(); }  // open for writing

  // Gives the file its name, and the mode 0666 less the umask. Call it once. Throws as the
  // constructor does.
  void commit();

 private:
  void begin_unnamed();
  int link(const std::string& name) const;
  int give_name();

  Existing existing_;
};

class NewDirectory : public NewOutput {
 public:
  // Throws Error kUsage when there is something of this name that is no empty directory;
  // kUnreadable.
  NewDirectory(const std::string& path, AtSignal at_signal);

  // Creates a file in it for writing. Throws Error kUnreadable.
  UniqueFd create(const std::string& name);
  // fsync(2) of such a file, and mode 0666 less the umask. Throws Error kUnreadable.
  void finish(const UniqueFd& file, const std::string& name) const;
  // A file in it for reading; without it. Throw Error kUnreadable.
  UniqueFd open(const std::string& name) const;
  void remove(const std::string& name) const;
  void commit();  // throws as the constructor does
};

}  // namespace stfs
