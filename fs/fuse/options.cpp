#include "fs/fuse/options.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <CLI/CLI.hpp>
#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string_view>

namespace stfs {
namespace {

constexpr const char* kHelp = R"(Mount a safetensors checkpoint: every tensor is a file.

Usage: stfs [-f] [-o OPTION[,OPTION...]] SOURCE... MOUNTPOINT
       stfs -u [-z] MOUNTPOINT

SOURCE is a .safetensors file, a *.safetensors.index.json, or a directory that
holds a checkpoint. Several are one namespace.

  -o OPTION[,OPTION...]  mount options, see below
  -f, --foreground       stay in the foreground; log to standard error
  -u, --unmount          unmount
  -z, --lazy             with -u: detach at once, end with the last open file
  -h, --help             print this help
  -V, --version          print the version

Options for -o:
  views=hidden|visible|off  .stfs is only reachable by its path (the default),
                            listed in the root, or not there
  cache=kernel|direct       keep pages in the kernel's cache (the default), or
                            read around it
  allow_missing             mount without the shards and tensors that an index
                            names and that are not there
  supervise                 a second process starts the one that serves anew when it
                            dies; readers wait and see no error
  threads=N                 how many requests are answered at the same time
  uid=N, gid=N, umask=OCTAL owner and permissions of the files
  allow_other, ...          what mount.fuse3(8) lists

The mount is always read-only, nosuid, nodev and default_permissions.

Exit status: 0 done, 1 the checkpoint breaks the format, 2 wrong usage,
3 the source cannot be read, 4 the mount failed.
)";

[[noreturn]] void refuse(std::string_view option, std::string_view rule) {
  throw Error(ErrorCode::kUsage, "-o " + std::string(option), rule);
}

// Splits "a,b=c\,d" at the commas that no backslash protects, and takes the backslashes away.
std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '\\' && i + 1 < list.size()) {
      out.back() += list[++i];
    } else if (list[i] == ',') {
      out.emplace_back();
    } else {
      out.back() += list[i];
    }
  }
  std::erase(out, "");
  return out;
}

unsigned parse_number(std::string_view option, std::string_view text, int base, unsigned least,
                      unsigned most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    refuse(option, base == 8 ? "a number from 0 to 777 in octal digits is expected"
                             : "a number from " + std::to_string(least) + " to " +
                                   std::to_string(most) + " is expected");
  }
  return value;
}

constexpr unsigned kMaxId = std::numeric_limits<unsigned>::max() - 1;  // -1 means none

uid_t parse_user(std::string_view option, const std::string& text) {
  if (const passwd* user = ::getpwnam(text.c_str())) return user->pw_uid;
  return parse_number(option, text, 10, 0, kMaxId);
}
gid_t parse_group(std::string_view option, const std::string& text) {
  if (const group* found = ::getgrnam(text.c_str())) return found->gr_gid;
  return parse_number(option, text, 10, 0, kMaxId);
}

// Words of mount(8) and fstab(5) that say nothing to this mount: it is read-only, nosuid and nodev
// whatever they say, and the rest is for the programs that read fstab.
bool is_ignored(std::string_view key) {
  constexpr std::array kIgnored{"ro",          "rw",
                                "suid",        "nosuid",
                                "dev",         "nodev",
                                "defaults",    "auto",
                                "noauto",      "user",
                                "nouser",      "users",
                                "owner",       "group",
                                "_netdev",     "nofail",
                                "nonempty",    "atime",
                                "relatime",    "norelatime",
                                "strictatime", "diratime",
                                "nodiratime",  "lazytime",
                                "nolazytime",  "iversion",
                                "noiversion",  "mand",
                                "nomand",      "loud",
                                "silent",      "subtype",
                                "comment",     "default_permissions"};
  return std::ranges::find(kIgnored, key) != kIgnored.end() || key.starts_with("x-") ||
         key.starts_with("X-") || key.starts_with("comment");
}

void apply(Options& options, const std::string& option) {
  const std::size_t equals = option.find('=');
  const std::string key = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  const auto one_of = [&](auto... choices) {
    const std::array names{std::string_view(choices)...};
    const auto found = std::ranges::find(names, value);
    if (found == names.end()) {
      std::string list;
      for (const std::string_view name : names) {
        list += (list.empty() ? "" : ", ") + std::string(name);
      }
      refuse(option, "one of " + list + " is expected");
    }
    return found - names.begin();
  };
  if (key == "views") {
    constexpr std::array kChoices{ControlDirectory::kHidden, ControlDirectory::kVisible,
                                  ControlDirectory::kOff};
    options.control = kChoices[static_cast<std::size_t>(one_of("hidden", "visible", "off"))];
  } else if (key == "cache") {
    options.direct = one_of("kernel", "direct") == 1;
  } else if (option == "allow_missing") {
    options.allow_missing = true;
  } else if (option == "supervise") {
    options.supervise = true;
  } else if (key == "threads") {
    options.threads = parse_number(option, value, 10, 1, 1024);
  } else if (key == "uid") {
    options.uid = parse_user(option, value);
  } else if (key == "gid") {
    options.gid = parse_group(option, value);
  } else if (key == "umask") {
    options.umask = parse_number(option, value, 8, 0, 0777);
  } else if (key == "max_read") {
    options.max_read = parse_number(option, value, 10, 4096, 1U << 30);
    options.mount_options.push_back(option);
  } else if (key == "fsname") {
    options.fsname = value;
  } else if (key == "remount") {
    refuse(option, "a mounted checkpoint does not change: unmount it and mount it again");
  } else if (!is_ignored(key)) {
    options.mount_options.push_back(option);
  }
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

const char* help_text() { return kHelp; }

Options parse_options(int argc, const char* const* argv) {
  Options options;
  std::vector<std::string> paths;
  std::vector<std::string> lists;
  bool unmount = false;

  // CLI11 takes "[a]" for a list of its own; a byte before it keeps it from that.
  constexpr char kGuard = '\x01';
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument.starts_with('[')) argument.insert(0, 1, kGuard);
  }
  std::ranges::reverse(arguments);  // as CLI11 wants them

  CLI::App app("", "stfs");
  app.set_version_flag("-V,--version", STFS_VERSION);
  app.add_option("paths", paths);
  app.add_option("-o", lists)->allow_extra_args(false);
  app.add_flag("-f,--foreground", options.foreground);
  app.add_flag("-u,--unmount", unmount);
  app.add_flag("-z,--lazy", options.lazy);
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    options.command = Options::Command::kHelp;
    return options;
  } catch (const CLI::CallForVersion&) {
    options.command = Options::Command::kVersion;
    return options;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kUsage, "", printable(one_line(error.what())) + " (try stfs --help)");
  }

  for (std::string& path : paths) {
    if (path.starts_with(kGuard)) path.erase(0, 1);
  }
  for (const std::string& list : lists) {
    for (const std::string& option : split(list)) apply(options, option);
  }
  if (unmount) {
    if (paths.size() != 1) throw Error(ErrorCode::kUsage, "", "-u takes one MOUNTPOINT");
    options.command = Options::Command::kUnmount;
  } else {
    if (options.lazy) throw Error(ErrorCode::kUsage, "", "-z is for -u");
    if (paths.size() < 2) {
      throw Error(ErrorCode::kUsage, "", "SOURCE and MOUNTPOINT are expected (try stfs --help)");
    }
  }
  options.mountpoint = std::move(paths.back());
  paths.pop_back();
  options.sources = std::move(paths);
  return options;
}

}  // namespace stfs
